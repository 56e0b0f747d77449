"""Forests with class counts in a view, one for each set of rows that they were grown on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.readable import shows
from fedtrees.core.view import View
from fedtrees.messages.forests import LocalForest, PooledForest
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


def sources_of(view: View) -> list[Source]:
    """Return the forests of others that tell class counts."""
    local = [(s.sender, m) for s, m in view.messages(LocalForest) if type(m) is LocalForest]
    local = [(o, m) for o, m in local if o not in view.principals]
    if local:
        parts = [(o, RandomForest.from_arrays(vars(m)).trees) for o, m in local if len(m.sizes)]
        return [_source(view, t, o) for o, t in parts if _counted(t)]
    if not shows(view, PooledForest, ForestModel):
        return []
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
    return all(t.counts is not None for t in trees)


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

    @property
    def levels(self) -> NDArray[np.int64]:
        """Levels of every feature, int64, shape (d,)."""
        return np.array([len(t) + 1 for t in self.thresholds], dtype=np.int64)
