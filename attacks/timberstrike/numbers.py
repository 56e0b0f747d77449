"""Rows with numeric targets from trees of squared error.

Every row has hessian 1, so that counts of leaves are certain, and its first gradient is its target
but for the base score. A target is one more column (`fedtrees.guessing.targets`), of which every
row is in some cell from the start; rows then go to leaves so that sums agree, as classes do. Where
the rows of bins can be counted, they are read off these (`fedtrees.attacks.peeling.numbers`).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.boxes import Boxes, boxes_after_first_tree, open_boxes, stacked
from fedtrees.attacks.evidence.counts import Counts, counts_bins
from fedtrees.attacks.evidence.leaf_posterior import most_probable_claims
from fedtrees.attacks.evidence.submission import Blind, Weight, own_rows_differ, submitted
from fedtrees.attacks.evidence.targets import Moments, narrowed, place_targets, with_targets
from fedtrees.attacks.evidence.values import first_counts
from fedtrees.attacks.peeling.numbers import (
    CountedBins,
    agreeing,
    completed,
    first_rows,
    read_off,
)
from fedtrees.attacks.peeling.values import to_bins, values_in
from fedtrees.attacks.timberstrike.options import AUTO_TREES, Options
from fedtrees.attacks.timberstrike.points import points
from fedtrees.attacks.timberstrike.sequence import follow
from fedtrees.core.guess import Claim, Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.targets import wide

CHAINS = 5  # samples of rows in bins
MOST_CELLS = 2**21  # of boxes that become rows at once: memory


def reconstruct_numbers(
    evidence: Evidence,
    own: Table | None,
    schema: Schema,
    told: Moments,
    options: Options,
    rng: np.random.Generator,
) -> Guess:
    """Reconstruct the rows behind a forest boosted on squared error.

    Parameters as of `reconstruct`; ``told`` is what else is known of the victims' targets.
    """
    own = Table.empty(schema) if own is None else own
    if not options.use_prior:
        evidence = replace(evidence, population=None)
    is_union = options.scope == "union"
    trees = AUTO_TREES if options.max_trees is None else options.max_trees
    inside = 0 if is_union else len(own)
    evidence, own, schema = with_targets(evidence.rounds(trees), own, schema, told, inside)
    basis = Basis.of(
        evidence, own, schema, ranges=options.ranges, use_prior=options.use_prior,
        subtract=not is_union,
    ).with_missing_values()  # fmt: skip
    if options.weighs_blind:
        basis = basis.with_recipe(schema, rng)
    assert evidence.sizes is not None
    n = evidence.sizes[0]
    counts = None
    if basis.sums and basis.sums[0].h is not None and not evidence.is_foreign(0):
        counts = first_counts(evidence, basis.sums[0], 0 if is_union else len(own), is_union)
    if counts_bins(evidence) and not is_union and not options.random_leaf:
        worlds, group, notes = _from_bins(evidence, basis, own, schema, options, rng)
        weight = Weight(1.0, 1.0)
    else:
        worlds, group, notes = _from_leaves(evidence, basis, counts, schema, options, rng)
        weight = Weight.of(evidence, basis, n)
        # sums are of other rows than those in the leaves
        if evidence.suppressed and len(evidence.prior_rows(own)):
            weight = replace(weight, trust=0.0)
    notes["trees_read"] = float(len(evidence.trees))
    records = matched_consensus(worlds, basis.prior.tolerance(schema), groups=group)
    if options.weighs_blind:
        exact = evidence.noise is None and not evidence.is_foreign(0)
        strange = exact and own_rows_differ(*_per_leaf(basis))
        blind = Blind.of(basis, schema, 1.0, rng, strange=strange)
        records, choice = submitted(records, worlds, blind, weight, rng, n)
        notes |= choice
    told: tuple[Claim, ...] = ()
    if counts is not None:
        claim = LeafCounts(0, evidence.trees[0].leaves, counts.n0[:, None])
        told = (claim,)
        if not is_union:
            told = tuple(most_probable_claims(evidence, basis.sums, len(own), [claim]))
    return narrowed(Guess((Records(records), *told), notes))


def _from_bins(
    evidence: Evidence,
    basis: Basis,
    own_rows: Table,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[list[Table], NDArray[np.int64], dict[str, float]]:
    """Return samples of rows that have the bins of all trees, and which go by their target."""
    assert evidence.cuts is not None
    cuts, d, prior = evidence.cuts, evidence.cuts.n_features, basis.prior
    counted, own_bins = CountedBins.of(evidence), to_bins(cuts, own_rows.X[:, :d])
    if evidence.own_in_bins and len(own_rows):
        counted.take_out(own_bins, own_rows.X[:, -1].astype(np.float64))
    likely = evidence.prior_rows(own_rows)
    similar_bins = np.column_stack([to_bins(cuts, likely.X[:, :d]), likely.X[:, -1]]).astype(
        np.float64
    )
    read_rows, sure = read_off(counted, first_rows(counted), similar_bins, rng)
    few = replace(schema, features=schema.features[:-1])
    ranges = prior.low[:-1], prior.high[:-1]
    worlds = []
    for _ in range(min(CHAINS, options.chains_for(len(read_rows.g)))):
        bins, g = completed(counted, read_rows, similar_bins, rng)
        bins = agreeing(counted, read_rows, bins, g, rng)
        X = values_in(cuts, few, bins, prior.own.X[:, :d], ranges, rng)
        worlds.append(wide(Table(X, counted.targets(g))))
    # a row has the same gradient in every sample
    return worlds, np.arange(len(read_rows.g)), {"rows_read_off": float(sure.sum())}


def _from_leaves(
    evidence: Evidence,
    basis: Basis,
    counts: Counts | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[list[Table], NDArray[np.int64], dict[str, float]]:
    """Return samples of rows that follow the trees, and which of them start alike.

    That is with a target in the same cell, and where leaves of the first tree are counted for
    certain, in the same of these.
    """
    certain = evidence.noise is None and evidence.share == 1 and not evidence.suppressed
    boxes_of_chain, sums = list[Boxes](), basis.sums
    for _ in range(options.chains_for(sum(evidence.sizes or ()))):
        if counts is not None and certain:
            boxes = boxes_after_first_tree(evidence, basis.grid, counts)
            place_targets(boxes, evidence, sums[0], counts.n0)
        else:
            boxes = open_boxes(evidence.sizes or (), basis.grid, evidence)
            place_targets(boxes, evidence)
        start = boxes.history
        first = int(counts is not None and certain)
        follow(evidence, sums, basis.grid, basis.prior, boxes, options, rng, first)
        boxes_of_chain.append(boxes)
    notes = {"residual_last_tree": boxes.residual[-1]} if boxes.residual else {}
    return _worlds(boxes_of_chain, basis, schema, options, rng), start, notes


def _worlds(
    boxes_of_chain: list[Boxes],
    basis: Basis,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> list[Table]:
    """Return rows in the boxes of every chain."""
    at_once = max(1, MOST_CELLS // max(boxes_of_chain[0].lo.size, 1))
    tables = []
    for first in range(0, len(boxes_of_chain), at_once):
        some = boxes_of_chain[first : first + at_once]
        rows = points(options.points, stacked(some), basis.grid, basis.prior, schema, rng)
        tables += [rows.take(part) for part in np.split(np.arange(len(rows)), len(some))]
    return tables


def _per_leaf(basis: Basis) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Return the victims' and the prior's rows per leaf of the first tree, if counts are seen."""
    first = basis.sums[:1]
    if not first or first[0].h is None:
        return [], []
    rows = np.maximum(np.rint(first[0].h), 0).astype(np.int64)
    return [rows[:, None]], [first[0].prior_counts[0][:, None]]
