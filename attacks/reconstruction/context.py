"""Common input of the reconstruction attacks: the grid, the prior and the victims' leaf sums.

`ReconstructionContext.of` derives all three from the observations. The attacks then reconstruct
rows as boxes on the grid (`fedtrees.attacks.reconstruction.boxes`) and fill the boxes with values
from the prior. `equations` states the sums of a tree's leaves as linear equations in the gradients
of the rows, and `with_fewer_rows` scales sums and counts so that a sample of rows represents all
rows of a large federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import Counts, LeafSums, victim_sums, with_leaves_of
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.boxes import Grid, LeafConstraints
from fedtrees.attacks.reconstruction.prior import (
    Prior,
    Ranges,
    ReachableLeaves,
    make_prior,
    ranges_within,
    value_ranges,
)
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.blind_baselines.guesses import Draws
from fedtrees.blind_baselines.recipes import recipe_and_pool
from fedtrees.blind_baselines.rows import row_budget, take_evenly
from fedtrees.core.schema import Schema, Table

# Number of rows drawn from the declared ranges if neither rows nor cut points are available.
FEW = 500
# Weight of the usual median against the thresholds, in thresholds.
FEW_CUTS = 1


@dataclass(frozen=True, eq=False)
class ReconstructionContext:
    """Thresholds of the trees, the prior on their grid, and the leaf sums of the victims' rows.

    Attributes
    ----------
    grid : Grid
        Thresholds of all trees, which bound the cells of the reconstruction.
    prior : Prior
        Distribution of the victims' rows on the grid before the sums are used.
    sums : list of LeafSums
        Leaf sums of the victims' rows, one entry per tree.
    background : Table
        Sample of the adversary's local rows, or of the rows of the population if there are none. It
        contains these rows even if the prior was estimated from sketches.
    """

    grid: Grid
    prior: Prior
    sums: list[LeafSums]
    # Large tables are sampled (`take_evenly`).
    background: Table

    @staticmethod
    def of(
        evidence: BoostingObservations,
        local_rows: Table,
        schema: Schema,
        n_trees: int | None = None,
        *,
        ranges: Ranges = "schema",
        use_prior: bool = True,
        subtract: bool = True,
    ) -> ReconstructionContext:
        """Derive the grid, the prior and the victims' sums from the evidence.

        The prior is estimated from the likely rows that sketches give, from the local rows, or from
        the rows of the population, in this order of preference. Large tables are sampled.

        Parameters
        ----------
        evidence : BoostingObservations
            The trees and sums that the adversary has seen.
        local_rows : Table
            Local rows of the adversary. May be empty.
        schema : Schema
            Names, ranges and categories of the columns.
        n_trees : int, optional
            Number of trees whose sums are returned. None means all.
        ranges : Ranges, default "schema"
            Source of the value ranges of features that cut points do not determine.
        use_prior : bool, default True
            If False, no rows serve as knowledge of the distribution.
        subtract : bool, default True
            If True, the local rows are subtracted from the sums that contain them.
        """
        codes = [len(feature.categories) for feature in schema.features]
        grid = Grid.of(evidence.trees, len(codes), codes)
        if evidence.targets is not None:
            grid = replace(grid, edges=(*grid.edges[:-1], evidence.targets.edges))
        cuts = evidence.observed.cuts if evidence.columns.cuts_reveal_ranges else None
        background = evidence.prior_rows(local_rows) if use_prior else local_rows
        low, high = value_ranges(schema, background, grid, cuts, ranges)
        prior_rows = background if use_prior else local_rows.take(np.zeros(0, dtype=np.intp))
        from_sketches = use_prior and evidence.columns.sketch_rows is not None
        if from_sketches and evidence.columns.sketch_rows is not None:
            prior_rows = evidence.columns.sketch_rows
            # likely rows have the victims' columns, so that their range replaces all estimates
            low, high = ranges_within(prior_rows, low, high)
        # an adversary without rows and cut points still knows the declared ranges
        if use_prior and not len(prior_rows) and cuts is None:
            prior_rows = rows_in_ranges(schema, grid.edges)
        sample = take_evenly(prior_rows, row_budget(len(prior_rows)))
        trees = len(evidence.trees) if n_trees is None else n_trees
        # the victims' sums need all local rows, even if the prior uses a sample of them
        sums = victim_sums(evidence, local_rows, trees, evidence.observed.own_inside and subtract)
        if from_sketches or len(prior_rows) != len(local_rows) or len(sample) < len(prior_rows):
            prior_rows = sample
            sums = with_leaves_of(prior_rows, evidence, sums)
        local_sample = take_evenly(background, row_budget(len(background)))
        return ReconstructionContext(
            grid, make_prior(schema, prior_rows, grid, low, high, from_sketches), sums, local_sample
        )

    def with_missing_values(self) -> ReconstructionContext:
        """Return a copy whose grid allows missing values in features of which prior rows lack some.

        Only reconstructions with boxes use it. The cells of `joint` and `lattice` contain no
        missing values.
        """
        missing = np.isnan(self.prior.rows.X).any(axis=0)
        return replace(self, grid=replace(self.grid, missing=missing))

    def with_recipe(
        self, schema: Schema, rng: np.random.Generator, *, redraws_sketches: bool = False
    ) -> ReconstructionContext:
        """Return a copy with the recipe that suits the prior's rows best and a pool of rows.

        Boxes are filled from the pool (`fedtrees.blind_baselines.recipes.recipe_and_pool`).

        Parameters
        ----------
        schema : Schema
            Names, ranges and categories of the columns.
        rng : numpy.random.Generator
            Randomness of the pool.
        redraws_sketches : bool, default False
            Whether likely rows that come from sketches are redrawn as well. They are one draw of
            many, so that this is needed where samples have to differ. If False, a
            context with such a prior is returned unchanged.

        Returns
        -------
        ReconstructionContext
            The same object if the prior has no rows.
        """
        if (self.prior.from_sketches and not redraws_sketches) or not len(self.prior.rows):
            return self
        recipe, rows = recipe_and_pool(self.prior.rows, schema, rng)
        pool = (rows, self.grid.cells(rows.X))
        return replace(self, prior=replace(self.prior, recipe=recipe, pool=pool))


def rows_in_ranges(
    schema: Schema, thresholds: Sequence[NDArray[np.floating]] | None = None
) -> Table:
    """Return likely rows for an adversary that has neither rows nor cut points.

    The rows are drawn from the declared ranges. If the trees have thresholds on a feature, its
    draws are transformed so that their median moves towards the median threshold. With m thresholds
    the latter has weight m / (m + `FEW_CUTS`).

    Parameters
    ----------
    schema : Schema
        Names, ranges and categories of the columns.
    thresholds : sequence of float32 array, optional
        Thresholds of the trees, one array per feature.

    Returns
    -------
    Table
        `FEW` rows. An empty table if no numeric feature has a declared range.
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
        # a power of the relative position moves its median from `usual` to `middle` and keeps the
        # range
        X[:, f] = low + (high - low) * u ** (np.log(middle) / np.log(usual))
    return Table(X, rows.y)


