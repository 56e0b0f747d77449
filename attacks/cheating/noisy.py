"""Class counts of bins from sums with noise: the likeliest whole numbers."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.boosting import BaseScore

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

_AROUND = 4  # whole numbers on either side of the mean that are compared
_LEAST = 0.05  # rows of a class that a bin is expected to have at least


def likely_class_counts(
    sums: Doubles, start: BaseScore, variance: tuple[float, float], expected: Doubles
) -> Longs:
    """Return the likeliest class counts, int64 (bins, 2), as of Poisson laws before any sum.

    A row of class y brings the gradient p - y and the hessian p (1 - p), and noise is taken for
    Gaussian.

    `sums`: float64 array, shape (bins, 2). Sums of gradients and hessians, in units of them.
    `variance`: Of the noise of each sum.
    `expected`: float64 array, shape (bins, 2). Rows that are expected of each class.
    """
    from scipy.stats import poisson  # takes half a second to load

    p = 1 / (1 + np.exp(-float(start.margin[0])))
    brought = np.array([[p, p - 1], [p * (1 - p), p * (1 - p)]])
    noise, before = np.asarray(variance), np.maximum(expected, _LEAST)
    weight = brought.T @ (brought / noise[:, None])
    weighted_sums = (sums / noise) @ brought
    precision = weight + np.eye(2) / before[:, None, :]
    mean = np.linalg.solve(precision, (weighted_sums + 1.0)[..., None])[..., 0]
    best, likeliest = np.full(len(sums), -np.inf), np.zeros(sums.shape, np.int64)
    center = np.maximum(np.rint(mean), 0).astype(np.int64)
    for offset in product(range(-_AROUND, _AROUND + 1), repeat=2):
        counts = center + np.array(offset)
        off = sums - counts @ brought.T
        likely = poisson.logpmf(counts, before).sum(axis=1) - (off**2 / noise).sum(axis=1) / 2
        better = likely > best
        best[better], likeliest[better] = likely[better], counts[better]
    return likeliest


def denoised(counts: Doubles, variance: Doubles) -> Doubles:
    """Return counts of bins believed as far as they vary by more than noise, (bins, 2)."""
    mean = counts.mean(axis=0)
    spread = np.maximum(counts.var(axis=0) - variance, 0)
    return np.asarray(mean + spread / (spread + variance) * (counts - mean))
