"""Possible margins and counts of a client's first tree if it was grown on trees of other clients.

A row is in one leaf of every earlier tree, and the boxes of these leaves intersect the box of its
leaf in the new tree. Its margin is therefore one of a few, each of which is called a *cell*. This
goes beyond Di Gennaro et al. (2025), who solve trees in which all rows have the same margin.

A leaf contains n_c rows of each of C cells, which have probability p_c and hessian h_c. Then
``sum h_c n_c = H``, and ``sum p_c n_c - G`` is the integer N1. The search lists both halves of all
compositions, pairs halves that add up to H, and keeps their totals N and N1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.observations.boosting import BoostingObservations, at_tree, gradients
from fedtrees.attacks.reconstruction.boxes import Grid
from fedtrees.core.compilation import kernel
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
        lo, hi = leaves.boxes(grid.width)
        return Regions(lo, hi, missing[leaves.node])

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
    evidence: BoostingObservations, t: int, local_rows: Table | None, schema: Schema
) -> list[Cells | None]:
    """Return the cells of every leaf of tree `t`, for two classes.

    Parameters
    ----------
    evidence : BoostingObservations
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
    evidence: BoostingObservations,
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


Ints = NDArray[np.int64]

MOST_HALVES = 2**20  # compositions per half: two float32 sums distinguish no more
MOST_LIKELY = 2**18  # compositions per half if only likely ones are listed
MOST_MEETINGS = 2**24  # pairs of halves that are examined
MOST_SCORES = 2**22  # cells times possible counts of a cell: 32 MB per array
MOST_TOTALS = 256  # distinct pairs (N, N1) that are stored
ROWS_BEFORE = 0.3  # prior rows of every cell in addition to the local rows
# Widths of the search in standard deviations, tried in turn until the search is short enough.
SPREADS = (np.inf, 4.0, 3.0, 2.0)


@dataclass(frozen=True, eq=False)
class LeafEquations:
    """The two equations of one leaf.

    Attributes
    ----------
    h, h_error : float
        Hessian sum and its largest error.
    slope : float
        ``v / eta``. The gradient sum is ``-slope (H + lambda)``.
    slope_error : float
        Relative error of the slope.
    reg_lambda : float
        L2 penalty.
    """

    # In units of hessians.
    h: float
    h_error: float
    slope: float
    slope_error: float
    reg_lambda: float


@dataclass(frozen=True, eq=False)
class Totals:
    """Possible numbers of rows and positives of a leaf.

    Attributes
    ----------
    n, n1 : int64 array, shape (k,)
        Rows and positives, most probable first.
    weight : float64 array, shape (k,)
        Log weight (nats), from the local rows in each cell.
    complete : bool
        Whether no other pair is possible.
    """

    # Sorted by weight, descending.
    n: Ints
    n1: Ints
    weight: Floats
    complete: bool


def totals_of(leaf: LeafEquations, cells: Cells) -> Totals:
    """Return the totals of all compositions, or of the likely ones if there are too many."""
    for spread in SPREADS:
        ranges = _likely(leaf, cells, spread)
        totals = None if ranges is None else _totals(leaf, cells, ranges)
        if totals is not None and (len(totals.n) or totals.complete):
            return totals
    return Totals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), complete=False)


@dataclass(frozen=True, eq=False)
class _Ranges:
    """Numbers of rows that are tried per cell, and their log weights."""

    # int64 (C,): from ``low`` to ``low + width`` rows are tried
    low: Ints
    width: Ints
    # float64 (C, largest width + 1): log weight of ``low + k`` rows less that of ``low``
    score: Floats
    complete: bool  # the ranges contain all possible numbers


def _likely(leaf: LeafEquations, cells: Cells, spread: float) -> _Ranges | None:
    """Return ranges of `spread` standard deviations around the shares of the local rows.

    The result is None if it would have more than `MOST_SCORES` entries.
    """
    largest = int((leaf.h + leaf.h_error) / cells.h.min()) + 1
    r = cells.local_counts + ROWS_BEFORE
    scale = max(leaf.h / float(r @ cells.h), 1e-3)  # ratio of client rows to local rows
    low, high = np.zeros(len(r), dtype=np.int64), np.full(len(r), largest)
    if np.isfinite(spread):
        sd = np.sqrt(r * scale * (1 + scale))
        low = np.maximum(np.floor(r * scale - spread * sd), 0).astype(np.int64)
        high = np.minimum(np.ceil(r * scale + spread * sd), largest).astype(np.int64)
        low = np.minimum(low, high)
    widest = int((high - low).max()) + 1
    if len(r) * widest > MOST_SCORES:
        return None
    n = low[:, None] + np.arange(widest)
    weight = gammaln(n + r[:, None]) - gammaln(n + 1.0) + n * np.log(scale / (1 + scale))
    return _Ranges(low, high - low, weight - weight[:, :1], not np.isfinite(spread))


