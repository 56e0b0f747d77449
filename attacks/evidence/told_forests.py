"""Random forests as their server announces them to the clients that help to grow them."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fedtrees.core.view import View
from fedtrees.messages.forests import LeafClasses, PooledForest
from fedtrees.messages.horizontal import NodeSplits
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest


def told_forest(view: View) -> RandomForest | None:
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
