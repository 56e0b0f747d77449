"""The best split of every node of a level, as XGBoost's `hist` chooses it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.binning import Cuts
from fedtrees.trees.fixed_point import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.jit import kernel
from fedtrees.trees.params import TreeParams

MIN_GAIN = np.float32(1e-6)  # XGBoost's kRtEps: a split must gain more than rounding can


@dataclass(frozen=True, eq=False)
class Splits:
    """One decision per node.

    Attributes
    ----------
    feature : int32 array, shape (n_nodes,)
        Split column, -1 if the node stays a leaf.
    bin : int32 array, shape (n_nodes,)
        Rows of bins up to this one go left; -1 sends left only missing values.
    threshold : float32 array, shape (n_nodes,)
        ``cuts.values`` of that bin: a row goes left iff ``x < threshold``. 0 at a leaf.
    default_left : bool array, shape (n_nodes,)
        Where missing values go.
    gain : float32 array, shape (n_nodes,)
        Loss reduction, 0 at a leaf.
    left_sums, right_sums : int64 array, shape (n_nodes, 2)
        Fixed-point gradient and hessian sums of the children, missing values included; 0 at a leaf.
    """

    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    gain: NDArray[np.float32]
    left_sums: NDArray[np.int64]
    right_sums: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.feature.shape[0])

    def where(self, chosen: NDArray[Any]) -> Splits:
        """Return the splits of some nodes (mask or indices)."""
        return Splits(*(getattr(self, f.name)[chosen] for f in fields(self)))


@kernel
def _gain(g: float, h: float, reg_lambda: float, alpha: float) -> np.float32:
    if h <= 0.0:  # an empty or, with noisy sums, an impossible child
        return np.float32(0)
    g = max(abs(g) - alpha, 0.0)  # XGBoost's ThresholdL1, without its sign
    return np.float32(g * g) / np.float32(h + reg_lambda)  # XGBoost divides in float32


@kernel
def _scan(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    offsets: NDArray[np.int32],
    mask: NDArray[np.bool_],
    limits: NDArray[np.float64],
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    gain: NDArray[np.float32],
    left_sums: NDArray[np.int64],
) -> None:
    reg_lambda, alpha, weight, unit_g, unit_h = (
        limits[0],
        limits[1],
        limits[2],
        limits[3],
        limits[4],
    )
    masked = mask.shape[0] > 0
    for node in range(hist.shape[0]):
        tg = totals[node, 0]
        th = totals[node, 1]
        root = _gain(tg * unit_g, th * unit_h, reg_lambda, alpha)
        best = np.float32(0)
        for f in range(offsets.shape[0] - 1):
            # Forward: missing values go right.
            lg = np.int64(0)
            lh = np.int64(0)
            for i in range(offsets[f], offsets[f + 1]):
                lg += hist[node, i, 0]
                lh += hist[node, i, 1]
                if masked and not mask[node, i]:
                    continue
                a = lh * unit_h
                b = (th - lh) * unit_h
                if a < weight or b < weight:
                    continue
                change = (
                    _gain(lg * unit_g, a, reg_lambda, alpha)
                    + _gain((tg - lg) * unit_g, b, reg_lambda, alpha)
                    - root
                )
                if change > best and change < np.inf:
                    best = change
                    feature[node] = f
                    bin[node] = i - offsets[f]
                    default_left[node] = False
                    left_sums[node, 0] = lg
                    left_sums[node, 1] = lh
            if lg == tg and lh == th:
                continue
            # Backward: missing values go left.
            rg = np.int64(0)
            rh = np.int64(0)
            for i in range(offsets[f + 1] - 1, offsets[f] - 1, -1):
                rg += hist[node, i, 0]
                rh += hist[node, i, 1]
                # Before the first bin: the same two groups as after the last one, so its mask.
                if masked and not mask[node, i - 1 if i > offsets[f] else offsets[f + 1] - 1]:
                    continue
                a = (th - rh) * unit_h
                b = rh * unit_h
                if a < weight or b < weight:
                    continue
                change = (
                    _gain((tg - rg) * unit_g, a, reg_lambda, alpha)
                    + _gain(rg * unit_g, b, reg_lambda, alpha)
                    - root
                )
                if change > best and change < np.inf:
                    best = change
                    feature[node] = f
                    bin[node] = i - offsets[f] - 1
                    default_left[node] = True
                    left_sums[node, 0] = tg - rg
                    left_sums[node, 1] = th - rh
        gain[node] = best


def best_splits(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    cuts: Cuts,
    params: TreeParams,
    mask: NDArray[np.bool_] | None = None,
    bits: Bits = UNIT_BITS,
) -> Splits:
    """Choose the split of every node.

    Gains follow XGBoost's CPU `hist`: ``G^2`` and ``H + lambda`` are rounded to float32 and divided
    in float32; the two sides are added and the parent's gain subtracted, in float32 too. The
    strictly greater gain wins, so ties go to the lowest feature, then to the scan that sends
    missing values right, then to the first bin scanned.

    Parameters
    ----------
    hist : int64 array, shape (n_nodes, total_bins, 2)
        Fixed-point sums per bin. They may carry noise: sides with a hessian sum of 0 or less gain
        nothing, and no split needs both sides to be plausible.
    totals : int64 array, shape (n_nodes, 2)
        Fixed-point sums of the nodes, missing values included.
    cuts : Cuts
    params : TreeParams
        Uses ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight``.
    mask : bool array, shape (n_nodes, total_bins), optional
        Splits that may be chosen, by the bin they follow.
    bits : pair of int
        Binary places of the gradients and of the hessians in `hist`.
    """
    n = len(hist)
    feature, bin = np.full(n, -1, dtype=np.int32), np.full(n, -1, dtype=np.int32)
    default_left, gain = np.zeros(n, dtype=bool), np.zeros(n, dtype=np.float32)
    left_sums = np.zeros((n, 2), dtype=np.int64)
    limits = np.array(  # XGBoost keeps its parameters in float32
        [params.reg_lambda, params.reg_alpha, params.min_child_weight], dtype=np.float32
    ).astype(np.float64)
    limits = np.append(limits, np.ldexp(1.0, np.negative(bits)))
    allowed = np.zeros((0, 0), dtype=bool) if mask is None else mask
    hist, totals, allowed = _readonly(hist), _readonly(totals), _readonly(allowed)
    _scan(hist, totals, cuts.offsets, allowed, limits, feature, bin, default_left, gain, left_sums)
    right_sums = totals - left_sums
    leaf = (feature < 0) | (gain <= MIN_GAIN) | (gain < np.float32(params.gamma))
    leaf |= (left_sums[:, 1] == 0) | (right_sums[:, 1] == 0)
    threshold = cuts.thresholds(np.maximum(feature, 0), bin)
    for array, empty in (
        (feature, -1),
        (bin, -1),
        (threshold, 0),
        (default_left, False),
        (gain, 0),
    ):
        array[leaf] = empty
    left_sums[leaf] = 0
    right_sums[leaf] = 0
    return Splits(feature, bin, threshold, default_left, gain, left_sums, right_sums)


def _readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view: what comes out of a message and what does not compile alike."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def leaf_values(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return leaf outputs ``-G / (H + lambda) * eta`` as margins, float32, shape (k,).

    With an L1 penalty, ``G`` is first drawn towards zero by alpha.

    Parameters
    ----------
    sums : int64 array, shape (k, 2)
        Fixed-point gradient and hessian sums of the leaves.
    params : TreeParams
    bits : pair of int
        Binary places of the sums.
    """
    g, h = from_fixed(sums, bits).T
    usable = (h > 0) & (h >= np.float32(params.min_child_weight))
    reg = np.where(usable, h + np.float64(np.float32(params.reg_lambda)), 1.0)
    g = np.sign(g) * np.maximum(np.abs(g) - np.float64(np.float32(params.reg_alpha)), 0.0)
    weight = np.where(usable, -g / reg, 0.0).astype(np.float32)
    return weight * np.float32(params.learning_rate)
