"""Boosting on the rows of one party, from the base score or from given margins, without messages.

Rows may be divided into blocks for several threads. All sums are sums of integers, so that the
trees do not depend on the blocks.

The module also draws the samples of rows and columns on which a tree is grown, and distributes the
blocks to threads. Kernels and the larger numpy operations release the interpreter lock. Splits are
chosen in one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import (
    UNIT_BITS,
    Bits,
    build_histogram,
    node_sums,
    to_fixed,
    weighted,
)
from fedtrees.trees.boosted.losses import LOGISTIC, Objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.partition import ROOT, RowPartition
from fedtrees.trees.routing import Routes


def dropped_rows(n: int, share: float, streams: Streams, round: int) -> NDArray[np.bool_] | None:
    """Return which of a party's rows a round leaves out, bool, shape (n,), None if it uses all.

    Rows are drawn independently. As in XGBoost, a row that is left out has gradients of 0. It
    therefore changes no sum, but stays in the partition and receives the value of its leaf.

    Parameters
    ----------
    n : int
        Number of rows.
    share : float
        Probability that a row is used.
    streams : Streams
        Streams of the party with the rows.
    round : int
        Number of the round.
    """
    if share >= 1:
        return None
    dropped: NDArray[np.bool_] = streams.rng("subsample", round).random(n) >= share
    return dropped


def drop_rows(gh: NDArray[Any], share: float, streams: Streams, round: int) -> None:
    """Set the gradients of the rows that a round leaves out to 0, in place.

    Parameters
    ----------
    gh : array, shape (K, n, 2)
        Gradients and hessians.
    share : float
        Probability that a row is used.
    streams : Streams
        Streams of the party with the rows.
    round : int
        Number of the round.
    """
    dropped = dropped_rows(gh.shape[1], share, streams, round)
    if dropped is not None:
        gh[:, dropped] = 0


class ColumnSampler:
    """Draws the features that one tree may use.

    It draws a sample for the tree, of these a sample for each level, and of these a sample for each
    node. As in XGBoost, a share of m features is ``max(1, floor(share * m))`` features.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Hyperparameters.
    streams : Streams
        Streams of the party that decides on splits.
    tree : int
        Number of the tree.
    """

    def __init__(self, cuts: Cuts, params: TreeParams, streams: Streams, tree: int) -> None:
        self._rng = streams.rng("columns", tree)
        self._n_bins, self._params = cuts.n_bins, params
        every = np.arange(cuts.n_features)
        self._of_tree = self._draw(every, params.colsample_bytree)
        self._of_level: dict[int, NDArray[np.intp]] = {}

    def _draw(self, features: NDArray[np.intp], share: float) -> NDArray[np.intp]:
        """Draw a share of features without replacement, in ascending order."""
        if share >= 1:
            return features
        count = max(1, int(share * len(features)))
        return np.sort(self._rng.choice(features, count, replace=False))

    def mask(
        self, depths: NDArray[np.int32], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits nodes at these depths may use, bool, shape (k, total_bins).

        None if all splits are allowed. `allowed`, of the same shape, is a further restriction.
        """
        params = self._params
        if not params.samples_columns:
            return allowed
        chosen = np.zeros((len(depths), len(self._n_bins)), dtype=bool)
        for k, depth in enumerate(depths.tolist()):
            # All nodes of a level share one sample, which is drawn at the first of them.
            if depth not in self._of_level:
                self._of_level[depth] = self._draw(self._of_tree, params.colsample_bylevel)
            chosen[k, self._draw(self._of_level[depth], params.colsample_bynode)] = True
        mask = np.repeat(chosen, self._n_bins, axis=1)
        return mask if allowed is None else mask & allowed


T = TypeVar("T")

# Measured: with 50,000 rows per block, two threads were slower than one while another process was
# running. With 500,000 rows they were 1.6 times as fast.
SMALLEST_BLOCK = 2**17


