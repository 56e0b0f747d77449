"""Channels that draw: Laplace and Gaussian noise, and randomised response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import comb, factorial
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval
from numpy.typing import ArrayLike, NDArray
from scipy.special import gamma, kve, log_ndtr

from fedtrees.core.channel import Box, Channel, Floats
from fedtrees.core.coarsening import plain
from fedtrees.core.errors import UsageError
from fedtrees.privacy.discrete_gaussian import discrete_gaussian
from fedtrees.privacy.mechanisms import discrete_laplace, truncated_laplace
from fedtrees.privacy.polya import log_probabilities, log_tails
from fedtrees.privacy.randomised_response import odds_within, respond

Scale = float | tuple[float, ...]
Shape = tuple[int, ...]  # of what is drawn
# From this scale on, the probabilities of whole numbers add up to the Gaussian integral.
_SMOOTH = 2.0
_LAGUERRE = 48  # nodes of a tail
# In scales: as good as infinity, and its powers are finite.
_FAR = 1e9
# Widest noise on whole numbers whose probabilities are tabulated if it is several draws.
_TABLE = 1000.0


@dataclass(frozen=True)
class Noise(Channel):
    """Independent noise on every number.

    Raises `UsageError` if a scale is not finite and above 0.
    """

    scale: Scale  # above 0; a tuple has one for every number of a cell
    whole: bool = False  # whether numbers are whole, and so is the noise

    additive = True

    def __post_init__(self) -> None:
        scales = np.asarray(self.scale, dtype=np.float64)
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise UsageError(f"scale must be a finite number > 0; got {self.scale!r}")

    def within(self, units: ArrayLike, whole: bool = True) -> Noise:
        """Return the noise in these units."""
        scale = plain(np.asarray(self.scale) * np.asarray(units, dtype=np.float64))
        return replace(self, scale=scale, whole=whole)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Add noise; to one number of all cells after the other, where each has a scale."""
        assert rng is not None
        if isinstance(self.scale, float | int):
            return np.asarray(x + self._drawn(self.scale, np.shape(x), rng))
        noise = [self._drawn(scale, np.shape(x)[:-1], rng) for scale in self.scale]
        return np.asarray(x + np.stack(noise, axis=-1))

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y and the variance of the noise."""
        y = np.asarray(y, dtype=np.float64)
        return y, np.broadcast_to(self._variance(np.asarray(self.scale, np.float64)), y.shape)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log mass of noise that ends in the box."""
        x, scale = np.asarray(x, dtype=np.float64), np.asarray(self.scale, np.float64)
        low, high = np.asarray(lo) - x, np.asarray(hi) - x
        if self.whole:
            low, high = np.ceil(low), np.floor(high)
        low, high, scale = np.broadcast_arrays(low, high, scale)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            each = np.where(low <= high, self._log_mass(low, high, scale), -np.inf)
        return np.asarray(each.sum(axis=-1))

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        raise NotImplementedError

    def _variance(self, scale: Floats) -> Floats:
        raise NotImplementedError

    def _log_mass(self, low: Floats, high: Floats, scale: Floats) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True)
class Laplace(Noise):
    """Laplace noise; of whole numbers the two-sided geometric distribution (Ghosh et al. 2012).

    Attributes
    ----------
    draws : float
        Number of such draws that the noise is the sum of, above 0. It need not be whole, because
        the law is infinitely divisible. On whole numbers, probabilities are exact for one draw and
        for scales up to 1000 (`fedtrees.privacy.polya`). For wider noise they are those of the
        continuous law, from half a step below to half a step above.
    """

    draws: float = 1

    def added(self, n: float) -> Channel:
        """Return the sum of n times as many draws."""
        return replace(self, draws=n * self.draws)

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        if self.draws != int(self.draws):  # two Polya variates, or gamma
            p, r = -np.expm1(-1 / scale), self.draws
            one = (
                partial(rng.negative_binomial, r, p) if self.whole else partial(rng.gamma, r, scale)
            )
            return np.asarray(one(shape) - one(shape))
        draw = partial(discrete_laplace, scale) if self.whole else partial(_laplace, scale)
        return np.asarray(sum(draw(shape, rng) for _ in range(int(self.draws))))

    def _variance(self, scale: Floats) -> Floats:
        one = 2 * np.exp(-1 / scale) / np.expm1(-1 / scale) ** 2 if self.whole else 2 * scale**2
        return np.asarray(self.draws * one)

    def _exact(self, scale: Floats) -> bool:
        return self.whole and bool(np.max(scale, initial=0.0) <= _TABLE)

    def _log_tail(self, m: Floats, scale: Floats) -> Floats:
        """Return the log probability of noise of m or more, for m above 0."""
        if self.whole and self.draws == 1:
            return np.asarray(-m / scale - np.log1p(np.exp(-1 / scale)))
        if self._exact(scale):
            return _by_scale(log_tails, m, scale, self.draws)
        z = np.minimum((m - 0.5 * self.whole) / scale, _FAR)
        return np.asarray(np.log(_scaled(z, self.draws, 1)) - z)

    def _log_mass(self, low: Floats, high: Floats, scale: Floats) -> Floats:
        # to the right of 0, or mirrored; else what both tails leave
        right, unit = low > 0, float(self.whole)
        near, far = np.where(right, low, -high), np.where(right, high, -low) + unit
        first = self._log_tail(near, scale)
        aside = first + np.log(-np.expm1(self._log_tail(far, scale) - first))
        tails = np.exp(self._log_tail(high + unit, scale)) + np.exp(
            self._log_tail(unit - low, scale)
        )
        log_masses = np.where(right | (high < 0), aside, np.log1p(-tails))
        if self.whole and self.draws == 1:
            return log_masses
        if self._exact(scale):
            point = _by_scale(log_probabilities, np.abs(low), scale, self.draws)
            return np.asarray(np.where(low == high, point, log_masses))
        z = np.minimum(np.abs(low) / scale, _FAR)
        density = np.log(_scaled(z, self.draws, 0)) - z - np.log(scale)
        return np.asarray(np.where(low == high, density, log_masses))


