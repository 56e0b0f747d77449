"""Convert the cells of a user's table to a single notation, before anything is inferred from them.

After this step, every number has a decimal point, no groups of digits, no unit and no Unicode minus
sign. Every missing cell is empty, and all text is in Unicode form NFC. A column whose numbers can
be read in two ways is not changed, and gets a `Problem` in `TextTable.doubts`. The loaders raise it
if the column is used.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from fedtrees.core.errors import Problem
from fedtrees.data.cells import MISSING, MOSTLY, number, plain, plain_number, split_unit

if TYPE_CHECKING:
    from fedtrees.data.csv_file import TextTable

_POINT, _COMMA = ".", ","
#: Marks that may be values in a column of text, for example the class ``none``, the country code NA
#: or the blood group ``-``.
POSSIBLE_VALUES = frozenset({"none", "na", "-", "--"})


@dataclass(frozen=True)
class _Spelling:
    """The notation of the numbers of one column."""

    numbers: Mapping[str, str]  # cell -> number without its unit
    units: Counter[str]  # rows of numbers per unit; the empty unit included
    present: int  # rows with a cell that is not missing
    # For each decimal mark, the number of rows whose number can only be read with this mark.
    votes: Mapping[str, int]
    doubtful: str  # a cell whose number depends on the decimal mark; empty if there is none
    plain: bool = False  # whether Python reads every present cell as a number

    @property
    def decimal(self) -> str:
        """The decimal mark that the column shows, empty if it shows none."""
        shown = [mark for mark in (_POINT, _COMMA) if self._is_numeric(mark)]
        shown = [mark for mark in shown if self.votes[mark]]
        if len(shown) == 2:
            counts = [self.votes[mark] for mark in shown]
            return "" if counts[0] == counts[1] else shown[counts.index(max(counts))]
        return shown[0] if shown else ""

    @property
    def numeric(self) -> bool:
        """Whether most cells are numbers with at least one of the decimal marks."""
        return self._is_numeric(_POINT) or self._is_numeric(_COMMA) or self.mixed

    @property
    def mixed(self) -> bool:
        """Whether the cells are numbers, but with decimal points and commas in equal shares."""
        both = min(self.votes.values()) > 0 and self.units.total() >= MOSTLY * self.present
        return both and not self.decimal

    def _is_numeric(self, mark: str) -> bool:
        """Return whether the share of numbers with this decimal mark is at least `MOSTLY`."""
        other = _COMMA if mark == _POINT else _POINT
        rows = self.units.total() - self.votes[other]
        return 0 < MOSTLY * self.present <= rows


def composed(text: str) -> str:
    """Return a text in Unicode form NFC, in which equal letters have equal codes."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def with_composed_cells(table: TextTable) -> TextTable:
    """Return the table with all cells in Unicode form NFC, and with a note on changed columns."""
    columns = tuple(map(composed, table.columns))
    changed = [n for n, a, b in zip(table.names, table.columns, columns, strict=True) if a != b]
    if not changed:
        return table
    note = f"cells in another Unicode form than NFC were converted to it: {', '.join(changed)}"
    return replace(table, columns=columns, notes=(*table.notes, note))


def with_plain_numbers(table: TextTable) -> TextTable:
    """Return the table with all numbers in Python's notation.

    The decimal mark is decided once per file. A column shows its mark if some of its cells can be
    read in only one way. For example, ``0.637`` and ``12.5`` have a decimal point, ``1.234.567``
    and ``1.234,5`` a decimal comma. A column that shows none, for example one of ``1.234`` and
    ``2.345``, takes the mark of the remaining columns, with one exception: a point counts as a
    separator of thousands only if the column itself shows it. `Reading.decimal` decides all columns
    that show no mark.
    """
    spellings, numeric = {}, set[str]()
    for name in table.names:
        if name in table.typed:
            continue
        cells = _present(table, name)
        spelling = _spelling(cells)
        if spelling.numeric:
            spellings[name] = spelling
        if spelling.plain and spelling.present == len(table):
            numeric.add(name)
    shown = {spelling.decimal for spelling in spellings.values()} - {""}
    of_file = next(iter(shown)) if len(shown) == 1 else ""
    if not shown and table.separator == "," and not table.typed_format:
        of_file = _POINT  # a comma cannot be the separator and the decimal mark
    table = replace(table, numeric=frozenset(numeric))
    for name, spelling in spellings.items():
        table = _with_numbers(table, name, spelling, of_file)
    return table


