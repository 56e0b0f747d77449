"""Read a CSV file as text, infer its encoding, separator and header, and check its lines."""

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

from fedtrees.core.errors import DataError, Problem, Problems, UsageError, did_you_mean, many
from fedtrees.core.files import no_local_file, unreadable
from fedtrees.data.cells import dates, missing, number
from fedtrees.data.cleaning import (
    composed,
    with_composed_cells,
    with_empty_cells,
    with_plain_numbers,
)

#: Largest share of lines whose number of cells differs from the header. Such lines are left out. A
#: larger share shows that the separator or the format is wrong.
MOST_RAGGED = 0.05
# The first of several equally suitable separators is chosen. The space comes last, because it also
# occurs within cells.
_SEPARATORS = (";", "\t", "|", ",", " ")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_MARK = codecs.BOM_UTF8.decode("cp1252")
_SAMPLE = 1 << 16  # number of characters from which the separator is inferred
_HEAD = 201  # number of records from which the header is inferred
_BLOCK = 10_000  # number of records that are stored as separate cells at a time
_BETWEEN = "\0"  # separates cells in memory. Files with this character are rejected


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Declared format of a table, for properties that the file does not show.

    Raises `UsageError` if the decimal mark is neither a point nor a comma.
    """

    separator: str = ""  # one character; empty: inferred from the lines
    # Point or comma, for columns whose numbers can be read in two ways. If it is empty, such
    # columns are rejected unless the remaining columns decide.
    decimal: str = ""
    # Marks of missing cells in addition to empty cells. None: the rules of `with_empty_cells`.
    missing: tuple[str, ...] | None = None
    sheet: str = ""  # name or number (from 1) of a workbook's sheet; empty: the only sheet

    def __post_init__(self) -> None:
        if self.decimal not in ("", ".", ","):
            raise UsageError(f"decimal {self.decimal!r}: give a point or a comma")


#: No declaration about a file.
UNDECLARED = Reading()


@dataclass(frozen=True)
class TextTable:
    """A table as text, cleaned by `fedtrees.data.cleaning`.

    Each column is stored as one string (`cells_as_text`), because one string per cell would take
    ten times the memory of the file.
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
    typed: frozenset[str] = frozenset()  # columns without text cells in a typed format
    numeric: frozenset[str] = frozenset()  # columns of which Python reads every cell as a number
    commas: frozenset[str] = frozenset()  # columns that were written with a decimal comma
    remarks: Mapping[str, str] = field(default_factory=dict)  # how unusual numbers were read
    doubts: Mapping[str, Problem] = field(default_factory=dict)  # why numbers cannot be read
    # For each column, how often each mark of a missing cell occurred.
    marks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # For each column, the default marks of missing cells that are read as values.
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
        """Return the table with some cells of a column replaced.

        Raises `DataError` if the file has no such column.
        """
        text = cells_as_text(cells.get(cell, cell) for cell in self.column(name))
        k = self._at[name]
        return replace(self, columns=(*self.columns[:k], text, *self.columns[k + 1 :]))

    def renamed(self, names: Mapping[str, str]) -> TextTable:
        """Return the table with new names for some columns."""
        doubts = {names.get(name, name): doubt for name, doubt in self.doubts.items()}
        return replace(self, names=tuple(names.get(n, n) for n in self.names), doubts=doubts)

    def part(self, name: str, rows: Sequence[int]) -> TextTable:
        """Return some rows of one column as a table."""
        cells = self.column(name)
        text = cells_as_text(cells[i] for i in rows)
        return replace(self, names=(name,), columns=(text,), lines=[self.lines[i] for i in rows])

    def check_readable(self, name: str) -> None:
        """Raise `Problems` if the numbers of a column can be read in two ways."""
        if name in self.doubts:
            raise Problems(str(self.path), [self.doubts[name]])


def cells_as_text(cells: Iterable[str]) -> str:
    """Return the cells of a column in the form in which `TextTable` stores them."""
    return _BETWEEN.join(cells)


