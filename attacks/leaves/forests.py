"""Forests with class counts in a view, one for each set of rows that they were grown on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.readable import shows
from fedtrees.core.view import View
from fedtrees.messages.boosting import NodeSplits
from fedtrees.messages.forests import LeafClasses, LocalForest, PooledForest
from fedtrees.messages.models import ForestModel
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Source:
    """Trees of the same rows.

    Attributes
    ----------
    trees : tuple of ClassTree
        With counts.
    rows : int
        How many rows there are.
    owner : str or None
        Who holds them; None: all clients together, the principals among them.
    """

    trees: tuple[ClassTree, ...]
    rows: int
    owner: str | None

    @property
    def drawn(self) -> bool:
        """Whether trees are of draws: without, class totals are the same in all."""
        totals = np.stack([t.counts[0] for t in self.trees if t.counts is not None])
        return bool((totals != totals[0]).any())


def sources_of(view: View) -> list[Source]:
    """Return the forests of others that tell class counts."""
    local = [(s.sender, m) for s, m in view.messages(LocalForest) if type(m) is LocalForest]
    local = [(o, m) for o, m in local if o not in view.principals]
    if local:
        parts = [(o, RandomForest.from_arrays(vars(m)).trees) for o, m in local if len(m.sizes)]
        return [_source(view, t, o) for o, t in parts if _counted(t)]
    if not shows(view, PooledForest, ForestModel):
        return [Source(trees, view.n_rows, None)] if _counted(trees := _grown(view)) else []
    told = [m for _, m in view.messages(PooledForest)] or [m for _, m in view.messages(ForestModel)]
    trees = RandomForest.from_arrays(vars(told[-1])).trees
    if not _counted(trees):
        return []
    if view.protocol != "local-forests":
        return [Source(trees, view.n_rows, None)]
    # every client with rows grew as many, and they come in the order of the clients
    each = int(view.parameters["trees"])
    clients = [name for name, role in view.roles.items() if role == "client"]
    blocks = [trees[k : k + each] for k in range(0, len(trees), each)]
    if len(blocks) != len(clients):  # somebody has no rows
        return [_source(view, b, "") for b in blocks]
    return [
        _source(view, b, o)
        for b, o in zip(blocks, clients, strict=True)
        if o not in view.principals
    ]


def _counted(trees: tuple[ClassTree, ...]) -> bool:
    return len(trees) > 0 and all(t.counts is not None for t in trees)


def _grown(view: View) -> tuple[ClassTree, ...]:
    """Return the trees that splits and leaves tell whoever helps to grow them."""
    splits: dict[int, list[NodeSplits]] = defaultdict(list)
    for _, m in view.messages(NodeSplits):
        splits[m.tree].append(m)
    leaves = {m.tree: m for _, m in view.messages(LeafClasses)}
    return tuple(_tree(splits[t], leaves[t]) for t in sorted(leaves))


def _tree(splits: Sequence[NodeSplits], told: LeafClasses) -> ClassTree:
    n = 1 + 2 * sum(len(m.nodes) for m in splits)
    feature, left, right = (np.full(n, -1, dtype=np.int32) for _ in range(3))
    threshold, default = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.bool_)
    for m in splits:
        feature[m.nodes], threshold[m.nodes] = m.feature, m.threshold
        left[m.nodes], right[m.nodes], default[m.nodes] = m.left, m.left + 1, m.default_left
    blank = np.full((n, told.probability.shape[1]), np.nan)
    return ClassTree(feature, threshold, left, right, default, blank).released(
        told.probability, told.counts
    )


def _source(view: View, trees: tuple[ClassTree, ...], owner: str) -> Source:
    counts = trees[0].counts
    assert counts is not None
    share = view.parameters.get("max_samples") or 1.0
    return Source(trees, max(1, round(int(counts[0].sum()) / share)), owner)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Trees in one array, with thresholds as positions among all of their feature.

    Attributes
    ----------
    start : int32 array, shape (T,)
        Root of each tree.
    nodes : int32 array, shape (n_nodes, 3)
        Feature (-1 at a leaf), position of the threshold, left child; the right one follows it.
    counts : int64 array, shape (n_nodes, K)
    thresholds : tuple of float32 array
        Ascending, by feature: a row is at level ``g`` if ``g`` of them are not above its value, and
        goes left iff ``g`` is not above the position.
    """

    start: Ints
    nodes: Ints
    counts: NDArray[np.int64]
    thresholds: tuple[NDArray[np.float32], ...]

    @staticmethod
    def of(trees: tuple[ClassTree, ...], features: int) -> Boxes:
        """Flatten trees."""
        sizes = [len(t) for t in trees]
        start = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        feature = np.concatenate([t.feature for t in trees])
        threshold = np.concatenate([t.threshold for t in trees])
        left = np.concatenate([t.left for t in trees]) + np.repeat(start, sizes)
        thresholds = tuple(np.unique(threshold[feature == f]) for f in range(features))
        cut = np.zeros(len(feature), dtype=np.int32)
        for f in range(features):
            at = feature == f
            cut[at] = np.searchsorted(thresholds[f], threshold[at])
        nodes = np.stack([feature, cut, left], axis=1).astype(np.int32)
        return Boxes(start, nodes, np.concatenate([t.counts for t in trees]), thresholds)

    def level(self, X: NDArray[np.float32]) -> Ints:
        """Return the levels of rows, int32, shape (n, d); a missing value counts as the largest."""
        each = zip(self.thresholds, X.T, strict=True)
        return np.stack([np.searchsorted(t, x, side="right") for t, x in each], axis=1).astype(
            np.int32
        )

    @property
    def levels(self) -> NDArray[np.int64]:
        """Levels of every feature, int64, shape (d,)."""
        return np.array([len(t) + 1 for t in self.thresholds], dtype=np.int64)