def _with_numbers(table: TextTable, name: str, spelling: _Spelling, of_file: str) -> TextTable:
    """Return the table with the numbers of one column in plain form, or with its problem."""
    doubt = _mixed_marks(name) if spelling.mixed else _mixed_units(name, spelling)
    if doubt is not None:
        return replace(table, doubts={**table.doubts, name: doubt})
    decimal = spelling.decimal or table.reading.decimal
    remark = ""
    if not decimal and spelling.doubtful:
        separates_thousands = "," in spelling.doubtful and of_file == _POINT
        if of_file and (of_file in spelling.doubtful or separates_thousands):
            decimal = of_file
        else:
            doubt = _two_readings(name, spelling.doubtful, of_file)
            return replace(table, doubts={**table.doubts, name: doubt})
        if separates_thousands:
            read = plain_number(spelling.numbers[spelling.doubtful], decimal)
            remark = f"{spelling.doubtful!r} is read as {read}: the file has decimal points"
    decimal = decimal or of_file or _POINT
    if spelling.plain and decimal == _POINT:
        return table
    written = {
        cell: text
        for cell, core in spelling.numbers.items()
        if (text := plain_number(core, decimal)) is not None
    }
    remarks = [remark] if remark else []
    units = sorted(filter(None, spelling.units))
    odd = next((c for c in written if (units and units[0] in c) or (not units and "(" in c)), "")
    if odd:
        remarks.append(f"{odd!r} is read as {written[odd]}")
    if decimal == _COMMA and any("," in cell for cell in written):
        table = replace(table, commas=table.commas | {name})
    if remarks:
        table = replace(table, remarks={**table.remarks, name: "; ".join(remarks)})
    changes = {cell: text for cell, text in written.items() if cell != text}
    return table.mapped(name, changes) if changes else table


def _mixed_marks(name: str) -> Problem:
    """Return the problem of a column with two decimal marks."""
    text = f"column {name!r} has numbers with decimal points and with decimal commas; use one mark"
    return Problem(text, "drop", name)


def _mixed_units(name: str, spelling: _Spelling) -> Problem | None:
    """Return the problem of a column whose numbers have several units, None if they have one."""
    units = {unit for unit in spelling.units if unit}
    scales = spelling.units.keys() if units & {"%", "‰"} else units
    if len(scales) < 2:
        return None
    shown = ", ".join(repr(unit) if unit else "none" for unit in sorted(scales))
    text = f"column {name!r} has numbers with several units ({shown}); convert them to one unit"
    return Problem(text, "drop", name)


def _two_readings(name: str, cell: str, of_file: str) -> Problem:
    """Return the problem of a column whose cells can mean two numbers."""
    core = (split_unit(cell) or ("", cell))[1]
    point, comma = (plain_number(core, mark) for mark in (_POINT, _COMMA))
    text = (
        f"column {name!r}: {cell!r} may mean {point} (decimal point) or {comma} (decimal comma), "
        "and no cell of the column decides it; give --decimal . or --decimal ,"
    )
    return Problem(text, "decimal", of_file or ("." if "." in cell else ","))


def _present(table: TextTable, name: str) -> Counter[str]:
    """Return how often each cell of a column occurs, without marks of missing cells."""
    cells = Counter(table.column(name))
    marks = {composed(mark).casefold() for mark in table.reading.missing or ()} | MISSING
    longest = max(map(len, marks))
    for cell in [c for c in cells if len(c) <= longest and c.casefold() in marks]:
        del cells[cell]
    return cells


