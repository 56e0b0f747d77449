"""Possible margins of a client's rows if its first tree was grown on trees of other clients.

A row is in one leaf of every earlier tree, and the boxes of these leaves intersect the box of its
leaf in the new tree. Its margin is therefore one of a few, each of which is called a *cell*. This
goes beyond Di Gennaro et al. (2025), who solve trees in which all rows have the same margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.grid import Grid
from fedtrees.attacks.evidence.routing import at_tree, gradients
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]

MOST_BOXES = 20_000  # paths through the earlier trees that end in one leaf


@dataclass(frozen=True, eq=False)
class Regions:
    """Boxes that may contain rows, and the features whose values may be missing.

    Attributes
    ----------
    lo, hi : int32 array, shape (m, d)
        A row has cells ``lo <= cell < hi`` of the grid.
    missing : bool array, shape (m, d)
        Whether the value may be missing instead.
    """

    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    missing: NDArray[np.bool_]

    @staticmethod
    def of(tree: Tree, grid: Grid) -> Regions:
        """Return the boxes of a tree's leaves, in ascending node order."""
        leaves = grid.leaves(tree)
        missing = np.ones((len(tree), len(grid.edges)), dtype=bool)
        for node in np.flatnonzero(tree.feature >= 0):  # parents come first
            left, right = tree.left[node], tree.right[node]
            missing[[left, right]] = missing[node]
            missing[right if tree.default_left[node] else left, tree.feature[node]] = False
        return Regions(*leaves.boxes(grid.width), missing[leaves.node])

    def take(self, rows: NDArray[np.intp]) -> Regions:
        """Return the boxes with these indices."""
        return Regions(self.lo[rows], self.hi[rows], self.missing[rows])

    def meet(self, other: Regions) -> Regions:
        """Return the pairwise intersections with the same number of other boxes."""
        return Regions(
            np.maximum(self.lo, other.lo),
            np.minimum(self.hi, other.hi),
            self.missing & other.missing,
        )

    def hold_a_row(self, filled: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Return which boxes allow a value, or a missing one, for every feature.

        ``filled`` contains, per feature, the number of preceding cells that contain a value.
        """
        out = np.ones(len(self.lo), dtype=bool)
        for f, before in enumerate(filled):
            lo, hi = self.lo[:, f], self.hi[:, f]
            out &= (before[np.maximum(lo, hi)] > before[lo]) | self.missing[:, f]
        return out


@dataclass(frozen=True, eq=False)
class Cells:
    """Possible margins of the rows of one leaf before its tree, as gradients and hessians.

    Attributes
    ----------
    p, h : float64 array, shape (C,)
        Probability (the gradient of a row of class 0), and hessian.
    step : float64 array, shape (C,)
        Gradient of class 0 less that of class 1. It is 1 up to float32 rounding.
    local_counts : int64 array, shape (C,)
        Number of the adversary's rows with this margin in the leaf.
    """

    p: Floats
    h: Floats
    step: Floats
    local_counts: NDArray[np.int64]


def cells_of(
    evidence: Evidence, t: int, local_rows: Table | None, schema: Schema
) -> list[Cells | None]:
    """Return the cells of every leaf of tree `t`, for two classes.

    Parameters
    ----------
    evidence : Evidence
        The trees before `t` changed the margins of its rows.
    t : int
        The tree.
    local_rows : Table or None
        Local rows.
    schema : Schema
        Categories of the columns.

    Returns
    -------
    list of (Cells or None)
        None for a leaf with too many cells.
    """
    trees = evidence.trees[: t + 1]
    grid = Grid.of(trees, len(schema.features))
    regions = [Regions.of(tree, grid) for tree in trees]
    filled = [_count_filled(schema, grid, f) for f in range(len(schema.features))]
    rows = Table.empty(schema) if local_rows is None else local_rows
    here, own_margin = at_tree(evidence, rows.X, t)
    out: list[Cells | None] = []
    for j, leaf in enumerate(trees[t].leaves):
        margin = _margins(evidence, t, regions[t].take(np.array([j])), regions, filled)
        out.append(None if margin is None else _cells(margin, own_margin[here == leaf]))
    return out


def _count_filled(schema: Schema, grid: Grid, f: int) -> NDArray[np.int64]:
    """Return the number of preceding cells that contain a value. Codes are integers."""
    has_value = np.ones(grid.width[f], dtype=np.int64)
    codes = len(schema.features[f].categories)
    if codes:
        has_value[:] = 0
        has_value[
            np.searchsorted(grid.edges[f], np.arange(codes, dtype=np.float32), side="right")
        ] = 1
    return np.concatenate([[0], np.cumsum(has_value)]).astype(np.int64)


def _margins(
    evidence: Evidence,
    t: int,
    leaf: Regions,
    regions: Sequence[Regions],
    filled: Sequence[NDArray[np.int64]],
) -> NDArray[np.float32] | None:
    """Return all possible margins of a leaf's rows in ascending order, None if too many."""
    paths, margin = leaf, evidence.start(1)
    for k in range(t):
        tree = evidence.trees[k]
        values = tree.value[tree.leaves]
        parent = np.repeat(np.arange(len(margin)), len(values))
        taken = np.tile(np.arange(len(values)), len(margin))
        both = paths.take(parent).meet(regions[k].take(taken))
        alive = np.flatnonzero(both.hold_a_row(filled))
        if len(alive) > MOST_BOXES:
            return None
        paths, margin = both.take(alive), margin[parent[alive]] + values[taken[alive]]
    return np.unique(margin)


def _cells(margin: NDArray[np.float32], local_margin: NDArray[np.float32]) -> Cells:
    g, h = gradients(margin, np.zeros(len(margin)))
    step = g - gradients(margin, np.ones(len(margin)))[0]
    # margins so close that their gradients are equal are one cell
    _, first, cell = np.unique(np.stack([g, h]), axis=1, return_index=True, return_inverse=True)
    at = cell.reshape(-1)[np.minimum(np.searchsorted(margin, local_margin), len(margin) - 1)]
    return Cells(g[first], h[first], step[first], np.bincount(at, minlength=len(first)))
