"""Bounds on true sums, given what was sent: from the channel that a defense states.

What is sent by a client is rounded to a step, or nothing where a bin holds few rows, or both in
either order; noise leaves no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.laws import cell_variance, law_of_sums
from fedtrees.attacks.evidence.readback.forms import OPEN, Row
from fedtrees.core.view import View
from fedtrees.trees.boosted.fixed_point import Bits

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SentBounds:
    """How far a client's true sums may be from what it sends.

    Attributes
    ----------
    below, above : int64 array, shape (2,)
        A true sum is at least what was sent less ``below``, at most that and ``above``, in units.
    hidden : int
        A bin that is sent as 0 holds at most so much hessian, in units; -1: all are sent.
    row : Row
    bounded : bool
        False where noise of any size is added.
    noise : pair of float
        Its variance, of gradients and hessians squared.
    bits : pair of int
    """

    below: Longs
    above: Longs
    hidden: int
    row: Row
    bounded: bool
    noise: tuple[float, float]
    bits: Bits

    @staticmethod
    def of(view: View, bits: Bits, row: Row) -> SentBounds:
        """Return what the channel of a view leaves open, for sums in these units."""
        units, law, open_ = np.ldexp(1.0, bits), law_of_sums(view), law_of_sums(view, hiding=False)
        below, above, noise, hidden = np.zeros(2), np.zeros(2), (0.0, 0.0), -1.0
        if open_ is not None:
            below, above = open_.within(units).spread(2)
        if law is not None and law.hides:
            hidden = law.within(units).bounds(np.zeros((1, 2)))[1][0, 1]
        bounded = bool(np.isfinite([-below, above]).all()) and not view.changes("gradients", "g")
        if not bounded:
            below, above, noise = np.zeros(2), np.zeros(2), cell_variance(open_)
            hidden = hidden if np.isfinite(hidden) else -1.0
        ends = (-below).astype(np.int64), above.astype(np.int64)
        return SentBounds(*ends, int(hidden), row, bounded, noise, bits)

    def bins(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true bins, int64 (..., 2), given the sum that so many clients sent."""
        lo, hi = self.nodes(sent, clients)
        if self.hidden < 0 or not self.bounded:
            return lo, hi
        most = self.hidden // max(self.row.h, 1)  # rows that one client may hide
        told = ((lo > 0) | (hi < 0)).any(axis=-1)  # somebody sent something
        silent = (clients - told)[..., None]
        lo = lo + np.array([most * self.row.g1, 0]) * silent
        hi = hi + np.array([most * self.row.g0, most * self.row.h]) * silent
        return lo, hi

    def nodes(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true sums that were not suppressed."""
        if not self.bounded:
            return np.full_like(sent, -OPEN), np.full_like(sent, OPEN)
        return sent - clients * self.below, sent + clients * self.above

    def error(self, lo: Longs, hi: Longs, sent: Longs, clients: int) -> tuple[Floats, Floats]:
        """Return estimates of true sums and the variance of their error, float64, as ``sent``.

        Of rounding by several clients errors add up as independent ones do; where bins may be
        suppressed, what is possible is all alike.
        """
        grid = (self.below + self.above + 1.0) ** 2 / 12
        var = np.maximum(clients * (grid + np.ldexp(self.noise, 2 * np.array(self.bits))), 1.0)
        var = np.broadcast_to(var, sent.shape)
        if not self.bounded:
            return sent.astype(np.float64), np.array(var)
        mid = (lo + hi) / 2
        wide = np.where(np.abs(mid - sent) > clients * (self.below + 1), (hi - lo) ** 2 / 12.0, var)
        return mid, np.maximum(wide, var)
