"""Channels that follow from what is true: rounding, suppression, ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.channel import Box, Change, Channel, Floats
from fedtrees.core.errors import UsageError

# Where numbers are floats: what a step may be off by that rounds to the same multiple, and in units
# of the last place by how much one that is on the way to a half may miss it.
_NEAR = 1e-4
_ULPS = 4.0
_COARSEST = 2.0**62
_LARGEST_WHOLE = 2.0**53  # above it float64 does not hold every whole number


@dataclass(frozen=True)
class Rounding(Channel):
    """Round every number to a multiple of a step.

    Whole numbers at halves go up; others to the even multiple.

    Raises `UsageError` if a step is not finite and above 0, or beyond 2^62 units.
    """

    step: float | tuple[float, ...]  # above 0; a tuple has one for every number of a cell
    # to one of the two multiples beside it, with the odds that keep its mean, in place of the
    # nearest
    random: bool = False
    whole: bool = False  # whether numbers are whole

    def __post_init__(self) -> None:
        steps = np.asarray(self.step, dtype=np.float64)
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise UsageError(f"step must be a finite number > 0; got {self.step!r}")
        if self.whole and steps.max() >= _COARSEST:
            raise UsageError(f"a step of {steps.max():g} units is too coarse for any sum")

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether it is to the nearest."""
        return not self.random

    def within(self, units: ArrayLike, whole: bool = True) -> Rounding:
        """Return the steps in these units; whole ones are 1 at least."""
        steps = np.asarray(self.step) * np.asarray(units, dtype=np.float64)
        if whole:
            steps = np.maximum(np.rint(steps), 1)
        return replace(self, step=plain(steps), whole=whole)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Round."""
        if not self.whole:
            if self.random:
                assert rng is not None
                return np.asarray(np.floor(x / self.step + rng.random(np.shape(x))) * self.step)
            return np.asarray(np.round(x / self.step) * self.step)
        grid = np.asarray(self.step).astype(np.int64)
        up: NDArray[np.int64] | np.int64 = grid // 2
        if self.random:
            assert rng is not None
            up = rng.integers(0, np.broadcast_to(grid, np.shape(x)))
        return np.asarray((x + up) // grid * grid)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Go as far as the numbers that round to a multiple in the box."""
        step = np.asarray(self.step)
        first, last = _multiples(lo, hi, step, self.whole, single=True)
        least, most = self._ends()
        return outward(first * step + least, last * step + most, self.whole, single=True)

    def spread(self, c: int) -> Box:
        """Return half a step either way, or a whole one."""
        least, most = self._ends()
        return np.broadcast_to(least, c), np.broadcast_to(most, c)

    def _ends(self) -> Box:
        step = np.asarray(self.step, dtype=np.float64)
        if self.whole:
            down = step - 1 if self.random else step // 2
            return -down, step - 1 if self.random else step - 1 - down
        return -step if self.random else -step / 2, step if self.random else step / 2

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log mass of the multiples in the box."""
        if not self.random:
            return super().log_mass(lo, hi, x)
        step = np.asarray(self.step)
        below = np.floor(np.asarray(x) / step)
        share = np.asarray(x) / step - below  # of going up
        first, last = _multiples(lo, hi, step, self.whole, single=True)
        mass = np.zeros(np.broadcast_shapes(first.shape, np.shape(x)))
        for multiple, weight in ((below, 1 - share), (below + 1, share)):
            inside = (first <= multiple) & (multiple <= last)
            mass = mass + np.where(inside, weight, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(mass).sum(axis=-1))

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the middle, and the variance of a uniform number or, if random, of two."""
        least, most = self._ends()
        variance = (most - least) ** 2 / (24 if self.random else 12)
        return y + (least + most) / 2, np.broadcast_to(variance, np.shape(y))


@dataclass(frozen=True)
class Decimals(Channel):
    """Round every float to so many decimal places, as numpy does.

    `single`: Whether numbers are float32: then their last places count.
    """

    decimals: int
    single: bool = False

    deterministic = True

    @property
    def step(self) -> float:
        """What is sent is a multiple of it."""
        return float(10.0**-self.decimals)

    def within(self, units: ArrayLike, whole: bool = True) -> Channel:
        """Return itself: it has no units but the number's own."""
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Round."""
        return np.round(x, self.decimals)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Go half a step and some units in the last place beyond the box."""
        first, last = _multiples(lo, hi, self.step, False, self.single)
        ends = (first - 0.5) * self.step, (last + 0.5) * self.step
        return outward(*ends, False, self.single)

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y, and the variance of a uniform number."""
        y = np.asarray(y, dtype=np.float64)
        return y, np.full(y.shape, self.step**2 / 12)

    def spread(self, c: int) -> Box:
        """Return half a step either way; ulps depend on the number."""
        return np.full(c, -self.step / 2), np.full(c, self.step / 2)


@dataclass(frozen=True)
class Suppression(Channel):
    """Send a cell as zeros where its last number is below a limit.

    `whole`: Whether numbers are whole.
    """

    least: float
    whole: bool = False

    deterministic = True
    hides = True

    def within(self, units: ArrayLike, whole: bool = True) -> Suppression:
        """Return the limit in units of the last number."""
        return Suppression(float(self.least * np.ravel(units)[-1]), whole)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Put zeros for what is small."""
        small: NDArray[np.bool_] = x[..., -1] < self.least
        return np.where(small[..., None], np.zeros((), x.dtype), x)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Open the box where it holds zeros: all but the last number can be anything."""
        lo, hi = (np.array(end, dtype=np.float64) for end in np.broadcast_arrays(lo, hi))
        hidden = np.asarray(((lo <= 0) & (hi >= 0)).all(axis=-1))
        shown = hi[..., -1] >= self.least
        below = np.ceil(self.least) - 1 if self.whole else self.least
        lo[..., -1] = np.where(hidden, -np.inf, np.maximum(lo[..., -1], self.least))
        hi[..., -1] = np.where(hidden & ~shown, below, hi[..., -1])
        lo[..., :-1] = np.where(hidden[..., None], -np.inf, lo[..., :-1])
        hi[..., :-1] = np.where(hidden[..., None], np.inf, hi[..., :-1])
        return lo, hi

    def error(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y as it is; where it is zeros, nothing."""
        y = np.asarray(y, dtype=np.float64)
        hidden = (y == 0).all(axis=-1, keepdims=True)
        return y, np.broadcast_to(np.where(hidden, np.inf, 0.0), y.shape)

    def spread(self, c: int) -> Box:
        """Bound the last number alone, which is never negative."""
        least, most = np.full(c, -np.inf), np.full(c, np.inf)
        least[-1] = 0.0
        most[-1] = np.ceil(self.least) - 1 if self.whole else self.least
        return least, most


