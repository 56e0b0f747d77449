"""Known rows of a leaf inversion: starts of the search, an alternative guess, and cell values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.tree_network_inversion.soft_trees import SoftTrees
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.schema import Schema, Table

#: Number of draws from which a guess of known rows is combined.
_SAMPLES = 20


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Local or prior rows of the adversary, and rows that were inferred from the trees.

    Attributes
    ----------
    table : Table
        The rows. It may be empty.
    schema : Schema
        Columns and declared ranges.
    """

    table: Table
    schema: Schema

    def __len__(self) -> int:
        return len(self.table)

    def draw(self, labels: NDArray[np.int64], rng: np.random.Generator) -> Table:
        """Draw rows with the given labels. A label without known rows gets any row."""
        positions = np.empty(len(labels), dtype=np.intp)
        for y in np.unique(labels):
            rows, places = np.flatnonzero(self.table.y == y), np.flatnonzero(labels == y)
            pool = rows if len(rows) else np.arange(len(self))
            positions[places] = rng.choice(pool, len(places), replace=len(pool) < len(places))
        return Table(self.table.X[positions], labels)

    def likely(self, labels: NDArray[np.int64], changed: bool, rng: np.random.Generator) -> Table:
        """Return rows with the given labels, as the consensus of several draws.

        If no defense changed the gradient, a single draw is used.
        """
        drawn = [self.draw(labels, rng) for _ in range(_SAMPLES if changed else 1)]
        return matched_consensus(drawn, Tolerance.of(self.table, self.schema).width, groups=labels)

    def values_in(self, trees: SoftTrees, cells: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return a value in the intersection of each row's leaves, float32, shape (n, d).

        It is the median of the known values in it. Without such values it is the middle of the
        interval, or the value next to the finite end if the interval is unbounded.

        Parameters
        ----------
        trees : SoftTrees
            Trees of all clients.
        cells : int32 array, shape (n, d)
            Interval of each value between adjacent thresholds.
        """
        first, last = trees.boxes(cells)
        X = np.zeros(cells.shape, dtype=np.float32)
        for f, edges in enumerate(trees.edges):
            lower_end, upper_end = (np.float32(ends[f]) for ends in self.schema.ranges)
            low = np.concatenate([[lower_end], edges])[first[:, f]]
            high = np.concatenate([edges, [upper_end]])[last[:, f]]
            open_low, open_high = first[:, f] == 0, last[:, f] == len(edges)
            values = np.sort(self.table.X[~np.isnan(self.table.X[:, f]), f])
            for i, (a, b) in enumerate(zip(low, high, strict=True)):
                start = 0 if open_low[i] else np.searchsorted(values, a)
                end = len(values) if open_high[i] else np.searchsorted(values, b)
                if start < end:
                    X[i, f] = values[(start + end) // 2]
                elif np.isfinite(a + b):
                    middle = np.float32((a + b) / 2)
                    X[i, f] = np.ceil(a) if self.schema.categorical[f] else middle
                elif np.isfinite(a):
                    X[i, f] = a
                elif np.isfinite(b):
                    X[i, f] = np.nextafter(b, np.float32(-np.inf))
        return X
