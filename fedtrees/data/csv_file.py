"""A CSV file as text: its encoding, separator and header are found out, its lines kept in step."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

from fedtrees.core.counts import many
from fedtrees.core.errors import DataError, Problem, Problems, did_you_mean
from fedtrees.data.cells import dates, missing, number

#: Lines of another width than the header's are left out up to this share of all; more of them
#: mean that the file is not what it is taken for.
MOST_RAGGED = 0.05
# In this order where two suit equally well; the space last, which stands inside cells.
_SEPARATORS = (";", "\t", "|", ",", " ")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_SAMPLE = 1 << 16  # characters looked at for the separator


@dataclass(frozen=True)
class TextTable:
    """A CSV file as text."""

    path: Path
    names: tuple[str, ...]  # header
    rows: tuple[tuple[str, ...], ...]  # cells, stripped of surrounding spaces
    lines: tuple[int, ...]  # number in the file (from 1) of the last line of each row
    separator: str = ","
    notes: tuple[str, ...] = ()  # what was found out about the file, beyond the usual

    def column(self, name: str) -> list[str]:
        """Return the cells of one column.

        Raises `DataError`: the file has no such column.
        """
        if name not in self.names:
            raise DataError(f"{self.path}: no column {name!r}{did_you_mean(name, self.names)}")
        k = self.names.index(name)
        return [row[k] for row in self.rows]


def read_csv(path: str | Path, separator: str = "", named: Sequence[str] = ()) -> TextTable:
    """Read a text table: UTF-8, UTF-16 with a byte order mark, or Windows-1252.

    Parameters
    ----------
    path : path
    separator : str
        One character; empty: commas, semicolons, tabs, bars or spaces, whichever makes equal lines.
    named : sequence of str
        Columns known to exist: a first line that has one of them is a header.

    Returns
    -------
    TextTable
        Columns without a name get one (``column3``), and so do all of them where the first line
        holds data; of columns with one name the second becomes ``name.2``.

    Raises
    ------
    DataError
        The file is missing, unreadable, empty, not text, or ends in the middle of a quoted cell; it
        has no rows, or more than `MOST_RAGGED` of them are of another width than the header.
    """
    path, given = Path(path), separator
    text, notes = _text(path)
    if text[:4].lower() == "sep=" and len(text.splitlines()[0]) == 5:  # a hint of spreadsheets
        separator, text = separator or text[4], text[5:].lstrip("\r").replace("\n", "", 1)
    separator = separator or _sniffed(text)
    if separator != ",":
        notes.append(f"separated by {_NAMES.get(separator, repr(separator))}")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    try:
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {error}; a quote that is opened must be closed"
        ) from None
    if not found:
        raise DataError(f"{path}: the file is empty; it needs a header line and rows")
    width = Counter(len(row) for _, row in found[1:]).most_common(1)
    names, begins = _names(found, width[0][0] if width else len(found[0][1]), named, notes)
    table = TextTable(path, tuple(names), (), (), separator, tuple(notes))
    try:
        return _in_step(table, found[begins:])
    except DataError as error:
        better = _sniffed(text)
        if not given or better == given:
            raise
        said = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
        fix = Problem(said, "sep", {"\t": "tab", " ": "space"}.get(better, better))
        raise Problems(str(path), [fix]) from None


def _text(path: Path) -> tuple[str, list[str]]:
    """Return the text of a file, and its encoding where that is unusual."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text, notes = raw.decode("utf-16" if wide else "utf-8-sig"), ["UTF-16"] * wide
    except UnicodeDecodeError:
        # Latin-1 with printable characters in place of control codes; five bytes have none.
        marked = raw.removeprefix(codecs.BOM_UTF8)  # by a program that only put the mark there
        text, notes = marked.decode("cp1252", "replace"), ["Windows-1252 (not UTF-8)"]
    if "\0" in text:
        raise DataError(f"{path}: contains NUL bytes; this is not a CSV file")
    return text, notes


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


def _names(
    found: Sequence[tuple[int, list[str]]], width: int, named: Sequence[str], notes: list[str]
) -> tuple[list[str], int]:
    """Return a name per column, and the record that the rows begin with."""
    first = found[0][1]
    if not set(named) & set(first) and _is_data([row for _, row in found[:200]]):
        notes.append("no header line: columns are called column1, column2, ...")
        return [f"column{k + 1}" for k in range(width)], 0
    rest = found[1:201]
    if rest and len(first) == width - 1:
        if all(not row[-1] for _, row in rest if len(row) == width):
            first = [*first, ""]  # every line ends with a separator, the header does not
        else:
            first = ["", *first]  # names of rows, as R writes them
    names: list[str] = []
    for k, name in enumerate(first):
        name = " ".join(name.split()) or f"column{k + 1}"
        copies = 1 + sum(name == before.rpartition(".")[0] or name == before for before in names)
        if name in names:
            notes.append(f"two columns are called {name!r}: the later one is {name}.{copies}")
            name = f"{name}.{copies}"
        names.append(name)
    return names, 1


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row holds what the others hold, rather than names.

    It does if it has a number or a date, and one in every column that is of them. Numbers that
    count up in even steps are names: years, or numbers of columns.
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


def _in_step(table: TextTable, records: Sequence[tuple[int, list[str]]]) -> TextTable:
    """Return the table with its rows, without the few lines that are not as wide as the header."""
    width, notes = len(table.names), list(table.notes)
    ragged = [(line, len(row)) for line, row in records if len(row) != width]
    if len(ragged) > MOST_RAGGED * len(records):
        line, cells = ragged[0]
        by = _NAMES.get(table.separator, repr(table.separator))
        raise DataError(
            f"{table.path}, line {line}: {cells} cells, the header has {width} ({len(ragged)} such "
            f"lines of {len(records)}); the file may be truncated, have cells with separators that "
            f"are not quoted, or be separated by something else than {by}"
        )
    kept = [(line, tuple(row)) for line, row in records if len(row) == width]
    if not kept:
        raise DataError(f"{table.path}: a header but no rows")
    if ragged:
        shown = ", ".join(str(line) for line, _ in ragged[:5]) + (
            ", ..." if len(ragged) > 5 else ""
        )
        notes.append(f"{many(len(ragged), 'line')} of another width left out (line {shown})")
    lines, rows = zip(*kept, strict=True)
    return replace(table, rows=rows, lines=lines, notes=tuple(notes))
