"""Grow a tree from histogram sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splits import Splits
from fedtrees.trees.boosted.splitting import best_splits, leaf_values
from fedtrees.trees.partition import ROOT, Decisions


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
    """The state of one tree: takes histogram sums in, gives split decisions out.

    It never sees a row. While `nodes` is not empty: collect the histograms of `to_build` (summed
    over row owners), call `decide`, and send the decisions to the row owners.

    Depth-wise, all waiting nodes are split at once. With ``grow_policy="lossguide"`` the nodes
    whose split is known queue up, and the one of greatest gain (the older one if equal, as in
    XGBoost) is split next, until `max_leaves` are reached.

    `root_sums`: int64 array, shape (2,). Fixed-point sums of gradients and hessians over all rows.
    `bits`: Binary places of gradients and hessians in all sums.
    `subtract`: Ask only for the lighter child of each pair and obtain its sibling by subtraction.
    False: ask for every node (so that noise is drawn for each one).
    `complete`: bool array, shape (d,). Features in which no row lacks a value: no split sends
    missing values of them alone. With exact sums none would; bins that are rounded, noisy or
    suppressed do not add up to the node, and the rest passes for missing values.
    `unbounded`: Whether gradients have no bound. Then such a rest is shared out (`adding_up`): on
    one side it would grow from tree to tree, as the rows that it is of are on the other.

    `nodes`: int32 array, shape (k,). Nodes that wait for a decision.
    `sums`: int64 array, shape (k, 2). Their fixed-point sums.
    `depths`: int32 array, shape (k,). Their depths, 0 at the root.
    `to_build`: int32 array, shape (m,). Those of them whose histograms have to be built, ascending.
    """

    def __init__(
        self,
        cuts: Cuts,
        params: TreeParams,
        root_sums: NDArray[np.int64],
        *,
        bits: Bits = UNIT_BITS,
        subtract: bool = True,
        complete: NDArray[np.bool_] | None = None,
        unbounded: bool = False,
    ) -> None:
        self._between, self._complete = between_values(cuts, complete), complete
        self._unbounded = unbounded
        self._cuts, self._params, self._subtract, self.bits = cuts, params, subtract, bits
        self._builder = TreeBuilder()
        self._n_leaves = 1
        self._queue: list[_Candidates] = []  # each of one node, lossguide only
        self._leaves: list[NDArray[np.int32]] = []
        self._leaf_sums: list[NDArray[np.int64]] = []
        self._parents: NDArray[np.int64] | None = None  # histograms of the parents of `nodes`
        sums = np.asarray(root_sums, dtype=np.int64).reshape(1, 2)
        self._open(ROOT, sums, np.zeros(1, dtype=np.int32))

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

        Raises `DataError` if the shape does not fit.

        `built`: int64 array, shape (m, total_bins, 2).

        Returns: int64 array, shape (k, total_bins, 2).
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

        `built`: int64 array, shape (m, total_bins, 2). Histograms of `to_build`, summed over row
        owners.
        `mask`: bool array, shape (k, total_bins), optional. Splits that may be chosen at each of
        `nodes`.
        """
        hist = self.complete(built)
        return self.accept(self.best(hist, mask), hist)

    def best(
        self,
        hist: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
        *,
        pruned: bool = True,
    ) -> Splits:
        """Return the best splits of the waiting nodes, whose histograms these are."""
        if self._between is not None:
            mask = np.ones(hist.shape[:2], dtype=bool) if mask is None else mask
            mask = mask & self._between
        whole = hist
        if self._complete is not None and self._unbounded:
            whole = adding_up(hist, self.sums, self._cuts, self._complete)
        return best_splits(
            whole, self.sums, self._cuts, self._params, mask, self.bits, pruned=pruned
        )

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


def between_values(cuts: Cuts, complete: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return which splits have values on both sides, bool, shape (total_bins,); None for all.

    After the last bin of a complete feature there is none. Sets of categories are not restricted:
    those that are tried leave some out.
    """
    if complete is None:
        return None
    ordered = complete if cuts.categorical is None else complete & ~cuts.categorical
    if not ordered.any():
        return None
    between = np.ones(cuts.total_bins, dtype=bool)
    between[cuts.offsets[1:][ordered] - 1] = False
    return between


def adding_up(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    cuts: Cuts,
    complete: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return histograms whose bins add up to their nodes in every complete feature.

    Rows that are in no bin are taken to be spread as those that are; what their gradients then lack
    is shared out by rows. Of exact sums, which add up, nothing changes.
    """
    shown = np.add.reduceat(hist, cuts.offsets[:-1], axis=1)
    off = (shown != totals[:, None]).any(axis=2) & complete & (shown[..., 1] > 0)
    if not off.any():
        return hist
    out = hist.copy()
    for node, f in np.argwhere(off & (totals[:, 1] > 0)[:, None]).tolist():
        at = slice(cuts.offsets[f], cuts.offsets[f + 1])
        part, (g, h) = hist[node, at].astype(np.float64), totals[node].astype(np.float64)
        part *= h / part[:, 1].sum()
        part[:, 0] += (g - part[:, 0].sum()) * part[:, 1] / h
        made = np.rint(part).astype(np.int64)
        made[np.argmax(part[:, 1])] += totals[node] - made.sum(axis=0)
        out[node, at] = made
    return out


def children_to_build(nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the lighter child of every pair (the left one if equal), int32, shape (k / 2,).

    Weight is the hessian sum; row counts need not be known.

    `nodes`: int32 array, shape (k,). Children in pairs.
    `sums`: int64 array, shape (k, 2)
    """
    right = sums[1::2, 1] < sums[::2, 1]
    return np.where(right, nodes[1::2], nodes[::2]).astype(np.int32)


def with_siblings(
    built: NDArray[np.int64], is_left: NDArray[np.bool_], parents: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the histograms of all children, int64, shape (2k, total_bins, 2).

    `built`: int64 array, shape (k, total_bins, 2). Histogram of one child of every pair.
    `is_left`: bool array, shape (k,). Whether that is the left one.
    `parents`: int64 array, shape (k, total_bins, 2).
    """
    out = np.empty((len(built), 2, *built.shape[1:]), dtype=np.int64)
    for pair, side in enumerate(np.where(is_left, 0, 1)):
        out[pair, side] = built[pair]
        np.subtract(parents[pair], built[pair], out=out[pair, 1 - side])
    return out.reshape(-1, *built.shape[1:])
