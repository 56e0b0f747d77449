"""Channels that lose information: rounding, suppression and clipping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.channel import Box, Change, Channel, Floats
from fedtrees.core.errors import UsageError

# Tolerances for floats. `_NEAR`: largest error, as a share of a step, of a number that rounds to
# the same multiple. `_ULPS`: largest error of a computed midpoint between two multiples, in units
# of the last place.
_NEAR = 1e-4
_ULPS = 4.0
_COARSEST = 2.0**62
_LARGEST_INTEGER = 2.0**53  # above it, float64 cannot represent every integer


@dataclass(frozen=True)
class Rounding(Channel):
    """Round every number to a multiple of a step.

    For integers, a number in the middle between two multiples is rounded up. For floats, it is
    rounded to the even multiple.

    Attributes
    ----------
    step : float or tuple of float
        Distance of two multiples, above 0. A tuple contains one step for every number of a cell.
    random : bool
        False: round to the nearest multiple. True: round to one of the two neighbouring multiples,
        with probabilities that preserve the mean (stochastic rounding).
    integers : bool
        Whether the numbers are integers.

    Raises
    ------
    UsageError
        If a step is not finite and positive, or if a step of integers is 2^62 or more.

    Examples
    --------
    >>> Rounding(0.5).send(np.array([[1.2, 1.3]]))
    array([[1. , 1.5]])
    >>> first, last = Rounding(0.5).bounds(np.array([[1.0]]))
    >>> np.round(np.concatenate([first, last], axis=1), 3)
    array([[0.75, 1.25]])
    """

    step: float | tuple[float, ...]
    random: bool = False
    integers: bool = False

    def __post_init__(self) -> None:
        steps = np.asarray(self.step, dtype=np.float64)
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise UsageError(f"step must be a finite number > 0; got {self.step!r}")
        if self.integers and steps.max() >= _COARSEST:
            raise UsageError(f"a step of {steps.max():g} units is too coarse for any sum")

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether numbers are rounded to the nearest multiple."""
        return not self.random

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Rounding:
        """Return the same rounding in the units of a message.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell.
        integers : bool
            Whether the numbers of the message are integers.

        Returns
        -------
        Rounding
            Rounding to steps of as many units. A step of integers is a whole number of units and at
            least 1.
        """
        steps = np.asarray(self.step) * np.asarray(units, dtype=np.float64)
        if integers:
            # A step below one unit would not change an integer.
            steps = np.maximum(np.rint(steps), 1)
        return replace(self, step=plain(steps), integers=integers)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Round every number.

        Parameters
        ----------
        x : array, shape (..., c)
            True values.
        rng : numpy.random.Generator, optional
            Source of the direction of stochastic rounding. It is only required for this.

        Returns
        -------
        y : array, shape (..., c)
            Multiples of the step.
        """
        if not self.integers:
            if self.random:
                assert rng is not None
                return np.asarray(np.floor(x / self.step + rng.random(np.shape(x))) * self.step)
            return np.asarray(np.round(x / self.step) * self.step)
        grid = np.asarray(self.step).astype(np.int64)
        # Adding a uniform integer below the step before rounding down gives the stochastic rounding
        # with exact odds. Adding half of the step gives the nearest multiple.
        up: NDArray[np.int64] | np.int64 = grid // 2
        if self.random:
            assert rng is not None
            up = rng.integers(0, np.broadcast_to(grid, np.shape(x)))
        return np.asarray((x + up) // grid * grid)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Extend the box by all numbers that round to a multiple in it.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of the box. For floats, they include the rounding errors of float32.
        """
        step = np.asarray(self.step)
        first, last = _multiples(lo, hi, step, self.integers, float32=True)
        least, greatest = self._ends()
        return outward(first * step + least, last * step + greatest, self.integers, float32=True)

    def error_range(self, c: int) -> Box:
        """Return half a step in both directions, or a full step if rounding is random.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of ``x - y``. For integers, the range contains the possible integers
            only.
        """
        least, greatest = self._ends()
        return np.broadcast_to(least, c), np.broadcast_to(greatest, c)

    def _ends(self) -> Box:
        """Return the smallest and largest value of x - y, in the shape of the step."""
        step = np.asarray(self.step, dtype=np.float64)
        if self.integers:
            down = step - 1 if self.random else step // 2
            return -down, step - 1 if self.random else step - 1 - down
        return -step if self.random else -step / 2, step if self.random else step / 2

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return the log probability of the multiples in a box.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.
        x : array, shape (..., c)
            True cells.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats. Minus infinity if x cannot be rounded to a multiple in the box.
        """
        if not self.random:
            return super().log_mass(lo, hi, x)
        step = np.asarray(self.step)
        below = np.floor(np.asarray(x) / step)
        share = np.asarray(x) / step - below  # probability of rounding up
        first, last = _multiples(lo, hi, step, self.integers, float32=True)
        mass = np.zeros(np.broadcast_shapes(first.shape, np.shape(x)))
        # Only the two neighbouring multiples have a positive probability.
        for multiple, weight in ((below, 1 - share), (below + 1, share)):
            inside = (first <= multiple) & (multiple <= last)
            mass = mass + np.where(inside, weight, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(mass).sum(axis=-1))

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the middle of the preimage, and the variance of its distribution.

        With a uniform prior, x - y has a uniform distribution for nearest rounding. For random
        rounding it has the triangular distribution of the sum of two uniform numbers.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent values.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            With w the width of the range of ``x - y``, the variance is w^2 / 12 for nearest and
            w^2 / 24 for random rounding.
        """
        least, greatest = self._ends()
        variance = (greatest - least) ** 2 / (24 if self.random else 12)
        return y + (least + greatest) / 2, np.broadcast_to(variance, np.shape(y))


