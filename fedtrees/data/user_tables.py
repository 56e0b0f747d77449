"""Create a dataset from a user's table. The kinds of columns are inferred unless they are declared.

`load_csv` is the entry point. `fedtrees.data.csv_file` reads and cleans the cells, and
`fedtrees.data.column_types` infers the kind of each column. All problems are collected and reported
at once, each with the option that solves it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
    many,
)
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.core.specs import joined_names, split_names
from fedtrees.data.cells import look_alikes, marks_note, probable_marks, suspicious_zeros
from fedtrees.data.cleaning import POSSIBLE_VALUES
from fedtrees.data.column_types import (
    FEW,
    LEAST,
    LOOKED_AT,
    Column,
    columns_of,
    kind_of,
    names_clients,
    reading,
    values_of,
)
from fedtrees.data.csv_file import Reading, TextTable, plain_name
from fedtrees.data.csv_table import TASKS, read_target
from fedtrees.data.dataset import Dataset, prepare
from fedtrees.data.table_files import read_table

# Number of names in one note. `fedtrees data inspect` lists all names.
_LISTED = 8
AS_DECLARED = "as declared"  # reason for leaving out the columns of the option drop


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Declarations about a table and its columns. All remaining properties are inferred.

    Raises `UsageError` if the task is unknown, or if a positive class is declared for a task that
    is not binary.
    """

    task: str = ""  # kind of the target: binary, classes or number; empty: inferred
    positive: str | None = None  # the class coded 1. Every other class becomes class 0
    categorical: Sequence[str] = ()  # columns to be coded as categories
    keep: Sequence[str] = ()  # columns to be used although they look like ids, dates or free text
    drop: Sequence[str] = ()  # columns to be left out
    # Declared public ranges of numeric columns. They are never computed from the file, because
    # they would reveal its extreme values.
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reading: Reading = Reading()  # declared format of the file

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
    def of(cls, options: Mapping[str, Any]) -> TableSpec:
        """Create a declaration from the options of a loader: fields of this class and of `Reading`.

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
    """Load a CSV file with any common separator, encoding and decimal mark as a dataset.

    Columns of text, of yes and no, and of a few different integers become categories. All remaining
    columns become numbers. Dates, ids, nearly unique names and free text are left out, because
    attacks do not try to reconstruct them, and a row would not count as exact if one of them were
    wrong. `Dataset.notes` lists everything that was inferred.

    Parameters
    ----------
    path : str or Path
        CSV file, Excel workbook, or Parquet or Feather file.
    target : str
        Name of the label column. Rows without a label are left out.
    top : sequence of str, optional
        Features for which a separate reconstruction score is computed.
    name : str, optional
        Name of the dataset. The default is the file name without its extension.
    **options
        Fields of `TableSpec` and of `fedtrees.data.csv_file.Reading`, for example `positive`,
        `separator` and `decimal`.

    Returns
    -------
    dataset : Dataset

    Raises
    ------
    Problems
        With all problems of the columns at once.
    DataError
        As `read_csv` and `prepare`.
    UsageError
        As `TableSpec`.
    """
    declared, target = TableSpec.of(options), plain_name(target)
    table = read_table(path, declared.reading, (target,))
    dataset = dataset_of(table, target, declared, name or Path(path).stem, top)
    categories = {feature.name: len(feature.categories) for feature in dataset.schema.features}
    return replace(dataset, notes=(*client_notes(categories), *dataset.notes))


def client_notes(categories: Mapping[str, int]) -> list[str]:
    """Return a note for each feature that seems to name the client of each row.

    Without the option ``--client-column``, such a column is a feature of the model, and every
    simulated client can get rows of all values.

    Parameters
    ----------
    categories : mapping of str to int
        Number of categories of each feature, 0 for a number.
    """
    return [
        f"{name}: the column seems to name the client of each row. It is used as a feature, and "
        f"the partition decides which client gets which row. With --client-column "
        f"{shlex.quote(name)}, each of the {count} clients gets its rows, and the column is not "
        "a feature"
        for name, count in categories.items()
        if names_clients(name, count)
    ]


def dataset_of(
    table: TextTable, target: str, declared: TableSpec, name: str, top: Sequence[str] = ()
) -> Dataset:
    """Create a dataset from a text table.

    Parameters
    ----------
    table : TextTable
        The cleaned table.
    target : str
        Name of the label column.
    declared : TableSpec
        Declarations about the columns.
    name : str
        Name of the dataset.
    top : sequence of str, optional
        Features for which a separate reconstruction score is computed.

    Returns
    -------
    dataset : Dataset

    Raises
    ------
    Problems, DataError, UsageError
        As `load_csv`.
    """
    kinds = {column.name: column for column in columns_of(table)}
    problems = unknown_names(table, target, declared, top)
    used, refused = _used_columns(table, kinds.values(), target, declared)
    problems += refused
    rows, y, classes = np.arange(len(table)), np.zeros(0), tuple[str, ...]()
    if target in kinds:
        try:
            _check_marks(table, kinds[target], kinds.values())
            rows, y, classes = _target(table, kinds[target], declared)
        except Problems as error:
            problems += error.problems
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
    dataset = prepare(name, schema, X, y, top=top, place=lambda i: f"line {table.lines[rows[i]]}")
    notes = _notes(table, used, out, declared, kinds[target], dataset, len(table) - len(rows))
    return replace(dataset, notes=(*notes, *dataset.notes))


def _used_columns(
    table: TextTable, columns: Iterable[Column], target: str, declared: TableSpec
) -> tuple[list[Column], list[Problem]]:
    """Return the columns that become features, and the problems of columns that cannot be used."""
    used: list[Column] = []
    problems: list[Problem] = []
    for column in (c for c in columns if c.name != target):
        try:
            interpreted = interpret_column(table, column, declared)
        except Problems as error:
            problems += error.problems
        else:
            used += [] if interpreted.out else [interpreted]
    return used, problems


def interpret_column(table: TextTable, column: Column, declared: TableSpec) -> Column:
    """Return a column in the form in which it becomes a feature.

    The attribute `out` of the result states why the column is left out. It is empty if the column
    becomes a feature.

    Raises `Problems` with a remedy if the column cannot be used.
    """
    name = column.name
    if name in declared.drop:
        return replace(column, out=AS_DECLARED)
    if name in table.doubts and name not in declared.categorical:
        doubt = table.doubts[name]
        without = replace(doubt, value=_with(declared.drop, name))
        raise Problems(str(table.path), [without if doubt.option == "drop" else doubt])
    if column.out and name not in (*declared.categorical, *declared.keep, *declared.ranges):
        return column
    try:
        return replace(_as_wished(table, column, declared), out="")
    except DataError as error:
        fix = ("drop", _with(declared.drop, name))
        if name in declared.keep:
            fix = ("keep", joined_names(n for n in declared.keep if n != name))
        raise Problems(str(table.path), [Problem(str(error), *fix)]) from None


def _no_features(target: str, out: Mapping[str, Column], declared: TableSpec) -> Problem:
    """Return the problem that no column becomes a feature, with the columns that could be kept."""
    usable = [n for n, c in out.items() if n not in declared.drop and c.kind != "empty"]
    reasons = ": " + "; ".join(_reasons(out, declared)) if out else ""
    text = f"no feature columns except the target {target!r}{reasons}"
    return Problem(text, "keep" if usable else "", joined_names(usable) if usable else "")


def one_hot_groups(features: Sequence[Feature], X: NDArray[Any]) -> tuple[OneHot, ...]:
    """Return the runs of neighbouring binary columns of which exactly one is 1 in every row.

    If there are fewer than `LEAST` rows, the result is empty, because unrelated columns can satisfy
    the condition by chance.
    """
    if len(X) < LEAST:
        return ()
    named = [tuple(c.lower() for c in f.categories) for f in features]
    complete = ~np.isnan(X).any(axis=0)
    binary = [names in (("0", "1"), ("no", "yes"), ("false", "true")) for names in named]
    groups, begin, end = list[OneHot](), 0, 0
    # Row sums of the columns from begin to end. Both borders only increase, so that each column is
    # added and subtracted once.
    hot = np.zeros(len(X))
    while begin < len(features):
        while end < len(features) and binary[end] and complete[end] and (hot < 1).any():
            hot, end = hot + X[:, end], end + 1
            if (hot > 1).any():
                break
        if end - begin > 1 and (hot == 1).all():
            groups.append(OneHot(tuple(f.name for f in features[begin:end])))
            begin, hot = end, np.zeros(len(X))
        elif begin < end and ((hot > 1).any() or (hot == 1).all()):
            hot, begin = hot - X[:, begin], begin + 1
        else:  # no group starts at begin or between begin and end
            begin = end = end + 1
            hot = np.zeros(len(X))
    return tuple(groups)


def _feature(column: Column, declared: TableSpec) -> Feature:
    if column.categorical:
        return Feature(column.name, "categorical", categories=column.order)
    return Feature(column.name, "continuous", *declared.ranges.get(column.name, ()))


def _as_wished(table: TextTable, column: Column, declared: TableSpec) -> Column:
    """Return a column in the form that the declaration requests."""
    if column.name in declared.categorical:
        return reading(table, column, "category")
    if column.name in declared.ranges and column.reads:
        column = replace(column, kind="number", out="")
    return reading(table, column, "keep" if column.name in declared.keep else "")


def _together(problems: Sequence[Problem], declared: TableSpec) -> list[Problem]:
    """Return the problems, in which all problems of one option propose the same combined value."""
    before = {"drop": declared.drop, "keep": declared.keep, "categorical": declared.categorical}
    mended = {option: list(names) for option, names in before.items()}
    for problem in problems:
        if problem.option in mended:
            declared_names, proposed = before[problem.option], split_names([problem.value])
            # Each problem proposes a value of its option. The combined value adds and removes the
            # names that any of them adds and removes.
            now = [n for n in mended[problem.option] if n in proposed or n not in declared_names]
            mended[problem.option] = [
                *now,
                *(n for n in proposed if n and n not in (*now, *declared_names)),
            ]
    return [
        replace(p, value=joined_names(mended[p.option])) if p.option in mended else p
        for p in problems
    ]


def _with(names: Sequence[str], name: str) -> str:
    """Return the names with one more name, as the value of an option."""
    return joined_names(dict.fromkeys([*names, name]))


def unknown_names(
    table: TextTable, target: str, declared: TableSpec, top: Sequence[str] = ()
) -> list[Problem]:
    """Return the problems with the column names in the options, option by option.

    An empty target is not checked.
    """
    problems = []
    if target in table.twice:
        text = f"several columns are called {target!r} as the target; rename or remove all but one"
        problems.append(Problem(text))
    options = {
        "target": [target] if target else [],
        "categorical": declared.categorical,
        "keep": declared.keep,
        "drop": declared.drop,
        "ranges": declared.ranges,
        "top": top,
    }
    for option, names in options.items():
        if parted := _parted_name(names, table.names):
            text = f"{option}: the name {parted!r} has a comma; quote it inside of the option"
            corrected = [parted, *(n for n in names if n in table.names)]
            problems.append(Problem(text, option, joined_names(corrected)))
            continue
        for name in (n for n in names if n not in table.names):
            close = closest(name, table.names)
            right = [close if n == name else n for n in names if n in table.names or n == name]
            hint = did_you_mean(name, table.names)
            text = f"{'' if option == 'target' else f'{option}: '}no column {name!r}{hint}"
            fix = joined_names(n for n in right if n)
            if option == "target":
                fix = close or "COLUMN"
            problems.append(Problem(text, option, fix))
    for name in (n for n in declared.drop if n in table.names):
        conflicting = [o for o, names in options.items() if o != "drop" and name in names]
        if conflicting:
            text = f"column {name!r} is named by drop and by {conflicting[0]}"
            rest = joined_names(n for n in declared.drop if n != name)
            problems.append(Problem(text, "drop", rest))
    return problems


def _parted_name(names: Collection[str], columns: Sequence[str]) -> str:
    """Return the column whose name was split at its commas into several names.

    The result is empty if there is no such column.
    """
    for column in (c for c in columns if "," in c):
        parts = [plain_name(part) for part in column.split(",")]
        if len(parts) <= len(names) and {*parts} <= {*names} - {*columns}:
            return column
    return ""


def _target(
    table: TextTable, column: Column, declared: TableSpec
) -> tuple[NDArray[np.intp], NDArray[Any], tuple[str, ...]]:
    """Return the rows that have a label, the labels, and the names of the classes."""
    table.check_readable(column.name)
    task = declared.task or _task(table, column, declared)
    if task == "number" and column.reads:
        if column.merges:
            column = replace(column, merges=0)  # a float64 target keeps the integers apart
        values = values_of(table, replace(column, kind="number"))
        rows = np.flatnonzero(~np.isnan(values))
        if len(np.unique(values[rows])) == 1:
            raise DataError(f"target {column.name!r} is {values[rows[0]]:g} in every row")
        return rows, values[rows], ()
    coded = reading(table, column, "category") if column.kind != "yes/no" else column
    rows = np.flatnonzero(~np.isnan(values_of(table, coded)))
    if not len(rows):
        raise DataError(f"target {column.name!r} has no values")
    part = table.part(column.name, rows.tolist())
    positive = declared.positive
    if positive is None and column.kind == "yes/no" and task == "binary":
        positive = column.order[1]
    y, classes = read_target(part, column.name, task, positive)
    return rows, y, classes


def _check_marks(table: TextTable, column: Column, columns: Iterable[Column]) -> None:
    """Raise `Problems` if marks of missing cells may be a class of the target.

    Marks such as ``none`` are words. They count as marks without a question only if a numeric
    column contains the same mark, because the program that wrote the file then uses it for missing
    cells.
    """
    name, chosen = column.name, table.reading.missing is not None
    counts = {**table.marks.get(name, {}), **dict.fromkeys(table.kept_marks.get(name, ()), 0)}
    words = [mark for mark in counts if mark.casefold() in POSSIBLE_VALUES]
    if chosen or column.reads or not words:
        return
    elsewhere = {m for c in columns if c.reads == "number" for m in table.marks.get(c.name, ())}
    ambiguous = sorted(mark for mark in words if mark not in elsewhere)
    if not ambiguous:
        return
    shown = ", ".join(map(repr, ambiguous))
    text = (
        f"target {name!r}: {shown} may be a class or mark a missing label; give --missing with the "
        f"marks of missing cells, with {ambiguous[0]!r} among them if its rows are to be left out"
    )
    remaining = sorted({m for marks in table.marks.values() for m in marks} - {*ambiguous})
    raise Problems(str(table.path), [Problem(text, "missing", joined_names(remaining or ["nan"]))])


def _task(table: TextTable, column: Column, declared: TableSpec) -> str:
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


def _list_names(names: Sequence[str]) -> str:
    """Return the first `_LISTED` names as text, with the number of the remaining names."""
    more = len(names) - _LISTED
    shown = ", ".join(names[: _LISTED if more > 1 else None])
    return f"{shown} and {more} more" if more > 1 else shown


def _reasons(out: Mapping[str, Column], declared: TableSpec) -> list[str]:
    """Return the columns that are left out, grouped by the reason."""
    why: dict[str, list[str]] = {}
    for name, column in out.items():
        why.setdefault(AS_DECLARED if name in declared.drop else column.out, []).append(name)
    return [f"{', '.join(names)} ({reason})" for reason, names in why.items()]


def _notes(
    table: TextTable,
    used: Sequence[Column],
    out: Mapping[str, Column],
    declared: TableSpec,
    target: Column,
    dataset: Dataset,
    without: int,
) -> list[str]:
    """Return the notes on everything that was inferred, one line for each topic."""
    n, d = dataset.table.X.shape
    return [
        "; ".join([f"table: {n:,} rows, {d} columns used", *table.notes]),
        _target_note(target.name, dataset.schema.classes, without),
        *_rare_class_note(target.name, dataset),
        *_kind_notes(table, used, dataset, declared),
        *_column_notes(table, (target, *used)),
        *_personal_note(table, used),
        *_missing_note(table, used),
        *_left_out_note(out, declared),
        "public: these kinds and the names of all categories and classes, read from the whole "
        "table; every adversary is assumed to know them",
    ]


def _target_note(target: str, classes: Sequence[str], without: int) -> str:
    """Return the note on the target. `without` is the number of rows without it."""
    what = (
        "a number to predict" if not classes else f"{len(classes)} classes, {_list_names(classes)}"
    )
    if len(classes) == 2:
        what = f"{classes[1]} against {classes[0]}"
    left_out = many(without, "row without it is", "rows without it are")
    return f"target: {target}, {what}{f'; {left_out} left out' if without else ''}"


def _rare_class_note(target: str, dataset: Dataset) -> Iterator[str]:
    """Yield a note on classes of a single row, if there are any."""
    classes = dataset.schema.classes
    if not classes:  # a numeric target
        return
    rows_of_class = np.bincount(dataset.table.y.astype(np.int64), minlength=len(classes))
    rare = [name for name, n in zip(classes, rows_of_class, strict=False) if n == 1]
    if rare:
        yield (
            f"{target}: only one row has the value {_list_names(rare)}, which is probably a "
            "mistake; the class is either not learned or not tested, so merge or remove it"
        )


def _kind_notes(
    table: TextTable, used: Sequence[Column], dataset: Dataset, declared: TableSpec
) -> Iterator[str]:
    """Yield the notes on numbers, categories, groups of columns and decimal commas."""
    numbers = [c.name for c in used if not c.categorical]
    coded = [
        c.name
        if c.kind == "yes/no" or c.name in declared.categorical
        else f"{c.name} ({c.distinct})"
        for c in used
        if c.categorical
    ]
    if numbers:
        yield f"numbers: {_list_names(numbers)}"
    if coded:
        yield f"categories: {_list_names(coded)}"
    for group in dataset.schema.groups:
        yield f"one category in several columns: {_list_names(group.columns)}"
    commas = [c.name for c in used if c.name in table.commas]
    if commas:
        yield f"decimal comma: {_list_names(commas)}"


def _personal_note(table: TextTable, used: Sequence[Column]) -> Iterator[str]:
    """Yield the note on columns that look personal, if there are any."""
    personal = [(c.name, kind_of(c.name, table.column(c.name)[:LOOKED_AT])) for c in used]
    looks = [f"{name} ({kind})" for name, kind in personal if kind]
    if looks:
        yield (
            f"looks personal: {_list_names(looks)}; they are used as features and attackers are "
            f"after them: --drop {_option_value(n for n, kind in personal if kind)} to "
            "leave them out"
        )


def _missing_note(table: TextTable, used: Sequence[Column]) -> Iterator[str]:
    """Yield the note on columns with missing cells, if there are any."""
    holes = [
        f"{c.name} ({', '.join([f'{1 - c.present / c.rows:.0%}', *_marks(table, c.name)])})"
        for c in used
        if c.present < c.rows
    ]
    if holes:
        yield (
            f"missing: {_list_names(holes)}; empty cells and the marks shown; "
            "--missing for other marks"
        )


def _left_out_note(out: Mapping[str, Column], declared: TableSpec) -> Iterator[str]:
    """Yield the note on columns that are left out, if there are any."""
    if out:
        usable = [
            name for name, c in out.items() if c.kind != "empty" and name not in declared.drop
        ]
        remedy = f"; to use these columns: --keep {_option_value(usable)}" if usable else ""
        yield f"left out: {'; '.join(_reasons(out, declared))}{remedy}"


def _option_value(names: Iterable[str]) -> str:
    """Return column names as the value of a command-line option."""
    return shlex.quote(joined_names(names))


def _marks(table: TextTable, name: str) -> list[str]:
    """Return the marks of missing cells that a column contains, in addition to empty cells."""
    return [repr(mark) for mark in table.marks.get(name, ())]


def _column_notes(table: TextTable, columns: Iterable[Column]) -> list[str]:
    """Return notes on single columns: unusual cells, marks of missing cells, similar categories."""
    lines = []
    for column in columns:
        notes = [column.note] if column.note else []
        if value_marks := table.kept_marks.get(column.name):
            shown = ", ".join(map(repr, value_marks))
            notes.append(
                f"{shown} is read as a value, because the column would be constant without it; "
                "give --missing to choose the marks of missing cells"
            )
        notes += look_alikes(column.order if column.categorical else ())
        lines += [f"{column.name}: {note}" for note in notes]
        lines += probable_marks_notes(table, [column])
    return lines


def probable_marks_notes(table: TextTable, columns: Iterable[Column]) -> list[str]:
    """Return notes on numbers such as -999 in numeric columns that may mark missing cells."""
    lines = []
    for column in columns:
        if not column.categorical and column.reads == "number":
            values = values_of(table, column)
            marks = probable_marks(table.column(column.name), values)
            lines += [marks_note(column.name, marks)] if marks else []
            if zeros := suspicious_zeros(values):
                lines.append(
                    f"{column.name}: {zeros} of {len(values)} cells are 0, and all other numbers "
                    "are clearly larger; if 0 marks a missing value, replace it by an empty cell"
                )
    return lines
