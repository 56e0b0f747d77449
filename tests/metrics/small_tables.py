"""Small random tables with every kind of column, and hypothesis strategies over them."""

import numpy as np

from fedtrees.core.schema import Feature, Schema, Table

SCHEMA = Schema(
    (
        Feature("age", "continuous", 0.0, 100.0),
        Feature("town", "categorical", categories=("a", "b", "c")),
        Feature("bmi"),
        Feature("flat"),
    ),
    "ill",
)


def random_table(n, rng, holes=0.0):
    y = rng.integers(0, 2, n)
    X = np.column_stack(
        [
            rng.integers(20, 60, n) + 15 * y,
            rng.integers(0, 3, n),
            np.round(rng.normal(25, 4, n), 1),
            np.full(n, 3.0),
        ]
    ).astype(np.float32)
    X[rng.random(X.shape) < holes] = np.nan
    return Table(X, y)
