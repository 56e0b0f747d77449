"""Fixed-point integers, in which gradients are summed.

Sums of integers do not depend on their order, and therefore not on the distribution of rows over
parties. Masking modulo 2^64 and Paillier encryption require integers.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

# One unit is 2^-30. A float32 of absolute value 2^-7 or more is then represented exactly. The error
# of a smaller one is at most 2^-31. With |g| <= 1, the sum of fewer than 2^33 rows fits an int64.
FIXED_POINT_BITS = 30

# Binary places of a gradient with weight 1, so that residuals up to 2^12 fit an int64.
_FINEST_BITS = 50

_BLOCK = 65536  # number of rows that are converted at a time, to limit the temporary memory

LOSS_BITS = 20  # losses of test rows are summed in units of 2^-20

Bits = tuple[int, int]  # binary places of the gradient and of the hessian
UNIT_BITS: Bits = (FIXED_POINT_BITS, FIXED_POINT_BITS)


def to_fixed(values: NDArray[Any], bits: int | Bits = FIXED_POINT_BITS) -> NDArray[np.int64]:
    """Return the nearest integer number of units, int64, same shape.

    Parameters
    ----------
    values : float array, shape (...) or, with two `bits`, (..., 2)
        Numbers.
    bits : int or pair of int
        One unit is ``2^-bits``. A pair gives gradients and hessians separate units.

    Raises
    ------
    DataError
        If a value is not finite or does not fit an int64.
    """
    values = np.asarray(values)
    units = np.empty(values.shape, dtype=np.int64)
    rows, into = ((a.reshape(-1, 2) if isinstance(bits, tuple) else a.reshape(-1))
                  for a in (values, units))  # fmt: skip
    for begin in range(0, len(rows), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        into[part] = _whole(rows[part], bits)
    return units


# Bits of the largest number of units that `saturated` returns, so that a sum of seven such numbers
# fits an int64.
_LARGEST_BITS = 60


def saturated(values: NDArray[Any], bits: Bits) -> NDArray[np.float64]:
    """Clip gradients and hessians to the range that `to_fixed` accepts, shape (..., 2).

    Predictions that follow from the messages of another party may be so large that a gradient does
    not fit an int64. An error would reveal to this party that there is such a row. A gradient that
    is not a number becomes 0.
    """
    limits = np.ldexp(1.0, _LARGEST_BITS - np.array(bits))
    return np.asarray(np.clip(np.nan_to_num(values.astype(np.float64)), -limits, limits))


def _whole(values: NDArray[Any], bits: int | Bits) -> NDArray[np.float64]:
    """Return the nearest integer number of units, as floats."""
    scaled = values.astype(np.float64)
    # One column at a time, because numpy is slow on rows of two numbers.
    if isinstance(bits, tuple):
        for part, places in enumerate(bits):
            scaled[:, part] *= np.ldexp(1.0, places)
    else:
        scaled *= np.ldexp(1.0, bits)
    np.rint(scaled, out=scaled)
    if not np.abs(scaled).max(initial=0.0) < 2.0**63:  # the comparison is also False for NaN
        raise DataError(
            f"a gradient is not finite, or too large for fixed point with {bits} binary places"
        )
    return scaled


def from_fixed(
    units: NDArray[np.int64], bits: int | Bits = FIXED_POINT_BITS
) -> NDArray[np.float64]:
    """Return units as float64, same shape. The result is exact up to 2^53 units."""
    return np.asarray(units, dtype=np.float64) * np.ldexp(1.0, np.negative(bits))


def weighted(
    gradients: NDArray[np.float32], weight: NDArray[Any] | None, bits: Bits
) -> NDArray[Any]:
    """Return gradients times sample weights, shape (K, n, 2).

    A row of weight 3 equals three rows.

    The gradients are rounded to units before the multiplication, so that this equality is exact.
    XGBoost multiplies in float32, which causes one rounding error.

    Parameters
    ----------
    gradients : float32 array, shape (K, n, 2)
        Gradients and hessians.
    weight : float array, shape (n,), or None
        Sample weights. None: the gradients are returned unchanged.
    bits : Bits
        Binary places of the sums.
    """
    if weight is None:
        return gradients
    fine = tuple(min(max(b, FIXED_POINT_BITS), _FINEST_BITS) for b in bits)
    units = from_fixed(to_fixed(gradients, fine), fine)  # type: ignore[arg-type]
    return units * np.asarray(weight, np.float64)[:, None]


def bits_for(size: float, rows: float) -> int:
    """Return the number of binary places for sums of numbers of about the same size.

    It is 30 for a size of 1 or more, as long as the sum fits an int64, and larger for a smaller
    size.

    Parameters
    ----------
    size : float
        Upper bound of the mean absolute value.
    rows : float
        Number of summands.
    """
    if not 0 < size < math.inf:
        return FIXED_POINT_BITS
    fine = FIXED_POINT_BITS - min(0, math.ceil(math.log2(size)))
    # A sum of at most 2^61 units leaves bits of an int64 in reserve.
    return min(fine, 61 - math.ceil(math.log2(size * rows)))
