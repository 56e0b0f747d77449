"""Discrete Gaussian noise, drawn exactly: in whole numbers, without a floating-point probability.

The algorithms of Canonne, Kamath and Steinke (2020), section 5: a fair uniform whole number is all
they need.
"""

import math
import random
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError

#: Shares narrower than this do not add up to a discrete Gaussian any more.
_NARROWEST = 8.0
_WIDEST = 2.0**46  # a draw reaches 40 times its scale, and thousands of them must add up in int64


class Randomness:
    """Uniform whole numbers, and events whose chance is a power of e.

    `rng`: Seeds the uniform numbers.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._draw = random.Random(rng.bytes(32))

    def below(self, stop: int) -> int:
        """Return one of 0 to ``stop - 1``, all equally likely."""
        return self._draw.randrange(stop)

    def happens(self, p: int, q: int) -> bool:
        """Return true with probability ``exp(-p / q)``: algorithm 1."""
        while p > q:
            if not self._happens_below_one(1, 1):
                return False
            p -= q
        return self._happens_below_one(p, q)

    def _happens_below_one(self, p: int, q: int) -> bool:
        k = 1
        while self.below(k * q) < p:
            k += 1
        return k % 2 == 1


def discrete_gaussian(
    scale: float, shape: int | tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw noise with ``P(k)`` proportional to ``exp(-k^2 / (2 scale^2))``, over whole numbers.

    Added to a vector of whole numbers of L2 sensitivity D it has Rényi divergence of at most
    ``alpha D^2 / (2 scale^2)`` (Canonne, Kamath and Steinke 2020, theorem 4).

    Raises `UsageError` if `scale` is not a positive number of at most 2^46.

    `scale`: In units of the grid; a little more than the standard deviation where it is small.
    `rng`: Seeds the uniform numbers.

    Returns: int64 array of the given shape.
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
    """Draw one party's share of noise that is a discrete Gaussian of that scale together.

    A sum of discrete Gaussians is none, but where shares are 8 grid steps wide or more, its
    log-probabilities are off by less than ``10 parties exp(-pi^2 8^2)``, less than a double can
    tell from 0 (Kairouz, Liu and Steinke 2021, theorem 9).

    Raises `UsageError` if the shares are too narrow for that, or `scale` as in `discrete_gaussian`.

    `scale, shape, rng`: As in `discrete_gaussian`.
    `parties`: How many add a share.
    """
    each = scale / math.sqrt(parties)
    if each < _NARROWEST:
        raise UsageError(
            f"a share of noise has scale {each:g} grid steps; below {_NARROWEST:g} shares are no "
            "Gaussian together: give a smaller epsilon, or let the server add the noise"
        )
    return discrete_gaussian(each, shape, rng)


def one_draw(variance: Fraction, randomness: Randomness) -> int:
    """Draw one number: Canonne, Kamath and Steinke (2020), algorithm 3.

    `variance`: The scale, squared.
    """
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
        rest = randomness.below(t)
        if not randomness.happens(rest, t):
            continue
        whole = 0
        while randomness.happens(1, 1):
            whole += 1
        size, negative = rest + t * whole, randomness.below(2) == 1
        if size or not negative:  # 0 has one sign
            return -size if negative else size
