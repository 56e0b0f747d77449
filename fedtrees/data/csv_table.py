"""Any CSV file with a header: read strictly, encode categories, make a dataset."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.core.schema import Feature, Schema
from fedtrees.data.dataset import Dataset, prepare

#: What a label column can be.
TASKS = ("binary", "classes", "number")

#: Cells read as a missing value (case-insensitive, spaces around them ignored).
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True)
class TextTable:
    """A CSV file as text."""

    path: Path
    names: tuple[str, ...]  # header
    rows: tuple[tuple[str, ...], ...]  # cells, stripped of surrounding spaces
    lines: tuple[int, ...]  # number in the file (from 1) of the last line of each row

    def column(self, name: str) -> list[str]:
        """Return the cells of one column.

        Raises `DataError`: the file has no such column.
        """
        if name not in self.names:
            raise DataError(f"{self.path}: no column {name!r}{did_you_mean(name, self.names)}")
        k = self.names.index(name)
        return [row[k] for row in self.rows]


def read_csv(path: str | Path) -> TextTable:
    """Read a comma-separated UTF-8 file with a header line.

    Raises `DataError`: the file is missing, unreadable, empty, not text, has duplicate or empty
    column names, a row whose number of cells differs from the header's, or no rows.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start} is not UTF-8 text; save the table as a UTF-8 CSV file"
        ) from None
    if "\0" in text:
        raise DataError(f"{path}: contains NUL bytes; this is not a CSV file")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    try:
        found = [(reader.line_num, tuple(cell.strip() for cell in row)) for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if not found:
        raise DataError(f"{path}: the file is empty; it needs a header line and rows")
    (_, names), *records = found
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise DataError(f"{path}: duplicate column names {twice}; give every column its own name")
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} has no name")
    for line, row in records:
        if len(row) != len(names):
            raise DataError(
                f"{path}, line {line}: {len(row)} cells, the header has {len(names)}; the file may "
                "be truncated"
            )
    if not records:
        raise DataError(f"{path}: a header but no rows")
    lines, rows = zip(*records, strict=True)
    return TextTable(path, names, rows, lines)


def missing(cell: str) -> bool:
    """Tell whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def numeric(table: TextTable, name: str) -> NDArray[np.float64]:
    """Return one column as numbers, shape (n,), NaN where missing.

    Raises `DataError`: a cell is neither a number nor missing, or is infinite; names column, value
    and line.
    """
    out = np.empty(len(table.rows))
    for i, cell in enumerate(table.column(name)):
        if missing(cell):
            out[i] = math.nan
            continue
        where = f"{table.path}, line {table.lines[i]}: column {name!r} holds {cell!r}"
        try:
            out[i] = float(cell)
        except ValueError:
            raise DataError(
                f"{where}, not a number; declare the column categorical, or correct the value"
            ) from None
        if math.isinf(out[i]):
            raise DataError(f"{where}; remove the row, or leave the value empty if it is missing")
    return out


def coded(
    table: TextTable, name: str, order: Sequence[str] = ()
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return one categorical column as codes, shape (n,), and the names of the codes.

    Codes follow `order` where given, else the alphabet (numbers by value); NaN where missing. They
    are of all rows, held-out ones too: see `Feature.categories`.

    Raises `DataError`: a value outside `order`.
    """
    cells = table.column(name)
    present = {cell for cell in cells if not missing(cell)}
    names = tuple(order) or tuple(sorted(present, key=_sort_key(present)))
    code = {value: float(k) for k, value in enumerate(names)}
    for i, cell in enumerate(cells):
        if not missing(cell) and cell not in code:
            raise DataError(
                f"{table.path}, line {table.lines[i]}: column {name!r} holds {cell!r}"
                f"{did_you_mean(cell, names)}"
            )
    return np.array([code.get(cell, math.nan) for cell in cells]), names


def _sort_key(values: set[str]):  # type: ignore[no-untyped-def]
    try:
        return float if all(math.isfinite(float(v)) for v in values) else str
    except ValueError:
        return str


