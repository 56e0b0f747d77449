"""Ranks and the binomial law, without `scipy.stats`, whose import takes a second of every start."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaln, xlog1py, xlogy


def middle_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the share of values below, and half of the equal ones, float64, in (0, 1)."""
    order = np.sort(x)
    ends = (np.searchsorted(order, x, side) for side in ("left", "right"))
    return np.asarray(sum(ends) / (2 * len(x)), dtype=np.float64)


def binomial(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """Return the probability of k successes of n, 0 where k is none of 0 to n."""
    k, n = np.broadcast_arrays(np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64))
    inside = (k >= 0) & (k <= n)
    k = np.where(inside, k, 0.0)
    log = (
        gammaln(n + 1)
        - gammaln(k + 1)
        - gammaln(n - k + 1)
        + xlogy(k, p)
        + xlog1py(n - k, -np.asarray(p))
    )
    return np.where(inside, np.exp(log), 0.0)


def binomial_quantile(q: float, n: int, p: float) -> int:
    """Return the least k such that at most k successes of n have probability q or more."""
    return int(np.searchsorted(bdtr(np.arange(n), n, p), q))
