"""Reconstruct rows from bin histograms: decode single rows, then assemble the remaining ones.

The histograms of the first tree give, for every deepest visible node, the number of victims of each
class in each bin of each feature, by the same two equations as for leaves. A peeling decoder
(`fedtrees.attacks.peeling`) first recovers rows whose gradients identify them.

The remaining rows of a node and class are assembled from the bins of their features. Histograms do
not say which bins belong to the same row. `pair_columns` combines them with the dependence
structure of similar local rows (an empirical copula, Nelsen 2006). `swap_towards` then exchanges
values between rows, so that the rows become more similar to local rows of their class.

This goes beyond Di Gennaro et al. (2025). Their attack on NVFlare uses only the model, although
clients receive the summed histograms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import Counts, initial_gradient
from fedtrees.attacks.observations.boosting import BoostingObservations, gradients
from fedtrees.attacks.observations.columns import columns_in
from fedtrees.attacks.peeling.bin_values import sketched_values, to_bins, values_in
from fedtrees.attacks.peeling.fingerprints import marked_rows
from fedtrees.attacks.peeling.peel import peel
from fedtrees.attacks.peeling.rows import (
    BinnedForest,
    ReadRows,
    Residual,
    take_out,
    terminal_histograms,
)
from fedtrees.attacks.reconstruction.prior import Prior
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.attacks.solvers.sampling import remainder, uniform
from fedtrees.attacks.timberstrike.bins import BinCountEstimate, likely_bins, seen_of
from fedtrees.attacks.timberstrike.options import Options
from fedtrees.attacks.timberstrike.sample_from_boxes import rows_with_known_values
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.schema import Schema, Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, from_fixed, to_fixed
from fedtrees.trees.routing import Routes

Ints = NDArray[np.int32]

# More swaps undo the combination by ranks. Reconstruction accuracy of a client of nvflare-hist with
# 0, 3, 10 and 100 swaps: Pima .894 .899 .898 .898, breast cancer .764 .762 .760 .742, Obesity
# .868 .868 .866 .841.
SWAPS_PER_ROW = 10
# Local rows that swaps compare with. Memory is 2 bytes per pair of a victim and a local row.
MOST_OWN = 2000
# The weight of a local row falls by the factor exp(-1.5) per feature that is out of tolerance.
MISMATCH_COST = 1.5


def similar_rows_of_blocks(
    evidence: BoostingObservations,
    forest: BinnedForest,
    own_rows: Table,
    y: NDArray[np.int64],
    block: NDArray[np.int64],
) -> list[NDArray[np.float32]]:
    """Return local rows similar to each block: of its label in its node, else of its label."""
    cuts = evidence.observed.cuts
    assert cuts is not None
    cell = forest.route(to_bins(cuts, own_rows.X))[0] if len(own_rows) else np.zeros((0, 1))
    of_blocks = []
    for at in np.unique(block, return_index=True)[1].tolist():
        here = int(block[at]) // max(evidence.outputs, 2)
        of_class = own_rows.y == y[at]
        near = of_class & (cell == here).any(axis=1)
        of_blocks.append(own_rows.X[near if near.any() else of_class])
    return of_blocks


def pair_columns(part: Ints, similar_rows: NDArray[np.float32], rng: np.random.Generator) -> Ints:
    """Combine the columns of a block to rows with the dependence structure of similar rows.

    As many similar rows as the block has are drawn with replacement. In every column, the row with
    the r-th smallest value gets the r-th smallest bin of the block (an empirical copula, Nelsen
    2006). Without similar rows, columns are permuted independently.
    """
    if not len(similar_rows):
        return rng.permuted(part, axis=0)
    # Ties within a column are broken at random, so that equal values do not fix the order.
    drawn = similar_rows[rng.integers(0, len(similar_rows), len(part))]
    out = np.empty_like(part)
    for f in range(part.shape[1]):
        order = np.lexsort((rng.random(len(part)), drawn[:, f]))
        out[order, f] = part[:, f]
    return out


def sorted_by_label(own_rows: Table, rng: np.random.Generator) -> Table:
    """Return local rows sorted by label, a random `MOST_OWN` of them if there are more."""
    if len(own_rows) > MOST_OWN:
        own_rows = own_rows.take(rng.choice(len(own_rows), MOST_OWN, replace=False))
    return own_rows.take(np.argsort(own_rows.y, kind="stable"))


@inner_kernel
def _differs(a, b, tolerance):  # type: ignore[no-untyped-def]
    """Return 0 if two values agree, else 1. A missing value (NaN) agrees with no value."""
    return 0 if abs(a - b) <= tolerance else 1


@inner_kernel
def _mismatches(X, own_rows, tolerance):  # type: ignore[no-untyped-def]
    """Count the features in which each row differs from each local row, uint16, shape (n, r)."""
    out = np.zeros((X.shape[0], own_rows.shape[0]), dtype=np.uint16)
    for i in range(X.shape[0]):
        for r in range(own_rows.shape[0]):
            for f in range(X.shape[1]):
                out[i, r] += _differs(X[i, f], own_rows[r, f], tolerance[f])
    return out


@kernel
def swap_towards(X, y, block, own_rows, start, tolerance, seed):  # type: ignore[no-untyped-def]
    """Swap single features between rows of a block by Metropolis moves, in place.

    The target density is the product of the affinities of all rows. The affinity of a row is the
    sum of the weights of local rows of its label. Local rows are sorted by label, with class c in
    ``start[c]:start[c + 1]``.
    """
    n, d = X.shape
    state = np.array([seed], dtype=np.uint64)
    weight = np.exp(-MISMATCH_COST * np.arange(d + 1))
    bad = _mismatches(X, own_rows, tolerance)
    score = np.empty(n)
    for i in range(n):
        total = 1e-9
        for r in range(start[y[i]], start[y[i] + 1]):
            total += weight[bad[i, r]]
        score[i] = np.log(total)
    # rows of a block are adjacent
    first, size = np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64)
    for i in range(1, n):
        first[i] = first[i - 1] if block[i] == block[i - 1] else i
    for i in range(n - 2, -1, -1):
        size[i] = size[i + 1] if block[i] == block[i + 1] else i - first[i] + 1
    size[n - 1] = n - first[n - 1]
    for _ in range(SWAPS_PER_ROW * n):
        i = remainder(state, n)
        k = first[i] + remainder(state, size[i])
        f = remainder(state, d)
        a, b = X[i, f], X[k, f]
        if a == b:
            continue
        # Both rows have the same label, so that the same local rows count for both. The exchange
        # changes the mismatches of row i and row k by opposite amounts.
        at_i, at_k = 1e-9, 1e-9
        for r in range(start[y[i]], start[y[i] + 1]):
            step = _differs(b, own_rows[r, f], tolerance[f]) - _differs(
                a, own_rows[r, f], tolerance[f]
            )
            at_i += weight[bad[i, r] + step]
            at_k += weight[bad[k, r] - step]
        gain = np.log(at_i) + np.log(at_k) - score[i] - score[k]
        if gain >= 0.0 or uniform(state) < np.exp(gain):
            for r in range(start[y[i]], start[y[i] + 1]):
                step = _differs(b, own_rows[r, f], tolerance[f]) - _differs(
                    a, own_rows[r, f], tolerance[f]
                )
                bad[i, r] += step
                bad[k, r] -= step
            X[i, f], X[k, f] = b, a
            score[i], score[k] = np.log(at_i), np.log(at_k)


Floats = NDArray[np.float64]
# Bins of the rows of each block, and label and block number of every row.
Blocks = tuple[list[Ints], NDArray[np.int64], NDArray[np.int64]]

# Largest error of a sum, in units of the gradient, at which gradients still identify rows.
MOST_SLACK = 0.02


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The reconstructed rows.

    Attributes
    ----------
    certain : Table
        Rows that were decoded from exact sums.
    uncertain : Table
        The remaining rows: the consensus of `samples`.
    samples : list of Table
        Independent reconstructions of the remaining rows.
    notes : dict of str to float
        Diagnostics of the attack.
    samples_include_noise : bool
        Whether the samples differ as much as the noise on the sums implies. They are then trusted
        independently of the size of the noise.
    """

    certain: Table
    uncertain: Table
    samples: list[Table]
    notes: dict[str, float]
    samples_include_noise: bool = False


