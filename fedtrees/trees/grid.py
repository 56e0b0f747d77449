"""Cut points from the numbers of rows in the cells of a grid, which owners can add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.trees.binning import lower_sentinel, upper_sentinel
from fedtrees.trees.sketch import choose_cuts

#: Where a grid without a range ends; twice it is a float32, too, as sentinels need.
LARGEST = np.float32(1e38)


def float_rank(values: ArrayLike) -> NDArray[np.int64]:
    """Return the rank of float32 numbers among all of them, int64: 0 has 0, the next one 1."""
    bits = (np.asarray(values, dtype=np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def of_rank(ranks: ArrayLike) -> NDArray[np.float32]:
    """Return the float32 numbers of given ranks (`float_rank`)."""
    r = np.asarray(ranks, dtype=np.int64)
    size = np.abs(r).astype(np.int32).view(np.float32)
    return np.where(r < 0, -size, size)


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells of every feature that is counted.

    `borders`: tuple of float32 arrays. Inner borders of each feature's cells, increasing; a cell
    holds its lower border, and the outermost ones go on without end. A feature without borders
    is not counted.
    `low, high`: float32 array, shape (d,). Where the outermost cells are taken to end.
    """

    borders: tuple[NDArray[np.float32], ...]
    low: NDArray[np.float32]
    high: NDArray[np.float32]

    def ends(self, feature: int) -> NDArray[np.float64]:
        """Return all borders of a feature's cells, outer ends included, shape (cells + 1,)."""
        low, high = self.low[feature], self.high[feature]
        return np.concatenate([[low], self.borders[feature], [high]]).astype(np.float64)


def first_grid(low: ArrayLike, high: ArrayLike, cells: int, counted: NDArray[np.bool_]) -> Grid:
    """Lay a public grid.

    Cells of a feature with a range are of equal width. Without one (NaN) they hold equally many of
    the numbers that a float32 can be, so that any scale is met by the next round.

    `low, high`: float arrays, shape (d,).
    `cells`: Per feature, 2 or more.
    `counted`: bool array, shape (d,).
    """
    lows, highs = (np.array(end, dtype=np.float32) for end in (low, high))
    unknown = np.isnan(lows)
    lows[unknown], highs[unknown] = -LARGEST, LARGEST
    borders = []
    for a, b, by_rank, wanted in zip(lows, highs, unknown, counted, strict=True):
        if by_rank:
            top = int(float_rank(b))
            inner = of_rank([2 * top * i // cells - top for i in range(1, cells)])
        else:
            inner = np.linspace(float(a), float(b), cells + 1)[1:-1].astype(np.float32)
        borders.append(np.unique(inner[inner > a]) if wanted else np.zeros(0, dtype=np.float32))
    return Grid(tuple(borders), lows, highs)


def count_cells(
    X: NDArray[np.float32], borders: Sequence[NDArray[np.float32]]
) -> NDArray[np.int64]:
    """Count rows in the cells of all counted features, int64; missing values are in none."""
    parts = [np.zeros(0, dtype=np.int64)]
    for f, inner in enumerate(borders):
        if len(inner):
            column = X[:, f][~np.isnan(X[:, f])]
            cell = np.searchsorted(inner, column, side="right")
            parts.append(np.bincount(cell, minlength=len(inner) + 1))
    return np.concatenate(parts)


def split_counts(grid: Grid, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the counts of each feature, empty where it is not counted; below 0 is noise."""
    sizes = [len(inner) + 1 if len(inner) else 0 for inner in grid.borders]
    edges = np.cumsum([0, *sizes])
    return [np.maximum(counts[a:b], 0) for a, b in pairwise(edges)]


def refined(grid: Grid, counts: NDArray[np.int64], cells: int, least: NDArray[np.int64]) -> Grid:
    """Return a grid that is finer where the rows are.

    A cell that holds a share of a feature's rows is cut into that share of `cells`; cells that
    hold none are merged.

    `counts`: int64 array. As `count_cells` returns them, over all owners.
    `least`: int64 array, shape (d,). A cell with fewer rows counts as empty: what may be noise
    alone.
    """
    borders, low, high = [], grid.low.copy(), grid.high.copy()
    for f, found in enumerate(split_counts(grid, counts)):
        kept = np.flatnonzero(found >= np.maximum(least[f], 1))
        endless = high[f] == LARGEST
        if not len(kept):
            low[f], high[f] = (0, 0) if endless else (low[f], high[f])
            borders.append(np.zeros(0, dtype=np.float32))
            continue
        ends, total = grid.ends(f), int(found[kept].sum())
        parts = [
            np.linspace(ends[k], ends[k + 1], max(1, int(found[k]) * cells // total) + 1)
            for k in kept.tolist()
        ]
        every = np.unique(np.concatenate(parts).astype(np.float32))
        if endless:
            low[f], high[f] = every[0], every[-1]
        borders.append(every[(every > low[f]) & (every < high[f])])
    return Grid(tuple(borders), low, high)


def grid_cuts(grid: Grid, counts: NDArray[np.int64], max_bin: int) -> list[NDArray[Any]]:
    """Return the cuts of every feature, upper sentinel included, as a sketch's are chosen.

    A feature without counts gets one bin.
    """
    cuts = []
    for f, found in enumerate(split_counts(grid, counts)):
        cells = np.flatnonzero(found)
        starts = choose_cuts(cells, found[cells], max_bin) - 1 if len(cells) else cells
        cuts.append(np.append(grid.borders[f][starts], upper_sentinel(grid.high[f])))
    return cuts


def grid_minimum(grid: Grid) -> NDArray[np.float32]:
    """Return a threshold below the range of every feature, float32, shape (d,)."""
    return np.array([lower_sentinel(a) for a in grid.low], dtype=np.float32)
