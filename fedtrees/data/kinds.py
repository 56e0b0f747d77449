"""What the columns of a text table are: numbers, categories, dates, ids, free text.

All that is told here is told from the whole table, held-out rows included, and counts as declared
knowledge: parties agree on it before they train, and blind adversaries know it (`Feature`).
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.counts import many
from fedtrees.core.errors import DataError
from fedtrees.data.cells import MISSING, dates, decimal_of, missing, numbers, plain
from fedtrees.data.csv_file import TextTable

Kind = Literal["number", "category", "yes/no", "date", "id", "text", "empty"]

#: A column of so many different whole numbers or fewer is one of categories, if each stands in
#: `OFTEN` rows on average: codes, grades, counts of a few.
FEW = 10
OFTEN = 10
#: Of fewer present cells nothing is said to be near-unique.
LEAST = 20
#: Share of different cells from which text is no category (on average under two rows for each).
_MANY_TEXTS = 0.5
#: Share of different cells from which a column whose name or digits say so is an id.
_NEAR_UNIQUE = 0.9
#: Whole numbers of so many digits are ids where they hardly repeat.
_LONG = 10
# Numbers that never repeat are ids where so many equal pairs would be expected by chance: of
# numbers drawn without regard to one another this happens about once in 150 tables (exp(-5)).
_EXPECTED_PAIRS = 5.0
_ID_NAME = re.compile(
    r"(?i)(^|[^a-z])(id|uuid|guid|key|nr|no|number|index|code)$|[a-z](Id|ID|Nr|No)$"
)
_YES, _NO = (
    frozenset(["yes", "y", "true", "t", "ja", "oui", "si", "sí", "sì"]),
    frozenset(["no", "n", "false", "f", "nein", "non"]),
)
_EXACT = 2**24  # float32 holds every whole number up to here
_LONGEST_MISSING = max(map(len, MISSING))


@dataclass(frozen=True)
class Column:
    """What one column was found to hold."""

    name: str
    # ``number``, ``category``, ``yes/no``, ``date``, ``id``, ``text`` (free text) or ``empty``
    kind: Kind
    # rows, present, distinct: rows; cells that are not missing; different ones among those
    rows: int
    present: int
    distinct: int
    # how cells stand for numbers: with a decimal ``.`` or ``,``, as a ``date`` (days since
    # 1970-01-01); empty: they do not
    reads: str = ""
    # names of the categories in the order of their codes
    order: tuple[str, ...] = field(default=(), repr=False)
    # category of cells that are not written like its name
    merged: Mapping[str, str] = field(default_factory=dict, repr=False)
    out: str = ""  # why the column is left out unless it is asked for; empty: it is used
    note: str = ""  # what else a reader should know
    merges: int = 0  # how many different whole numbers fall together as float32

    @property
    def decimal_comma(self) -> bool:
        """Whether it is of numbers with a decimal comma."""
        return self.reads == ","

    @property
    def categorical(self) -> bool:
        """Whether the column is coded."""
        return self.kind in ("category", "yes/no")

    @property
    def near_unique(self) -> bool:
        """Whether hardly any cell stands twice."""
        return self.present >= LEAST and self.distinct >= _NEAR_UNIQUE * self.present


def columns_of(table: TextTable) -> tuple[Column, ...]:
    """Return what every column of a table is."""
    decimals: dict[str, str] = {}
    found: dict[str, Column] = {}
    for name in table.names:
        cells = _counted(table, name)
        decimals[name], values = decimal_of(cells)
        if decimals[name] != ".,":
            mark = decimals[name].replace("=", ".")
            found[name] = _column(table, name, cells, mark, values)
    # 1.234: what the other columns' numbers say
    marks = decimals.values()
    mark = "," if "," in marks or ("." not in marks and table.separator == ";") else "."
    for name in (n for n in table.names if n not in found):
        cells = _counted(table, name)
        found[name] = _column(table, name, cells, mark, numbers(cells, mark))
    return tuple(found[name] for name in table.names)


def _counted(table: TextTable, name: str) -> dict[str, int]:
    """Return how often every cell of a column stands there, but for missing ones."""
    cells = Counter(table.column(name))
    for cell in [cell for cell in cells if len(cell) <= _LONGEST_MISSING and missing(cell)]:
        del cells[cell]
    return cells


def _column(
    table: TextTable,
    name: str,
    cells: Mapping[str, int],
    decimal: str,
    values: Mapping[str, float],
) -> Column:
    column = Column(name, "text", len(table), sum(cells.values()), len(cells))
    if not cells:
        return replace(column, kind="empty", out="no values")
    if dates(cells) is not None and (len(cells) > 2 or not decimal):
        return replace(column, kind="date", reads="date", out="dates")
    if not decimal:
        return _texts(table, column, cells)
    return _numeric(table, column, cells, decimal, values)


def _odd(table: TextTable, name: str, cells: Mapping[str, int], odd: Collection[str]) -> str:
    """Return which cells of a column are no numbers, and the line of the first of them."""
    at = next(i for i, cell in enumerate(table.column(name)) if cell in odd)
    shown = ", ".join(map(repr, sorted(odd)[:3])) + (", ..." if len(odd) > 3 else "")
    lost = sum(cells[cell] for cell in odd)
    text = many(lost, "cell that is no number", "cells that are no numbers")
    return f"{text} ({shown}; {'first at ' if lost > 1 else ''}line {table.lines[at]})"


def _texts(table: TextTable, column: Column, cells: Mapping[str, int]) -> Column:
    folded: dict[str, str] = {}
    for cell in sorted(cells, key=lambda c: (-cells[c], c)):  # the most frequent spelling
        folded.setdefault(cell.casefold(), cell)
    if len(folded) == 2:
        no, yes = (next((folded[w] for w in folded if w in words), None) for words in (_NO, _YES))
        if no is not None and yes is not None:
            merged = {cell: folded[cell.casefold()] for cell in cells}
            return replace(column, kind="yes/no", order=(no, yes), merged=merged)
    many = column.present >= LEAST and len(cells) > _MANY_TEXTS * column.present
    if not many:
        read = max((numbers(cells, mark) for mark in ".,"), key=len)
        note = ""
        if 2 * sum(cells[cell] for cell in read) > column.present:
            note = f"categories, for {_odd(table, column.name, cells, cells.keys() - read.keys())}"
        return replace(column, kind="category", order=tuple(sorted(cells)), note=note)
    if column.near_unique and not any(" " in cell for cell in cells):
        return replace(column, kind="id", out="near-unique names")
    return replace(column, out="free text")


def _numeric(
    table: TextTable,
    column: Column,
    cells: Mapping[str, int],
    decimal: str,
    values: Mapping[str, float],
) -> Column:
    odd = sorted(cells.keys() - values.keys()) if len(values) < len(cells) else []
    told = _odd(table, column.name, cells, odd) if odd else ""
    whole = all(value.is_integer() for value in values.values())
    few = len(cells) <= FEW and len(set(values.values())) == len(values)
    if whole and few and column.present >= OFTEN * len(cells):
        order, note = (*_by_value(values), *odd), f"codes, and {told}" if odd else ""
        return replace(column, kind="category", order=order, note=note)
    lost = sum(cells[cell] for cell in odd)
    said = f"{told} {'is' if lost == 1 else 'are'} read as missing" if odd else ""
    present = column.present - lost
    column = replace(column, kind="number", present=present, distinct=len(values), reads=decimal)
    column = replace(column, note=said)
    if not whole:
        return column
    why = _id(column, values, present)
    if why:
        column = replace(column, kind="id", out=why)
    return replace(column, merges=_merges(values))


def _id(column: Column, values: Mapping[str, float], present: int) -> str:
    """Return why a column of whole numbers is one of ids; empty: it is none."""
    n, distinct = present, len(values)
    if n < LEAST or distinct < _NEAR_UNIQUE * n:
        return ""
    if _ID_NAME.search(column.name):
        return "near-unique, and its name says id"
    if max(len(cell.lstrip("+-0").partition(".")[0]) for cell in values) >= _LONG:
        return "near-unique long numbers"
    span = max(values.values()) - min(values.values()) + 1
    if distinct == n and n * (n - 1) / 2 / span >= _EXPECTED_PAIRS:
        return "numbers that never repeat"
    return ""


def _by_value(values: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(sorted(values, key=lambda cell: (values[cell], cell)))


def _merges(values: Mapping[str, float]) -> int:
    """Return how many different whole numbers become equal to another as float32."""
    if max(map(abs, values.values())) <= _EXACT:
        return 0
    exact = {_digits(cell, value) for cell, value in values.items()}
    with np.errstate(over="ignore"):
        narrow = np.unique(np.array(list(values.values())).astype(np.float32))
    return len(exact) - len(narrow)


def _digits(cell: str, value: float) -> int:
    """Return a whole number as it is written: a float would round its 17th digit."""
    plain = (
        re.sub(r"[^\d+-]", "", cell) if abs(value) >= 2**53 and cell.strip("+-").isdigit() else ""
    )
    return int(plain or value)


def reading(table: TextTable, column: Column, wish: str = "") -> Column:
    """Return a column as it is used: `keep` it although it looks unusable, or make it a `category`.

    Raises `DataError`: whole numbers that fall together as float32 and are too many to be coded.
    """
    if wish == "category":
        order = _order(table, column)
        return replace(column, kind="category", order=order, reads="", out="", note="", merges=0)
    if wish == "keep" and column.kind in ("id", "text"):
        column = replace(column, kind="number" if column.reads else "category", out="")
        if not column.reads:
            column = replace(column, order=_order(table, column))
    elif wish == "keep" and column.kind == "date":
        column = replace(column, out="", note="days since 1970-01-01")
    if column.merges and not column.out:
        if column.distinct <= _MANY_TEXTS * column.present:
            text = "whole numbers that float32 cannot tell apart are coded"
            order = _by_value(numbers(_counted(table, column.name), column.reads))
            return replace(column, kind="category", order=order, note=text)
        raise DataError(
            f"column {column.name!r} has {column.merges} whole numbers that are equal to another "
            f"as float32 (it is exact up to {_EXACT:,}); drop it, or declare it categorical"
        )
    return column


def _order(table: TextTable, column: Column) -> tuple[str, ...]:
    """Return the cells of a column that are not missing, in the order of their codes."""
    cells = _counted(table, column.name)
    if column.order and set(cells) <= set(column.order):
        return column.order
    values = numbers(cells, column.reads) if column.reads in (".", ",") else {}
    return _by_value(values) if len(values) == len(cells) else tuple(sorted(cells))


def values_of(table: TextTable, column: Column) -> NDArray[np.float64]:
    """Return the values of a column, float64, shape (n,): codes, numbers or days; NaN: missing."""
    cells = table.column(column.name)
    whole = column.kind == "number" and column.reads == "." and column.present == column.rows
    if whole and (values := plain(cells)) is not None:
        return np.array(values)
    if column.categorical:
        known = {name: float(k) for k, name in enumerate(column.order)}
        known |= {cell: known[name] for cell, name in column.merged.items()}
    elif column.reads == "date":
        known = dates(_counted(table, column.name)) or {}
    else:
        known = numbers(_counted(table, column.name), column.reads) if column.reads else {}
    return np.fromiter((known.get(cell, math.nan) for cell in cells), np.float64, len(cells))
