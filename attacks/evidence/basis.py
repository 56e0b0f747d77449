"""What every reconstruction stands on: thresholds, what own rows make likely, victims' sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedtrees.attacks.evidence.boosted import Evidence, Options
from fedtrees.attacks.evidence.grid import Grid
from fedtrees.attacks.evidence.prior import Prior, make_prior, value_ranges
from fedtrees.attacks.evidence.sums import LeafSums, victim_sums
from fedtrees.core.schema import Schema, Table


@dataclass(frozen=True, eq=False)
class Basis:
    """The thresholds of the trees, the prior on their grid, and sums per leaf.

    Attributes
    ----------
    grid : Grid
    prior : Prior
    sums : list of LeafSums
        Of the rows sought, one per tree.
    """

    grid: Grid
    prior: Prior
    sums: list[LeafSums]

    @staticmethod
    def of(
        evidence: Evidence, own: Table, schema: Schema, options: Options, n_trees: int | None = None
    ) -> Basis:
        """Work it out from all trees of the evidence; sums of the first `n_trees` (all).

        Of the options count ``ranges``, ``use_prior`` and ``scope``.
        """
        grid = Grid.of(evidence.trees, len(schema.features))
        low, high = value_ranges(schema, own, grid, evidence.cuts, options.ranges)
        known = own if options.use_prior else own.take(np.zeros(0, dtype=np.intp))
        subtract = evidence.own_inside and options.scope == "victims"
        sums = victim_sums(
            evidence, own, len(evidence.trees) if n_trees is None else n_trees, subtract
        )
        return Basis(grid, make_prior(schema, known, grid, low, high), sums)

    def with_missing_values(self) -> Basis:
        """Return the same where values may be missing of features that own rows miss some of.

        Only for boxes that follow them; in the cells of `joint` and `lattice` rows have values.
        """
        missing = np.isnan(self.prior.own.X).any(axis=0)
        return replace(self, grid=replace(self.grid, missing=missing))