def _totals(leaf: LeafEquations, cells: Cells, ranges: _Ranges) -> Totals | None:
    """Return the totals of all compositions in the ranges, None if there are too many."""
    total = leaf.h + leaf.h_error - float(ranges.low @ cells.h)
    if total < 0:
        return Totals(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), complete=False)
    # halves with similar cells give lists of similar length
    order = _alternating(cells.h)
    h, p, width, score = cells.h[order], cells.p[order], ranges.width[order], ranges.score[order]
    halves = _halves(h, width, total, MOST_HALVES if ranges.complete else MOST_LIKELY)
    if halves is None:
        return None
    (a_cells, a_limit), (b_cells, b_limit), middle = halves
    first = _list(h[a_cells], p[a_cells], width[a_cells], score[a_cells], a_limit, a_cells.start)
    second = _list(h[b_cells], p[b_cells], width[b_cells], score[b_cells], b_limit, b_cells.start)
    rank = np.argsort(second[0], kind="stable")
    second = tuple(part[rank] for part in second)
    low = total - 2 * leaf.h_error - first[0]
    begin = np.searchsorted(second[0], low, side="left")
    end = np.searchsorted(second[0], low + 2 * leaf.h_error, side="right")
    if (end - begin).sum() > MOST_MEETINGS:
        return None
    step_error = float(np.abs(cells.step - 1).max())
    totals = np.zeros((MOST_TOTALS, 2), dtype=np.int64)
    weight = np.full(MOST_TOTALS, -np.inf)
    fixed = ranges.low @ np.stack([cells.h, cells.p], axis=1)
    many = _meet(  # type: ignore[call-arg]
        *first, *second,  # type: ignore[arg-type]
        begin, end, np.append(h, np.inf), middle,
        (leaf.slope, leaf.slope_error, leaf.reg_lambda, step_error),
        (float(fixed[0]), float(fixed[1]), int(ranges.low.sum())), totals, weight,
    )  # fmt: skip
    k = min(many, MOST_TOTALS)
    best = np.argsort(-weight[:k], kind="stable")
    complete = ranges.complete and many <= MOST_TOTALS
    return Totals(totals[best, 0], totals[best, 1], weight[best], complete)


def _alternating(h: Floats) -> NDArray[np.intp]:
    """Order the cells such that both halves contain cells of large and small hessian."""
    heavy = np.argsort(-h, kind="stable")
    return np.concatenate([heavy[::2], heavy[1::2]])


def _halves(
    h: Floats, width: Ints, total: float, limit_of_list: int
) -> tuple[tuple[slice, float], tuple[slice, float], float] | None:
    """Return a division of the compositions: cells and largest sum of each half, and the border.

    Either each half contains half of the cells, or all cells up to half of the sum. The latter is
    shorter if many cells have few rows each. None is returned if both lists are too long.
    """
    c, k = len(h), (len(h) + 1) // 2
    by_cells = ((slice(0, k), total), (slice(k, c), total), -np.inf)
    by_sum = ((slice(0, c), total / 2), (slice(0, c), total / 2 + float(h.max())), total / 2)
    sizes = []
    for halves in (by_cells, by_sum):
        counts = [
            _count(h[cells], width[cells], limit, limit_of_list) for cells, limit in halves[:2]
        ]
        sizes.append(max(counts))
    best = (by_cells, by_sum)[int(np.argmin(sizes))]
    return best if min(sizes) < limit_of_list else None


def _list(
    h: Floats, p: Floats, width: Ints, score: Floats, limit: float, start: int
) -> tuple[NDArray[Any], ...]:
    """List compositions: their sums of h, p and score, rows, and lowest and highest cell."""
    m = _count(h, width, limit, MOST_HALVES)
    sums, cells = np.zeros((m, 3)), np.zeros((m, 3), dtype=np.int64)
    _fill(h, p, width, score, limit, start, sums, cells)
    return tuple(np.ascontiguousarray(column) for column in (*sums.T, *cells.T))


