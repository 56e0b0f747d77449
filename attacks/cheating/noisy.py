"""Estimate class counts of bins from sums with noise: the most probable integers."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.messages.horizontal import BaseScore

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

# The posterior is evaluated at integers up to this distance from the Gaussian mean.
_AROUND = 4
# Minimum of the expected counts, so that no count is excluded.
_LEAST = 0.05


def likely_class_counts(
    sums: Doubles, start: BaseScore, variance: tuple[float, float], expected: Doubles
) -> Longs:
    """Return the most probable class counts under independent Poisson priors.

    A row of class y contributes the gradient p - y and the hessian p (1 - p). The noise is treated
    as Gaussian.

    Parameters
    ----------
    sums : float64 array, shape (b, 2)
        Sums of gradients and hessians.
    start : BaseScore
        Initial log-odds.
    variance : tuple of float
        Variance of the noise on a gradient and a hessian sum.
    expected : float64 array, shape (b, 2)
        Prior mean of the count of each class.

    Returns
    -------
    counts : int64 array, shape (b, 2)
    """
    from scipy.stats import poisson  # takes half a second to load

    p = 1 / (1 + np.exp(-float(start.margin[0])))
    contribution = np.array([[p, p - 1], [p * (1 - p), p * (1 - p)]])
    noise, prior_mean = np.asarray(variance), np.maximum(expected, _LEAST)
    # Posterior mean if the Poisson prior is replaced by a Gaussian of the same mean and variance.
    weight = contribution.T @ (contribution / noise[:, None])
    weighted_sums = (sums / noise) @ contribution
    precision = weight + np.eye(2) / prior_mean[:, None, :]
    mean = np.linalg.solve(precision, (weighted_sums + 1.0)[..., None])[..., 0]
    best, likeliest = np.full(len(sums), -np.inf), np.zeros(sums.shape, np.int64)
    center = np.maximum(np.rint(mean), 0).astype(np.int64)
    for offset in product(range(-_AROUND, _AROUND + 1), repeat=2):
        counts = center + np.array(offset)
        residual = sums - counts @ contribution.T
        log_posterior = (
            poisson.logpmf(counts, prior_mean).sum(axis=1) - (residual**2 / noise).sum(axis=1) / 2
        )
        better = log_posterior > best
        best[better], likeliest[better] = log_posterior[better], counts[better]
    return likeliest


def denoised(counts: Doubles, variance: Doubles) -> Doubles:
    """Shrink the counts of bins towards their mean by the share of noise in their variance.

    Parameters
    ----------
    counts : float64 array, shape (b, 2)
        Noisy counts.
    variance : float64 array, shape (2,)
        Variance of the noise.
    """
    mean = counts.mean(axis=0)
    spread = np.maximum(counts.var(axis=0) - variance, 0)
    return np.asarray(mean + spread / (spread + variance) * (counts - mean))
