"""What somebody without labels has seen of vertical trees: leaves, splits, candidates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.reasons import Reason
from fedtrees.core.view import View
from fedtrees.messages.vertical import KnownNodes, RootRows, TreeColumns, replayed, visible_leaves
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.sketch import quantile_cuts

#: Candidates of a column that are told apart.
MOST_BINS = 64


@dataclass(frozen=True, eq=False)
class Columns:
    """The principals' own columns of the rows that all of them know."""

    ids: NDArray[np.int64]  # shape (N,)
    positions: NDArray[np.intp]  # shape (F,): in the schema
    X: NDArray[np.float32]  # shape (N, F)


@dataclass(frozen=True, eq=False)
class SeenTree:
    """The known nodes of one tree."""

    number: int
    rows: NDArray[np.int32]  # shape (m,): its rows in an order in which every node is a slice
    # begin, middle, end, shape (V,): slices of nodes of which it is known how they were split, and
    # where the left child ends; and of nodes that were not split although depth allowed it: there
    # `middle` is -1
    begin: NDArray[np.int64]
    middle: NDArray[np.int64]
    end: NDArray[np.int64]
    # shape (k,): a row of each visible leaf above the last two levels: these are mostly pure
    early: NDArray[np.int32]
    # shape (N,): visible leaf of every row, numbered from 0; -1: not in the tree
    leaf: NDArray[np.int64]
    usable: NDArray[np.bool_]  # shape (F,): which own columns the tree may use


def own_columns(view: View) -> Columns | None:
    """Return the columns of the rows that all principals know; None where they know none."""
    if not view.own or any(held.y is not None for held in view.own):
        return None
    ids = view.own[0].ids
    for held in view.own[1:]:
        ids = ids[np.isin(ids, held.ids)]
    parts = []
    for held in view.own:
        order = np.argsort(held.ids)
        parts.append(held.X[order[np.searchsorted(held.ids[order], ids)]])
    positions = np.concatenate([held.columns for held in view.own])
    return Columns(ids, positions, np.concatenate(parts, axis=1))


def no_leaves(view: View) -> Reason | None:
    """Return why there are no visible leaves of rows without labels, None if there are."""
    if own_columns(view) is None:
        return Reason("no-unlabelled-rows")
    if not any(isinstance(item.message, RootRows) for item in view.seen):
        return Reason("no-record-ids")
    return None


def tree_weights(view: View, trees: int, decay: float) -> NDArray[np.float64]:
    """Return what each tree counts: 1 in a forest, ``decay ** round`` in boosting."""
    if not boosted(view):
        return np.ones(trees)
    return decay ** (np.arange(trees) // outputs(view)).astype(np.float64)


def boosted(view: View) -> bool:
    """Tell whether the trees are boosted; otherwise they are a forest's."""
    return "learning_rate" in view.parameters


def outputs(view: View) -> int:
    """Return how many trees a round of boosting has: one, or one per class."""
    K = len(view.schema.classes)
    return K if K > 2 and not view.parameters.get("multi_output") else 1


def seen_leaves(view: View, single: str) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return visible leaves, int32 (N, T), and the numbers of their trees.

    Trees of which nothing was seen are left out; with ``single="drop"`` those with one visible leaf
    too, since they tell only which rows were drawn for them.
    """
    leaves = visible_leaves(view)
    least = 2 if single == "drop" else 1
    told = [t for t in range(leaves.shape[1]) if _different(leaves[:, t]) >= least]
    numbers = np.array(told, dtype=np.intp)
    return np.ascontiguousarray(leaves[:, numbers]), numbers


def _different(leaf: NDArray[np.int32]) -> int:
    return int((np.bincount(leaf + 1)[1:] > 0).sum()) if len(leaf) else 0


def _size(known: KnownNodes, node: int) -> int:
    """Return the number of rows in a known node."""
    ((begin, end),) = known.partition.ranges(np.array([node], dtype=np.int32))
    return int(end - begin)


def seen_trees(view: View, positions: NDArray[np.intp]) -> list[SeenTree]:
    """Return the nodes with rows of all trees whose root rows the principals received, in order."""
    usable = _usable(view, positions)
    deepest = view.parameters.get("max_depth")
    most = int(deepest) if isinstance(deepest, int) and deepest > 0 else 2**30
    found = []
    for number, known in sorted(replayed(view).items()):
        nodes, left = known.nodes, known.left
        depth = {0: 0}
        for node in nodes:
            if node in left:
                depth[left[node]] = depth[left[node] + 1] = depth[node] + 1
        early = [n for n in nodes if n not in left and depth[n] < most - 1]
        if view.parameters.get("max_leaves"):
            early = []  # left alone for want of leaves
        # Noise on the sums lets a tree make children without rows. They show nothing of labels.
        split = [
            n for n in nodes if n in left and _size(known, left[n]) * _size(known, left[n] + 1)
        ]
        early = [n for n in early if _size(known, n)]
        ranges = known.partition.ranges(np.array([*split, *early], dtype=np.int32))
        lefts = np.array([left[n] for n in split], dtype=np.int32)
        middle = np.full(len(ranges), -1, dtype=np.int64)
        middle[: len(split)] = known.partition.ranges(lefts)[:, 1]
        leaf = np.full(view.n_rows, -1, dtype=np.int64)
        for code, node in enumerate(known.leaves):
            leaf[known.rows_of(node)] = code
        found.append(
            SeenTree(
                number,
                known.partition.rows,
                ranges[:, 0].astype(np.int64),
                middle,
                ranges[:, 1].astype(np.int64),
                known.partition.rows[ranges[len(split) :, 0]],
                leaf,
                usable.get(number, np.ones(len(positions), dtype=bool)),
            )
        )
    return found


def _usable(view: View, positions: NDArray[np.intp]) -> dict[int, NDArray[np.bool_]]:
    """Return which own columns every tree may use, as far as the principals said so themselves."""
    found: dict[int, NDArray[np.bool_]] = {}
    tree = -1
    for item in view.seen:
        message = item.message
        if isinstance(message, RootRows):
            tree = message.tree
        elif isinstance(message, TreeColumns) and message.party in view.principals:
            here = found.setdefault(tree, np.zeros(len(positions), dtype=bool))
            here |= np.isin(positions, message.columns)
    return found


def candidate_bins(
    X: NDArray[np.float32], max_bin: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bin of every value, int64 (N, F), and the number of bins of each column.

    Candidate splits lie between bins. Missing values are in a last bin of their own.
    """
    cuts = quantile_cuts(X, min(max_bin, MOST_BINS))
    bins = bin_rows(X, cuts)
    codes = np.stack([bins.codes[:, f] for f in range(X.shape[1])], axis=1).astype(np.int64)
    missing = codes == bins.missing
    codes = np.where(missing, cuts.n_bins.astype(np.int64), codes)
    return codes, cuts.n_bins.astype(np.int64) + missing.any(axis=0)
