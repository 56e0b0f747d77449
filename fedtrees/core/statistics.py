"""Ranks and the binomial distribution without `scipy.stats`, whose import takes a second."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaln, xlog1py, xlogy


def middle_ranks(x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the mid-rank of each value as a share, in (0, 1).

    The mid-rank is the number of smaller values plus half the number of equal ones.

    Parameters
    ----------
    x : array, shape (n,)
        The values.

    Returns
    -------
    float64 array, shape (n,)
        Mid-ranks divided by n.

    Examples
    --------
    >>> middle_ranks(np.array([7, 3, 7, 9]))
    array([0.5  , 0.125, 0.5  , 0.875])
    """
    order = np.sort(x)
    ends = (np.searchsorted(order, x, side) for side in ("left", "right"))
    return np.asarray(sum(ends) / (2 * len(x)), dtype=np.float64)


def binomial(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> NDArray[np.float64]:
    """Return the binomial probability of k successes in n trials, 0 for k outside 0 to n.

    Parameters
    ----------
    k, n : array of integers
        Number of successes and of trials, broadcast together.
    p : array of float
        Probability of success.
    """
    k, n = np.broadcast_arrays(np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64))
    inside = (k >= 0) & (k <= n)
    k = np.where(inside, k, 0.0)
    # Logarithms prevent an overflow of the binomial coefficient.
    log = (
        gammaln(n + 1)
        - gammaln(k + 1)
        - gammaln(n - k + 1)
        + xlogy(k, p)
        + xlog1py(n - k, -np.asarray(p))
    )
    return np.where(inside, np.exp(log), 0.0)


def binomial_quantile(q: float, n: int, p: float) -> int:
    """Return the smallest k for which the probability of at most k successes is q or more.

    Parameters
    ----------
    q : float
        Probability.
    n : int
        Number of trials.
    p : float
        Probability of success.
    """
    return int(np.searchsorted(bdtr(np.arange(n), n, p), q))
