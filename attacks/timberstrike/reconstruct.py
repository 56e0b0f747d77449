"""TimberStrike for classes: from the evidence of a view to a guess of the victims' rows.

Histograms are decoded bin by bin (`histograms`). Otherwise the class counts of the leaves of the
first tree are solved for, and the rows are followed through the later trees
(`sequential_assignment`), several times independently. A matched consensus merges the
reconstructions. Finally the result is weighed against draws from the prior
(`fedtrees.attacks.reconstruction.ensemble_vote`), because a reconstruction from weak evidence can
be worse than the blind baseline.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_posterior import most_probable_claims
from fedtrees.attacks.counts.leaf_sums import (
    Counts,
    LeafSums,
    first_gradient,
    reliability_of,
    sums_of_counts,
)
from fedtrees.attacks.counts.leaf_values import first_counts, left_out, victims_of
from fedtrees.attacks.observations.boosting import BoostingObservations, Level
from fedtrees.attacks.reconstruction.boxes import (
    FeatureBoxes,
    Grid,
    Rest,
    boxes_after_first_tree,
    boxes_by_class,
    open_boxes,
    stack_boxes,
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
    Rows,
    counts_by_bins,
    counts_of_bins,
    rows_from_histograms,
)
from fedtrees.attacks.timberstrike.options import AUTO_TREES, Options
from fedtrees.attacks.timberstrike.sample_from_boxes import points, told_rows
from fedtrees.attacks.timberstrike.sequential_assignment import follow
from fedtrees.core.guess import Guess, LeafCounts, Records
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.consensus import matched_consensus

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
MOST_CELLS = 2**21  # cells of boxes that are converted to rows at once, to limit memory


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
        evidence = replace(evidence, population=None)
    bin_by_bin, is_union = _reads_bins(evidence, options), options.scope == "union"
    n_rounds = options.max_trees
    # Rows of one round only: later rounds use other samples, whose histograms cannot be combined.
    if bin_by_bin and evidence.subsample < 1:
        n_rounds = min(1, len(evidence.trees) if n_rounds is None else n_rounds)
    if n_rounds is None:
        n_rounds = len(evidence.trees) if bin_by_bin else AUTO_TREES
    evidence = evidence.rounds(n_rounds)
    n_trees, outputs = len(evidence.trees), evidence.outputs
    to_sum = outputs * AUTO_TREES if options.max_trees is None else n_trees
    basis = ReconstructionContext.of(
        evidence, local_rows, schema, min(n_trees, to_sum),
        ranges=options.ranges, use_prior=options.use_prior, subtract=not is_union,
    ).with_missing_values()  # fmt: skip

    def suited(basis: ReconstructionContext) -> ReconstructionContext:
        return basis.with_recipe(schema, rng) if options.weighs_blind else basis

    notes: dict[str, float] = {"trees_read": float(n_trees)}
    if n_trees == 0:
        basis = suited(basis)
        boxes = open_boxes(_without_trees(evidence, local_rows, is_union), basis.grid, evidence)
        records = points(options.points, boxes, basis.grid, basis.prior, schema, rng)
        return Guess((Records(records),), notes)
    first = range(0 if evidence.is_foreign(0) else outputs)
    counts = _first_counts(evidence, basis, local_rows, options)
    rest = None
    if evidence.share < 1 and counts:
        rest = left_out(evidence, counts, basis.sums[0], len(local_rows), is_union)
    inside = len(local_rows) if evidence.own_inside else 0
    n = int((counts[0].n0 + counts[0].n1).sum()) if counts else 0
    share = 1.0 if is_union or rest is not None else share_of(n)
    read = None
    informed = len(evidence.prior_rows(local_rows)) > 0
    if bin_by_bin and (not informed or reliability_of(evidence, n) >= LEAST_RELIABLE):
        read = rows_from_histograms(
            evidence, local_rows, basis.prior, schema, options, (counts, share), rng
        )
    # The recipe of the prior is estimated from local rows, which takes time. It is not needed if
    # all rows were decoded.
    basis = suited(basis) if read is None or len(read.paired) or rest is not None else basis
    if read is None:
        chosen = _follow_rows(evidence, basis, counts, share, rest, schema, options, rng)
    elif (
        rest is None
        and options.weighs_blind
        and len(read.paired)
        and not (informed or evidence.sketched)
    ):
        chosen = _follow_likely(read, evidence, len(basis.sums), schema, options, share, rng)
    else:
        chosen = read
    sure, records, more = chosen.sure, chosen.paired, dict(chosen.notes)
    if options.weighs_blind:
        inside += len(sure) + (0 if rest is None or read is None else int(rest[0].sum()))
        records, choice = _weigh_reconstruction(
            chosen, evidence, basis, counts, (inside, share), schema, rng
        )
        more |= choice
    records = Table.concat([sure, records])
    if read is not None and rest is not None:
        records = Table.concat([records, _anywhere(evidence, basis, rest, schema, options, rng)])
    notes |= more
    if counts:
        notes["first_tree_residual"] = max(c.residual for c in counts)
    tables = [_victims_only(evidence, t, counts[t], basis.sums[t], is_union) for t in first]
    if not (is_union or options.random_leaf or (bin_by_bin and counts_by_bins(evidence))):
        tables = most_probable_claims(evidence, basis.sums, len(local_rows), tables)
    return Guess((Records(records), *tables), notes)


def _first_counts(
    evidence: BoostingObservations, basis: ReconstructionContext, own_rows: Table, options: Options
) -> list[Counts]:
    """Return the class counts of the leaves of the first round, without local rows.

    With ``scope="union"`` local rows are included.
    """
    is_union = options.scope == "union"
    if _reads_bins(evidence, options) and counts_by_bins(evidence):
        known_rows = own_rows if evidence.own_in_bins and not is_union else own_rows.take([])
        total = None if evidence.share < 1 else victims_of(evidence, len(own_rows), is_union)
        return counts_of_bins(evidence, known_rows, total, basis.prior)
    first = range(0 if evidence.is_foreign(0) else evidence.outputs)
    return [first_counts(evidence, basis.sums[t], len(own_rows), is_union, t) for t in first]


def _follow_likely(
    read: Rows,
    evidence: BoostingObservations,
    trees: int,
    schema: Schema,
    options: Options,
    share: float,
    rng: np.random.Generator,
) -> Rows:
    """Follow rows like those of the first tree's bins through all trees.

    An adversary without local rows, rows of the population and sketches knows nothing else about
    which values exist and which of them occur together. Decoded rows are subtracted from every
    sum. If sketches give the values, the pairs of bins are half a point of RA better than
    this (breast cancer, Pima).
    """
    evidence = replace(evidence, likely=Table.concat(read.samples[:LIKELY_SAMPLES]))
    basis = ReconstructionContext.of(evidence, read.sure, schema, trees, ranges=options.ranges)
    basis = basis.with_missing_values().with_recipe(schema, rng)
    counts = _first_counts(evidence, basis, read.sure, options)
    followed = _follow_rows(evidence, basis, counts, share, None, schema, options, rng)
    return replace(followed, sure=read.sure, notes=followed.notes | read.notes)


def _follow_rows(
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    counts: Sequence[Counts],
    share: float,
    rest: Rest | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> Rows:
    """Follow the rows from the first tree on by the sums of all leaves."""
    trees = len(basis.sums) // evidence.outputs
    evidence = replace(evidence.rounds(trees), level=_without_bins(evidence), histograms=None)
    few, sums, of_them = with_fewer_rows(evidence, basis.sums, counts, share)
    part = replace(basis, sums=sums)
    worlds, notes = _follow_chains(few, part, of_them, rest, schema, options, rng)
    block = _initial_boxes(few, basis.grid, of_them, rest).history
    merged = matched_consensus(worlds, basis.prior.tolerance(schema), groups=block)
    return Rows(Table.empty(schema), told_rows(merged, basis.prior), worlds, notes)


def _without_bins(evidence: BoostingObservations) -> Level:
    return "statistics" if evidence.level == "histograms" else evidence.level


def _weigh_reconstruction(
    chosen: Rows,
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    counts: Sequence[Counts],
    of: tuple[int, float],
    schema: Schema,
    rng: np.random.Generator,
) -> tuple[Table, dict[str, float]]:
    """Weigh the reconstruction of rows that were not decoded against draws from the prior.

    ``of`` is the number of rows that are certain, and the share of the remaining rows that was
    reconstructed. If exact counts show that the victims' rows are distributed differently from the
    prior, draws from the prior get no weight.
    """
    strange = evidence.noise is None and own_rows_differ(
        [_classes(c.n0, c.n1, evidence) for c in counts],
        [_classes(*s.prior_counts, evidence) for s in basis.sums[: len(counts)]],
    )
    records, (inside, share) = chosen.paired, of
    rows = None if evidence.n_rows is None else round(share * max(evidence.n_rows - inside, 0))
    if chosen.wide:
        weight = EvidenceWeight(1.0 if basis.prior.from_sketches else PAIRS, 1.0)
    else:
        weight = EvidenceWeight.of(evidence, basis, round(len(records) / share))
    blind = BlindEnsemble.of(basis, schema, share, rng, strange=strange)
    submission, notes = vote_on_rows(records, chosen.samples, blind, weight, rng, rows)
    return told_rows(submission, basis.prior), notes


def _classes(
    n0: NDArray[np.int64], n1: NDArray[np.int64], evidence: BoostingObservations
) -> NDArray[np.int64]:
    """Return rows per class and leaf, int64, shape (2, J).

    If small bins are suppressed, leaves are not reliable. The rows are then summed over the leaves,
    shape (2, 1).
    """
    rows = np.stack([n0, n1])
    return rows.sum(axis=1, keepdims=True) if evidence.suppressed else rows


def _victims_only(
    evidence: BoostingObservations, t: int, counts: Counts, sums: LeafSums, is_union: bool
) -> LeafCounts:
    """Return the victims' class counts in the leaves of a tree of the first round."""
    own_counts = (sums.own_n0, sums.own_n1) if is_union and evidence.own_inside else (0, 0)
    n0, n1 = np.maximum(counts.n0 - own_counts[0], 0), np.maximum(counts.n1 - own_counts[1], 0)
    return LeafCounts(t, evidence.trees[t].leaves, np.stack([n0, n1], axis=1))


