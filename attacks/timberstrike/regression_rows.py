"""Reconstruct rows with numeric targets from trees of squared error.

Every row has hessian 1, so that the counts of leaves are exact. Its first gradient is the base
score minus its target. The target is treated as an additional column
(`fedtrees.blind_baselines.rows`), and every row starts in some cell of this column. Rows are then
assigned to leaves so that the sums agree, as for classes. If the rows in histogram bins can be
counted, rows are decoded from the bins instead (`fedtrees.attacks.peeling.regression_peeling`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_posterior import most_probable_claims
from fedtrees.attacks.counts.leaf_sums import Counts, counts_bins
from fedtrees.attacks.counts.leaf_values import first_counts
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.peeling.bin_values import to_bins, values_in
from fedtrees.attacks.peeling.regression_peeling import (
    CountedBins,
    agreeing,
    complete_rows,
    first_rows,
    read_off,
)
from fedtrees.attacks.reconstruction.boxes import (
    FeatureBoxes,
    boxes_after_first_tree,
    open_boxes,
)
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.ensemble_vote import (
    BlindEnsemble,
    EvidenceWeight,
    own_rows_differ,
    vote_on_rows,
)
from fedtrees.attacks.reconstruction.targets import (
    Moments,
    narrow_targets,
    place_targets,
    with_targets,
)
from fedtrees.attacks.timberstrike.options import AUTO_TREES, Options
from fedtrees.attacks.timberstrike.sample_from_boxes import fill_boxes, points
from fedtrees.attacks.timberstrike.sequential_assignment import assign_rows_tree_by_tree
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.rows import wide
from fedtrees.core.claims import Claim, Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table

CHAINS = 5  # number of samples of the rows behind bins


def reconstruct_numbers(
    evidence: BoostingObservations,
    adversary_rows: Table | None,
    schema: Schema,
    announced_moments: Moments,
    options: Options,
    rng: np.random.Generator,
) -> Guess:
    """Reconstruct the training rows of a forest that was boosted on squared error.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and statistics from the view.
    adversary_rows : Table or None
        Local data of the adversary, see `fedtrees.attacks.timberstrike.reconstruct.reconstruct`.
    schema : Schema
        Types of the columns.
    announced_moments : Moments
        Mean and standard deviation of the targets, as far as messages announce them.
    options : Options
        Options of the attack.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    guess : Guess
        `Records`, and `LeafCounts` of the first tree if its sums are visible. The diagnostic
        ``trees_read`` is the number of trees used.
    """
    local_rows = Table.empty(schema) if adversary_rows is None else adversary_rows
    if not options.use_prior:
        evidence = evidence.change(population=None)
    is_union = options.scope == "union"
    trees = AUTO_TREES if options.max_trees is None else options.max_trees
    inside = 0 if is_union else len(local_rows)
    evidence, local_rows, schema = with_targets(
        evidence.rounds(trees), local_rows, schema, announced_moments, inside
    )
    basis = ReconstructionContext.of(
        evidence, local_rows, schema, ranges=options.ranges, use_prior=options.use_prior,
        subtract=not is_union,
    ).with_missing_values()  # fmt: skip
    if options.weighs_blind:
        basis = basis.with_recipe(schema, rng)
    assert evidence.row_counts.sizes is not None
    n = evidence.row_counts.sizes[0]
    counts = None
    if basis.sums and basis.sums[0].h is not None and not evidence.is_foreign(0):
        counts = first_counts(evidence, basis.sums[0], 0 if is_union else len(local_rows), is_union)
    if counts_bins(evidence) and not is_union and not options.random_leaf:
        samples, group, notes = _from_bins(evidence, basis, local_rows, schema, options, rng)
        weight = EvidenceWeight(1.0, 1.0)
    else:
        samples, group, notes = _from_leaves(evidence, basis, counts, schema, options, rng)
        weight = EvidenceWeight.of(evidence, basis, n)
        # If small bins are suppressed, the sums belong to other rows than those in the leaves. The
        # reconstruction then gets no weight against the prior.
        if evidence.distortion.hides_small_bins and len(evidence.prior_rows(local_rows)):
            weight = replace(weight, trust=0.0)
    notes["trees_read"] = float(len(evidence.trees))
    records = matched_consensus(samples, basis.prior.tolerance(schema), groups=group)
    if options.weighs_blind:
        exact = evidence.distortion.noise is None and not evidence.is_foreign(0)
        rows_differ = exact and own_rows_differ(*_per_leaf(basis))
        blind = BlindEnsemble.of(basis, schema, 1.0, rng, rows_differ=rows_differ)
        records, choice = vote_on_rows(records, samples, blind, weight, rng, n)
        notes |= choice
    count_claims: tuple[Claim, ...] = ()
    if counts is not None:
        claim = LeafCounts(0, evidence.trees[0].leaves, counts.n0[:, None])
        count_claims = (claim,)
        if not is_union:
            count_claims = tuple(
                most_probable_claims(evidence, basis.sums, len(local_rows), [claim])
            )
    return narrow_targets(Guess((Records(records), *count_claims), notes))


def _from_bins(
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    own_rows: Table,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[list[Table], NDArray[np.int64], dict[str, float]]:
    """Return samples of rows that agree with the bins of all trees.

    Also return a group per row within which rows may be matched, and diagnostics.
    """
    assert evidence.observed.cuts is not None
    cuts, d, prior = evidence.observed.cuts, evidence.observed.cuts.n_features, basis.prior
    # The last column of the table is the target. Histograms have bins only for the features.
    counted, own_bins = CountedBins.of(evidence), to_bins(cuts, own_rows.X[:, :d])
    if evidence.observed.own_in_bins and len(own_rows):
        counted.take_out(own_bins, own_rows.X[:, -1].astype(np.float64))
    likely = evidence.prior_rows(own_rows)
    similar_bins = np.column_stack([to_bins(cuts, likely.X[:, :d]), likely.X[:, -1]]).astype(
        np.float64
    )
    decoded, is_certain = read_off(counted, first_rows(counted), similar_bins, rng)
    few = replace(schema, features=schema.features[:-1])
    ranges = prior.low[:-1], prior.high[:-1]
    samples = []
    for _ in range(min(CHAINS, options.chains_for(len(decoded.g)))):
        bins, g = complete_rows(counted, decoded, similar_bins, rng)
        bins = agreeing(counted, decoded, bins, g, rng)
        X = values_in(cuts, few, bins, prior.rows.X[:, :d], ranges, rng)
        samples.append(wide(Table(X, counted.targets(g))))
    # a row has the same gradient in every sample, so that each row is a group by itself
    return samples, np.arange(len(decoded.g)), {"rows_read_off": float(is_certain.sum())}


def _from_leaves(
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    counts: Counts | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[list[Table], NDArray[np.int64], dict[str, float]]:
    """Return samples of rows that follow the trees, groups of rows with equal start, diagnostics.

    Two rows start equal if their targets lie in the same cell and, if the counts of the leaves of
    the first tree are exact, if they are in the same leaf.
    """
    certain = evidence.distortion.exact and evidence.share == 1
    boxes_of_chain, sums = list[FeatureBoxes](), basis.sums
    for _ in range(options.chains_for(sum(evidence.row_counts.sizes or ()))):
        if counts is not None and certain:
            boxes = boxes_after_first_tree(evidence, basis.grid, counts)
            place_targets(boxes, evidence, sums[0], counts.n0)
        else:
            boxes = open_boxes(evidence.row_counts.sizes or (), basis.grid, evidence)
            place_targets(boxes, evidence)
        start = boxes.history
        first = int(counts is not None and certain)
        assign_rows_tree_by_tree(
            evidence, sums, basis.grid, basis.prior, boxes, options, rng, first
        )
        boxes_of_chain.append(boxes)
    notes = {"residual_last_tree": boxes.residual[-1]} if boxes.residual else {}

    def draw(boxes: FeatureBoxes, rng: np.random.Generator) -> Table:
        return points(options.points, boxes, basis.grid, basis.prior, schema, rng)

    return fill_boxes(boxes_of_chain, draw, rng), start, notes


def _per_leaf(basis: ReconstructionContext) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Return victims' rows and prior rows per leaf of the first tree, empty without counts."""
    first = basis.sums[:1]
    if not first or first[0].h is None:
        return [], []
    rows = np.maximum(np.rint(first[0].h), 0).astype(np.int64)
    return [rows[:, None]], [first[0].prior_counts[0][:, None]]
