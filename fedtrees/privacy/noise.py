"""Channels with randomness: Laplace noise, Gaussian noise and randomised response.

A channel draws the noise of a defense, and gives attacks the likelihood of a received value. The
samplers for integers are in `fedtrees.privacy.mechanisms`.
"""

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
from fedtrees.core.deterministic_channels import plain
from fedtrees.core.errors import UsageError
from fedtrees.privacy.mechanisms import (
    discrete_gaussian,
    discrete_laplace,
    log_probabilities,
    log_tails,
    odds_within,
    respond,
    truncated_laplace,
)

Scale = float | tuple[float, ...]
Shape = tuple[int, ...]  # shape of the draws
# From this scale on, the weights exp(-k^2 / (2 s^2)) of integers k add up to the Gaussian integral.
_SMOOTH = 2.0
_LAGUERRE = 48  # nodes of the quadrature of a tail
# In scales. Noise beyond it has probability 0 in float64, and powers of this number are finite.
_FAR = 1e9
# Largest scale of noise on integers whose probabilities are tabulated if it is a sum of draws.
_TABLE = 1000.0


@dataclass(frozen=True)
class Noise(Channel):
    """Independent additive noise on every number.

    Attributes
    ----------
    scale : float or tuple of float
        Above 0. A tuple contains one scale for every number of a cell.
    integers : bool
        Whether the numbers, and therefore the noise, are integers. `in_units_of` gives the integers
        of a message the discrete distribution. For Laplace noise, its epsilon is l1 / scale as for
        the continuous one, because l1 and scale are multiplied by the same unit, and
        ``P(k) ~ exp(-|k| / scale)`` changes by a factor of at most ``exp(l1 / scale)`` if k changes
        by l1. For Gaussian noise see `fedtrees.privacy.accounting.gaussian_mu`.

    Raises
    ------
    UsageError
        If a scale is not finite and above 0.
    """

    scale: Scale
    integers: bool = False

    additive = True

    def __post_init__(self) -> None:
        scales = np.asarray(self.scale, dtype=np.float64)
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise UsageError(f"scale must be a finite number > 0; got {self.scale!r}")

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Noise:
        """Return the noise in the units of a message.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell.
        integers : bool
            Whether the numbers of the message are integers. The noise is then discrete.

        Returns
        -------
        Noise
            Noise whose scale is multiplied by the units.
        """
        scale = plain(np.asarray(self.scale) * np.asarray(units, dtype=np.float64))
        return replace(self, scale=scale, integers=integers)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Add noise to every number.

        Parameters
        ----------
        x : array, shape (..., c)
            True values.
        rng : numpy.random.Generator
            Source of the noise. With one scale per number of a cell, the noise of the first number
            of all cells is drawn first.

        Returns
        -------
        y : array, shape (..., c)
            Noisy values.
        """
        assert rng is not None
        if isinstance(self.scale, float | int):
            return np.asarray(x + self._drawn(self.scale, np.shape(x), rng))
        noise = [self._drawn(scale, np.shape(x)[:-1], rng) for scale in self.scale]
        return np.asarray(x + np.stack(noise, axis=-1))

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y and the variance of the noise.

        Parameters
        ----------
        y : array, shape (..., c)
            Noisy values.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            The variance is in squared units of y.
        """
        y = np.asarray(y, dtype=np.float64)
        return y, np.broadcast_to(self._variance(np.asarray(self.scale, np.float64)), y.shape)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability that noise moves x into the box.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the box, both included.
        x : array, shape (..., c)
            True cells.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats. If the numbers are not integers, a point counts by its density.
        """
        x, scale = np.asarray(x, dtype=np.float64), np.asarray(self.scale, np.float64)
        low, high = np.asarray(lo) - x, np.asarray(hi) - x
        if self.integers:
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
    """Laplace noise. On integers it is the two-sided geometric distribution.

    Attributes
    ----------
    draws : float
        Number of draws whose sum is the noise, above 0. It need not be an integer, because the
        distribution is infinitely divisible. On integers, probabilities are exact for one draw and
        for scales up to 1000 (`fedtrees.privacy.mechanisms`). For wider noise they are those of the
        continuous distribution, from half a step below to half a step above.

    References
    ----------
    Arpita Ghosh, Tim Roughgarden and Mukund Sundararajan: Universally Utility-Maximizing Privacy
    Mechanisms, SIAM Journal on Computing 41 (2012), define the two-sided geometric distribution.

    Samuel Kotz, Tomasz Kozubowski and Krzysztof Podgórski: The Laplace Distribution and
    Generalizations (2001), Sections 2.2.4 and 4.1, for sums of draws.

    Examples
    --------
    Noise of scale 1 that is five times as likely at 0 as at ``log(5)``:

    >>> noise = Laplace(1.0)
    >>> at = np.array([[0.0], [np.log(5)]])
    >>> np.exp(noise.log_likelihood(at, np.zeros((2, 1)))).round(3)
    array([0.5, 0.1])
    """

    draws: float = 1

    def sum_of_draws(self, n: float) -> Channel:
        """Return the sum of n times as many draws.

        Parameters
        ----------
        n : float
            Factor, above 0.

        Returns
        -------
        Channel
            Laplace noise with n times as many draws of the same scale.
        """
        return replace(self, draws=n * self.draws)

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        if self.draws != int(self.draws):  # difference of two Polya, or two gamma, variates
            p, r = -np.expm1(-1 / scale), self.draws
            share = (
                partial(rng.negative_binomial, r, p)
                if self.integers
                else partial(rng.gamma, r, scale)
            )
            return np.asarray(share(shape) - share(shape))
        draw = partial(discrete_laplace, scale) if self.integers else partial(_laplace, scale)
        return np.asarray(sum(draw(shape, rng) for _ in range(int(self.draws))))

    def _variance(self, scale: Floats) -> Floats:
        of_one_draw = (
            2 * np.exp(-1 / scale) / np.expm1(-1 / scale) ** 2 if self.integers else 2 * scale**2
        )
        return np.asarray(self.draws * of_one_draw)

    def _exact(self, scale: Floats) -> bool:
        return self.integers and bool(np.max(scale, initial=0.0) <= _TABLE)

    def _log_tail(self, m: Floats, scale: Floats) -> Floats:
        """Return the log probability of noise of m or more, for m above 0."""
        if self.integers and self.draws == 1:
            return np.asarray(-m / scale - np.log1p(np.exp(-1 / scale)))
        if self._exact(scale):
            return _by_scale(log_tails, m, scale, self.draws)
        z = np.minimum((m - 0.5 * self.integers) / scale, _FAR)
        return np.asarray(np.log(_scaled_tail(z, self.draws, 1)) - z)

    def _log_mass(self, low: Floats, high: Floats, scale: Floats) -> Floats:
        # An interval on one side of 0 is a difference of two tails. An interval that contains 0 is
        # the complement of both tails.
        right, unit = low > 0, float(self.integers)
        near, far = np.where(right, low, -high), np.where(right, high, -low) + unit
        first = self._log_tail(near, scale)
        one_sided = first + np.log(-np.expm1(self._log_tail(far, scale) - first))
        tails = np.exp(self._log_tail(high + unit, scale)) + np.exp(
            self._log_tail(unit - low, scale)
        )
        log_masses = np.where(right | (high < 0), one_sided, np.log1p(-tails))
        if self.integers and self.draws == 1:
            return log_masses
        if self._exact(scale):
            point = _by_scale(log_probabilities, np.abs(low), scale, self.draws)
            return np.asarray(np.where(low == high, point, log_masses))
        z = np.minimum(np.abs(low) / scale, _FAR)
        density = np.log(_scaled_tail(z, self.draws, 0)) - z - np.log(scale)
        return np.asarray(np.where(low == high, density, log_masses))


def _by_scale(
    table: Callable[[float, float], Floats], k: Floats, scale: Floats, draws: float
) -> Floats:
    """Look integers k up in the table of their scale. Beyond the table, the decay is geometric."""
    k, scale = np.broadcast_arrays(k, scale)
    log_masses = np.full(k.shape, -np.inf)
    for table_scale in np.unique(scale):
        values = table(float(table_scale), draws)
        in_table = (scale == table_scale) & np.isfinite(k)
        index = np.clip(k[in_table], 0, None)
        inside = np.minimum(index, len(values) - 1).astype(np.int64)
        log_masses[in_table] = values[inside] - (index - inside) / table_scale
    return log_masses


def _scaled_tail(z: Floats, draws: float, what: int) -> Floats:
    """Return ``exp(z)`` times the density or the upper tail of a sum of Laplace draws at z >= 0.

    `what` selects the density (0) or the tail (1). For a fractional number of draws the density
    contains a Bessel function (Kotz et al. 2001, Eq. 4.1.30), and the tail is a Gauss-Laguerre
    quadrature of it.
    """
    if draws == int(draws):
        return np.asarray(polyval(z, _erlang(int(draws))[what]))
    if what:
        nodes, weights = np.polynomial.laguerre.laggauss(_LAGUERRE)
        each = (w * _scaled_tail(z + x, draws, 0) for x, w in zip(nodes, weights, strict=True))
        return np.asarray(sum(each))
    nu, z = draws - 0.5, np.maximum(z, 1e-9)
    return np.asarray((z / 2) ** nu * kve(nu, z) / (np.sqrt(np.pi) * gamma(draws)))


@cache
def _erlang(n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return polynomials p and t of the sum of n Laplace variates of scale 1.

    Its density at z >= 0 is ``p(z) exp(-z)`` and its upper tail ``t(z) exp(-z)``. It is a mixture
    of Erlang variates, because it is the difference of two gamma variates (Kotz et al. 2001, Sec.
    2.2.4).
    """
    weights = [comb(n - 1 + j, j) / 2.0 ** (n + j) for j in range(n)]
    p = np.array([weights[n - 1 - m] / factorial(m) for m in range(n)])
    t = np.array([sum(weights[: n - m]) / factorial(m) for m in range(n)])
    return p, t


