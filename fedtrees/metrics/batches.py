"""Batches that rounds of training were computed on, and what is guessed of them blindly."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.guess import BatchRows
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Table
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.metrics.metric import Case

# Rows by which the blind adversary's batch grows: guesses of every size would be made anew.
_MORE = 8
# Guesses by local data of the federation: every attack on every defense is held against them.
_made: WeakKeyDictionary[LocalData, dict[tuple[Any, ...], dict[str, Table]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Batches:
    """Who held which rows, and which of them a round used."""

    case: Case

    @cached_property
    def width(self) -> NDArray[np.float64]:
        """Accepted differences per feature, from the standard deviations of all training rows."""
        everyone = Table.concat([held.table for held in self.case.local_data.values()])
        return Tolerance.of(everyone, self.case.schema).width[:-1]

    def rows(self, claim: BatchRows) -> Table:
        """Return the rows that a claim is about."""
        return Table.concat([self.case.rows_in(name, claim.round) for name in claim.owner])

    def blind(self, claim: BatchRows) -> dict[str, Table]:
        """Return what is guessed of as many rows by who sees nothing, the same of every round.

        Of batches that are larger than what was claimed some more rows, in steps of eight.
        """
        told = len(claim.table)
        n = max(told + -(-(len(self.rows(claim)) - told) // _MORE) * _MORE, told)
        known = _made.setdefault(next(iter(self.case.local_data.values())), {})
        rng = self.case.streams.child("blind", self.case.threat).rng("batch", n)
        key = (self.case.principals, n, str(rng.bit_generator.state))
        if key not in known:
            known[key] = self.case.blind_rows(n, rng)
        return known[key]
