"""The integers that sums of gradients are kept in.

Integer sums do not depend on their order, hence not on how rows are spread over owners, and are
what masking modulo 2^64 and Paillier need.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

# One unit is 2^-30. A float32 of size 2^-7 or more is then a whole number of units, smaller ones
# are off by at most 2^-31; and |g| <= 1 leaves room for 2^33 rows in an int64.
FIXED_POINT_BITS = 30

_FINEST_BITS = 50  # of a gradient of weight 1, leaving int64 room for residuals up to 2^12

_BLOCK = 65536  # rows that are converted at a time: what stands aside is small

LOSS_BITS = 20  # losses of held-out rows add up in steps of 2^-20

Bits = tuple[int, int]  # binary places of the gradient and of the hessian
UNIT_BITS: Bits = (FIXED_POINT_BITS, FIXED_POINT_BITS)


def to_fixed(values: NDArray[Any], bits: int | Bits = FIXED_POINT_BITS) -> NDArray[np.int64]:
    """Return the nearest whole number of units, int64, same shape.

    Raises `DataError` if a value is not finite or does not fit.

    `values`: float array, shape (...) or, with two `bits`, (..., 2)
    `bits`: One unit is ``2^-bits``; a pair gives gradients and hessians units of their own.
    """
    values = np.asarray(values)
    units = np.empty(values.shape, dtype=np.int64)
    rows, into = ((a.reshape(-1, 2) if isinstance(bits, tuple) else a.reshape(-1))
                  for a in (values, units))  # fmt: skip
    for begin in range(0, len(rows), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        into[part] = _whole(rows[part], bits)
    return units


_LARGEST_BITS = 60  # of a unit that `saturated` returns; a sum of eight of them fits into int64


def saturated(values: NDArray[Any], bits: Bits) -> NDArray[np.float64]:
    """Return gradients and hessians limited to what `to_fixed` accepts, shape (..., 2).

    Predictions that follow from the messages of another party may be so large that a gradient does
    not fit into int64. An error would tell this party that there is such a row. A gradient that is
    not a number becomes 0.
    """
    limits = np.ldexp(1.0, _LARGEST_BITS - np.array(bits))
    return np.asarray(np.clip(np.nan_to_num(values.astype(np.float64)), -limits, limits))


def _whole(values: NDArray[Any], bits: int | Bits) -> NDArray[np.float64]:
    """Return the nearest whole number of units, as floats."""
    scaled = values.astype(np.float64)
    if isinstance(bits, tuple):  # one column at a time: numpy is slow on rows of two
        for part, places in enumerate(bits):
            scaled[:, part] *= np.ldexp(1.0, places)
    else:
        scaled *= np.ldexp(1.0, bits)
    np.rint(scaled, out=scaled)
    if not np.abs(scaled).max(initial=0.0) < 2.0**63:  # also false for NaN
        raise DataError(
            f"a gradient is not finite, or too large for fixed point with {bits} binary places"
        )
    return scaled


def from_fixed(
    units: NDArray[np.int64], bits: int | Bits = FIXED_POINT_BITS
) -> NDArray[np.float64]:
    """Return units as float64, same shape; exact up to 2^53 units."""
    return np.asarray(units, dtype=np.float64) * np.ldexp(1.0, np.negative(bits))


def weighted(
    gradients: NDArray[np.float32], weight: NDArray[Any] | None, bits: Bits
) -> NDArray[Any]:
    """Return gradients times sample weights, shape (K, n, 2); a row of weight 3 is three rows.

    They are rounded to units before they are multiplied, so that this holds to the last bit.
    XGBoost multiplies in float32, which is off by one rounding; ``weight`` None changes nothing.
    """
    if weight is None:
        return gradients
    fine = tuple(min(max(b, FIXED_POINT_BITS), _FINEST_BITS) for b in bits)
    units = from_fixed(to_fixed(gradients, fine), fine)  # type: ignore[arg-type]
    return units * np.asarray(weight, np.float64)[:, None]


def bits_for(size: float, rows: float) -> int:
    """Return the binary places for sums over so many values of about this size.

    30 from size 1 up, as long as int64 has room, and more below.

    `size`: A bound on the mean absolute value.
    """
    if not 0 < size < math.inf:
        return FIXED_POINT_BITS
    fine = FIXED_POINT_BITS - min(0, math.ceil(math.log2(size)))
    return min(fine, 61 - math.ceil(math.log2(size * rows)))
