"""The cut points XGBoost's `hist` finds in one table, value for value."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.binning import Cuts, check_max_bin, check_rows, lower_sentinel
from fedtrees.trees.sketch import POINTS_PER_BIN

_BEYOND = 1e-5  # from the greatest value to the last cut; XGBoost adds it in float64


def xgboost_cuts(X: NDArray[Any], max_bin: int = 256) -> Cuts:
    """Return the cuts of a table as XGBoost 3.2 sketches them on one thread.

    A column's quantile summary (Chen and Guestrin 2016, supplement) is pruned to
    ``8 max_bin + 1`` points, to ``8 max_bin``, and to ``max_bin + 1``; all but the first and last
    are cuts. XGBoost prunes the same way, but of a column with more than ``8 max_bin`` distinct
    values it prunes every ``16 max_bin + 2`` rows and merges, so that beyond so many rows its cuts
    depend on their order, and these are others of the same rank error.

    `X`: float array, shape (n, d). Rows; NaN marks a missing value.

    Raises `DataError` if a value is infinite. Raises `UsageError` if `max_bin` is out of range.
    """
    check_max_bin(max_bin)
    X = check_rows(X)
    cuts, minimum = [], []
    for column in X.T:
        present = column[~np.isnan(column)] + np.float32(0)  # -0 and 0 are one value
        points, held = np.unique(present, return_counts=True)
        if not len(points):  # one bin, as XGBoost gives a column without values
            points = np.zeros(1, dtype=np.float32)
        inner = pruned_cuts(points, held, max_bin)
        high = float(points[-1])
        cuts.append(np.append(inner, np.float32(high + (abs(high) + _BEYOND))))
        minimum.append(lower_sentinel(points[0]))
    return Cuts.join(cuts, np.array(minimum))


def pruned_cuts(points: NDArray[Any], weights: NDArray[np.int64], max_bin: int) -> NDArray[Any]:
    """Return the points that XGBoost makes cuts of; as `fedtrees.trees.sketch.choose_cuts`."""
    held = weights.astype(np.float64)
    below = np.cumsum(held)
    for size in (POINTS_PER_BIN * max_bin + 1, POINTS_PER_BIN * max_bin, max_bin + 1):
        kept = _pruned(below, held, size)
        points, below, held = points[kept], below[kept], held[kept]
    return points[1:max_bin]


def _pruned(
    below: NDArray[np.float64], held: NDArray[np.float64], size: int
) -> NDArray[np.intp] | slice:
    """Return which points of a summary survive pruning to so many: XGBoost's ``SetPrune``.

    `below`: float64 array, shape (m,). Weight of the rows up to and including each point.
    `held`: float64 array, shape (m,). Weight at the point.
    """
    m = len(below)
    if m <= size:
        return slice(None)
    least = below - held  # of the rank of a point; `below` is the greatest
    reach = least[-1] - below[0]
    wanted = 2 * (np.arange(1, size - 1) * reach / (size - 1) + below[0])
    at = np.maximum(np.searchsorted(below + least, wanted, side="right") - 1, 1)
    at, wanted = at[at < m - 1], wanted[at < m - 1]
    nearer = np.where(wanted < below[at] + least[at + 1], at, at + 1)
    return np.unique(np.concatenate([[0], nearer, [m - 1]]))
