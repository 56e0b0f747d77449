"""How many rows are guessed of a large table."""

import numpy as np

from fedtrees.core.schema import Table

#: Of more victims' rows than these, an adversary guesses so many, that it sees something or not:
#: a table of a million rows is no other question, and time and memory stay bounded. Rows that it
#: is sure of count besides, all of them.
MOST_ROWS, GUESSED = 8000, 4000


def wanted(rows: int) -> int:
    """Return how many rows to guess of so many."""
    return rows if rows <= MOST_ROWS else GUESSED


def spaced(table: Table, rows: int) -> Table:
    """Return so many rows of a table, evenly spaced, in their order; all where it has no more."""
    if len(table) <= rows:
        return table
    return table.take(((np.arange(rows) + 0.5) * len(table) / rows).astype(np.intp))