def rows_from_histograms(
    evidence: BoostingObservations,
    local_rows: Table,
    prior: Prior,
    schema: Schema,
    options: Options,
    counts: Sequence[Counts],
    share: float,
    rng: np.random.Generator,
) -> Reconstruction:
    """Reconstruct rows from the histograms of all trees.

    For more than two classes there is no peeling. The rows of each class are then assembled from
    the tree of this class in the first round.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with histograms.
    local_rows : Table
        Local data of the adversary. It is subtracted from the histograms if they contain it and
        ``options.scope`` is "victims".
    prior : Prior
        Local rows, rows of the population, or likely rows of the victims.
    schema : Schema
        Types of the columns.
    options : Options
        Options of the attack.
    counts : sequence of Counts
        Class counts of the leaves of the first round.
    share : float
        Share of the remaining rows to assemble. It is less than 1 for large tables, to limit the
        work.
    rng : numpy.random.Generator
        The only source of randomness.

    Returns
    -------
    Reconstruction
        The victims' rows, or the rows of all clients with ``scope="union"``.
    """
    cuts = evidence.observed.cuts
    assert cuts is not None
    n_victims = int((counts[0].n0 + counts[0].n1).sum())
    if evidence.outputs > 1:
        evidence = evidence.rounds(1)
    forest, left = binned_forest(evidence, schema.complete)
    subtracts = options.scope == "victims" and evidence.observed.own_in_bins
    decoded, notes = _decoded(evidence, forest, left, local_rows if subtracts else None)

    def values(bins: Ints) -> NDArray[np.float32]:
        return values_in(cuts, schema, bins, prior.rows.X, (prior.low, prior.high), rng)

    X = values(decoded.bins)
    if prior.from_sketches:
        known_values = sketched_values(
            cuts, decoded.bins, columns_in(prior.rows), schema.categorical
        )
        X = np.where(np.isnan(known_values), X, known_values)
    certain = Table(X, decoded.y)
    # The remaining rows: bins per node and class first, then combinations of them.
    near = sorted_by_label(prior.rows, rng)
    if slack_of(evidence) == 0:
        each = _unpaired(evidence, forest, left)
    else:
        known_rows = Table.concat([local_rows, certain]) if subtracts else certain
        declared = evidence.row_counts.n_rows is not None and evidence.share == 1
        total = n_victims - len(certain) if declared else None
        leaves = () if counts_by_bins(evidence) else _others(evidence, counts, certain)
        each = _likely(evidence, forest, known_rows, leaves, total, prior)
    unpaired, y, block = _fewer(_blocks(evidence.outputs, each), share)
    chains = options.chains_for(round(share * n_victims))
    # Without local rows and rows of the population, the prior consists of likely rows. Their
    # columns are independent, so that they contain no information about combinations.
    has_pairs = bool(len(prior.rows) and len(evidence.prior_rows(local_rows)))
    similar_rows = similar_rows_of_blocks(
        evidence, forest, prior.rows if has_pairs else prior.rows.take([]), y, block
    )
    paired = [
        pair_columns(part, rows, rng)
        for _ in range(chains)
        for part, rows in zip(unpaired, similar_rows, strict=True)
    ]
    none = np.zeros((0, cuts.n_features), dtype=np.int32)
    samples, tolerance = [], prior.tolerance(schema)
    start = np.searchsorted(near.y, np.arange(prior.classes + 1))
    for X in np.split(values(np.concatenate([none, *paired])), chains):
        if has_pairs and len(y):
            seed = np.uint64(rng.integers(2**63))
            swap_towards(X, y, block, near.X, start, tolerance, seed)
        samples.append(Table(X, y))
    uncertain = rows_with_known_values(matched_consensus(samples, tolerance, groups=block), prior)
    notes["paired_rows"] = float(len(uncertain))
    distortion = evidence.distortion
    include_noise = not (distortion.hides_small_bins or distortion.marks_rows)
    return Reconstruction(certain, uncertain, samples, notes, include_noise)


