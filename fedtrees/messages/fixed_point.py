"""Numbers with many binary places, as whole numbers of the last one: exact, and of any length.

Arrays of them are of dtype object and hold Python's whole numbers; in messages they are bytes.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[Any]


def integers(values: Any) -> Integers:
    """Return an array of whole numbers as one of Python's."""
    shape = np.shape(values)
    flat = [int(v) for v in np.asarray(values, dtype=object).ravel()]
    return np.array([*flat, None], dtype=object)[:-1].reshape(shape)


def encoded(values: NDArray[np.float64], bits: int) -> Integers:
    """Return the nearest multiples of ``2^-bits``, exactly, halves to even."""
    found = [round(Fraction(v) * (1 << bits)) for v in np.ravel(values).tolist()]
    return integers(found).reshape(np.shape(values))


def decoded(values: Integers, bits: int) -> NDArray[np.float64]:
    """Return the nearest float64 numbers."""
    found = [float(Fraction(int(v), 1 << bits)) for v in np.ravel(values)]
    return np.array(found, dtype=np.float64).reshape(np.shape(values))


def rounded(values: Integers, places: int) -> Integers:
    """Return the numbers less their last binary places, to the nearest, halves up."""
    if places <= 0:
        return values << -places if len(values) else values
    half = 1 << (places - 1)
    return integers((values + half) >> places)


def packed(values: Integers) -> NDArray[np.uint8]:
    """Return whole numbers as bytes, little end first, uint8, shape (..., width)."""
    flat = [int(v) for v in np.ravel(values)]
    width = max((v.bit_length() // 8 + 1 for v in flat), default=1)
    raw = b"".join(v.to_bytes(width, "little", signed=True) for v in flat)
    return np.frombuffer(raw, np.uint8).reshape(*np.shape(values), width)


def unpacked(raw: NDArray[np.uint8]) -> Integers:
    """Return the whole numbers that were packed."""
    rows = raw.reshape(-1, raw.shape[-1])
    found = [int.from_bytes(row.tobytes(), "little", signed=True) for row in rows]
    return integers(found).reshape(raw.shape[:-1])
