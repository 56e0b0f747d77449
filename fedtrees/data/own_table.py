"""Make a dataset of a user's table, whose columns are inferred unless they are declared."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.counts import many
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
from fedtrees.core.specs import joined_names, split_names
from fedtrees.data.categories import look_alikes
from fedtrees.data.cells import marks_note, probable_marks
from fedtrees.data.cleaning import POSSIBLE_VALUES
from fedtrees.data.csv_file import Reading, TextTable, cells_as_text, plain_name
from fedtrees.data.csv_table import TASKS, read_target
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.kinds import FEW, LEAST, Column, columns_of, reading, values_of
from fedtrees.data.personal import LOOKED_AT, kind_of
from fedtrees.data.spreadsheets import read_table

# Names listed in one note; `fedtrees inspect` lists all.
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What is declared about a table and its columns; the rest is inferred."""

    task: str = ""  # {"", "binary", "classes", "number"}: what the target is; empty: inferred
    positive: str | None = None  # the class coded 1; every other one becomes class 0
    # categorical, keep, drop: columns to be coded; to be used although they look like ids, dates or
    # free text; to be left out
    categorical: Sequence[str] = ()
    keep: Sequence[str] = ()
    drop: Sequence[str] = ()
    # declared public ranges of columns of numbers; never computed from the file
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reading: Reading = Reading()  # what is declared about the file

    def __post_init__(self) -> None:
        if self.task and self.task not in TASKS:
            raise UsageError(f"unknown task {self.task!r}{did_you_mean(str(self.task), TASKS)}")
        if self.positive is not None and self.task not in ("", "binary"):
            raise UsageError(
                f"a positive class ({self.positive!r}) is for a binary task, not for {self.task}"
            )
        for name in ("categorical", "keep", "drop"):
            object.__setattr__(self, name, tuple(map(plain_name, getattr(self, name))))
        ranges = {plain_name(name): ends for name, ends in self.ranges.items()}
        object.__setattr__(self, "ranges", ranges)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Declared":
        """Return the declaration that options of a loader make: fields of it and of `Reading`.

        Raises `UsageError` if a value cannot be used.
        """
        file = {f.name for f in fields(Reading)}
        reading = {name: value for name, value in options.items() if name in file}
        if reading.get("missing") is not None:
            reading["missing"] = tuple(reading["missing"])
        return cls(
            **{name: value for name, value in options.items() if name not in file},
            reading=Reading(**reading),
        )


