"""Boosted trees in which only the leaf values depend on data: bounded rows and noisy sums."""

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import weights_of

# The factor compensates rounding errors, so that a scaled row is strictly below its bound.
_BELOW = 1 - 2.0**-40


def places_for(size: float) -> int:
    """Return the number of binary places for rows or noise of this size, 30 up to size 1."""
    if not math.isfinite(size):
        return FIXED_POINT_BITS
    return FIXED_POINT_BITS - max(0, math.ceil(math.log2(max(size, 1.0))))


def bounded(units: NDArray[np.int64], norm: float, ratio: float, bits: Bits) -> NDArray[np.int64]:
    """Scale rows down to ``|g|^2 + |h / ratio|^2 <= norm^2``, int64, shape (K, n, 2).

    The bound covers all K gradients and K hessians of a row. It is exact for the returned integers.

    Parameters
    ----------
    units : int64 array, shape (K, n, 2)
        Fixed-point gradients and hessians.
    norm : float
        Bound in units of the gradient. Infinite: no bound.
    ratio : float
        Weight of the hessians in the norm.
    bits : Bits
        Binary places of `units`.
    """
    if math.isinf(norm):
        return units
    parts = np.ldexp(units.astype(np.float64), -np.array(bits)) / (1.0, ratio)
    size = np.sqrt((parts**2).sum(axis=(0, 2)))
    large = size > norm * _BELOW
    out = units.copy()
    # Truncation towards zero cannot increase the norm.
    out[:, large] = np.trunc(units[:, large] * (norm * _BELOW / size[large])[:, None])
    return out


def noisy_leaf_values(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits, scale: float
) -> NDArray[np.float32]:
    """Return leaf values from sums with Gaussian noise, float32, shape (k,).

    The value is ``-G / (H + lambda (1 + scale^2 / H))``. This is the posterior mean of a weight
    with prior variance ``1 / lambda``, given a noisy gradient sum. For scale 0 it is XGBoost's
    value, the posterior mode without noise. The function only uses released sums.

    Parameters
    ----------
    sums : int64 array, shape (k, 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    scale : float
        Standard deviation of the noise on gradient sums.
    """
    g, h = from_fixed(sums, bits).T
    usable = (h > 0) & (h >= np.float32(params.min_child_weight))
    doubt = np.float64(np.float32(params.reg_lambda)) * scale**2 / np.where(usable, h, 1.0)
    return weights_of(g, np.where(usable, h + doubt, 0.0), params) * np.float32(
        params.learning_rate
    )


def complete_tree(
    feature: NDArray[np.int32],
    threshold: NDArray[np.float32],
    value: NDArray[np.float32],
    sums: NDArray[np.float64] | None = None,
) -> Tree:
    """Return a complete binary tree in which missing values go left.

    In a complete tree, heap order is XGBoost's node order.

    Parameters
    ----------
    feature, threshold : array, shape (2^depth - 1,)
        Splits in heap order.
    value : float32 array, shape (2^depth,)
        Values of the leaves, from left to right.
    sums : float64 array, shape (2^depth, 2), optional
        Gradient and hessian sums of the leaves. Those of inner nodes are computed by addition.
    """
    inner, leaves = len(feature), len(value)
    split = np.arange(inner + leaves) < inner
    left = np.where(split, 2 * np.arange(inner + leaves) + 1, -1).astype(np.int32)
    both = None
    if sums is not None:
        both = np.concatenate([np.zeros((inner, 2)), sums])
        for node in range(inner - 1, -1, -1):
            both[node] = both[2 * node + 1] + both[2 * node + 2]
    return Tree(
        feature=np.concatenate([feature, np.full(leaves, -1)]).astype(np.int32),
        threshold=np.concatenate([threshold, np.zeros(leaves)]).astype(np.float32),
        left=left,
        right=np.where(split, left + 1, -1).astype(np.int32),
        default_left=split,
        value=np.concatenate([np.zeros(inner), value]).astype(np.float32),
        g=None if both is None else both[:, 0],
        h=None if both is None else both[:, 1],
    )
