"""Read the true rows of parties from CSV files, with which readings and attacks are compared."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Table
from fedtrees.data.csv_table import numeric
from fedtrees.data.spreadsheets import read_table


def read_truth(files: Sequence[str], target: str = "") -> dict[str, Table]:
    """Read the rows of every party, with the columns in the order of its file.

    `files` are ``PARTY=FILE``, or files whose names are those of the parties. If `target` is empty,
    the last column is the target. Raises `DataError` if a file cannot be read, or a cell is not a
    number.
    """
    tables = {}
    for text in files:
        party, equals, path = text.partition("=")
        party, path = (party, path) if equals else (Path(text).stem, text)
        table = read_table(path)
        label = target or table.names[-1]
        # In a vertical partition, parties without the label column get labels of 0.
        y = numeric(table, label) if label in table.names else np.zeros(len(table))
        if np.isnan(y).any():
            raise DataError(f"{path}: column {label!r} lacks labels; leave these rows out")
        names = [name for name in table.names if name != label]
        X = np.column_stack([numeric(table, name) for name in names])
        integral = bool((y == np.rint(y)).all())
        tables[party] = Table(X.astype(np.float32), y.astype(np.int64) if integral else y)
    return tables
