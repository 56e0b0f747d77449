"""Grow trees level by level: the coordinator's state, and the engine that runs it over tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.builder import TreeBuilder
from fedtrees.trees.forest import Forest, Tree
from fedtrees.trees.histogram import build_histogram, node_sums
from fedtrees.trees.losses import base_margin, from_fixed, logistic_gradients, to_fixed
from fedtrees.trees.params import TreeParams
from fedtrees.trees.partition import Decisions, RowPartition
from fedtrees.trees.splitting import Splits, best_splits, leaf_values

_ROOT = np.zeros(1, dtype=np.int32)


class TreeGrower:
    """The coordinator of one tree: takes histogram sums in, gives split decisions out.

    It never sees a row. While `nodes` is not empty: collect the histograms of `to_build` (summed
    over row owners), call `decide`, and send the decisions to the row owners.

    Parameters
    ----------
    cuts : Cuts
    params : TreeParams
    root_sums : int64 array, shape (2,)
        Fixed-point sums of gradients and hessians over all rows.
    subtract : bool
        Ask only for the lighter child of each pair and obtain its sibling by subtraction.
        False: ask for every node (so that noise is drawn for each one).

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Nodes that wait for a decision.
    to_build : int32 array, shape (m,)
        Those of them whose histograms have to be built, ascending.
    """

    def __init__(
        self,
        cuts: Cuts,
        params: TreeParams,
        root_sums: NDArray[np.int64],
        *,
        subtract: bool = True,
    ) -> None:
        self._cuts, self._params, self._subtract = cuts, params, subtract
        self._builder = TreeBuilder()
        self._depth = 0
        self._leaves: list[NDArray[np.int32]] = []
        self._leaf_sums: list[NDArray[np.int64]] = []
        self._parents: NDArray[np.int64] | None = None  # histograms of the parents of `nodes`
        self._open(_ROOT, np.asarray(root_sums, dtype=np.int64).reshape(1, 2))

    def _open(self, nodes: NDArray[np.int32], sums: NDArray[np.int64]) -> None:
        """Make nodes wait for a decision, or leaves if the tree is deep enough."""
        self._builder.set_sums(nodes, from_fixed(sums))
        if self._depth == self._params.max_depth:
            self._close(nodes, sums)
            nodes, sums = nodes[:0], sums[:0]
        self.nodes, self.sums = nodes, sums
        pairs = self._subtract and self._depth > 0
        self.to_build = children_to_build(nodes, sums) if pairs else nodes

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
        """Split the waiting nodes and move on to their children.

        Parameters
        ----------
        built : int64 array, shape (m, total_bins, 2)
            Histograms of `to_build`, summed over row owners.
        mask : bool array, shape (k, total_bins), optional
            Splits that may be chosen at each of `nodes`.
        """
        hist = self.complete(built)
        return self.accept(best_splits(hist, self.sums, self._cuts, self._params, mask), hist)

    def accept(self, splits: Splits, hist: NDArray[np.int64] | None = None) -> Decisions:
        """Record splits of the waiting nodes, however chosen, and move on to their children.

        Without the histograms of `nodes` (as `complete` returns them) the next level is built
        without subtraction.
        """
        nodes = self.nodes
        left = self._builder.expand(
            nodes, splits.feature, splits.threshold, splits.default_left, splits.gain
        )
        inner = splits.feature >= 0
        self._close(nodes[~inner], self.sums[~inner])
        decisions = Decisions(
            nodes, splits.feature, splits.bin, splits.threshold, splits.default_left, left
        ).where(inner)
        children = np.stack([left[inner], left[inner] + 1], axis=1).reshape(-1)
        sums = np.stack([splits.left_sums[inner], splits.right_sums[inner]], axis=1).reshape(-1, 2)
        self._depth += 1
        self._parents = None if hist is None else hist[inner]
        self._subtract = self._subtract and hist is not None
        self._open(children.astype(np.int32), sums)
        return decisions

    def leaves(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the leaves found so far, shape (k,), and their sums, int64, shape (k, 2)."""
        return np.concatenate(self._leaves), np.concatenate(self._leaf_sums)

    def finish(self, values: NDArray[np.float32] | None = None) -> Tree:
        """Return the tree, with the values of `leaves` (default: computed from their sums)."""
        nodes, sums = self.leaves()
        self._builder.set_values(
            nodes, leaf_values(sums, self._params) if values is None else values
        )
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
    pair = np.arange(len(built))
    side = np.where(is_left, 0, 1)
    out[pair, side] = built
    out[pair, 1 - side] = parents - built
    return out.reshape(-1, *built.shape[1:])


