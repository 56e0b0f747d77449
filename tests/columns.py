"""Small tables whose columns belong to several parties, and their training."""

from functools import cache

import numpy as np

from fedtrees.core.composition import Composition
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid
from fedtrees.data.partition import columns_of
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


@cache
def table_of(classes=2, n=150, d=6, missing=0.1):
    """Return rows whose target has the given number of classes (0: a number), and their schema."""
    rng = np.random.default_rng([5, classes])
    # Rounding produces ties, and fewer values than bins.
    X = np.round(rng.normal(size=(n, d)), 1).astype(np.float32)
    score = X[:, 0] + X[:, 3] * X[:, 1] + rng.normal(0, 0.5, n)
    y = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    X[rng.random(X.shape) < missing] = np.nan
    names = tuple(map(str, range(classes)))
    schema = Schema(tuple(Feature(f"x{i}") for i in range(d)), "y", names)
    return Table(X, y if classes else score), schema


def dealt(table, parties, seed=3):
    """Distribute the columns in random order. The first party has the labels."""
    order = np.random.default_rng(seed).permutation(table.X.shape[1])
    names = ["active", *(f"passive-{i}" for i in range(1, parties))]
    parts = zip(names, np.array_split(order, parties), strict=True)
    return {n: columns_of(table, np.sort(c), n == "active") for n, c in parts}


def run(text, parties=2, classes=2, defense=None, seed=1, **table):
    """Train on the small table, and return the training and the local data of all parties."""
    rows, schema = table_of(classes, **table)
    local_data = dealt(rows, parties)
    protocol = register.make("protocol", parse_grid(text)[0])
    composed = Composition(() if defense is None else (defense,))
    return train(protocol, local_data, schema, defense=composed, seed=seed), local_data


def seen_by(training, local_data, *who):
    """Return the view of some parties."""
    return view_of(training, who, local_data)
