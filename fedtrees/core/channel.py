"""Channels: the public conditional distribution of a sent value, given the true value.

A defense or protocol declares a channel for each field that it changes, and applies this channel.
Attacks use it to compute bounds and likelihoods of the true value. A channel depends on public
parameters only. It acts on *cells*: the last axis of an array contains numbers that are changed
together, such as the sums G and H of a bin, or the K scores of a record.

Some changes are no channel, because no distribution of y for a given x exists. The remaining
subclasses of `Change` state them: `Removal`, `Share`, `SumOfShares`, `Mechanism`,
`ConditionalOmission`, `ChangedCount` and `VaryingChannel`.
"""

from __future__ import annotations

import inspect
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.moved import CHANNEL_NAMES, CHANNEL_PARAMETERS

Floats = NDArray[np.float64]
Box = tuple[Floats, Floats]

_KINDS: list[type] = []
# If several parts of a `Chain` are random, the log mass is an average over this number of draws of
# all random parts except the last one. The exact value would need a convolution of their laws.
_DRAWS = 512
_SIMULATED = 4001  # draws from which the spread of noise without a known variance is estimated
_QUARTILES_OF_NORMAL = 1.34898  # distance of the quartiles of the standard normal distribution


class Change(ABC):  # noqa: B024 - it is a common type, without methods
    """Change of a field by a defense or protocol: a `Channel`, or the reason why there is none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS.append(cls)


def kinds() -> tuple[type, ...]:
    """Return all loaded subclasses of `Change` that can be instantiated."""
    return tuple(kind for kind in _KINDS if not inspect.isabstract(kind))


@dataclass(frozen=True)
class Removal(Change):
    """The field is not sent, or it always contains the same constant.

    Attributes
    ----------
    constant : float or None
        The constant. None if the field is not sent.
    """

    constant: float | None = None


def honest_shares(parties: int, colluders: int, least: int = 0) -> int:
    """Return the number of noise shares that must add up to the claimed noise.

    A client that colludes with the adversary knows its share of the noise, because it drew it. The
    shares of the remaining clients must therefore suffice. A federation of one client has no other
    client whose rows could be protected against it, so that its single share is the complete noise.

    Parameters
    ----------
    parties : int
        Number of clients, each of which adds one share.
    colluders : int
        Number of colluding clients that the claimed epsilon covers. 0: it covers only parties that
        know no share.
    least : int
        Number of clients whose shares are certain to arrive, if clients may drop out. 0: all.

    Returns
    -------
    int
        Number of clients whose shares arrive and are unknown to the adversary, 1 or more.

    Raises
    ------
    UsageError
        If the colluding clients know all shares that are certain to arrive.

    Examples
    --------
    >>> honest_shares(5, 1)
    4
    >>> honest_shares(5, 1, least=3)
    2
    """
    if parties == 1 and colluders <= 1:
        return 1
    present = min(least or parties, parties)
    if colluders >= present:
        counted = f"{parties} clients" + (f", of which {present} may remain" if least else "")
        raise UsageError(
            f"colluders={colluders} of {counted}: colluding clients know their shares of the "
            "noise, so that no unknown noise would remain; give fewer colluders than clients"
        )
    return present - colluders


@dataclass(frozen=True)
class Share(Change):
    """Each party adds a share of the noise, and only the sum over all parties has a known law.

    An adversary knows the shares of the parties that collude with it.

    Attributes
    ----------
    total : Channel
        Law of the sum of as many shares as the noise is calibrated for (`honest_shares`).
    least : int
        Number of parties whose shares must arrive. A sum over fewer is not opened
        (`fedtrees.core.secure_sum.AggregationExchange.min_replies`). 0: all parties that are asked.
    colluders : int
        Number of parties whose shares the adversary may know without a loss of the claim.
    """

    total: Channel
    least: int = 0
    colluders: int = 0

    def law(self, parties: int, known_shares: int = 0) -> Channel | None:
        """Return the law of the noise that an adversary does not know.

        Parameters
        ----------
        parties : int
            Number of parties that added a share.
        known_shares : int
            Number of these shares that the adversary knows.

        Returns
        -------
        Channel or None
            Channel from the true sum to the opened sum, for an adversary that subtracts the shares
            it knows. None if it knows all of them.
        """
        unknown = parties - known_shares
        if unknown <= 0:
            return None
        # The law is that of `honest_shares` shares. With more unknown shares, there is more noise.
        draws = unknown / honest_shares(parties, self.colluders, self.least)
        return self.total if draws == 1 else self.total.sum_of_draws(draws)


@dataclass(frozen=True)
class SumOfShares(Change):
    """The field contains the sum over all parties, with the noise shares of all of them.

    A released model is an example. `fedtrees.protocols.views.protocol_channels` replaces this by
    the law of the noise as soon as the number of parties is known.

    Attributes
    ----------
    share : Share
        The share of the noise that each party adds.
    """

    share: Share


@dataclass(frozen=True)
class Mechanism(Change):
    """A private mechanism draws the sent values from the rows, so that no single x belongs to y.

    Attributes
    ----------
    reason : str
        Description of the mechanism.
    rank_error : float
        If values are drawn from a column: approximate standard deviation of their ranks, in rows.
    log_chance : callable or None
        ``log_chance(drawn, column, n_rows, ends)`` returns the log probability of the drawn values,
        shape (k,), given the column's values, shape (n,), each of which has so many rows, and its
        public ends. None if it cannot be computed.
    noise : Channel or None
        Noise that the mechanism adds to each number that it computes from rows. It then processes
        the noisy numbers without using rows again. None if it is not declared.
    """

    reason: str
    rank_error: float = 0.0
    log_chance: Callable[[Floats, Floats, float, tuple[float, float]], float] | None = field(
        default=None, compare=False
    )
    noise: Channel | None = None


@dataclass(frozen=True)
class ConditionalOmission(Change):
    """A message or value may be missing, and its absence is evidence about the rows.

    For example, a client sends only coordinates of an update above a threshold. A missing
    coordinate then shows that it is below the threshold.

    Attributes
    ----------
    reason : str
        Condition of the omission.
    """

    reason: str


@dataclass(frozen=True)
class ChangedCount(Change):
    """The number of values changes, so that no single x belongs to each y.

    For example, equal values of a summary are sent once.

    Attributes
    ----------
    reason : str
        Description of the change.
    """

    reason: str


@dataclass(frozen=True)
class VaryingChannel(Change):
    """The law of y given x differs between rows, or depends on earlier messages.

    For example, `lp-mst` randomises a label in stages. The answers of earlier stages determine the
    labels among which the next response is drawn.

    Attributes
    ----------
    reason : str
        Description of the dependence.
    usual : Channel or None
        Law of a row about which the adversary knows nothing. None if there is no such law.
    """

    reason: str
    usual: Channel | None = None


#: Former names of classes, for one release.
Event, Reshaped, Memory = ConditionalOmission, ChangedCount, VaryingChannel


def _warn_of_old_name(owner: str, old: str, new: str) -> None:
    """Warn that a plug-in uses the former name of a member of a channel."""
    warn(f"{owner}.{old} is now {new}", DeprecationWarning, stacklevel=3)


class _ChannelType(ABCMeta):
    """Type of all channels, which accepts the former names of their parameters for one release."""

    if not TYPE_CHECKING:  # a type checker should see the signatures of the subclasses

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            declared = getattr(cls, "__dataclass_fields__", ())
            for old, new in CHANNEL_PARAMETERS.items():
                if old in kwargs and old not in declared and new in declared:
                    _warn_of_old_name(cls.__name__, old, new)
                    kwargs[new] = kwargs.pop(old)
            return super().__call__(*args, **kwargs)


class Channel(Change, metaclass=_ChannelType):
    """Conditional distribution P(y | x) of a sent cell y, given a true cell x.

    All arrays have shape (..., c): the last axis is the cell.

    Attributes
    ----------
    deterministic : bool
        Whether x determines y.
    additive : bool
        Whether the distribution of ``y - x`` does not depend on x.
    suppresses : bool
        Whether a cell is replaced by zeros if its last number is below a limit. Zeros then reveal
        only that this number was below the limit.
    """

    deterministic: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    suppresses: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A plug-in may still define methods by their former names.
        for old, new in CHANNEL_NAMES.items():
            if old in vars(cls) and new not in vars(cls):
                _warn_of_old_name(cls.__name__, old, new)
                setattr(cls, new, vars(cls)[old])

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            new_name = (CHANNEL_NAMES | CHANNEL_PARAMETERS).get(name)
            if new_name is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _warn_of_old_name(type(self).__name__, name, new_name)
            return getattr(self, new_name)

    @abstractmethod
    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Channel:
        """Return the same channel for numbers in the units of a message.

        A histogram stores gradients in units of 2^-20, so that noise of scale 1.0 is drawn as
        integers with a scale of 2^20: ``Laplace(1.0).in_units_of(2.0**20)``.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell: ``2^bits``, or a number of
            rows.
        integers : bool
            Whether the numbers of the message are integers.

        Returns
        -------
        Channel
            Channel whose `send` takes and returns numbers in these units.
        """

    @abstractmethod
    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Return the sent values. A channel with randomness draws them.

        Parameters
        ----------
        x : array, shape (..., c)
            True values.
        rng : numpy.random.Generator, optional
            Source of the randomness. A channel with randomness requires it, a deterministic one
            ignores it.

        Returns
        -------
        y : array, shape (..., c)
            Sent values.
        """

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Return a box that contains every x from which a value in [lo, hi] can be sent.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 arrays of the same shape
            Ends of the box, both included: x satisfies ``first <= x <= last``. They are infinite
            if the channel does not bound x.
        """
        shape = np.broadcast_shapes(np.shape(lo), np.shape(hi))
        return np.full(shape, -np.inf), np.full(shape, np.inf)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability that a cell in a box is sent, given the true cell.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number, both included.
        x : array, shape (..., c)
            True cells.

        Returns
        -------
        log_mass : float64 array, shape (...)
            ``log P(lo <= y <= hi | x)`` of every cell, in nats. If y is continuous and lo equals
            hi, it is the log density at this point.

        Raises
        ------
        NotImplementedError
            If the channel has randomness and its class does not override this method.
        """
        if not self.deterministic:
            raise NotImplementedError(f"{type(self).__name__} must define log_mass")
        # A deterministic channel sends a value in the interval if and only if x is in its preimage.
        # Computing ``send(x)`` instead would not do, because the result can differ from the sent
        # float in its last bits.
        first, last = self.preimage(lo, hi)
        return np.where(((first <= x) & (x <= last)).all(axis=-1), 0.0, -np.inf)

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return mean and variance of the true values given the sent ones, under a uniform prior.

        Attacks use them to approximate the posterior distribution of x by a Gaussian. This
        implementation is that of a channel whose y leaves x uniform over its preimage. If the
        preimage of a channel with randomness is unbounded, the variance is that of a normal
        distribution with the quartiles of simulated draws. Everybody can draw from a published
        channel, and the quartiles exist for noise without a variance, too.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent values.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            Mean of each true value, and its variance in squared units of y. If the preimage of a
            deterministic channel is unbounded, the mean is y and the variance is infinite.
        """
        lo, hi = self.bounds(y)
        # The variance of a uniform distribution is the squared width divided by 12.
        ends = np.isfinite(lo) & np.isfinite(hi)
        lo, hi = np.where(ends, lo, y), np.where(ends, hi, y)
        unbounded = np.inf if self.deterministic or ends.all() else self._simulated_variance(y)
        return (lo + hi) / 2, np.where(ends, (hi - lo) ** 2 / 12, unbounded)

    def _simulated_variance(self, y: NDArray[Any]) -> Floats:
        """Return the variance of a normal distribution with the quartiles of simulated errors.

        The draws are made at the median of the sent cells, shape (c,). Their random numbers are
        fixed, so that attacks give the same guess for the same view.
        """
        cell = np.median(np.reshape(y, (-1, np.shape(y)[-1])), axis=0)
        draws = self.send(np.tile(cell, (_SIMULATED, 1)), np.random.default_rng(0))
        low, high = np.quantile(draws - cell, [0.25, 0.75], axis=0)
        return np.asarray(((high - low) / _QUARTILES_OF_NORMAL) ** 2, dtype=np.float64)

    def error_range(self, c: int) -> Box:
        """Return the smallest and largest possible value of ``x - y``.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of each number of a cell. They are infinite by default.
        """
        return np.full(c, -np.inf), np.full(c, np.inf)

    def sum_of_draws(self, n: float) -> Channel:
        """Return the law of the sum of n independent draws of additive noise.

        n can be fractional, because noise can be calibrated for fewer shares than an adversary does
        not know (`Share.law`). This implementation repeats the channel, which is possible for
        integers only. A channel whose distribution is infinitely divisible should override it.

        Parameters
        ----------
        n : float
            Number of draws, above 0.

        Returns
        -------
        Channel
            Channel that adds the sum of the draws.

        Raises
        ------
        ProtocolError
            If n is not an integer. Rounding n would state less noise than is drawn. For n below
            0.5, it would state none.
        """
        if n != int(n):
            raise ProtocolError(
                f"{type(self).__name__} does not state the distribution of {n:g} draws; implement "
                "`sum_of_draws` for fractions, or calibrate the noise for all parties"
            )
        return Chain((self,) * int(n))

    def bounds(self, y: NDArray[Any]) -> Box:
        """Return a box that contains every x from which y can be sent.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent values.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of the box, both included, as in `preimage`.
        """
        return self.preimage(y, y)

    def log_likelihood(self, y: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability of the sent cells, or their log density if y is continuous.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent cells.
        x : array, shape (..., c)
            True cells.

        Returns
        -------
        log_likelihood : float64 array, shape (...)
            ``log P(y | x)`` of every cell, in nats.
        """
        return self.log_mass(y, y, x)