def _spelling(cells: Mapping[str, int]) -> _Spelling:
    """Return the notation of the numbers among the cells of a column."""
    present = sum(cells.values())
    if cells and plain(cells) is not None:
        return _python_numbers(cells, present)
    numbers: dict[str, str] = {}
    units: Counter[str] = Counter()
    votes = {_POINT: 0, _COMMA: 0}
    doubtful = ""
    for cell, count in cells.items():
        parted = split_unit(cell)
        if parted is None:
            continue
        unit, core = parted
        point, comma = number(core, _POINT), number(core, _COMMA)
        if point is None and comma is None:
            continue
        numbers[cell] = core
        units[unit] += count
        if point is None or comma is None:
            votes[_COMMA if point is None else _POINT] += count
        elif point != comma:
            doubtful = doubtful or cell
    return _Spelling(MappingProxyType(numbers), units, present, votes, doubtful)


def _python_numbers(cells: Mapping[str, int], present: int) -> _Spelling:
    """Return the notation of a column of which Python reads every cell.

    This takes a tenth of the time of the general case.
    """
    pointed = [cell for cell in cells if "." in cell]
    shown = any(number(cell, _COMMA) is None for cell in pointed)
    votes = {_POINT: int(shown), _COMMA: 0}
    doubtful = "" if shown or not pointed else pointed[0]
    numbers = dict(zip(cells, cells, strict=True))
    return _Spelling(numbers, Counter({"": present}), present, votes, doubtful, plain=True)


def with_empty_cells(
    table: TextTable, values: Mapping[str, Collection[str]] = MappingProxyType({})
) -> TextTable:
    """Return the table in which every missing cell is empty.

    Cells of text files are missing if they are empty or in `cells.MISSING`. In typed formats
    (.xlsx, .parquet), text is a value, even the text ``None``. `Reading.missing` replaces both
    rules. Without it, a mark of `POSSIBLE_VALUES` remains a value in a column of text that would
    otherwise be constant, unless a numeric column has the same mark. For example, no cell is
    missing in a column of ``+`` and ``-``. `TextTable.marks` counts the cells that became empty,
    and `TextTable.kept_marks` lists the marks that remained.

    `values` contains the declared categories by column. A mark among them is a value.
    """
    declared_marks = table.reading.missing
    default = frozenset({""}) if table.typed_format else MISSING
    marks = (
        default
        if declared_marks is None
        else {composed(m).strip().casefold() for m in declared_marks} | {""}
    )
    hits: dict[str, dict[str, int]] = {}
    constant, of_numbers = list[str](), set[str]()
    longest = max(map(len, marks))
    for name in table.names:
        if name in table.numeric and declared_marks is None:
            hits[name] = {}
            continue
        cells, declared = Counter(table.column(name)), values.get(name, ())
        del cells[""]
        hits[name] = {
            cell: count
            for cell, count in cells.items()
            if len(cell) <= longest and cell.casefold() in marks and cell not in declared
        }
        if not hits[name]:
            continue
        rest = {cell: count for cell, count in cells.items() if cell not in hits[name]}
        read = sum(count for cell, count in rest.items() if number(cell) is not None)
        if 0 < MOSTLY * sum(rest.values()) <= read:
            of_numbers |= hits[name].keys()
        elif declared_marks is None and len({cell.casefold() for cell in rest}) == 1:
            constant.append(name)
    for name in constant:
        words = {w for w in hits[name] if w.casefold() in POSSIBLE_VALUES} - of_numbers
        hits[name] = {cell: count for cell, count in hits[name].items() if cell not in words}
        if words:
            remaining = tuple(sorted(words))
            table = replace(table, kept_marks={**table.kept_marks, name: remaining})
    for name in filter(hits.__getitem__, table.names):
        table = table.mapped(name, dict.fromkeys(hits[name], ""))
        table = replace(table, marks={**table.marks, name: dict(sorted(hits[name].items()))})
    return table
