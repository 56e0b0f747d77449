"""Cut points from quantile sketches, which each party computes locally and which can be merged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
