"""Precision of a numeric column, as a power of ten.

Guesses of values are rounded to it, because for example an age is usually an integer.
"""

import numpy as np
from numpy.typing import NDArray

#: Exponents of ten of the coarsest and the finest precision.
COARSEST, FINEST = 3, -4


def step_of(values: NDArray[np.float64]) -> float:
    """Return the largest power of ten, from 1,000 to 0.0001, of which all values are multiples.

    If there is none, 0.0001 is returned as well. Missing values are ignored.

    Examples
    --------
    >>> step_of(np.array([20.0, 150.0, np.nan]))
    10.0
    """
    present = values[np.isfinite(values)]
    for exponent in range(COARSEST, FINEST, -1):
        part = present / 10.0**exponent
        # The values were stored as float32, with a relative error of up to 6e-8.
        if (np.abs(part - np.rint(part)) <= 1e-6 * np.maximum(np.abs(part), 1)).all():
            return float(10.0**exponent)
    return float(10.0**FINEST)


def rounded_to(values: NDArray[np.float64], step: float) -> NDArray[np.float32]:
    """Round values to the nearest multiple of `step`, as a float32 array of the same shape."""
    return (np.rint(values / step) * step).astype(np.float32)


def middles(n: int) -> NDArray[np.float64]:
    """Return the centres of n equal parts of the interval from 0 to 1, float64, shape (n,)."""
    return (np.arange(n) + 0.5) / max(n, 1)