def binary_target(
    table: TextTable, name: str, positive: str | None = None
) -> tuple[NDArray[np.int64], tuple[str, str]]:
    """Return the labels, shape (n,), and the names of the classes 0 and 1.

    Raises `DataError`: missing labels, one class only, an unknown positive class, or more than two
    classes and no positive one named.

    `positive`: The class coded 1; every other class becomes 0. Default: the second of two classes,
    in numerical or alphabetical order.
    """
    codes, names = class_target(table, name)
    where = f"{table.path}: target {name!r}"
    if positive is None:
        if len(names) > 2:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise DataError(
                f"{where} has {len(names)} classes ({shown}); name the positive class (the rest "
                "becomes class 0), or say that the task is all of its classes, or a number"
            )
        positive = names[1]
    if positive not in names:
        raise DataError(f"{where} has no class {positive!r}{did_you_mean(positive, names)}")
    others = [n for n in names if n != positive]
    negative = others[0] if len(others) == 1 else f"not {positive}"
    return (codes == names.index(positive)).astype(np.int64), (negative, positive)


def class_target(
    table: TextTable, name: str, order: Sequence[str] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels, shape (n,), and the name of every class, coded as `coded` does.

    Raises `DataError`: missing labels, or one class only.
    """
    codes, names = coded(table, name, order)
    _all_there(table, name, codes)
    if len(names) < 2:
        where = f"{table.path}: target {name!r}"
        raise DataError(f"{where} has one class only ({names[0]!r}); both classes must occur")
    return codes.astype(np.int64), names


def _all_there(table: TextTable, name: str, values: NDArray[np.float64]) -> None:
    absent = np.flatnonzero(np.isnan(values))
    if len(absent):
        raise DataError(
            f"{table.path}: target {name!r} is missing at line {table.lines[int(absent[0])]} "
            f"({len(absent)} such rows); remove them"
        )


def read_target(
    table: TextTable, name: str, task: str = "binary", positive: str | None = None
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the target, shape (n,), and the names of its classes (none for numbers).

    Raises `UsageError`: unknown task, or a positive class for another task than binary. Raises
    `DataError` as `binary_target`, `class_target` and `numeric`; a number that is missing.

    `positive`: As in `binary_target`; makes no sense for another task.
    """
    if task not in TASKS:
        raise UsageError(f"unknown task {task!r}{did_you_mean(str(task), TASKS)}")
    if task == "binary":
        return binary_target(table, name, positive)
    if positive is not None:
        raise UsageError(f"a positive class ({positive!r}) is for a binary task, not for {task}")
    if task == "classes":
        return class_target(table, name)
    values = numeric(table, name)
    _all_there(table, name, values)
    return values, ()


def encoded(
    table: TextTable,
    names: Sequence[str],
    categorical: Sequence[str],
    ranges: Mapping[str, tuple[float, float]],
    orders: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[tuple[Feature, ...], NDArray[np.float64]]:
    """Return features and their columns, shape (n, d): codes of categories, else numbers."""
    features, columns = [], []
    for name in names:
        if name in categorical:
            column, categories = coded(table, name, orders.get(name, ()))
            features.append(Feature(name, "categorical", categories=categories))
        else:
            column = numeric(table, name)
            features.append(Feature(name, "continuous", *ranges.get(name, ())))
        columns.append(column)
    return tuple(features), np.column_stack(columns)


def load_csv(
    path: str | Path,
    target: str,
    *,
    categorical: Sequence[str] = (),
    task: str = "binary",
    positive: str | None = None,
    drop: Sequence[str] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    top: Sequence[str] = (),
    name: str | None = None,
) -> Dataset:
    """Make a dataset of a CSV file.

    Parameters
    ----------
    path : path
    target : str
        Name of the label column.
    categorical : sequence of str
        Columns to be coded alphabetically; all others must be numeric.
    task : {"binary", "classes", "number"}
        What the label column is: two classes, all the classes it has, or numbers.
    positive : str, optional
        The class coded 1 (required for a binary task with more than two classes).
    drop : sequence of str
        Columns to leave out (identifiers).
    ranges : mapping of str to (float, float), optional
        Declared public ranges; never computed from the file.
    top : sequence of str
        Features a top-feature score is computed on.
    name : str, optional
        Default: the file name without its ending.

    Raises
    ------
    DataError
        Anything `read_csv`, `numeric`, `coded`, `read_target` or `prepare` reject, and
        unknown column names anywhere.
    UsageError
        As `read_target`.
    """
    table = read_csv(path)
    ranges = dict(ranges or {})
    for column in (target, *categorical, *drop, *ranges, *top):
        table.column(column)
    y, classes = read_target(table, target, task, positive)
    names = [n for n in table.names if n != target and n not in drop]
    if not names:
        raise DataError(f"{path}: no feature columns beside the target {target!r}")
    features, X = encoded(table, names, categorical, ranges)
    places = [f"line {line}" for line in table.lines]
    schema = Schema(features, target, classes)
    return prepare(name or Path(path).stem, schema, X, y, top=top, places=places)
