"""Submissions to a leaderboard: a bundle made of a run, read back, and put beside others."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees import __version__
from fedtrees.core import rows
from fedtrees.core.columns import CPU, RAREST, described, measure
from fedtrees.core.errors import StoreError, UsageError
from fedtrees.core.files import CHECKSUMS, parse_json, read_listed, write_listed
from fedtrees.metrics.advantage import advantage
from fedtrees.report.coverage import STOPPED_EARLY
from fedtrees.report.findings import begun_only
from fedtrees.report.rows import load_rows, read_json, read_text

ABOUT, ROWS, SUITE = "submission.json", "rows.csv", "suite.toml"
FILES = ("columns.csv", ROWS, ABOUT, SUITE)
_FORMAT = 1
_TOLD = ("fedtrees", "python", "system", "libraries")  # of environment.json
_KEPT = {"bytes", CPU.key, RAREST.key}  # of what else is of the machine
_TRAINED = ("claimed", "spent", "bytes_up", "bytes_down", "rounds")  # told by the training's rows
_CELL = ["stage", "setting", "defense_spec", "threat", "attack_spec", "seed"]
_ROW = [*_CELL, "metric", "part"]
_SAME = {"attack": 0.05}  # by how much two submissions may differ, as one from its recomputation
_MOST = 100  # characters of a name


@dataclass(frozen=True)
class Submission:
    """A bundle that is what was written, and that says what rows can say.

    `digest`: Of all its files. `by`: Who submits. `about`: Versions and system.
    """

    folder: Path
    digest: str
    by: str
    about: Mapping[str, Any]
    suite: str = field(repr=False)

    @property
    def name(self) -> str:
        """Its folder's."""
        return self.folder.name

    @cached_property
    def records(self) -> list[dict[str, str]]:
        """Its rows as they stand in the file."""
        text = read_listed(self.folder, ROWS).decode()
        return list(csv.DictReader(io.StringIO(text)))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Its rows, as `load_rows` returns them, with the column ``submission``."""
        return load_rows(self.folder).assign(submission=self.name)


def write(run: Path, out: Path, by: str) -> Submission:
    """Write what others need to check a run, and nothing else, into a folder.

    Left out: costs, insides of attacks, scores by column, texts of errors, names of folders.

    Raises `StoreError` or `UsageError`: the run cannot be read or is not finished, the folder is
    not empty, or the name is none.
    """
    _check_name(by)
    load_rows(run)
    suite, told = read_text(run, SUITE), read_json(run, "environment.json")
    if suite is None or begun_only(run) or not isinstance(told, dict):
        raise UsageError(f"{run} is no finished run; fedtrees bench --resume --out {run}")
    if out.exists() and any(out.iterdir()):
        raise StoreError(f"{out} is not empty; choose another -o")
    text = read_listed(run, ROWS).decode()
    kept = map(_shared, filter(_is_shared, csv.DictReader(io.StringIO(text))))
    about = {"format": _FORMAT, "by": by, **{k: told.get(k) for k in _TOLD}}
    content = {
        "columns.csv": described(),
        ROWS: rows.write({**row, "run": out.name} for row in kept),
        ABOUT: json.dumps(about, indent=1, sort_keys=True) + "\n",
        SUITE: suite,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(f"cannot make {out}: {err.strerror or err}") from err
    for name, part in content.items():
        write_listed(out, name, part.encode())
    (out / ".claims").unlink(missing_ok=True)
    return read(out)


def _check_name(by: object) -> None:
    if not (isinstance(by, str) and by.strip() and by.isprintable() and len(by) <= _MOST):
        raise UsageError(f"--by {by!r}: give a name of at most {_MOST} characters")


def _is_shared(row: Mapping[str, str]) -> bool:
    early = row["part"] == STOPPED_EARLY  # a search that was cut short
    return rows.is_result(row) or row["metric"] in _KEPT or early


def _shared(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row without the machine's times and, of what failed, its text: it may name files."""
    less = ["seconds"]
    if row["stage"] not in ("train", "cheated"):
        less += _TRAINED
    if row["reason_code"]:  # which tells the sentence
        less.append("reason")
    if row["status"] in ("failed", "timeout"):
        less += ["reason", "reason_args"]
    return {**row, **dict.fromkeys(less, "")}