def _by_scale(
    table: Callable[[float, float], Floats], k: Floats, scale: Floats, draws: float
) -> Floats:
    """Look whole numbers k up in the table of their scale; beyond it, the decay is geometric."""
    k, scale = np.broadcast_arrays(k, scale)
    log_masses = np.full(k.shape, -np.inf)
    for one in np.unique(scale):
        values = table(float(one), draws)
        here = (scale == one) & np.isfinite(k)
        at = np.clip(k[here], 0, None)
        inside = np.minimum(at, len(values) - 1).astype(np.int64)
        log_masses[here] = values[inside] - (at - inside) / one
    return log_masses


def _scaled(z: Floats, draws: float, what: int) -> Floats:
    """Return ``exp(z)`` times the density (0) or upper tail (1) at z >= 0 of a sum of such draws.

    Between whole numbers of draws the density has a Bessel function (Kotz et al. 2001, Eq. 4.1.30)
    and the tail is a Gauss-Laguerre quadrature of it.
    """
    if draws == int(draws):
        return np.asarray(polyval(z, _erlang(int(draws))[what]))
    if what:
        nodes, weights = np.polynomial.laguerre.laggauss(_LAGUERRE)
        each = (w * _scaled(z + x, draws, 0) for x, w in zip(nodes, weights, strict=True))
        return np.asarray(sum(each))
    nu, z = draws - 0.5, np.maximum(z, 1e-9)
    return np.asarray((z / 2) ** nu * kve(nu, z) / (np.sqrt(np.pi) * gamma(draws)))


