"""A table of one's own: a CSV file whose columns are inferred where nothing declares them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import (
    DataError,
    FedtreesError,
    Problem,
    Problems,
    UsageError,
    closest,
    did_you_mean,
)
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.data.csv_file import TextTable, cells_as_text
from fedtrees.data.csv_table import TASKS, read_target
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.kinds import FEW, LEAST, Column, columns_of, reading, values_of
from fedtrees.data.personal import LOOKED_AT, kind_of
from fedtrees.data.spreadsheets import read_table

# Names listed in one note; `fedtrees inspect` lists all.
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is said of a table's columns; the rest is inferred."""

    task: str = ""  # {"", "binary", "classes", "number"}: what the target is; empty: inferred
    positive: str | None = None  # the class coded 1; every other one becomes class 0
    # categorical, keep, drop: columns to be coded; to be used although they look like ids, dates or
    # free text; to be left out
    categorical: Sequence[str] = ()
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    # declared public ranges of columns of numbers; never computed from the file
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task and self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}{did_you_mean(str(self.task), TASKS)}")
        if self.positive is not None and self.task not in ("", "binary"):
            raise UsageError(
                f"a positive class ({self.positive!r}) is for a binary task, not for {self.task}"
            )


def load_csv(
    path: str | Path,
    target: str,
    *,
    separator: str = "",
    top: Sequence[str] = (),
    name: str | None = None,
    **declared: Any,
) -> Dataset:
    """Make a dataset of a CSV file, whatever its separator, encoding and decimal mark.

    Columns of text, of yes and no and of a few whole numbers become categories, others numbers.
    Dates, ids, near-unique names and free text are left out: no attack is after them, and a row is
    not exact where one of them is wrong. Everything inferred stands in `Dataset.notes`.

    `target`: Name of the label column. Rows without it are left out.
    `separator`: Empty: found out.
    `top`: Features a top-feature score is computed on.
    `name`: Default: the file name without its ending.
    `**declared`: As `Declared`.

    Raises `Problems`: everything that is wrong with the columns, at once.
    Raises `DataError`: as `read_csv` and `prepare`.
    Raises `UsageError`: as `Declared`.
    """
    said = Declared(**declared)
    table = read_table(path, separator, (target,))
    return dataset_of(table, target, said, name or Path(path).stem, top)


def dataset_of(
    table: TextTable, target: str, said: Declared, name: str, top: Sequence[str] = ()
) -> Dataset:
    """Make a dataset of a text table; raises as `load_csv`."""
    known = {column.name: column for column in columns_of(table)}
    problems = _unknown_names(table, target, said, top)
    used: list[Column] = []
    for column in known.values():
        wished = column.name in (*said.categorical, *said.keep, *said.ranges)
        if column.name == target or column.name in said.drop or (column.out and not wished):
            continue
        try:
            used.append(_as_wished(table, column, said))
        except DataError as error:
            fix = ("drop", _with(said.drop, column.name))
            if column.name in said.keep:
                fix = ("keep", ",".join(n for n in said.keep if n != column.name))
            problems.append(Problem(str(error), *fix))
    y: NDArray[Any] = np.zeros(0)
    classes: tuple[str, ...] = ()
    rows = np.arange(len(table))
    if target in known:
        try:
            rows, y, classes = _target(table, known[target], said)
        except Problems as error:
            problems += error.found
        except FedtreesError as error:
            problems.append(Problem(str(error)))
    out = {c.name: c for c in known.values() if c.out and c.name != target} | {
        n: known[n] for n in said.drop if n in known
    }
    out = {n: c for n, c in out.items() if n not in {c.name for c in used}}
    if not used and not problems:
        kept = [n for n, c in out.items() if n not in said.drop and c.kind != "empty"]
        seen = ": " + "; ".join(_reasons(out, said)) if out else ""
        problems.append(
            Problem(
                f"no feature columns beside the target {target!r}{seen}",
                "keep" if kept else "",
                ",".join(kept),
            )
        )
    if problems:
        raise Problems(str(table.path), _together(problems, said))
    features = tuple(_feature(column, said) for column in used)
    X = np.empty((len(rows), len(used)))
    for k, column in enumerate(used):
        X[:, k] = values_of(table, column)[rows]
    schema = Schema(features, target, classes, one_hot_groups(features, X))
    made = prepare(name, schema, X, y, top=top, place=lambda i: f"line {table.lines[rows[i]]}")
    found = _notes(table, used, out, said, known[target], made, len(table) - len(rows))
    return replace(made, notes=(*found, *made.notes))


