"""Bounds on the counts of bins and nodes that bounded sums and the splits of a tree allow.

Every cell (a bin of a node, or the node) has four *forms*: n0, n1, N = n0 + n1, and the gradient
sum G = n0 g0 + n1 g1 in units. Each is known to be in an interval. Rules narrow the intervals to a
fixed point, and none removes a possible solution. If an interval is a point, the count is certain.
Interval propagation is Waltz's filtering of constraint satisfaction (Davis 1987, Sec. 2). Finding
all solutions would require integer programming, which was not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.replay import bins_left
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree

Longs = NDArray[np.int64]

N0, N1, N, G = 0, 1, 2, 3  # the forms of a cell
FORMS = 4
WIDE = 512  # a wider range of N is not enumerated
FINE = 7  # smaller changes of G than 2^-7 of a row are not propagated, so that it ends


@inner_kernel
def _narrow(lo: Longs, hi: Longs, g0: int, one: int) -> int:
    """Make the forms of a cell agree: 1 if a count was narrowed, -1 if nothing is possible.

    ``G = N g0 - n1 one``, with ``one = g0 - g1``.
    """
    if lo[0] == hi[0] and lo[1] == hi[1] and lo[2] == hi[2] and lo[3] == hi[3]:
        is_consistent = lo[2] == lo[0] + lo[1] and lo[3] == lo[2] * g0 - lo[1] * one
        return 0 if is_consistent else -1
    least, upper = max(lo[2], lo[0] + lo[1]), min(hi[2], hi[0] + hi[1])
    if least > upper:
        return -1
    low0, high0, low1, high1 = hi[0] + 1, lo[0] - 1, hi[1] + 1, lo[1] - 1
    low, high = upper + 1, least - 1
    low_g, high_g = hi[3] + 1, lo[3] - 1
    if upper - least > WIDE:
        # bounds from the end points only: n1 one = N g0 - G, and n0 one = G + N (one - g0)
        low, high = least, upper
        low1 = max(lo[1], -((hi[3] - least * g0) // one), least - hi[0])
        high1 = min(hi[1], (upper * g0 - lo[3]) // one, upper - lo[0])
        low0 = max(lo[0], -((least * (g0 - one) - lo[3]) // one), least - hi[1])
        high0 = min(hi[0], (hi[3] + upper * (one - g0)) // one, upper - lo[1])
        low_g = max(lo[3], least * g0 - high1 * one)
        high_g = min(hi[3], upper * g0 - low1 * one)
    else:
        for n in range(least, upper + 1):
            x = n * g0
            a = max(lo[1], -((hi[3] - x) // one), n - hi[0])
            b = min(hi[1], (x - lo[3]) // one, n - lo[0])
            if a > b:
                continue
            if n < low:
                low = n
            high = n
            low1, high1 = min(low1, a), max(high1, b)
            low0, high0 = min(low0, n - b), max(high0, n - a)
            low_g, high_g = min(low_g, x - b * one), max(high_g, x - a * one)
    if low > high or low0 > high0 or low1 > high1 or low_g > high_g:
        return -1
    changed = 0
    if low0 > lo[0] or high0 < hi[0] or low1 > lo[1] or high1 < hi[1]:
        changed = 1
    if low > lo[2] or high < hi[2]:
        changed = 1
    lo[0], lo[1], lo[2], lo[3] = low0, low1, low, low_g
    hi[0], hi[1], hi[2], hi[3] = high0, high1, high, high_g
    return changed


@inner_kernel
def _add_up(lo: Longs, hi: Longs, begin: int, end: int, total: int, one: int) -> int:
    """Make columns ``begin:end`` of a node add up to column ``total``. Returns like `_narrow`."""
    changed = 0
    for k in range(FORMS):
        low, high = np.int64(0), np.int64(0)
        for c in range(begin, end):
            low += lo[c, k]
            high += hi[c, k]
        whole_low, whole_high = max(lo[total, k], low), min(hi[total, k], high)
        if whole_low > whole_high:
            return -1
        gain = whole_low - lo[total, k] + hi[total, k] - whole_high
        if gain:
            lo[total, k], hi[total, k] = whole_low, whole_high
            changed |= k < G or gain > one >> FINE
        if low == high:
            continue
        for c in range(begin, end):
            a = max(lo[c, k], whole_low - (high - hi[c, k]))
            b = min(hi[c, k], whole_high - (low - lo[c, k]))
            if a > b:
                return -1
            gain = a - lo[c, k] + hi[c, k] - b
            if gain:
                high += b - hi[c, k]
                low += a - lo[c, k]
                lo[c, k], hi[c, k] = a, b
                changed |= k < G or gain > one >> FINE
    return changed


@inner_kernel
def _divide(lo: Longs, hi: Longs, p: int, left: int, right: int, one: int) -> tuple[int, int, int]:
    """Make two children add up to their parent, column by column.

    The first result is -1 if nothing is possible. The other two show whether counts of the parent
    and of the children were narrowed.
    """
    above, below = 0, 0
    for c in range(lo.shape[1]):
        for k in range(FORMS):
            a, b = lo[left, c, k] + lo[right, c, k], hi[left, c, k] + hi[right, c, k]
            low, high = max(lo[p, c, k], a), min(hi[p, c, k], b)
            if low > high:
                return -1, 0, 0
            gain = low - lo[p, c, k] + hi[p, c, k] - high
            if gain:
                lo[p, c, k], hi[p, c, k] = low, high
                above |= k < G or gain > one >> FINE
            if a == b:
                continue
            for child, other in ((left, right), (right, left)):
                x = max(lo[child, c, k], low - hi[other, c, k])
                y = min(hi[child, c, k], high - lo[other, c, k])
                if x > y:
                    return -1, 0, 0
                gain = x - lo[child, c, k] + hi[child, c, k] - y
                if gain:
                    lo[child, c, k], hi[child, c, k] = x, y
                    below |= k < G or gain > one >> FINE
    return 0, above, below


@kernel
def propagate(
    lo: Longs,
    hi: Longs,
    start: Longs,
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    g0: int,
    one: int,
    rounds: int,
) -> bool:
    """Narrow all intervals in place to a fixed point, and return False if nothing is possible.

    Parameters
    ----------
    lo, hi : int64 array, shape (n_nodes, columns + 1, 4)
        Bounds of every cell. The last column is the node.
    start : int64 array, shape (d + 1,)
        Columns of feature f are ``start[f]:start[f + 1]``: its bins, and last the missing values.
    left, right : int32 array, shape (n_nodes,)
        Children, -1 at leaves.
    g0 : int
        Contribution of a row of label 0 to G.
    one : int
        Contribution of a row of label 0 less that of a row of label 1.
    rounds : int
        Largest number of iterations. Stopping early leaves wider intervals.
    """
    n_nodes, total = lo.shape[0], lo.shape[1] - 1
    # only nodes whose intervals changed are processed again
    due = np.ones(n_nodes, dtype=np.bool_)
    for _ in range(rounds):
        for i in range(n_nodes):
            if not due[i]:
                continue
            due[i] = False
            again = 0
            for c in range(total + 1):
                changed = _narrow(lo[i, c], hi[i, c], g0, one)
                if changed < 0:
                    return False
            for f in range(start.shape[0] - 1):
                changed = _add_up(lo[i], hi[i], start[f], start[f + 1], total, one)
                if changed < 0:
                    return False
                again |= changed
            due[i] = again == 1
        for p in range(n_nodes):
            if left[p] < 0:
                continue
            failed, above, below = _divide(lo, hi, p, left[p], right[p], one)
            if failed < 0:
                return False
            due[p] |= above == 1
            due[left[p]] |= below == 1
            due[right[p]] |= below == 1
        if not due.any():
            break
    return True


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
        Bounds on n0, n1, N and G. The columns are the bins of a feature and its
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
    for f in np.flatnonzero(~missing).tolist():
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
