"""Visible leaves, splits and local candidates of a party without labels in a vertical training.

The messages of the training contain the row ids of tree nodes. A party therefore knows the rows of
many nodes, and which split candidates of its columns were not chosen.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.vertical import KnownNodes, RootRows, TreeColumns, replayed, visible_leaves
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.cut_points import quantile_cuts

#: Largest number of bins per column.
MOST_BINS = 64


@dataclass(frozen=True, eq=False)
class Columns:
    """Local columns of the principals, restricted to rows that all of them have."""

    ids: NDArray[np.int64]  # shape (N,)
    positions: NDArray[np.intp]  # shape (F,): positions of the columns in the schema
    X: NDArray[np.float32]  # shape (N, F)


@dataclass(frozen=True, eq=False)
class SeenTree:
    """The visible nodes of one tree.

    Attributes
    ----------
    number : int
        Number of the tree.
    rows : int32 array, shape (m,)
        Rows of the tree, in an order in which every node is a slice.
    begin, middle, end : int64 array, shape (V,)
        Slices of nodes with a visible split, and the end of their left child. They are followed by
        the leaves above the last two levels, with `middle` -1.
    early : int32 array, shape (k,)
        One row of each of these leaves, which are mostly pure.
    leaf : int64 array, shape (N,)
        Visible leaf of every row, numbered from 0, -1 if the row is not in the tree.
    usable : bool array, shape (F,)
        Local columns that the tree may use.
    """

    number: int
    rows: NDArray[np.int32]
    begin: NDArray[np.int64]
    middle: NDArray[np.int64]
    end: NDArray[np.int64]
    early: NDArray[np.int32]
    leaf: NDArray[np.int64]
    usable: NDArray[np.bool_]


def own_columns(view: View) -> Columns | None:
    """Return the local columns of the principals, None if they have no data or know labels."""
    if not view.local_data or any(local.y is not None for local in view.local_data):
        return None
    ids = view.local_data[0].ids
    for local in view.local_data[1:]:
        ids = ids[np.isin(ids, local.ids)]
    parts = []
    for local in view.local_data:
        # the parties can have their rows in different orders
        order = np.argsort(local.ids)
        parts.append(local.X[order[np.searchsorted(local.ids[order], ids)]])
    positions = np.concatenate([local.columns for local in view.local_data])
    return Columns(ids, positions, np.concatenate(parts, axis=1))


def no_leaves(view: View) -> Reason | None:
    """Return why there are no visible leaves of rows without labels, None if there are."""
    if own_columns(view) is None:
        return Reason("no-unlabelled-rows")
    if not any(isinstance(item.message, RootRows) for item in view.seen):
        return Reason("no-record-ids")
    return None


def tree_weights(view: View, trees: int, decay: float) -> NDArray[np.float64]:
    """Return the weight of each tree: 1 in a forest, ``decay ** round`` in boosting."""
    if not is_boosted(view):
        return np.ones(trees)
    return decay ** (np.arange(trees) // outputs(view)).astype(np.float64)


def is_boosted(view: View) -> bool:
    """Return whether the trees are boosted. Otherwise they form a random forest."""
    return "learning_rate" in view.parameters


def outputs(view: View) -> int:
    """Return the number of trees per round of boosting: one, or one per class."""
    K = len(view.schema.classes)
    return K if K > 2 and not view.parameters.get("multi_output") else 1


def seen_leaves(view: View, single: str) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return visible leaves, int32 (N, T), and the numbers of their trees.

    Trees without visible leaves are omitted. With ``single="drop"``, trees with one visible leaf
    are omitted, too, because they show only which rows were sampled for the tree.
    """
    leaves = visible_leaves(view)
    least = 2 if single == "drop" else 1
    informative = [t for t in range(leaves.shape[1]) if _different(leaves[:, t]) >= least]
    numbers = np.array(informative, dtype=np.intp)
    return np.ascontiguousarray(leaves[:, numbers]), numbers


def _different(leaf: NDArray[np.int32]) -> int:
    return int((np.bincount(leaf + 1)[1:] > 0).sum()) if len(leaf) else 0


def _size(tree_nodes: KnownNodes, node: int) -> int:
    """Return the number of rows in a known node."""
    return len(tree_nodes.partition.rows_of(node))


def seen_trees(view: View, positions: NDArray[np.intp]) -> list[SeenTree]:
    """Return the visible nodes of all trees whose root rows the principals received, in order."""
    usable = _usable(view, positions)
    deepest = view.parameters.get("max_depth")
    max_depth = int(deepest) if isinstance(deepest, int) and deepest > 0 else 2**30
    trees = []
    for number, tree_nodes in sorted(replayed(view).items()):
        nodes, left = tree_nodes.nodes, tree_nodes.left
        # depth of each node, because nodes are in order from the root down
        depth = {0: 0}
        for node in nodes:
            if node in left:
                depth[left[node]] = depth[left[node] + 1] = depth[node] + 1
        early = [n for n in nodes if n not in left and depth[n] < max_depth - 1]
        if view.parameters.get("max_leaves"):
            early = []  # the limit on the number of leaves can be the reason, too
        # With noisy sums, a split can produce children without rows. These contain no information.
        split = [
            n
            for n in nodes
            if n in left and _size(tree_nodes, left[n]) * _size(tree_nodes, left[n] + 1)
        ]
        early = [n for n in early if _size(tree_nodes, n)]
        ranges = tree_nodes.partition.ranges(np.array([*split, *early], dtype=np.int32))
        lefts = np.array([left[n] for n in split], dtype=np.int32)
        middle = np.full(len(ranges), -1, dtype=np.int64)
        middle[: len(split)] = tree_nodes.partition.ranges(lefts)[:, 1]
        leaf = np.full(view.n_rows, -1, dtype=np.int64)
        for code, node in enumerate(tree_nodes.leaves):
            leaf[tree_nodes.rows_of(node)] = code
        trees.append(
            SeenTree(
                number,
                tree_nodes.partition.rows,
                ranges[:, 0].astype(np.int64),
                middle,
                ranges[:, 1].astype(np.int64),
                tree_nodes.partition.rows[ranges[len(split) :, 0]],
                leaf,
                usable.get(number, np.ones(len(positions), dtype=bool)),
            )
        )
    return trees


def _usable(view: View, positions: NDArray[np.intp]) -> dict[int, NDArray[np.bool_]]:
    """Return which local columns every tree may use, if the principals announced it."""
    usable: dict[int, NDArray[np.bool_]] = {}
    tree = -1
    for item in view.seen:
        message = item.message
        if isinstance(message, RootRows):
            tree = message.tree
        elif isinstance(message, TreeColumns) and message.party in view.principals:
            here = usable.setdefault(tree, np.zeros(len(positions), dtype=bool))
            here |= np.isin(positions, message.columns)
    return usable


def candidate_bins(
    X: NDArray[np.float32], max_bin: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bin of every value, int64 (N, F), and the number of bins of each column.

    Candidate splits lie between bins. Missing values are in a separate last bin.
    """
    cuts = quantile_cuts(X, min(max_bin, MOST_BINS))
    bins = bin_rows(X, cuts)
    codes = np.stack([bins.codes[:, f] for f in range(X.shape[1])], axis=1).astype(np.int64)
    missing = codes == bins.missing
    codes = np.where(missing, cuts.n_bins.astype(np.int64), codes)
    return codes, cuts.n_bins.astype(np.int64) + missing.any(axis=0)
