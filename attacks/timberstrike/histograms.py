"""Reconstruction where bin histograms are visible: read rows off, pair what is left.

The first tree's histograms give, for every terminal visible node, the exact number of victims of
each class in each bin of each feature: the same two equations as for leaves, per bin. Rows that
`peeling` cannot read off are paired up inside a node and class from those bins, by swaps towards
own rows where there are any. Beyond Di Gennaro et al. (2025), whose attack on NVFlare uses the
model alone although clients receive the summed histograms.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.counts import first_gradient, share_out
from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.evidence.marginals import columns_in
from fedtrees.attacks.evidence.prior import Prior
from fedtrees.attacks.evidence.routing import gradients
from fedtrees.attacks.peeling.peel import peel
from fedtrees.attacks.peeling.rows import BinnedForest, Residual, take_out
from fedtrees.attacks.peeling.values import to_bins, told_values, values_in
from fedtrees.attacks.timberstrike.options import AUTO_TREES, Options
from fedtrees.attacks.timberstrike.points import told_rows
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.trees.boosted.fixed_point import from_fixed, to_fixed

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

LEAST_PEELED = 0.05
SWAPS_PER_ROW = 100
MOST_OWN = 2000  # own rows that swaps look at; memory is 2 bytes times victims times these
MISMATCH_COST = 1.5  # an own row's weight falls by exp(-1.5) per feature out of tolerance


def rows_from_histograms(
    evidence: Evidence,
    own: Table,
    prior: Prior,
    schema: Schema,
    options: Options,
    of: tuple[int, float],
    rng: np.random.Generator,
) -> tuple[Table, Table, list[Table], dict[str, float]] | None:
    """Return the victims' rows (all rows with ``scope="union"``) and diagnostics.

    First those that were read off, then those that were paired up, and the samples that these are
    the consensus of. None where many trees gave next to no row: their nodes hold too many rows to
    tell apart, and the sums of all those trees say more than the first tree's bins. Of more than
    two classes, rows are not peeled; each class is paired up in its own tree of the first round.

    ``of`` is how many victims there are, and the share of those not read off to pair up.
    """
    cuts, (n_victims, share) = evidence.cuts, of
    assert cuts is not None
    notes: dict[str, float] = {}
    bins, labels = np.zeros((0, cuts.n_features), dtype=np.int32), np.zeros(0, dtype=np.int64)
    if evidence.outputs > 1:
        evidence = evidence.rounds(1)
    forest, left = binned_forest(evidence)
    if options.scope == "victims" and evidence.share == 1:
        _take_out(evidence, forest, left, to_bins(cuts, own.X), own.y)
    if evidence.outputs == 1:
        peeled = peel(forest, left)
        if len(evidence.trees) >= AUTO_TREES and len(peeled.y) < LEAST_PEELED * n_victims:
            return None
        bins, labels = peeled.bins, peeled.y
        notes = {"peeled_rows": float(len(labels)), "checksum_failures": float(peeled.rejected)}

    def values(bins: Ints) -> NDArray[np.float32]:
        return values_in(cuts, schema, bins, prior.own.X, (prior.low, prior.high), rng)

    X = values(bins)
    if prior.told:
        told = told_values(cuts, bins, columns_in(prior.own), schema.categorical)
        X = np.where(np.isnan(told), X, told)
    sure = Table(X, labels)
    near = _sorted_by_label(prior.own, rng)
    start = np.searchsorted(near.y, np.arange(prior.classes + 1))
    samples, tolerance = [], prior.tolerance(schema)
    unpaired, y, block = _fewer(*_unpaired(evidence, forest, left), share)
    none = np.zeros((0, cuts.n_features), dtype=np.int32)
    chains = options.chains_for(round(share * n_victims))
    paired = [rng.permuted(part, axis=0) for _ in range(chains) for part in unpaired]
    for X in np.split(values(np.concatenate([none, *paired])), chains):
        # without own rows, likely ones have columns that do not go together
        if len(prior.own) and len(own) and len(y):
            _swap_towards(
                X,
                y,
                block,
                near.X,
                start,
                tolerance,
                np.uint64(rng.integers(2**63)),
            )
        samples.append(Table(X, y))
    rest = told_rows(matched_consensus(samples, tolerance, groups=block), prior)
    return sure, rest, samples, {**notes, "paired_rows": float(len(rest))}


def _sorted_by_label(own: Table, rng: np.random.Generator) -> Table:
    """Return own rows sorted by label, at most `MOST_OWN` of them."""
    if len(own) > MOST_OWN:
        own = own.take(rng.choice(len(own), MOST_OWN, replace=False))
    return own.take(np.argsort(own.y, kind="stable"))


def binned_forest(evidence: Evidence) -> tuple[BinnedForest, Residual]:
    """Flatten the trees and collect the histograms of the terminal visible nodes."""
    assert evidence.histograms is not None
    assert evidence.cuts is not None
    seen = [h.nodes for h in evidence.histograms]
    # of several outputs, no margin of the binned forest is ever read
    start = np.float32(np.ravel(evidence.base_margin)[0])
    forest = BinnedForest.of(evidence.trees, seen, evidence.cuts, start)
    sums, totals = [], []
    for t, hist in enumerate(evidence.histograms):
        order = forest.terminal(t, hist.nodes)
        sums.append(hist.sums[order])
        totals.append(hist.totals[order])
    left = Residual.of(
        to_fixed(np.concatenate(sums)), to_fixed(np.concatenate(totals)), forest.offsets
    )
    return forest, left


def _take_out(
    evidence: Evidence, forest: BinnedForest, left: Residual, bins: Ints, y: NDArray[np.int64]
) -> None:
    """Subtract own rows from the histograms, in place; several outputs have one round here."""
    if evidence.outputs == 1:
        take_out(forest, left, bins, y)
        return
    columns, cells = forest.columns(bins), forest.route(bins)[0]
    for k in range(evidence.outputs):
        gh = to_fixed(np.stack(gradients(evidence.start(len(y)), y, output=k), axis=1))
        np.subtract.at(left.sums, (cells[:, k, None], columns), gh[:, None])
        np.subtract.at(left.totals, cells[:, k], gh)


def _unpaired(
    evidence: Evidence, forest: BinnedForest, left: Residual
) -> tuple[list[Ints], NDArray[np.int64], NDArray[np.int64]]:
    """Return the first trees' leftover bins: blocks (m, d) of one label each, labels, blocks.

    In a block every column is sorted: which bins go together is not known.
    """
    offsets = forest.offsets
    d = len(offsets) - 1
    bins: list[Ints] = []
    labels, blocks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for c in np.flatnonzero(forest.tree_of < evidence.outputs):
        t = int(forest.tree_of[c])
        p, h = first_gradient(evidence, t)
        n, n1 = _bin_counts(from_fixed(left.sums[c]), p, h)
        total, total1 = _bin_counts(from_fixed(left.totals[c])[None], p, h)
        found = [(evidence.class_of(t), n1, int(total1[0]))]
        if evidence.outputs == 1:  # what is not of the tree's class is of the only other
            found.insert(0, (0, n - n1, int((total - total1)[0])))
        for label, count, m in found:
            if m == 0:
                continue
            part = np.empty((m, d), dtype=np.int32)
            for f in range(d):
                code = np.append(np.arange(offsets[f + 1] - offsets[f]), -1)
                at = np.append(np.arange(offsets[f], offsets[f + 1]), offsets[d] + f)
                values = np.repeat(code, np.maximum(count[at], 0))
                if len(values) != m:  # inexact sums: keep the number of rows of the node
                    values = np.resize(values, m) if len(values) else np.zeros(m, np.int64)
                part[:, f] = values
            bins.append(part)
            labels.append(np.full(m, label))
            blocks.append(np.full(m, max(evidence.outputs, 2) * int(c) + label))
    return bins, np.concatenate(labels), np.concatenate(blocks)


def _fewer(
    parts: list[Ints], y: NDArray[np.int64], block: NDArray[np.int64], share: float
) -> tuple[list[Ints], NDArray[np.int64], NDArray[np.int64]]:
    """Return a share of every block, evenly spaced in each of its sorted columns."""
    if share == 1 or not parts:
        return parts, y, block
    sizes = np.array([len(part) for part in parts])
    kept = share_out(share * sizes, round(share * int(sizes.sum())))
    at = [((np.arange(k) + 0.5) * m / k).astype(np.intp) for m, k in zip(sizes, kept, strict=True)]
    rows = np.concatenate([b + a for b, a in zip(np.cumsum(sizes) - sizes, at, strict=True)])
    return [part[a] for part, a in zip(parts, at, strict=True)], y[rows], block[rows]


def _bin_counts(sums: Floats, p: float, h: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = np.maximum(np.rint(sums[:, 1] / h), 0).astype(np.int64)
    return n, np.clip(np.rint(n * p - sums[:, 0]), 0, n).astype(np.int64)


@njit(cache=True)
def _differs(a, b, tolerance):  # type: ignore[no-untyped-def]
    """Return 1 unless two values agree; a missing value agrees with nothing."""
    return 0 if abs(a - b) <= tolerance else 1


@njit(cache=True)
def _mismatches(X, own, tolerance):  # type: ignore[no-untyped-def]
    """Count the features in which every row differs from every own row, uint16, (n, own)."""
    out = np.zeros((X.shape[0], own.shape[0]), dtype=np.uint16)
    for i in range(X.shape[0]):
        for r in range(own.shape[0]):
            for f in range(X.shape[1]):
                out[i, r] += _differs(X[i, f], own[r, f], tolerance[f])
    return out


@njit(cache=True)
def _swap_towards(X, y, block, own, start, tolerance, seed):  # type: ignore[no-untyped-def]
    """Swap single features between rows of a block by Metropolis on the affinity, in place.

    The affinity of a row is the log of the summed weights of own rows of its label; own rows
    are sorted by label, class c in ``start[c]:start[c + 1]``.
    """
    n, d = X.shape
    state = np.array([seed], dtype=np.uint64)
    weight = np.exp(-MISMATCH_COST * np.arange(d + 1))
    bad = _mismatches(X, own, tolerance)
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
        i = np.int64(next_bits(state) % np.uint64(n))
        k = first[i] + np.int64(next_bits(state) % np.uint64(size[i]))
        f = np.int64(next_bits(state) % np.uint64(d))
        a, b = X[i, f], X[k, f]
        if a == b:
            continue
        at_i, at_k = 1e-9, 1e-9
        for r in range(start[y[i]], start[y[i] + 1]):
            step = _differs(b, own[r, f], tolerance[f]) - _differs(a, own[r, f], tolerance[f])
            at_i += weight[bad[i, r] + step]
            at_k += weight[bad[k, r] - step]
        gain = np.log(at_i) + np.log(at_k) - score[i] - score[k]
        if gain >= 0.0 or np.float64(next_bits(state)) * 2.0**-53 < np.exp(gain):
            for r in range(start[y[i]], start[y[i] + 1]):
                step = _differs(b, own[r, f], tolerance[f]) - _differs(a, own[r, f], tolerance[f])
                bad[i, r] += step
                bad[k, r] -= step
            X[i, f], X[k, f] = b, a
            score[i], score[k] = np.log(at_i), np.log(at_k)
