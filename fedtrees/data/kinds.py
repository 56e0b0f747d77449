"""What the columns of a text table are: numbers, categories, dates, ids, free text.

All that is told here is told from the whole table, held-out rows included, and counts as declared
knowledge: parties agree on it before they train, and blind adversaries know it (`Feature`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.counts import many
from fedtrees.core.errors import DataError
from fedtrees.data.cells import dates, decimal_of, missing, numbers
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


@dataclass(frozen=True)
class Column:
    """What one column was found to hold.

    Attributes
    ----------
    name : str
    kind : str
        ``number``, ``category``, ``yes/no``, ``date``, ``id``, ``text`` (free text) or ``empty``.
    rows, present, distinct : int
        Rows; cells that are not missing; different ones among those.
    values : mapping of str to float
        What cells stand for where they are numbers, dates (days since 1970-01-01) or numbered ids.
    order : tuple of str
        Names of the categories in the order of their codes, for text a category is made of, too.
    merged : mapping of str to str
        Category of cells that are not written like its name.
    out : str
        Why the column is left out unless it is asked for; empty: it is used.
    note : str
        What else a reader should know.
    merges : int
        How many different whole numbers fall together as float32.
    """

    name: str
    kind: Kind
    rows: int
    present: int
    distinct: int
    values: Mapping[str, float] = field(default_factory=dict, repr=False)
    order: tuple[str, ...] = field(default=(), repr=False)
    merged: Mapping[str, str] = field(default_factory=dict, repr=False)
    out: str = ""
    note: str = ""
    merges: int = 0

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
    counted = [Counter(column) for column in zip(*table.rows, strict=True)]
    present = [{c: n for c, n in cells.items() if not missing(c)} for cells in counted]
    decimals = [decimal_of(cells) for cells in present]
    comma = "," in decimals or ("." not in decimals and table.separator == ";")
    n = len(table.rows)
    found = []
    for name, cells, decimal in zip(table.names, present, decimals, strict=True):
        if decimal == ".,":  # 1.234: what the other columns' numbers say
            decimal = "," if comma else "."
        found.append(_column(name, cells, n, "." if decimal == "=" else decimal))
    return tuple(found)


def _column(name: str, cells: Mapping[str, int], n: int, decimal: str) -> Column:
    column = Column(name, "text", n, sum(cells.values()), len(cells))
    if not cells:
        return replace(column, kind="empty", out="no values")
    days = dates(cells)
    if days is not None and (len(cells) > 2 or not decimal):
        return replace(column, kind="date", values=days, out="dates")
    return _numeric(column, cells, decimal) if decimal else _texts(column, cells)


def _texts(column: Column, cells: Mapping[str, int]) -> Column:
    folded: dict[str, str] = {}
    for cell in sorted(cells, key=lambda c: (-cells[c], c)):  # the most frequent spelling
        folded.setdefault(cell.casefold(), cell)
    if len(folded) == 2:
        no, yes = (next((folded[w] for w in folded if w in words), None) for words in (_NO, _YES))
        if no is not None and yes is not None:
            merged = {cell: folded[cell.casefold()] for cell in cells}
            return replace(column, kind="yes/no", order=(no, yes), merged=merged)
    order = tuple(sorted(cells))
    many = column.present >= LEAST and len(cells) > _MANY_TEXTS * column.present
    if not many:
        return replace(column, kind="category", order=order)
    if column.near_unique and not any(" " in cell for cell in cells):
        return replace(column, kind="id", order=order, out="near-unique names")
    return replace(column, order=order, out="free text")


def _numeric(column: Column, cells: Mapping[str, int], decimal: str) -> Column:
    values = numbers(cells, decimal)
    odd = sorted(cell for cell in cells if cell not in values)
    order = tuple(sorted(values, key=lambda cell: (values[cell], cell)))
    whole = all(value.is_integer() for value in values.values())
    different = len(set(values.values())) + len(odd)
    if whole and different == len(cells) <= FEW and column.present >= OFTEN * different:
        return replace(column, kind="category", order=(*order, *odd))
    said = ["decimal comma"] * (decimal == ",")
    if odd:
        shown = ", ".join(map(repr, odd[:3])) + (", ..." if len(odd) > 3 else "")
        count = sum(cells[cell] for cell in odd)
        odd = many(count, "cell that is no number", "cells that are no numbers")
        said.append(f"{odd} ({shown}) {'is' if count == 1 else 'are'} read as missing")
    present = sum(cells[cell] for cell in values)
    column = replace(column, kind="number", present=present, distinct=len(values), values=values)
    column = replace(column, order=order, note="; ".join(said))
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
        present = {cell for cell in table.column(column.name) if not missing(cell)}
        whole = present <= set(column.order)
        order = column.order if whole else tuple(sorted(present))
        return replace(column, kind="category", order=order, values={}, out="", note="", merges=0)
    if wish == "keep" and column.kind in ("id", "text"):
        column = replace(column, kind="number" if column.values else "category", out="")
    elif wish == "keep" and column.kind == "date":
        column = replace(column, out="", note="days since 1970-01-01")
    if column.merges and not column.out:
        if column.distinct <= _MANY_TEXTS * column.present:
            text = "whole numbers that float32 cannot tell apart are coded"
            return replace(column, kind="category", note=text)
        raise DataError(
            f"column {column.name!r} has {column.merges} whole numbers that are equal to another "
            f"as float32 (it is exact up to {_EXACT:,}); drop it, or declare it categorical"
        )
    return column


def values_of(table: TextTable, column: Column) -> NDArray[np.float64]:
    """Return the values of a column, float64, shape (n,): codes, numbers or days; NaN: missing."""
    cells = table.column(column.name)
    if column.categorical:
        codes = {name: float(k) for k, name in enumerate(column.order)}
        known = {**codes, **{cell: codes[name] for cell, name in column.merged.items()}}
    else:
        known = dict(column.values)
    return np.array([known.get(cell, math.nan) for cell in cells])