def _decoded(
    evidence: BoostingObservations,
    forest: BinnedForest,
    left: Residual,
    local_rows: Table | None,
) -> tuple[ReadRows, dict[str, float]]:
    """Decode the rows that their gradients identify, and subtract them from the sums, in place.

    Local rows in the sums (`local_rows`) are subtracted first. This is possible only if the sums
    are nearly exact. Otherwise they are known rows of the estimate in `_likely`.
    """
    cuts, slack = evidence.observed.cuts, slack_of(evidence)
    assert cuts is not None
    if local_rows is not None and slack <= MOST_SLACK:
        _take_out(evidence, forest, left, to_bins(cuts, local_rows.X), local_rows.y)
    if evidence.outputs == 1 and slack <= MOST_SLACK:
        peeled = peel(forest, left)
        notes = {"peeled_rows": len(peeled.y), "checksum_failures": peeled.rejected}
        return peeled, {key: float(n) for key, n in notes.items()}
    if evidence.constant_hessian and evidence.distortion.row_law is not None:
        marked = marked_rows(forest, left, evidence.distortion.row_law)
        return marked, {"marked_rows": float(len(marked.y))}
    bins = np.zeros((0, cuts.n_features), dtype=np.int32)
    return ReadRows(bins, np.zeros(0, dtype=np.int64), np.zeros(0)), {}


