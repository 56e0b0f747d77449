"""Boosting on one table, from the start or from given margins, without any messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, Bits, to_fixed, weighted
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import build_histogram, node_sums
from fedtrees.trees.boosted.losses import LOGISTIC, Objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.sampling import ColumnSampler, dropped_rows
from fedtrees.trees.boosted.threads import Workers
from fedtrees.trees.partition import ROOT, RowPartition
from fedtrees.trees.routing import Routes

# A float32 of size 2^-26 or more is a whole number of units, and so finer than XGBoost's own sums,
# which are float64.
_FINEST_BITS = 50
_SUM_BITS = 61  # what int64 has room for, with a bit to spare

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Owned:
    """The rows of one owner."""

    bins: Bins
    y: NDArray[Any]  # array, shape (n,): labels
    weight: NDArray[Any] | None = None  # float array, shape (n,), or None: sample weights; None: 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", np.asarray(self.y))
        if self.y.shape != (len(self.bins),):
            raise DataError(f"labels of shape {self.y.shape} for {len(self.bins)} rows")
        if self.weight is not None:
            object.__setattr__(self, "weight", checked_weights(self.weight, len(self.bins)))

    def take(self, span: slice) -> Owned:
        """Return consecutive rows; nothing is copied."""
        weight = None if self.weight is None else self.weight[span]
        return Owned(self.bins.take(span), self.y[span], weight)


def checked_weights(weight: Any, n: int) -> NDArray[np.float32]:
    """Return sample weights as float32, shape (n,).

    Raises `DataError` if one is negative or not finite, or their number differs.
    """
    weights = np.asarray(weight, dtype=np.float32)
    if weights.shape != (n,):
        raise DataError(f"sample weights of shape {weights.shape} for {n} rows")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        raise DataError(f"sample weight {weights[wrong[0]]} of row {wrong[0]}: give 0 or more")
    return weights


def _histograms(
    nodes: NDArray[np.int32], bins: Bins, gh: NDArray[np.int64], rows: RowPartition
) -> NDArray[np.int64]:
    return build_histogram(bins, gh, rows.rows, rows.ranges(nodes))


def grow_tree(
    parts: Sequence[tuple[Bins, NDArray[np.int64]]],
    cuts: Cuts,
    params: TreeParams,
    *,
    bits: Bits = UNIT_BITS,
    sampler: ColumnSampler | None = None,
    allowed: Callable[[NDArray[np.int32], list[RowPartition]], Mask] | None = None,
    workers: Workers | None = None,
) -> tuple[Tree, list[RowPartition]]:
    """Grow one tree over rows in one or more parts.

    `parts`: sequence of (Bins, int64 array of shape (n_i, 2)). Binned rows and fixed-point
    gradients.
    `bits`: Binary places of the gradients.
    `allowed`: From nodes, shape (k,), and where the rows are, to the splits these nodes may choose,
    bool, shape (k, total_bins).
    `workers`: Default: every part in turn.

    Returns
    -------
    tree : Tree
    partitions : list of RowPartition
        Where the rows of every part ended up.
    """
    at_once = (workers or Workers()).map
    bins, gh = zip(*parts, strict=True)
    rows = at_once(lambda b: RowPartition(len(b)), bins)
    root = sum(at_once(lambda g, p: node_sums(g, p.rows, p.ranges(ROOT))[0], gh, rows))
    grower = TreeGrower(cuts, params, np.asarray(root, dtype=np.int64), bits=bits)
    while len(grower.nodes):
        found = at_once(partial(_histograms, grower.to_build), bins, gh, rows)
        hist = reduce(lambda total, one: np.add(total, one, out=total), found)
        mask = allowed(grower.nodes, rows) if allowed else None
        decisions = grower.decide(hist, sampler.mask(grower.depths, mask) if sampler else mask)
        at_once(lambda b, r, made=decisions: r.split(b, made), bins, rows)
    return grower.finish(), rows


@dataclass(frozen=True, eq=False)
class Continuation:
    """One owner's rows and how trees are grown on them, whatever the model so far."""

    rows: Owned
    cuts: Cuts
    params: TreeParams
    objective: Objective
    streams: Streams  # the owner's: samples of rows are drawn from it
    # a split needs so many rows on either side; 0: `min_child_weight` alone decides. Where a round
    # draws fewer, it draws none.
    least_rows: int = 0
    columns: Streams | None = None  # samples of columns are drawn from it. None: from `streams`.
    # binary places of all sums. None: the most there is room for, anew in every round, which nobody
    # else need agree on.
    bits: Bits | None = None
    workers: Workers = Workers()  # the trees are the same for any number of threads

    @cached_property
    def _blocks(self) -> list[tuple[slice, Owned]]:
        """The rows in consecutive blocks, one per thread."""
        return [(span, self.rows.take(span)) for span in self.workers.blocks(len(self.rows.y))]

    def round(self, number: int, margin: NDArray[np.float32]) -> list[Tree]:
        """Grow one tree per output and add them to the margins, shape (K, n), in place.

        `number`: Of the round, from 0: samples are drawn anew in every one.
        `margin`: float32 array, shape (K, n)
        """
        at_once = self.workers.map
        spans, blocks = zip(*self._blocks, strict=True)
        found = at_once(lambda s, b: self.objective.gradients(margin[:, s], b.y), spans, blocks)
        bits = self.bits or finest_bits(found, [b.weight for b in blocks])
        dropped = self._dropped(number)

        def units(gh: NDArray[np.float32], span: slice, rows: Owned) -> NDArray[np.int64]:
            values = weighted(gh, rows.weight, bits)
            if dropped is not None:
                values[:, dropped[span]] = 0
            return to_fixed(values, bits)

        gradients = at_once(units, found, spans, blocks)
        grown = []
        for k in range(self.objective.n_outputs):
            sampler = ColumnSampler(
                self.cuts, self.params, self.columns or self.streams, number * len(margin) + k
            )
            tree, partitions = grow_tree(
                [(b.bins, gh[k]) for b, gh in zip(blocks, gradients, strict=True)],
                self.cuts,
                self.params,
                bits=bits,
                sampler=sampler,
                allowed=partial(self._roomy, dropped) if self.least_rows > 1 else None,
                workers=self.workers,
            )
            leaves = tree.leaves.astype(np.int32)
            values, output = tree.value[leaves], margin[k]
            at_once(lambda p, s: p.add_to(output[s], leaves, values), partitions, spans)  # noqa: B023
            grown.append(tree)
        return grown

    def _dropped(self, number: int) -> Mask | None:
        n = len(self.rows.y)
        dropped = dropped_rows(n, self.params.subsample, self.streams, number)
        if dropped is not None and n - dropped.sum() < self.least_rows:
            dropped[:] = True
        return dropped

    def _roomy(
        self, dropped: Mask | None, nodes: NDArray[np.int32], partitions: list[RowPartition]
    ) -> Mask:
        """Return which splits leave `least_rows` on both sides."""
        counted = np.ones((len(self.rows.y), 2), dtype=np.int64)
        if dropped is not None:
            counted[dropped] = 0
        counts = sum(
            _histograms(nodes, block.bins, counted[span], rows)[..., 0]
            for (span, block), rows in zip(self._blocks, partitions, strict=True)
        )
        return enough_rows(np.asarray(counts), self.cuts, self.least_rows)


