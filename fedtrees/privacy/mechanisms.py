"""Discrete Laplace and Gaussian noise for integers, drawn exactly.

All draws are made of uniform random integers, so that no probability is rounded to a floating-point
number (Mironov 2012 shows that rounding can reveal the value). The algorithms are those of Canonne,
Kamath and Steinke (2020, section 5), for arrays.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError

Whole = NDArray[np.int64]
#: Scales are rounded up to this number of significant bits, so that draws fit into int64. The noise
#: is wider by less than one part in a million.
_PRECISION = 20


def discrete_laplace(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw from the two-sided geometric distribution (Ghosh et al. 2012).

    ``P(k)`` is proportional to ``exp(-|k| / scale)``. Adding it to an integer query of L1
    sensitivity D is exactly (D / scale)-DP.

    Parameters
    ----------
    scale : float
        In units of the integer grid, at most 2^46. A draw can reach 40 times its scale, and
        thousands of draws must add up in int64. The variance is close to 2 scale^2.
    shape : int or tuple of int
    rng : Generator
        Of `Streams.noise`, if the noise claims a budget.

    Returns
    -------
    int64 array of the given shape

    Raises
    ------
    UsageError
        If the scale is not a number in (0, 2^46].
    """
    size = int(np.prod(shape))
    return (_geometric(scale, size, rng) - _geometric(scale, size, rng)).reshape(shape)


def discrete_laplace_share(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator, parties: int
) -> NDArray[np.int64]:
    """Draw one party's share of discrete Laplace noise: a difference of two Polya variates.

    The shares of all parties add up to `discrete_laplace` of that scale, because a geometric
    variate is a sum of Polya variates (Goryczka and Xiong 2017, section 4.1).

    Parameters
    ----------
    scale, shape, rng
        As in `discrete_laplace`.
    parties : int
        Number of shares that add up to the noise.
    """
    size = int(np.prod(shape))
    return (_polya(scale, size, rng, parties) - _polya(scale, size, rng, parties)).reshape(shape)