@cache
def _erlang(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return polynomials p and t of the sum of n Laplace variates of scale 1.

    Its density at z >= 0 is ``p(z) exp(-z)`` and its upper tail ``t(z) exp(-z)``: it is a mixture
    of Erlang variates, as the difference of two gamma variates (Kotz et al. 2001, Sec. 2.2.4).
    """
    weights = [comb(n - 1 + j, j) / 2.0 ** (n + j) for j in range(n)]
    p = np.array([weights[n - 1 - m] / factorial(m) for m in range(n)])
    t = np.array([sum(weights[: n - m]) / factorial(m) for m in range(n)])
    return p, t


def _laplace(scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    return rng.laplace(scale=scale, size=shape)


class TruncatedLaplace(Laplace):
    """Laplace noise cut off toward 0, as the code of Gorgé et al. (2025) adds to counts."""

    def added(self, n: float) -> Channel:
        """Return n draws, one after the other."""
        return Channel.added(self, n)

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        return truncated_laplace(scale, shape, rng)

    def _variance(self, scale: Floats) -> Floats:
        q = np.exp(-1 / scale)
        return np.asarray(q * (1 + q) / np.expm1(-1 / scale) ** 2)

    def _log_tail(self, m: Floats, scale: Floats) -> Floats:
        return np.asarray(-m / scale - np.log(2.0))


class Gaussian(Noise):
    """Gaussian noise; of whole numbers the discrete Gaussian (Canonne et al. 2020).

    Masses of intervals of whole numbers are those of the Gaussian from half a step before to half a
    step after, which is right to the extent that the scale is wide.
    """

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        if self.whole:
            return discrete_gaussian(scale, shape, rng)
        return scale * rng.standard_normal(shape)

    def _variance(self, scale: Floats) -> Floats:
        return scale**2

    def added(self, n: float) -> Channel:
        """Return the Gaussian of n times the variance."""
        return Gaussian(plain(np.asarray(self.scale) * np.sqrt(n)), self.whole)

    def _log_mass(self, low: Floats, high: Floats, scale: Floats) -> Floats:
        half = 0.5 if self.whole else 0.0
        flip = low + high > 0  # both ends to the left, where logarithms are exact
        a, b = np.where(flip, -high, low) - half, np.where(flip, -low, high) + half
        above, below = log_ndtr(b / scale), log_ndtr(a / scale)
        log_masses = above + np.log(-np.expm1(below - above))
        density = -0.5 * (low / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
        if self.whole and scale.min(initial=np.inf) < _SMOOTH:
            k = np.arange(-64.0, 65.0)
            total = np.exp(-0.5 * (k / scale[..., None]) ** 2).sum(axis=-1)
            density = np.where(scale < _SMOOTH, -0.5 * (low / scale) ** 2 - np.log(total), density)
        return np.asarray(np.where(low == high, density, log_masses))


@dataclass(frozen=True)
class NoisyShares(Channel):
    """Add Laplace noise to shares of K classes, cut them off at 0 and 1, and divide by their sum.

    Joint over a record's K shares.

    `scale`: Of the noise.
    """

    scale: float

    def within(self, units: ArrayLike, whole: bool = True) -> Channel:
        """Return itself: shares have no unit."""
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Add noise, clip, divide; where nothing is left, all classes alike."""
        assert rng is not None
        noisy = np.clip(x + rng.laplace(scale=self.scale, size=np.shape(x)), 0, 1)
        even = np.full_like(noisy, 1 / noisy.shape[-1])
        total = noisy.sum(axis=-1, keepdims=True)
        np.divide(noisy, total, out=even, where=total > 0)
        return even

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log density of the middle of the box, whatever its size.

        Noisy shares z are ``t y`` for some t. While all are below 1 it is their density, integrated
        over ``t^(s-1) dt`` for s shares above 0; where the greatest is cut off at 1, t is known. Of
        shares cut off at 0 the mass below counts. Several that are equal and the greatest were all
        cut off.
        """
        y = (np.asarray(lo, dtype=np.float64) + np.asarray(hi)) / 2
        x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), y)
        positive, largest = y > 0, y.max(axis=-1)
        power = positive.sum(axis=-1) - 1.0
        law = Laplace(self.scale)

        def along(t: Floats) -> Floats:
            z = t[..., None] * y
            low = np.where(positive, z, -np.inf)[..., None]
            return np.asarray(law.log_mass(low, z[..., None], x[..., None]).sum(axis=-1))

        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        log_total = np.full(largest.shape, -np.inf)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            t = node / largest
            log_total = np.logaddexp(
                log_total, along(t) + power * np.log(t) + np.log(weight / largest)
            )
        cut = y == largest[..., None]
        tied = cut.sum(axis=-1) > 1
        z = np.where(cut, 1.0, y / largest[..., None])
        low, high = np.where(positive, z, -np.inf), np.where(cut, np.inf, z)
        capped = law.log_mass(low[..., None], high[..., None], x[..., None]).sum(axis=-1)
        none = np.zeros((*y.shape, 1))
        nothing = law.log_mass(none - np.inf, none, x[..., None]).sum(axis=-1)
        log_total = np.where(tied, np.where(cut.all(axis=-1), nothing, -np.inf), log_total)
        return np.asarray(np.logaddexp(log_total, capped - (power + 1) * np.log(largest)))

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y and the variance of the noise: what dividing adds is not counted."""
        y = np.asarray(y, dtype=np.float64)
        return y, np.full(y.shape, 2 * self.scale**2)


#: Of the integral over what noisy shares added up to.
_NODES = 64


@dataclass(frozen=True)
class Response(Channel):
    """Randomised response among all classes: the true one with odds ``e^epsilon`` against each.

    `epsilon`: In nats, above 0.
    """

    epsilon: float
    classes: int

    def within(self, units: ArrayLike, whole: bool = True) -> Channel:
        """Return itself: a label has no unit."""
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Answer for every label."""
        assert rng is not None
        prior = np.full((np.size(x), self.classes), 1.0 / self.classes)
        return respond(np.ravel(x), prior, odds_within(self.epsilon), rng).reshape(np.shape(x))

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Return all classes."""
        shape = np.broadcast_shapes(np.shape(lo), np.shape(hi))
        return np.zeros(shape), np.full(shape, self.classes - 1.0)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability of an answer from lo to hi."""
        odds, x = float(odds_within(self.epsilon)), np.asarray(x)
        first, last = np.maximum(np.ceil(lo), 0), np.minimum(np.floor(hi), self.classes - 1)
        weight = np.maximum(last - first + 1, 0.0)
        weight = weight + np.where((first <= x) & (x <= last), odds - 1, 0.0)
        with np.errstate(divide="ignore"):
            each = np.log(weight) - np.log(odds + self.classes - 1)
        return np.asarray(each.sum(axis=-1))