def load_csv(
    path: str | Path,
    target: str,
    *,
    top: Sequence[str] = (),
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Make a dataset of a CSV file, whatever its separator, encoding and decimal mark.

    Columns of text, of yes and no and of a few whole numbers become categories, others numbers.
    Dates, ids, near-unique names and free text are left out: no attack is after them, and a row is
    not exact where one of them is wrong. `Dataset.notes` lists everything that was inferred.

    `target`: Name of the label column. Rows without it are left out.
    `top`: Features a top-feature score is computed on.
    `name`: Default: the file name without its ending.
    `**options`: Fields of `Declared` and of `fedtrees.data.csv_file.Reading`, such as `positive`,
    `separator` and `decimal`.

    Raises `Problems`: everything that is wrong with the columns, at once.
    Raises `DataError`: as `read_csv` and `prepare`.
    Raises `UsageError`: as `Declared`.
    """
    declared, target = Declared.of(options), plain_name(target)
    table = read_table(path, declared.reading, (target,))
    return dataset_of(table, target, declared, name or Path(path).stem, top)


def dataset_of(
    table: TextTable, target: str, declared: Declared, name: str, top: Sequence[str] = ()
) -> Dataset:
    """Make a dataset of a text table; raises as `load_csv`."""
    kinds = {column.name: column for column in columns_of(table)}
    problems = _unknown_names(table, target, declared, top)
    used, refused = _used_columns(table, kinds.values(), target, declared)
    problems += refused
    rows, y, classes = np.arange(len(table)), np.zeros(0), tuple[str, ...]()
    if target in kinds:
        try:
            _check_marks(table, kinds[target], kinds.values())
            rows, y, classes = _target(table, kinds[target], declared)
        except Problems as error:
            problems += error.found
        except FedtreesError as error:
            problems.append(Problem(str(error)))
    names = {column.name for column in used}
    out = {n: c for n, c in kinds.items() if n not in names and n != target}
    if not used and not problems:
        problems.append(_no_features(target, out, declared))
    if problems:
        raise Problems(str(table.path), _together(problems, declared))
    features = tuple(_feature(column, declared) for column in used)
    X = np.empty((len(rows), len(used)))
    for k, column in enumerate(used):
        X[:, k] = values_of(table, column)[rows]
    schema = Schema(features, target, classes, one_hot_groups(features, X))
    made = prepare(name, schema, X, y, top=top, place=lambda i: f"line {table.lines[rows[i]]}")
    found = _notes(table, used, out, declared, kinds[target], made, len(table) - len(rows))
    return replace(made, notes=(*found, *made.notes))


def _used_columns(
    table: TextTable, columns: Iterable[Column], target: str, declared: Declared
) -> tuple[list[Column], list[Problem]]:
    """Return the columns that become features, and why others that should cannot."""
    used: list[Column] = []
    problems: list[Problem] = []
    for column in columns:
        name = column.name
        if name == target or name in declared.drop:
            continue
        if name in table.doubts and name not in declared.categorical:
            doubt = table.doubts[name]
            with_name = _with(declared.drop, name)
            problems.append(replace(doubt, value=with_name) if doubt.option == "drop" else doubt)
            continue
        if column.out and name not in (*declared.categorical, *declared.keep, *declared.ranges):
            continue
        try:
            used.append(_as_wished(table, column, declared))
        except DataError as error:
            fix = ("drop", _with(declared.drop, name))
            if name in declared.keep:
                fix = ("keep", joined_names(n for n in declared.keep if n != name))
            problems.append(Problem(str(error), *fix))
    return used, problems


def _no_features(target: str, out: Mapping[str, Column], declared: Declared) -> Problem:
    """Return why a table has no feature columns, and which ones could be kept."""
    kept = [n for n, c in out.items() if n not in declared.drop and c.kind != "empty"]
    reasons = ": " + "; ".join(_reasons(out, declared)) if out else ""
    text = f"no feature columns besides the target {target!r}{reasons}"
    return Problem(text, "keep" if kept else "", joined_names(kept) if kept else "")


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


def _feature(column: Column, declared: Declared) -> Feature:
    if column.categorical:
        return Feature(column.name, "categorical", categories=column.order)
    return Feature(column.name, "continuous", *declared.ranges.get(column.name, ()))


def _as_wished(table: TextTable, column: Column, declared: Declared) -> Column:
    if column.name in declared.categorical:
        return reading(table, column, "category")
    if column.name in declared.ranges and column.reads:
        column = replace(column, kind="number", out="")
    return reading(table, column, "keep" if column.name in declared.keep else "")


def _together(problems: Sequence[Problem], declared: Declared) -> list[Problem]:
    """Return the problems; of those that one option mends, each gets the remedy of all of them."""
    before = {"drop": declared.drop, "keep": declared.keep, "categorical": declared.categorical}
    mended = {option: list(names) for option, names in before.items()}
    for problem in problems:
        if problem.option in mended:
            given, wanted = before[problem.option], split_names([problem.value])
            now = [n for n in mended[problem.option] if n in wanted or n not in given]
            mended[problem.option] = [*now, *(n for n in wanted if n and n not in (*now, *given))]
    return [
        replace(p, value=joined_names(mended[p.option])) if p.option in mended else p
        for p in problems
    ]


def _with(names: Sequence[str], name: str) -> str:
    return joined_names(dict.fromkeys([*names, name]))


def _unknown_names(
    table: TextTable, target: str, declared: Declared, top: Sequence[str]
) -> list[Problem]:
    """Return what is wrong with the columns that are named, option by option."""
    found = []
    if target in table.twice:
        text = f"several columns are called {target!r} as the target; rename or remove all but one"
        found.append(Problem(text))
    options = {
        "target": [target],
        "categorical": declared.categorical,
        "keep": declared.keep,
        "drop": declared.drop,
        "ranges": declared.ranges,
        "top": top,
    }
    for option, names in options.items():
        if parted := _parted_name(names, table.names):
            text = f"{option}: the name {parted!r} has a comma; quote it inside of the option"
            whole = [parted, *(n for n in names if n in table.names)]
            found.append(Problem(text, option, joined_names(whole)))
            continue
        for name in (n for n in names if n not in table.names):
            close = closest(name, table.names)
            right = [close if n == name else n for n in names if n in table.names or n == name]
            hint = did_you_mean(name, table.names)
            text = f"{'' if option == 'target' else f'{option}: '}no column {name!r}{hint}"
            fix = joined_names(n for n in right if n)
            if option == "target":
                fix = close or "COLUMN"
            found.append(Problem(text, option, fix))
    for name in (n for n in declared.drop if n in table.names):
        others = [o for o, names in options.items() if o != "drop" and name in names]
        if others:
            text = f"column {name!r} is named by drop and by {others[0]}"
            rest = joined_names(n for n in declared.drop if n != name)
            found.append(Problem(text, "drop", rest))
    return found


def _parted_name(names: Sequence[str], columns: Sequence[str]) -> str:
    """Return the column that was split at its commas into several names, empty if there is none."""
    for column in (c for c in columns if "," in c):
        parts = [plain_name(part) for part in column.split(",")]
        if len(parts) <= len(names) and {*parts} <= {*names} - {*columns}:
            return column
    return ""


def _target(
    table: TextTable, column: Column, declared: Declared
) -> tuple[NDArray[np.intp], NDArray[Any], tuple[str, ...]]:
    """Return the rows that have a target, the target, and the names of its classes."""
    table.check_readable(column.name)
    task = declared.task or _task(table, column, declared)
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
    merged = (coded.merged.get(cells[i], cells[i]) for i in rows)
    part = replace(
        table,
        names=(column.name,),
        columns=(cells_as_text(merged),),
        lines=[table.lines[i] for i in rows],
    )
    positive = declared.positive
    if positive is None and column.kind == "yes/no" and task == "binary":
        positive = column.order[1]
    y, classes = read_target(part, column.name, task, positive)
    return rows, y, classes


def _check_marks(table: TextTable, column: Column, columns: Iterable[Column]) -> None:
    """Raise `Problems` if marks of missing cells may be a class of the target.

    Marks such as ``none`` are words. They stay marks without a question only if a column of numbers
    has the same mark, which then belongs to the program that wrote the file.
    """
    name, chosen = column.name, table.reading.missing is not None
    counts = {**table.marks.get(name, {}), **dict.fromkeys(table.kept_marks.get(name, ()), 0)}
    words = [mark for mark in counts if mark.casefold() in POSSIBLE_VALUES]
    if chosen or column.reads or not words:
        return
    elsewhere = {m for c in columns if c.reads == "number" for m in table.marks.get(c.name, ())}
    asked = sorted(mark for mark in words if mark not in elsewhere)
    if not asked:
        return
    shown = ", ".join(map(repr, asked))
    text = (
        f"target {name!r}: {shown} may be a class or mark a missing label; give --missing with the "
        f"marks of missing cells, with {asked[0]!r} among them if its rows are to be left out"
    )
    others = sorted({m for marks in table.marks.values() for m in marks} - {*asked})
    raise Problems(str(table.path), [Problem(text, "missing", joined_names(others or ["nan"]))])


def _task(table: TextTable, column: Column, declared: Declared) -> str:
    """Return the task of a target: binary for two values, a number if there are many numbers."""
    if declared.positive is not None or column.distinct <= 2:
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


def _reasons(out: Mapping[str, Column], declared: Declared) -> list[str]:
    """Return the columns that are left out, by the reason."""
    why: dict[str, list[str]] = {}
    for name, column in out.items():
        why.setdefault("as declared" if name in declared.drop else column.out, []).append(name)
    return [f"{', '.join(names)} ({reason})" for reason, names in why.items()]


def _notes(
    table: TextTable,
    used: Sequence[Column],
    out: Mapping[str, Column],
    declared: Declared,
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
    left_out = many(without, "row without it is", "rows without it are")
    less = f"; {left_out} left out" if without else ""
    lines.append(f"target: {target.name}, {what}{less}")
    numbers = [c.name for c in used if not c.categorical]
    coded = [
        c.name
        if c.kind == "yes/no" or c.name in declared.categorical
        else f"{c.name} ({c.distinct})"
        for c in used
        if c.categorical
    ]
    if numbers:
        lines.append(f"numbers: {_listed(numbers)}")
    if coded:
        lines.append(f"categories: {_listed(coded)}")
    for group in made.schema.groups:
        lines.append(f"one category in several columns: {_listed(group.columns)}")
    commas = [c.name for c in used if c.name in table.commas]
    if commas:
        lines.append(f"decimal comma: {_listed(commas)}")
    lines += _column_notes(table, (target, *used))
    personal = [(c.name, kind_of(c.name, table.column(c.name)[:LOOKED_AT])) for c in used]
    looks = [f"{name} ({kind})" for name, kind in personal if kind]
    if looks:
        lines.append(
            f"looks personal: {_listed(looks)}; they are used as features and attackers are after "
            f"them: --drop {_option_value(n for n, kind in personal if kind)} to leave them out"
        )
    holes = [
        f"{c.name} ({', '.join([f'{1 - c.present / c.rows:.0%}', *_marks(table, c.name)])})"
        for c in used
        if c.present < c.rows
    ]
    if holes:
        lines.append(
            f"missing: {_listed(holes)}; empty cells and the marks shown; --missing for other marks"
        )
    if out:
        kept = [name for name, c in out.items() if c.kind != "empty" and name not in declared.drop]
        remedy = f"; to use these columns: --keep {_option_value(kept)}" if kept else ""
        lines.append(f"left out: {'; '.join(_reasons(out, declared))}{remedy}")
    lines.append(
        "declared knowledge: these kinds and the names of all categories and classes, read from "
        "the whole table; attackers are taken to know them"
    )
    return lines


def _option_value(names: Iterable[str]) -> str:
    """Return column names as the value of an option in a shell."""
    return shlex.quote(joined_names(names))


def _marks(table: TextTable, name: str) -> list[str]:
    """Return the marks of missing cells that a column has, besides empty cells."""
    return [repr(mark) for mark in table.marks.get(name, ())]


def _column_notes(table: TextTable, columns: Iterable[Column]) -> list[str]:
    """Return what a reader should know of single columns: odd cells, marks, similar categories."""
    lines = []
    for column in columns:
        notes = [column.note] if column.note else []
        if kept := table.kept_marks.get(column.name):
            shown = ", ".join(map(repr, kept))
            notes.append(
                f"{shown} is read as a value, because the column would be constant without it; "
                "give --missing to choose the marks of missing cells"
            )
        notes += look_alikes(column.order if column.categorical else ())
        lines += [f"{column.name}: {note}" for note in notes]
        if not column.categorical and column.reads == "number":
            marks = probable_marks(table.column(column.name), values_of(table, column))
            lines += [marks_note(column.name, marks)] if marks else []
    return lines
