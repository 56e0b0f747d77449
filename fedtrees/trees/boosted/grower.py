"""Grow a tree from histograms: the algorithm of the party that decides on splits.

The module also assembles a tree from its splits and leaf values. The party that decides on splits
uses this part, and so do the parties that receive the splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import SplitFinder, Splits, leaf_values
from fedtrees.trees.partition import ROOT, Decisions


class TreeBuilder:
    """A tree that starts as a single leaf and grows by splits.

    Children are numbered in pairs, in the order in which their parents were split. This is the
    numbering of XGBoost if every level is split in ascending order of the nodes.
    """

    def __init__(self) -> None:
        self._size, self._has_gain = 1, False
        # Feature, threshold, left child, direction of missing values and gain by inner node.
        self._splits: dict[int, tuple[Any, ...]] = {}
        self._categories: dict[int, NDArray[np.bool_]] = {}  # by node that is split by categories
        self._sums: dict[int, tuple[float, float]] = {}
        self._values: dict[int, np.float32] = {}  # by leaf, 0 if it has no entry

    def __len__(self) -> int:
        return self._size

    def expand(
        self,
        nodes: ArrayLike,
        feature: ArrayLike,
        threshold: ArrayLike,
        default_left: ArrayLike,
        gain: ArrayLike | None = None,
        categories: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int32]:
        """Split nodes. Nodes with feature -1 stay leaves.

        Parameters
        ----------
        nodes, feature, threshold, default_left, gain : arrays, shape (k,)
            As in `Tree`.
        categories : bool array, shape (k, width), optional
            As in `Tree`. It is read for nodes whose threshold is NaN.

        Returns
        -------
        left : int32 array, shape (k,)
            Left children, -1 if the node stays a leaf. The right child has the next number.

        Raises
        ------
        DataError
            If a node does not exist or was split before.
        """
        columns, missing_left = np.asarray(feature), np.asarray(default_left)
        cuts = np.asarray(threshold, dtype=np.float32)
        gains = np.zeros(len(columns)) if gain is None else np.asarray(gain)
        self._has_gain = self._has_gain or gain is not None
        left = np.full(len(columns), -1, dtype=np.int32)
        for k, node in enumerate(np.asarray(nodes).tolist()):
            self._check_leaf(node)
            if columns[k] < 0:
                continue
            left[k] = self._size
            self._splits[node] = columns[k], cuts[k], left[k], missing_left[k], gains[k]
            if categories is not None and np.isnan(cuts[k]):
                self._categories[node] = categories[k]
            self._values.pop(node, None)
            self._size += 2
        return left

    def _check_leaf(self, node: int) -> None:
        """Raise `DataError` unless a node exists and is a leaf."""
        if not 0 <= node < len(self):
            raise DataError(f"node {node} does not exist yet; the tree has {len(self)} nodes")
        if node in self._splits:
            raise DataError(f"node {node} was split before")

    def set_sums(self, nodes: ArrayLike, sums: ArrayLike) -> None:
        """Store gradient and hessian sums of nodes, float, shape (k, 2)."""
        pairs = np.asarray(sums, dtype=np.float64).reshape(-1, 2).tolist()
        for node, (g, h) in zip(np.asarray(nodes).tolist(), pairs, strict=True):
            self._sums[node] = (g, h)

    def statistics(
        self, nodes: ArrayLike
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]]:
        """Return gradient sum, hessian sum and gain of nodes, shape (k,) each."""
        ids = np.asarray(nodes).tolist()
        sums = np.array([self._sums[i] for i in ids], dtype=np.float64).reshape(-1, 2)
        gain = np.array([self._splits[i][-1] if i in self._splits else 0 for i in ids], np.float32)
        return sums[:, 0], sums[:, 1], gain

    def set_values(self, nodes: ArrayLike, values: ArrayLike) -> None:
        """Set the values of leaves, in log-odds including the learning rate, shape (k,).

        Raises
        ------
        DataError
            If a node is not a leaf.
        """
        outputs = np.asarray(values, dtype=np.float32)
        for node, value in zip(np.asarray(nodes).tolist(), outputs, strict=True):
            self._check_leaf(node)
            self._values[node] = value

    def build(self) -> Tree:
        """Return the tree.

        Sums that were not set are NaN. If no sums were set, ``g`` and ``h`` are None.
        """
        n = self._size
        feature, left = (np.full(n, -1, dtype=np.int32) for _ in range(2))
        threshold, value, gain = (np.zeros(n, dtype=np.float32) for _ in range(3))
        default_left, unknown = np.zeros(n, dtype=bool), (np.nan, np.nan)
        for node, split in self._splits.items():
            feature[node], threshold[node], left[node], default_left[node], gain[node] = split
        value[list(self._values)] = list(self._values.values())
        sums = np.array([self._sums.get(i, unknown) for i in range(n)], dtype=np.float64)
        return Tree(
            feature,
            threshold,
            left,
            right=np.where(left < 0, -1, left + 1).astype(np.int32),
            default_left=default_left,
            value=value,
            g=sums[:, 0] if self._sums else None,
            h=sums[:, 1] if self._sums else None,
            gain=gain if self._has_gain else None,
            categories=self._sets(),
        )

    def _sets(self) -> NDArray[np.bool_] | None:
        """Return the categories of all nodes as one array, None if there are none."""
        if not self._categories:
            return None
        width = max(map(len, self._categories.values()))
        sets = np.zeros((self._size, width), dtype=bool)
        for node, row in self._categories.items():
            sets[node, : len(row)] = row
        return sets


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Nodes whose best split is known, with the data that is needed below them."""

    nodes: NDArray[np.int32]
    sums: NDArray[np.int64]
    depths: NDArray[np.int32]
    splits: Splits
    hist: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.nodes)

    def where(self, chosen: NDArray[Any]) -> _Candidates:
        """Return some of the nodes (mask or indices)."""
        # Histograms are large, so that unnecessary copies are avoided.
        if chosen.dtype == bool and chosen.all():
            return self
        return _Candidates(
            self.nodes[chosen],
            self.sums[chosen],
            self.depths[chosen],
            self.splits.where(chosen),
            None if self.hist is None else self.hist[chosen],
        )


