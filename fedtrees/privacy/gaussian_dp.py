"""Gaussian differential privacy (Dong, Roth and Su 2022): the exact privacy loss of Gaussian noise.

A release of L2 sensitivity D with Gaussian noise of scale s is mu-GDP with ``mu = D / s``. Several
releases, each chosen after the earlier ones, are together exactly ``sqrt(sum of mu^2)``-GDP.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

#: Factor that compensates rounding errors, so that no epsilon is too small in its last digits.
_SAFE = 1 - 1e-9
_CLOSE, _TINY = 1e-12, 1e-30


def delta_of(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """Return the smallest delta at which mu-GDP is (epsilon, delta)-DP.

    Balle and Wang (2018), Theorem 5.

    Parameters
    ----------
    epsilon : float array
        In nats. It may be negative.
    mu : float
        0 or more.

    Returns
    -------
    delta : float64 array, of the shape of `epsilon`

    Examples
    --------
    >>> round(float(delta_of(1.0, 1.0)), 4)
    0.1269
    """
    e = np.asarray(epsilon, dtype=np.float64)
    if mu == 0:
        return np.asarray(-np.expm1(np.minimum(e, 0.0)))
    with np.errstate(over="ignore"):
        likelier, other = log_ndtr(mu / 2 - e / mu), log_ndtr(-mu / 2 - e / mu)
        return np.asarray(-np.exp(likelier) * np.expm1(np.minimum(e + other - likelier, 0.0)))


def least_epsilon(left: Callable[[float], float], delta: float, high: float) -> float:
    """Return the smallest epsilon that leaves at most `delta`, rounded up.

    Parameters
    ----------
    left : callable
        Returns the delta at an epsilon. It is decreasing.
    delta : float
        Delta of the result.
    high : float
        An epsilon that is large enough.
    """
    return _border(lambda epsilon: left(epsilon) <= delta * _SAFE, 0.0, high)


def tail(mu: float, delta: float) -> float:
    """Return an epsilon, not the smallest, at which mu-GDP is (epsilon, delta)-DP."""
    return mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta * _SAFE))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP is (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon : float
        In nats, above 0.
    delta : float
        In (0, 1).
    """
    # The search is over 1 / mu, because `_border` rounds up. With mu / 2 above sqrt(epsilon) + 9
    # no delta is small enough.
    low = 1 / (2 * math.sqrt(epsilon) + 18)
    enough = _border(lambda s: float(delta_of(epsilon, 1 / s)) <= delta * _SAFE**2, low, 1e12)
    return _SAFE / enough


def _border(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest argument at which a condition holds, rounded up. It holds at `high`."""
    if holds(low):
        return low
    while high - low > _CLOSE * high:
        middle = math.sqrt(low * high) if low > 0 else high / 2
        if middle < _TINY:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
