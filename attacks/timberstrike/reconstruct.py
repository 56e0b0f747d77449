"""TimberStrike for classes: from the evidence of a view to a guess of the victims' rows.

Histograms are decoded bin by bin (`histograms`). Otherwise the class counts of the leaves of the
first tree are solved for, and the rows are followed through the later trees
(`sequential_assignment`), several times independently. A matched consensus merges the
reconstructions. Finally the result is weighed against draws from the prior
(`fedtrees.attacks.reconstruction.ensemble_vote`), because a reconstruction from weak evidence can
be worse than the blind baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_posterior import most_probable_claims
from fedtrees.attacks.counts.leaf_sums import (
    Counts,
    initial_gradient,
    reliability_of,
    sums_of_counts,
)
from fedtrees.attacks.counts.leaf_values import first_counts, left_out, victims_of
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.boxes import (
    FeatureBoxes,
    Rest,
    boxes_after_first_tree,
    boxes_by_class,
    open_boxes,
)
from fedtrees.attacks.reconstruction.context import ReconstructionContext, share_of, with_fewer_rows
from fedtrees.attacks.reconstruction.ensemble_vote import (
    BlindEnsemble,
    EvidenceWeight,
    own_rows_differ,
    vote_on_rows,
)
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.attacks.timberstrike.histograms import (
    Reconstruction,
    counts_by_bins,
    counts_of_bins,
    rows_from_histograms,
)
from fedtrees.attacks.timberstrike.options import AUTO_TREES, Options
from fedtrees.attacks.timberstrike.sample_from_boxes import (
    fill_boxes,
    points,
    rows_with_known_values,
)
from fedtrees.attacks.timberstrike.sequential_assignment import assign_rows_tree_by_tree
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.claims import Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table

# With a prior, histograms are decoded only if at most half of the variation in their bins is noise.
# Otherwise the dependence between features in the prior is worth more than the noisy values.
# Accuracy of a client of nvflare-hist under laplace-hist 16, two seeds, decoded against not
# decoded: breast cancer with 256 bins .612 against .649, with 32 bins on a grid .653 against .652;
# Pima .752 against .736.
LEAST_RELIABLE = 0.5
# Weight of the dependence between features in rows that were assembled from bins, if sketches do
# not reveal the values.
PAIRS = 0.5
# Number of reconstructions from the bins of the first tree that serve as the prior if there is no
# other.
LIKELY_SAMPLES = 4


def reconstruct(
    evidence: BoostingObservations,
    adversary_rows: Table | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> Guess:
    """Reconstruct the training rows of a boosted forest (TimberStrike, Di Gennaro et al. 2025).

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and statistics from the view.
    adversary_rows : Table or None
        Local training rows of the adversary. With ``options.scope == "victims"`` they are
        subtracted from every statistic. Unless ``options.use_prior`` is False they are also the
        prior. If there are none, the rows of `BoostingObservations.population` are the prior.
    schema : Schema
        Types of the columns.
    options : Options
        Options of the attack.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    guess : Guess
        `Records` of the victims (of all clients with ``scope="union"``), `LeafCounts` of the
        victims in the first round, and diagnostics. Without trees, rows are drawn from the prior.
    """
    local_rows = Table.empty(schema) if adversary_rows is None else adversary_rows
    if not options.use_prior:
        evidence = evidence.change(population=None)
    problem = _Problem.of(evidence, local_rows, schema, options)
    notes = {"trees_read": float(len(problem.evidence.trees))}
    if not problem.evidence.trees:
        return Guess((Records(problem.with_recipe(rng).draw_without_trees(rng)),), notes)
    problem = problem.with_counts()
    decoded = problem.decode_histograms(rng)
    # The recipe of the prior is estimated from local rows, which takes time. It is not needed if
    # all rows were decoded.
    if decoded is None or len(decoded.uncertain) or problem.outside is not None:
        problem = problem.with_recipe(rng)
    reconstruction = problem.reconstruct_uncertain(decoded, rng)
    notes |= reconstruction.notes
    records = reconstruction.uncertain
    if options.weighs_blind:
        n_outside = 0
        if decoded is not None and problem.outside is not None:
            n_outside = int(problem.outside[0].sum())
        n_settled = len(reconstruction.certain) + n_outside
        records, weights = problem.weigh(reconstruction, n_settled, rng)
        notes |= weights
    records = Table.concat([reconstruction.certain, records])
    if decoded is not None and problem.outside is not None:
        records = Table.concat([records, problem.draw_anywhere(problem.outside, rng)])
    if problem.counts:
        notes["first_tree_residual"] = max(c.residual for c in problem.counts)
    return Guess((Records(records), *problem.leaf_counts()), notes)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The observations of the victims, with everything that is derived from them.

    Attributes
    ----------
    evidence : BoostingObservations
        Trees and statistics.
    local_rows : Table
        Local rows of the adversary.
    schema : Schema
        Types of the columns.
    options : Options
        Options of the attack.
    basis : ReconstructionContext
        Grid, prior and leaf sums.
    counts : sequence of Counts
        Class counts of the leaves of the first round. They contain local rows with
        ``scope="union"``. Empty if the first trees are foreign.
    share : float
        Share of the rows that is reconstructed (below 1 for large tables).
    outside : Rest or None
        Rows that were in no tree of the first round, if rounds are subsampled.
    """

    evidence: BoostingObservations
    local_rows: Table
    schema: Schema
    options: Options
    basis: ReconstructionContext
    counts: Sequence[Counts] = ()
    share: float = 1.0
    outside: Rest | None = None

    @staticmethod
    def of(
        evidence: BoostingObservations, local_rows: Table, schema: Schema, options: Options
    ) -> _Problem:
        """Choose the trees to use, and derive grid, prior and leaf sums from them."""
        bin_by_bin, n_rounds = _reads_bins(evidence, options), options.max_trees
        if n_rounds is None:
            n_rounds = len(evidence.trees) if bin_by_bin else AUTO_TREES
        # Rows of one round only: later rounds use other samples, whose histograms cannot be
        # combined.
        if bin_by_bin and evidence.params.subsample < 1:
            n_rounds = min(1, n_rounds)
        evidence = evidence.rounds(n_rounds)
        n_trees = len(evidence.trees)
        to_sum = evidence.outputs * AUTO_TREES if options.max_trees is None else n_trees
        basis = ReconstructionContext.of(
            evidence, local_rows, schema, min(n_trees, to_sum),
            ranges=options.ranges, use_prior=options.use_prior, subtract=options.scope != "union",
        )  # fmt: skip
        return _Problem(evidence, local_rows, schema, options, basis.with_missing_values())

    @property
    def is_union(self) -> bool:
        """Whether the rows of all clients are reconstructed."""
        return self.options.scope == "union"

    @property
    def reads_bins(self) -> bool:
        """Whether histograms are decoded bin by bin."""
        return _reads_bins(self.evidence, self.options)

    @property
    def n_rows(self) -> int:
        """Number of counted rows."""
        return int((self.counts[0].n0 + self.counts[0].n1).sum()) if self.counts else 0

    def with_recipe(self, rng: np.random.Generator) -> _Problem:
        """Return a copy whose prior has a recipe, if the result is weighed against the prior."""
        if not self.options.weighs_blind:
            return self
        return replace(self, basis=self.basis.with_recipe(self.schema, rng))

    def with_counts(self) -> _Problem:
        """Return a copy with the counts of the first round, and the rows outside of it."""
        evidence, n_own, is_union = self.evidence, len(self.local_rows), self.is_union
        counted = replace(self, counts=self._first_counts())
        if evidence.share < 1 and counted.counts:
            outside = left_out(evidence, counted.counts, self.basis.sums[0], n_own, is_union)
            return replace(counted, outside=outside)
        return replace(counted, share=1.0 if is_union else share_of(counted.n_rows))

    def _first_counts(self) -> list[Counts]:
        evidence, own_rows, is_union = self.evidence, self.local_rows, self.is_union
        if self.reads_bins and counts_by_bins(evidence):
            inside = evidence.observed.own_in_bins and not is_union
            known_rows = own_rows if inside else own_rows.take(slice(0))
            total = None if evidence.share < 1 else victims_of(evidence, len(own_rows), is_union)
            return counts_of_bins(evidence, known_rows, total, self.basis.prior)
        first = range(0 if evidence.is_foreign(0) else evidence.outputs)
        sums = self.basis.sums
        return [first_counts(evidence, sums[t], len(own_rows), is_union, t) for t in first]

    def leaf_counts(self) -> list[LeafCounts]:
        """Return the victims' class counts in the leaves of the first round."""
        evidence, sums, tables = self.evidence, self.basis.sums, []
        for t, counts in enumerate(self.counts):
            own_counts = 0, 0
            if self.is_union and evidence.observed.own_inside:
                own_counts = sums[t].own_n0, sums[t].own_n1
            victims = [
                n - n_local for n, n_local in zip((counts.n0, counts.n1), own_counts, strict=True)
            ]
            both = np.maximum(np.stack(victims, axis=1), 0)
            tables.append(LeafCounts(t, evidence.trees[t].leaves, both))
        by_bins = self.reads_bins and counts_by_bins(evidence)
        if self.is_union or self.options.random_leaf or by_bins:
            return tables
        return most_probable_claims(evidence, sums, len(self.local_rows), tables)

    def draw_without_trees(self, rng: np.random.Generator) -> Table:
        """Draw rows from the prior, by the declared number of rows and the base score."""
        evidence, own_rows = self.evidence, self.local_rows
        inside = len(own_rows) if evidence.observed.own_inside and not self.is_union else 0
        n_rows = evidence.row_counts.n_rows
        total = 0 if n_rows is None else n_rows - inside
        start = evidence.start(1).astype(np.float64)
        odds = np.exp(start[0]) if start.ndim == 2 else np.array([1.0, np.exp(start[0])])
        share = odds / odds.sum()
        if np.ptp(share) == 0 and len(own_rows):
            share = np.bincount(own_rows.y, minlength=len(share)) / len(own_rows)
        sizes = largest_remainder(share, max(total, 0)).tolist()
        return self._draw(open_boxes(sizes, self.basis.grid, evidence), rng)

    def draw_anywhere(self, outside: Rest, rng: np.random.Generator) -> Table:
        """Return rows outside the first round: a consensus of draws from the prior."""
        boxes = open_boxes(outside[0].tolist(), self.basis.grid, self.evidence)
        tables = [self._draw(boxes, rng) for _ in range(self.options.chains_for(len(boxes.y)))]
        tolerance = self.basis.prior.tolerance(self.schema)
        return matched_consensus(tables, tolerance, groups=boxes.history)

    def _draw(self, boxes: FeatureBoxes, rng: np.random.Generator) -> Table:
        basis = self.basis
        return points(self.options.points, boxes, basis.grid, basis.prior, self.schema, rng)

    @property
    def has_prior(self) -> bool:
        """Whether the adversary has local rows, or rows of the population."""
        return len(self.evidence.prior_rows(self.local_rows)) > 0

    def decode_histograms(self, rng: np.random.Generator) -> Reconstruction | None:
        """Decode rows from histograms. None: there are no histograms, or they are too noisy."""
        evidence = self.evidence
        if not self.reads_bins or (
            self.has_prior and reliability_of(evidence, self.n_rows) < LEAST_RELIABLE
        ):
            return None
        return rows_from_histograms(
            evidence, self.local_rows, self.basis.prior, self.schema, self.options,
            self.counts, self.share, rng,
        )  # fmt: skip

    def reconstruct_uncertain(
        self, decoded: Reconstruction | None, rng: np.random.Generator
    ) -> Reconstruction:
        """Reconstruct the rows that histograms do not identify, with the best method."""
        if decoded is None:
            return self.follow_rows(rng)
        has_values = self.has_prior or self.evidence.columns.sketched
        needs_values = self.outside is None and self.options.weighs_blind and not has_values
        if needs_values and len(decoded.uncertain):
            return self.follow_likely(decoded, rng)
        return decoded

    def follow_likely(self, decoded: Reconstruction, rng: np.random.Generator) -> Reconstruction:
        """Assign rows like those of the first tree's bins to the leaves of all trees.

        An adversary without local rows, rows of the population and sketches knows nothing else
        about which values exist and which of them occur together. Decoded rows are subtracted from
        every sum. If sketches give the values, the pairs of bins are half a point of RA better than
        this (breast cancer, Pima).
        """
        likely = Table.concat(decoded.samples[:LIKELY_SAMPLES])
        evidence, n_trees = self.evidence.change(sketch_rows=likely), len(self.basis.sums)
        basis = ReconstructionContext.of(
            evidence, decoded.certain, self.schema, n_trees, ranges=self.options.ranges
        )
        basis = basis.with_missing_values().with_recipe(self.schema, rng)
        problem = replace(self, evidence=evidence, local_rows=decoded.certain, basis=basis)
        followed = replace(problem, counts=problem._first_counts()).follow_rows(rng)
        return replace(followed, certain=decoded.certain, notes=followed.notes | decoded.notes)

    def follow_rows(self, rng: np.random.Generator) -> Reconstruction:
        """Assign the rows to the leaves of all trees, by the sums of these leaves."""
        rounds = len(self.basis.sums) // self.evidence.outputs
        evidence = self.evidence.rounds(rounds).at_most("statistics")
        evidence, sums, counts = with_fewer_rows(evidence, self.basis.sums, self.counts, self.share)
        few = replace(self, evidence=evidence, counts=counts, basis=replace(self.basis, sums=sums))
        samples, notes = few._follow_chains(rng)
        prior, block = self.basis.prior, few._initial_boxes().history
        merged = matched_consensus(samples, prior.tolerance(self.schema), groups=block)
        uncertain = rows_with_known_values(merged, prior)
        return Reconstruction(Table.empty(self.schema), uncertain, samples, notes)

    def _follow_chains(self, rng: np.random.Generator) -> tuple[list[Table], dict[str, float]]:
        """Assign the rows to the leaves of all trees, once per chain."""
        evidence, basis, counts, sums = self.evidence, self.basis, self.counts, self.basis.sums
        several = evidence.outputs > 1
        if several and counts:
            exact = (
                sums_of_counts(c, s, initial_gradient(evidence, t))
                for t, (c, s) in enumerate(zip(counts, sums, strict=False))
            )
            sums = [*exact, *sums[evidence.outputs :]]
        boxes_of_chain, n_assigned = list[FeatureBoxes](), int(bool(counts) and not several)
        for _ in range(self.options.chains_for(len(self._initial_boxes().history))):
            boxes = self._initial_boxes()
            assign_rows_tree_by_tree(
                evidence, sums, basis.grid, basis.prior, boxes, self.options, rng, n_assigned
            )
            boxes_of_chain.append(boxes)
        tables = fill_boxes(boxes_of_chain, self._draw, rng)
        if not boxes.residual:
            return tables, {}
        residual = boxes.residual
        return tables, {
            "residual_second_tree": residual[0],
            "residual_last_tree": residual[-1],
        }

    def _initial_boxes(self) -> FeatureBoxes:
        """Return the boxes of the rows after the first round, open if there are no counts."""
        evidence, grid, counts = self.evidence, self.basis.grid, self.counts
        if not counts:
            return open_boxes(evidence.row_counts.sizes or (0, 0), grid, evidence)
        if evidence.outputs > 1:
            return boxes_by_class(evidence, grid, counts, self.outside)
        return boxes_after_first_tree(evidence, grid, counts[0], self.outside)

    def weigh(
        self, reconstruction: Reconstruction, n_settled: int, rng: np.random.Generator
    ) -> tuple[Table, dict[str, float]]:
        """Weigh the reconstruction of rows that were not decoded against draws from the prior.

        ``n_settled`` is the number of rows that are certain or outside the first round. If exact
        counts show that the victims' rows are distributed differently from the prior, draws from
        the prior get no weight.
        """
        evidence, basis, counts, share = self.evidence, self.basis, self.counts, self.share
        rows_differ = evidence.distortion.noise is None and own_rows_differ(
            [self._classes(c.n0, c.n1) for c in counts],
            [self._classes(*s.prior_counts) for s in basis.sums[: len(counts)]],
        )
        records, n_rows = reconstruction.uncertain, evidence.row_counts.n_rows
        inside = n_settled + (len(self.local_rows) if evidence.observed.own_inside else 0)
        rows = None if n_rows is None else round(share * max(n_rows - inside, 0))
        if reconstruction.samples_include_noise:
            weight = EvidenceWeight(1.0 if basis.prior.from_sketches else PAIRS, 1.0)
        else:
            weight = EvidenceWeight.of(evidence, basis, round(len(records) / share))
        blind = BlindEnsemble.of(basis, self.schema, share, rng, rows_differ=rows_differ)
        submission, notes = vote_on_rows(records, reconstruction.samples, blind, weight, rng, rows)
        return rows_with_known_values(submission, basis.prior), notes

    def _classes(self, n0: NDArray[np.int64], n1: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows per class and leaf, int64, shape (2, J).

        If small bins are suppressed, leaves are not reliable. The rows are then summed over the
        leaves, shape (2, 1).
        """
        rows = np.stack([n0, n1])
        hides = self.evidence.distortion.hides_small_bins
        return rows.sum(axis=1, keepdims=True) if hides else rows


def _reads_bins(evidence: BoostingObservations, options: Options) -> bool:
    if evidence.observed.level != "histograms" or options.random_leaf:
        return False
    return evidence.observed.own_in_bins or options.scope != "union"
