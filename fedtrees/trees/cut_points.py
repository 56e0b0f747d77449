"""Cut points from quantile sketches, from counts in the cells of a grid, or from one table.

- Sketch: each party computes a quantile sketch locally. Sketches can be merged.
- Grid: each party counts its rows in every cell of a public grid. Only the sums over all parties
  are needed, so that the counts can be summed securely, or with noise.
- Table: the cut points of one table are exactly those of XGBoost's `hist` (`xgboost_cuts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Cuts, check_max_bin, check_rows, lower_sentinel, upper_sentinel

# Points of a sketch per final bin: XGBoost uses the same factor between sketch and cuts.
POINTS_PER_BIN = 8
Choose = Callable[[NDArray[Any], NDArray[np.int64], int], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Sketch:
    """Points of each feature's empirical distribution, with the number of rows that they represent.

    Attributes
    ----------
    points : float32 array, shape (m,)
        Values of the data, strictly increasing within a feature.
    weights : int64 array, shape (m,)
        Rows in the half-open interval from the previous point (excluded) to this one (included).
        The first point also represents the rows below it.
    offsets : int32 array, shape (d + 1,)
        The points of feature ``f`` are ``offsets[f]:offsets[f + 1]``. None if all its values are
        missing.
    low : float32 array, shape (d,)
        Smallest value of every feature, NaN if all its values are missing.
    """

    points: NDArray[np.float32]
    weights: NDArray[np.int64]
    offsets: NDArray[np.int32]
    low: NDArray[np.float32]

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return len(self.offsets) - 1


def _summary(column: NDArray[np.float32], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Represent the present values of one column by at most ``size`` points."""
    column = np.sort(column[~np.isnan(column)]) + np.float32(0)  # -0 and 0 are the same value
    last = np.flatnonzero(np.diff(column, append=np.float32(np.inf)) > 0)  # last row of each value
    if len(last) > size:
        groups = np.linspace(0, len(column), size + 1).astype(np.int64)[1:] - 1
        # A group ends at the last row of its largest value, so that equal values stay together.
        last = last[np.searchsorted(last, groups)]
        last = last[np.diff(last, prepend=-1) > 0]
    return column[last], np.diff(last, prepend=-1)


def local_sketch(X: NDArray[Any], max_bin: int = 256) -> Sketch:
    """Compute the sketch of one party's rows.

    Features with at most ``8 * max_bin`` distinct values are represented exactly, with counts. The
    values of a feature with more distinct values are divided into ``8 * max_bin`` groups of equal
    size. Each group is represented by its largest value. The number of rows up to any value,
    according to the sketch, is therefore too small by less than one group.

    Parameters
    ----------
    X : float array, shape (n, d)
        Rows. NaN marks a missing value.
    max_bin : int
        Largest number of final bins per feature.

    Raises
    ------
    DataError
        If a value is infinite.
    """
    X = check_rows(X)
    parts = [_summary(X[:, f], POINTS_PER_BIN * max_bin) for f in range(X.shape[1])]
    low = [np.nanmin(X[:, f]) if len(p) else np.nan for f, (p, _) in enumerate(parts)]
    return Sketch(
        np.concatenate([p for p, _ in parts]).astype(np.float32),
        np.concatenate([w for _, w in parts]).astype(np.int64),
        np.cumsum([0, *(len(p) for p, _ in parts)]).astype(np.int32),
        np.array(low, dtype=np.float32),
    )


def choose_cuts(points: NDArray[Any], weights: NDArray[np.int64], max_bin: int) -> NDArray[Any]:
    """Return the points of one feature's merged sketch at which bins start, without the first.

    Parameters
    ----------
    points : array, shape (m,)
        Increasing values, or numbers of cells.
    weights : int64 array, shape (m,)
        Number of rows that each point represents.
    max_bin : int
        Largest number of bins.
    """
    if len(points) <= max_bin:
        return points[1:]
    below = np.cumsum(weights)  # rows up to and including each point
    # Bins should contain equal numbers of rows.
    targets = np.arange(1, max_bin) * (int(below[-1]) / max_bin)
    # The bin that follows the point with the target rank starts at the next point.
    reached = np.unique(np.searchsorted(below, targets, side="left"))
    return points[reached[reached < len(points) - 1] + 1]