Floats = NDArray[np.float64]


def equations(
    evidence: BoostingObservations, t: int, sums: LeafSums, leaves: LeafConstraints
) -> tuple[Floats, Floats]:
    """Return the right-hand sides of the leaf equations and their error variances.

    A leaf value gives one equation, sum_i g_i + (v/eta) h_i = -lambda v/eta - alpha sign(v). A
    value of 0 under an L1 penalty only shows that G is between -alpha and alpha.

    Parameters
    ----------
    evidence : BoostingObservations
        Training parameters and leaf values.
    t : int
        The tree.
    sums : LeafSums
        Sums of the victims' rows in its leaves.
    leaves : LeafConstraints
        Leaves of the tree.

    Returns
    -------
    target, variance : float64 array, shape (J, K) each
        K is 2 if gradient and hessian sums are known, and 1 if only leaf values are.
    """
    if sums.g is not None and sums.h is not None:
        return np.stack([sums.g, sums.h], axis=1), np.stack([sums.var_g, sums.var_h], axis=1)
    u = slopes(evidence, t, leaves)
    target = -evidence.params.reg_lambda * u - evidence.params.reg_alpha * np.sign(u)
    # a leaf value contains the adversary's rows, so that their part is moved to the right-hand side
    target = target - sums.own_g - u * sums.own_h
    weight = (sums.own_h + evidence.params.reg_lambda + 1.0) / evidence.params.learning_rate
    values, law = evidence.trees[t].value[leaves.node], evidence.distortion.rounding
    off = 0.0 if law is None else law.posterior_moments(values)[1]
    variance = off * weight**2 + sums.var_g + u * u * sums.var_h
    # G is uniform between -alpha and alpha if the L1 penalty sets the value to 0
    variance = variance + np.where(u == 0, evidence.params.reg_alpha**2 / 3, 0.0)
    return target[:, None], variance[:, None]