def read(folder: Path) -> Submission:
    """Read a bundle.

    Raises `StoreError`: it is not whole, not what was written, of another version, or an advantage
    in it does not follow from its score.
    """
    try:
        listed = (folder / CHECKSUMS).read_bytes()
        content = {name: read_listed(folder, name) for name in FILES}
    except OSError as err:
        lost = Path(err.filename or CHECKSUMS).name
        raise StoreError(f"{folder} is no whole submission: {lost} cannot be read") from err
    names = sorted(line[66:] for line in listed.decode("utf-8", "replace").splitlines())
    if names != sorted(FILES):
        raise StoreError(f"{folder}: {CHECKSUMS} lists {', '.join(names)}; not {', '.join(FILES)}")
    about = parse_json(content[ABOUT], f"{folder.name}/{ABOUT}")
    found = about.get("format") if isinstance(about, dict) else None
    if found != _FORMAT:
        raise StoreError(
            f"{folder} is a submission of format {found!r}, and fedtrees {__version__} reads "
            f"{_FORMAT}: submit the run again with this version"
        )
    try:
        _check_name(about.get("by"))
        suite = content[SUITE].decode()
    except ValueError as err:
        raise StoreError(f"{folder}: {err}") from err
    digest = hashlib.sha256(listed).hexdigest()
    made = Submission(folder, digest, about["by"], about, suite)
    _check_arithmetic(made)
    return made


def _check_arithmetic(found: Submission) -> None:
    """Raise `StoreError` where an advantage is not that of its score and its blind baseline."""
    rows_of = found.rows
    told = rows_of[(rows_of["stage"] == "attack") & rows_of["value"].notna()]
    for line, gain in (("blind", "advantage"), ("population", "beyond")):
        columns = (told[c] for c in ("metric", "value", line, gain))
        for metric, value, low, said in zip(*columns, strict=True):
            right = None if math.isnan(low) else advantage(value, low, best=measure(metric).best)
            known = math.nan if right is None else right
            if not (math.isclose(known, said, rel_tol=1e-6, abs_tol=1e-6)
                    or (math.isnan(known) and math.isnan(said))):  # fmt: skip
                raise StoreError(
                    f"{found.folder} is refused: {gain} {said:g} in {metric} does not follow from "
                    f"a score of {value:g} and a {line} one of {low:g}; it is {known:g}"
                )


def read_all(folder: Path) -> list[Submission]:
    """Read the submissions of a folder, in the order of their names; raises as `read`.

    Raises `StoreError`: there is none, or one is there twice.
    """
    try:
        folders = sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError as err:
        raise StoreError(f"{folder} cannot be read: {err.strerror or err}") from err
    if not folders:
        raise StoreError(f"{folder} holds no submissions; fedtrees submit RUN -o {folder}/NAME")
    found: dict[str, Submission] = {}
    for each in map(read, folders):
        one = found.setdefault(hashlib.sha256(_results(each)).hexdigest(), each)
        if one is not each:
            raise StoreError(f"{each.folder} says what {one.folder} says; remove one of them")
    return list(found.values())


def _results(found: Submission) -> bytes:
    """Return its rows whatever it is called."""
    return rows.write({**r, "run": ""} for r in found.records).encode()


def merged(found: Sequence[Submission]) -> pd.DataFrame:
    """Return all rows, of a cell that several have those of the first that finished it.

    Raises `StoreError`: two contradict each other.
    """
    every = pd.concat([s.rows for s in found], ignore_index=True)
    every["setting"] = pd.Categorical(every["setting"].tolist())
    for text in _contradictions(every):
        raise StoreError(text)
    first = every.assign(bad=every["status"].isin(("failed", "timeout"))).sort_values(
        "bad", kind="stable"
    )
    owner = first.groupby(_CELL, observed=True)["submission"].transform("first")
    return every[owner.reindex(every.index) == every["submission"]].reset_index(drop=True)


def _contradictions(every: pd.DataFrame) -> Iterator[str]:
    told = every[every["value"].notna() & ~every["metric"].isin(_KEPT)]
    told = told[told["stage"] != "blind"]  # of whatever protocol; attacks tell theirs
    ends = {"low": ("value", "min"), "high": ("value", "max"), "of": ("submission", "nunique")}
    for key, (low, high, _) in (
        told.groupby(_ROW, observed=True).agg(**ends).query("of > 1").iterrows()
    ):
        tolerance = _SAME.get(key[0], 1e-6)
        if not math.isclose(low, high, rel_tol=tolerance, abs_tol=tolerance):
            mine = told[(told[_ROW] == list(key)).all(axis=1)]
            names = [mine.loc[mine["value"] == v, "submission"].iloc[0] for v in (low, high)]
            where = " · ".join(str(part) for part in key[1:6] if part != "")
            yield (
                f"{' and '.join(names)} contradict each other: {key[6]} of {where:.200} is "
                f"{low:g} and {high:g}; recompute both (--recompute) and remove one"
            )
