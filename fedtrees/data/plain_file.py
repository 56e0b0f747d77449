"""Read a large text table block by block, if nothing about it has to be inferred."""

import csv
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.data.categories import codes_of_cells
from fedtrees.data.cells import missing, plain
from fedtrees.data.csv_file import Reading

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
