"""Differentiable trees: rows are sent through soft splits, so that gradients reach the features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedtrees.core.compilation import kernel
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SoftTrees:
    """Trees on a scale on which a feature value is replaced by its rank among the thresholds.

    The thresholds of a feature are placed at the quantiles of a standard normal distribution. All
    features therefore have the same scale whatever their units, and the ranges of the victim are
    not needed. For example, the single threshold of a feature is at 0, the median.

    Attributes
    ----------
    trees : tuple of Tree
        Trees of all clients, concatenated.
    models : int
        Number of clients, each with the same number of trees.
    d : int
        Number of features.
    """

    trees: tuple[Tree, ...]
    models: int
    d: int

    @cached_property
    def routes(self) -> Routes:
        """All trees in concatenated arrays."""
        return Routes.of(self.trees)

    @cached_property
    def value(self) -> Floats:
        """Outputs of all nodes, float32, shape (nodes,)."""
        return np.concatenate([t.value for t in self.trees]).astype(np.float32)

    @cached_property
    def edges(self) -> list[Floats]:
        """Thresholds of every feature, ascending."""
        r = self.routes
        return [np.unique(r.threshold[r.feature == f]) for f in range(self.d)]

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Number of cells into which thresholds divide each feature, int64, shape (d,)."""
        return np.array([len(e) + 1 for e in self.edges])

    @cached_property
    def edge_of(self) -> NDArray[np.int32]:
        """Rank of each node's threshold in its feature, int32, shape (nodes,), 0 at leaves.

        A row goes left if and only if the number of its cell is at most this rank.
        """
        r = self.routes
        rank = np.zeros(len(r.feature), dtype=np.int32)
        for f, edges in enumerate(self.edges):
            at = r.feature == f
            rank[at] = np.searchsorted(edges, r.threshold[at])
        return rank

    @cached_property
    def position(self) -> Floats:
        """Position of each node's split on the standard normal scale, float32, shape (nodes,)."""
        r = self.routes
        share = (self.edge_of + 1) / self.widths[np.maximum(r.feature, 0)]
        return np.where(r.feature < 0, 0, ndtri(np.minimum(share, 0.999999))).astype(np.float32)

    def cells(self, u: Floats) -> NDArray[np.int32]:
        """Return the cell of every coordinate, int32, for any shape (..., d)."""
        out = np.empty(u.shape, dtype=np.int32)
        for f, width in enumerate(self.widths):
            out[..., f] = np.searchsorted(ndtri(np.arange(1, width) / width), u[..., f])
        return out

    def cells_of(self, X: Floats) -> NDArray[np.int32]:
        """Return the cell of every value, int32, shape (n, d). Missing values are in cell 0."""
        cells = [np.searchsorted(e, X[:, f], side="right") for f, e in enumerate(self.edges)]
        return np.where(np.isnan(X), 0, np.stack(cells, axis=1)).astype(np.int32)

    def middle(self, cells: NDArray[np.int32]) -> Floats:
        """Return the coordinates of the centres of cells, float32."""
        return ndtri((cells + 0.5) / self.widths).astype(np.float32)

    def leaves(self, cells: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, like `Routes.apply`, int32, shape (n, T)."""
        out = np.empty((len(cells), len(self.trees)), dtype=np.int32)
        r = self.routes
        _hard(cells, r.start, r.feature, self.edge_of, r.left, r.right, out)
        return out

    def boxes(self, cells: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last cell of every feature, int64, shape (n, d) each.

        If one feature of a row changes within this range, the row stays in its leaf of every tree.
        """
        low, high = np.empty(cells.shape, np.int64), np.empty(cells.shape, np.int64)
        for i, row in enumerate(cells):
            for f, width in enumerate(self.widths):
                tried = np.repeat(row[None], width, axis=0)
                tried[:, f] = np.arange(width)
                changes = (np.diff(self.leaves(tried), axis=0) != 0).any(axis=1)
                # Cells with equal leaves form runs. The box is the run that contains the row's
                # cell.
                run = np.concatenate([[0], np.cumsum(changes)])
                same = np.flatnonzero(run == run[row[f]])
                low[i, f], high[i, f] = same[0], same[-1]
        return low, high

    def outputs(self, leaves: NDArray[np.int32]) -> Floats:
        """Return the values of leaves, float32, shape (n, models, trees per model)."""
        return self.value[self.routes.start + leaves].reshape(len(leaves), self.models, -1)

    def soft(self, u: Floats, tau: float) -> tuple[Floats, Floats]:
        """Return the outputs of rows that are sent through soft splits.

        Parameters
        ----------
        u : float32 array, shape (n, d)
            Coordinates of the rows.
        tau : float
            Width of the logistic function at each split. At 0 it would be a step.

        Returns
        -------
        outputs : float32 array, shape (n, models, trees per model)
        right : float32 array, shape (n, nodes)
            Share that goes right at each node, which `backpropagate` needs.
        """
        right = np.empty((len(u), len(self.value)), dtype=np.float32)
        out = np.empty((len(u), len(self.trees)), dtype=np.float32)
        r = self.routes
        where = (r.start, r.feature, self.position, r.left, r.right, self.value)
        _soft(u, np.float32(tau), *where, right, out)
        return out.reshape(len(u), self.models, -1), right

    def backpropagate(self, right: Floats, slope: Floats, tau: float) -> Floats:
        """Return the derivative by the coordinates, float32, shape (n, d).

        Parameters
        ----------
        right : float32 array, shape (n, nodes)
            Shares as returned by `soft`.
        slope : float32 array, shape (n, models, trees per model)
            Derivative by the outputs of `soft`.
        tau : float
            Width of the logistic function, as in `soft`.
        """
        out = np.zeros((len(right), self.d), dtype=np.float32)
        r = self.routes
        where = (r.start, r.feature, r.left, r.right, self.value)
        flat = np.ascontiguousarray(slope.reshape(len(right), -1), dtype=np.float32)
        _pull(right, flat, np.float32(tau), *where, out)
        return out


@kernel
def _hard(cells, start, feature, edge, left, right, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the leaf of every row in every tree to `out`."""
    for i in range(cells.shape[0]):
        for t in range(start.shape[0]):
            node = 0
            k = start[t]
            while feature[k] >= 0:
                node = left[k] if cells[i, feature[k]] <= edge[k] else right[k]
                k = start[t] + node
            out[i, t] = node


@kernel
def _soft(u, tau, start, feature, position, left, right, value, share, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the shares that go right to `share`, and the expected outputs of trees to `out`."""
    one = np.float32(1)
    n = feature.shape[0]
    below = np.empty(n, dtype=np.float32)
    for i in range(u.shape[0]):
        for t in range(start.shape[0]):
            first = start[t]
            last = start[t + 1] if t + 1 < start.shape[0] else n
            # Children have larger numbers than their parents, so that a backward pass finds them
            # computed.
            for k in range(last - 1, first - 1, -1):
                if feature[k] < 0:
                    below[k] = value[k]
                    continue
                s = one / (one + np.exp((position[k] - u[i, feature[k]]) / tau))
                share[i, k] = s
                a, b = below[first + left[k]], below[first + right[k]]
                below[k] = a + s * (b - a)
            out[i, t] = below[first]


@kernel
def _pull(share, slope, tau, start, feature, left, right, value, out) -> Any:  # type: ignore[no-untyped-def]
    """Write the derivative by coordinates to `out` by backpropagation through the soft splits."""
    one = np.float32(1)
    n = feature.shape[0]
    below, reach = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for i in range(share.shape[0]):
        for t in range(start.shape[0]):
            first = start[t]
            last = start[t + 1] if t + 1 < start.shape[0] else n
            for k in range(last - 1, first - 1, -1):
                if feature[k] < 0:
                    below[k] = value[k]
                else:
                    a, b = below[first + left[k]], below[first + right[k]]
                    below[k] = a + share[i, k] * (b - a)
            # Backpropagation from the root to the leaves: `reach` is the derivative times the path
            # probability.
            reach[first] = slope[i, t]
            for k in range(first, last):
                if feature[k] < 0:
                    continue
                a, b, s = first + left[k], first + right[k], share[i, k]
                reach[a], reach[b] = reach[k] * (one - s), reach[k] * s
                out[i, feature[k]] += reach[k] * s * (one - s) / tau * (below[b] - below[a])