@dataclass
class _Records:
    """The records of a file that have the same number of cells."""

    width: int
    lines: array[int] = field(default_factory=partial(array, "q"))
    texts: list[list[str]] = field(default_factory=list)  # one string per block and column
    block: list[list[str]] = field(default_factory=list)

    def add(self, line: int, row: list[str]) -> None:
        """Add a record that ends at a line of the file."""
        self.lines.append(line)
        self.block.append(row)
        if len(self.block) == _BLOCK:
            self.close()

    def close(self) -> None:
        """Convert the records of the last block to text."""
        if self.block:
            self.texts.append([_strip(cells) for cells in zip(*self.block, strict=True)])
        self.block = []

    def columns(self) -> tuple[str, ...]:
        """Return the text of every column, and free the blocks to limit the peak memory."""
        joined = []
        for k in range(self.width):
            joined.append(_BETWEEN.join(block[k] for block in self.texts))
            for block in self.texts:
                block[k] = ""
        return tuple(joined)


def _strip(cells: Sequence[str]) -> str:
    """Return cells as text without surrounding white space."""
    text = _BETWEEN.join(cells)
    if text.split(None, 1) == [text]:  # the usual case: no cell contains white space
        return text
    return _BETWEEN.join(cell.strip() for cell in cells)


def read_csv(
    path: str | Path, reading: Reading = UNDECLARED, required: Sequence[str] = ()
) -> TextTable:
    """Read a text table, with numbers in plain form and missing cells as empty cells.

    Raises `DataError` as `read_text`.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared separator, decimal mark and marks of missing cells.
    required : sequence of str
        Columns that the table must contain, for example the target. A first line that contains one
        of them is a header.

    Returns
    -------
    table : TextTable
    """
    return with_empty_cells(with_plain_numbers(read_text(path, reading, required)))


def read_text(path: str | Path, reading: Reading, required: Sequence[str] = ()) -> TextTable:
    """Read the cells of a text file: UTF-8, UTF-16 with a byte order mark, or Windows-1252.

    Columns without a name are called ``column3``, for example. If the first line contains data, all
    columns get such names. Of two columns with one name, the second becomes ``name.2``. Without a
    declared separator, the one of commas, semicolons, tabs, bars and spaces is chosen that gives
    the lines equal numbers of cells.

    Parameters
    ----------
    path : str or Path
        The file.
    reading : Reading
        Declared format. Only the separator is used here.
    required : sequence of str
        Columns that the table must contain, for example the target. A first line that contains one
        of them is a header.

    Returns
    -------
    table : TextTable
        Not yet cleaned, except for the Unicode form.

    Raises
    ------
    DataError
        If the file is missing, unreadable, empty or not text, ends within a quoted cell, has no
        rows, or has more than `MOST_RAGGED` of its rows with another number of cells than the
        header.
    """
    path, declared = Path(path), reading.separator
    separator = declared
    encoding, notes = _encoding(path)
    errors = "replace" if encoding == "cp1252" else "strict"
    with path.open(encoding=encoding, errors=errors, newline="") as file:
        # Some programs write the byte order mark of UTF-8 before text in another encoding.
        start = file.seek(0) if encoding != "cp1252" or file.read(3) != _MARK else file.tell()
        file.seek(start)
        hint = file.readline(7)  # some spreadsheet programs write a first line such as ``sep=;``
        begins = file.tell()
        if hint[:4].lower() != "sep=" or len(hint.rstrip("\r\n")) != 5:
            hint, begins = "", file.seek(start)
        sample = file.read(_SAMPLE + 1)
        file.seek(begins)
        separator = separator or hint[4:5] or _guess_separator(sample)
        if separator != ",":
            notes.append(f"separated by {_NAMES.get(separator, repr(separator))}")
        head, records = _read(path, file, separator)
    if not head:
        raise DataError(f"{path}: the file is empty; it needs a header line and rows")
    width = max(records.values(), key=lambda r: len(r.lines)).width if records else len(head[0][1])
    names, first = header([row for _, row in head], width, required, notes)
    twice = twice_named(head[0][1]) if first else frozenset()
    try:
        table = _in_step(path, separator, names, head[:1] if not first else [], records, notes)
        return with_composed_cells(replace(table, reading=reading, twice=twice))
    except Problems as error:
        better = _guess_separator(sample)
        if not declared or better == declared:
            raise
        named_so = {"\t": "tab", " ": "space"}.get(better, better)
        fixes = [replace(problem, option="sep", value=named_so) for problem in error.problems]
        raise Problems(str(path), fixes) from None


def _read(
    path: Path, file: TextIO, separator: str
) -> tuple[list[tuple[int, list[str]]], dict[int, _Records]]:
    """Return the first records with their lines, and all but the first record by their width."""
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
    """Return the encoding of a text file, and a note if it is unusual.

    Raises `DataError` if the file cannot be read or is not text.
    """
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
            # Windows-1252 is Latin-1 with printable characters in place of control codes. Five
            # bytes are not assigned.
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