def merge_sketches(
    sketches: Sequence[Sketch], max_bin: int = 256, choose: Choose = choose_cuts
) -> Cuts:
    """Return common cuts from the sketches of all parties.

    If there are at most ``max_bin`` distinct points, every point has a separate bin. Otherwise cut
    ``j`` has the target rank ``j N / max_bin`` among the ``N`` present values of the feature. The
    number of rows below it is at least this rank, and exceeds it by less than ``w + sum_i ceil(n_i
    / (8 max_bin))``. Here party ``i`` has ``n_i`` of the values, and ``w`` is the weight of the
    point that reaches the rank: the rows with this value, or the groups that end there.

    Parameters
    ----------
    sketches : sequence of Sketch
        One sketch per party.
    max_bin : int
        Largest number of bins per feature.
    choose : callable
        Rule that chooses the cuts of one feature, by default `choose_cuts`.

    Raises
    ------
    DataError
        If there is no sketch, or if their numbers of features differ.
    UsageError
        If ``max_bin`` is below 2 or above 65534.
    """
    check_max_bin(max_bin)
    widths = {s.n_features for s in sketches}
    if len(widths) != 1:
        raise DataError(f"sketches of {sorted(widths)} features cannot be merged")
    cuts, minimum = [], []
    for f in range(widths.pop()):
        spans = [slice(s.offsets[f], s.offsets[f + 1]) for s in sketches]
        all_points = np.concatenate(
            [s.points[span] for s, span in zip(sketches, spans, strict=True)]
        )
        counts = np.concatenate([s.weights[span] for s, span in zip(sketches, spans, strict=True)])
        if not len(all_points):  # no party has a value: one bin, as in XGBoost
            cuts.append(np.array([upper_sentinel(np.float32(0))]))
            minimum.append(lower_sentinel(np.float32(0)))
            continue
        points, group = np.unique(all_points, return_inverse=True)
        weights = np.zeros(len(points), dtype=np.int64)
        # Equal points of several parties are combined.
        np.add.at(weights, group, counts)
        cuts.append(np.append(choose(points, weights, max_bin), upper_sentinel(points[-1])))
        minimum.append(lower_sentinel(np.nanmin([s.low[f] for s in sketches])))
    return Cuts.join(cuts, np.array(minimum))


def quantile_cuts(X: NDArray[Any], max_bin: int = 256) -> Cuts:
    """Return the cuts of one table, as those of a single party."""
    return merge_sketches([local_sketch(X, max_bin)], max_bin)


def equal_width_cuts(low: ArrayLike, high: ArrayLike, max_bin: int = 256) -> Cuts:
    """Return cuts ``high - i (high - low) / max_bin``, as FedTree's horizontal mode computes them.

    Parameters
    ----------
    low, high : float arrays, shape (d,)
        Smallest and largest value of every feature over all parties. NaN if it is not known.
    max_bin : int
        Bins per feature. A feature that is constant or has no values has one bin.

    Raises
    ------
    DataError
        If the shapes differ, if ``low > high``, or if a bound is infinite.
    """
    lows, highs = np.asarray(low, dtype=np.float32), np.asarray(high, dtype=np.float32)
    if lows.shape != highs.shape or lows.ndim != 1:
        raise DataError(f"bounds of shape {lows.shape} and {highs.shape}; give two of shape (d,)")
    if np.isinf(lows).any() or np.isinf(highs).any() or (lows > highs).any():
        raise DataError("equal-width cuts need finite bounds with low <= high")
    check_max_bin(max_bin)
    cuts = []
    # A feature without values is treated as the constant 0.
    lows = np.where(np.isnan(lows) | np.isnan(highs), np.float32(0), lows)
    highs = np.where(np.isnan(highs), lows, highs)
    for a, b in zip(lows.astype(np.float64), highs.astype(np.float64), strict=True):
        inner = (b - np.arange(max_bin - 1, 0, -1) * ((b - a) / max_bin)).astype(np.float32)
        inner = np.unique(inner[(inner > np.float32(a)) & (inner <= np.float32(b))])
        cuts.append(np.append(inner, upper_sentinel(np.float32(b))))
    return Cuts.join(cuts, np.array([lower_sentinel(a) for a in lows]))


#: End of a grid without a declared range. Twice this number is a finite float32, as the sentinels
#: require.
LARGEST = np.float32(1e38)