@dataclass(frozen=True)
class Decimals(Channel):
    """Round every float to a number of decimal places, as `numpy.round` does.

    Attributes
    ----------
    decimals : int
        Number of decimal places.
    float32 : bool
        Whether numbers are float32, which have larger rounding errors.
    """

    decimals: int
    float32: bool = False

    deterministic = True

    @property
    def step(self) -> float:
        """Sent numbers are multiples of this step."""
        return float(10.0**-self.decimals)

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Channel:
        """Return the channel itself, because decimals do not depend on the unit of a message.

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
        """Round every number, a number in the middle to an even last decimal.

        Parameters
        ----------
        x : float array, shape (..., c)
            True values.
        rng : numpy.random.Generator, optional
            Not used.

        Returns
        -------
        y : float array, shape (..., c)
            Rounded values, of the type of x.
        """
        return np.round(x, self.decimals)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Extend the box by half a step and some units in the last place.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of the box.
        """
        first, last = _multiples(lo, hi, self.step, False, self.float32)
        ends = (first - 0.5) * self.step, (last + 0.5) * self.step
        return outward(*ends, False, self.float32)

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y, and the variance of a uniform distribution over one step.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent values.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            The variance is the squared step divided by 12.
        """
        y = np.asarray(y, dtype=np.float64)
        return y, np.full(y.shape, self.step**2 / 12)

    def error_range(self, c: int) -> Box:
        """Return half a step in both directions, without errors in the last place.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of ``x - y``.
        """
        return np.full(c, -self.step / 2), np.full(c, self.step / 2)


@dataclass(frozen=True)
class Suppression(Channel):
    """Send a cell as zeros if its last number is below a limit.

    For example, a bin of a histogram is not shown if it contains fewer rows than the limit.

    Attributes
    ----------
    least : float
        The limit.
    integers : bool
        Whether numbers are integers.

    Examples
    --------
    >>> Suppression(5.0).send(np.array([[0.3, 4.0], [0.3, 6.0]]))
    array([[0. , 0. ],
           [0.3, 6. ]])
    """

    least: float
    integers: bool = False

    deterministic = True
    suppresses = True

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Suppression:
        """Return the same suppression for numbers in the units of a message.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one, for every number of a cell. The limit is multiplied by
            that of the last number.
        integers : bool
            Whether the numbers of the message are integers.

        Returns
        -------
        Suppression
            Suppression of the same cells.
        """
        return Suppression(float(self.least * np.ravel(units)[-1]), integers)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Replace the cells below the limit by zeros.

        Parameters
        ----------
        x : array, shape (..., c)
            True cells.
        rng : numpy.random.Generator, optional
            Not used.

        Returns
        -------
        y : array, shape (..., c)
            Sent cells, of the type of x.
        """
        small: NDArray[np.bool_] = x[..., -1] < self.least
        return np.where(small[..., None], np.zeros((), x.dtype), x)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Return the bounds of the true cell.

        If the box contains a cell of zeros, the cell may be suppressed. All numbers except the last
        are then unbounded, and the last one has no lower bound. Its upper bound is the limit if the
        box contains no visible cell.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of the box.
        """
        lo, hi = (np.array(end, dtype=np.float64) for end in np.broadcast_arrays(lo, hi))
        # A cell of zeros may be a suppressed cell.
        hidden = np.asarray(((lo <= 0) & (hi >= 0)).all(axis=-1))
        shown = hi[..., -1] >= self.least
        below = np.ceil(self.least) - 1 if self.integers else self.least
        lo[..., -1] = np.where(hidden, -np.inf, np.maximum(lo[..., -1], self.least))
        hi[..., -1] = np.where(hidden & ~shown, below, hi[..., -1])
        lo[..., :-1] = np.where(hidden[..., None], -np.inf, lo[..., :-1])
        hi[..., :-1] = np.where(hidden[..., None], np.inf, hi[..., :-1])
        return lo, hi

    def posterior_moments(self, y: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return y with variance 0, or infinite variance for a cell of zeros.

        Parameters
        ----------
        y : array, shape (..., c)
            Sent cells.

        Returns
        -------
        mean, variance : float64 array, shape (..., c)
            Moments of the true cells.
        """
        y = np.asarray(y, dtype=np.float64)
        hidden = (y == 0).all(axis=-1, keepdims=True)
        return y, np.broadcast_to(np.where(hidden, np.inf, 0.0), y.shape)

    def error_range(self, c: int) -> Box:
        """Return the range of the last number, whose error is never negative.

        The errors of the remaining numbers are unbounded.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of ``x - y``, infinite except for the last number.
        """
        least, greatest = np.full(c, -np.inf), np.full(c, np.inf)
        least[-1] = 0.0
        greatest[-1] = np.ceil(self.least) - 1 if self.integers else self.least
        return least, greatest


