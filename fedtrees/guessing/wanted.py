"""Limit the number of guessed rows for large tables."""

import numpy as np

from fedtrees.core.schema import Table

#: If the victims have more than `MOST_ROWS` rows, attacks and blind baselines guess `GUESSED` rows,
#: so that time and memory remain bounded. The score of a larger table would answer the same
#: question. Rows that an attack is certain of are not limited.
MOST_ROWS, GUESSED = 8000, 4000


def wanted(rows: int) -> int:
    """Return the number of rows to guess if the victims have `rows` rows."""
    return rows if rows <= MOST_ROWS else GUESSED


def spaced(table: Table, rows: int) -> Table:
    """Return `rows` evenly spaced rows of a table in their order, or all if it has no more."""
    if len(table) <= rows:
        return table
    return table.take(((np.arange(rows) + 0.5) * len(table) / rows).astype(np.intp))