def _laplace(scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
    return rng.laplace(scale=scale, size=shape)


class TruncatedLaplace(Laplace):
    """Laplace noise truncated toward 0, as the code of Gorgé et al. (2026) adds to counts.

    Its values are integers, but a value of 0 is more likely than for `Laplace` on integers.
    """

    def sum_of_draws(self, n: float) -> Channel:
        """Return the channel of n consecutive draws.

        Parameters
        ----------
        n : float
            Number of draws, an integer.

        Returns
        -------
        Channel
            A `fedtrees.core.channel.Chain`, because the sum of truncated draws has no simple
            formula.

        Raises
        ------
        ProtocolError
            If n is not an integer.
        """
        return Channel.sum_of_draws(self, n)

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        return truncated_laplace(scale, shape, rng)

    def _variance(self, scale: Floats) -> Floats:
        q = np.exp(-1 / scale)
        return np.asarray(q * (1 + q) / np.expm1(-1 / scale) ** 2)

    def _log_tail(self, m: Floats, scale: Floats) -> Floats:
        return np.asarray(-m / scale - np.log(2.0))


class Gaussian(Noise):
    """Gaussian noise. On integers it is the discrete Gaussian (Canonne et al. 2020).

    The scale is the standard deviation. Probabilities of intervals of integers are those of the
    continuous Gaussian from half a step below to half a step above. This approximation is good if
    the scale is large.

    References
    ----------
    Clément Canonne, Gautam Kamath and Thomas Steinke: The Discrete Gaussian for Differential
    Privacy, NeurIPS 2020.

    Examples
    --------
    >>> mean, variance = Gaussian(2.0).sum_of_draws(4).posterior_moments(np.zeros((1, 1)))
    >>> variance
    array([[16.]])
    """

    def _drawn(self, scale: float, shape: Shape, rng: np.random.Generator) -> NDArray[Any]:
        if self.integers:
            return discrete_gaussian(scale, shape, rng)
        return scale * rng.standard_normal(shape)

    def _variance(self, scale: Floats) -> Floats:
        return scale**2

    def sum_of_draws(self, n: float) -> Channel:
        """Return Gaussian noise with n times the variance.

        Parameters
        ----------
        n : float
            Number of draws, above 0.

        Returns
        -------
        Channel
            Gaussian noise whose scale is multiplied by the square root of n.
        """
        return Gaussian(plain(np.asarray(self.scale) * np.sqrt(n)), self.integers)

    def _log_mass(self, low: Floats, high: Floats, scale: Floats) -> Floats:
        half = 0.5 if self.integers else 0.0
        flip = low + high > 0  # mirror to negative ends, where logarithms are exact
        a, b = np.where(flip, -high, low) - half, np.where(flip, -low, high) + half
        above, below = log_ndtr(b / scale), log_ndtr(a / scale)
        log_masses = above + np.log(-np.expm1(below - above))
        density = -0.5 * (low / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
        if self.integers and scale.min(initial=np.inf) < _SMOOTH:
            k = np.arange(-64.0, 65.0)
            total = np.exp(-0.5 * (k / scale[..., None]) ** 2).sum(axis=-1)
            density = np.where(scale < _SMOOTH, -0.5 * (low / scale) ** 2 - np.log(total), density)
        return np.asarray(np.where(low == high, density, log_masses))


@dataclass(frozen=True)
class NoisyShares(Channel):
    """Add Laplace noise to shares of K classes, clip them to [0, 1], and divide them by their sum.

    The channel is joint over the K shares of a record.

    Attributes
    ----------
    scale : float
        Scale of the Laplace noise.
    """

    scale: float

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Channel:
        """Return the channel itself, because shares have no unit.

        Parameters
        ----------
        units : float or array, shape (c,)
            Not used.
        integers : bool
            Not used.

        Returns
        -------
        Channel
            This object.
        """
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Add noise, clip and normalise.

        Parameters
        ----------
        x : float array, shape (..., K)
            True shares of K classes.
        rng : numpy.random.Generator
            Source of the noise.

        Returns
        -------
        y : float array, shape (..., K)
            Noisy shares, which add up to 1. If all shares are clipped to 0, they are equal.
        """
        assert rng is not None
        noisy = np.clip(x + rng.laplace(scale=self.scale, size=np.shape(x)), 0, 1)
        even = np.full_like(noisy, 1 / noisy.shape[-1])
        total = noisy.sum(axis=-1, keepdims=True)
        np.divide(noisy, total, out=even, where=total > 0)
        return even

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log density at the middle of a box. The size of the box does not matter.

        The noisy shares before the division are z = ``t y`` for some t, their sum. If all of them
        are below 1, the density is that of z, integrated over ``t^(s-1) dt`` with s the number of
        positive shares. If the largest was clipped to 1, t is known. A share that was clipped to 0
        counts by the probability of noise below 0. Several shares that are equal and the largest
        were all clipped to 1.

        Parameters
        ----------
        lo, hi : array, shape (..., K)
            Ends of the box of received shares.
        x : array, shape (..., K)
            True shares.

        Returns
        -------
        log_density : float64 array, shape (...)
            Logarithm of the density of each record. The integral over t is a Gauss-Legendre
            quadrature.
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
        zeros = np.zeros((*y.shape, 1))
        all_clipped = law.log_mass(zeros - np.inf, zeros, x[..., None]).sum(axis=-1)
        log_total = np.where(tied, np.where(cut.all(axis=-1), all_clipped, -np.inf), log_total)
        return np.asarray(np.logaddexp(log_total, capped - (power + 1) * np.log(largest)))

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y and the variance of the noise, without the effect of the division.

        Parameters
        ----------
        y : array, shape (..., K)
            Received shares.

        Returns
        -------
        mean, variance : float64 array, shape (..., K)
            The variance is twice the squared scale.
        """
        y = np.asarray(y, dtype=np.float64)
        return y, np.full(y.shape, 2 * self.scale**2)


#: Number of nodes of the integral over the sum of the noisy shares.
_NODES = 64


@dataclass(frozen=True)
class Response(Channel):
    """Randomised response over all classes.

    The true class has odds of ``e^epsilon`` against each of the remaining classes.

    Attributes
    ----------
    epsilon : float
        In nats, above 0.
    classes : int
        Number of classes.

    References
    ----------
    Stanley Warner: Randomized Response: A Survey Technique for Eliminating Evasive Answer Bias,
    Journal of the American Statistical Association 60 (1965), for two classes.

    Examples
    --------
    With odds of 3 against each of two further classes, 3 of 5 responses are true:

    >>> response = Response(np.log(3), 3)
    >>> np.exp(response.log_likelihood(np.array([[1], [2]]), np.array([[1], [1]]))).round(3)
    array([0.6, 0.2])
    """

    epsilon: float
    classes: int

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Channel:
        """Return the channel itself, because a label has no unit.

        Parameters
        ----------
        units : float or array, shape (c,)
            Not used.
        integers : bool
            Not used.

        Returns
        -------
        Channel
            This object.
        """
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Draw a response for every label.

        Parameters
        ----------
        x : int array, shape (..., 1)
            True labels, from 0 to ``classes - 1``.
        rng : numpy.random.Generator
            Source of the responses.

        Returns
        -------
        y : int array, shape (..., 1)
            Responses.
        """
        assert rng is not None
        prior = np.full((np.size(x), self.classes), 1.0 / self.classes)
        return respond(np.ravel(x), prior, odds_within(self.epsilon), rng).reshape(np.shape(x))

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Return the range of all classes, because each of them can lead to any response.

        Parameters
        ----------
        lo, hi : array, shape (..., 1)
            First and last response.

        Returns
        -------
        first, last : float64 array, shape (..., 1)
            Zeros, and the number of the last class.
        """
        shape = np.broadcast_shapes(np.shape(lo), np.shape(hi))
        return np.zeros(shape), np.full(shape, self.classes - 1.0)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability of a response between two labels.

        Parameters
        ----------
        lo, hi : array, shape (..., 1)
            First and last label, both included.
        x : array, shape (..., 1)
            True labels.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats.
        """
        odds, x = float(odds_within(self.epsilon)), np.asarray(x)
        first, last = np.maximum(np.ceil(lo), 0), np.minimum(np.floor(hi), self.classes - 1)
        weight = np.maximum(last - first + 1, 0.0)
        weight = weight + np.where((first <= x) & (x <= last), odds - 1, 0.0)
        with np.errstate(divide="ignore"):
            each = np.log(weight) - np.log(odds + self.classes - 1)
        return np.asarray(each.sum(axis=-1))