def grow_tree(
    parts: Sequence[tuple[Bins, NDArray[np.int64]]], cuts: Cuts, params: TreeParams
) -> tuple[Tree, list[RowPartition]]:
    """Grow one tree over the rows of one or more owners.

    Parameters
    ----------
    parts : sequence of (Bins, int64 array of shape (n_i, 2))
        Binned rows and fixed-point gradients of every owner.
    cuts : Cuts
    params : TreeParams

    Returns
    -------
    tree : Tree
    partitions : list of RowPartition
        Where every owner's rows ended up.
    """
    owners = [(bins, gh, RowPartition(len(bins))) for bins, gh in parts]
    root = sum(node_sums(gh, p.rows, p.ranges(_ROOT))[0] for _, gh, p in owners)
    grower = TreeGrower(cuts, params, np.asarray(root, dtype=np.int64))
    while len(grower.nodes):
        hist: Any = 0
        for bins, gh, p in owners:
            hist = build_histogram(bins, gh, p.rows, p.ranges(grower.to_build)) + hist
        decisions = grower.decide(hist)
        for bins, _, p in owners:
            p.split(bins, decisions)
    return grower.finish(), [p for _, _, p in owners]


def grow_forest_over(
    parts: Sequence[tuple[Bins, NDArray[Any]]], cuts: Cuts, params: TreeParams
) -> Forest:
    """Boost a forest over the rows of one or more owners; the result ignores who owns which.

    Parameters
    ----------
    parts : sequence of (Bins, array of shape (n_i,))
        Binned rows and labels 0 or 1 of every owner.

    Raises
    ------
    DataError
        If there are no rows, labels are not 0 or 1, or all labels are equal and no base score is
        given.
    """
    labels = [np.asarray(y) for _, y in parts]
    for (bins, _), y in zip(parts, labels, strict=True):
        if y.shape != (len(bins),) or not np.isin(y, (0, 1)).all():
            raise DataError(f"labels must be 0 or 1, one per row ({len(bins)} rows, {y.shape})")
    n = sum(len(y) for y in labels)
    if n == 0:
        raise DataError("no rows to train on")
    score = params.base_score
    start = base_margin(sum(int(y.sum()) for y in labels) / n if score is None else score)
    margins = [np.full(len(y), start, dtype=np.float32) for y in labels]
    trees = []
    for _ in range(params.trees):
        gradients = [
            to_fixed(logistic_gradients(m, y)) for m, y in zip(margins, labels, strict=True)
        ]
        inputs = [(bins, gh) for (bins, _), gh in zip(parts, gradients, strict=True)]
        tree, partitions = grow_tree(inputs, cuts, params)
        leaves = tree.leaves.astype(np.int32)
        for partition, margin in zip(partitions, margins, strict=True):
            partition.add_to(margin, leaves, tree.value[leaves])
        trees.append(tree)
    return Forest(tuple(trees), start)


def grow_forest(X: NDArray[Any] | Bins, y: NDArray[Any], cuts: Cuts, params: TreeParams) -> Forest:
    """Boost a forest over one table: the federation with a single owner.

    Parameters
    ----------
    X : float array, shape (n, d), or Bins
        Rows; NaN marks a missing value.
    y : array, shape (n,)
        Labels 0 or 1.
    cuts : Cuts
        For instance `fedtrees.trees.sketch.quantile_cuts`.
    params : TreeParams

    Raises
    ------
    DataError
        As `grow_forest_over`, and if X does not fit the cuts or is infinite somewhere.
    """
    bins = X if isinstance(X, Bins) else bin_rows(X, cuts)
    return grow_forest_over([(bins, y)], cuts, params)