@dataclass(frozen=True)
class FewRows(Change):
    """A cell with fewer rows than a limit is sent as zeros, whatever its sums are.

    Attributes
    ----------
    least : int
        Smallest number of rows of a cell.
    node : int
        Smallest number of rows of a node. All cells of a smaller node are sent as zeros.
    """

    least: int
    node: int = 0


@dataclass(frozen=True)
class Ends(Channel):
    """Clip every number to an interval.

    Attributes
    ----------
    low, high : float
        Ends of the interval.
    """

    low: float
    high: float

    deterministic = True

    def in_units_of(self, units: ArrayLike, integers: bool = True) -> Ends:
        """Return the same interval in the units of a message.

        Parameters
        ----------
        units : float or array, shape (c,)
            Number of units that make one. It must be the same for all numbers of a cell.
        integers : bool
            Not used, because clipping treats integers and floats alike.

        Returns
        -------
        Ends
            Clipping to the ends in these units.
        """
        size = float(np.ravel(units)[0])
        return Ends(self.low * size, self.high * size)

    def send(self, x: NDArray[Any], rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Clip every number.

        Parameters
        ----------
        x : array, shape (..., c)
            True values.
        rng : numpy.random.Generator, optional
            Not used.

        Returns
        -------
        y : array, shape (..., c)
            Values from `low` to `high`.
        """
        return np.asarray(np.clip(x, self.low, self.high))

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Extend the box to infinity on each side that reaches an end of the interval.

        Parameters
        ----------
        lo, hi : array, shape (..., c)
            Ends of the interval of each sent number.

        Returns
        -------
        first, last : float64 array, shape (..., c)
            Ends of the box.
        """
        lo, hi = np.asarray(lo, dtype=np.float64), np.asarray(hi, dtype=np.float64)
        return np.where(lo <= self.low, -np.inf, lo), np.where(hi >= self.high, np.inf, hi)


@dataclass(frozen=True)
class LargestRemainders(Channel):
    """Round shares that add up to 1 to decimal places, so that their sum is still 1.

    All shares are rounded down. Those with the largest remainders are then rounded up (the method
    of largest remainders). The result of one share depends on all K shares of the record.

    Attributes
    ----------
    decimals : int
        Number of decimal places.

    Examples
    --------
    >>> LargestRemainders(1).send(np.array([[0.36, 0.33, 0.31]]))
    array([[0.4, 0.3, 0.3]])
    """

    decimals: int

    deterministic = True

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
        """Round the shares of every record.

        Parameters
        ----------
        x : float array, shape (..., K)
            Shares of K classes, which add up to 1.
        rng : numpy.random.Generator, optional
            Not used.

        Returns
        -------
        y : float64 array, shape (..., K)
            Rounded shares, which add up to 1.
        """
        steps = x * 10.0**self.decimals
        # The tolerance prevents that rounding errors take a step from a share that is a multiple of
        # the step.
        cut = np.floor(steps + 1e-9)
        short = np.round(steps.sum(axis=-1) - cut.sum(axis=-1)).astype(np.int64)
        # Rank of each remainder within its record, 0 for the largest.
        place = np.argsort(np.argsort(cut - steps, axis=-1, kind="stable"), axis=-1)
        return np.asarray((cut + (place < short[..., None])) / 10.0**self.decimals)

    def preimage(self, lo: NDArray[Any], hi: NDArray[Any]) -> Box:
        """Extend the box by a full step, because a share is rounded up or down.

        Parameters
        ----------
        lo, hi : array, shape (..., K)
            Ends of the interval of each sent share.

        Returns
        -------
        first, last : float64 array, shape (..., K)
            Ends of the box.
        """
        step = 10.0**-self.decimals
        return outward(np.asarray(lo) - step, np.asarray(hi) + step, False)

    def log_mass(self, lo: NDArray[Any], hi: NDArray[Any], x: NDArray[Any]) -> Floats:
        """Return 0 if the sent cell is in the box, else minus infinity.

        Parameters
        ----------
        lo, hi : array, shape (..., K)
            Ends of the interval of each sent share.
        x : array, shape (..., K)
            True shares.

        Returns
        -------
        log_mass : float64 array, shape (...)
            In nats. The shares are rounded again and compared with a tolerance of 10^-4 steps.
        """
        y, near = self.send(np.asarray(x)), _NEAR * 10.0**-self.decimals
        inside = (np.asarray(lo) - near <= y) & (y <= np.asarray(hi) + near)
        return np.where(inside.all(axis=-1), 0.0, -np.inf)

    def error_range(self, c: int) -> Box:
        """Return a full step in both directions.

        Parameters
        ----------
        c : int
            Number of values in a cell.

        Returns
        -------
        least, greatest : float64 array, shape (c,)
            Ends of the range of ``x - y``.
        """
        return np.full(c, -(10.0**-self.decimals)), np.full(c, 10.0**-self.decimals)


def plain(values: NDArray[np.float64]) -> float | tuple[float, ...]:
    """Convert an array into a parameter of a channel, which can be compared and hashed.

    Parameters
    ----------
    values : float64 array, shape () or (c,)
        One value for all numbers of a cell, or one for each.

    Returns
    -------
    float or tuple of float
        A number if the array has no dimension.
    """
    return float(values) if values.ndim == 0 else tuple(values.tolist())


def _multiples(lo: NDArray[Any], hi: NDArray[Any], step: Any, integers: bool, float32: bool) -> Box:
    """Return the first and last multiple in a box, with a tolerance if numbers are floats."""
    first, last = np.asarray(lo, np.float64) / step, np.asarray(hi, np.float64) / step
    if integers:
        return np.ceil(first), np.floor(last)
    near = _ulps(float32)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        first = np.where(np.isinf(first), first, np.ceil(first - _NEAR - near * np.abs(first)))
        last = np.where(np.isinf(last), last, np.floor(last + _NEAR + near * np.abs(last)))
    return first, last


def _ulps(float32: bool) -> float:
    """Return the relative error of some units in the last place of a float32 or float64."""
    return _ULPS * 2.0 ** (-24 if float32 else -53)


def outward(lo: NDArray[Any], hi: NDArray[Any], integers: bool, float32: bool = False) -> Box:
    """Extend a box by the rounding errors of floats, so that no true value is outside.

    Parameters
    ----------
    lo, hi : array, shape (..., c)
        Ends of the box.
    integers : bool
        Whether numbers are integers, which float64 represents exactly up to 2^53.
    float32 : bool
        Whether numbers are float32.

    Returns
    -------
    first, last : float64 array, shape (..., c)
        Ends of the larger box. Infinite ends and integers below 2^53 do not change.
    """
    return lo - _reach(lo, integers, float32), hi + _reach(hi, integers, float32)


def _reach(end: NDArray[Any], integers: bool, float32: bool) -> Floats:
    """Return the largest rounding error of an end of a box, in absolute terms."""
    size = np.where(np.isinf(end), 0.0, np.abs(end))
    if integers:
        # Below 2^53, sums of integers are exact in float64.
        return np.where(size > _LARGEST_INTEGER, size * 2.0**-51, 0.0)
    return np.asarray(size * _ulps(float32))
