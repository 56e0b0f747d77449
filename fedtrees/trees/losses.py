"""Binary logistic loss as XGBoost computes it, and the integers its sums are kept in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.jit import kernel

# One unit is 2^-30. A float32 of size 2^-7 or more is then a whole number of units, smaller ones
# are off by at most 2^-31; and |g| <= 1 leaves room for 2^33 rows in an int64. Integer sums do not
# depend on their order, hence not on how rows are spread over clients, and are what masking modulo
# 2^64 and Paillier need.
FIXED_POINT_BITS = 30
FIXED_POINT_SCALE = float(2**FIXED_POINT_BITS)

_ONE = np.float32(1)
_EPS = np.float32(1e-16)
_EXP_LIMIT = np.float32(88.7)  # expf overflows beyond it


def to_fixed(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the nearest whole number of units (2^-30), int64, same shape.

    Raises
    ------
    DataError
        If a value is not finite or does not fit.
    """
    scaled = np.rint(np.asarray(values, dtype=np.float64) * FIXED_POINT_SCALE)
    if not np.all(np.abs(scaled) < 2.0**63):  # also false for NaN
        raise DataError("a gradient is not finite or exceeds 2^33; fixed point cannot hold it")
    return scaled.astype(np.int64)


def from_fixed(units: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return units as float64, same shape; exact up to 2^53 units."""
    return np.asarray(units, dtype=np.float64) / FIXED_POINT_SCALE


def base_margin(base_score: float) -> np.float32:
    """Return the log-odds of a probability, in float32 as XGBoost does."""
    p = np.float32(base_score)
    if not 0 < p < 1:
        raise DataError(f"base score {base_score} is not strictly between 0 and 1; give one class")
    # The float32 logarithm of the C library is the rounded float64 one; numpy's can be one off.
    return np.float32(-math.log(_ONE / p - _ONE))


@kernel
def _sigmoid(margin: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(margin.shape[0]):
        x = min(-margin[i], _EXP_LIMIT)
        out[i] = _ONE / (np.float32(math.exp(x)) + _ONE + _EPS)


def sigmoid(margin: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return probabilities, float32, shape (n,), bit for bit as XGBoost computes them."""
    margin = np.ascontiguousarray(margin, dtype=np.float32)
    out = np.empty_like(margin)
    _sigmoid(margin, out)
    return out


def logistic_gradients(margin: NDArray[np.float32], y: NDArray[Any]) -> NDArray[np.float32]:
    """Return gradient and hessian of the log loss, float32, shape (n, 2).

    Parameters
    ----------
    margin : float32 array, shape (n,)
        Log-odds predicted so far.
    y : array, shape (n,)
        Labels 0 or 1.
    """
    p = sigmoid(margin)
    gh = np.empty((p.shape[0], 2), dtype=np.float32)
    gh[:, 0] = p - np.asarray(y, dtype=np.float32)
    gh[:, 1] = np.maximum(p * (_ONE - p), _EPS)
    return gh
