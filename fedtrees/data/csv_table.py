"""Read columns of a text table as declared: numbers, codes of categories, and targets.

A large table about which nothing has to be inferred is read block by block.
"""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, Problem, Problems, UsageError, closest, did_you_mean
from fedtrees.core.schema import Feature
from fedtrees.data.cells import categories_of, codes_of_cells, missing, numbers, plain
from fedtrees.data.csv_file import Reading, TextTable

#: Kinds of a label column.
TASKS = ("binary", "classes", "number")


def numeric(table: TextTable, name: str) -> NDArray[np.float64]:
    """Return one column as numbers, float64, shape (n,), NaN if missing.

    Raises `DataError` if a cell is neither a number nor missing, or is infinite, or if the numbers
    can be read in two ways. The message names column, value and line.
    """
    table.check_readable(name)
    cells = table.column(name)
    values = numbers({*cells} - {""})
    for i, cell in enumerate(cells):
        if cell in values or not cell:
            continue
        where = f"{table.path}, line {table.lines[i]}: column {name!r} contains {cell!r}"
        if re.fullmatch(r"[+-]?(inf|infinity|1e\d+)", cell.lower()):
            raise DataError(f"{where}; remove the row, or leave the value empty if it is missing")
        raise DataError(
            f"{where}, not a number; declare the column categorical, or correct the value"
        )
    return np.array([values.get(cell, np.nan) for cell in cells])


