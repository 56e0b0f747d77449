"""Bounds on true sums given the sent sums, from the channel that a defense publishes.

A client may round its sums to a step, or suppress bins of few rows, or both in either order.
Unbounded noise leaves no bound.
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
from fedtrees.trees.boosted.histogram import Bits

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 64  # simulated messages to estimate the error of a random mechanism


@dataclass(frozen=True, eq=False)
class SentBounds:
    """Largest differences between a client's true sums and the sums that it sends.

    Attributes
    ----------
    below, above : int64 array, shape (2,)
        A true sum is at least the sent one less ``below`` and at most the sent one plus ``above``,
        in units.
    hidden : int
        Largest hessian of a bin that is sent as 0, in units. -1 if no bins are hidden.
    row : Row
        Contribution of one row.
    bounded : bool
        False if unbounded noise is added.
    late : bool
        Whether bins are hidden in the sum that the server sends back.
    law : Channel or None
        Mechanism applied to a client's bins, in units. None means none.
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
        """Return the bounds that the channels of a view leave open.

        Parameters
        ----------
        view : View
            The adversary's view.
        bits : Bits
            Fixed-point units of the sums.
        row : Row
            Contribution of one row.
        """
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
        """Return bounds on true bins, int64 (..., 2), given the sum that the clients sent."""
        lo, hi = self.nodes(sent, clients)
        if self.hidden < 0 or not self.bounded:
            return lo, hi
        hidden_rows = self.hidden // max(self.row.h, 1)  # of one client
        is_nonzero = ((lo > 0) | (hi < 0)).any(axis=-1)  # at least one client sent something
        silent = (clients - is_nonzero)[..., None]
        lo = lo + np.array([hidden_rows * self.row.g1, 0]) * silent
        hi = hi + np.array([hidden_rows * self.row.g0, hidden_rows * self.row.h]) * silent
        return lo, hi

    def nodes(self, sent: Longs, clients: int) -> tuple[Longs, Longs]:
        """Return bounds on true sums that were not suppressed."""
        if not self.bounded:
            return np.full_like(sent, -OPEN), np.full_like(sent, OPEN)
        low, high = self.off(clients)
        return sent + low, sent + high

    def off(self, clients: int) -> Longs:
        """Return bounds on true sums less the sent ones, int64, (lower and upper, 2)."""
        return np.stack([-clients * self.below, clients * self.above])

    @property
    def step(self) -> Floats:
        """Step of which the sent sums are multiples, float64, shape (2,), in units."""
        # random rounding goes up or down, so that its bounds span two steps
        drawn = self.law is not None and not self.law.deterministic
        return (self.below + self.above) / (2.0 if drawn else 1.0) + 1.0

    def errors(self, clients: int, n_known: int, size: int) -> tuple[Floats, Floats]:
        """Return mean and variance of the error of a sent cell, depending on its counts.

        The n0 and n1 rows of a cell are distributed to the clients at random, and the errors of
        clients are independent.

        Parameters
        ----------
        clients : int
            Number of clients whose part is unknown.
        n_known : int
            Number of clients whose true part is known, but not the part that they sent.
        size : int
            Number of counts that are distinguished. The last entry applies to all larger counts. It
            is reduced to 1 if the error does not depend on the counts.

        Returns
        -------
        mean, variance : float64 array, shape (size, size, 2) each
            In units.
        """
        n = np.arange(1 if self.law is None or self.law.additive else size)
        pairs = np.stack(np.broadcast_arrays(n[:, None], n), axis=-1)
        x = pairs @ np.array([[self.row.g0, self.row.h], [self.row.g1, self.row.h]])
        mean, square = self._off(x)
        share = binomial(n, n[:, None], 1 / clients) if clients else np.eye(len(n))
        mean, square = (
            np.einsum("ia,abk,jb->ijk", share, e, share, optimize=True) for e in (mean, square)
        )
        var = clients * np.maximum(square - mean**2, 0.0) + n_known * self.step**2 / 12
        return clients * mean, var

    def _off(self, x: Longs) -> tuple[Floats, Floats]:
        """Return mean and mean square of the sent value less x, float64, shaped like x."""
        if self.law is None:
            return np.zeros(x.shape), np.zeros(x.shape)
        if self.law.additive:
            return np.zeros(x.shape), np.broadcast_to(self.law.error(x)[1], x.shape)
        rng = np.random.default_rng(0)
        draws = 1 if self.law.deterministic else DRAWS
        off = [np.asarray(self.law.send(x, rng), dtype=np.float64) - x for _ in range(draws)]
        return np.mean(off, axis=0), np.mean(np.square(off), axis=0)
