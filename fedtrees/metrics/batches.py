"""Batches that rounds of training were computed on, and what is guessed of them blindly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.guess import BatchRows
from fedtrees.core.schema import Table
from fedtrees.guessing.blind import blind_guesses
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.metrics.metric import Case


@dataclass(frozen=True, eq=False)
class Batches:
    """Who held which rows, and which of them a round used."""

    case: Case

    @cached_property
    def width(self) -> NDArray[np.float64]:
        """Accepted differences per feature, from the standard deviations of all training rows."""
        everyone = Table.concat([held.table for held in self.case.holdings.values()])
        return Tolerance.of(everyone, self.case.schema).width[:-1]

    def rows(self, claim: BatchRows) -> Table:
        """Return the rows that a claim is about."""
        return Table.concat([self.case.rows_in(name, claim.round) for name in claim.owner])

    def blind(self, claim: BatchRows) -> dict[str, Table]:
        """Return what is guessed of as many rows by who never looked."""
        rng = self.case.streams.child("blind", self.case.threat, *claim.owner)
        own = self.case.blind_view().rows
        n = len(self.rows(claim))
        return blind_guesses(own, self.case.schema, n, rng.rng("batch", claim.round), draws=5)