def coded(
    table: TextTable, name: str, order: Sequence[str] = ()
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return one categorical column as codes, and the names of the codes.

    The codes are computed from all rows, including test rows (see `Feature.categories`).

    Parameters
    ----------
    table : TextTable
        The table.
    name : str
        Name of the column.
    order : sequence of str, optional
        The categories in the order of their codes. The default is `categories_of`.

    Returns
    -------
    codes : float64 array, shape (n,)
        NaN if missing.
    names : tuple of str
        The category of each code.

    Raises
    ------
    DataError
        If a value is not in `order`.
    """
    cells = table.column(name)
    present = Counter(cell for cell in cells if cell)
    names = tuple(order) or categories_of(present)[0]
    code = codes_of_cells(present, names)
    for i, cell in enumerate(cells):
        if cell and cell not in code:
            raise DataError(
                f"{table.path}, line {table.lines[i]}: column {name!r} contains {cell!r}"
                f"{did_you_mean(cell, names)}"
            )
    return np.array([code.get(cell, np.nan) for cell in cells], dtype=np.float64), names


def binary_target(
    table: TextTable, name: str, positive: str | None = None
) -> tuple[NDArray[np.int64], tuple[str, str]]:
    """Return binary labels, and the names of the classes 0 and 1.

    Parameters
    ----------
    table : TextTable
        The table.
    name : str
        Name of the label column.
    positive : str, optional
        The class coded 1. Every other class becomes 0. The default is the second of two classes in
        the order of `categories_of`.

    Returns
    -------
    y : int64 array, shape (n,)
    names : (str, str)

    Raises
    ------
    DataError
        If labels are missing, there is only one class, the positive class is unknown, or there are
        more than two classes without a declared positive one.
    """
    codes, names = class_target(table, name)
    if positive is None:
        if len(names) > 2:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            text = (
                f"target {name!r} has {len(names)} classes ({shown}); name the positive "
                "class (all other classes become class 0), or declare the task as "
                "classes or as a number"
            )
            raise Problems(str(table.path), [Problem(text, "positive", "CLASS")])
        positive = names[1]
    # The positive class may be spelled differently, for example 1 in place of 1.0.
    same = codes_of_cells([positive], names)
    positive = names[same[positive]] if same else positive
    if positive not in names:
        text = f"target {name!r} has no class {positive!r}{did_you_mean(positive, names)}"
        fix = Problem(text, "positive", closest(positive, names) or "CLASS")
        raise Problems(str(table.path), [fix])
    negatives = [n for n in names if n != positive]
    negative = negatives[0] if len(negatives) == 1 else f"not {positive}"
    return (codes == names.index(positive)).astype(np.int64), (negative, positive)


def class_target(
    table: TextTable, name: str, order: Sequence[str] = ()
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the labels and the name of every class.

    Parameters
    ----------
    table : TextTable
        The table.
    name : str
        Name of the label column.
    order : sequence of str, optional
        As in `coded`.

    Returns
    -------
    y : int64 array, shape (n,)
    names : tuple of str

    Raises
    ------
    DataError
        If labels are missing, or there is only one class.
    """
    codes, names = coded(table, name, order)
    _all_there(table, name, codes)
    if len(names) < 2:
        text = f"target {name!r} has one class only ({names[0]!r}); both classes must occur"
        raise Problems(str(table.path), [Problem(text)])
    return codes.astype(np.int64), names


def _all_there(table: TextTable, name: str, values: NDArray[np.float64]) -> None:
    """Raise `Problems` if the target is missing in some row."""
    absent = np.flatnonzero(np.isnan(values))
    if len(absent):
        text = (
            f"target {name!r} is missing at line {table.lines[int(absent[0])]} ({len(absent)} such "
            "rows); remove them"
        )
        raise Problems(str(table.path), [Problem(text)])


def read_target(
    table: TextTable, name: str, task: str = "binary", positive: str | None = None
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the target, and the names of its classes (empty for numbers).

    Parameters
    ----------
    table : TextTable
        The table.
    name : str
        Name of the label column.
    task : str
        One of `TASKS`.
    positive : str, optional
        As in `binary_target`. It is allowed only for a binary task.

    Returns
    -------
    y : int64 or float64 array, shape (n,)
    names : tuple of str

    Raises
    ------
    UsageError
        If the task is unknown, or a positive class is declared for another task than binary.
    DataError
        As `binary_target`, `class_target` and `numeric`, and if a number is missing.
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
    """Return features and their columns.

    Parameters
    ----------
    table : TextTable
        The table.
    names : sequence of str
        Columns to read, in this order.
    categorical : sequence of str
        Those that become codes. All remaining columns are read as numbers.
    ranges : mapping of str to (float, float)
        Declared public ranges of numeric columns.
    orders : mapping of str to sequence of str, optional
        Categories in the order of their codes, for columns with a natural order.

    Returns
    -------
    features : tuple of Feature
    X : float64 array, shape (n, d)
    """
    features = []
    for name in names:
        if name in categorical:
            order = orders.get(name) or categories_of(Counter(filter(None, table.column(name))))[0]
            features.append(Feature(name, "categorical", categories=tuple(order)))
        else:
            features.append(Feature(name, "continuous", *ranges.get(name, ())))
    return tuple(features), read_features(table, features)


def read_features(
    table: TextTable, features: Sequence[Feature], dtype: type = np.float64
) -> NDArray[Any]:
    """Return the columns of known features, shape (n, d).

    Categories become the codes of their feature, and all remaining columns are read as numbers.
    Raises `DataError` as `coded` and `numeric`.
    """
    X: NDArray[Any] = np.empty((len(table), len(features)), dtype=dtype)
    for k, feature in enumerate(features):
        if feature.kind == "categorical":
            X[:, k] = coded(table, feature.name, feature.categories)[0]
        else:
            X[:, k] = numeric(table, feature.name)
    return X


_BLOCK = 1_000  # number of rows that are stored as text at a time
_TWO_READINGS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")  # 1.234 may be 1234
_SEPARATORS = (",", "\t", "|")  # in files with semicolons, a point may separate thousands


def read_plain(
    path: str | Path, reading: Reading, columns: Mapping[str, Sequence[str]], target: str
) -> tuple[NDArray[np.float32], NDArray[np.float64]] | None:
    """Return the columns of a table and its target, with little more memory than the result takes.

    The result equals that of `read_csv` with `numeric` and `coded`. If something is unusual or
    wrong, the function returns None, and `read_csv` handles or reports it. Examples are a header
    with other names, a comma in a number, a line that is too short, or a declared mark of missing
    cells.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared format. Without a separator, the most frequent one in the first line is used.
    columns : mapping of str to sequence of str
        The categories of each column and of the target, in order. Empty for numbers.
    target : str
        Name of the target.

    Returns
    -------
    X : float32 array, shape (n, c)
    y : float64 array, shape (n,)
    """
    names, begin = [*(name for name in columns if name != target), target], 0
    separator, doubtful = reading.separator, _Doubts()
    if reading.missing is not None or reading.decimal == ",":
        return None
    try:
        rows = _lines(Path(path))
        X, y = np.empty((rows, len(names) - 1), np.float32), np.empty(rows)
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            separator = separator or max(_SEPARATORS, key=file.readline().count)
            if separator not in _SEPARATORS:
                return None
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
            header = [name.strip() for name in next(reader)]
            if len({*header}) < len(header) or {*names} - {*header}:
                return None
            while block := list(islice(filter(None, reader), _BLOCK)):
                end = begin + len(block)
                cells = list(zip(*block, strict=True))
                if len(cells) != len(header) or end > rows:  # unusual line ends
                    return None
                for k, name in enumerate(names):
                    values = _values(cells[header.index(name)], columns[name])
                    if not columns[name] and separator != ",":
                        doubtful.see(cells[header.index(name)])
                    if values is None or (name == target and np.isnan(values).any()):
                        return None
                    (y if name == target else X[:, k])[begin:end] = values
                begin = end
    except (OSError, ValueError, StopIteration, csv.Error):
        return None
    return (X[:begin], y[:begin]) if begin and not doubtful.undecided else None


class _Doubts:
    """Records whether points in the numbers of a file could separate thousands."""

    def __init__(self) -> None:
        self._possible, self._decimal = False, False

    def see(self, cells: Sequence[str]) -> None:
        """Inspect the cells of a column."""
        pointed = [] if self._decimal else [cell.strip() for cell in cells if "." in cell]
        two = sum(bool(_TWO_READINGS.fullmatch(cell)) for cell in pointed)
        self._possible |= two > 0
        self._decimal |= two < sum(not missing(cell) for cell in pointed)

    @property
    def undecided(self) -> bool:
        """Whether all numbers with a point could be integers with a separator of thousands."""
        return self._possible and not self._decimal


def _lines(path: Path) -> int:
    """Return an upper bound on the number of lines of a file."""
    with path.open("rb") as file:
        return 1 + sum(block.count(b"\n") for block in iter(partial(file.read, 1 << 20), b""))


def _values(cells: Sequence[str], categories: Sequence[str]) -> NDArray[np.float64] | None:
    """Return numbers or codes of categories, NaN if missing, None if a cell is neither."""
    numbers = None if categories else plain(cells)
    if numbers is not None:  # usually no cell is missing
        return np.array(numbers)
    cells = [cell.strip() for cell in cells]
    codes = codes_of_cells({*cells}, categories)
    is_value = np.array([cell in codes or not missing(cell) for cell in cells])
    present = [cell for cell, valid in zip(cells, is_value, strict=True) if valid]
    read = plain(present) if not categories else [codes.get(cell, np.nan) for cell in present]
    if read is None or np.isnan(read).any():
        return None
    values = np.full(len(cells), np.nan)
    values[is_value] = read
    return values
