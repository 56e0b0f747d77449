"""Rows of parties, read from CSV files: what readings and attacks are scored against."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.data.csv_table import numeric
from fedtrees.data.spreadsheets import read_table


def read_truth(files: Sequence[str], target: str = "") -> dict[str, Table]:
    """Return the rows of every party, columns in the order of its file.

    Raises `DataError` if a file cannot be read, or a cell is no number.

    `files`: ``PARTY=FILE``, or a file that is called as its party. `target`: Empty: the last.
    """
    found = {}
    for text in files:
        party, equals, path = text.partition("=")
        party, path = (party, path) if equals else (Path(text).stem, text)
        table = read_table(path)
        label = target or table.names[-1]
        # who has columns alone has no labels
        y = numeric(table, label) if label in table.names else np.zeros(len(table))
        if np.isnan(y).any():
            raise DataError(f"{path}: column {label!r} lacks labels; leave these rows out")
        names = [name for name in table.names if name != label]
        X = np.column_stack([numeric(table, name) for name in names])
        whole = bool((y == np.rint(y)).all())
        found[party] = Table(X.astype(np.float32), y.astype(np.int64) if whole else y)
    return found
