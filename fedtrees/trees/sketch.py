"""Cut points from quantile summaries that owners of rows compute alone and anyone can merge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Cuts, check_max_bin, check_rows, lower_sentinel, upper_sentinel

# Points a summary keeps per final bin: XGBoost's own factor between sketch and cuts.
POINTS_PER_BIN = 8
Choose = Callable[[NDArray[Any], NDArray[np.int64], int], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Sketch:
    """Per feature, points of the empirical distribution with the number of rows they stand for.

    `points`: float32 array, shape (m,). Values found in the data, strictly increasing within a
    feature.
    `weights`: int64 array, shape (m,). Rows in the half-open interval from the previous point
    (excluded) to this one (included); the first point also stands for the rows below it.
    `offsets`: int32 array, shape (d + 1,). Points of feature ``f`` are ``offsets[f]:offsets[f +
    1]``; none if all its values miss.
    `low`: float32 array, shape (d,). Smallest value of every feature, NaN if all its values are
    missing.
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
    """Summarise the present values of one column by at most ``size`` points."""
    column = np.sort(column[~np.isnan(column)]) + np.float32(0)  # -0 and 0 are one value
    last = np.flatnonzero(np.diff(column, append=np.float32(np.inf)) > 0)  # last row of each value
    if len(last) > size:
        groups = np.linspace(0, len(column), size + 1).astype(np.int64)[1:] - 1
        # A group ends at the last row of the value it reaches: equal values stay together.
        last = last[np.searchsorted(last, groups)]
        last = last[np.diff(last, prepend=-1) > 0]
    return column[last], np.diff(last, prepend=-1)


def local_sketch(X: NDArray[Any], max_bin: int = 256) -> Sketch:
    """Summarise one owner's rows.

    Features with at most ``8 * max_bin`` distinct values are kept exactly, with counts. Of others,
    ``8 * max_bin`` groups of equal size are represented by their largest value, so that the number
    of rows up to any value, read off the summary, is short by less than one group.

    Raises `DataError` if a value is infinite.

    `X`: float array, shape (n, d). Rows; NaN marks a missing value.
    `max_bin`: Bins the final cuts may have per feature.
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
    """Return those points of one feature's merged summary that bins start at, the first left out.

    `points`: array, shape (m,). Increasing: values, or numbers of cells.
    `weights`: int64 array, shape (m,). Rows each point stands for.
    """
    if len(points) <= max_bin:
        return points[1:]
    below = np.cumsum(weights)  # rows up to and including each point
    targets = np.arange(1, max_bin) * (int(below[-1]) / max_bin)
    reached = np.unique(np.searchsorted(below, targets, side="left"))
    return points[reached[reached < len(points) - 1] + 1]


def merge_sketches(
    sketches: Sequence[Sketch], max_bin: int = 256, choose: Choose = choose_cuts
) -> Cuts:
    """Return common cuts from the summaries of all owners.

    With at most ``max_bin`` distinct points every point gets its own bin. Otherwise cut ``j`` aims
    at rank ``j N / max_bin`` of the ``N`` present values of the feature. The number of rows below
    it is at least that rank and exceeds it by less than ``w + sum_i ceil(n_i / (8 max_bin))``,
    where owner ``i`` holds ``n_i`` of them and ``w`` is the weight of the point reached: the rows
    tied at it, or the groups ending there.

    Raises `DataError` if there is no sketch, or they differ in width. Raises `UsageError` if
    ``max_bin`` is below 2 or above 65534.

    `choose`: By what cuts are chosen instead.
    """
    check_max_bin(max_bin)
    widths = {s.n_features for s in sketches}
    if len(widths) != 1:
        raise DataError(f"sketches of {sorted(widths)} features cannot be merged")
    cuts, minimum = [], []
    for f in range(widths.pop()):
        spans = [slice(s.offsets[f], s.offsets[f + 1]) for s in sketches]
        every = np.concatenate([s.points[span] for s, span in zip(sketches, spans, strict=True)])
        counts = np.concatenate([s.weights[span] for s, span in zip(sketches, spans, strict=True)])
        if not len(every):  # nobody has a value: one bin, as XGBoost does
            cuts.append(np.array([upper_sentinel(np.float32(0))]))
            minimum.append(lower_sentinel(np.float32(0)))
            continue
        points, group = np.unique(every, return_inverse=True)
        weights = np.zeros(len(points), dtype=np.int64)
        np.add.at(weights, group, counts)
        cuts.append(np.append(choose(points, weights, max_bin), upper_sentinel(points[-1])))
        minimum.append(lower_sentinel(np.nanmin([s.low[f] for s in sketches])))
    return Cuts.join(cuts, np.array(minimum))


def quantile_cuts(X: NDArray[Any], max_bin: int = 256) -> Cuts:
    """Return the cuts of one table: those of a single owner."""
    return merge_sketches([local_sketch(X, max_bin)], max_bin)


def equal_width_cuts(low: ArrayLike, high: ArrayLike, max_bin: int = 256) -> Cuts:
    """Return cuts ``high - i (high - low) / max_bin``, as FedTree's horizontal mode places them.

    Raises `DataError` if the shapes differ, or ``low > high``, or a bound is infinite.

    `low, high`: float arrays, shape (d,). Smallest and largest value of every feature, over all
    owners. NaN: none is known.
    `max_bin`: Bins per feature. A constant feature gets one; so does one without values.
    """
    lows, highs = np.asarray(low, dtype=np.float32), np.asarray(high, dtype=np.float32)
    if lows.shape != highs.shape or lows.ndim != 1:
        raise DataError(f"bounds of shape {lows.shape} and {highs.shape}; give two of shape (d,)")
    if np.isinf(lows).any() or np.isinf(highs).any() or (lows > highs).any():
        raise DataError("equal-width cuts need finite bounds with low <= high")
    check_max_bin(max_bin)
    cuts = []
    lows = np.where(np.isnan(lows) | np.isnan(highs), np.float32(0), lows)
    highs = np.where(np.isnan(highs), lows, highs)
    for a, b in zip(lows.astype(np.float64), highs.astype(np.float64), strict=True):
        inner = (b - np.arange(max_bin - 1, 0, -1) * ((b - a) / max_bin)).astype(np.float32)
        inner = np.unique(inner[(inner > np.float32(a)) & (inner <= np.float32(b))])
        cuts.append(np.append(inner, upper_sentinel(np.float32(b))))
    return Cuts.join(cuts, np.array([lower_sentinel(a) for a in lows]))
