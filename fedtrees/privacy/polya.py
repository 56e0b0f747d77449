"""Discrete Laplace noise that parties share: distribution and privacy loss of several shares.

A two-sided geometric variate of scale b is the difference of two geometric variates, and each of
these is the sum of n independent Polya (negative binomial) variates with parameter ``1 / n``
(Goryczka and Xiong 2017, section 4.1). Each party adds the difference of two Polya variates. A sum
of some of the shares is the difference of two negative binomial variates with parameter r. This is
the number of these shares divided by the number whose sum is the complete noise. For example, r is
3/4 for an adversary that knows one of four shares.

An adversary that knows shares faces a distribution with r below 1. It is more peaked than the
two-sided geometric distribution, and epsilon grows by more than the variance suggests. This module
computes its probabilities, its pure epsilon and its privacy loss distribution.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Probabilities are computed up to this many scales from 0. Larger values have a probability below
#: 1e-18 for r up to 2 and are charged with the largest loss.
_REACH = 48
#: Steps of the recurrence beyond the last probability, in scales. A wrong start decays as
#: ``exp(-2 steps / scale)``.
_START = 24
#: Grid points of the privacy loss distribution for the smaller of the largest and the usual loss.
_POINTS = 32
#: Probability that is moved to an infinite loss in each convolution, so that arrays stay short,
#: and a bound on the rounding errors of its Fourier transforms.
_CUT, _FOURIER = 1e-14, 1e-14


@lru_cache(64)
def log_ratios(scale: float, draws: float) -> Floats:
    """Return ``log(P(k) / P(k - 1))`` for k = 1, 2, ..., K, float64, shape (K,).

    The generating function ``((1 - q)^2 / ((1 - q x) (1 - q / x)))^r`` of the law, with
    ``q = exp(-1 / scale)``, gives the recurrence
    ``q (k + 1 - r) P(k + 1) = (1 + q^2) k P(k) - q (k - 1 + r) P(k - 1)``. The probabilities are
    its minimal solution, which is computed from the largest k downwards (Miller's algorithm).

    Parameters
    ----------
    scale : float
        Scale b of the two-sided geometric law that r = 1 gives.
    draws : float
        r, above 0.
    """
    q, r = math.exp(-1 / scale), draws
    reach = max(math.ceil(_REACH * scale * max(1.0, r)), 64)
    ratio = q
    ratios = np.empty(reach)
    for k in range(reach + math.ceil(_START * scale), 0, -1):
        ratio = q * (k - 1 + r) / ((1 + q * q) * k - q * (k + 1 - r) * ratio)
        if k <= reach:
            ratios[k - 1] = ratio
    logs: Floats = np.log(ratios)
    logs.flags.writeable = False
    return logs


@lru_cache(64)
def log_probabilities(scale: float, draws: float) -> Floats:
    """Return ``log P(k)`` of the symmetric law for k = 0, 1, ..., K, float64, shape (K + 1,).

    Parameters
    ----------
    scale, draws : float
        As in `log_ratios`.

    Examples
    --------
    >>> log_p = log_probabilities(2.0, 1.0)
    >>> bool(np.allclose(np.exp(log_p[:3]), np.tanh(0.25) * np.exp(-np.arange(3) / 2)))
    True
    """
    relative = np.concatenate([[0.0], np.cumsum(log_ratios(scale, draws))])
    total = np.logaddexp.reduce(np.concatenate([relative, relative[1:]]))
    log_masses: Floats = np.asarray(relative - total, dtype=np.float64)
    log_masses.flags.writeable = False
    return log_masses


@lru_cache(64)
def log_tails(scale: float, draws: float) -> Floats:
    """Return ``log P(noise >= k)`` for k = 0, 1, ..., K, float64, shape (K + 1,).

    Parameters
    ----------
    scale, draws : float
        As in `log_ratios`.
    """
    tails = np.logaddexp.accumulate(log_probabilities(scale, draws)[::-1])[::-1].copy()
    tails.flags.writeable = False
    return tails


def pure_loss(scale: float, draws: float) -> float:
    """Return the pure epsilon, in nats, of a count that one row moves by 1.

    It is ``1 / scale`` for r = 1 and above. For r below 1 it is ``log(P(0) / P(1))``, because the
    law is most pointed at 0.
    """
    return 1 / scale if draws >= 1 else max(1 / scale, -float(log_ratios(scale, draws)[0]))


@lru_cache(64)
def count_losses(scale: float, draws: float, counts: int) -> tuple[Floats, Floats, float]:
    """Return the privacy loss distribution of several counts, each of which a row moves by 1.

    The result is an upper bound. The loss of each outcome is split between its two neighbours on a
    grid such that both of its probabilities, with the row and without it, are kept. Merging the two
    undoes the split, so that the split pair of distributions reveals at least as much (Doroshenko
    et al. 2022). The law is symmetric, so that adding and removing a row give the same losses.

    Parameters
    ----------
    scale, draws : float
        As in `log_ratios`.
    counts : int
        Number of counts with independent noise.

    Returns
    -------
    losses : float64 array, shape (n,)
        In nats.
    chances : float64 array, shape (n,)
        Their probabilities.
    beyond : float
        Probability that is charged with an infinite loss.
    """
    ratios, log_p = log_ratios(scale, draws), log_probabilities(scale, draws)
    # Outcome y has probability P(y) with the row and P(y + 1) without it.
    loss = np.concatenate([ratios[::-1], -ratios])
    chance = np.exp(np.concatenate([log_p[:0:-1], log_p[:-1]]))
    largest = pure_loss(scale, draws)
    step = min(largest, 1 / scale) / _POINTS
    half = math.ceil(largest / step) + 1
    of_one_count = _split(loss, chance, step, half)
    # Outcomes beyond K have the largest loss. The added 1e-15 covers rounding errors.
    of_one_count[-1] += max(1.0 - float(chance.sum()), 0.0) + 1e-15
    power = _Losses(of_one_count, -half, 0.0)
    total = _Losses(np.ones(1), 0, 0.0)
    # Exponentiation by squaring: about log2(counts) convolutions.
    for bit in range(counts.bit_length()):
        if counts >> bit & 1:
            total = total.convolve(power)
        if counts >> (bit + 1):
            power = power.convolve(power)
    losses = step * (total.first + np.arange(len(total.chances), dtype=np.float64))
    return np.asarray(losses, dtype=np.float64), total.chances, total.beyond


@dataclass(frozen=True, eq=False)
class _Losses:
    """Losses on a grid: probabilities, the index of the first, and the mass of infinite losses."""

    chances: Floats
    first: int
    beyond: float

    def convolve(self, other: "_Losses") -> "_Losses":
        """Return the losses of both together, without tails of probability 1e-14."""
        from scipy.signal import fftconvolve  # takes half a second to load

        both = np.maximum(fftconvolve(self.chances, other.chances), 0.0)
        low = int(np.searchsorted(np.cumsum(both), _CUT))
        above = np.cumsum(both[::-1])
        high = len(both) - int(np.searchsorted(above, _CUT))
        window = both[low:high].copy()
        window[0] += float(both[:low].sum())  # smaller losses are rounded up
        beyond = self.beyond + other.beyond + float(both[high:].sum()) + _FOURIER
        return _Losses(window, self.first + other.first + low, beyond)


def _split(loss: Floats, chance: Floats, step: float, half: int) -> Floats:
    """Return probabilities of the losses ``-half * step, ..., half * step``, shape (2 half + 1,).

    A loss l between the grid points a and b goes to a with a weight w for which
    ``w exp(-a) + (1 - w) exp(-b) = exp(-l)``, which keeps the probability without the row.
    """
    below = np.floor(loss / step)
    weight = np.clip(np.expm1((below + 1) * step - loss) / np.expm1(step), 0.0, 1.0)
    at = below.astype(np.int64) + half
    masses = np.bincount(at, weight * chance, 2 * half + 1)
    masses = masses + np.bincount(at + 1, (1 - weight) * chance, 2 * half + 1)
    return np.asarray(masses, dtype=np.float64)