@dataclass(frozen=True)
class Chain(Channel):
    """Several channels, applied one after the other.

    Attributes
    ----------
    parts : tuple of Channel
        The channels in order. An empty chain changes nothing.
    """

    parts: tuple[Channel, ...]

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether all parts are deterministic."""
        return all(p.deterministic for p in self.parts)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Whether all parts are additive."""
        return all(p.additive for p in self.parts)

    @property
    def suppresses(self) -> bool:  # type: ignore[override]
        """Whether any part suppresses cells."""
        return any(p.suppresses for p in self.parts)

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Chain:
        """Return the chain whose parts are all in these units.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell.
        integers : bool
            Whether the numbers of the message are integers.

        Returns
        -------
        Chain
            The same parts in the same order.
        """
        return Chain(tuple(p.in_units_of(units, integers) for p in self.parts))

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Apply the parts in order.

        Parameters
        ----------
        x : array, shape (..., c)
            True values.
        rng : numpy.random.Generator, optional
            Source of the randomness, which the parts use in turn.

        Returns
        -------
        y : array, shape (..., c)
            Result of the last part. An empty chain returns x.
        """
        for part in self.parts:
            x = part.send(x, rng)
        return x

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Apply the preimages of the parts from the last to the first.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of a box that contains every x from which a value in [lo, hi] can be sent.
        """
        for part in reversed(self.parts):
            lo, hi = part.preimage(lo, hi)
        return np.asarray(lo, dtype=np.float64), np.asarray(hi, dtype=np.float64)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability that a cell in a box is sent, given the true cell.

        It is exact if at most one part is random. With more random parts it is an average over 512
        draws of all parts before the last random one. Deterministic parts after that are replaced
        by their preimage.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.
        x : array, shape (..., c)
            True cells.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats. The draws of the average have a fixed seed, so that equal arguments give equal
            results.
        """
        drawn = [i for i, part in enumerate(self.parts) if not part.deterministic]
        if not drawn:
            return super().log_mass(lo, hi, x)
        last = self.parts[drawn[-1]]
        # Deterministic parts after the last draw: the draw must be in their preimage.
        lo, hi = Chain(self.parts[drawn[-1] + 1 :]).preimage(lo, hi)
        # The fixed seed makes the average a deterministic function of its arguments.
        before, rng = Chain(self.parts[: drawn[-1]]), np.random.default_rng(0)
        if before.deterministic:
            return last.log_mass(lo, hi, before.send(np.asarray(x)))
        # Average the mass over draws of the earlier noise. The sum is computed in logarithms,
        # because masses can underflow.
        total = last.log_mass(lo, hi, before.send(np.asarray(x), rng))
        for _ in range(1, _DRAWS):
            total = np.logaddexp(total, last.log_mass(lo, hi, before.send(np.asarray(x), rng)))
        return np.asarray(total - np.log(_DRAWS))

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Add the variances of the parts, from the last to the first.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent values.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            The sum of the variances is an approximation, because the mean of one part is treated as
            the sent value of the part before it.
        """
        mean, variance = np.asarray(y, dtype=np.float64), np.zeros(np.shape(y))
        for part in reversed(self.parts):
            mean, more = part.posterior_moments(mean)
            variance = variance + more
        return mean, variance

    def error_range(self, c: int) -> Box:
        """Add the ranges of the parts.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of ``x - y``.
        """
        ends = [part.error_range(c) for part in self.parts]
        return sum((e[0] for e in ends), np.zeros(c)), sum((e[1] for e in ends), np.zeros(c))


