"""Discrete Gaussian noise, drawn exactly, for sums of integers with a privacy budget.

The algorithms are those of Canonne, Kamath and Steinke (2020, section 5). They compute with
integers and need only uniform random integers, so that no probability is rounded to a
floating-point number.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError

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
    """Draw one party's share of noise; all shares add up to a discrete Gaussian.

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