def _others(
    evidence: BoostingObservations, counts: Sequence[Counts], decoded: Table
) -> list[Counts]:
    """Subtract decoded rows from the counts of the leaves of the first round."""
    nodes = Routes.of(evidence.trees[: len(counts)]).apply(decoded.X)
    remaining = []
    for t, (c, node) in enumerate(zip(counts, nodes.T, strict=True)):
        leaf = np.searchsorted(evidence.trees[t].leaves, node)
        of_class = decoded.y == evidence.class_of(t)
        n = np.maximum(c.n0 + c.n1 - np.bincount(leaf, minlength=len(c.n0)), 0)
        n1 = np.clip(c.n1 - np.bincount(leaf[of_class], minlength=len(c.n0)), 0, n)
        remaining.append(Counts(n - n1, n1, c.residual))
    return remaining


def counts_by_bins(evidence: BoostingObservations) -> bool:
    """Return whether counts of leaves are estimated from bins instead of the sums of the leaves.

    This is the case if the sums of bins are inexact, unless noise was added to the gradients of
    single rows. Such noise is the same in bins and leaves.
    """
    return slack_of(evidence) > 0 and not evidence.distortion.marks_rows


def slack_of(evidence: BoostingObservations) -> float:
    """Return the largest error of the sums of a bin, in units of the gradient, 0 if exact.

    It is infinite if sums cannot identify rows, because small bins are suppressed or because all
    hessians are 1.
    """
    if evidence.distortion.hides_small_bins or evidence.constant_hessian:
        return np.inf
    return max(float(np.max(hist.errors)) for hist in evidence.observed.histograms or ())


def binned_forest(
    evidence: BoostingObservations, complete: NDArray[np.bool_]
) -> tuple[BinnedForest, Residual]:
    """Flatten the trees and collect the histograms of the deepest visible nodes.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with histograms.
    complete : bool array, shape (d,)
        Features without missing values.

    Returns
    -------
    forest : BinnedForest
        All trees, with splits between bins.
    left : Residual
        Sums of the cells, in fixed point, from which decoded rows are subtracted.
    """
    forest, sums, totals, errors = terminal_histograms(evidence)
    levels, off = max(map(_levels, evidence.trees)), np.ldexp(errors, FIXED_POINT_BITS)
    sums, totals = to_fixed(sums), to_fixed(totals)
    return forest, Residual.of(sums, totals, forest.offsets, off, complete, levels=levels)


def _levels(tree: Tree) -> int:
    """Return the number of splits above the deepest leaf."""
    depth = np.zeros(len(tree), dtype=np.int64)
    for node in np.flatnonzero(tree.feature >= 0):  # children come after their parent
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    return int(depth.max())


def _take_out(
    evidence: BoostingObservations,
    forest: BinnedForest,
    left: Residual,
    bins: Ints,
    y: NDArray[np.int64],
) -> None:
    """Subtract local rows from the histograms, in place.

    With several outputs, the forest has been reduced to the first round.
    """
    if evidence.outputs == 1:
        take_out(forest, left, bins, y)
        return
    columns, cells = forest.columns(bins), forest.route(bins)[0]
    for k in range(evidence.outputs):
        gh = to_fixed(np.stack(gradients(evidence.start(len(y)), y, output=k), axis=1))
        np.subtract.at(left.sums, (cells[:, k, None], columns), gh[:, None])
        np.subtract.at(left.totals, cells[:, k], gh)


def _blocks(outputs: int, each: Iterator[tuple[Ints, int, int]]) -> Blocks:
    """Collect the bins of the first round in blocks of one node and label.

    ``each`` yields the bins of the rows of a block, int32, shape (m, d), its label and its node.
    Every column is sorted, because it is not known which bins belong to the same row.
    """
    blocks = [block for block in each if len(block[0])]
    sizes = [len(part) for part, _, _ in blocks]
    labels = np.array([label for _, label, _ in blocks], dtype=np.int64)
    cells = np.array([cell for _, _, cell in blocks], dtype=np.int64)
    numbers = max(outputs, 2) * cells + labels
    return [b[0] for b in blocks], np.repeat(labels, sizes), np.repeat(numbers, sizes)


