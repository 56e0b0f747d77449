"""First-round counts from leaf values if the sums behind them were rounded.

A value is ``-eta G / (H + lambda)`` of sums that are multiples of the step, in float32. Few pairs
of multiples give exactly this value. The error that rounding causes in a leaf's sums is estimated
by resampling local rows or rows of the population, because rounding is biased in bins of one row.
Dynamic programming chooses counts that add up to the known number of rows, and of rows of either
class. None of them is certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.counts.count_bounds import Row
from fedtrees.attacks.counts.leaf_sums import DIRICHLET_PRIOR
from fedtrees.attacks.counts.sum_bounds import OwnPart, SentBounds
from fedtrees.attacks.observations.replay import bins_left
from fedtrees.core.compilation import kernel
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import Bits
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import leaf_values

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

DRAWS = 24  # resampled tables that represent other clients
LISTED = 400  # pairs of counts of a leaf
MOST_STATES = 1 << 26  # size of the dynamic programme: totals times leaves
NEAR = 4.0  # largest error of a count, in standard deviations


@dataclass(frozen=True, eq=False)
class ValuesSeen:
    """A first tree of which only leaf values are seen.

    ``built`` lists the nodes whose histograms were requested (int32, shape (k,)). ``bounds``
    contains the errors of the sums that one client sends, and ``clients`` is the number of other
    clients in the sums. ``prior`` contains rows that represent the rows of other clients: local
    rows, else those of the population.
    """

    tree: Tree
    cuts: Cuts
    params: TreeParams
    bits: Bits
    row: Row
    bounds: SentBounds
    built: NDArray[np.int32]
    local_part: OwnPart
    clients: int
    prior: Table


def counts_of_values(
    seen: ValuesSeen, rows: int, positives: tuple[int, int] | None, rng: np.random.Generator
) -> Longs | None:
    """Return the most probable n0 and n1 of other clients' rows in every leaf.

    Parameters
    ----------
    seen : ValuesSeen
        The tree.
    rows : int
        Number of other clients' rows.
    positives : tuple of int, or None
        Bounds on the number of their rows of the tree's class.
    rng : numpy.random.Generator
        Draws rows of the prior with replacement.

    Returns
    -------
    int64 array, shape (J, 2), or None
        None if no counts fit, if there are no prior rows, or if the search is too large.
    """
    leaves, own_table, table = seen.tree.leaves, seen.local_part.table, seen.prior
    if not len(table) or not seen.clients:
        return None
    sent = (
        _leaf_sums(seen, own_table)[1]
        if len(own_table)
        else np.zeros((len(leaves), 2), dtype=np.int64)
    )
    # every other client is assumed to have the same number of rows
    size = max(round(rows / seen.clients), 1)
    off = []
    for _ in range(DRAWS):
        true, sent_sums = _leaf_sums(seen, table.take(rng.integers(0, len(table), size)))
        off.append(sent_sums - true)
    mean = seen.clients * np.mean(off, axis=0)
    var = seen.clients * np.var(off, axis=0) + seen.bounds.step**2 / 12
    like = _counts_of_sums(seen, _leaf_sums(seen, table)[0])
    most_positives = rows if positives is None else positives[1]
    if (rows + 1) * (most_positives + 1) * len(leaves) > MOST_STATES:
        return None
    lists, tilt = [], rows / (rows + len(table))
    for j, value in enumerate(seen.tree.value[leaves]):
        sums = _pairs(seen, value, rows + len(own_table)) - sent[j] - mean[j]
        lists.append(_weigh_counts(sums, var[j], seen.row, like[j], rows, tilt))
        if not len(lists[-1][0]):
            return None
    return _chosen(lists, rows, most_positives, positives)


def _counts_of_sums(seen: ValuesSeen, sums: Longs) -> Longs:
    """Return n0 and n1 per leaf of the rows with these exact sums, int64 (J, 2)."""
    n = sums[:, 1] // max(seen.row.h, 1)
    n1 = (n * seen.row.g0 - sums[:, 0]) // seen.row.one
    return np.stack([n - n1, n1], axis=1)


def _leaf_sums(seen: ValuesSeen, table: Table) -> tuple[Longs, Longs]:
    """Return the leaf sums of some rows, true and as a client sends them, int64 (J, 2) each."""
    part = OwnPart(table, 1, {})
    true, totals = part.histograms(seen.tree, seen.cuts, seen.row, 1)
    leaves, law = seen.tree.leaves, seen.bounds.law
    assert law is not None
    sent = np.asarray(law.send(true)).astype(np.int64)
    node = totals.copy()
    node[0] = (totals[0] + seen.bounds.below) // seen.bounds.step.astype(np.int64)
    node[0] *= seen.bounds.step.astype(np.int64)
    built = set(seen.built.tolist())
    for i in np.flatnonzero(seen.tree.feature >= 0):
        pair = int(seen.tree.left[i]), int(seen.tree.right[i])
        for child, other in (pair, pair[::-1]):
            if child not in built and other in built:
                sent[child] = sent[i] - sent[other]
        f = int(seen.tree.feature[i])
        bins = sent[i, seen.cuts.offsets[f] : seen.cuts.offsets[f + 1]]
        goes = bins_left(seen.tree, int(i), seen.cuts)
        if seen.tree.default_left[i]:
            node[pair[1]] = bins[~goes].sum(axis=0)
            node[pair[0]] = node[i] - node[pair[1]]
        else:
            node[pair[0]] = bins[goes].sum(axis=0)
            node[pair[1]] = node[i] - node[pair[0]]
    return totals[leaves], node[leaves]


def _pairs(seen: ValuesSeen, value: np.float32, rows: int) -> Longs:
    """Return the multiples of the step (G, H) that give exactly this leaf value, int64 (k, 2)."""
    step, unit = seen.bounds.step, np.ldexp(1.0, np.negative(seen.bits))
    largest_h = rows * seen.row.h + len(seen.cuts.values) * step[1]
    h = np.arange(0, largest_h // step[1] + 1) * step[1]
    slope = h * unit[1] + seen.params.reg_lambda
    g = -(float(value) / seen.params.learning_rate * slope) - seen.params.reg_alpha * np.sign(value)
    near = np.rint(g / unit[0] / step[0])[:, None] + np.array([-1, 0, 1])
    sums = np.stack([near * step[0], np.broadcast_to(h[:, None], near.shape)], axis=-1)
    sums = sums.reshape(-1, 2).astype(np.int64)
    return sums[leaf_values(sums, seen.params, seen.bits) == value]


def _weigh_counts(
    sums: Floats, var: Floats, row: Row, like: Longs, rows: int, tilt: float
) -> tuple[Longs, Longs, Floats]:
    """Return the most probable (n0, n1) for some sums, and their log weights, shape (k,) each."""
    centre = sums[:, 1] / max(row.h, 1)
    width = int(min(NEAR * np.sqrt(var[1]) / max(row.h, 1) + 1, 40))
    n = (np.rint(centre)[:, None] + np.arange(-width, width + 1)).reshape(-1)
    g, h = np.repeat(sums, 2 * width + 1, axis=0).T
    n1 = np.rint((n * row.g0 - g) / row.one)[:, None] + np.array([-1, 0, 1])
    n, g, h = (np.repeat(part, 3) for part in (n, g, h))
    n1 = n1.reshape(-1)
    fits = (n >= 0) & (n1 >= 0) & (n1 <= n) & (n <= rows)
    n, n1, g, h = n[fits], n1[fits], g[fits], h[fits]
    off = (g - (n * row.g0 - n1 * row.one)) ** 2 / var[0] + (h - n * row.h) ** 2 / var[1]
    prior = sum(
        gammaln(extra + prior_count + DIRICHLET_PRIOR) - gammaln(extra + 1.0)
        for extra, prior_count in ((n - n1, like[0]), (n1, like[1]))
    )
    # with a fixed total the tilt is a constant, but it keeps large leaves among those listed
    score = prior - 0.5 * off + n * np.log(tilt)
    order = np.argsort(-score, kind="stable")
    pairs = np.stack([n, n1], axis=1)[order].astype(np.int64)
    _, first = np.unique(pairs, axis=0, return_index=True)
    likeliest = np.sort(first)[:LISTED]
    return pairs[likeliest, 0] - pairs[likeliest, 1], pairs[likeliest, 1], score[order][likeliest]


def _chosen(
    lists: list[tuple[Longs, Longs, Floats]],
    rows: int,
    most_positives: int,
    positives: tuple[int, int] | None,
) -> Longs | None:
    """Choose one pair per leaf, most probable among those that add up, int64 (J, 2)."""
    start = np.cumsum([0, *(len(part[0]) for part in lists)])
    n0, n1, score = (np.concatenate([part[k] for part in lists]) for k in range(3))
    best, back = _forward(start, n0 + n1, n1, score, rows, most_positives)
    ends = best[rows].copy()
    if positives is not None:
        ends[: max(positives[0], 0)] = -np.inf
    left, left1 = rows, int(np.argmax(ends))
    if not np.isfinite(ends[left1]):
        return None
    out = np.zeros((len(lists), 2), dtype=np.int64)
    for j in range(len(lists) - 1, -1, -1):
        k = start[j] + back[j, left, left1]
        out[j] = n0[k], n1[k]
        left, left1 = left - n0[k] - n1[k], left1 - n1[k]
    return out


@kernel
def _forward(
    start: Longs, n: Longs, n1: Longs, score: Floats, rows: int, most_positives: int
) -> tuple[Floats, NDArray[np.int16]]:
    """Return the best log weight for every total, and the chosen pair of each leaf."""
    best = np.full((rows + 1, most_positives + 1), -np.inf)
    best[0, 0] = 0.0
    back = np.zeros((start.shape[0] - 1, rows + 1, most_positives + 1), dtype=np.int16)
    for j in range(start.shape[0] - 1):
        after = np.full((rows + 1, most_positives + 1), -np.inf)
        for k in range(start[j], start[j + 1]):
            for a in range(rows + 1 - n[k]):
                for b in range(min(most_positives + 1 - n1[k], a + 1)):
                    value = best[a, b] + score[k]
                    if value > after[a + n[k], b + n1[k]]:
                        after[a + n[k], b + n1[k]] = value
                        back[j, a + n[k], b + n1[k]] = k - start[j]
        best = after
    return best, back
