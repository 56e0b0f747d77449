"""Represent a numeric target as an additional feature.

Blind guesses and attacks are written for classification. For regression, the target becomes the
last feature, all rows get the same class, and the result is converted back.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedtrees.core.schema import Feature, Schema, Table

#: Class of all rows, and a second class without rows, because a schema has at least two classes.
ONE_CLASS = ("any", "none")


def widened(schema: Schema, target: tuple[float, float] | None = None) -> Schema:
    """Return the schema with the target as its last feature.

    The range `target` becomes its declared range, unless it is None or empty. The name of the
    target gets apostrophes if a feature has the same name.
    """
    name = schema.target
    while name in schema.names:
        name += "'"
    low, high = target if target is not None and target[0] < target[1] else (None, None)
    column = Feature(name, low=low, high=high, complete=True)
    return replace(schema, features=(*schema.features, column), classes=ONE_CLASS)


def wide(table: Table) -> Table:
    """Append the target to the features (as float32), and set all labels to class 0."""
    X = np.column_stack([table.X, table.y.astype(np.float32)])
    return Table(X, np.zeros(len(table), dtype=np.int64), table.weight)


def narrow(table: Table) -> Table:
    """Return rows with their last feature as the target. This is the inverse of `wide`."""
    return Table(table.X[:, :-1], table.X[:, -1].astype(np.float64), table.weight)


def all_narrow(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Apply `narrow` to every table."""
    return {name: narrow(table) for name, table in tables.items()}


def range_of(mean: float, deviation: float) -> tuple[float, float]:
    """Return the range of the uniform distribution with this mean and standard deviation."""
    return mean - 3**0.5 * deviation, mean + 3**0.5 * deviation
