"""Leaf weight and gain of a node from its gradient and hessian sums, as in XGBoost.

See Chen and Guestrin, "XGBoost: a scalable tree boosting system", 2016, equations 5 to 7.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.fixed_point import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams


def node_weights(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``-G / (H + lambda)``, float32, shape (...), the step that minimises the loss.

    With an L1 penalty, alpha is first subtracted from ``|G|``, down to 0. The weight is 0 if the
    hessian sum is below `min_child_weight`.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    return weights_of(values[..., 0], values[..., 1], params)


def weights_of(
    g: NDArray[np.float64], h: NDArray[np.float64], params: TreeParams
) -> NDArray[np.float32]:
    """Return the result of `node_weights`, given sums in float64.

    Parameters
    ----------
    g, h : float64 array, shape (...)
        Gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    """
    usable = (h > 0) & (h >= np.float32(params.min_child_weight))
    reg = np.where(usable, h + np.float64(np.float32(params.reg_lambda)), 1.0)
    weight: NDArray[np.float64] = np.where(usable, -np.sign(g) * _beyond(g, params) / reg, 0.0)
    return weight.astype(np.float32)


def node_gains(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``G^2 / (H + lambda)``, float32, shape (...), 0 if the hessian sum is not positive.

    Numerator and denominator are first rounded to float32, as in XGBoost.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    g, h = _beyond(values[..., 0], params), values[..., 1]
    reg = np.where(h > 0, h + np.float64(np.float32(params.reg_lambda)), 1.0).astype(np.float32)
    gain: NDArray[np.float32] = np.where(h > 0, (g * g).astype(np.float32) / reg, np.float32(0))
    return gain


def _beyond(g: NDArray[np.float64], params: TreeParams) -> NDArray[np.float64]:
    """Return ``max(|G| - alpha, 0)``: XGBoost's ThresholdL1 without its sign."""
    return np.maximum(np.abs(g) - np.float64(np.float32(params.reg_alpha)), 0.0)
