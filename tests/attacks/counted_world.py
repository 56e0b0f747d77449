"""Runs of `forest-hist` with random parameters over tables that provoke wrong counts."""

from __future__ import annotations

import numpy as np
from peeling_world import SERVER, Run, gaussian_table, misleading_table, schema_of
from present import here

from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.defenses.rounding import LeafRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.forests.forest_hist import ForestHist


def odd_table(rng):
    """Return a misleading table of two to four classes, and its number of categorical columns.

    Some tables contain one column twice, and one constant column.
    """
    gaussian = gaussian_table(int(rng.integers(99)), int(rng.integers(10, 80))), 0
    table, codes = gaussian if rng.random() < 0.4 else misleading_table(rng)
    X, y = table.X, table.y.copy()
    if rng.random() < 0.3:
        y = rng.integers(0, rng.integers(3, 5), len(y))
        y[: y.max() + 1] = np.arange(y.max() + 1)
    if rng.random() < 0.3:
        constant = np.full((len(y), 1), 7.0, dtype=np.float32)
        X = np.hstack([X[:, :1], constant, X])
    return Table(X.astype(np.float32), y), codes


def odd_protocol(rng):
    """Return a `forest-hist` protocol with random parameters."""

    def pick(*choices):
        return choices[int(rng.integers(len(choices)))]

    return ForestHist(
        trees=int(pick(1, 2, 5, 15, 30, 60)),
        max_depth=pick(1, 2, 4, 10, None),
        max_bin=pick(2, 4, 16, 100),
        bootstrap=pick(True, True, False),
        max_samples=pick(None, None, 0.9, 0.5, 0.1),
        max_features=pick("sqrt", None, 1, 0.5),
        tree_features=pick(None, None, 0.6),
        min_samples_leaf=pick(1, 1, 3),
        min_samples_split=pick(2, 2, 5),
        leaf_counts=pick(True, False),
        cuts=pick("sketch", "sketch", "equal-width"),
    )


def odd_run(seed):
    """Return a run of one to six clients, some of which have one row or none.

    Some runs use secure summation, leaf rounding, or a client that colludes with the server.
    """
    rng = np.random.default_rng(seed)
    table, codes = odd_table(rng)
    clients = int(rng.integers(1, 7))
    owner = rng.integers(0, clients, len(table))
    one_row_client = rng.random() < 0.3
    if one_row_client:  # the first client has one row
        owner[owner == 0] = clients - 1
        owner[int(rng.integers(len(owner)))] = 0
    shares = [table.take(np.flatnonzero(owner == k)) for k in range(clients)]
    shares = [s for s in shares if len(s)]
    parts, principals = [], SERVER
    if len(shares) > 2 and rng.random() < 0.5:
        dropout = 0.15 if rng.random() < 0.3 else 0.0
        use_masking = rng.random() >= 0.5 and here("defense", ["masking"])
        masking = Spec("masking", {"mode": "ideal", "dropout": dropout})
        parts.append(register.make("defense", masking) if use_masking else SecureSum())
    if len(shares) > 3 and rng.random() < 0.3:  # a client colludes with the server
        principals = ("server", "client-1")
    if rng.random() < 0.2:
        parts.append(LeafRounding(decimals=1))
    classes = tuple(str(k) for k in range(int(table.y.max()) + 1))
    schema = schema_of(table, codes)
    schema = Schema(schema.features, schema.target, classes)
    return Run(odd_protocol(rng), table, shares, principals, schema, parts)