class Workers:
    """Calls a function for several arguments in parallel.

    Parameters
    ----------
    threads : int
        Number of threads. 1: all calls run one after the other in the calling thread.

    Raises
    ------
    UsageError
        If ``threads`` is below 1.
    """

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads={threads!r}: give a whole number of 1 or more")
        self._threads = threads
        # The calling thread is one of the threads.
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def blocks(self, n: int) -> list[slice]:
        """Divide ``n`` rows into equal consecutive blocks: one per thread, fewer for few rows."""
        # Small blocks cost more than a second thread saves.
        count = max(1, min(self._threads, n // SMALLEST_BLOCK))
        return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]

    def map(self, function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
        """Return the results of ``function`` for all arguments, in order.

        The first error is raised.
        """
        calls = list(zip(*arguments, strict=True))
        if self._pool is None or len(calls) < 2:
            return [function(*call) for call in calls]
        submitted = [self._pool.submit(function, *call) for call in calls[1:]]
        return [function(*calls[0]), *(other.result() for other in submitted)]


# A float32 of absolute value 2^-26 or more is then represented exactly. These sums are more precise
# than those of XGBoost, which are float64.
_FINEST_BITS = 50
_SUM_BITS = 61  # bits of an int64 that a sum may use, with two value bits in reserve

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class OwnerRows:
    """The rows of one party."""

    bins: Bins
    y: NDArray[Any]  # array, shape (n,): labels
    # float array, shape (n,): sample weights. None: every weight is 1.
    weight: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", np.asarray(self.y))
        if self.y.shape != (len(self.bins),):
            raise DataError(f"labels of shape {self.y.shape} for {len(self.bins)} rows")
        if self.weight is not None:
            object.__setattr__(self, "weight", checked_weights(self.weight, len(self.bins)))

    def take(self, span: slice) -> OwnerRows:
        """Return consecutive rows. Nothing is copied."""
        weight = None if self.weight is None else self.weight[span]
        return OwnerRows(self.bins.take(span), self.y[span], weight)


def checked_weights(weight: Any, n: int) -> NDArray[np.float32]:
    """Return sample weights as float32, shape (n,).

    Raises
    ------
    DataError
        If a weight is negative or not finite, or if the number of weights differs from n.
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
    """Return the histograms of nodes over the rows of one block."""
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

    Parameters
    ----------
    parts : sequence of (Bins, int64 array of shape (n_i, 2))
        Binned rows and fixed-point gradients.
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the gradients.
    sampler : ColumnSampler, optional
        Draws the features that each node may use.
    allowed : callable, optional
        Function from nodes, shape (k,), and the partitions of the rows to the splits that these
        nodes may use, bool, shape (k, total_bins).
    workers : Workers, optional
        Threads. By default, the parts are processed one after the other.

    Returns
    -------
    tree : Tree
    partitions : list of RowPartition
        For each part, the leaf of every row.
    """
    at_once = (workers or Workers()).map
    bins, gh = zip(*parts, strict=True)
    rows = at_once(lambda b: RowPartition(len(b)), bins)
    root = sum(at_once(lambda g, p: node_sums(g, p.rows, p.ranges(ROOT))[0], gh, rows))
    grower = TreeGrower(cuts, params, np.asarray(root, dtype=np.int64), bits=bits)
    while len(grower.nodes):
        # The sum of the parts is exact, because the histograms contain integers.
        histograms = at_once(partial(_histograms, grower.to_build), bins, gh, rows)
        hist = reduce(lambda total, one: np.add(total, one, out=total), histograms)
        mask = allowed(grower.nodes, rows) if allowed else None
        decisions = grower.decide(hist, sampler.mask(grower.depths, mask) if sampler else mask)
        at_once(lambda b, r, node_decisions=decisions: r.split(b, node_decisions), bins, rows)
    return grower.finish(), rows


@dataclass(frozen=True, eq=False)
class BoostingState:
    """Rows of one party and the settings with which trees are grown on them.

    It does not contain the model, so that trees can be added to any margins.
    """

    rows: OwnerRows
    cuts: Cuts
    params: TreeParams
    objective: Objective
    streams: Streams  # streams of the party, from which row samples are drawn
    # Smallest number of rows on each side of a split. 0: only `min_child_weight` limits splits. A
    # round whose sample has fewer rows uses none.
    least_rows: int = 0
    # Streams from which column samples are drawn, by default `streams`.
    columns: Streams | None = None
    # Binary places of all sums. None: as many as possible, chosen in every round. This is allowed
    # only if no other party has to use the same number.
    bits: Bits | None = None
    workers: Workers = Workers()  # the trees do not depend on the number of threads

    @cached_property
    def _blocks(self) -> list[tuple[slice, OwnerRows]]:
        """The rows in consecutive blocks, one per thread."""
        return [(span, self.rows.take(span)) for span in self.workers.blocks(len(self.rows.y))]

    def round(self, number: int, margin: NDArray[np.float32]) -> list[Tree]:
        """Grow one tree per output and add the trees to the margins in place.

        Parameters
        ----------
        number : int
            Number of the round, from 0. Each round draws new samples.
        margin : float32 array, shape (K, n)
            Margins of the rows. They are changed in place.

        Returns
        -------
        trees : list of Tree
        """
        at_once = self.workers.map
        spans, blocks = zip(*self._blocks, strict=True)
        gh_blocks = at_once(lambda s, b: self.objective.gradients(margin[:, s], b.y), spans, blocks)
        bits = self.bits or finest_bits(gh_blocks, [b.weight for b in blocks])
        dropped = self._dropped(number)

        def units(gh: NDArray[np.float32], span: slice, rows: OwnerRows) -> NDArray[np.int64]:
            values = weighted(gh, rows.weight, bits)
            if dropped is not None:
                # Rows that are not sampled stay in the partition, so that they receive their leaf
                # value.
                values[:, dropped[span]] = 0
            return to_fixed(values, bits)

        gradients = at_once(units, gh_blocks, spans, blocks)
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
            # Adding leaf values through the partition avoids routing the rows through the tree.
            values, output = tree.value[leaves], margin[k]
            at_once(lambda p, s: p.add_to(output[s], leaves, values), partitions, spans)  # noqa: B023
            grown.append(tree)
        return grown

    def _dropped(self, number: int) -> Mask | None:
        """Return which rows the round leaves out, None if it uses all rows."""
        n = len(self.rows.y)
        dropped = dropped_rows(n, self.params.subsample, self.streams, number)
        if dropped is not None and n - dropped.sum() < self.least_rows:
            # A round with fewer rows than `least_rows` cannot split anything.
            dropped[:] = True
        return dropped

    def _roomy(
        self, dropped: Mask | None, nodes: NDArray[np.int32], partitions: list[RowPartition]
    ) -> Mask:
        """Return which splits have at least `least_rows` rows on both sides."""
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
    """Return the largest number of binary places for which int64 sums of gradients fit.

    It is at most 50.

    Parameters
    ----------
    gradients : sequence of float32 array, shape (K, n_i, 2)
        Gradients and hessians of each block of rows.
    weights : sequence of float array, shape (n_i,), or None
        Sample weights of each block.
    """
    sizes = sum(
        (np.abs(gh, dtype=np.float64) * (1.0 if w is None else w[:, None])).sum(axis=1)
        for gh, w in zip(gradients, weights, strict=True)
    )
    g, h = np.max(sizes, axis=0).tolist()
    room = [_SUM_BITS - math.ceil(math.log2(max(total, 1.0))) for total in (g, h)]
    return min(room[0], _FINEST_BITS), min(room[1], _FINEST_BITS)


def enough_rows(counts: NDArray[np.int64], cuts: Cuts, least: int) -> Mask:
    """Return which splits have enough rows on both sides, bool, shape (k, total_bins).

    Rows with a missing value may go to either side and are not counted.

    Parameters
    ----------
    counts : int64 array, shape (k, total_bins)
        Number of rows per node and bin.
    cuts : Cuts
        Borders of the bins.
    least : int
        Smallest number of rows on each side.
    """
    allowed = np.empty(counts.shape, dtype=bool)
    for begin, end in zip(cuts.offsets[:-1], cuts.offsets[1:], strict=True):
        # Entry b contains the rows of all bins up to b.
        below = np.cumsum(counts[:, begin:end], axis=1)
        above = below[:, -1:] - below
        allowed[:, begin:end] = (below >= least) & (above >= least)
    return allowed


def add_trees(
    trees: Sequence[Tree], X: NDArray[np.float32], margin: NDArray[np.float32], first: int = 0
) -> None:
    """Add trees to margins in place, one after the other in float32, as XGBoost does.

    Parameters
    ----------
    trees : sequence of Tree
        The trees.
    X : float32 array, shape (n, d)
        Rows.
    margin : float32 array, shape (K, n)
        Margins of the rows.
    first : int
        Number of the first tree in the model. Tree t adds to output ``t % K``.
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
    """Train a boosted forest on one table.

    Parameters
    ----------
    X : float array, shape (n, d), or Bins
        Rows. NaN marks a missing value.
    y : array, shape (n,)
        Labels.
    cuts : Cuts
        Cut points, for example from `fedtrees.trees.cut_points.quantile_cuts`.
    params : TreeParams
        Hyperparameters.
    objective : Objective
        Loss function, by default the log loss of two classes.
    weight : float array, shape (n,), optional
        Sample weights, 0 or more.
    streams : Streams, optional
        Source of the samples of rows and columns, by default ``Streams(0)``.
    threads : int
        Number of threads. The result does not depend on it.

    Raises
    ------
    DataError
        If there are no rows, if X does not fit the cuts or contains an infinite value, if labels do
        not fit the objective, or if all labels are equal and no base score is given.
    """
    rows = OwnerRows(X if isinstance(X, Bins) else bin_rows(X, cuts), y, weight)
    objective.check(rows.y)
    if not len(rows.y):
        raise DataError("no rows to train on")
    totals = objective.target_sums(rows.y, rows.weight)
    bits, score, randomness = objective.bits(totals), params.base_score, streams or Streams(0)
    start = objective.start(totals) if score is None else objective.base_margin(score)
    margin = np.repeat(start[:, None], len(rows.y), axis=1)
    with Workers(threads) as workers:
        growth = BoostingState(
            rows, cuts, params, objective, randomness.client(0),
            columns=randomness.deciding(), bits=bits, workers=workers,
        )  # fmt: skip
        trees = [t for r in range(params.trees) for t in growth.round(r, margin)]
    return Forest(tuple(trees), start, objective)
