"""Gaussian differential privacy (Dong, Roth and Su 2022): all that Gaussian noise gives away.

A release of L2 sensitivity D with Gaussian noise of scale s is mu-GDP for ``mu = D / s``, and
releases, each chosen after the others, are together ``sqrt(sum of mu^2)``-GDP, exactly.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

#: What is lost to rounding, so that no figure is too small by the last digits.
_SAFE = 1 - 1e-9
_CLOSE, _TINY = 1e-12, 1e-30


def delta_of(epsilon: ArrayLike, mu: float) -> NDArray[np.float64]:
    """Return the least delta at which mu-GDP is (epsilon, delta)-DP: Balle and Wang (2018), Thm. 5.

    `epsilon`: float array. In nats; below 0, too.
    `mu`: 0 or more.
    """
    e = np.asarray(epsilon, dtype=np.float64)
    if mu == 0:
        return np.asarray(-np.expm1(np.minimum(e, 0.0)))
    with np.errstate(over="ignore"):
        likelier, other = log_ndtr(mu / 2 - e / mu), log_ndtr(-mu / 2 - e / mu)
        return np.asarray(-np.exp(likelier) * np.expm1(np.minimum(e + other - likelier, 0.0)))


def least_epsilon(left: Callable[[float], float], delta: float, high: float) -> float:
    """Return the least epsilon, up to high, with no more than delta left; rounded up.

    `left`: From an epsilon to its delta, falling.
    """
    return _border(lambda epsilon: left(epsilon) <= delta * _SAFE, 0.0, high)


def tail(mu: float, delta: float) -> float:
    """Return an epsilon at which mu-GDP surely is (epsilon, delta)-DP."""
    return mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta * _SAFE))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the greatest mu for which mu-GDP is (epsilon, delta)-DP; rounded down.

    `epsilon`: In nats, above 0.
    `delta`: Between 0 and 1.
    """
    # In 1 / mu, for what is to be rounded up; mu / 2 beyond sqrt(epsilon) + 9 leaves no delta.
    low = 1 / (2 * math.sqrt(epsilon) + 18)
    enough = _border(lambda s: float(delta_of(epsilon, 1 / s)) <= delta * _SAFE**2, low, 1e12)
    return _SAFE / enough


def _border(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition begins to hold, from above; it does at high."""
    if holds(low):
        return low
    while high - low > _CLOSE * high:
        middle = math.sqrt(low * high) if low > 0 else high / 2
        if middle < _TINY:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
