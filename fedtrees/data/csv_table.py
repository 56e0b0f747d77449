"""Read columns of a text table as they are declared: numbers, codes of categories, targets."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, Problem, Problems, UsageError, closest, did_you_mean
from fedtrees.core.schema import Feature
from fedtrees.data.categories import categories_of, codes_of_cells
from fedtrees.data.cells import numbers
from fedtrees.data.csv_file import TextTable

#: What a label column can be.
TASKS = ("binary", "classes", "number")


def numeric(table: TextTable, name: str) -> NDArray[np.float64]:
    """Return one column as numbers, shape (n,), NaN where missing.

    Raises `DataError` if a cell is neither a number nor missing, or is infinite, or if the numbers
    can be read in two ways. The message names column, value and line.
    """
    table.check_readable(name)
    cells = table.column(name)
    values = numbers({*cells} - {""})
    for i, cell in enumerate(cells):
        if cell in values or not cell:
            continue
        where = f"{table.path}, line {table.lines[i]}: column {name!r} holds {cell!r}"
        if re.fullmatch(r"[+-]?(inf|infinity|1e\d+)", cell.lower()):
            raise DataError(f"{where}; remove the row, or leave the value empty if it is missing")
        raise DataError(
            f"{where}, not a number; declare the column categorical, or correct the value"
        )
    return np.array([values.get(cell, np.nan) for cell in cells])


def coded(
    table: TextTable, name: str, order: Sequence[str] = ()
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return one categorical column as codes, shape (n,), and the names of the codes.

    Codes follow `order` if it is given, else `categories_of`; NaN where missing. They are computed
    from all rows, held-out rows included: see `Feature.categories`.

    Raises `DataError` if a value is not in `order`.
    """
    cells = table.column(name)
    present = Counter(cell for cell in cells if cell)
    names = tuple(order) or categories_of(present)[0]
    code = codes_of_cells(present, names)
    for i, cell in enumerate(cells):
        if cell and cell not in code:
            raise DataError(
                f"{table.path}, line {table.lines[i]}: column {name!r} holds {cell!r}"
                f"{did_you_mean(cell, names)}"
            )
    return np.array([code.get(cell, np.nan) for cell in cells], dtype=np.float64), names


def binary_target(
    table: TextTable, name: str, positive: str | None = None
) -> tuple[NDArray[np.int64], tuple[str, str]]:
    """Return the labels, shape (n,), and the names of the classes 0 and 1.

    Raises `DataError`: missing labels, one class only, an unknown positive class, or more than two
    classes and no positive one named.

    `positive`: The class coded 1; every other class becomes 0. Default: the second of two classes,
    in the order of `categories_of`.
    """
    codes, names = class_target(table, name)
    if positive is None:
        if len(names) > 2:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            text = (
                f"target {name!r} has {len(names)} classes ({shown}); name the positive class (the "
                "rest becomes class 0), or say that the task is all of its classes, or a number"
            )
            raise Problems(str(table.path), [Problem(text, "positive", "CLASS")])
        positive = names[1]
    same = codes_of_cells([positive], names)
    positive = names[same[positive]] if same else positive
    if positive not in names:
        text = f"target {name!r} has no class {positive!r}{did_you_mean(positive, names)}"
        fix = Problem(text, "positive", closest(positive, names) or "CLASS")
        raise Problems(str(table.path), [fix])
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
        text = f"target {name!r} has one class only ({names[0]!r}); both classes must occur"
        raise Problems(str(table.path), [Problem(text)])
    return codes.astype(np.int64), names


def _all_there(table: TextTable, name: str, values: NDArray[np.float64]) -> None:
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
