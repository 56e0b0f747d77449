"""Grow trees: the coordinator's state, and the engine that runs it over tables."""

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
from fedtrees.trees.builder import TreeBuilder
from fedtrees.trees.fixed_point import UNIT_BITS, Bits, from_fixed, to_fixed, weighted
from fedtrees.trees.forest import Forest, Tree
from fedtrees.trees.histogram import build_histogram, node_sums
from fedtrees.trees.losses import LOGISTIC, Objective
from fedtrees.trees.params import TreeParams
from fedtrees.trees.partition import Decisions, RowPartition
from fedtrees.trees.sampling import ColumnSampler, dropped_rows
from fedtrees.trees.splits import Splits
from fedtrees.trees.splitting import best_splits, leaf_values
from fedtrees.trees.threads import Workers, row_blocks

_ROOT = np.zeros(1, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Nodes whose best split is known, and what is needed to go on below them."""

    nodes: NDArray[np.int32]
    sums: NDArray[np.int64]
    depths: NDArray[np.int32]
    splits: Splits
    hist: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.nodes)

    def where(self, chosen: NDArray[Any]) -> _Candidates:
        """Return some of them (mask or indices)."""
        if chosen.dtype == bool and chosen.all():  # histograms are large: no copy without need
            return self
        return _Candidates(
            self.nodes[chosen],
            self.sums[chosen],
            self.depths[chosen],
            self.splits.where(chosen),
            None if self.hist is None else self.hist[chosen],
        )


class TreeGrower:
    """The coordinator of one tree: takes histogram sums in, gives split decisions out.

    It never sees a row. While `nodes` is not empty: collect the histograms of `to_build` (summed
    over row owners), call `decide`, and send the decisions to the row owners.

    Depth-wise, all waiting nodes are split at once. With ``grow_policy="lossguide"`` the nodes
    whose split is known queue up, and the one of greatest gain (the older one if equal, as in
    XGBoost) is split next, until `max_leaves` are reached.

    Parameters
    ----------
    cuts : Cuts
    params : TreeParams
    root_sums : int64 array, shape (2,)
        Fixed-point sums of gradients and hessians over all rows.
    bits : pair of int
        Binary places of gradients and hessians in all sums.
    subtract : bool
        Ask only for the lighter child of each pair and obtain its sibling by subtraction.
        False: ask for every node (so that noise is drawn for each one).

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes that wait for a decision.
    sums : int64 array, shape (k, 2)
        Their fixed-point sums.
    depths : int32 array, shape (k,)
        Their depths, 0 at the root.
    to_build : int32 array, shape (m,)
        Those of them whose histograms have to be built, ascending.
    """

    def __init__(
        self,
        cuts: Cuts,
        params: TreeParams,
        root_sums: NDArray[np.int64],
        *,
        bits: Bits = UNIT_BITS,
        subtract: bool = True,
    ) -> None:
        self._cuts, self._params, self._subtract, self.bits = cuts, params, subtract, bits
        self._builder = TreeBuilder()
        self._n_leaves = 1
        self._queue: list[_Candidates] = []  # each of one node, lossguide only
        self._leaves: list[NDArray[np.int32]] = []
        self._leaf_sums: list[NDArray[np.int64]] = []
        self._parents: NDArray[np.int64] | None = None  # histograms of the parents of `nodes`
        sums = np.asarray(root_sums, dtype=np.int64).reshape(1, 2)
        self._open(_ROOT, sums, np.zeros(1, dtype=np.int32))

    def _open(
        self, nodes: NDArray[np.int32], sums: NDArray[np.int64], depths: NDArray[np.int32]
    ) -> None:
        """Make nodes wait for a decision, or leaves if the tree is deep or wide enough."""
        self._builder.set_sums(nodes, from_fixed(sums, self.bits))
        if self._full or (len(depths) and depths[0] == self._params.max_depth):
            self._close(nodes, sums)
            nodes, sums, depths = nodes[:0], sums[:0], depths[:0]
        self.nodes, self.sums, self.depths = nodes, sums, depths
        pairs = self._parents is not None
        self.to_build = children_to_build(nodes, sums) if pairs else nodes

    @property
    def _full(self) -> bool:
        return 0 < self._params.max_leaves <= self._n_leaves

    def _close(self, nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> None:
        self._leaves.append(nodes)
        self._leaf_sums.append(sums)

    def complete(self, built: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the histograms of all `nodes` from those of `to_build`.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, 2)

        Returns
        -------
        int64 array, shape (k, total_bins, 2)

        Raises
        ------
        DataError
            If the shape does not fit.
        """
        wanted = (len(self.to_build), self._cuts.total_bins, 2)
        if built.shape != wanted:
            raise DataError(f"histograms of shape {built.shape}; expected {wanted}")
        if len(self.to_build) == len(self.nodes):
            return built
        assert self._parents is not None
        return with_siblings(built, self.to_build == self.nodes[::2], self._parents)

    def decide(self, built: NDArray[np.int64], mask: NDArray[np.bool_] | None = None) -> Decisions:
        """Find the best splits of the waiting nodes, split what is due, go on to the children.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, 2)
            Histograms of `to_build`, summed over row owners.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen at each of `nodes`.
        """
        hist = self.complete(built)
        splits = best_splits(hist, self.sums, self._cuts, self._params, mask, self.bits)
        return self.accept(splits, hist)

    def accept(self, splits: Splits, hist: NDArray[np.int64] | None = None) -> Decisions:
        """Go on from splits of the waiting nodes, however chosen.

        Without the histograms of `nodes` (as `complete` returns them) the next level is built
        without subtraction.
        """
        if self.depths[0] + 1 == self._params.max_depth:
            hist = None  # the children will be leaves; copies of the widest level cost the most
        known = _Candidates(self.nodes, self.sums, self.depths, splits, hist)
        inner = splits.feature >= 0
        self._close(self.nodes[~inner], self.sums[~inner])
        known = known.where(inner)
        if self._params.grow_policy == "depthwise":
            due = self._within_leaves(known)
            return self._split(due)
        self._queue += [known.where(np.array([k])) for k in range(len(known))]
        parts = list(self._split_best())
        return Decisions.join(parts)

    def _within_leaves(self, known: _Candidates) -> _Candidates:
        """Return the candidates that fit under `max_leaves`, first come first served."""
        room = self._params.max_leaves - self._n_leaves
        if self._params.max_leaves == 0 or len(known) <= room:
            return known
        rest = known.where(np.arange(room, len(known)))
        self._close(rest.nodes, rest.sums)
        return known.where(np.arange(room))

    def _split_best(self) -> Iterator[Decisions]:
        """Split the best of the queue until its children wait for histograms."""
        while self._queue and not self._full:
            best = max(self._queue, key=lambda c: (c.splits.gain[0], -c.nodes[0]))
            self._queue.remove(best)
            yield self._split(best)
            if len(self.nodes):
                return
        for left in self._queue:
            self._close(left.nodes, left.sums)
        self._queue.clear()
        self.nodes, self.to_build = self.nodes[:0], self.to_build[:0]

    def _split(self, due: _Candidates) -> Decisions:
        """Record the splits and open the children."""
        s = due.splits
        left = self._builder.expand(
            due.nodes, s.feature, s.threshold, s.default_left, s.gain, s.categories
        )
        self._n_leaves += len(due)
        self._parents = due.hist if self._subtract else None
        children = np.stack([left, left + 1], axis=1).reshape(-1).astype(np.int32)
        sums = np.stack([s.left_sums, s.right_sums], axis=1).reshape(-1, 2)
        self._open(children, sums, np.repeat(due.depths + 1, 2).astype(np.int32))
        return Decisions(
            due.nodes, s.feature, s.bin, s.threshold, s.default_left, left, s.categories
        )

    def statistics(
        self, nodes: NDArray[np.int32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        """Return gradient sum, hessian sum and gain of nodes that were split, shape (k,) each."""
        return self._builder.statistics(nodes)

    def leaves(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the leaves found so far, shape (k,), and their sums, int64, shape (k, 2)."""
        return np.concatenate(self._leaves), np.concatenate(self._leaf_sums)

    def leaf_values(self) -> NDArray[np.float32]:
        """Return the outputs of `leaves` that their sums suggest, float32, shape (k,)."""
        return leaf_values(self.leaves()[1], self._params, self.bits)

    def finish(self, values: NDArray[np.float32] | None = None) -> Tree:
        """Return the tree, with the values of `leaves` (default: `leaf_values`)."""
        self._builder.set_values(self.leaves()[0], self.leaf_values() if values is None else values)
        return self._builder.build()


def children_to_build(nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the lighter child of every pair (the left one if equal), int32, shape (k / 2,).

    Weight is the hessian sum, which the coordinator knows; row counts it need not know.

    Parameters
    ----------
    nodes : int32 array, shape (k,)
        Children in pairs.
    sums : int64 array, shape (k, 2)
    """
    right = sums[1::2, 1] < sums[::2, 1]
    return np.where(right, nodes[1::2], nodes[::2]).astype(np.int32)


def with_siblings(
    built: NDArray[np.int64], is_left: NDArray[np.bool_], parents: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the histograms of all children, int64, shape (2k, total_bins, 2).

    Parameters
    ----------
    built : int64 array, shape (k, total_bins, 2)
        Histogram of one child of every pair.
    is_left : bool array, shape (k,)
        Whether that is the left one.
    parents : int64 array, shape (k, total_bins, 2)
    """
    out = np.empty((len(built), 2, *built.shape[1:]), dtype=np.int64)
    for pair, side in enumerate(np.where(is_left, 0, 1)):
        out[pair, side] = built[pair]
        np.subtract(parents[pair], built[pair], out=out[pair, 1 - side])
    return out.reshape(-1, *built.shape[1:])


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
    root = sum(at_once(lambda g, p: node_sums(g, p.rows, p.ranges(_ROOT))[0], gh, rows))
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