@dataclass(frozen=True)
class FewRows(Change):
    """A cell of fewer rows is sent as zeros, whatever these bring.

    `least`: Rows.
    `node`: Rows of a node, of which all cells are sent as zeros where it has fewer.
    """

    least: int
    node: int = 0


@dataclass(frozen=True)
class Ends(Channel):
    """Send what is beyond either end as that end."""

    low: float
    high: float

    deterministic = True

    def within(self, units: ArrayLike, whole: bool = True) -> Ends:
        """Return the ends in these units, the same for all numbers of a cell."""
        size = float(np.ravel(units)[0])
        return Ends(self.low * size, self.high * size)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Clip."""
        return np.asarray(np.clip(x, self.low, self.high))

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Open the box where it reaches an end."""
        lo, hi = np.asarray(lo, dtype=np.float64), np.asarray(hi, dtype=np.float64)
        return np.where(lo <= self.low, -np.inf, lo), np.where(hi >= self.high, np.inf, hi)


@dataclass(frozen=True)
class LargestRemainders(Channel):
    """Round shares that add up to 1 to decimal places, so that they still do.

    Down, and up again where most was cut off: joint over a record's K shares.
    """

    decimals: int

    deterministic = True

    def within(self, units: ArrayLike, whole: bool = True) -> Channel:
        """Return itself: shares have no unit."""
        return self

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Round."""
        steps = x * 10.0**self.decimals
        cut = np.floor(steps + 1e-9)
        short = np.round(steps.sum(axis=-1) - cut.sum(axis=-1)).astype(np.int64)
        place = np.argsort(np.argsort(cut - steps, axis=-1, kind="stable"), axis=-1)
        return np.asarray((cut + (place < short[..., None])) / 10.0**self.decimals)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Go a whole step beyond the box."""
        step = 10.0**-self.decimals
        return outward(np.asarray(lo) - step, np.asarray(hi) + step, False)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return 0 where what is sent lies in the box, else minus infinity."""
        y, near = self.send(np.asarray(x)), _NEAR * 10.0**-self.decimals
        inside = (np.asarray(lo) - near <= y) & (y <= np.asarray(hi) + near)
        return np.where(inside.all(axis=-1), 0.0, -np.inf)

    def spread(self, c: int) -> Box:
        """Return a whole step either way."""
        return np.full(c, -(10.0**-self.decimals)), np.full(c, 10.0**-self.decimals)


def plain(values: NDArray[np.float64]) -> float | tuple[float, ...]:
    """Return an array without axes as a number, and one with an axis as a tuple."""
    return float(values) if values.ndim == 0 else tuple(values.tolist())


def _multiples(lo: NDArray[Any], hi: NDArray[Any], step: Any, whole: bool, single: bool) -> Box:
    """Return the first and the last multiple in a box, which floats hit only nearly."""
    first, last = np.asarray(lo, np.float64) / step, np.asarray(hi, np.float64) / step
    if whole:
        return np.ceil(first), np.floor(last)
    near = _ulps(single)
    with np.errstate(invalid="ignore"):  # infinite less infinite
        first = np.where(np.isinf(first), first, np.ceil(first - _NEAR - near * np.abs(first)))
        last = np.where(np.isinf(last), last, np.floor(last + _NEAR + near * np.abs(last)))
    return first, last


def _ulps(single: bool) -> float:
    return _ULPS * 2.0 ** (-24 if single else -53)


def outward(lo: NDArray[Any], hi: NDArray[Any], whole: bool, single: bool = False) -> Box:
    """Return the ends of a box so far out that no arithmetic of floats left anything outside."""
    return lo - _reach(lo, whole, single), hi + _reach(hi, whole, single)


def _reach(end: NDArray[Any], whole: bool, single: bool) -> Floats:
    size = np.where(np.isinf(end), 0.0, np.abs(end))
    if whole:
        return np.where(size > _LARGEST_WHOLE, size * 2.0**-51, 0.0)
    return np.asarray(size * _ulps(single))
