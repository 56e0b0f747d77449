"""What every reconstruction stands on: thresholds, what own rows make likely, victims' sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.grid import Grid
from fedtrees.attacks.evidence.prior import Prior, Ranges, make_prior, ranges_within, value_ranges
from fedtrees.attacks.evidence.sums import LeafSums, victim_sums, with_leaves_of
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.blind import Draws
from fedtrees.guessing.imputation import ChainedEquations
from fedtrees.guessing.recipes import best_recipe
from fedtrees.guessing.wanted import spaced, wanted

# Redrawn rows that boxes are filled from. Instead of own rows alone they gain TimberStrike 0.6 to
# 1.3 points of RA (breast cancer, Pima, Stroke, 10 trees); 1,000 gain 0.1 to 0.5 less.
POOL = 4000
# Rows drawn from declared ranges, where no rows and no cut points are known.
FEW = 500
# Thresholds that count as much as what is usual.
FEW_CUTS = 1


@dataclass(frozen=True, eq=False)
class Basis:
    """The thresholds of the trees, the prior on their grid, and sums per leaf."""

    grid: Grid
    prior: Prior
    sums: list[LeafSums]  # Of the rows sought, one per tree
    # Own rows, else rows of the population, also where the prior is of likely rows. Of many rows,
    # these are some.
    own: Table

    @staticmethod
    def of(
        evidence: Evidence,
        own: Table,
        schema: Schema,
        n_trees: int | None = None,
        *,
        ranges: Ranges = "schema",
        use_prior: bool = True,
        subtract: bool = True,
    ) -> Basis:
        """Work it out from all trees of the evidence.

        Sums are those of the first ``n_trees`` (all), less own rows where these are in them and
        ``subtract`` says so. The prior is estimated from likely rows that sketches give, from own
        rows, or from the rows of the population that `Evidence.population` contains, in this order
        of preference. Of many rows, a sample is used. ``ranges`` says where value ranges come from
        if cut points do not determine them. Without ``use_prior``, none of these rows serve as
        knowledge of the distribution.
        """
        codes = [len(feature.categories) for feature in schema.features]
        grid = Grid.of(evidence.trees, len(codes), codes)
        if evidence.targets is not None:
            grid = replace(grid, edges=(*grid.edges[:-1], evidence.targets.edges))
        cuts = evidence.cuts if evidence.ranges_told else None
        background = evidence.prior_rows(own) if use_prior else own
        low, high = value_ranges(schema, background, grid, cuts, ranges)
        known = background if use_prior else own.take(np.zeros(0, dtype=np.intp))
        told = use_prior and evidence.likely is not None
        if told and evidence.likely is not None:
            known = evidence.likely
            low, high = ranges_within(known, low, high)
        if use_prior and not len(known) and cuts is None:
            known = rows_in_ranges(schema, grid.edges)
        few = spaced(known, wanted(len(known)))
        trees = len(evidence.trees) if n_trees is None else n_trees
        sums = victim_sums(evidence, own, trees, evidence.own_inside and subtract)
        if told or len(known) != len(own) or len(few) < len(known):
            known = few
            sums = with_leaves_of(known, evidence, sums)
        mine = spaced(background, wanted(len(background)))
        return Basis(grid, make_prior(schema, known, grid, low, high, told), sums, mine)

    def with_missing_values(self) -> Basis:
        """Return the same where values may be missing of features that own rows miss some of.

        Only for boxes that follow them; in the cells of `joint` and `lattice` rows have values.
        """
        missing = np.isnan(self.prior.own.X).any(axis=0)
        return replace(self, grid=replace(self.grid, missing=missing))

    def with_recipe(
        self, schema: Schema, rng: np.random.Generator, *, redraws_told: bool = False
    ) -> Basis:
        """Return the same with the recipe that own rows make best, and rows to fill boxes from.

        Where cells are not mixed (*imputed*, *bootstrap*), these are own rows and redrawn ones: of
        own rows alone samples are too alike, and what is expected of them is too high. Else they
        are own rows, drawn with replacement, for a box is filled with no row twice.

        Rows that sketches told are one draw of many: where samples are to differ
        (``redraws_told``) they are redrawn, too.
        """
        if (self.prior.told and not redraws_told) or not len(self.prior.own):
            return self
        recipe, own = best_recipe(self.prior.own, schema, rng), self.prior.own
        rows = own.take(rng.integers(0, len(own), POOL))
        if recipe.kind == "imputed" or recipe.guess == "bootstrap+consensus":
            redrawn = ChainedEquations(own, schema, rng).redraw(rows, rng)
            recipe, rows = replace(recipe, share=0.0), Table.concat([own, redrawn])
        rows = rows.take(rng.permutation(len(rows)))
        pool = (rows, self.grid.cells(rows.X))
        return replace(self, prior=replace(self.prior, recipe=recipe, pool=pool))


def rows_in_ranges(
    schema: Schema, thresholds: Sequence[NDArray[np.floating]] | None = None
) -> Table:
    """Return likely rows for who knows neither rows nor cut points: draws from declared ranges.

    None where no number has such a range. ``thresholds`` of trees, of each feature, are where rows
    are: half of the draws are below their median, as far as they are many.
    """
    if not any(f.declared_range and not f.categories for f in schema.features):
        return Table.empty(schema)
    rows = Draws(None, schema, FEW, np.random.default_rng(0)).of("low")[-1]
    X = rows.X.copy()
    for f, feature in enumerate(schema.features):
        cut = np.empty(0) if thresholds is None else thresholds[f][np.isfinite(thresholds[f])]
        if feature.declared_range is None or feature.categories or not len(cut):
            continue
        low, high = feature.declared_range
        u = np.clip((X[:, f].astype(np.float64) - low) / (high - low), 1e-6, 1.0)
        usual, seen = (
            float(np.clip(np.median(x), 0.02, 0.98)) for x in (u, (cut - low) / (high - low))
        )
        middle = (len(cut) * seen + FEW_CUTS * usual) / (len(cut) + FEW_CUTS)
        X[:, f] = low + (high - low) * u ** (np.log(middle) / np.log(usual))
    return Table(X, rows.y)
