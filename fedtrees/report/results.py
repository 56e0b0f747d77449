"""Read the files of a run folder: the tidy rows of ``rows.csv``, and further text and JSON files.

The module also builds names such as ``laplace-hist[epsilon=8]`` from their columns (`label`).

It also merges the rows of several runs (`merge_runs`), and selects a part of a run by the names of
datasets, threats and protocols (`Selection`).
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedtrees
from fedtrees.core.errors import StoreError, UsageError, did_you_mean
from fedtrees.core.files import parse_json, read_listed
from fedtrees.core.reasons import Reason
from fedtrees.core.results import COLUMNS, CONTEXT, CPU, Column, read_described
from fedtrees.core.specs import parse_one, written

UNDEFENDED = "none"
#: Columns that identify a training, an attack or a baseline in tables that `load_rows` returned.
CELL_COLUMNS = ("stage", "setting", "defense_spec", "threat", "attack_spec", "seed")
# The same columns of the file, from which `label` builds those above.
_FILE_COLUMNS = (
    "stage", "dataset", "partition", "protocol", "protocol_params", "defense", "defense_params",
    "threat", "attack", "attack_params", "seed",
)  # fmt: skip
#: Values of a column that earlier releases wrote, and their present names.
_FORMER_VALUES = {
    "stage": {"exposure": "adversary"},
    "attack": {"told-bins": "bucket-reading"},
    "reason_code": {"no-bins-told": "no-buckets-received"},
}
_SAME = 1e-9  # largest difference of two equal scores


@dataclass(frozen=True, order=True)
class Setting:
    """Dataset, partition and protocol. Defenses are only compared within one setting."""

    dataset: str
    partition: str
    protocol: str

    def __str__(self) -> str:
        return " · ".join((self.dataset, self.partition, self.protocol))


@dataclass(frozen=True, order=True)
class Panel:
    """A setting under one threat. It has one frontier and one leaderboard."""

    setting: Setting
    threat: str

    def __str__(self) -> str:
        return f"{self.setting} · {self.threat}"


def label(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``setting``, ``defense_spec``, ``attack_spec`` and ``why`` to tidy rows.

    The column ``why`` contains the `Reason` of each row whose status is not "ok". Rows of earlier
    releases have no reason codes, so that their reason is built from the text.
    """

    def joined(a: str, b: str) -> list[str]:
        return [written(x, y) for x, y in zip(rows[a], rows[b], strict=True)]

    reason_fields = [
        *zip(*(rows[c] for c in ("reason_code", "reason_args", "reason", "status")), strict=True)
    ]
    reasons = {
        (code, args, text, status): Reason.read(
            code, args, "" if status == "ok" else text or status
        )
        for code, args, text, status in {*reason_fields}
    }
    protocol = joined("protocol", "protocol_params")
    places = zip(rows["dataset"], rows["partition"], protocol, strict=True)
    return rows.assign(
        # The report filters by setting very often, and a categorical column compares integer codes
        # instead of dataclasses.
        setting=pd.Categorical([Setting(*p) for p in places]),
        defense_spec=pd.Series(joined("defense", "defense_params"), index=rows.index, dtype=object),
        attack_spec=pd.Series(joined("attack", "attack_params"), index=rows.index, dtype=object),
        why=pd.Series([reasons[t] for t in reason_fields], index=rows.index, dtype=object),
    )


def load_rows(run_folder: str | Path) -> pd.DataFrame:
    """Read ``rows.csv`` of a run, one measurement per row.

    Parameters
    ----------
    run_folder : str or Path
        Folder that a finished or a still running suite has written.

    Returns
    -------
    rows : DataFrame
        The columns `COLUMNS` with parsed values, and the columns that `label` adds.

    Raises
    ------
    StoreError
        If the file is missing, empty, incomplete or changed after the run, if it contains text in a
        numeric column, or if it was written by a release whose rows have a different meaning.
    """
    path = Path(run_folder) / "rows.csv"
    records = read_records(run_folder)
    # The description is optional. It is missing in old runs, and a newer release may describe
    # columns that this one does not have.
    with suppress(OSError, StoreError, ValueError, KeyError):
        read_described(read_listed(path.parent, "columns.csv").decode("utf-8"))
    return _parse_records(path, records)


