"""Counts of the bins and nodes of one tree that are compatible with bounded sums and its splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.own_sums import bins_left
from fedtrees.attacks.evidence.readback.propagation import FORMS, N0, N1, G, N, propagate
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree

Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
Limits = tuple[int, int]

OPEN = 1 << 60  # bound of an unknown sum, in units
LISTED = 40  # smaller n0 and n1 of a cell are weighted pair by pair
ROUNDS = 60  # limit of the propagation. 2 to 8 are usually enough
MOST_CELLS = 1 << 22  # of a tree, limited by memory
_MOST_UNITS = 1 << 61


@dataclass(frozen=True)
class Row:
    """Contribution of one row to the sums of a tree of the first round, in units.

    Attributes
    ----------
    g0, g1 : int
        Contribution to the gradient sum with another label than the tree's, and with this label. g1
        < 0 <= g0.
    h : int
        Contribution to the hessian sum.
    """

    g0: int
    g1: int
    h: int

    @property
    def one(self) -> int:
        """Difference of the gradients of both labels."""
        return self.g0 - self.g1


@dataclass(frozen=True, eq=False)
class SumBounds:
    """Bounds on the gradient and hessian sums of one source in one tree.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes whose histogram was sent. Those of their siblings are differences.
    lo, hi : int64 array, shape (k, total_bins, 2)
        Bounds on each bin's sums, in units. `OPEN` means no bound.
    node_lo, node_hi : int64 array, shape (n_nodes, 2)
        Bounds on each node's sums.
    sent : int64 array, shape (k, total_bins, 2)
        Sent sums of other parties' bins.
    root : int64 array, shape (1, 2) or (0, 2)
        Sent sums of other parties' root.
    error, variance : float64 array, shape (size, size, 2)
        Mean and variance of the error of the sent sums for n0 and n1 rows, in units.
    step : float64 array, shape (2,)
        Step of which the sent sums are multiples.
    """

    nodes: NDArray[np.int32]
    lo: Longs
    hi: Longs
    node_lo: Longs
    node_hi: Longs
    sent: Longs
    root: Longs
    error: Floats
    variance: Floats
    step: Floats


@dataclass(frozen=True, eq=False)
class CountBounds:
    """Bounds on the counts of the rows of one or several sources.

    Attributes
    ----------
    lo, hi : int64 array, shape (n_nodes, columns + 1, 4)
        Bounds on n0, n1, N and G (`propagation`). The columns are the bins of a feature and its
        missing values, feature by feature. The last one is the node.
    start : int64 array, shape (d + 1,)
        First column of each feature.
    """

    lo: Longs
    hi: Longs
    start: Longs

    @property
    def nodes(self) -> tuple[Longs, Longs]:
        """Bounds on the n0 and n1 of every node, int64, shape (n_nodes, 2) each."""
        return self.lo[:, -1, :N], self.hi[:, -1, :N]

    @property
    def bins(self) -> NDArray[np.intp]:
        """The columns that are bins, shape (total_bins,)."""
        missing = self.start[1:] - 1
        return np.setdiff1d(np.arange(self.start[-1]), missing)

    def plus(self, other: CountBounds) -> CountBounds:
        """Return bounds on the counts of both sources' rows."""
        return CountBounds(self.lo + other.lo, self.hi + other.hi, self.start)


