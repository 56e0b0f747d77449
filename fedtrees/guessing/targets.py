"""Numeric targets as one more column: whoever guesses rows guesses these like any other number.

Rows are then all of one class.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedtrees.core.schema import Feature, Schema, Table

#: The class of all rows, and one that no row has.
ONE_CLASS = ("any", "none")


def widened(schema: Schema, target: tuple[float, float] | None = None) -> Schema:
    """Return the schema with the target as its last column, of this range if that is known."""
    name = schema.target
    while name in schema.names:
        name += "'"
    low, high = target if target is not None and target[0] < target[1] else (None, None)
    column = Feature(name, low=low, high=high, complete=True)
    return replace(schema, features=(*schema.features, column), classes=ONE_CLASS)


def wide(table: Table) -> Table:
    """Return rows with the target as their last column, float32."""
    X = np.column_stack([table.X, table.y.astype(np.float32)])
    return Table(X, np.zeros(len(table), dtype=np.int64), table.weight)


def narrow(table: Table) -> Table:
    """Return rows with their last column as the target."""
    return Table(table.X[:, :-1], table.X[:, -1].astype(np.float64), table.weight)


def all_narrow(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return the same of every table."""
    return {name: narrow(table) for name, table in tables.items()}


def range_of(mean: float, deviation: float) -> tuple[float, float]:
    """Return the ends of the uniform distribution of this mean and standard deviation."""
    return mean - 3**0.5 * deviation, mean + 3**0.5 * deviation