@kernel
def _count(h: Floats, width: Ints, limit: float, max_count: int) -> int:
    """Return the number of compositions with a sum of at most `limit`, but no more than
    `max_count`."""
    c = h.shape[0]
    n = np.zeros(c, dtype=np.int64)
    above = np.zeros(c + 1)  # sum over this cell and those after
    n_compositions = 1
    j = 0
    while j < c and n_compositions < max_count:
        total = above[j + 1] + (n[j] + 1) * h[j]
        if n[j] < width[j] and total <= limit:
            n[j] += 1
            for i in range(j + 1):
                above[i] = total
            n_compositions += 1
            j = 0
        else:
            n[j] = 0
            j += 1
    return n_compositions


@kernel
def _fill(
    h: Floats,
    p: Floats,
    width: Ints,
    score: Floats,
    limit: float,
    start: int,
    sums: Floats,
    cells: Ints,
) -> None:
    """Fill in the compositions that `_count` counts, in the columns of `_list`."""
    c = h.shape[0]
    n = np.zeros(c, dtype=np.int64)
    above = np.zeros((c + 1, 3))
    rows = np.zeros(c + 1, dtype=np.int64)
    last = np.full(c + 1, -1, dtype=np.int64)
    cells[0, 1], cells[0, 2] = start + c, -1
    at = 1
    j = 0
    while j < c and at < sums.shape[0]:
        total = above[j + 1, 0] + (n[j] + 1) * h[j]
        if n[j] == width[j] or total > limit:
            n[j] = 0
            j += 1
            continue
        n[j] += 1
        mean = above[j + 1, 1] + n[j] * p[j]
        weight = above[j + 1, 2] + score[j, n[j]]
        n_rows = rows[j + 1] + n[j]
        end = last[j + 1] if last[j + 1] >= 0 else start + j
        for i in range(j + 1):
            above[i, 0], above[i, 1], above[i, 2] = total, mean, weight
            rows[i], last[i] = n_rows, end
        sums[at, 0], sums[at, 1], sums[at, 2] = total, mean, weight
        cells[at, 0], cells[at, 1], cells[at, 2] = n_rows, start + j, end
        at += 1
        j = 0


@kernel
def _meet(
    a_h: Floats, a_p: Floats, a_score: Floats, a_n: Ints, a_first: Ints, a_last: Ints,
    b_h: Floats, b_p: Floats, b_score: Floats, b_n: Ints, b_first: Ints, b_last: Ints,
    begin: Ints, end: Ints, h: Floats, middle: float,
    leaf_constants: tuple[float, float, float, float], fixed: tuple[float, float, int],
    totals: Ints, weight: Floats,
) -> int:  # fmt: skip
    """Collect the totals of all pairs that add up, and return their number.

    If there is no room for all, the number is one more than the room. The two conditions on cells
    and ``middle`` ensure that every composition occurs in exactly one pair.
    """
    slope, slope_error, reg_lambda, step_error = leaf_constants
    many = 0
    for i in range(a_h.shape[0]):
        for k in range(begin[i], end[i]):
            if a_last[i] > b_first[k] or a_h[i] + h[b_first[k]] <= middle:
                continue
            pull = slope * (fixed[0] + a_h[i] + b_h[k] + reg_lambda)
            n = fixed[2] + a_n[i] + b_n[k]
            exact = fixed[1] + a_p[i] + b_p[k] + pull
            n1 = np.int64(np.rint(exact))
            off = slope_error * abs(pull) + (step_error + 1e-9) * n + 1e-9
            if abs(exact - n1) > off or n1 < 0 or n1 > n:
                continue
            score = a_score[i] + b_score[k]
            at = 0
            while at < many and (totals[at, 0] != n or totals[at, 1] != n1):
                at += 1
            if at == totals.shape[0]:
                return at + 1
            if at == many:
                totals[at, 0], totals[at, 1], weight[at] = n, n1, score
                many += 1
            else:
                top = max(weight[at], score)
                weight[at] = top + np.log(np.exp(weight[at] - top) + np.exp(score - top))
    return many
