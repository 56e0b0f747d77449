"""Rows in the cells of a column, from noisy counts and from what was known before."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.counts import share_out

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


def likely_counts(noisy: Longs, own: Longs, n: int, variance: float) -> tuple[Longs, float]:
    """Return how many of n rows are likely in every cell, and how far the counts told it, 0 to 1.

    Before, shares of cells are as among own rows and one row more, spread over all cells. Then a
    count has the variance ``n p (1-p) (1 + n/m)`` of drawing n rows of shares known by m rows, and
    is believed as far as that is of both variances. Of the means those counts of at least 0 that
    add up to n are nearest (Wang et al. 2020, Norm-Sub).

    `noisy`: int64 array, shape (k,). The rows sought in every cell, and noise.
    `own`: int64 array, shape (k,). Own rows in every cell; none of them is among those sought.
    `n`: Rows sought whose value is not missing.
    `variance`: Of the noise of a cell, in squared rows.

    Returns
    -------
    int64 array, shape (k,)
    float
        Mean over rows of the share of a cell's variance that is not noise.
    """
    m = int(own.sum()) + 1
    p = (own + 1 / len(own)) / m
    spread = n * p * (1 - p) * (1 + n / m)
    believed = spread / np.maximum(spread + variance, np.finfo(np.float64).tiny)
    mean = n * p + believed * (noisy - n * p)
    return share_out(_nearest_of_sum(mean, n), n), float(p @ believed)


def _nearest_of_sum(x: Floats, n: int) -> Floats:
    """Return the nearest point to x of those without negative numbers whose sum is n."""
    down = np.sort(x)[::-1]
    excess = (np.cumsum(down) - n) / np.arange(1, len(x) + 1)
    return np.maximum(x - excess[np.flatnonzero(down - excess > 0)[-1]], 0.0)
