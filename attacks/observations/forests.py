"""Random forests, and sides of splits, as servers announce them to the parties that grow trees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.captured import BestSplits, PartitionBits
from fedtrees.messages.forests import LeafClasses, PooledForest
from fedtrees.messages.horizontal import NodeSplits
from fedtrees.messages.vertical import TreeColumns
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest


def announced_forest(view: View) -> RandomForest | None:
    """Return the forest that clients receive while they help to grow it, None if there is none."""
    pooled = [m for _, m in view.messages(PooledForest) if len(m.sizes)]
    if pooled:
        return RandomForest.from_arrays(vars(pooled[-1]))
    trees = grown_trees(view)
    return RandomForest(trees) if trees else None


def grown_trees(view: View) -> tuple[ClassTree, ...]:
    """Return the trees that follow from the broadcast splits and leaf classes."""
    splits: dict[int, list[NodeSplits]] = defaultdict(list)
    for _, m in view.messages(NodeSplits):
        splits[m.tree].append(m)
    leaves = {m.tree: m for _, m in view.messages(LeafClasses)}
    return tuple(_tree(splits[t], leaves[t]) for t in sorted(leaves))


def _tree(splits: Sequence[NodeSplits], leaf_classes: LeafClasses) -> ClassTree:
    n = 1 + 2 * sum(len(m.nodes) for m in splits)
    feature, left, right = (np.full(n, -1, dtype=np.int32) for _ in range(3))
    threshold, default = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.bool_)
    for m in splits:
        feature[m.nodes], threshold[m.nodes] = m.feature, m.threshold
        left[m.nodes], right[m.nodes], default[m.nodes] = m.left, m.left + 1, m.default_left
    blank = np.full((n, leaf_classes.probability.shape[1]), np.nan)
    return ClassTree(feature, threshold, left, right, default, blank).released(
        leaf_classes.probability, leaf_classes.counts
    )


Values = NDArray[np.float32]


def column_owners(view: View) -> dict[int, str]:
    """Return the party of every column that has announced splits and is not the adversary's."""
    announcing = {m.owner for _, m in view.messages(BestSplits)} - set(view.principals)
    announced = (m for _, m in view.messages(TreeColumns) if m.party in announcing)
    return {c: m.party for m in announced for c in m.columns.tolist()}


def announced_rows(view: View) -> int:
    """Return the number of rows. In a capture, it is the length of the broadcast side bits."""
    return next((len(m.left) for _, m in view.messages(PartitionBits)), view.n_rows)


def value_ends(view: View) -> dict[int, tuple[Values, Values]]:
    """Return bounds on the values of other parties' columns, by column.

    All parties receive the best splits of each party and the sides of the rows (`BestSplits`,
    `PartitionBits`). At every chosen split, rows on the left are below its threshold and rows on
    the right are not.

    Returns
    -------
    dict of int to (float32 array, float32 array), shape (N,) each
        Lower bound (inclusive) and upper bound (exclusive) of each row, infinite if there is none.
        Both are NaN for rows without a value.
    """
    owners, n = column_owners(view), announced_rows(view)
    bounds: dict[int, tuple[Values, Values]] = {}
    for column, threshold, left, right, without in _splits(view):
        if column not in owners:
            continue
        if column not in bounds:
            bounds[column] = np.full(n, -np.inf, np.float32), np.full(n, np.inf, np.float32)
        low, high = bounds[column]
        high[left] = np.minimum(high[left], threshold)
        low[right] = np.maximum(low[right], threshold)
        low[without] = high[without] = np.nan
    return bounds


def rank_ends(low: Values, high: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and the largest possible rank, 0 to 1, of rows with these bounds."""
    present = ~np.isnan(low)
    n = max(int(present.sum()), 1)
    below = np.searchsorted(np.sort(high[present]), low, side="right") / n
    above = np.searchsorted(np.sort(low[present]), high, side="left") / n
    return np.where(present, below, 0.0), np.where(present, above, 1.0)


def _splits(
    view: View,
) -> Iterator[tuple[int, np.float32, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Yield column, threshold, rows on the left, on the right, and without a value."""
    best: dict[tuple[int, int], dict[int, BestSplits]] = {}
    sides: dict[tuple[int, int], dict[str, PartitionBits]] = {}
    party_columns = {m.party: m.columns for _, m in view.messages(TreeColumns)}
    for _, m in view.messages(BestSplits):
        best.setdefault((m.round, m.level), {})[m.first] = m
    for _, bits in view.messages(PartitionBits):
        sides.setdefault((bits.round, bits.level), {})[bits.owner] = bits
    nodes: dict[int, NDArray[np.intp]] = {}
    for (round, level), parts in sorted(best.items()):
        if level == 0:
            nodes, count = {0: np.arange(announced_rows(view))}, 1
        announced = [parts[first] for first in sorted(parts)]
        announced_sides = sides.get((round, level), {})
        if not announced_sides or not set(announced[0].node.tolist()) <= set(nodes):
            nodes = {}
            continue
        # as in the protocol, the split with the largest gain of all parties is chosen
        winner = np.stack([m.gain for m in announced]).argmax(axis=0)
        foreign = np.any([bits.missing for bits in announced_sides.values()], axis=0)
        children: dict[int, NDArray[np.intp]] = {}
        for k, node in enumerate(announced[0].node.tolist()):
            m, rows = announced[winner[k]], nodes[node]
            if m.owner not in announced_sides or not foreign[rows].all():
                continue  # parties without the column mark every row of the node as missing
            left = announced_sides[m.owner].left[rows]
            without = announced_sides[m.owner].missing[rows]
            column = int(party_columns[m.owner][m.feature[k] - m.first])
            yield (column, m.threshold[k], rows[left & ~without], rows[~left & ~without],
                   rows[without])  # fmt: skip
            goes = np.where(without, bool(m.default_left[k]), left)
            children[count], children[count + 1] = rows[goes], rows[~goes]
            count += 2
        nodes = children