def _unpaired(
    evidence: BoostingObservations, forest: BinnedForest, left: Residual
) -> Iterator[tuple[Ints, int, int]]:
    """Yield the blocks of the remaining rows, given their exact sums."""
    offsets = forest.offsets
    d = len(offsets) - 1
    for c in np.flatnonzero(forest.tree_of < evidence.outputs).tolist():
        t = int(forest.tree_of[c])
        p, h = initial_gradient(evidence, t)
        n, n1 = _bin_counts(from_fixed(left.sums[c]), p, h)
        total, total1 = _bin_counts(from_fixed(left.totals[c])[None], p, h)
        groups = [(evidence.class_of(t), n1, int(total1[0]))]
        if evidence.outputs == 1:  # rows that are not of class 1 are of class 0
            groups.insert(0, (0, n - n1, int((total - total1)[0])))
        for label, count, m in groups:
            part = np.empty((m, d), dtype=np.int32)
            for f in range(d):
                code = np.append(np.arange(offsets[f + 1] - offsets[f]), -1)
                at = np.append(np.arange(offsets[f], offsets[f + 1]), offsets[d] + f)
                values = np.repeat(code, np.maximum(count[at], 0))
                if len(values) != m:  # inexact sums: keep the number of rows of the node
                    values = np.resize(values, m) if len(values) else np.zeros(m, np.int64)
                part[:, f] = values
            yield part, label, c


def counts_of_bins(
    evidence: BoostingObservations, known_rows: Table, total: int | None, prior: Prior
) -> list[Counts]:
    """Estimate the class counts of the leaves of the first round from inexact histograms.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees with histograms.
    known_rows : Table
        Rows that are known to be in the histograms. They are subtracted.
    total : int or None
        Number of the remaining rows, None if it is not declared.
    prior : Prior
        Rows whose distribution over bins is the prior.

    Returns
    -------
    list of Counts
        One per tree of the first round.
    """
    return [likely.leaves(total) for likely in _first_trees(evidence, known_rows, (), total, prior)]


def _first_trees(
    evidence: BoostingObservations,
    known_rows: Table,
    counts: Sequence[Counts],
    total: int | None,
    prior: Prior,
) -> Iterator[BinCountEstimate]:
    assert evidence.observed.cuts is not None
    bins, own_bins = (to_bins(evidence.observed.cuts, rows.X) for rows in (known_rows, prior.rows))
    for t in range(evidence.outputs):
        of_class = evidence.class_of(t)
        seen = seen_of(evidence, t, (bins, known_rows.y == of_class), own_bins)
        leaves = counts[t] if counts else None
        yield likely_bins(seen, total, (own_bins, prior.rows.y == of_class), leaves)


def _likely(
    evidence: BoostingObservations,
    forest: BinnedForest,
    known_rows: Table,
    counts: Sequence[Counts],
    total: int | None,
    prior: Prior,
) -> Iterator[tuple[Ints, int, int]]:
    """Yield the most probable blocks, given inexact sums that include ``known_rows``."""
    assert evidence.observed.cuts is not None
    sizes, d = evidence.observed.cuts.n_bins, evidence.observed.cuts.n_features
    code = np.concatenate([*(np.arange(n) for n in sizes), np.full(d, -1)]).astype(np.int32)
    for t, likely in enumerate(_first_trees(evidence, known_rows, counts, total, prior)):
        leaves = counts[t] if counts else likely.leaves(total)
        bins_of_node, of_feature = likely.bins(leaves), likely.seen.feature
        for c in np.flatnonzero(forest.tree_of == t).tolist():
            leaf_bins = bins_of_node[int(forest.node_of[c] - forest.start[t])]
            # with two classes, one tree determines the rows of both
            for k in range(2) if evidence.outputs == 1 else (1,):
                at = (np.flatnonzero(of_feature == f) for f in range(d))
                part = np.stack([np.repeat(code[a], leaf_bins[a, k]) for a in at], axis=1)
                yield part, k if evidence.outputs == 1 else evidence.class_of(t), c


def _fewer(blocks: Blocks, share: float) -> Blocks:
    """Return a share of every block, evenly spaced in each of its sorted columns."""
    parts, y, block = blocks
    if share == 1 or not parts:
        return blocks
    sizes = np.array([len(part) for part in parts])
    n_kept = largest_remainder(share * sizes, round(share * int(sizes.sum())))
    # The columns are sorted, so that evenly spaced rows keep the distribution of each feature.
    at = [
        ((np.arange(k) + 0.5) * m / k).astype(np.intp) for m, k in zip(sizes, n_kept, strict=True)
    ]
    rows = np.concatenate([b + a for b, a in zip(np.cumsum(sizes) - sizes, at, strict=True)])
    fewer = [part[a] for part, a in zip(parts, at, strict=True) if len(a)]
    return fewer, y[rows], block[rows]


def _bin_counts(sums: Floats, p: float, h: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = np.maximum(np.rint(sums[:, 1] / h), 0).astype(np.int64)
    return n, np.clip(np.rint(n * p - sums[:, 0]), 0, n).astype(np.int64)