def one_hot_groups(features: Sequence[Feature], X: NDArray[Any]) -> tuple[OneHot, ...]:
    """Return runs of columns of zeros and ones of which one is 1 in every row.

    Of fewer than `LEAST` rows none: there it may be chance.
    """
    if len(X) < LEAST:
        return ()
    named = [tuple(c.lower() for c in f.categories) for f in features]
    whole = ~np.isnan(X).any(axis=0)
    binary = [names in (("0", "1"), ("no", "yes"), ("false", "true")) for names in named]
    found, begin, end = list[OneHot](), 0, 0
    hot = np.zeros(len(X))  # sums of the columns from begin to end, which both only move on
    while begin < len(features):
        while end < len(features) and binary[end] and whole[end] and (hot < 1).any():
            hot, end = hot + X[:, end], end + 1
            if (hot > 1).any():
                break
        if end - begin > 1 and (hot == 1).all():
            found.append(OneHot(tuple(f.name for f in features[begin:end])))
            begin, hot = end, np.zeros(len(X))
        elif begin < end and ((hot > 1).any() or (hot == 1).all()):
            hot, begin = hot - X[:, begin], begin + 1
        else:  # no column goes on from here, nor from any between
            begin = end = end + 1
            hot = np.zeros(len(X))
    return tuple(found)


def _feature(column: Column, said: Declared) -> Feature:
    if column.categorical:
        return Feature(column.name, "categorical", categories=column.order)
    return Feature(column.name, "continuous", *said.ranges.get(column.name, ()))


def _as_wished(table: TextTable, column: Column, said: Declared) -> Column:
    if column.name in said.categorical:
        return reading(table, column, "category")
    if column.name in said.ranges and column.reads:
        column = replace(column, kind="number", out="")
    return reading(table, column, "keep" if column.name in said.keep else "")


def _together(problems: Sequence[Problem], said: Declared) -> list[Problem]:
    """Return the problems with what mends all of an option's, where it has several."""
    before = {"drop": said.drop, "keep": said.keep, "categorical": said.categorical}
    mended = {option: list(names) for option, names in before.items()}
    for problem in problems:
        if problem.option in mended:
            given, wanted = before[problem.option], problem.value.split(",")
            now = [n for n in mended[problem.option] if n in wanted or n not in given]
            mended[problem.option] = [*now, *(n for n in wanted if n and n not in (*now, *given))]
    return [
        replace(p, value=",".join(mended[p.option])) if p.option in mended else p for p in problems
    ]


def _with(names: Sequence[str], name: str) -> str:
    return ",".join(dict.fromkeys([*names, name]))


def _unknown_names(
    table: TextTable, target: str, said: Declared, top: Sequence[str]
) -> list[Problem]:
    """Return what is wrong with the columns that are named, option by option."""
    found = []
    options = {
        "target": [target],
        "categorical": said.categorical,
        "keep": said.keep,
        "drop": said.drop,
        "ranges": said.ranges,
        "top": top,
    }
    for option, names in options.items():
        for name in (n for n in names if n not in table.names):
            close = closest(name, table.names)
            right = [close if n == name else n for n in names if n in table.names or n == name]
            hint = did_you_mean(name, table.names)
            text = f"{'' if option == 'target' else f'{option}: '}no column {name!r}{hint}"
            fix = ",".join(n for n in right if n) or ("COLUMN" if option == "target" else "")
            found.append(Problem(text, option, fix))
    for name in (n for n in said.drop if n in table.names):
        others = [o for o, names in options.items() if o != "drop" and name in names]
        if others:
            text = f"column {name!r} is named by drop and by {others[0]}"
            found.append(Problem(text, "drop", ",".join(n for n in said.drop if n != name)))
    return found