def _without_trees(evidence: BoostingObservations, own_rows: Table, is_union: bool) -> list[int]:
    """Return class counts from the declared number of rows and the base score."""
    inside = len(own_rows) if evidence.own_inside and not is_union else 0
    total = 0 if evidence.n_rows is None else evidence.n_rows - inside
    start = evidence.start(1).astype(np.float64)
    odds = np.exp(start[0]) if start.ndim == 2 else np.array([1.0, np.exp(start[0])])
    share = odds / odds.sum()
    if np.ptp(share) == 0 and len(own_rows):
        share = np.bincount(own_rows.y, minlength=len(share)) / len(own_rows)
    return largest_remainder(share, max(total, 0)).tolist()


def _reads_bins(evidence: BoostingObservations, options: Options) -> bool:
    """Return whether histograms are decoded bin by bin."""
    if evidence.level != "histograms" or options.random_leaf:
        return False
    return evidence.own_in_bins or options.scope != "union"


def _anywhere(
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    rest: Rest,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> Table:
    """Return rows that were in no tree of the first round: a consensus of draws from the prior."""
    boxes = open_boxes(rest[0].tolist(), basis.grid, evidence)
    parts = (boxes, basis.grid, basis.prior, schema)
    chains = options.chains_for(len(boxes.y))
    tables = [points(options.points, *parts, rng) for _ in range(chains)]
    return matched_consensus(tables, basis.prior.tolerance(schema), groups=boxes.history)


def _follow_chains(
    evidence: BoostingObservations,
    basis: ReconstructionContext,
    counts: Sequence[Counts],
    rest: Rest | None,
    schema: Schema,
    options: Options,
    rng: np.random.Generator,
) -> tuple[list[Table], dict[str, float]]:
    """Follow the rows through the trees, once per chain."""
    boxes_of_chain, notes = list[FeatureBoxes](), {}
    grid, prior, sums = basis.grid, basis.prior, basis.sums
    several = evidence.outputs > 1
    if several and counts:
        exact = (
            sums_of_counts(c, s, first_gradient(evidence, t))
            for t, (c, s) in enumerate(zip(counts, sums, strict=False))
        )
        sums = [*exact, *sums[evidence.outputs :]]
    block = _initial_boxes(evidence, grid, counts, rest).history
    for _ in range(options.chains_for(len(block))):
        boxes = _initial_boxes(evidence, grid, counts, rest)
        follow(evidence, sums, grid, prior, boxes, options, rng, 0 if several or not counts else 1)
        boxes_of_chain.append(boxes)
    at_once = max(1, MOST_CELLS // max(boxes.lo.size, 1))
    tables = []
    for first in range(0, len(boxes_of_chain), at_once):
        some = boxes_of_chain[first : first + at_once]
        rows = points(options.points, stack_boxes(some), grid, prior, schema, rng)
        tables += [rows.take(part) for part in np.split(np.arange(len(rows)), len(some))]
    if boxes.residual:
        notes = {
            "residual_second_tree": boxes.residual[0],
            "residual_last_tree": boxes.residual[-1],
        }
    return tables, notes


def _initial_boxes(
    evidence: BoostingObservations, grid: Grid, counts: Sequence[Counts], rest: Rest | None
) -> FeatureBoxes:
    """Return the boxes of the rows after the first round, unconstrained if there are no counts."""
    if not counts:
        return open_boxes(evidence.sizes or (0, 0), grid, evidence)
    if evidence.outputs > 1:
        return boxes_by_class(evidence, grid, counts, rest)
    return boxes_after_first_tree(evidence, grid, counts[0], rest)
