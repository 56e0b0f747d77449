"""Read a CSV file as text: infer its encoding, separator and header, and check its lines."""

from __future__ import annotations

import codecs
import csv
import io
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TextIO

from fedtrees.core.counts import many
from fedtrees.core.errors import DataError, Problem, Problems, UsageError, did_you_mean
from fedtrees.core.formats import no_local_file, unreadable
from fedtrees.data.cells import dates, missing, number
from fedtrees.data.cleaning import (
    composed,
    with_composed_cells,
    with_empty_cells,
    with_plain_numbers,
)

#: Lines of another width than the header's are left out up to this share of all; more of them
#: mean that the file is not what it is taken for.
MOST_RAGGED = 0.05
# In this order where two suit equally well; the space last, which stands inside cells.
_SEPARATORS = (";", "\t", "|", ",", " ")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_MARK = codecs.BOM_UTF8.decode("cp1252")
_SAMPLE = 1 << 16  # characters looked at for the separator
_HEAD = 201  # records looked at for the header
_BLOCK = 10_000  # records held as cells at a time
_BETWEEN = "\0"  # no file of text has it


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read a table where the file itself leaves it open.

    Raises `UsageError` if the decimal mark is neither a point nor a comma.
    """

    separator: str = ""  # one character; empty: inferred from the lines
    decimal: str = ""  # point or comma, for columns that do not show theirs; empty: refuse these
    # marks of missing cells besides empty ones; None: those of `with_empty_cells`
    missing: tuple[str, ...] | None = None
    sheet: str = ""  # name or number (from 1) of a workbook's sheet; empty: the only one

    def __post_init__(self) -> None:
        if self.decimal not in ("", ".", ","):
            raise UsageError(f"decimal {self.decimal!r}: give a point or a comma")


#: Nothing is declared about a file.
UNDECLARED = Reading()


@dataclass(frozen=True)
class TextTable:
    """A table as text, cleaned by `fedtrees.data.cleaning`.

    A column is one string (`cells_as_text`): a string per cell would take ten times the memory of
    the file.
    """

    path: Path
    names: tuple[str, ...]  # header
    columns: tuple[str, ...]  # cells, stripped of surrounding spaces
    lines: Sequence[int]  # number in the file (from 1) of the last line of each row
    separator: str = ","
    notes: tuple[str, ...] = ()  # unusual properties of the file
    reading: Reading = UNDECLARED
    twice: frozenset[str] = frozenset()  # names that several columns have in the file
    typed_format: bool = False  # whether the format distinguishes text from missing cells
    typed: frozenset[str] = frozenset()  # columns whose numbers are no text in the file
    numeric: frozenset[str] = frozenset()  # columns of which Python reads every cell as a number
    commas: frozenset[str] = frozenset()  # columns that were written with a decimal comma
    # by column: how unusual numbers were read; why its numbers cannot be read
    remarks: Mapping[str, str] = field(default_factory=dict)
    doubts: Mapping[str, Problem] = field(default_factory=dict)
    # by column: how often each mark of a missing cell occurred; marks that are values
    marks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    kept_marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.lines)

    def column(self, name: str) -> list[str]:
        """Return the cells of one column.

        Raises `DataError` if the file has no such column.
        """
        if name not in self._at:
            raise DataError(f"{self.path}: no column {name!r}{did_you_mean(name, self.names)}")
        return self.columns[self._at[name]].split(_BETWEEN)

    @cached_property
    def _at(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def mapped(self, name: str, cells: Mapping[str, str]) -> TextTable:
        """Return the table with some cells of a column replaced; raises as `column`."""
        text = cells_as_text(cells.get(cell, cell) for cell in self.column(name))
        k = self._at[name]
        return replace(self, columns=(*self.columns[:k], text, *self.columns[k + 1 :]))

    def renamed(self, names: Mapping[str, str]) -> TextTable:
        """Return the table with other names of some columns."""
        doubts = {names.get(name, name): doubt for name, doubt in self.doubts.items()}
        return replace(self, names=tuple(names.get(n, n) for n in self.names), doubts=doubts)

    def check_readable(self, name: str) -> None:
        """Raise `Problems` if the numbers of a column can be read in two ways."""
        if name in self.doubts:
            raise Problems(str(self.path), [self.doubts[name]])


def cells_as_text(cells: Iterable[str]) -> str:
    """Return the cells of a column as `TextTable` keeps them."""
    return _BETWEEN.join(cells)


@dataclass
class _Records:
    """The records of a file that are so many cells wide."""

    width: int
    lines: array[int] = field(default_factory=partial(array, "q"))
    texts: list[list[str]] = field(default_factory=list)  # of every block, of every column
    block: list[list[str]] = field(default_factory=list)

    def add(self, line: int, row: list[str]) -> None:
        self.lines.append(line)
        self.block.append(row)
        if len(self.block) == _BLOCK:
            self.close()

    def close(self) -> None:
        """Convert the records of the last block to text."""
        if self.block:
            self.texts.append([_stripped(cells) for cells in zip(*self.block, strict=True)])
        self.block = []

    def columns(self) -> tuple[str, ...]:
        """Return the text of every column, and free the blocks."""
        found = []
        for k in range(self.width):
            found.append(_BETWEEN.join(block[k] for block in self.texts))
            for block in self.texts:
                block[k] = ""
        return tuple(found)


def _stripped(cells: Sequence[str]) -> str:
    text = _BETWEEN.join(cells)
    if text.split(None, 1) == [text]:  # no spaces, mostly
        return text
    return _BETWEEN.join(cell.strip() for cell in cells)


def read_csv(
    path: str | Path, reading: Reading = UNDECLARED, named: Sequence[str] = ()
) -> TextTable:
    """Read a text table with plain numbers and empty missing cells.

    Raises `DataError` as `read_text`.

    Parameters
    ----------
    path : str or Path
    reading : Reading
        The separator, the decimal mark and the marks of missing cells, as far as they are declared.
    named : sequence of str
        Columns that exist: a first line that contains one of them is a header.
    """
    return with_empty_cells(with_plain_numbers(read_text(path, reading, named)))


def read_text(path: str | Path, reading: Reading, named: Sequence[str] = ()) -> TextTable:
    """Read the cells of a text file: UTF-8, UTF-16 with a byte order mark, or Windows-1252.

    Columns without a name get one (``column3``), and so do all columns if the first line contains
    data. Of two columns with one name, the second becomes ``name.2``. Without a declared separator,
    the one of commas, semicolons, tabs, bars and spaces is taken that makes lines equally wide.

    Raises `DataError` if the file is missing, unreadable, empty, not text, or ends in the middle of
    a quoted cell; if it has no rows, or more than `MOST_RAGGED` of them are of another width than
    the header.
    """
    path, given = Path(path), reading.separator
    separator = given
    encoding, notes = _encoding(path)
    errors = "replace" if encoding == "cp1252" else "strict"
    with path.open(encoding=encoding, errors=errors, newline="") as file:
        # Some programs put the mark of UTF-8 before what is none.
        start = file.seek(0) if encoding != "cp1252" or file.read(3) != _MARK else file.tell()
        file.seek(start)
        hint = file.readline(7)  # of spreadsheets: sep=;
        begins = file.tell()
        if hint[:4].lower() != "sep=" or len(hint.rstrip("\r\n")) != 5:
            hint, begins = "", file.seek(start)
        sample = file.read(_SAMPLE + 1)
        file.seek(begins)
        separator = separator or hint[4:5] or _sniffed(sample)
        if separator != ",":
            notes.append(f"separated by {_NAMES.get(separator, repr(separator))}")
        head, records = _read(path, file, separator)
    if not head:
        raise DataError(f"{path}: the file is empty; it needs a header line and rows")
    width = max(records.values(), key=lambda r: len(r.lines)).width if records else len(head[0][1])
    names, first = header([row for _, row in head], width, named, notes)
    twice = twice_named(head[0][1]) if first else frozenset()
    try:
        table = _in_step(path, separator, names, head[:1] if not first else [], records, notes)
        return with_composed_cells(replace(table, reading=reading, twice=twice))
    except Problems as error:
        better = _sniffed(sample)
        if not given or better == given:
            raise
        named_so = {"\t": "tab", " ": "space"}.get(better, better)
        fixes = [replace(found, option="sep", value=named_so) for found in error.found]
        raise Problems(str(path), fixes) from None


def _read(
    path: Path, file: TextIO, separator: str
) -> tuple[list[tuple[int, list[str]]], dict[int, _Records]]:
    """Return the first records with their lines, and all but the very first one by width."""
    reader = csv.reader(file, delimiter=separator, strict=True, skipinitialspace=True)
    head: list[tuple[int, list[str]]] = []
    records: dict[int, _Records] = {}
    try:
        for row in filter(None, reader):
            if len(head) < _HEAD:
                head.append((reader.line_num, [cell.strip() for cell in row]))
                if len(head) == 1:
                    continue
            width = len(row)
            if width not in records:
                records[width] = _Records(width)
            records[width].add(reader.line_num, row)
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; a quote that is opened must be closed"
        ) from None
    for same in records.values():
        same.close()
    return head, records


def _encoding(path: Path) -> tuple[str, list[str]]:
    """Return the encoding of a file of text, and its name where that is unusual."""
    try:
        with path.open("rb") as raw:
            head = raw.read(16)
        if reason := unreadable(head, "save the table as CSV"):
            raise DataError(f"{path} {reason}")
        wide = head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding, notes = ("utf-16", ["UTF-16"]) if wide else ("utf-8-sig", [])
        try:
            with path.open(encoding=encoding, newline="") as file:
                nul = any("\0" in text for text in iter(partial(file.read, 1 << 20), ""))
        except UnicodeDecodeError:
            # Latin-1 with printable characters in place of control codes; five bytes have none.
            encoding, notes = "cp1252", ["Windows-1252 (not UTF-8)"]
            with path.open("rb") as raw:
                nul = any(b"\0" in block for block in iter(partial(raw.read, 1 << 20), b""))
    except FileNotFoundError:
        raise DataError(f"{path}: {no_local_file(str(path)) or 'no such file'}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if nul:
        raise DataError(f"{path}: contains NUL bytes; this is not a CSV file")
    return encoding, notes


def _sniffed(text: str) -> str:
    """Return the separator that makes most lines as wide as the first one."""
    best, found = (0, 0.0), ","
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    for separator in _SEPARATORS:
        if separator == " " and best[0] > 1:
            break
        reader = csv.reader(
            io.StringIO(sample, newline=""), delimiter=separator, skipinitialspace=True
        )
        try:
            widths = [len(row) for row in islice(reader, 500) if row]
        except csv.Error:
            continue
        if not widths or widths[0] < 2:
            continue
        same = sum(w == widths[0] for w in widths) / len(widths)
        score = (widths[0] if same >= 1 - MOST_RAGGED else 1, same)
        if score > best:
            best, found = score, separator
    return found


def header(
    found: Sequence[list[str]], width: int, named: Sequence[str], notes: list[str]
) -> tuple[list[str], int]:
    """Return a name per column, and the record that the rows begin with.

    `found`: The first records. `width`: The number of columns. `named`: Columns that exist.
    `notes`: Unusual properties of the header are appended.
    """
    first = found[0]
    if not set(named) & set(map(plain_name, first)) and _is_data(found[:200]):
        notes.append("no header line: columns are called column1, column2, ...")
        return [f"column{k + 1}" for k in range(width)], 0
    rest = found[1:201]
    if rest and len(first) == width - 1:
        if all(not row[-1] for row in rest if len(row) == width):
            first = [*first, ""]  # every line ends with a separator, the header does not
        else:
            first = ["", *first]  # names of rows, as R writes them
    return unique_names(first, notes), 1


def plain_name(name: str) -> str:
    """Return a column name without surrounding and doubled white space, in Unicode form NFC."""
    return " ".join(composed(name).split())


def twice_named(first: Sequence[str]) -> frozenset[str]:
    """Return the names that several columns of a header have."""
    return frozenset(n for n, count in Counter(map(plain_name, first)).items() if n and count > 1)


def unique_names(first: Sequence[str], notes: list[str]) -> list[str]:
    """Return one plain name per column; `notes` gets the names that several columns have."""
    names: list[str] = []
    taken: set[str] = set()
    alike: Counter[str] = Counter()  # names, each with those that are it and a number
    for k, name in enumerate(first):
        name = plain_name(name) or f"column{k + 1}"
        if name in taken:
            copies = 1 + alike[name]
            while f"{name}.{copies}" in taken:
                copies += 1
            notes.append(f"two columns are called {name!r}: the later one is {name}.{copies}")
            name = f"{name}.{copies}"
        names.append(name)
        taken.add(name)
        alike.update({name, name.rpartition(".")[0]})
    return names


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row contains data and no names.

    It does if it has a number or a date in at least one column, and in every column whose other
    cells are numbers or dates. Numbers that count up in even steps are names, such as years.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    values = [k for k, cell in enumerate(first) if _value(cell)]
    if not values or not rest:
        return False
    for k in range(len(first)):
        present = [row[k] for row in rest if not missing(row[k])]
        if k not in values and present and all(map(_value, present)) and not missing(first[k]):
            return False
    steps = {float(b) - float(a) for a, b in pairwise(first) if _whole(a, b)}
    return not (len(values) > 1 and len(steps) == 1 and 0 not in steps)


def _value(cell: str) -> bool:
    return number(cell) is not None or number(cell, ",") is not None or dates([cell]) is not None


def _whole(*cells: str) -> bool:
    return all(cell.isdigit() for cell in cells)


def _in_step(
    path: Path,
    separator: str,
    names: Sequence[str],
    first: Sequence[tuple[int, list[str]]],
    records: Mapping[int, _Records],
    notes: Sequence[str],
) -> TextTable:
    """Return the table without the few lines that are not as wide as the header.

    `first`: The first record where it is no header.
    """
    width = len(names)
    ragged = [(line, len(row)) for line, row in first if len(row) != width]
    others = [r for r in records.values() if r.width != width]
    ragged += sorted((line, r.width) for r in others for line in r.lines)
    total = sum(len(r.lines) for r in records.values()) + len(first)
    if len(ragged) > MOST_RAGGED * total:
        line, cells = ragged[0]
        by = _NAMES.get(separator, repr(separator))
        text = (
            f"line {line}: {cells} cells, the header has {width} ({len(ragged)} such lines of "
            f"{total}); the file may be truncated, have cells with separators that are not "
            f"quoted, or be separated by something else than {by}"
        )
        raise Problems(str(path), [Problem(text)])
    if len(ragged) == total:
        raise Problems(str(path), [Problem("a header but no rows")])
    if ragged:
        shown = ", ".join(str(line) for line, _ in ragged[:5]) + (
            ", ..." if len(ragged) > 5 else ""
        )
        notes = [*notes, f"{many(len(ragged), 'line')} of another width left out (line {shown})"]
    kept = records.get(width) or _Records(width)
    for line, row in first:
        if len(row) == width:
            kept.lines.insert(0, line)
            kept.texts.insert(0, row)
    return TextTable(path, tuple(names), kept.columns(), kept.lines, separator, tuple(notes))