def _guess_separator(text: str) -> str:
    """Return the separator that gives most lines the same number of cells as the first line."""
    best, chosen = (0, 0.0), ","
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
            best, chosen = score, separator
    return chosen


def header(
    records: Sequence[list[str]], width: int, required: Sequence[str], notes: list[str]
) -> tuple[list[str], int]:
    """Return the names of the columns, and the index of the first record that contains data.

    Parameters
    ----------
    records : sequence of list of str
        The first records.
    width : int
        Number of columns.
    required : sequence of str
        Columns that the table must contain, for example the target. A first line that contains one
        of them is a header.
    notes : list of str
        The function appends unusual properties of the header.

    Returns
    -------
    names : list of str
    first : int
        0 if the file has no header, else 1.
    """
    first = records[0]
    if not set(required) & set(map(plain_name, first)) and _is_data(records[:200]):
        notes.append("no header line: columns are called column1, column2, ...")
        return [f"column{k + 1}" for k in range(width)], 0
    rest = records[1:201]
    if rest and len(first) == width - 1:
        if all(not row[-1] for row in rest if len(row) == width):
            first = [*first, ""]  # every line except the header ends with a separator
        else:
            first = ["", *first]  # R writes a column of row names without a header
    return unique_names(first, notes), 1


def plain_name(name: str) -> str:
    """Return a column name without surrounding and doubled white space, in Unicode form NFC."""
    return " ".join(composed(name).split())


def twice_named(first: Sequence[str]) -> frozenset[str]:
    """Return the names that occur several times in a header."""
    return frozenset(n for n, count in Counter(map(plain_name, first)).items() if n and count > 1)


def unique_names(first: Sequence[str], notes: list[str]) -> list[str]:
    """Return one plain name per column, and append a note for each repeated name."""
    names: list[str] = []
    taken: set[str] = set()
    versions: Counter[str] = Counter()  # how many names are a name, or this name and a number
    for k, name in enumerate(first):
        name = plain_name(name) or f"column{k + 1}"
        if name in taken:
            copies = 1 + versions[name]
            while f"{name}.{copies}" in taken:
                copies += 1
            notes.append(f"two columns are called {name!r}: the later one is {name}.{copies}")
            name = f"{name}.{copies}"
        names.append(name)
        taken.add(name)
        versions.update({name, name.rpartition(".")[0]})
    return names


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row contains data and not names.

    It contains data if it has a number or a date in at least one column, and in every column whose
    remaining cells are numbers or dates. Integers that increase in equal steps are names, for
    example years.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    values = [k for k, cell in enumerate(first) if _value(cell)]
    if not values or not rest:
        return False
    for k in range(len(first)):
        present = [row[k] for row in rest if not missing(row[k])]
        if k not in values and present and all(map(_value, present)) and not missing(first[k]):
            return False
    steps = {float(b) - float(a) for a, b in pairwise(first) if _are_integers(a, b)}
    return not (len(values) > 1 and len(steps) == 1 and 0 not in steps)


def _value(cell: str) -> bool:
    """Return whether a cell is a number or a date."""
    return number(cell) is not None or number(cell, ",") is not None or dates([cell]) is not None


def _are_integers(*cells: str) -> bool:
    """Return whether all cells are integers without a sign."""
    return all(cell.isdigit() for cell in cells)


def _in_step(
    path: Path,
    separator: str,
    names: Sequence[str],
    first: Sequence[tuple[int, list[str]]],
    records: Mapping[int, _Records],
    notes: Sequence[str],
) -> TextTable:
    """Return the table without the few lines whose number of cells differs from the header.

    `first` is the first record if it contains data, else empty. Raises `Problems` if there are too
    many such lines, or no rows.
    """
    width = len(names)
    ragged = [(line, len(row)) for line, row in first if len(row) != width]
    ragged_records = [r for r in records.values() if r.width != width]
    ragged += sorted((line, r.width) for r in ragged_records for line in r.lines)
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
    matching = records.get(width) or _Records(width)
    for line, row in first:
        if len(row) == width:
            matching.lines.insert(0, line)
            matching.texts.insert(0, row)
    return TextTable(
        path, tuple(names), matching.columns(), matching.lines, separator, tuple(notes)
    )
