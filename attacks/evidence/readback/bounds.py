"""Bounds on true sums, given what was sent: from the channel that a defense states.

What is sent by a client is rounded to a step, or nothing where a bin holds few rows, or both in
either order; noise leaves no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.laws import law_of_sums
from fedtrees.attacks.evidence.readback.forms import OPEN, Row
from fedtrees.attacks.evidence.replay import hides, sent_back
from fedtrees.core.channel import Channel
from fedtrees.core.statistics import binomial
from fedtrees.core.view import View
from fedtrees.trees.boosted.fixed_point import Bits

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 64  # of what is sent at random, to learn its error


@dataclass(frozen=True, eq=False)
class SentBounds:
    """How far a client's true sums may be from what it sends.

    `below, above`: int64 array, shape (2,). A true sum is at least what was sent less ``below``, at
    most that and ``above``, in units.
    `hidden`: A bin that is sent as 0 holds at most so much hessian, in units; -1: all are sent.
    `bounded`: False where noise of any size is added.
    `late`: Whether bins are hidden in the sum that comes back.
    `law`: What is done to a client's bins, in units; None: nothing.
    """

    below: Longs
    above: Longs
    hidden: int
    row: Row
    bounded: bool
    late: bool
    law: Channel | None

    @staticmethod
    def of(view: View, bits: Bits, row: Row) -> SentBounds:
        """Return what the channel of a view leaves open, for sums in these units."""
        units, law, open_ = np.ldexp(1.0, bits), law_of_sums(view), law_of_sums(view, hiding=False)
        below, above, hidden = np.zeros(2), np.zeros(2), -1.0
        if open_ is not None:
            below, above = open_.within(units).spread(2)
        if law is not None and law.hides:
            hidden = law.within(units).bounds(np.zeros((1, 2)))[1][0, 1]
        law = None if law is None else law.within(units)
        late = hides(sent_back(view))
        bounded = bool(np.isfinite([-below, above]).all()) and not view.changes("gradients", "g")
        if not bounded:
            below, above = np.zeros(2), np.zeros(2)
            hidden = hidden if np.isfinite(hidden) else -1.0
        ends = (-below).astype(np.int64), above.astype(np.int64)
        return SentBounds(*ends, int(hidden), row, bounded, late, law)

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
        low, high = self.off(clients)
        return sent + low, sent + high

    def off(self, clients: int) -> Longs:
        """Return bounds on true sums less what was sent of them, int64, (lo and hi, 2)."""
        return np.stack([-clients * self.below, clients * self.above])

    @property
    def step(self) -> Floats:
        """Multiples of which are sent, float64, shape (2,), in units."""
        drawn = self.law is not None and not self.law.deterministic
        return (self.below + self.above) / (2.0 if drawn else 1.0) + 1.0

    def errors(self, clients: int, known: int, size: int) -> tuple[Floats, Floats]:
        """Return mean and variance of what is sent of a cell less what is true, by its counts.

        Float64, shape (size, size, 2) each, in units: of n0 and n1 rows that fall to each of
        so many ``clients`` by an equal draw. Clients whose true part is ``known``, but not what
        they sent, err as any. Errors of clients are taken as independent. The last are those of
        all larger counts, and ``size`` is 1 where the errors of all are alike.
        """
        n = np.arange(1 if self.law is None or self.law.additive else size)
        pairs = np.stack(np.broadcast_arrays(n[:, None], n), axis=-1)
        x = pairs @ np.array([[self.row.g0, self.row.h], [self.row.g1, self.row.h]])
        mean, square = self._off(x)
        share = binomial(n, n[:, None], 1 / clients) if clients else np.eye(len(n))
        mean, square = (
            np.einsum("ia,abk,jb->ijk", share, e, share, optimize=True) for e in (mean, square)
        )
        var = clients * np.maximum(square - mean**2, 0.0) + known * self.step**2 / 12
        return clients * mean, var

    def _off(self, x: Longs) -> tuple[Floats, Floats]:
        """Return mean and mean square of what a client sends of x less x, float64, as x."""
        if self.law is None:
            return np.zeros(x.shape), np.zeros(x.shape)
        if self.law.additive:
            return np.zeros(x.shape), np.broadcast_to(self.law.error(x)[1], x.shape)
        rng = np.random.default_rng(0)
        draws = 1 if self.law.deterministic else DRAWS
        off = [np.asarray(self.law.send(x, rng), dtype=np.float64) - x for _ in range(draws)]
        return np.mean(off, axis=0), np.mean(np.square(off), axis=0)
