"""Bounds on true sums, given what was sent: from the parameters that a defense publishes.

What is sent by a client is rounded to a step, or nothing where a bin holds few rows, or both in
either order; noise leaves no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedtrees.attacks.evidence.readback.forms import OPEN, Row
from fedtrees.core.view import View
from fedtrees.trees.boosted.fixed_point import Bits
from fedtrees.trees.boosted.losses import objective_of

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SentBounds:
    """How far a client's true sums may be from what it sends.

    Attributes
    ----------
    below, above : int64 array, shape (2,)
        A true sum is at least what was sent less ``below``, at most that and ``above``, in units.
    least : int
        Bins of less hessian than this, in units, are sent as 0; 0: all are sent.
    row : Row
    bounded : bool
        False where noise of any size is added.
    noise : float
        Its variance, in squared gradients.
    bits : pair of int
    """

    below: Longs
    above: Longs
    least: int
    row: Row
    bounded: bool
    noise: float
    bits: Bits

    @staticmethod
    def of(view: View, bits: Bits, row: Row) -> SentBounds:
        """Return what the defense of a view publishes, for sums in these units."""
        told = view.defense.declares(view.schema, view.parameters)
        step = told.histogram_step
        grid = np.maximum(np.rint(np.ldexp(float(step), bits)), 1).astype(np.int64)
        least = 0
        if told.least_rows:
            _, bound = objective_of(view.parameters.get("objective"), view.schema.classes).bounds
            least = int(np.ldexp(told.least_rows * bound, bits[1]))
        noisy = bool(told.noise_variance or told.row_variance or told.unit_hessian)
        return SentBounds(
            grid // 2, grid - 1 - grid // 2, least, row, not noisy, told.noise_variance, bits
        )

    def bins(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true bins, int64 (..., 2), given the sum that so many clients sent."""
        lo, hi = self.nodes(sent, clients)
        if not self.least or not self.bounded:
            return lo, hi
        # Suppressed by one client: hessians below `least`, up to rounding before or after.
        most = (self.least + int(self.below[1] + self.above[1])) // max(self.row.h, 1)
        told = ((lo > 0) | (hi < 0)).any(axis=-1)  # somebody sent something
        silent = (clients - told)[..., None]
        lo = lo + np.array([most * self.row.g1, 0]) * silent
        hi = hi + np.array([most * self.row.g0, most * self.row.h]) * silent
        return lo, hi

    def nodes(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true sums that were not suppressed."""
        if not self.bounded:
            return np.full_like(sent, -OPEN), np.full_like(sent, OPEN)
        low, high = self.off(clients)
        return sent + low, sent + high

    def off(self, clients: int) -> Longs:
        """Return bounds on true sums less what was sent of them, int64, (lo and hi, 2)."""
        return np.stack([-clients * self.below, clients * self.above])

    @property
    def step(self) -> Floats:
        """Multiples of which are sent, float64, shape (2,), in units."""
        return self.below + self.above + 1.0

    def errors(self, clients: int, known: int, size: int) -> tuple[Floats, Floats]:
        """Return mean and variance of what is sent of a cell less what is true, by its counts.

        Float64, shape (size, size, 2) each, in units: of n0 and n1 rows that fall to each of
        so many ``clients`` by an equal draw. Clients whose true part is ``known``, but not what
        they sent, err as any. Errors of clients are taken as independent.
        """
        n = np.arange(size)
        one = np.stack(np.broadcast_arrays(n[:, None], n), axis=-1)
        x = one @ np.array([[self.row.g0, self.row.h], [self.row.g1, self.row.h]])
        off = (self._sent(x) - x).astype(np.float64)
        share = binom.pmf(n, n[:, None], 1 / clients) if clients else np.eye(size)
        mean, square = (np.einsum("ia,abk,jb->ijk", share, e, share) for e in (off, off**2))
        var = clients * (square - mean**2) + known * self.step**2 / 12
        noise = (clients + known) * np.ldexp(self.noise, 2 * np.array(self.bits))
        return clients * mean, np.maximum(var, 0.0) + noise

    def _sent(self, x: Longs) -> Longs:
        grid = self.below + self.above + 1
        y: Longs = (x + self.below) // grid * grid
        return np.where(y[..., 1:] < self.least, 0, y)