def finest_bits(
    gradients: Sequence[NDArray[np.float32]], weights: Sequence[NDArray[np.float32] | None]
) -> Bits:
    """Return the most binary places that int64 sums of these gradients have room for, at most 50.

    `gradients`: sequence of float32 array, shape (K, n_i, 2)
    `weights`: sequence of float array, shape (n_i,), or None
    """
    sizes = sum(
        (np.abs(gh, dtype=np.float64) * (1.0 if w is None else w[:, None])).sum(axis=1)
        for gh, w in zip(gradients, weights, strict=True)
    )
    g, h = np.max(sizes, axis=0).tolist()
    room = [_SUM_BITS - math.ceil(math.log2(max(total, 1.0))) for total in (g, h)]
    return min(room[0], _FINEST_BITS), min(room[1], _FINEST_BITS)


def enough_rows(counts: NDArray[np.int64], cuts: Cuts, least: int) -> Mask:
    """Return which splits leave so many rows on both sides, bool, shape (k, total_bins).

    Rows whose value is missing may go either way and are not counted on.

    `counts`: int64 array, shape (k, total_bins). Rows per node and bin.
    """
    allowed = np.empty(counts.shape, dtype=bool)
    for begin, end in zip(cuts.offsets[:-1], cuts.offsets[1:], strict=True):
        below = np.cumsum(counts[:, begin:end], axis=1)
        above = below[:, -1:] - below
        allowed[:, begin:end] = (below >= least) & (above >= least)
    return allowed


def add_trees(
    trees: Sequence[Tree], X: NDArray[np.float32], margin: NDArray[np.float32], first: int = 0
) -> None:
    """Add trees to margins in place, one after the other in float32, as XGBoost does.

    `X`: float32 array, shape (n, d).
    `margin`: float32 array, shape (K, n).
    `first`: The model's number of the first tree: tree t adds to output ``t % K``.
    """
    if not trees or not len(X):
        return
    for block, leaves in Routes.of(trees).blocks(X):
        for t, leaf in enumerate(leaves.T):
            margin[(first + t) % len(margin), block] += trees[t].value[leaf]


def grow_forest(
    X: NDArray[Any] | Bins,
    y: NDArray[Any],
    cuts: Cuts,
    params: TreeParams,
    objective: Objective = LOGISTIC,
    *,
    weight: NDArray[Any] | None = None,
    streams: Streams | None = None,
    threads: int = 1,
) -> Forest:
    """Boost a forest over one table.

    Raises `DataError` if there are no rows, X does not fit the cuts or is infinite somewhere,
    labels do not suit the objective, or all labels are equal and no base score is given.

    `X`: float array, shape (n, d), or Bins. Rows; NaN marks a missing value.
    `y`: array, shape (n,). Labels.
    `cuts`: For instance `fedtrees.trees.sketch.quantile_cuts`.
    `weight`: float array, shape (n,). Sample weights, 0 or more.
    `streams`: Where samples of rows and columns are drawn from; default ``Streams(0)``.
    `threads`: The result is the same for any number.
    """
    rows = Owned(X if isinstance(X, Bins) else bin_rows(X, cuts), y, weight)
    objective.check(rows.y)
    if not len(rows.y):
        raise DataError("no rows to train on")
    totals = objective.target_sums(rows.y, rows.weight)
    bits, score, randomness = objective.bits(totals), params.base_score, streams or Streams(0)
    start = objective.start(totals) if score is None else objective.base_margin(score)
    margin = np.repeat(start[:, None], len(rows.y), axis=1)
    with Workers(threads) as workers:
        growth = Continuation(
            rows, cuts, params, objective, randomness.client(0),
            columns=randomness.deciding(), bits=bits, workers=workers,
        )  # fmt: skip
        trees = [t for r in range(params.trees) for t in growth.round(r, margin)]
    return Forest(tuple(trees), start, objective)
