"""Boosting over tables in one process: the federation's trees without its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
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
from fedtrees.trees.boosted.threads import Workers, row_blocks
from fedtrees.trees.partition import ROOT, Decisions, RowPartition


@dataclass(frozen=True, eq=False)
class Owned:
    """The rows of one owner.

    Attributes
    ----------
    bins : Bins
    y : array, shape (n,)
        Labels.
    weight : float array, shape (n,), or None
        Sample weights; None: 1.
    """

    bins: Bins
    y: NDArray[Any]
    weight: NDArray[Any] | None = None

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

    Raises
    ------
    DataError
        If one is negative or not finite, or their number differs.
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


def _split(decisions: Decisions, bins: Bins, rows: RowPartition) -> None:
    rows.split(bins, decisions)


def _add(output: int, tree: Tree, rows: RowPartition, margin: NDArray[np.float32]) -> None:
    leaves = tree.leaves.astype(np.int32)
    rows.add_to(margin[output], leaves, tree.value[leaves])


def grow_tree(
    parts: Sequence[tuple[Bins, NDArray[np.int64]]],
    cuts: Cuts,
    params: TreeParams,
    *,
    bits: Bits = UNIT_BITS,
    sampler: ColumnSampler | None = None,
    workers: Workers | None = None,
) -> tuple[Tree, list[RowPartition]]:
    """Grow one tree over the rows of one or more owners.

    Parameters
    ----------
    parts : sequence of (Bins, int64 array of shape (n_i, 2))
        Binned rows and fixed-point gradients of every owner.
    cuts : Cuts
    params : TreeParams
    bits : pair of int
        Binary places of the gradients.
    sampler : ColumnSampler, optional
    workers : Workers, optional
        Default: every owner in turn.

    Returns
    -------
    tree : Tree
    partitions : list of RowPartition
        Where every owner's rows ended up.
    """
    at_once = (workers or Workers()).map
    bins, gh = zip(*parts, strict=True)
    rows = at_once(lambda b: RowPartition(len(b)), bins)
    root = sum(at_once(lambda g, p: node_sums(g, p.rows, p.ranges(ROOT))[0], gh, rows))
    grower = TreeGrower(cuts, params, np.asarray(root, dtype=np.int64), bits=bits)
    while len(grower.nodes):
        found = at_once(partial(_histograms, grower.to_build), bins, gh, rows)
        hist = reduce(lambda total, one: np.add(total, one, out=total), found)
        decisions = grower.decide(hist, sampler.mask(grower.depths) if sampler else None)
        at_once(partial(_split, decisions), bins, rows)
    return grower.finish(), rows


def grow_forest_over(
    owners: Sequence[Owned],
    cuts: Cuts,
    params: TreeParams,
    objective: Objective = LOGISTIC,
    streams: Streams | None = None,
    threads: int = 1,
) -> Forest:
    """Boost a forest over the rows of one or more owners; the result ignores who owns which.

    Only the rows that `subsample` leaves out depend on the owner: each draws its own.

    Parameters
    ----------
    owners : sequence of Owned
    cuts : Cuts
    params : TreeParams
    objective : Objective
    streams : Streams, optional
        Where samples of rows and columns are drawn from; default ``Streams(0)``.
    threads : int
        The result is the same for any number.

    Raises
    ------
    DataError
        If there are no rows, labels do not suit the objective, or all labels are equal and no
        base score is given.
    """
    for owner in owners:
        objective.check(owner.y)
    if not sum(len(owner.y) for owner in owners):
        raise DataError("no rows to train on")
    totals = np.sum([objective.target_sums(o.y, o.weight) for o in owners], axis=0)
    bits = objective.bits(totals)
    score = params.base_score
    start = objective.start(totals) if score is None else objective.base_margin(score)
    with Workers(threads) as workers:
        boosting = _Boosting(owners, cuts, params, objective, bits, streams or Streams(0), workers)
        blocks = boosting.blocks(threads)
        margins = [np.repeat(start[:, None], len(b.rows.y), axis=1) for b in blocks]
        trees = [t for r in range(params.trees) for t in boosting.round(r, blocks, margins)]
    return Forest(tuple(trees), start, objective)


@dataclass(frozen=True, eq=False)
class _Block:
    """Consecutive rows of an owner: its number, which of its rows, and these rows."""

    owner: int
    span: slice
    rows: Owned


@dataclass(frozen=True, eq=False)
class _Boosting:
    """What stays the same from round to round."""

    owners: Sequence[Owned]
    cuts: Cuts
    params: TreeParams
    objective: Objective
    bits: Bits
    streams: Streams
    workers: Workers

    def blocks(self, threads: int) -> list[_Block]:
        """Cut the rows of every owner into blocks, one per thread."""
        return [
            _Block(i, span, owner.take(span))
            for i, owner in enumerate(self.owners)
            for span in row_blocks(len(owner.y), threads)
        ]

    def round(
        self, round: int, blocks: list[_Block], margins: list[NDArray[np.float32]]
    ) -> Iterator[Tree]:
        """Grow one tree per output and add it to the margins, in place."""
        at_once = self.workers.map
        dropped = [self._dropped(i, round) for i in range(len(self.owners))]
        gradients = at_once(lambda b, m: self._gradients(b, m, dropped[b.owner]), blocks, margins)
        for k in range(self.objective.n_outputs):
            number = round * self.objective.n_outputs + k
            sampler = ColumnSampler(self.cuts, self.params, self.streams.child("server"), number)
            inputs = [(b.rows.bins, gh[k]) for b, gh in zip(blocks, gradients, strict=True)]
            tree, partitions = grow_tree(
                inputs,
                self.cuts,
                self.params,
                bits=self.bits,
                sampler=sampler,
                workers=self.workers,
            )
            at_once(partial(_add, k, tree), partitions, margins)
            yield tree

    def _dropped(self, owner: int, round: int) -> NDArray[np.bool_] | None:
        streams, n = self.streams.child(f"client-{owner}"), len(self.owners[owner].y)
        return dropped_rows(n, self.params.subsample, streams, round)

    def _gradients(
        self, block: _Block, margin: NDArray[np.float32], dropped: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        gh = self.objective.gradients(margin, block.rows.y)
        gh = weighted(gh, block.rows.weight, self.bits)
        if dropped is not None:
            gh[:, dropped[block.span]] = 0
        return to_fixed(gh, self.bits)


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
    """Boost a forest over one table: the federation with a single owner.

    Parameters
    ----------
    X : float array, shape (n, d), or Bins
        Rows; NaN marks a missing value.
    y : array, shape (n,)
        Labels.
    cuts : Cuts
        For instance `fedtrees.trees.sketch.quantile_cuts`.
    params : TreeParams
    objective : Objective
    weight : float array, shape (n,), optional
        Sample weights, 0 or more.
    streams : Streams, optional
        As in `grow_forest_over`.

    Raises
    ------
    DataError
        As `grow_forest_over`, and if X does not fit the cuts or is infinite somewhere.
    """
    bins = X if isinstance(X, Bins) else bin_rows(X, cuts)
    return grow_forest_over([Owned(bins, y, weight)], cuts, params, objective, streams, threads)