@dataclass(frozen=True)
class SumOf(Channel):
    """Sum of the values that n parties send through the same channel, given the sum of their x.

    Bounds add up. A likelihood given the true sum exists only if the channel is additive, because
    the result of rounding and suppression depends on how the sum is split over the parties.

    Attributes
    ----------
    part : Channel
        Channel of each party.
    n : int
        Number of parties.
    """

    part: Channel
    n: int

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the sum of x determines the result, which requires a single party."""
        return self.part.deterministic and self.n == 1

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Whether the channel of each party is additive."""
        return self.part.additive

    @property
    def suppresses(self) -> bool:  # type: ignore[override]
        """Whether the channel of each party suppresses cells."""
        return self.part.suppresses

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> SumOf:
        """Return the sum whose parties all send in these units.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell.
        integers : bool
            Whether the numbers of the message are integers.

        Returns
        -------
        SumOf
            The same number of parties.
        """
        return SumOf(self.part.in_units_of(units, integers), self.n)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Apply the channel to the true sum, as if all parties added their noise to it.

        Parameters
        ----------
        x : array, shape (..., c)
            True sums over the parties.
        rng : numpy.random.Generator, optional
            Source of the randomness.

        Returns
        -------
        y : array, shape (..., c)
            Sums of the sent values.

        Raises
        ------
        ProtocolError
            If the channel is not additive: the result then depends on the x of each party.
        """
        return self._channel_of_sum("send").send(x, rng)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Extend the box by the error range of one party, times the number of parties.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each received sum.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of a box that contains every true sum from which a sum in [lo, hi] can result.
        """
        if self.n == 1:
            return self.part.preimage(lo, hi)
        least, greatest = self.part.error_range(np.shape(lo)[-1])
        return lo + self.n * least, hi + self.n * greatest

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability of a received sum in a box, given the true sum.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each received sum.
        x : array, shape (..., c)
            True sums.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats.

        Raises
        ------
        ProtocolError
            If the channel is not additive: the probability then depends on the x of each party.
        """
        return self._channel_of_sum("log_mass").log_mass(lo, hi, x)

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Add the variances of the parties.

        Parameters
        ----------
        y : array, shape (..., c)
            Received sums.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            Mean and variance of the true sums. The variance is infinite if a party may have
            suppressed its cell.
        """
        if self.n == 1:
            return self.part.posterior_moments(y)
        mean, variance = self.part.posterior_moments(y)
        if self.suppresses:
            return np.asarray(y, dtype=np.float64), np.full(np.shape(y), np.inf)
        return y + self.n * (mean - y), self.n * variance

    def error_range(self, c: int) -> Box:
        """Multiply the range of one party by the number of parties.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of the true sum minus the received sum.
        """
        least, greatest = self.part.error_range(c)
        return self.n * least, self.n * greatest

    def _channel_of_sum(self, what: str) -> Channel:
        """Return the channel of the sum, or raise `ProtocolError` if it depends on the split."""
        if self.n == 1:
            return self.part
        if not self.additive:
            raise ProtocolError(
                f"{what}: the result of {type(self.part).__name__} depends on how the sum is split "
                f"over the {self.n} parties, which is unknown; use `bounds` or `posterior_moments`"
            )
        return self.part.sum_of_draws(self.n)


