"""Batches of rows that rounds of training used, and their blind guesses.

The metrics `batch-rows` and `batch-leaves` use it as their truth.
"""

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

# Blind batches are enlarged in steps of this many rows, so that fewer sizes must be computed.
_BATCH_STEP = 8
# Cache of blind guesses by the local data of the first party, because they do not depend on attack
# and defense.
_blind_cache: WeakKeyDictionary[LocalData, dict[tuple[Any, ...], dict[str, Table]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class Batches:
    """Rows of every party that the rounds of a training used."""

    case: Case

    @cached_property
    def width(self) -> NDArray[np.float64]:
        """Accepted differences per feature, float64 (d,), from all training rows of all parties."""
        everyone = Table.concat([local_data.table for local_data in self.case.local_data.values()])
        return Tolerance.of(everyone, self.case.schema).width[:-1]

    def rows(self, claim: BatchRows) -> Table:
        """Return the true rows of the claimed round and parties."""
        return Table.concat([self.case.rows_in(name, claim.round) for name in claim.owner])

    def blind(self, claim: BatchRows) -> dict[str, Table]:
        """Return blind guesses of the batch, by name. They are the same for every round.

        They have as many rows as the claim. If the batch is larger, the number is increased in
        steps of eight rows until it reaches the size of the batch.
        """
        n_claimed = len(claim.table)
        n = max(
            n_claimed + -(-(len(self.rows(claim)) - n_claimed) // _BATCH_STEP) * _BATCH_STEP,
            n_claimed,
        )
        cached = _blind_cache.setdefault(next(iter(self.case.local_data.values())), {})
        # The stream depends only on the size. Equal sizes in different rounds share one guess.
        rng = self.case.streams.child("blind", self.case.threat).rng("batch", n)
        key = (self.case.principals, n, str(rng.bit_generator.state))
        if key not in cached:
            cached[key] = self.case.blind_rows(n, rng)
        return cached[key]
