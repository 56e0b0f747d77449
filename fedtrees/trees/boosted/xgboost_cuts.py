"""Cut points of one table, exactly as XGBoost's `hist` computes them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.binning import Cuts, check_max_bin, check_rows, lower_sentinel
from fedtrees.trees.sketch import POINTS_PER_BIN

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
        selected = _pruned(below, point_weights, size)
        points, below, point_weights = points[selected], below[selected], point_weights[selected]
    return points[1:max_bin]


def _pruned(
    below: NDArray[np.float64], held: NDArray[np.float64], size: int
) -> NDArray[np.intp] | slice:
    """Return which points remain after pruning to `size` points (XGBoost's ``SetPrune``).

    Parameters
    ----------
    below : float64 array, shape (m,)
        Weight of the rows up to and including each point.
    held : float64 array, shape (m,)
        Weight of each point.
    size : int
        Number of points.
    """
    m = len(below)
    if m <= size:
        return slice(None)
    least = below - held  # smallest rank of a point, whose largest rank is `below`
    # Ranks are compared in doubled form, because a point has a range of ranks.
    reach = least[-1] - below[0]
    targets = 2 * (np.arange(1, size - 1) * reach / (size - 1) + below[0])
    at = np.maximum(np.searchsorted(below + least, targets, side="right") - 1, 1)
    at, targets = at[at < m - 1], targets[at < m - 1]
    nearer = np.where(targets < below[at] + least[at + 1], at, at + 1)
    return np.unique(np.concatenate([[0], nearer, [m - 1]]))
