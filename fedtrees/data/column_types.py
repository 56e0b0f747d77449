"""Infer the kind of every column of a table: numbers, categories, dates, ids, or free text.

The kinds are inferred from the complete table, including test rows. They count as declared
knowledge: the parties agree on them before they train, and blind adversaries know them (`Feature`).

The module also detects columns that seem to contain personal data, in order to warn before a run.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, many
from fedtrees.data.cells import (
    MOSTLY,
    assumptions_of_dates,
    categories_of,
    codes_of_cells,
    dates,
    numbers,
    plain,
    with_leading_zeros,
    yes_and_no,
)
from fedtrees.data.csv_file import TextTable

# Complete words of a column name in English, German, French, Italian and Spanish, by kind.
_WORDS = {
    "name": "name surname lastname firstname forename nachname vorname familienname nom prenom "
            "prénom nome cognome nombre apellido",
    "address": "address street adresse strasse straße str hausnummer rue indirizzo via direccion "
               "dirección calle",
    "postal code": "zip zipcode postcode postal plz postleitzahl cap cp",
    "e-mail": "email mail e-mail correo",
    "telephone": "phone telephone tel mobile telefon handy telefono teléfono",
    "birth date": "birth birthdate birthday dob geburtsdatum geburtstag geboren naissance nascita "
                  "nacimiento",
    "identifier": "ssn passport insurance versichertennummer sozialversicherungsnummer ahv iban "
                  "mrn patientid patientennummer patient_id steuernummer",
}  # fmt: skip
_KINDS = {word: kind for kind, words in _WORDS.items() for word in words.split()}
# Words of a column name that names the client of each row, in the same languages.
_CLIENT_WORDS = (
    "hospital clinic site center centre institution branch client krankenhaus klinik klinikum "
    "standort zentrum filiale hopital hôpital clinique etablissement établissement ospedale "
    "clinica clínica sede centro"
)
_ADDITIONS = "id name code no nr number"  # words that such a name can contain as well
_MOST_CLIENTS = 100  # a column with more values is not assumed to name clients
_E_MAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[a-zA-Z]{2,}$")
LOOKED_AT = 50  # number of cells that are inspected


def kind_of(name: str, cells: Iterable[str] = ()) -> str:
    """Return the kind of personal data that a column seems to contain, empty if there is none.

    `cells` are some of its cells. E-mail addresses are recognised by their form.
    """
    words = _words(name)
    for text in (*words, "".join(words), "_".join(words)):
        if text in _KINDS:
            return _KINDS[text]
    shown = [cell for cell, _ in zip(cells, range(LOOKED_AT), strict=False) if cell]
    if shown and all(_E_MAIL.match(cell) for cell in shown):
        return "e-mail"
    return ""


def _words(name: str) -> list[str]:
    """Split a column name into its words, in lower case."""
    spaced = re.sub(r"(?<=[a-zà-ÿ])(?=[A-Z])", " ", name)
    return [w for w in re.split(r"[^0-9a-zA-ZÀ-ÿß]+", spaced.lower()) if w]


def names_clients(name: str, categories: int) -> bool:
    """Return whether a column of categories seems to name the client of each row.

    Its name has to be a word for a site, for example ``hospital``, alone or with a word such as
    ``id``. A name with further words, for example ``hospital_days``, is not recognised.
    """
    words = {*_words(name)}.difference(_ADDITIONS.split())
    known = words.issubset(_CLIENT_WORDS.split())
    return 1 < categories <= _MOST_CLIENTS and len(words) == 1 and known


Kind = Literal["number", "category", "yes/no", "date", "id", "text", "empty"]

#: A column of integers becomes categorical if it has at most `FEW` different values, and each of
#: them occurs in `OFTEN` rows on average. Examples are codes, grades and small counts.
FEW = 10
OFTEN = 10
#: Smallest number of present cells from which a column can be called nearly unique.
LEAST = 20
#: Share of different cells above which text is not a category (under two rows per text on average).
_MANY_TEXTS = 0.5
#: Share of different cells from which a column is an id if its name or its digits also suggest it.
_NEAR_UNIQUE = 0.9
#: Nearly unique integers with at least this many digits are ids.
_LONG = 10
# Integers that never repeat are ids if at least this many equal pairs would be expected by chance.
# For independent random numbers, this happens about once in 150 tables (exp(-5)).
_EXPECTED_PAIRS = 5.0
_ID_NAME = re.compile(
    r"(?i)(^|[^a-z])(id|uuid|guid|key|nr|no|number|index|code)$|[a-z](Id|ID|Nr|No)$"
)
_EXACT = 2**24  # float32 represents every integer up to this one


@dataclass(frozen=True)
class Column:
    """The inferred kind of one column."""

    name: str
    # ``number``, ``category``, ``yes/no``, ``date``, ``id``, ``text`` (free text) or ``empty``
    kind: Kind
    rows: int  # number of rows
    present: int  # number of cells that are not missing
    distinct: int  # number of different values among the present cells
    # How cells become numbers: ``number``, or ``date`` (days since 1970-01-01). Empty: not at all.
    reads: str = ""
    # Names of the categories in the order of their codes.
    order: tuple[str, ...] = field(default=(), repr=False)
    out: str = ""  # why the column is left out unless it is declared; empty: it is used
    note: str = ""  # note for readers of results
    merges: int = 0  # how many different integers become equal as float32

    @property
    def categorical(self) -> bool:
        """Whether the values are codes of categories."""
        return self.kind in ("category", "yes/no")

    @property
    def near_unique(self) -> bool:
        """Whether at least `_NEAR_UNIQUE` of the present cells are different."""
        return self.present >= LEAST and self.distinct >= _NEAR_UNIQUE * self.present


def columns_of(table: TextTable) -> tuple[Column, ...]:
    """Return the inferred kind of every column of a table."""
    return tuple(_column(table, name) for name in table.names)


def _count_cells(table: TextTable, name: str) -> dict[str, int]:
    """Return how often each present cell of a column occurs."""
    cells = Counter(table.column(name))
    del cells[""]
    return cells


def _column(table: TextTable, name: str) -> Column:
    """Infer the kind of one column."""
    cells = _count_cells(table, name)
    column = Column(name, "text", len(table), sum(cells.values()), len(cells))
    values = numbers(cells)
    numeric = 0 < MOSTLY * column.present <= sum(cells[cell] for cell in values)
    if not cells:
        column = replace(column, kind="empty", out="no values")
    elif dates(cells) is not None and (len(cells) > 2 or not numeric):
        column = replace(column, kind="date", reads="date", out="dates")
    elif numeric and not with_leading_zeros(cells):
        column = _numeric(table, column, cells, values)
    else:
        column = _texts(table, column, cells)
        if numeric:
            column = _add_note(column, "codes with leading zeros, not numbers")
    return _add_note(column, table.remarks.get(name, ""))


def _add_note(column: Column, note: str) -> Column:
    """Return the column with one more note, if the note is not empty."""
    return replace(column, note="; ".join(filter(None, [column.note, note])))


def _odd(table: TextTable, name: str, cells: Mapping[str, int], odd: Collection[str]) -> str:
    """Return a text on the cells of a column that are not numbers, with the first line."""
    at = next(i for i, cell in enumerate(table.column(name)) if cell in odd)
    shown = ", ".join(map(repr, sorted(odd)[:3])) + (", ..." if len(odd) > 3 else "")
    lost = sum(cells[cell] for cell in odd)
    text = many(lost, "cell that is no number", "cells that are no numbers")
    return f"{text} ({shown}; {'first at ' if lost > 1 else ''}line {table.lines[at]})"


def _texts(table: TextTable, column: Column, cells: Mapping[str, int]) -> Column:
    """Return the kind of a column that is not numeric: yes/no, category, id or free text."""
    if pair := yes_and_no(cells):
        order, merged = pair
        column = replace(column, kind="yes/no", distinct=2, order=order)
        other = sorted(cell for cell in merged if cell.casefold() != merged[cell].casefold())
        if not other:
            return column
        shown = ", ".join(f"{cell!r} as {merged[cell]!r}" for cell in other)
        return _add_note(column, f"one spelling of yes and no: {shown}")
    categories, _ = categories_of(cells)
    column = replace(column, distinct=len(categories))
    if column.present < LEAST or len(categories) <= _MANY_TEXTS * column.present:
        read, note = numbers(cells), ""
        if 2 * sum(cells[cell] for cell in read) >= column.present and len(read) < len(cells):
            odd = _odd(table, column.name, cells, cells.keys() - read.keys())
            note = f"read as categories, because of {odd}; --missing can declare them as missing"
        return replace(column, kind="category", order=categories, note=note)
    if column.near_unique and not any(" " in cell for cell in cells):
        return replace(column, kind="id", out="near-unique names")
    return replace(column, out="free text")


def _numeric(
    table: TextTable, column: Column, cells: Mapping[str, int], values: Mapping[str, float]
) -> Column:
    """Return the kind of a numeric column: category, number or id."""
    odd = sorted(cells.keys() - values.keys()) if len(values) < len(cells) else []
    text = _odd(table, column.name, cells, odd) if odd else ""
    integral = all(value.is_integer() for value in values.values())
    distinct = len(set(values.values()))
    if integral and distinct + len(odd) <= FEW:
        order, _ = categories_of(cells)
        if len(order) <= FEW and column.present >= OFTEN * len(order):
            note = f"codes, and {text}" if odd else ""
            column = replace(column, distinct=len(order), order=order)
            return replace(column, kind="category", note=note)
    lost = sum(cells[cell] for cell in odd)
    note = f"{text} {'is' if lost == 1 else 'are'} read as missing" if odd else ""
    present = column.present - lost
    column = replace(column, kind="number", present=present, distinct=distinct, reads="number")
    column = _add_note(replace(column, note=note), _zeros(values))
    if not integral:
        return column
    why = _id(column, values, present)
    if why:
        column = replace(column, kind="id", out=why)
    return replace(column, merges=_merges(values))


def _zeros(values: Mapping[str, float]) -> str:
    """Return a note on integers that are written with leading zeros, empty if there are none."""
    zero = next(
        (cell for cell in values if cell[0] == "0" and cell.isdigit() and len(cell) > 1), ""
    )
    return f"{zero!r} is read as the number {int(zero)}" if zero else ""


def _id(column: Column, values: Mapping[str, float], present: int) -> str:
    """Return why a column of integers is a column of ids, empty if it is not."""
    n, distinct = present, len(values)
    if n < LEAST or distinct < _NEAR_UNIQUE * n:
        return ""
    if _ID_NAME.search(column.name):
        return "near-unique, and its name contains id"
    if max(len(cell.lstrip("+-0").partition(".")[0]) for cell in values) >= _LONG:
        return "near-unique long numbers"
    span = max(values.values()) - min(values.values()) + 1
    if distinct == n and n * (n - 1) / 2 / span >= _EXPECTED_PAIRS:
        return "numbers that never repeat"
    return ""


def _merges(values: Mapping[str, float]) -> int:
    """Return how many different integers become equal to another one as float32."""
    if max(map(abs, values.values())) <= _EXACT:
        return 0
    exact = {_digits(cell, value) for cell, value in values.items()}
    with np.errstate(over="ignore"):
        narrow = np.unique(np.array(list(values.values())).astype(np.float32))
    return len(exact) - len(narrow)


def _digits(cell: str, value: float) -> int:
    """Return an integer as written in the file, because a float would round its 17th digit."""
    plain = (
        re.sub(r"[^\d+-]", "", cell) if abs(value) >= 2**53 and cell.strip("+-").isdigit() else ""
    )
    return int(plain or value)


def reading(table: TextTable, column: Column, wish: str = "") -> Column:
    """Return a column in the form in which it is used.

    Parameters
    ----------
    table : TextTable
        The table.
    column : Column
        The inferred kind.
    wish : str
        ``keep`` uses a column that looks unusable, and ``category`` makes it categorical. By
        default, the inferred kind is used.

    Returns
    -------
    column : Column

    Raises
    ------
    DataError
        If integers become equal as float32 and are too many to be coded as categories.
    """
    if wish == "category":
        column = _as_category(table, column)
        return replace(column, reads="", out="", merges=0, note=table.remarks.get(column.name, ""))
    if wish == "keep" and column.kind in ("id", "text"):
        if column.reads:
            column = replace(column, kind="number", out="")
        else:
            column = replace(_as_category(table, column), out="")
    elif wish == "keep" and column.kind == "date":
        assumed = assumptions_of_dates(_count_cells(table, column.name))
        column = replace(column, out="", note="")
        column = _add_note(_add_note(column, "days since 1970-01-01"), assumed)
    if column.merges and not column.out:
        if column.distinct <= _MANY_TEXTS * column.present:
            text = "whole numbers that float32 cannot distinguish are encoded"
            return replace(_as_category(table, column), note=text)
        raise DataError(
            f"column {column.name!r} has {column.merges} whole numbers that are equal to another "
            f"as float32 (it is exact up to {_EXACT:,}); drop it, or declare it categorical"
        )
    return column


def _as_category(table: TextTable, column: Column) -> Column:
    """Return a column as categories."""
    order, _ = categories_of(_count_cells(table, column.name))
    return replace(column, kind="category", order=order, distinct=len(order))


def values_of(table: TextTable, column: Column) -> NDArray[np.float64]:
    """Return the values of a column: codes, numbers or days, float64, shape (n,).

    Missing values are NaN.
    """
    cells = table.column(column.name)
    complete = (
        column.kind == "number" and column.reads == "number" and column.present == column.rows
    )
    if complete and (values := plain(cells)) is not None:
        return np.array(values)
    codes: Mapping[str, float] = {}
    if column.categorical:
        codes = codes_of_cells(set(cells) - {""}, column.order)
    elif column.reads == "date":
        codes = dates(_count_cells(table, column.name)) or {}
    elif column.reads:
        codes = numbers(_count_cells(table, column.name))
    return np.fromiter((codes.get(cell, math.nan) for cell in cells), np.float64, len(cells))
