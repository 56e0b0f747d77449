"""Channels: what happens to a number on its way, as a law that everybody knows.

A channel acts on cells: the last axis of an array holds numbers that are changed together, such as
G and H of a bin, or the K scores of a record. It is made of public parameters alone, and the
defense or protocol that states it applies it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import ProtocolError, UsageError

Floats = NDArray[np.float64]
Box = tuple[Floats, Floats]

_KINDS: list[type] = []
# Draws of one noise that stand for all of them where the masses of two or more are convolved.
_DRAWS = 512


class Change(ABC):  # noqa: B024 - what it is made for is to be told apart
    """What a defense or protocol does to a field: a `Channel`, or why it is none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _KINDS.append(cls)


def kinds() -> tuple[type, ...]:
    """Return all loaded classes of changes that can be made."""
    return tuple(kind for kind in _KINDS if not inspect.isabstract(kind))


@dataclass(frozen=True)
class Removal(Change):
    """The field is not sent; or always as the same constant."""

    constant: float | None = None


def honest_shares(parties: int, colluders: int, least: int = 0) -> int:
    """Return how many noise shares must add up to the noise that is claimed.

    A client that colludes with the adversary knows its own share of the noise, because it drew it.
    The shares of the other clients must therefore suffice. A federation of one client has no other
    client whose rows could be protected against it, so that its one share is the whole noise.

    Parameters
    ----------
    parties : int
        Number of clients, each of which adds one share.
    colluders : int
        Number of colluding clients against whom the claimed epsilon holds. 0: it holds only against
        parties that know no share.
    least : int
        Number of clients whose shares are certain to arrive, if clients may drop out. 0: all.

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
        counted = f"{parties} clients" + (f", of whom {present} may remain" if least else "")
        raise UsageError(
            f"colluders={colluders} of {counted}: colluding clients know their own shares of the "
            "noise, so that none would be left; give fewer colluders than clients"
        )
    return present - colluders


@dataclass(frozen=True)
class Share(Change):
    """Each party adds a share of the noise, and only the sum over all parties has a known law.

    An adversary knows the shares of the parties that collude with it.

    Attributes
    ----------
    whole : Channel
        The law of as many shares as the noise is calibrated for (`honest_shares`).
    least : int
        Number of parties whose shares must arrive. A sum over fewer is not opened (`Wire.least`).
        0: all parties that are asked.
    colluders : int
        Number of parties whose shares the adversary may know without a loss of the claim.
    """

    whole: Channel
    least: int = 0
    colluders: int = 0

    def law(self, parties: int, known: int = 0) -> Channel | None:
        """Return the law of the noise that an adversary does not know; None if it knows it all.

        Parameters
        ----------
        parties : int
            Number of parties that added a share.
        known : int
            Number of these shares that the adversary knows.
        """
        unknown = parties - known
        if unknown <= 0:
            return None
        draws = unknown / honest_shares(parties, self.colluders, self.least)
        return self.whole if draws == 1 else self.whole.added(draws)


@dataclass(frozen=True)
class SumOfShares(Change):
    """The field contains the sum over all parties, with the noise shares of all of them.

    A released model is an example. `Protocol.stated_laws` replaces this by the law of the noise
    as soon as the number of parties is known.
    """

    share: Share


@dataclass(frozen=True)
class Mechanism(Change):
    """What is sent is drawn by a private mechanism from the rows; there is no number x behind y.

    `rank_error`: Of values drawn from a column, the standard deviation of their ranks, about, in
    rows.
    `noise`: Noise that the mechanism adds to each number that it computes from rows, before it
    processes the noisy numbers without another look at rows; None: not stated.
    `log_chance`: Log probability of the values drawn, (k,), from a column's values, (n,), each of
    so many rows, between its public ends; None if it is not known.
    """

    why: str
    rank_error: float = 0.0
    log_chance: Callable[[Floats, Floats, float, tuple[float, float]], float] | None = field(
        default=None, compare=False
    )
    noise: Channel | None = None


@dataclass(frozen=True)
class Event(Change):
    """What is sent at all depends on the rows: absence is evidence."""

    why: str


@dataclass(frozen=True)
class Reshaped(Change):
    """Values become fewer or more: there is no x for every y."""

    why: str


@dataclass(frozen=True)
class Memory(Change):
    """The law differs by row, or follows from what was sent before.

    `usual`: That of a row of which nothing is known.
    """

    why: str
    usual: Channel | None = None


class Channel(Change):
    """A law P(y | x) for what is sent, y, of a true cell x; arrays have shape (..., c).

    `deterministic`: Whether y follows from x.
    `additive`: Whether ``y - x`` has one law, whatever x is.
    `hides`: Whether some cells are sent as one that says next to nothing of them.
    """

    deterministic: ClassVar[bool] = False
    additive: ClassVar[bool] = False
    hides: ClassVar[bool] = False

    @abstractmethod
    def within(self, units: ArrayLike, whole: bool = True) -> Channel:
        """Return the same law of numbers in a message's own units.

        `units`: float or array, shape (c,). How many of them make one, of every number of a cell:
        ``2^bits``, or rows.
        `whole`: Whether the message's numbers are whole.
        """

    @abstractmethod
    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Return what is sent, of the shape of x."""

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Return a box that holds every x from which something in [lo, hi] is sent.

        Two float64 arrays of the shape of the ends; infinite where nothing bounds x. Compare with
        ``lo <= x <= hi``.
        """
        shape = np.broadcast_shapes(np.shape(lo), np.shape(hi))
        return np.full(shape, -np.inf), np.full(shape, np.inf)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return ``log P(lo <= y <= hi | x)`` of every cell in nats, float64, shape (...).

        Of numbers that are not whole, a point counts by its density.
        """
        if not self.deterministic:
            raise NotImplementedError(f"{type(self).__name__} must define log_mass")
        first, last = self.preimage(lo, hi)  # floats that were sent may miss what is computed again
        return np.where(((first <= x) & (x <= last)).all(axis=-1), 0.0, -np.inf)

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return mean and variance of x given y, each of its shape, as Gaussian evidence.

        Nothing else is known of x; the variance is infinite where its box is open.
        """
        lo, hi = self.bounds(y)
        ends = np.isfinite(lo) & np.isfinite(hi)
        lo, hi = np.where(ends, lo, y), np.where(ends, hi, y)
        return (lo + hi) / 2, np.where(ends, (hi - lo) ** 2 / 12, np.inf)

    def spread(self, c: int) -> Box:
        """Return the least and the most that ``x - y`` is, float64, shape (c,) each."""
        return np.full(c, -np.inf), np.full(c, np.inf)

    def added(self, n: float) -> Channel:
        """Return the law of n draws of additive noise together; of a whole number, if need be."""
        return Chain((self,) * round(n))

    def bounds(self, y: NDArray[Any]) -> Box:
        """Return a box that holds every x from which y is sent."""
        return self.preimage(y, y)

    def log_likelihood(self, y: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return ``log P(y | x)`` of every cell, float64, shape (...)."""
        return self.log_mass(y, y, x)