class TreeGrower:
    """State of one tree that is grown: it receives histograms and returns split decisions.

    It never uses a row. While `nodes` is not empty, the caller collects the histograms of
    `to_build`, summed over all parties with rows, calls `choose_splits`, and sends the decisions to
    these parties.

    With depth-wise growth, all open nodes are split at once. With ``grow_policy="lossguide"``, open
    nodes with a known split are queued, and the one with the largest gain is split next, until
    `max_leaves` is reached. Of equal gains, the older node is chosen, as in XGBoost.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Hyperparameters.
    root_sums : int64 array, shape (2,)
        Fixed-point sums of gradients and hessians over all rows.
    bits : Bits
        Binary places of gradients and hessians in all sums.
    subtract : bool
        True: request only the histogram of the lighter child of each pair, and subtract it from
        that of the parent. False: request every node, so that noise is drawn for each of them.
    complete : bool array, shape (d,), optional
        Features without missing values. No split separates missing values of these features from
        all present values. With exact sums there is no such split. But bins that are rounded, noisy
        or suppressed do not add up to the sums of the node, and the difference would be treated as
        missing values.
    unbounded : bool
        Whether gradients are unbounded. The difference is then distributed over the bins
        (`adding_up`). Otherwise it would increase from tree to tree, because the rows that cause it
        are on the other side of the split.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Open nodes, which need a decision.
    sums : int64 array, shape (k, 2)
        Their fixed-point sums.
    depths : int32 array, shape (k,)
        Their depths, 0 at the root.
    to_build : int32 array, shape (m,)
        Those of `nodes` whose histograms are requested, ascending.
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
        self._builder, self._finder = TreeBuilder(), SplitFinder(cuts, params, bits)
        self._n_leaves = 1
        self._queue: list[_Candidates] = []  # each element contains one node, lossguide only
        self._leaves: list[NDArray[np.int32]] = []
        self._leaf_sums: list[NDArray[np.int64]] = []
        self._parents: NDArray[np.int64] | None = None  # histograms of the parents of `nodes`
        sums = np.asarray(root_sums, dtype=np.int64)[None]
        self._open(ROOT, sums, np.zeros(1, dtype=np.int32))

    def _open(
        self, nodes: NDArray[np.int32], sums: NDArray[np.int64], depths: NDArray[np.int32]
    ) -> None:
        """Open nodes for a decision, or make them leaves if the tree is deep or wide enough."""
        if sums.ndim == 2:  # trees of several outputs have no statistics
            self._builder.set_sums(nodes, from_fixed(sums, self.bits))
        if self._full or (len(depths) and depths[0] == self._params.max_depth):
            self._close(nodes, sums)
            nodes, sums, depths = nodes[:0], sums[:0], depths[:0]
        self.nodes, self.sums, self.depths = nodes, sums, depths
        pairs = self._parents is not None
        self.to_build = children_to_build(nodes, sums) if pairs else nodes

    @property
    def _full(self) -> bool:
        """Whether the tree has the largest allowed number of leaves."""
        return 0 < self._params.max_leaves <= self._n_leaves

    def _close(self, nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> None:
        """Make nodes leaves."""
        self._leaves.append(nodes)
        self._leaf_sums.append(sums)

    def complete(self, built: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the histograms of all `nodes` from those of `to_build`.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, 2)
            Histograms of `to_build`.

        Returns
        -------
        hist : int64 array, shape (k, total_bins, 2)

        Raises
        ------
        DataError
            If the shape of `built` is wrong.
        """
        expected_shape = (len(self.to_build), self._cuts.total_bins, *self.sums.shape[1:])
        if built.shape != expected_shape:
            raise DataError(f"histograms of shape {built.shape}; expected {expected_shape}")
        if len(self.to_build) == len(self.nodes):
            return built
        assert self._parents is not None
        return with_siblings(built, self.to_build == self.nodes[::2], self._parents)

    def choose_splits(
        self, built: NDArray[np.int64], mask: NDArray[np.bool_] | None = None
    ) -> Decisions:
        """Choose the best splits of the open nodes, and open their children.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, 2)
            Histograms of `to_build`, summed over all parties with rows.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen at each of `nodes`.

        Returns
        -------
        decisions : Decisions
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
        """Return the best splits of the open nodes, given their histograms.

        Parameters
        ----------
        hist : int64 array, shape (k, total_bins, 2)
            Histograms of `nodes`.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen.
        pruned : bool
            Whether nodes stay leaves if their best split gains too little.
        """
        if self._between is not None:
            mask = np.ones(hist.shape[:2], dtype=bool) if mask is None else mask
            mask = mask & self._between
        consistent_hist = hist
        if self._complete is not None and self._unbounded:
            consistent_hist = adding_up(hist, self.sums, self._cuts, self._complete)
        return self._finder.best(consistent_hist, self.sums, mask, pruned=pruned)

    def accept(self, splits: Splits, hist: NDArray[np.int64] | None = None) -> Decisions:
        """Split the open nodes as given, and open their children.

        Without the histograms of `nodes` (as `complete` returns them), the next level is built
        without subtraction.
        """
        # Depth-wise, all open nodes have the same depth.
        if self.depths[0] + 1 == self._params.max_depth:
            # The children will be leaves, and copies of the widest level are the largest.
            hist = None
        candidates = _Candidates(self.nodes, self.sums, self.depths, splits, hist)
        inner = splits.feature >= 0
        self._close(self.nodes[~inner], self.sums[~inner])
        candidates = candidates.where(inner)
        if self._params.grow_policy == "depthwise":
            accepted = self._within_leaves(candidates)
            return self._split(accepted)
        self._queue += [candidates.where(np.array([k])) for k in range(len(candidates))]
        parts = list(self._split_best())
        return Decisions.join(parts)

    def _within_leaves(self, candidates: _Candidates) -> _Candidates:
        """Return the candidates that fit under `max_leaves`, in the order of the nodes."""
        room = self._params.max_leaves - self._n_leaves
        if self._params.max_leaves == 0 or len(candidates) <= room:
            return candidates
        rest = candidates.where(np.arange(room, len(candidates)))
        self._close(rest.nodes, rest.sums)
        return candidates.where(np.arange(room))

    def _split_best(self) -> Iterator[Decisions]:
        """Split the best nodes of the queue until the children of one need histograms."""
        while self._queue and not self._full:
            # Older nodes have smaller numbers.
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
        sums = np.stack([s.left_sums, s.right_sums], axis=1).reshape(-1, *s.left_sums.shape[1:])
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
        """Return the leaves so far, shape (k,), and their sums, int64, shape (k, 2)."""
        return np.concatenate(self._leaves), np.concatenate(self._leaf_sums)

    def leaf_values(self) -> NDArray[np.float32]:
        """Return the values of `leaves` that follow from their sums, float32, shape (k,)."""
        return leaf_values(self.leaves()[1], self._params, self.bits)

    def finish(self, values: NDArray[np.float32] | None = None) -> Tree:
        """Return the tree with the given values of `leaves`, by default `leaf_values`."""
        self._builder.set_values(self.leaves()[0], self.leaf_values() if values is None else values)
        return self._builder.build()


def between_values(cuts: Cuts, complete: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return which splits have values on both sides, bool, shape (total_bins,), None for all.

    After the last bin of a complete feature there is no value. Splits by categories are not
    restricted, because each candidate leaves some categories on the other side.
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
    """Return histograms whose bins add up to the sums of their node in every complete feature.

    The rows that are missing in the bins are assumed to have the same distribution as those in the
    bins. The remaining difference of the gradients is distributed in proportion to the hessians.
    Histograms that already add up are not changed.

    Parameters
    ----------
    hist : int64 array, shape (k, total_bins, 2)
        Histograms of the nodes.
    totals : int64 array, shape (k, 2)
        Sums of the nodes.
    cuts : Cuts
        Borders of the bins.
    complete : bool array, shape (d,)
        Features without missing values.
    """
    shown = np.add.reduceat(hist, cuts.offsets[:-1], axis=1)
    off = (shown != totals[:, None]).any(axis=2) & complete & (shown[..., 1] > 0)
    if not off.any():
        return hist
    out = hist.copy()
    for node, f in np.argwhere(off & (totals[:, 1] > 0)[:, None]).tolist():
        at = slice(cuts.offsets[f], cuts.offsets[f + 1])
        part, (g, h) = hist[node, at].astype(np.float64), totals[node].astype(np.float64)
        # Scale the bins to the hessian of the node, then distribute the remaining gradient.
        part *= h / part[:, 1].sum()
        part[:, 0] += (g - part[:, 0].sum()) * part[:, 1] / h
        adjusted = np.rint(part).astype(np.int64)
        # The bin with the largest hessian receives the rounding errors, so that the sum is exact.
        adjusted[np.argmax(part[:, 1])] += totals[node] - adjusted.sum(axis=0)
        out[node, at] = adjusted
    return out


def children_to_build(nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the lighter child of every pair, int32, shape (k / 2,).

    If both have the same weight, it is the left one. The weight of a node is its hessian sum,
    because the numbers of rows may be unknown.

    Parameters
    ----------
    nodes : int32 array, shape (k,)
        Children in pairs.
    sums : int64 array, shape (k, 2) or (k, K, 2)
        Their sums. Hessian sums of K outputs are added.
    """
    weight = sums[..., 1] if sums.ndim == 2 else sums[..., 1].sum(axis=1)
    right = weight[1::2] < weight[::2]
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
        Whether that is the left child.
    parents : int64 array, shape (k, total_bins, 2)
        Histograms of the parents.
    """
    out = np.empty((len(built), 2, *built.shape[1:]), dtype=np.int64)
    for pair, side in enumerate(np.where(is_left, 0, 1)):
        out[pair, side] = built[pair]
        # The difference is exact, because histograms contain integers.
        np.subtract(parents[pair], built[pair], out=out[pair, 1 - side])
    return out.reshape(-1, *built.shape[1:])