def truncated_laplace(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw Laplace noise that is truncated toward 0, as the code of Gorgé et al. (2026) does.

    ``P(0) = 1 - e`` and ``P(k) = (1 - e) e^|k| / 2`` with ``e = exp(-1 / scale)``. Compared with
    noise 1, noise 0 is twice as likely as under the two-sided geometric law, so that a count of
    sensitivity 1 is ``1 / scale + ln 2`` and not ``1 / scale`` differentially private.

    Parameters
    ----------
    scale, shape, rng
        As in `discrete_laplace`.
    """
    size = _geometric(scale, int(np.prod(shape)), rng).reshape(shape)
    return np.where(rng.integers(0, 2, shape) == 0, size, -size)


def _geometric(scale: float, size: int, rng: np.random.Generator) -> Whole:
    """Draw k with probability proportional to ``exp(-k / scale)``, k = 0, 1, ..., int64 (size,).

    For a scale ``a / b``, u is uniform below a and kept with probability ``exp(-u / a)``, and v is
    the number of successes of events of probability ``exp(-1)``. Then ``(u + a v) // b`` has the
    law (algorithm 2).
    """
    a, b = _fraction(scale)
    low = np.empty(size, dtype=np.int64)
    open_ = np.arange(size)
    while len(open_):
        u = rng.integers(0, a, len(open_))
        accepted = _happens(u, a, rng)
        low[open_[accepted]] = u[accepted]
        open_ = open_[~accepted]
    high = np.zeros(size, dtype=np.int64)
    running = np.arange(size)
    while len(running):
        running = running[_happens(np.ones(len(running), dtype=np.int64), 1, rng)]
        high[running] += 1
    return np.asarray((low + a * high) // b)


def _happens(p: Whole, q: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return true with probability ``exp(-p / q)`` for each p from 0 to q: algorithm 1."""
    # Von Neumann's method: the number of successes before the first failure is even with
    # probability exp(-p / q).
    odd = np.zeros(len(p), dtype=bool)
    running, k = np.arange(len(p)), 1
    while len(running):
        odd[running] = k % 2 == 1
        running = running[rng.integers(0, k * q, len(running)) < p[running]]
        k += 1
    return odd


def _polya(scale: float, size: int, rng: np.random.Generator, parties: int) -> Whole:
    """Draw negative binomial variates with parameter ``1 / parties``, int64 (size,).

    A geometric variate g is the sum of those of all parties. Given g, the part of one party has a
    beta-binomial law, which is that of a Polya urn: each of the g units goes to the party with
    probability ``(1 / parties + its units) / (1 + all units so far)``.
    """
    total = _geometric(scale, size, rng)
    if parties == 1:
        return total
    order = np.argsort(-total, kind="stable")
    remaining = -total[order]  # ascending, so that the running draws are a prefix
    part = np.zeros(size, dtype=np.int64)
    for unit in range(int(total.max(initial=0))):
        running = int(np.searchsorted(remaining, -unit, side="left"))
        drawn = rng.integers(0, parties * (1 + unit), running)
        part[:running] += drawn < 1 + parties * part[:running]
    noise = np.empty(size, dtype=np.int64)
    noise[order] = part
    return noise


def _fraction(scale: float) -> tuple[int, int]:
    """Return a scale as a fraction of small integers, rounded up."""
    _check_scale(scale)
    exponent = max(_PRECISION - math.frexp(scale)[1], 0)
    exact = Fraction(math.ceil(Fraction(scale) * 2**exponent), 2**exponent)
    return exact.numerator, exact.denominator


def permute_and_flip(
    counts: NDArray[np.int64], epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Choose the class of the largest count in each leaf (McKenna and Sheldon 2020).

    An added row raises one count by 1 and lowers none, so that the choice of one leaf is epsilon-DP
    for this neighbouring relation. The largest of the counts with exponential noise of scale ``1 /
    epsilon`` has the same distribution (Ding et al. 2021).

    Parameters
    ----------
    counts : int64 array, shape (..., K)
    epsilon : float
        In nats. Infinite: the first of the largest counts.
    rng : Generator

    Returns
    -------
    classes : int64 array, shape (...)
    """
    noise = rng.exponential(1.0 / epsilon, counts.shape) if epsilon < np.inf else 0.0
    return np.asarray(np.argmax(counts + noise, axis=-1), dtype=np.int64)


def noise_log_pmf(mechanism: str, epsilon: float, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the log probability of noise on one count, for an adversary that knows the mechanism.

    Parameters
    ----------
    mechanism : {"geometric", "published"}
        `discrete_laplace`, or `truncated_laplace`.
    epsilon : float
        ``1 / scale``. Infinite: there is no noise.
    values : int64 array

    Returns
    -------
    log_probability : float64 array, of the shape of `values`
    """
    size = np.abs(values).astype(np.float64)
    if epsilon == np.inf:
        return np.where(size == 0, 0.0, -np.inf)
    stays = np.log(-np.expm1(-epsilon))
    if mechanism == "geometric":
        return np.asarray(stays - np.log1p(np.exp(-epsilon)) - epsilon * size)
    return np.asarray(stays - epsilon * size - np.log(2.0) * (size > 0))


def _check_scale(scale: float) -> None:
    if not 0 < scale <= 2.0**46:
        raise UsageError(f"noise scale must be in (0, 2^46] grid steps; got {scale}")


#: In grid steps. The sum of narrower shares is measurably different from a discrete Gaussian.
_NARROWEST = 8.0
#: In grid steps. A draw can reach 40 times its scale, and thousands of them must add up in int64.
_WIDEST = 2.0**46
_BUFFER = 4096  # random bytes that are drawn at once


class Randomness:
    """Uniform random integers of any size, and events whose probability is a power of e.

    Parameters
    ----------
    rng : Generator
        Source of all bits. Use a generator of `Streams.noise`, whose bits an adversary cannot
        predict.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._bytes, self._at = rng, b"", 0

    def below(self, stop: int) -> int:
        """Return one of 0 to ``stop - 1``, all with the same probability, by rejection."""
        bits = (stop - 1).bit_length()
        n = (bits + 7) >> 3
        while True:
            if self._at + n > len(self._bytes):
                self._bytes, self._at = (
                    self._rng.integers(0, 256, _BUFFER + n, np.uint8).tobytes(),
                    0,
                )
            end = self._at + n
            drawn = int.from_bytes(self._bytes[self._at : end], "little") >> (8 * n - bits)
            self._at = end
            if drawn < stop:
                return drawn

    def happens(self, p: int, q: int) -> bool:
        """Return true with probability ``exp(-p / q)``: algorithm 1."""
        # exp(-p / q) with p > q is a product of probabilities exp(-1) and one factor of at most 1.
        while p > q:
            if not self._happens_below_one(1, 1):
                return False
            p -= q
        return self._happens_below_one(p, q)

    def _happens_below_one(self, p: int, q: int) -> bool:
        # The number of successes before the first failure is even with probability exp(-p / q).
        k = 1
        while self.below(k * q) < p:
            k += 1
        return k % 2 == 1


def discrete_gaussian(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw integers k with probability proportional to ``exp(-k^2 / (2 scale^2))``.

    If this noise is added to a vector of integers with L2 sensitivity D, the Rényi divergence of
    order alpha between neighbours is at most ``alpha D^2 / (2 scale^2)`` (Canonne, Kamath and
    Steinke 2020, theorem 4).

    Parameters
    ----------
    scale : float
        In grid steps. For small scales it is a little more than the standard deviation.
    shape : int or tuple of int
    rng : Generator
        Of `Streams.noise`, if the noise claims a budget.

    Returns
    -------
    int64 array of the given shape

    Raises
    ------
    UsageError
        If `scale` is not a number in (0, 2^46].
    """
    if not 0 < scale <= _WIDEST:
        raise UsageError(f"noise scale must be in (0, 2^46] grid steps; got {scale}")
    randomness = Randomness(rng)
    variance = Fraction(scale) ** 2
    draws = [one_draw(variance, randomness) for _ in range(int(np.prod(shape)))]
    return np.array(draws, dtype=np.int64).reshape(shape)


def discrete_gaussian_share(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator, parties: int
) -> NDArray[np.int64]:
    """Draw one party's share of noise. All shares add up to a discrete Gaussian.

    A sum of discrete Gaussians is not exactly a discrete Gaussian. If the shares are at least 8
    grid steps wide, the log-probabilities of the sum differ from those of a discrete Gaussian by
    less than ``10 parties exp(-pi^2 8^2)``, which is below the precision of a double (Kairouz, Liu
    and Steinke 2021, theorem 9).

    Parameters
    ----------
    scale : float
        Scale of the sum, in grid steps.
    shape, rng
        As in `discrete_gaussian`.
    parties : int
        Number of shares that add up to the noise.

    Raises
    ------
    UsageError
        If the shares are narrower than 8 grid steps, or as in `discrete_gaussian`.
    """
    each = scale / math.sqrt(parties)
    if each < _NARROWEST:
        raise UsageError(
            f"a share of noise has scale {each:g} grid steps; below {_NARROWEST:g} shares are no "
            "Gaussian together: give a smaller epsilon, or let the server add the noise"
        )
    return discrete_gaussian(each, shape, rng)


def one_draw(variance: Fraction, randomness: Randomness) -> int:
    """Draw one number of the given squared scale: Canonne et al. (2020), algorithm 3."""
    p, q = variance.numerator, variance.denominator
    t = math.isqrt(p // q) + 1
    while True:
        drawn = _discrete_laplace(t, randomness)
        # (|drawn| - variance / t)^2 / (2 variance), as a fraction
        if randomness.happens((abs(drawn) * t * q - p) ** 2, 2 * p * q * t * t):
            return drawn


def _discrete_laplace(t: int, randomness: Randomness) -> int:
    """Draw k with probability proportional to ``exp(-|k| / t)``: algorithm 2 with s = 1."""
    while True:
        remainder = randomness.below(t)
        if not randomness.happens(remainder, t):
            continue
        quotient = 0
        while randomness.happens(1, 1):
            quotient += 1
        size, negative = remainder + t * quotient, randomness.below(2) == 1
        if size or not negative:  # 0 has one sign
            return -size if negative else size