def read_records(run_folder: str | Path) -> pd.DataFrame:
    """Read the results of a run as text, one measurement per row, with all columns.

    ``rows.csv`` is joined with ``contexts.csv`` and ``columns.csv``
    (`fedtrees.core.results.write_tables`). Runs of earlier releases have all columns in
    ``rows.csv``.

    Raises
    ------
    StoreError
        If a file is missing, empty, incomplete or changed after the run.
    """
    path = Path(run_folder) / "rows.csv"
    rows = _read_table(path, _read_csv(path))
    if CONTEXT.name in rows:
        at = path.with_name("contexts.csv")
        contexts = _read_table(at, _read_csv(at)).set_index(CONTEXT.name)
        names = rows.pop(CONTEXT.name)
        if not contexts.index.is_unique or not names.isin(contexts.index).all():
            raise StoreError(
                f"{at.as_posix()!r} does not belong to the rows.csv next to it; `fedtrees bench "
                f"--resume --output {path.parent}` writes both again"
            )
        rows = pd.concat([rows, contexts.loc[names].reset_index(drop=True)], axis=1)
        for column in (c.name for c in COLUMNS if c.place == "columns" and c.name not in rows):
            rows[column] = rows["metric"].map(_describe_keys(path.parent, column)).fillna("")
    return _complete_columns(path, rows)


def _describe_keys(folder: Path, column: str) -> dict[str, str]:
    """Return the value of a column that follows from the key of a measure, by key."""
    field = {"unit": "unit", "measure_class": "klass"}[column]
    described = csv.DictReader(io.StringIO(_read_csv(folder / "columns.csv")))
    return {row["metric"]: row[field] for row in described if row["metric"]}


def _read_csv(path: Path) -> str:
    """Return the text of a table of a run. Raise `StoreError` if it cannot be read."""
    try:
        return read_listed(path.parent, path.name).decode("utf-8")
    except OSError as error:
        raise StoreError(
            f"{path.as_posix()!r} cannot be read ({error.strerror}); "
            "give the folder of a run, which contains rows.csv; a run that was stopped is "
            "finished by 'fedtrees bench --resume --output FOLDER'"
        ) from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path.as_posix()!r} is not UTF-8 text; was it overwritten?") from error


def parse_rows(path: Path, text: str) -> pd.DataFrame:
    """Parse the text of a ``rows.csv`` with all columns, as a submission contains it.

    See `load_rows` for the result and for `StoreError`. The path only names the file in error
    messages.
    """
    return _parse_records(path, _complete_columns(path, _read_table(path, text)))