def float_rank(values: ArrayLike) -> NDArray[np.int64]:
    """Return the rank of float32 numbers among all float32 numbers, int64.

    The number 0 has rank 0, and the next larger number has rank 1.
    """
    # The bits of positive floats increase with their value. The addition turns -0 into 0.
    bits = (np.asarray(values, dtype=np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def of_rank(ranks: ArrayLike) -> NDArray[np.float32]:
    """Return the float32 numbers with the given ranks (`float_rank`)."""
    r = np.asarray(ranks, dtype=np.int64)
    size = np.abs(r).astype(np.int32).view(np.float32)
    return np.where(r < 0, -size, size)


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells of every counted feature.

    Attributes
    ----------
    borders : tuple of float32 arrays
        Inner borders of each feature's cells, increasing. A cell contains its lower border. The
        outermost cells are unbounded. A feature without borders is not counted.
    low, high : float32 array, shape (d,)
        Assumed ends of the outermost cells.
    """

    borders: tuple[NDArray[np.float32], ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    def ends(self, feature: int) -> NDArray[np.float64]:
        """Return all borders of a feature's cells including the outer ends, shape (cells + 1,)."""
        low, high = self.low[feature], self.high[feature]
        return np.concatenate([[low], self.borders[feature], [high]]).astype(np.float64)


def first_grid(low: ArrayLike, high: ArrayLike, cells: int, counted: NDArray[np.bool_]) -> Grid:
    """Create a public grid.

    Cells of a feature with a declared range have equal width. Without a range (NaN), each cell
    contains the same number of float32 numbers. This grid has fine cells at every order of
    magnitude, so that the next round finds the scale of the feature.

    Parameters
    ----------
    low, high : float arrays, shape (d,)
        Declared ranges.
    cells : int
        Number of cells per feature, 2 or more.
    counted : bool array, shape (d,)
        Features that are counted.
    """
    lows, highs = (np.array(end, dtype=np.float32) for end in (low, high))
    unknown = np.isnan(lows)
    lows[unknown], highs[unknown] = -LARGEST, LARGEST
    borders = []
    for a, b, by_rank, is_counted in zip(lows, highs, unknown, counted, strict=True):
        if by_rank:
            top = int(float_rank(b))
            # Borders at equal distances in the order of all float32 numbers.
            inner = of_rank([2 * top * i // cells - top for i in range(1, cells)])
        else:
            inner = np.linspace(float(a), float(b), cells + 1)[1:-1].astype(np.float32)
        borders.append(np.unique(inner[inner > a]) if is_counted else np.zeros(0, dtype=np.float32))
    return Grid(tuple(borders), lows, highs)


def count_cells(
    X: NDArray[np.float32], borders: Sequence[NDArray[np.float32]]
) -> NDArray[np.int64]:
    """Count rows in the cells of all counted features, int64. Missing values are not counted."""
    parts = [np.zeros(0, dtype=np.int64)]
    for f, inner in enumerate(borders):
        if len(inner):
            column = X[:, f][~np.isnan(X[:, f])]
            cell = np.searchsorted(inner, column, side="right")
            parts.append(np.bincount(cell, minlength=len(inner) + 1))
    return np.concatenate(parts)


def split_counts(grid: Grid, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the counts of each feature, empty if it is not counted.

    Negative counts are noise and become 0.
    """
    sizes = [len(inner) + 1 if len(inner) else 0 for inner in grid.borders]
    edges = np.cumsum([0, *sizes])
    return [np.maximum(counts[a:b], 0) for a, b in pairwise(edges)]


def refined(grid: Grid, counts: NDArray[np.int64], cells: int, least: NDArray[np.int64]) -> Grid:
    """Return a grid with finer cells where there are many rows.

    A cell with a share of a feature's rows is cut into that share of `cells`. Empty cells are
    merged.

    Parameters
    ----------
    grid : Grid
        The grid that was counted.
    counts : int64 array
        Result of `count_cells`, summed over all parties.
    cells : int
        Approximate number of cells per feature of the new grid.
    least : int64 array, shape (d,)
        A cell with fewer rows counts as empty, because its count may be noise.
    """
    borders, low, high = [], grid.low.copy(), grid.high.copy()
    for f, feature_counts in enumerate(split_counts(grid, counts)):
        occupied = np.flatnonzero(feature_counts >= np.maximum(least[f], 1))
        # A feature without a declared range: after the first round, its occupied cells give the
        # range.
        endless = high[f] == LARGEST
        if not len(occupied):
            low[f], high[f] = (0, 0) if endless else (low[f], high[f])
            borders.append(np.zeros(0, dtype=np.float32))
            continue
        ends, total = grid.ends(f), int(feature_counts[occupied].sum())
        parts = [
            np.linspace(ends[k], ends[k + 1], max(1, int(feature_counts[k]) * cells // total) + 1)
            for k in occupied.tolist()
        ]
        all_borders = np.unique(np.concatenate(parts).astype(np.float32))
        if endless:
            low[f], high[f] = all_borders[0], all_borders[-1]
        borders.append(all_borders[(all_borders > low[f]) & (all_borders < high[f])])
    return Grid(tuple(borders), low, high)


def grid_cuts(grid: Grid, counts: NDArray[np.int64], max_bin: int) -> list[NDArray[Any]]:
    """Return the cuts of every feature, including the upper sentinel, by the rule for sketches.

    A feature without counts has one bin.

    Parameters
    ----------
    grid : Grid
        The grid that was counted.
    counts : int64 array
        Result of `count_cells`, summed over all parties.
    max_bin : int
        Largest number of bins per feature.
    """
    cuts = []
    for f, feature_counts in enumerate(split_counts(grid, counts)):
        cells = np.flatnonzero(feature_counts)
        # Occupied cells take the role of points. A bin that starts at cell k has the border before
        # it.
        starts = choose_cuts(cells, feature_counts[cells], max_bin) - 1 if len(cells) else cells
        cuts.append(np.append(grid.borders[f][starts], upper_sentinel(grid.high[f])))
    return cuts


def grid_minimum(grid: Grid) -> NDArray[np.float32]:
    """Return a threshold below the range of every feature, float32, shape (d,)."""
    return np.array([lower_sentinel(a) for a in grid.low], dtype=np.float32)


# Relative distance of the last cut from the largest value, which XGBoost adds in float64.
_BEYOND = 1e-5


def xgboost_cuts(X: NDArray[Any], max_bin: int = 256) -> Cuts:
    """Return the cuts of a table as XGBoost 3.2 computes them on one thread.

    The quantile summary of a column (Chen and Guestrin 2016, supplement) is pruned to ``8 max_bin +
    1`` points, to ``8 max_bin``, and to ``max_bin + 1``. All points but the first and the last are
    cuts.

    XGBoost prunes in the same way. But for a column with more than ``8 max_bin`` distinct values,
    it prunes and merges after every ``16 max_bin + 2`` rows. With more rows, its cuts therefore
    depend on their order, and the cuts of this function differ from them, with the same rank error.

    Parameters
    ----------
    X : float array, shape (n, d)
        Rows. NaN marks a missing value.
    max_bin : int
        Largest number of bins per feature.

    Raises
    ------
    DataError
        If a value is infinite.
    UsageError
        If `max_bin` is out of range.
    """
    check_max_bin(max_bin)
    X = check_rows(X)
    cuts, minimum = [], []
    for column in X.T:
        present = column[~np.isnan(column)] + np.float32(0)  # -0 and 0 are the same value
        points, n_rows = np.unique(present, return_counts=True)
        if not len(points):  # a column without values has one bin, as in XGBoost
            points = np.zeros(1, dtype=np.float32)
        inner = pruned_cuts(points, n_rows, max_bin)
        high = float(points[-1])
        cuts.append(np.append(inner, np.float32(high + (abs(high) + _BEYOND))))
        minimum.append(lower_sentinel(points[0]))
    return Cuts.join(cuts, np.array(minimum))


def pruned_cuts(points: NDArray[Any], weights: NDArray[np.int64], max_bin: int) -> NDArray[Any]:
    """Return the points at which XGBoost places cuts.

    Parameters
    ----------
    points : array, shape (m,)
        Increasing values, or numbers of cells.
    weights : int64 array, shape (m,)
        Number of rows that each point represents.
    max_bin : int
        Largest number of bins.
    """
    point_weights = weights.astype(np.float64)
    below = np.cumsum(point_weights)
    for size in (POINTS_PER_BIN * max_bin + 1, POINTS_PER_BIN * max_bin, max_bin + 1):
        selected = _prune(below, point_weights, size)
        points, below, point_weights = points[selected], below[selected], point_weights[selected]
    return points[1:max_bin]


def _prune(
    below: NDArray[np.float64], weight: NDArray[np.float64], size: int
) -> NDArray[np.intp] | slice:
    """Return which points remain after pruning to `size` points (XGBoost's ``SetPrune``).

    Parameters
    ----------
    below : float64 array, shape (m,)
        Weight of the rows up to and including each point.
    weight : float64 array, shape (m,)
        Weight of each point.
    size : int
        Number of points.
    """
    m = len(below)
    if m <= size:
        return slice(None)
    least = below - weight  # smallest rank of a point, whose largest rank is `below`
    # Ranks are compared in doubled form, because a point has a range of ranks.
    reach = least[-1] - below[0]
    targets = 2 * (np.arange(1, size - 1) * reach / (size - 1) + below[0])
    at = np.maximum(np.searchsorted(below + least, targets, side="right") - 1, 1)
    at, targets = at[at < m - 1], targets[at < m - 1]
    nearer = np.where(targets < below[at] + least[at + 1], at, at + 1)
    return np.unique(np.concatenate([[0], nearer, [m - 1]]))
