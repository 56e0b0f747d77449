"""LightGBM's search for the best split of one column (``feature_histogram.hpp`` of LightGBM 4.7).

Sums are computed in LightGBM's order, so that the trees are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPSILON = float(np.float32(1e-15))


@dataclass(frozen=True)
class Limits:
    """Conditions that a split must satisfy."""

    min_data_in_leaf: int
    min_sum_hessian_in_leaf: float
    reg_lambda: float
    gamma: float


@dataclass(frozen=True)
class LeafTotals:
    """Gradient sum, hessian sum and number of rows of a leaf.

    The number is estimated from hessians.
    """

    gradient: float
    hessian: float
    rows: int


@dataclass(frozen=True)
class Split:
    """A split of one column. Bins up to `bin` go left.

    Attributes
    ----------
    feature, bin : int
        Column, and last bin that goes left.
    gain : float
        Gain minus that of the leaf and `gamma`.
    left, right : LeafTotals
        Sums of both sides.
    default_left : bool
        Whether missing values go left.
    """

    feature: int
    bin: int
    gain: float
    left: LeafTotals
    right: LeafTotals
    default_left: bool

    def beats(self, other: Split | None) -> bool:
        """Return whether this split is better than another.

        Equal gains: the first column is better.
        """
        if other is None or self.gain != other.gain:
            return other is None or self.gain > other.gain
        return self.feature < other.feature


def fixed(
    sums: NDArray[np.float64], frequent: int, gradient: float, hessian: float
) -> NDArray[np.float64]:
    """Return the sums of all bins, float64, shape (b, 2), including the most frequent one.

    The histogram lacks the most frequent bin, which is the difference of the leaf and all other
    bins.

    Parameters
    ----------
    sums : float64 array, shape (b, 2), or (b - 1, 2) if the most frequent bin is the first
        Sums of the bins.
    frequent : int
        The most frequent bin.
    gradient, hessian : float
        Sums of the leaf.
    """
    all_bins = sums if frequent else np.concatenate([np.zeros((1, 2)), sums])
    remaining = np.delete(all_bins, frequent, axis=0)
    all_bins = all_bins.copy()
    all_bins[frequent] = np.subtract.accumulate([[gradient, hessian], *remaining])[-1]
    return all_bins


def leaf_value(sums: LeafTotals, reg_lambda: float) -> float:
    """Return the prediction of a leaf without the learning rate."""
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
    """Return the best split of a column.

    None if no split satisfies the limits with a positive gain.

    Parameters
    ----------
    feature : int
        Number of the column.
    sums : float64 array, shape (b, 2)
        Gradients and hessians of all bins.
    leaf : LeafTotals
        Sums of the leaf.
    limits : Limits
        Conditions.
    frequent : int
        The bin that histograms lack, if it is 0.
    missing : bool
        Whether the last bin contains missing values, which can go to either side.
    """
    both = missing and len(sums) > 2
    # LightGBM does not store bin 0 if it is the most frequent one.
    start = 1 if frequent == 0 else 0
    padded_leaf = LeafTotals(leaf.gradient, leaf.hessian + 2 * EPSILON, leaf.rows)
    best = _search(feature, sums, padded_leaf, limits, True, both)
    if both:
        forth = _search(feature, sums, padded_leaf, limits, False, both, start)
        if forth is not None and (best is None or forth.gain > best.gain):
            best = forth
    elif missing and best is not None:
        best = Split(feature, best.bin, best.gain, best.left, best.right, False)
    return best


def _search(
    feature: int,
    sums: NDArray[np.float64],
    leaf: LeafTotals,
    limits: Limits,
    back: bool,
    missing: bool,
    start: int = 0,
) -> Split | None:
    """Search from one end. From the right end, missing values go left."""
    last = len(sums) - 1 - missing  # the last bin with values
    factor = leaf.rows / leaf.hessian
    order = np.arange(last, 0, -1) if back else np.arange(len(sums) - 1)
    # LightGBM estimates the number of rows of a bin from its hessian.
    counts = np.floor(sums[:, 1] * factor + 0.5).astype(np.int64)
    first = np.array([0.0, EPSILON])
    if not back and missing and start:
        # The missing sums are the difference of the leaf and all other bins.
        all_rows = [leaf.gradient, leaf.hessian - EPSILON]
        first = np.subtract.accumulate([all_rows, *sums[1:]])[-1]
        rows = leaf.rows - counts[1:].sum()
        steps = np.concatenate([first[None], sums[1:-1]])
        near_rows = np.cumsum(np.append(rows, counts[1:-1]))
        near = np.cumsum(steps, axis=0)
    else:
        near = np.cumsum(np.concatenate([first[None], sums[order]]), axis=0)[1:]
        near_rows = np.cumsum(counts[order])
    far = np.array([leaf.gradient, leaf.hessian]) - near
    far_rows = leaf.rows - near_rows
    allowed = (near_rows >= limits.min_data_in_leaf) & (far_rows >= limits.min_data_in_leaf)
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
    rows = int((far_rows if back else near_rows)[k])
    left = LeafTotals(G, H - EPSILON, rows)
    right = LeafTotals(leaf.gradient - G, leaf.hessian - H - EPSILON, leaf.rows - rows)
    bin = int(order[k]) - 1 if back else int(order[k])
    return Split(feature, bin, float(gains[k] - shift), left, right, back)


def _gain(sums: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Return ``G^2 / (H + lambda)``."""
    gains: NDArray[np.float64] = sums[:, 0] ** 2 / (sums[:, 1] + limits.reg_lambda)
    return gains