def _parse_records(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    """Parse every column of a table of text, and add the columns of `label`."""
    for column in COLUMNS:
        frame[column.name] = _parse_column(path, column, frame[column.name])
    # Names of earlier releases. Remove these lines in the next release.
    for name, former_values in _FORMER_VALUES.items():
        frame[name] = frame[name].replace(former_values)
    _check_versions(path, frame["version"])
    frame = label(frame)
    _check_defenses(path, frame)
    # `copy` merges the columns into one block per type. Filters on many single-column blocks are
    # slow.
    return frame.copy()


def rename_former_values(record: Mapping[str, str]) -> dict[str, str]:
    """Return a record as text, in which values of earlier releases have their present names."""
    renamed = {n: former.get(record[n], record[n]) for n, former in _FORMER_VALUES.items()}
    return {**record, **renamed}


def _read_table(path: Path, text: str) -> pd.DataFrame:
    """Return the records of a CSV file as text.

    Raises `StoreError` if a record is short, the last line is cut off or a column is named twice.
    """
    if not text.strip():
        raise StoreError(f"{path.as_posix()!r} is empty; run the suite again to refill it")
    cut = f"{path.as_posix()!r} is cut off at line %d; run the suite again: finished cells are kept"
    if not text.endswith("\n"):
        raise StoreError(cut % (text.count("\n") + 1))
    # Only the Python engine distinguishes a short record from a record with empty fields.
    try:
        table = pd.read_csv(
            io.StringIO(text), header=None, dtype=str, keep_default_na=False, engine="python",
            skip_blank_lines=False,
        )  # fmt: skip
    except (pd.errors.ParserError, ValueError) as error:
        raise StoreError(f"{path.as_posix()!r} is not a table ({error}); run again") from error
    short = table.isna().any(axis=1).to_numpy()
    if short.any():
        raise StoreError(cut % (short.argmax() + 1))
    header = table.iloc[0].tolist()
    if len(set(header)) != len(header):
        raise _unreadable(path, "names a column twice")
    return table.iloc[1:].reset_index(drop=True).set_axis(header, axis=1)


def _complete_columns(path: Path, records: pd.DataFrame) -> pd.DataFrame:
    """Return records with all columns. Those that earlier releases lack are empty.

    Raises `StoreError` if any other column is missing.
    """
    missing = [c.name for c in COLUMNS if c.name not in records and not c.added_after_first_release]
    if missing:
        raise _unreadable(path, f"lacks the columns {missing}")
    complete = records.assign(**{c.name: "" for c in COLUMNS if c.name not in records})
    names = [c.name for c in COLUMNS]
    return complete[[*names, *(name for name in complete if name not in names)]]


def _unreadable(path: Path, problem: str) -> StoreError:
    """Return the error for a table of another format."""
    return StoreError(
        f"{path.as_posix()!r} {problem}; fedtrees {fedtrees.__version__} cannot read it: report it "
        "with the release that wrote it, or run the suite again"
    )


def _parse_column(path: Path, column: Column, texts: pd.Series) -> pd.Series:
    """Parse one column. Every distinct text is parsed only once."""
    positions, distinct_texts = pd.factorize(texts)
    kind = float if column.kind in ("whole", "number") else object
    values = np.empty(len(distinct_texts), dtype=kind)
    for i, text in enumerate(distinct_texts):
        try:
            values[i] = column.read(text)
        except UsageError as error:
            raise StoreError(
                f"{path.as_posix()!r}, record {(positions == i).argmax() + 1}: {error}; "
                "run the suite again"
            ) from error
    return pd.Series(values[positions], dtype=kind)


def _release_series(version: str) -> tuple[str, ...]:
    """Return the part of a release number within which rows keep their meaning."""
    parts = version.split(".")
    return tuple(parts[:2] if parts[0] == "0" else parts[:1])


def _check_versions(path: Path, versions: pd.Series) -> None:
    """Raise `StoreError` if a release of another series wrote some rows."""
    active = fedtrees.__version__
    other = sorted({v for v in versions if v and _release_series(v) != _release_series(active)})
    if other:
        raise StoreError(
            f"{path.as_posix()!r} was written by fedtrees {', '.join(other)} and this is {active}; "
            "report it with the release that wrote it, or run the suite again"
        )


def _check_defenses(path: Path, frame: pd.DataFrame) -> None:
    """Raise `StoreError` if the name of a defense cannot be parsed."""
    run = frame["stage"].isin(["train", "attack"])
    for text in frame.loc[run, "defense_spec"].unique():
        try:
            parse_one(text)
        except UsageError as error:
            raise StoreError(
                f"{path.as_posix()!r} names a defense {text!r}: {error}; run the suite again"
            ) from error


def merge_runs(runs: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Return the rows of several runs.

    A cell that several runs contain is taken from the first one.

    Raises `UsageError` if two runs have different scores for the same training. They were then made
    by different versions, or from different tables of the same name.
    """
    parts: list[pd.DataFrame] = []
    first: dict[tuple[object, ...], int] = {}  # index of the run from which a cell is taken
    scores: dict[tuple[object, ...], float] = {}
    for at, (name, rows) in enumerate(runs):
        keys = list(rows[list(_FILE_COLUMNS)].fillna(-1).itertuples(index=False, name=None))
        is_first = [first.setdefault(key, at) == at for key in keys]
        columns = (rows[c].tolist() for c in ("stage", "metric", "part", "value", "unit"))
        for key, stage, metric, part, value, unit in zip(keys, *columns, strict=True):
            if stage != "train" or unit == CPU.unit:
                # Attacks are not compared, because a time limit can end them at different points.
                continue
            # Trainings are deterministic, so that two runs of one version give equal scores.
            before = scores.setdefault((*key, metric, part), value)
            if abs(before - value) > _SAME:
                where = " ".join(filter(None, key[1:7]))
                raise UsageError(
                    f"{runs[first[key]][0]} and {name} both contain {where}, seed {key[-1]:g}: "
                    f"{metric} is {before:g} there and {value:g} here; give runs of one version "
                    "and one table, or leave one out"
                )
        parts.append(rows[is_first])
    # The categories of `setting` differ between runs.
    return label(pd.concat(parts, ignore_index=True)) if len(parts) > 1 else parts[0]


def read_text(run_folder: str | Path, name: str) -> str | None:
    """Return the text of a file in the run folder, None if the file does not exist.

    Raises `StoreError` if the file was changed after the run or cannot be read.
    """
    try:
        return read_listed(Path(run_folder), name).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{name} cannot be read ({error.strerror}); give permission") from error


def read_json(run_folder: str | Path, name: str) -> Any:
    """Return the parsed JSON of a file in the run folder, None if the file does not exist.

    Raises `StoreError` if the file is not JSON, was changed after the run or cannot be read.
    """
    text = read_text(run_folder, name)
    return None if text is None else parse_json(text, name)


def read_suite(run_folder: str | Path) -> dict[str, Any]:
    """Return the parsed ``suite.toml`` of a run, empty if the file does not exist.

    Raises `StoreError` if the file is not TOML, was changed after the run or cannot be read.
    """
    try:
        return tomllib.loads(read_text(run_folder, "suite.toml") or "")
    except tomllib.TOMLDecodeError as error:
        path = Path(run_folder) / "suite.toml"
        raise StoreError(f"{path} is no TOML ({error}); run again") from error


# Rows of the remaining stages ("reference" and "blind") contain something else in the column
# ``protocol``, for example "local-only".
_RUN = ("train", "attack", "adversary")


@dataclass(frozen=True)
class Selection:
    """Names of the datasets, threats, protocols and defenses to show.

    Attributes
    ----------
    data, threat, protocol, defense : sequence of str
        Names to show. An empty sequence selects everything. A protocol or a defense can be given
        with or without its parameters. The undefended run is always selected, because prices are
        differences to it.
    """

    data: Sequence[str] = ()
    threat: Sequence[str] = ()
    protocol: Sequence[str] = ()
    defense: Sequence[str] = ()

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the selected rows of a table that `load_rows` returned.

        Raises `UsageError` if a name does not occur in the table.
        """
        selected = pd.Series(True, index=rows.index)
        if self.data:
            selected &= _select_names("data", self.data, rows["dataset"])
        if self.threat:
            selected &= _select_names("threat", self.threat, rows["threat"])
        if self.protocol:
            columns = (rows["protocol"], rows["protocol_params"])
            full = pd.Series(map(written, *columns), index=rows.index, dtype=object)
            selected &= _select_names(
                "protocol", self.protocol, full.where(rows["stage"].isin(_RUN), "")
            )
        if self.defense:
            # Figures and tables write "undefended" for the name "none".
            names = [UNDEFENDED if name == "undefended" else name for name in self.defense]
            specs = rows["defense_spec"]
            selected &= specs.eq(UNDEFENDED) | _select_names("defense", names, specs)
        return rows[selected]


def _select_names(option: str, selection: Sequence[str], names: pd.Series) -> pd.Series:
    """Return a mask of the rows that have one of the wanted names or an empty name."""
    names_in_run = set(names) - {""}
    with_parameters = option in ("protocol", "defense")
    short = {n: family(n) if with_parameters else n for n in names_in_run}
    for name in selection:
        if name not in {*names_in_run, *short.values()}:
            hint = did_you_mean(name, {*names_in_run, *short.values()})
            raise UsageError(f"--{option}: this run does not contain {name!r}{hint}")
    return names.isin({"", *(n for n, s in short.items() if n in selection or s in selection)})


def family(spec: str) -> str:
    """Return the names of the parts of a defense without their parameters."""
    return parse_one(spec).name


def ordered(specs: Iterable[str]) -> list[str]:
    """Sort defenses: the undefended run first, then by name, with numbers in a name by value.

    For example, ``epsilon=8`` precedes ``epsilon=16``.
    """

    def key(text: str) -> tuple[bool, list[tuple[int, float, str]]]:
        # `re.split` with a group returns texts and numbers alternately, the numbers at odd indices.
        pieces = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
        return text != UNDEFENDED, [
            (0, float(p), "") if i % 2 else (1, 0.0, p) for i, p in enumerate(pieces)
        ]

    return sorted(specs, key=key)
