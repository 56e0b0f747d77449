"""Cut points from the numbers of rows in the cells of a public grid.

Each party counts its rows in every cell. Only the sums over all parties are needed, so that the
counts can be summed securely, or with noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.trees.binning import lower_sentinel, upper_sentinel
from fedtrees.trees.sketch import choose_cuts

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