def possible(
    tree: Tree, cuts: Cuts, row: Row, max_rows: int, missing: NDArray[np.bool_]
) -> CountBounds | None:
    """Return the counts that the splits of a tree allow, None if the tree is too large.

    A child contains no rows on the other side of the split, and no missing values if these went the
    other way.

    Parameters
    ----------
    tree : Tree
        The tree.
    cuts : Cuts
        Bins of the features.
    row : Row
        Contribution of one row.
    max_rows : int
        Upper bound on the number of rows.
    missing : bool array, shape (d,)
        Features whose value may be missing.
    """
    d = cuts.n_features
    start = cuts.offsets.astype(np.int64) + np.arange(d + 1)
    width = int(start[-1]) + 1
    if len(tree) * width > MOST_CELLS or row.h < 0 or width * max_rows * row.one > _MOST_UNITS:
        return None
    lo = np.zeros((len(tree), width, FORMS), dtype=np.int64)
    # without observations, the gradient sum is that of any number of rows of either label
    lo[..., G] = max_rows * row.g1
    hi = np.full((len(tree), width, FORMS), max_rows, dtype=np.int64)
    hi[..., G] = max_rows * row.g0
    for f in np.flatnonzero(~missing):
        _nothing(lo, hi, slice(None), start[f + 1] - 1)
    for node in np.flatnonzero(tree.feature >= 0):
        f = int(tree.feature[node])
        columns = np.arange(start[f], start[f + 1])
        goes = np.append(bins_left(tree, int(node), cuts), bool(tree.default_left[node]))
        _nothing(lo, hi, int(tree.left[node]), columns[~goes])
        _nothing(lo, hi, int(tree.right[node]), columns[goes])
    return CountBounds(lo, hi, start)


def read_counts(
    space: CountBounds,
    tree: Tree,
    sums: SumBounds,
    row: Row,
    rows: Limits,
    positives: Limits | None = None,
) -> CountBounds | None:
    """Return the counts that bounded sums leave possible, None if they contradict each other.

    A contradiction means that an assumption is violated, so that nothing is certain.

    Parameters
    ----------
    space : CountBounds
        Result of `possible`. It is not changed.
    tree : Tree
        The tree.
    sums : SumBounds
        Sums of one source.
    row : Row
        Contribution of one row.
    rows : tuple of int
        Bounds on the number of the source's rows.
    positives : tuple of int, optional
        Bounds on the number of its rows with the tree's label.
    """
    lo, hi, columns = space.lo.copy(), space.hi.copy(), space.bins
    for k, node in enumerate(sums.nodes.tolist()):
        _bound(lo, hi, (node, columns), (sums.lo[k], sums.hi[k]), row)
    _bound(lo, hi, (slice(None), -1), (sums.node_lo, sums.node_hi), row)
    for form, limits in ((N, rows), (N1, positives)):
        if limits is not None:
            lo[0, -1, form] = max(lo[0, -1, form], limits[0])
            hi[0, -1, form] = min(hi[0, -1, form], limits[1])
    if (lo > hi).any():
        return None
    counted = CountBounds(lo, hi, space.start)
    return counted if narrow(counted, tree, row) else None


def narrow(bounds: CountBounds, tree: Tree, row: Row) -> bool:
    """Propagate bounds in place, and return whether anything is possible.

    Parameters
    ----------
    bounds : CountBounds
        Bounds to narrow.
    tree : Tree
        The tree.
    row : Row
        Contribution of one row.
    """
    children = tree.left.astype(np.int32), tree.right.astype(np.int32)
    return bool(propagate(bounds.lo, bounds.hi, bounds.start, *children, row.g0, row.one, ROUNDS))


def _bound(lo: Longs, hi: Longs, at: tuple, box: tuple[Longs, Longs], row: Row) -> None:  # type: ignore[type-arg]
    """Apply bounds on (G, H), int64 (..., 2), to some cells, in place."""
    low, high = box
    lo[(*at, G)] = np.maximum(lo[(*at, G)], low[..., 0])
    hi[(*at, G)] = np.minimum(hi[(*at, G)], high[..., 0])
    if row.h:
        # round inwards: the number of rows is an integer
        lo[(*at, N)] = np.maximum(lo[(*at, N)], -(-low[..., 1] // row.h))
        hi[(*at, N)] = np.minimum(hi[(*at, N)], high[..., 1] // row.h)


def _nothing(lo: Longs, hi: Longs, nodes: int | slice, columns: NDArray[np.intp] | int) -> None:
    """Mark cells as empty, in place."""
    lo[nodes, columns] = 0
    hi[nodes, columns] = 0


__all__ = [
    "FORMS",
    "N0",
    "N1",
    "CountBounds",
    "G",
    "N",
    "Row",
    "SumBounds",
    "possible",
    "read_counts",
]
