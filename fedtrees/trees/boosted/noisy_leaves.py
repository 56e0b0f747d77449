"""Boosted trees of which only the leaves know data: bounded rows in, noisy sums out."""

import math

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.fixed_point import FIXED_POINT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.newton import weights_of
from fedtrees.trees.boosted.params import TreeParams

# Factors are rounded; a row that is scaled down this little more stays below its bound.
_BELOW = 1 - 2.0**-40


def places_for(size: float) -> int:
    """Return the binary places of sums whose rows, or noise, are of this size: 30 up to size 1."""
    if not math.isfinite(size):
        return FIXED_POINT_BITS
    return FIXED_POINT_BITS - max(0, math.ceil(math.log2(max(size, 1.0))))


def bounded(units: NDArray[np.int64], norm: float, ratio: float, bits: Bits) -> NDArray[np.int64]:
    """Return rows scaled down to ``|g|^2 + |h / ratio|^2 <= norm^2``, int64, shape (K, n, 2).

    The bound on a row's K gradients and K hessians is exceeded by nothing, in whole units.

    `units`: int64 array, shape (K, n, 2). Fixed-point gradients and hessians.
    `norm`: In units of the gradient; infinite: no bound.
    """
    if math.isinf(norm):
        return units
    parts = np.ldexp(units.astype(np.float64), -np.array(bits)) / (1.0, ratio)
    size = np.sqrt((parts**2).sum(axis=(0, 2)))
    large = size > norm * _BELOW
    out = units.copy()
    out[:, large] = np.trunc(units[:, large] * (norm * _BELOW / size[large])[:, None])
    return out


def noisy_leaf_values(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits, scale: float
) -> NDArray[np.float32]:
    """Return leaf outputs from sums with Gaussian noise, float32, shape (k,).

    ``-G / (H + lambda (1 + scale^2 / H))``: the posterior mean of a weight of prior variance
    ``1 / lambda`` whose gradient sum is read through noise, in place of XGBoost's posterior mode
    without it, which it is for scale 0. Nothing is read but what was released.

    `sums`: int64 array, shape (k, 2). Fixed-point gradient and hessian sums.
    `scale`: Standard deviation of the noise on gradient sums.
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
    """Return a complete tree, whose missing values go left; heap order is XGBoost's here.

    `feature, threshold`: array, shape (2^depth - 1,). Tests in heap order.
    `value`: float32 array, shape (2^depth,). Of the leaves, from the left.
    `sums`: float64 array, shape (2^depth, 2). Gradient and hessian sums of the leaves; those of
    inner nodes are added up.
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