def slopes(evidence: BoostingObservations, t: int, leaves: LeafConstraints) -> Floats:
    """Return v / eta of every leaf, float64, shape (J,)."""
    return evidence.trees[t].value[leaves.node].astype(np.float64) / evidence.params.learning_rate


def contributions(
    evidence: BoostingObservations,
    t: int,
    sums: LeafSums,
    leaves: LeafConstraints,
    options_of: ReachableLeaves,
    gh: tuple[Floats, Floats],
) -> Floats:
    """Return the contribution of each row to the equations of each leaf it can reach.

    Parameters
    ----------
    evidence : BoostingObservations
        Training parameters and leaf values.
    t : int
        The tree.
    sums : LeafSums
        Sums of the victims' rows in its leaves.
    leaves : LeafConstraints
        Leaves of the tree.
    options_of : ReachableLeaves
        Leaves that each row can reach.
    gh : tuple of float64 array, shape (n,) each
        Gradient and hessian of each row.

    Returns
    -------
    float64 array, shape (nnz, K)
        One line per pair of row and reachable leaf, with K as in `equations`.
    """
    width = np.diff(options_of.offsets)
    ge, he = np.repeat(gh[0], width), np.repeat(gh[1], width)
    if sums.g is not None:
        return np.stack([ge, he], axis=1)
    u = slopes(evidence, t, leaves)
    return (ge + u[options_of.leaf] * he)[:, None]


def share_of(rows: int) -> float:
    """Return the share of the given number of rows that an attack reconstructs."""
    return row_budget(rows) / rows if rows else 1.0


def with_fewer_rows(
    evidence: BoostingObservations, sums: Sequence[LeafSums], counts: Sequence[Counts], share: float
) -> tuple[BoostingObservations, list[LeafSums], list[Counts]]:
    """Return the evidence, sums and counts that a share of the rows would have given.

    Penalties are scaled as well, because a leaf value ties ``G + (v / eta) H`` to the penalties,
    which have to shrink with the sums.

    Parameters
    ----------
    evidence : BoostingObservations
        Training parameters.
    sums : sequence of LeafSums
        Victims' sums, one entry per tree.
    counts : sequence of Counts
        Victims' counts of the trees of the first round. May be empty.
    share : float
        Share of the rows, 0 to 1. For 1, the input is returned.
    """
    if share == 1:
        return evidence, list(sums), list(counts)
    reg_lambda, reg_alpha = evidence.params.reg_lambda, evidence.params.reg_alpha
    few = evidence.change(reg_lambda=share * reg_lambda, reg_alpha=share * reg_alpha)
    return few, [_sums(s, share) for s in sums], _counts(counts, share)


def _sums(sums: LeafSums, share: float) -> LeafSums:
    return replace(
        sums,
        g=None if sums.g is None else share * sums.g,
        h=None if sums.h is None else share * sums.h,
        var_g=share**2 * sums.var_g,
        var_h=share**2 * sums.var_h,
        own_g=share * sums.own_g,
        own_h=share * sums.own_h,
    )


def _counts(counts: Sequence[Counts], share: float) -> list[Counts]:
    """Return scaled counts in which all trees have the same number of rows of each class."""
    if not counts:
        return []
    total = round(share * int((counts[0].n0 + counts[0].n1).sum()))
    if len(counts) == 1:
        (c,) = counts
        both = largest_remainder(share * np.concatenate([c.n0, c.n1]), total)
        return [Counts(both[: len(c.n0)], both[len(c.n0) :], c.residual)]
    of_class = largest_remainder(np.array([float(c.n1.sum()) for c in counts]), total)
    return [
        Counts(
            largest_remainder(share * c.n0, total - int(k)),
            largest_remainder(share * c.n1, int(k)),
            c.residual,
        )
        for c, k in zip(counts, of_class, strict=True)
    ]