def _target(
    table: TextTable, column: Column, said: Declared
) -> tuple[NDArray[np.intp], NDArray[Any], tuple[str, ...]]:
    """Return the rows that have a target, the target, and the names of its classes."""
    task = said.task or _task(table, column, said)
    if task == "number" and column.reads:
        if column.merges:
            column = replace(column, merges=0)  # the target is float64
        values = values_of(table, replace(column, kind="number"))
        rows = np.flatnonzero(~np.isnan(values))
        if len(np.unique(values[rows])) == 1:
            raise DataError(f"target {column.name!r} is {values[rows[0]]:g} in every row")
        return rows, values[rows], ()
    coded = reading(table, column, "category") if column.kind != "yes/no" else column
    rows = np.flatnonzero(~np.isnan(values_of(table, coded)))
    if not len(rows):
        raise DataError(f"target {column.name!r} has no values")
    cells = table.column(column.name)
    merged = (column.merged.get(cells[i], cells[i]) for i in rows)
    part = replace(
        table,
        names=(column.name,),
        columns=(cells_as_text(merged),),
        lines=[table.lines[i] for i in rows],
    )
    positive = said.positive
    if positive is None and column.kind == "yes/no" and task == "binary":
        positive = column.order[1]
    y, classes = read_target(part, column.name, task, positive)
    return rows, y, classes


def _task(table: TextTable, column: Column, said: Declared) -> str:
    """Return what a target is: of two values binary, numbers where there are many of them."""
    if said.positive is not None or column.distinct <= 2:
        return "binary"
    many = column.distinct > FEW or 2 * column.distinct > column.present
    if column.reads and many:
        return "number"
    if column.kind == "text" or (column.kind == "id" and not column.reads):
        text = (
            f"target {column.name!r} has {column.distinct} different texts in {column.present} "
            "rows; name the class that counts as positive, or another column"
        )
        raise Problems(str(table.path), [Problem(text, "positive", "CLASS")])
    return "classes"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    shown = ", ".join(names[: _LISTED if more > 1 else None])
    return f"{shown} and {more} more" if more > 1 else shown


def _reasons(out: Mapping[str, Column], said: Declared) -> list[str]:
    """Return the columns that are left out, by the reason."""
    why: dict[str, list[str]] = {}
    for name, column in out.items():
        why.setdefault("as told" if name in said.drop else column.out, []).append(name)
    return [f"{', '.join(names)} ({reason})" for reason, names in why.items()]


def _notes(
    table: TextTable,
    used: Sequence[Column],
    out: Mapping[str, Column],
    said: Declared,
    target: Column,
    made: Dataset,
    without: int,
) -> list[str]:
    """Return what was inferred, a line for each kind of thing."""
    n, d = made.table.X.shape
    lines = ["; ".join([f"table: {n:,} rows, {d} columns used", *table.notes])]
    classes = made.schema.classes
    what = "a number to predict" if not classes else f"{len(classes)} classes, {_listed(classes)}"
    if len(classes) == 2:
        what = f"{classes[1]} against {classes[0]}"
    less = f"; {without:,} rows without it are left out" if without else ""
    lines.append(f"target: {target.name}, {what}{less}")
    numbers = [c.name for c in used if not c.categorical]
    coded = [
        c.name if c.kind == "yes/no" or c.name in said.categorical else f"{c.name} ({c.distinct})"
        for c in used
        if c.categorical
    ]
    if numbers:
        lines.append(f"numbers: {_listed(numbers)}")
    if coded:
        lines.append(f"categories: {_listed(coded)}")
    for group in made.schema.groups:
        lines.append(f"one category in several columns: {_listed(group.columns)}")
    commas = [c.name for c in used if c.decimal_comma]
    if commas:
        lines.append(f"decimal comma: {_listed(commas)}")
    for column in (target, *used):
        if column.note:
            lines.append(f"{column.name}: {column.note}")
    personal = [(c.name, kind_of(c.name, table.column(c.name)[:LOOKED_AT])) for c in used]
    looks = [f"{name} ({kind})" for name, kind in personal if kind]
    if looks:
        lines.append(
            f"looks personal: {_listed(looks)}; they are used as features and attackers are after "
            f"them: --drop {','.join(name for name, kind in personal if kind)} to leave them out"
        )
    holes = [f"{c.name} ({1 - c.present / c.rows:.0%})" for c in used if c.present < c.rows]
    if holes:
        lines.append(f"missing: {_listed(holes)}; a cell that is empty, NA, none, null, ? or -")
    if out:
        kept = [name for name, c in out.items() if c.kind != "empty" and name not in said.drop]
        names = ",".join(kept)
        remedy = f"; to use what was found: --keep {shlex.quote(names)}" if kept else ""
        lines.append(f"left out: {'; '.join(_reasons(out, said))}{remedy}")
    lines.append(
        "declared knowledge: these kinds and the names of all categories and classes, read from "
        "the whole table; attackers are taken to know them"
    )
    return lines
