"""Read a run folder: the tidy rows, the names built from their columns, the files beside them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import fedtrees
from fedtrees.core.errors import StoreError

TEXT = (
    "run", "dataset", "partition", "protocol", "protocol_params", "defense", "defense_params",
    "threat", "attack", "attack_params", "stage", "status", "reason", "metric", "unit",
    "claimed", "spent", "measured", "version",
)  # fmt: skip
NUMBERS = (
    "seed", "value", "blind", "advantage", "bytes_up", "bytes_down", "rounds", "seconds",
)  # fmt: skip
UNDEFENDED = "none"
NOT_OK = ("failed", "timeout", "skipped")


@dataclass(frozen=True, order=True)
class Setting:
    """Where models are trained: what every defense is compared within."""

    dataset: str
    partition: str
    protocol: str

    def __str__(self) -> str:
        return " · ".join((self.dataset, self.partition, self.protocol))


@dataclass(frozen=True, order=True)
class Panel:
    """A setting under one threat: one frontier, one leaderboard."""

    setting: Setting
    threat: str

    def __str__(self) -> str:
        return f"{self.setting} · {self.threat}"


def spec(name: str, params: str) -> str:
    """Write a name and its inline parameters the way a suite does.

    ``spec("split-only+laplace-hist", ";epsilon=4")`` is ``split-only+laplace-hist[epsilon=4]``.
    """
    names = name.split("+")
    parts = params.split(";") if params else []
    parts += [""] * (len(names) - len(parts))
    return "+".join(f"{n}[{p}]" if p else n for n, p in zip(names, parts, strict=False))


def label(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``setting``, ``defense_spec`` and ``attack_spec`` to tidy rows."""

    def joined(a: str, b: str) -> list[str]:
        return [spec(x, y) for x, y in zip(rows[a], rows[b], strict=True)]

    protocol = joined("protocol", "protocol_params")
    places = zip(rows["dataset"], rows["partition"], protocol, strict=True)
    return rows.assign(
        # A category compares by code: the report asks for one setting at a time, often.
        setting=pd.Categorical([Setting(*p) for p in places]),
        defense_spec=pd.Series(joined("defense", "defense_params"), index=rows.index, dtype=object),
        attack_spec=pd.Series(joined("attack", "attack_params"), index=rows.index, dtype=object),
    )


def load_rows(run_folder: str | Path) -> pd.DataFrame:
    """Read ``rows.csv`` of a run, one measurement per row.

    Parameters
    ----------
    run_folder : path
        Folder written by a finished (or still running) suite.

    Returns
    -------
    DataFrame
        The columns of the file: text ("" where empty), numbers (NaN where empty), plus
        ``setting``, ``defense_spec`` and ``attack_spec``.

    Raises
    ------
    StoreError
        The file is missing, empty, cut off, holds text where numbers belong, or was written
        by a release whose rows mean something else.
    """
    path = Path(run_folder) / "rows.csv"
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise StoreError(
            f"{path.as_posix()!r} cannot be read ({error.strerror}); "
            "give the folder of a run, the one that holds rows.csv"
        ) from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path.as_posix()!r} is not UTF-8 text; was it overwritten?") from error
    records = _records(path, text)
    header = next(records, (0, []))[1]
    _check_columns(path, header)
    kept = [record for _, record in records]
    frame = pd.DataFrame(kept, columns=header, dtype=object)
    for column in NUMBERS:
        frame[column] = _numbers(path, column, frame[column])
    _check_versions(path, frame["version"])
    return label(frame).copy()  # one block per type: column by column, filters are slow


def _records(path: Path, text: str):  # type: ignore[no-untyped-def]
    """Yield (line number, fields); a short or unterminated record is an error."""
    if not text.strip():
        raise StoreError(f"{path.as_posix()!r} is empty; run the suite again to refill it")
    cut = f"{path.as_posix()!r} is cut off at line %d; run the suite again: finished cells are kept"
    if not text.endswith("\n"):
        raise StoreError(cut % (text.count("\n") + 1))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = 0
    try:
        for fields in reader:
            width = width or len(fields)
            if len(fields) != width:
                raise StoreError(cut % reader.line_num)
            yield reader.line_num, fields
    except csv.Error as error:
        raise StoreError(cut % reader.line_num) from error


def _check_columns(path: Path, header: list[str]) -> None:
    missing = [c for c in (*TEXT, *NUMBERS) if c not in header]
    if missing or len(set(header)) != len(header):
        what = f"lacks the columns {missing}" if missing else "names a column twice"
        raise StoreError(
            f"{path.as_posix()!r} {what}; fedtrees {fedtrees.__version__} cannot read it: "
            "report it with the release that wrote it, or run the suite again"
        )


def _numbers(path: Path, column: str, values: pd.Series) -> pd.Series:
    empty = values == ""
    numbers = pd.to_numeric(values.where(~empty), errors="coerce").astype(float)
    # "nan" is a number that says nothing; anything else that does not parse is damage.
    bad = numbers.isna() & ~empty & (values.astype(str).str.lower() != "nan")
    if bad.any():
        at = int(bad.to_numpy().argmax())
        raise StoreError(
            f"{path.as_posix()!r}, record {at + 1}: {column} is {values.iloc[at]!r}, "
            "not a number; run the suite again"
        )
    return numbers


def _series_of(version: str) -> tuple[str, ...]:
    """Return the part of a release number within which rows keep their meaning."""
    parts = version.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])


def _check_versions(path: Path, versions: pd.Series) -> None:
    ours = fedtrees.__version__
    other = sorted({v for v in versions if v and _series_of(v) != _series_of(ours)})
    if other:
        raise StoreError(
            f"{path.as_posix()!r} was written by fedtrees {', '.join(other)} and this is {ours}; "
            "report it with the release that wrote it, or run the suite again"
        )


def read_text(run_folder: str | Path, name: str) -> str | None:
    """Return the text of a file of the run, None if the run has none."""
    path = Path(run_folder) / name
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def read_json(run_folder: str | Path, name: str) -> Any:
    """Return the parsed JSON of a file of the run, None if the run has none.

    Raises
    ------
    StoreError
        The file is not JSON.
    """
    text = read_text(run_folder, name)
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(
            f"{name} is not JSON (line {error.lineno}); run the suite again"
        ) from error
