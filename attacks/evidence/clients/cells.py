"""Where a client's rows may stand when its first tree is grown on others' trees.

The margin of a row is then one of a few: of every earlier tree it took one leaf, and the leaves it
can have taken are those whose boxes meet that of its leaf in the new tree. A *cell* is one such
margin. Not in a paper: Di Gennaro et al. (2025) solve trees of one margin alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.grid import Grid
from fedtrees.attacks.evidence.routing import add_values, gradients
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

Floats = NDArray[np.float64]

MOST_BOXES = 20_000  # ways through the earlier trees that end in one leaf


@dataclass(frozen=True, eq=False)
class Regions:
    """Where rows may stand: boxes on a grid that tell of missing values, too, one per way there.

    Attributes
    ----------
    lo, hi : int32 array, shape (m, d)
        Cells of the grid ``lo <= cell < hi``.
    missing : bool array, shape (m, d)
        Whether a row whose value is missing may be there.
    """

    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    missing: NDArray[np.bool_]

    @staticmethod
    def of(tree: Tree, grid: Grid) -> Regions:
        """Return those of a tree's leaves, in ascending node order."""
        leaves, d = grid.leaves(tree), len(grid.edges)
        lo, hi = np.zeros((len(leaves), d), dtype=np.int32), np.tile(grid.width, (len(leaves), 1))
        at = np.repeat(np.arange(len(leaves)), np.diff(leaves.offsets)), leaves.feature
        lo[at], hi[at] = leaves.lo, leaves.hi
        missing = np.ones((len(tree), d), dtype=bool)
        for node in np.flatnonzero(tree.feature >= 0):  # parents come first
            left, right = tree.left[node], tree.right[node]
            missing[[left, right]] = missing[node]
            missing[right if tree.default_left[node] else left, tree.feature[node]] = False
        return Regions(lo, hi, missing[leaves.node])

    def take(self, rows: NDArray[np.intp]) -> Regions:
        """Return some of them."""
        return Regions(self.lo[rows], self.hi[rows], self.missing[rows])

    def meet(self, other: Regions) -> Regions:
        """Return what each has in common with the other's of the same row."""
        return Regions(
            np.maximum(self.lo, other.lo),
            np.minimum(self.hi, other.hi),
            self.missing & other.missing,
        )

    def hold_a_row(self, filled: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Tell which have a value or a missing one for every feature.

        Parameters
        ----------
        filled : sequence of int64 array, shape (cells of the feature + 1,)
            Number of cells before each that have a value at all.
        """
        out = np.ones(len(self.lo), dtype=bool)
        for f, before in enumerate(filled):
            lo, hi = self.lo[:, f], self.hi[:, f]
            out &= (before[np.maximum(lo, hi)] > before[lo]) | self.missing[:, f]
        return out


@dataclass(frozen=True, eq=False)
class Cells:
    """The margins that rows of one leaf may have had before its tree.

    Attributes
    ----------
    p, h : float64 array, shape (C,)
        Gradient of a row of class 0, which is its probability, and hessian of any row.
    step : float64 array, shape (C,)
        What a row of class 1 has less gradient than one of class 0: 1 up to float32.
    own : int64 array, shape (C,)
        Own rows of the adversary that would be there.
    """

    p: Floats
    h: Floats
    step: Floats
    own: NDArray[np.int64]


def cells_of(evidence: Evidence, t: int, own: Table | None, schema: Schema) -> list[Cells | None]:
    """Return the cells of every leaf of tree `t`, two classes; None where they are too many.

    Parameters
    ----------
    evidence : Evidence
        Whose trees before `t` moved the margins of the rows of tree `t`.
    t : int
    own : Table or None
    schema : Schema
    """
    trees = evidence.trees[: t + 1]
    grid = Grid.of(trees, len(schema.features))
    regions = [Regions.of(tree, grid) for tree in trees]
    filled = [_filled(schema, grid, f) for f in range(len(schema.features))]
    here, own_margin = _own_rows(evidence, t, own)
    out: list[Cells | None] = []
    for j, leaf in enumerate(trees[t].leaves):
        margin = _margins(evidence, t, regions[t].take(np.array([j])), regions, filled)
        out.append(None if margin is None else _cells(margin, own_margin[here == leaf]))
    return out


def _filled(schema: Schema, grid: Grid, f: int) -> NDArray[np.int64]:
    """Return how many cells of a feature before each hold a value: codes are whole numbers."""
    holds = np.ones(grid.width[f], dtype=np.int64)
    codes = len(schema.features[f].categories)
    if codes:
        holds[:] = 0
        holds[np.searchsorted(grid.edges[f], np.arange(codes, dtype=np.float32), side="right")] = 1
    return np.concatenate([[0], np.cumsum(holds)]).astype(np.int64)


def _own_rows(
    evidence: Evidence, t: int, own: Table | None
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the leaf of every own row in tree `t` and its margin before."""
    if own is None or not len(own):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    nodes, margin = Routes.of(evidence.trees[: t + 1]).apply(own.X), evidence.start(len(own))
    for k in range(t):
        add_values(margin, 0, evidence.trees[k].value[nodes[:, k]])
    return nodes[:, t], margin


def _margins(
    evidence: Evidence,
    t: int,
    leaf: Regions,
    regions: Sequence[Regions],
    filled: Sequence[NDArray[np.int64]],
) -> NDArray[np.float32] | None:
    """Return every margin, ascending, that rows of a leaf can have had; None if too many ways."""
    ways, margin = leaf, evidence.start(1)
    for k in range(t):
        tree = evidence.trees[k]
        values = tree.value[tree.leaves]
        way = np.repeat(np.arange(len(margin)), len(values))
        taken = np.tile(np.arange(len(values)), len(margin))
        both = ways.take(way).meet(regions[k].take(taken))
        alive = np.flatnonzero(both.hold_a_row(filled))
        if len(alive) > MOST_BOXES:
            return None
        ways, margin = both.take(alive), margin[way[alive]] + values[taken[alive]]
    return np.unique(margin)


def _cells(margin: NDArray[np.float32], own: NDArray[np.float32]) -> Cells:
    g, h = gradients(margin, np.zeros(len(margin)))
    step = g - gradients(margin, np.ones(len(margin)))[0]
    # margins so close that their gradients are equal are one cell
    _, first, cell = np.unique(np.stack([g, h]), axis=1, return_index=True, return_inverse=True)
    at = cell.reshape(-1)[np.minimum(np.searchsorted(margin, own), len(margin) - 1)]
    return Cells(g[first], h[first], step[first], np.bincount(at, minlength=len(first)))
