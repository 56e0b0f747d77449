"""Best splits of all nodes of a level, with the arithmetic of XGBoost's `hist`."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.categorical import best_categories
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splits import Splits, node_weights
from fedtrees.trees.jit import readonly

MIN_GAIN = np.float32(1e-6)  # XGBoost's kRtEps: smaller gains can be rounding errors


@inner_kernel
def _gain(g: float, h: float, reg_lambda: float, alpha: float) -> np.float32:
    """Return ``G^2 / (H + lambda)`` of one child."""
    if h <= 0.0:  # an empty child or, with noisy sums, an impossible one
        return np.float32(0)
    g = max(abs(g) - alpha, 0.0)  # XGBoost's ThresholdL1 without its sign
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
    """Choose the best threshold of every node by a forward and a backward scan over all bins."""
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
            # Without missing values, the backward scan finds the same splits.
            if lg == tg and lh == th:
                continue
            # Backward: missing values go left.
            rg = np.int64(0)
            rh = np.int64(0)
            for i in range(offsets[f + 1] - 1, offsets[f] - 1, -1):
                rg += hist[node, i, 0]
                rh += hist[node, i, 1]
                # A split before the first bin separates the same groups as one after the last bin,
                # so that they share a mask.
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
    *,
    pruned: bool = True,
) -> Splits:
    """Choose the best split of every node.

    Gains follow XGBoost's CPU `hist`: ``G^2`` and ``H + lambda`` are rounded to float32 and divided
    in float32. The gains of both children are added and that of the parent is subtracted, also in
    float32. Only a strictly larger gain replaces an earlier one. Ties therefore go to the lowest
    feature, then to the scan that sends missing values right, then to the first scanned bin.
    Features that `cuts` declares categorical are split as in `fedtrees.trees.boosted.categorical`.

    Parameters
    ----------
    hist : int64 array, shape (n_nodes, total_bins, 2)
        Fixed-point sums per bin. They may contain noise: children with a hessian sum of 0 or less
        have a gain of 0, and the second child need not be plausible.
    totals : int64 array, shape (n_nodes, 2)
        Fixed-point sums of the nodes, including missing values.
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Uses ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight`` and, for categories,
        ``max_cat_to_onehot``, ``max_cat_threshold``.
    mask : bool array, shape (n_nodes, total_bins), optional
        Splits that may be chosen, by the bin after which they split.
    bits : Bits
        Binary places of the gradients and of the hessians in `hist`.
    pruned : bool
        Whether nodes stay leaves if their best split gains too little (`prune`).
    """
    splits = _best_thresholds(hist, totals, cuts, params, mask, bits)
    if cuts.categorical is not None:
        rival = best_categories(hist, totals, cuts, params, mask, bits)
        # Of equal gains, the lower feature wins, as in a common scan.
        tie = (rival.gain == splits.gain) & (rival.feature < splits.feature)
        rival.replace(~((rival.gain > splits.gain) | tie), splits)
        splits = rival
    if pruned:
        prune(splits, params)
    return splits


def prune(s: Splits, params: TreeParams) -> None:
    """Replace splits by leaves, in place, if a split is impossible or gains too little."""
    leaf = (s.feature < 0) | (s.gain <= MIN_GAIN) | (s.gain < np.float32(params.gamma))
    leaf |= (s.left_sums[:, 1] == 0) | (s.right_sums[:, 1] == 0)
    s.replace(leaf, Splits.leaves(len(s)))


def _best_thresholds(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    cuts: Cuts,
    params: TreeParams,
    mask: NDArray[np.bool_] | None,
    bits: Bits,
) -> Splits:
    """Choose the best split by a threshold of every node, even if its gain is small."""
    best = Splits.leaves(len(hist))
    limits = np.array(  # XGBoost stores its parameters in float32
        [params.reg_lambda, params.reg_alpha, params.min_child_weight], dtype=np.float32
    ).astype(np.float64)
    limits = np.append(limits, np.ldexp(1.0, np.negative(bits)))
    allowed = np.zeros((0, 0), dtype=bool) if mask is None else mask
    if cuts.categorical is not None:
        ordered = ~np.repeat(cuts.categorical, cuts.n_bins)
        allowed = np.broadcast_to(ordered, hist.shape[:2]) if mask is None else mask & ordered
    _scan(
        readonly(hist),
        readonly(totals),
        cuts.offsets,
        readonly(allowed),
        limits,
        best.feature,
        best.bin,
        best.default_left,
        best.gain,
        best.left_sums,
    )
    best.threshold[:] = cuts.thresholds(np.maximum(best.feature, 0), best.bin)
    np.subtract(totals, best.left_sums, out=best.right_sums)
    return best


def leaf_values(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return leaf values ``-G / (H + lambda) * eta`` as margins, float32, shape (k,).

    With an L1 penalty, alpha is first subtracted from ``|G|``, down to 0.

    Parameters
    ----------
    sums : int64 array, shape (k, 2)
        Fixed-point gradient and hessian sums of the leaves.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    return node_weights(sums, params, bits) * np.float32(params.learning_rate)