def chained(changes: Iterable[Change], parties: int = 1) -> Channel | None:
    """Return the channels among some changes as one channel.

    Parameters
    ----------
    changes : iterable of Change
        Changes in the order in which they were applied.
    parties : int
        Number of parties whose values are summed. The noise of all their shares is then included
        once.

    Returns
    -------
    Channel or None
        Channel from the true values, or from their sum over the parties, to the received values.
        None if no change is a channel.

    Examples
    --------
    >>> from fedtrees.core.deterministic_channels import Rounding, Suppression
    >>> chained([Removal()]) is None
    True
    >>> chained([Suppression(5.0), Rounding(2.0)]).send(np.array([[9.0, 4.0], [9.0, 7.0]]))
    array([[0., 0.],
           [8., 8.]])
    """
    all_changes = list(changes)
    parts: Sequence[Channel] = [c for c in all_changes if isinstance(c, Channel)]
    if parts and parties > 1:
        # Every party applies the channels to its contribution before the sum.
        parts = [SumOf(parts[0] if len(parts) == 1 else Chain(tuple(parts)), parties)]
    if parties > 1:
        # Shares of noise are defined for the sum only, so that they follow the sum of the parts.
        shared = (c.law(parties) for c in all_changes if isinstance(c, Share))
        parts = [*parts, *(law for law in shared if law is not None)]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Chain(tuple(parts))
