"""LightGBM's search for the best split of one column (``feature_histogram.hpp`` of LightGBM 4.7).

Sums are taken in its order, so that trees come out the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPSILON = float(np.float32(1e-15))


@dataclass(frozen=True)
class Limits:
    """What a split must keep to."""

    min_data_in_leaf: int
    min_sum_hessian_in_leaf: float
    reg_lambda: float
    gamma: float


@dataclass(frozen=True)
class LeafTotals:
    """Gradient, hessian and rows of a leaf; rows are rounded off hessians."""

    gradient: float
    hessian: float
    rows: int


@dataclass(frozen=True)
class Split:
    """A split of one column: bins up to `bin` go left.

    `gain`: Over that of the leaf, and `gamma`.
    """

    feature: int
    bin: int
    gain: float
    left: LeafTotals
    right: LeafTotals
    default_left: bool

    def beats(self, other: Split | None) -> bool:
        """Return whether it is taken in place of another: the first column, where gains are one."""
        if other is None or self.gain != other.gain:
            return other is None or self.gain > other.gain
        return self.feature < other.feature


def fixed(
    sums: NDArray[np.float64], frequent: int, gradient: float, hessian: float
) -> NDArray[np.float64]:
    """Return the sums of all bins, float64, (b, 2): the most frequent one's are what is left.

    `sums`: float64 array, shape (b, 2), or (b - 1, 2) where that is the first.
    """
    whole = sums if frequent else np.concatenate([np.zeros((1, 2)), sums])
    others = np.delete(whole, frequent, axis=0)
    whole = whole.copy()
    whole[frequent] = np.subtract.accumulate([[gradient, hessian], *others])[-1]
    return whole


def leaf_value(sums: LeafTotals, reg_lambda: float) -> float:
    """Return what a leaf predicts, before shrinkage."""
    return -sums.gradient / (sums.hessian + EPSILON + reg_lambda)


def best_split(
    feature: int,
    sums: NDArray[np.float64],
    leaf: LeafTotals,
    limits: Limits,
    *,
    frequent: int,
    missing: bool,
) -> Split | None:
    """Return the best split of a column, None if none keeps to the limits and gains anything.

    `sums`: float64 array, shape (b, 2). Gradients and hessians of all bins.
    `frequent`: The bin that histograms leave out, if it is 0.
    `missing`: Whether the last bin is of missing values, which go either way.
    """
    both = missing and len(sums) > 2
    start = 1 if frequent == 0 else 0
    whole = LeafTotals(leaf.gradient, leaf.hessian + 2 * EPSILON, leaf.rows)
    found = _search(feature, sums, whole, limits, True, both)
    if both:
        forth = _search(feature, sums, whole, limits, False, both, start)
        if forth is not None and (found is None or forth.gain > found.gain):
            found = forth
    elif missing and found is not None:
        found = Split(feature, found.bin, found.gain, found.left, found.right, False)
    return found


def _search(
    feature: int,
    sums: NDArray[np.float64],
    leaf: LeafTotals,
    limits: Limits,
    back: bool,
    missing: bool,
    start: int = 0,
) -> Split | None:
    """Search from one end; what is missing goes left if it is from the right end."""
    last = len(sums) - 1 - missing  # the last bin with values
    factor = leaf.rows / leaf.hessian
    order = np.arange(last, 0, -1) if back else np.arange(len(sums) - 1)
    counts = np.floor(sums[:, 1] * factor + 0.5).astype(np.int64)
    first = np.array([0.0, EPSILON])
    if not back and missing and start:
        # what histograms leave out is what all others lack
        all_rows = [leaf.gradient, leaf.hessian - EPSILON]
        first = np.subtract.accumulate([all_rows, *sums[1:]])[-1]
        rows = leaf.rows - counts[1:].sum()
        steps = np.concatenate([first[None], sums[1:-1]])
        held = np.cumsum(np.append(rows, counts[1:-1]))
        near = np.cumsum(steps, axis=0)
    else:
        near = np.cumsum(np.concatenate([first[None], sums[order]]), axis=0)[1:]
        held = np.cumsum(counts[order])
    far = np.array([leaf.gradient, leaf.hessian]) - near
    rest = leaf.rows - held
    allowed = (held >= limits.min_data_in_leaf) & (rest >= limits.min_data_in_leaf)
    allowed &= near[:, 1] >= limits.min_sum_hessian_in_leaf
    allowed &= far[:, 1] >= limits.min_sum_hessian_in_leaf
    shift = leaf.gradient**2 / (leaf.hessian + limits.reg_lambda) + limits.gamma
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = (
            _gain(far, limits) + _gain(near, limits)
            if back
            else _gain(near, limits) + _gain(far, limits)
        )
    gains = np.where(allowed & (gains > shift), gains, -np.inf)
    if not len(gains) or gains.max() == -np.inf:
        return None
    k = int(np.argmax(gains))
    G, H = (far if back else near)[k].tolist()
    rows = int((rest if back else held)[k])
    left = LeafTotals(G, H - EPSILON, rows)
    right = LeafTotals(leaf.gradient - G, leaf.hessian - H - EPSILON, leaf.rows - rows)
    bin = int(order[k]) - 1 if back else int(order[k])
    return Split(feature, bin, float(gains[k] - shift), left, right, back)


def _gain(sums: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    gains: NDArray[np.float64] = sums[:, 0] ** 2 / (sums[:, 1] + limits.reg_lambda)
    return gains
