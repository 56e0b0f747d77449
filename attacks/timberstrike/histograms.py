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

from fedtrees.attacks.timberstrike.bins import Residual, binned_forest, take_out, to_bins
from fedtrees.attacks.timberstrike.consensus import chains_for, merge, tolerances
from fedtrees.attacks.timberstrike.counts import first_gradient
from fedtrees.attacks.timberstrike.evidence import AUTO_TREES, Evidence, Options
from fedtrees.attacks.timberstrike.local_search import next_bits
from fedtrees.attacks.timberstrike.peeling import peel
from fedtrees.attacks.timberstrike.prior import Prior
from fedtrees.core.schema import Schema, Table

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
    n_victims: int,
    rng: np.random.Generator,
) -> tuple[Table, dict[str, float]] | None:
    """Return the victims' rows (all rows with ``scope="union"``) and diagnostics.

    None where many trees gave next to no row: their nodes hold too many rows to tell apart, and
    the sums of all those trees say more than the first tree's bins.
    """
    assert evidence.cuts is not None
    offsets = np.asarray(evidence.cuts.offsets, dtype=np.int32)
    forest, left = binned_forest(evidence)
    if options.scope == "victims":
        take_out(forest, left, offsets, to_bins(evidence.cuts, own.X), own.y)
    peeled = peel(forest, left, offsets, n_victims)
    if len(evidence.trees) >= AUTO_TREES and len(peeled.y) < LEAST_PEELED * n_victims:
        return None
    sure = Table(_values(evidence, prior, schema, peeled.bins, peeled.y, rng), peeled.y)
    near = _sorted_by_label(prior.own, rng)
    start = np.searchsorted(near.y, [0, 1, 2])
    samples = []
    for _ in range(options.chains or chains_for(n_victims)):
        bins, y, block = _pair(evidence, left, offsets, rng)
        X = _values(evidence, prior, schema, bins, y, rng)
        if len(prior.own) and len(y):
            _swap_towards(
                X,
                y,
                block,
                near.X,
                start,
                tolerances(prior, schema),
                np.uint64(rng.integers(2**63)),
            )
        samples.append(Table(X, y))
    rest = merge(samples, block, tolerances(prior, schema))
    notes = {
        "peeled_rows": float(len(peeled.y)),
        "checksum_failures": float(peeled.rejected),
        "paired_rows": float(len(rest)),
    }
    return Table.concat([sure, rest]), notes


def _sorted_by_label(own: Table, rng: np.random.Generator) -> Table:
    """Return own rows sorted by label, at most `MOST_OWN` of them."""
    if len(own) > MOST_OWN:
        own = own.take(rng.choice(len(own), MOST_OWN, replace=False))
    return own.take(np.argsort(own.y, kind="stable"))


def _pair(
    evidence: Evidence, left: Residual, offsets: Ints, rng: np.random.Generator
) -> tuple[Ints, NDArray[np.int64], NDArray[np.int64]]:
    """Pair the first tree's leftover bins at random: bins (m, d), labels, blocks (m,)."""
    p, h = first_gradient(evidence.base_margin, evidence.constant_hessian)
    d = len(offsets) - 1
    bins, labels, blocks = [np.zeros((0, d), np.int32)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for c in np.flatnonzero(left.tree == 0):
        n, n1 = _bin_counts(left.sums[c], p, h)
        total, total1 = _bin_counts(left.totals[c][None], p, h)
        for label, count, size in ((0, n - n1, total - total1), (1, n1, total1)):
            m = int(size[0])
            part = np.empty((m, d), dtype=np.int32)
            for f in range(d):
                code = np.append(np.arange(offsets[f + 1] - offsets[f]), -1)
                at = np.append(np.arange(offsets[f], offsets[f + 1]), offsets[d] + f)
                values = np.repeat(code, np.maximum(count[at], 0))
                if len(values) != m:  # inexact sums: keep the number of rows of the node
                    values = np.resize(values, m) if len(values) else np.zeros(m, np.int64)
                part[:, f] = rng.permutation(values)
            bins.append(part)
            labels.append(np.full(m, label))
            blocks.append(np.full(m, 2 * int(c) + label))
    block = np.concatenate(blocks).astype(np.int64)
    return np.concatenate(bins), np.concatenate(labels).astype(np.int64), block


def _bin_counts(sums: Floats, p: float, h: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = np.maximum(np.rint(sums[:, 1] / h), 0).astype(np.int64)
    return n, np.clip(np.rint(n * p - sums[:, 0]), 0, n).astype(np.int64)


def _values(
    evidence: Evidence,
    prior: Prior,
    schema: Schema,
    bins: Ints,
    y: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return a value inside every bin: an own value where there is one, else its middle."""
    assert evidence.cuts is not None
    out = np.empty(bins.shape, dtype=np.float32)
    own_bins = to_bins(evidence.cuts, prior.own.X)
    for f in range(bins.shape[1]):
        a, b = evidence.cuts.offsets[f], evidence.cuts.offsets[f + 1]
        upper = np.asarray(evidence.cuts.values[a:b], dtype=np.float64)
        lower = np.concatenate([[-np.inf], upper[:-1]])
        middle = _middle(lower, upper, prior.low[f], prior.high[f])
        if schema.categorical[f]:
            middle = np.ceil(np.where(np.isfinite(lower), lower, prior.low[f]))
        out[:, f] = np.where(bins[:, f] < 0, np.nan, middle[bins[:, f]])
        u = rng.random(len(y))
        known = np.flatnonzero(own_bins[:, f] >= 0)
        order = known[np.argsort(own_bins[known, f], kind="stable")]
        first = np.searchsorted(own_bins[order, f], bins[:, f], side="left")
        last = np.searchsorted(own_bins[order, f], bins[:, f], side="right")
        has = (last > first) & (bins[:, f] >= 0)
        pick = order[(first + u * (last - first)).astype(np.int64)[has]] if has.any() else order[:0]
        out[has, f] = prior.own.X[pick, f]
    return out


def _middle(lower: Floats, upper: Floats, low: float, high: float) -> Floats:
    """Return the middle of each bin, the range standing in for open ends."""
    width = float(np.diff(upper[:2])[0]) if len(upper) > 1 else 0.0
    first = low if low < upper[0] else upper[0] - width
    a = np.where(np.isfinite(lower), lower, first)
    b = upper.copy()
    b[-1] = min(b[-1], max(high, a[-1]))  # the last cut lies above every value by construction
    # never on the upper edge, which belongs to the next bin
    below = np.nextafter(upper.astype(np.float32), np.float32(-np.inf))
    return np.minimum((a + b) / 2, below)


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