@dataclass(frozen=True)
class Chain(Channel):
    """Channels one after the other.

    `parts`: As they are passed; none: nothing changes.
    """

    parts: tuple[Channel, ...]

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(p.deterministic for p in self.parts)

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Whether all parts are."""
        return all(p.additive for p in self.parts)

    @property
    def hides(self) -> bool:  # type: ignore[override]
        """Whether any part does."""
        return any(p.hides for p in self.parts)

    def within(self, units: ArrayLike, whole: bool = True) -> Chain:
        """Return the parts in these units."""
        return Chain(tuple(p.within(units, whole) for p in self.parts))

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Pass x through the parts."""
        for part in self.parts:
            x = part.send(x, rng)
        return x

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Go back from the last part to the first."""
        for part in reversed(self.parts):
            lo, hi = part.preimage(lo, hi)
        return np.asarray(lo, dtype=np.float64), np.asarray(hi, dtype=np.float64)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log mass: exact with one draw, else over 512 draws of those before the last.

        What is deterministic comes before a draw as it is, and after it by its preimage.
        """
        drawn = [i for i, part in enumerate(self.parts) if not part.deterministic]
        if not drawn:
            return super().log_mass(lo, hi, x)
        last = self.parts[drawn[-1]]
        lo, hi = Chain(self.parts[drawn[-1] + 1 :]).preimage(lo, hi)
        before, rng = Chain(self.parts[: drawn[-1]]), np.random.default_rng(0)
        if before.deterministic:
            return last.log_mass(lo, hi, before.send(np.asarray(x)))
        total = last.log_mass(lo, hi, before.send(np.asarray(x), rng))
        for _ in range(1, _DRAWS):
            total = np.logaddexp(total, last.log_mass(lo, hi, before.send(np.asarray(x), rng)))
        return np.asarray(total - np.log(_DRAWS))

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Add up variances, from the last part to the first."""
        mean, variance = np.asarray(y, dtype=np.float64), np.zeros(np.shape(y))
        for part in reversed(self.parts):
            mean, more = part.error(mean)
            variance = variance + more
        return mean, variance

    def spread(self, c: int) -> Box:
        """Add up what the parts leave open."""
        ends = [part.spread(c) for part in self.parts]
        return sum((e[0] for e in ends), np.zeros(c)), sum((e[1] for e in ends), np.zeros(c))


@dataclass(frozen=True)
class SumOf(Channel):
    """The sum of what n parties send, each by a channel of its own, against the sum of their x.

    Bounds add up. A likelihood given the true sum alone exists only where the part is additive: how
    rounding and suppression end depends on how the sum was split.
    """

    part: Channel
    n: int

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether one party sends what follows from its x; the sum of several x is split anyhow."""
        return self.part.deterministic and self.n == 1

    @property
    def additive(self) -> bool:  # type: ignore[override]
        """Whether the part is."""
        return self.part.additive

    @property
    def hides(self) -> bool:  # type: ignore[override]
        """Whether the part does."""
        return self.part.hides

    def within(self, units: ArrayLike, whole: bool = True) -> SumOf:
        """Return the part in these units."""
        return SumOf(self.part.within(units, whole), self.n)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Raise ProtocolError unless the part is additive: x says nothing of how it is split."""
        return self._added("send").send(x, rng)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Add up what each party leaves open."""
        if self.n == 1:
            return self.part.preimage(lo, hi)
        least, greatest = self.part.spread(np.shape(lo)[-1])
        return lo + self.n * least, hi + self.n * greatest

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log mass given the true sum.

        Raises `ProtocolError` if the part is not additive.
        """
        return self._added("log_mass").log_mass(lo, hi, x)

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Add up variances; infinite where some parties may have hidden what they brought."""
        if self.n == 1:
            return self.part.error(y)
        mean, variance = self.part.error(y)
        if self.hides:
            return np.asarray(y, dtype=np.float64), np.full(np.shape(y), np.inf)
        return y + self.n * (mean - y), self.n * variance

    def spread(self, c: int) -> Box:
        """Add up what the parties leave open."""
        least, greatest = self.part.spread(c)
        return self.n * least, self.n * greatest

    def _added(self, what: str) -> Channel:
        if self.n == 1:
            return self.part
        if not self.additive:
            raise ProtocolError(
                f"{what}: how a sum of {self.n} parties was split is not known, and "
                f"{type(self.part).__name__} depends on it; take `bounds` or `error`"
            )
        return self.part.added(self.n)


def chained(changes: Iterable[Change], parties: int = 1) -> Channel | None:
    """Return the channels among some changes as one, None if there is none.

    `changes`: In the order in which they happened.
    `parties`: How many send what is summed; shares of noise are then there once.
    """
    all_changes = list(changes)
    parts: Sequence[Channel] = [c for c in all_changes if isinstance(c, Channel)]
    if parts and parties > 1:
        parts = [SumOf(parts[0] if len(parts) == 1 else Chain(tuple(parts)), parties)]
    if parties > 1:
        shared = (c.law(parties) for c in all_changes if isinstance(c, Share))
        parts = [*parts, *(law for law in shared if law is not None)]
    if len(parts) < 2:
        return parts[0] if parts else None
    return Chain(tuple(parts))
