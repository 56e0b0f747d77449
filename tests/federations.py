"""Small federations of whole rows for tests."""

import numpy as np

from fedtrees.bench.conformance import sample_table


def sample_federation(seed=0, rows=240, clients=3):
    """Return the small table's rows of each client, and its schema."""
    table, schema = sample_table(seed, rows)
    return [table.take(part) for part in np.array_split(np.arange(rows), clients)], schema


def clients_of(federation):
    """Return every client's rows, in order."""
    return [held.table for held in federation.holdings.values()]


def victims_of_all(federation, principals):
    """Return the rows of everybody but some."""
    rows = [h.table for name, h in federation.holdings.items() if name not in principals]
    return type(rows[0]).concat(rows)
