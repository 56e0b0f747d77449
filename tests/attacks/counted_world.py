"""Runs of `forest-hist` of every kind over tables made to mislead."""

from __future__ import annotations

import numpy as np
from peeling_world import SERVER, Run, made_up, misleading, schema_of
from present import here

from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.defenses.rounding import LeafRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.protocols.forests.forest_hist import ForestHist


def odd_table(rng):
    """Return a misleading table of two to four classes, and how many columns are codes.

    Some have a column twice, and one that is the same everywhere.
    """
    plain = made_up(int(rng.integers(99)), int(rng.integers(10, 80))), 0
    table, codes = plain if rng.random() < 0.4 else misleading(rng)
    X, y = table.X, table.y.copy()
    if rng.random() < 0.3:
        y = rng.integers(0, rng.integers(3, 5), len(y))
        y[: y.max() + 1] = np.arange(y.max() + 1)
    if rng.random() < 0.3:
        same = np.full((len(y), 1), 7.0, dtype=np.float32)
        X = np.hstack([X[:, :1], same, X])
    return Table(X.astype(np.float32), y), codes


def odd_protocol(rng):
    """Return a forest of any parameters."""

    def one(*choices):
        return choices[int(rng.integers(len(choices)))]

    return ForestHist(
        trees=int(one(1, 2, 5, 15, 30, 60)),
        max_depth=one(1, 2, 4, 10, None),
        max_bin=one(2, 4, 16, 100),
        bootstrap=one(True, True, False),
        max_samples=one(None, None, 0.9, 0.5, 0.1),
        max_features=one("sqrt", None, 1, 0.5),
        tree_features=one(None, None, 0.6),
        min_samples_leaf=one(1, 1, 3),
        min_samples_split=one(2, 2, 5),
        leaf_counts=one(True, False),
        cuts=one("sketch", "sketch", "equal-width"),
    )


def odd_run(seed):
    """Return a run of one to six clients, some of one row or none, with and without a sum."""
    rng = np.random.default_rng(seed)
    table, codes = odd_table(rng)
    clients = int(rng.integers(1, 7))
    of = rng.integers(0, clients, len(table))
    few = rng.random() < 0.3
    if few:  # the first client has one row
        of[of == 0] = clients - 1
        of[int(rng.integers(len(of)))] = 0
    shares = [table.take(np.flatnonzero(of == k)) for k in range(clients)]
    shares = [s for s in shares if len(s)]
    parts, who = [], SERVER
    if len(shares) > 2 and rng.random() < 0.5:
        dropout = 0.15 if rng.random() < 0.3 else 0.0
        masks = rng.random() >= 0.5 and here("defense", ["masking"])
        masked = Spec("masking", {"mode": "ideal", "dropout": dropout})
        parts.append(register.make("defense", masked) if masks else SecureSum())
    if len(shares) > 3 and rng.random() < 0.3:  # a client colludes with the server
        who = ("server", "client-1")
    if rng.random() < 0.2:
        parts.append(LeafRounding(decimals=1))
    classes = tuple(str(k) for k in range(int(table.y.max()) + 1))
    schema = schema_of(table, codes)
    schema = Schema(schema.features, schema.target, classes)
    return Run(odd_protocol(rng), table, shares, who, schema, parts)
