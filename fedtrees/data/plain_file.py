"""A large text table read block by block, where nothing in it has to be found out."""

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.data.cells import missing, plain

_BLOCK = 1_000  # rows held as text at a time
_SEPARATORS = (",", "\t", "|")  # after ; a point may stand between thousands


def read_plain(
    path: str | Path, separator: str, columns: Mapping[str, Sequence[str]], target: str
) -> tuple[NDArray[np.float32], NDArray[np.float64]] | None:
    """Return the columns of a table and its target, in little more memory than they take.

    They are those of `read_csv` with `numeric` and `coded`. None: something is unusual or amiss (a
    header of other names, a comma in a number, a line too short), which those sort out, or tell.

    `separator`: Empty: whichever is in the first line.
    `columns`: By name, in order, and with the target: its categories, none of a number.

    Returns
    -------
    X : float32 array, shape (n, c)
    y : float64 array, shape (n,)
    """
    names, begin = [*(name for name in columns if name != target), target], 0
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
                if len(cells) != len(header) or end > rows:  # lines that end otherwise
                    return None
                for k, name in enumerate(names):
                    values = _values(cells[header.index(name)], columns[name])
                    if values is None or (name == target and np.isnan(values).any()):
                        return None
                    (y if name == target else X[:, k])[begin:end] = values
                begin = end
    except (OSError, ValueError, StopIteration, csv.Error):
        return None
    return (X[:begin], y[:begin]) if begin else None


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return 1 + sum(block.count(b"\n") for block in iter(partial(file.read, 1 << 20), b""))


def _values(cells: Sequence[str], categories: Sequence[str]) -> NDArray[np.float64] | None:
    """Return numbers, or codes of categories, NaN where missing; None where one is neither."""
    code = {category: float(k) for k, category in enumerate(categories)}
    numbers = None if categories else plain(cells)
    if numbers is not None:  # all are there, mostly
        return np.array(numbers)
    cells = [cell.strip() for cell in cells]
    there = np.array([not missing(cell) for cell in cells])
    present = [cell for cell, is_there in zip(cells, there, strict=True) if is_there]
    told = plain(present) if not categories else [code.get(cell, np.nan) for cell in present]
    if told is None or np.isnan(told).any():
        return None
    values = np.full(len(cells), np.nan)
    values[there] = told
    return values
