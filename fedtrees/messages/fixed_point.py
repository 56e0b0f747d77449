"""Exact fixed-point arithmetic with integers of unlimited length.

A number with `bits` binary places is represented by the integer ``value * 2^bits``. Arrays of such
integers have dtype object and contain Python integers. Messages contain them as bytes (`packed`).
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[Any]


def integers(values: Any) -> Integers:
    """Convert an array of integers to an array of Python integers of the same shape."""
    shape = np.shape(values)
    flat = [int(v) for v in np.asarray(values, dtype=object).ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(shape)


def encoded(values: NDArray[np.float64], bits: int) -> Integers:
    """Round each value to the nearest multiple of ``2^-bits``, exactly, and halves to even.

    Examples
    --------
    >>> encoded(np.array([0.5, -0.25]), bits=2).tolist()
    [2, -1]
    """
    scaled = [round(Fraction(v) * (1 << bits)) for v in np.ravel(values).tolist()]
    return integers(scaled).reshape(np.shape(values))


def decoded(values: Integers, bits: int) -> NDArray[np.float64]:
    """Return the float64 numbers that are nearest to ``values * 2^-bits``."""
    numbers = [float(Fraction(int(v), 1 << bits)) for v in np.ravel(values)]
    return np.array(numbers, dtype=np.float64).reshape(np.shape(values))


def rounded(values: Integers, places: int) -> Integers:
    """Remove the last binary places of each number, rounding to the nearest and halves up.

    Parameters
    ----------
    values : object array of Python integers
    places : int
        Number of binary places to remove. A negative number appends zeros instead.

    Returns
    -------
    values : object array, same shape
    """
    if places <= 0:
        return values << -places if len(values) else values
    # A right shift of Python integers rounds down, so that adding one half rounds to the nearest.
    half = 1 << (places - 1)
    return integers((values + half) >> places)


def packed(values: Integers) -> NDArray[np.uint8]:
    """Return integers as little-endian bytes, uint8, shape (..., width).

    All numbers have the width of the longest one, in two's complement.
    """
    flat = [int(v) for v in np.ravel(values)]
    # One bit more than the absolute value needs, for the sign.
    width = max((v.bit_length() // 8 + 1 for v in flat), default=1)
    raw = b"".join(v.to_bytes(width, "little", signed=True) for v in flat)
    return np.frombuffer(raw, np.uint8).reshape(*np.shape(values), width)


def unpacked(raw: NDArray[np.uint8]) -> Integers:
    """Return the integers that `packed` wrote."""
    rows = raw.reshape(-1, raw.shape[-1])
    numbers = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
    return integers(numbers).reshape(raw.shape[:-1])
