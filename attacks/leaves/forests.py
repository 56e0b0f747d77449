"""Forests with class counts or shares in a view, by the rows that they were grown on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.readable import shows
from fedtrees.attacks.evidence.told_forests import grown_trees
from fedtrees.core.view import View
from fedtrees.messages.forests import ForestModel, LeafClasses, LocalForest, PooledForest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Source:
    """Trees of the same rows."""

    trees: tuple[ClassTree, ...]
    # how many rows there are; where leaves tell shares alone, about so many of one client
    rows: int
    owner: str | None  # who holds them; None: all clients together, the principals among them
    drawn: bool  # whether trees are of draws
    rate: float = 1.0  # draws of a tree for each row
    # None: leaves tell counts. Else they tell shares, rounded to this step; 0: not rounded.
    step: float | None = None
    least: int = 1  # draws in a leaf


def sources_of(view: View) -> list[Source]:
    """Return the forests of others that tell class counts or shares."""
    local = [(s.sender, m) for s, m in view.messages(LocalForest) if type(m) is LocalForest]
    local = [(o, m) for o, m in local if o not in view.principals]
    if local:
        return _apart(
            view, [(o, RandomForest.from_arrays(vars(m)).trees) for o, m in local if len(m.sizes)]
        )
    if not shows(view, PooledForest, ForestModel):
        return [_source(view, trees, view.n_rows, None)] if (trees := grown_trees(view)) else []
    told = [m for _, m in view.messages(PooledForest)] or [m for _, m in view.messages(ForestModel)]
    trees = RandomForest.from_arrays(vars(told[-1])).trees
    if view.protocol != "local-forests":
        return [_source(view, trees, view.n_rows, None)]
    # every client with rows grew as many, and they come in the order of the clients
    each = int(view.parameters["trees"])
    clients = [name for name, role in view.roles.items() if role == "client"]
    blocks = [trees[k : k + each] for k in range(0, len(trees), each)]
    if len(blocks) != len(clients):  # somebody has no rows
        return _apart(view, [("", block) for block in blocks])
    parts = zip(clients, blocks, strict=True)
    return _apart(view, [(o, block) for o, block in parts if o not in view.principals])


def _apart(view: View, parts: list[tuple[str, tuple[ClassTree, ...]]]) -> list[Source]:
    """Return a source for every client's trees."""
    own = 0 if view.rows is None else len(view.rows)
    # a client with more rows has trees of more leaves; without counts nothing else tells
    leaves = [sum(len(t.leaves) for t in trees) for _, trees in parts]
    told = [(view.n_rows - own) * n / max(sum(leaves), 1) for n in leaves]
    return [_source(view, t, max(1, round(n)), o) for (o, t), n in zip(parts, told, strict=True)]


def _source(view: View, trees: tuple[ClassTree, ...], rows: int, owner: str | None) -> Source:
    known = view.parameters
    rate = float(known.get("max_samples") or 1.0)
    drawn = bool(known.get("bootstrap", True)) or rate < 1
    if any(t.counts is None for t in trees):
        step = _step(view)
        least = max(int(known.get("min_samples_leaf", 1)), view.defense.least_leaf_rows)
        return Source(trees, rows, owner, drawn, rate, step, least)
    totals = np.stack([t.counts[0] for t in trees if t.counts is not None])
    if owner is not None:
        rows = max(1, round(int(totals[0].sum()) / rate))
    # of all rows, class totals are the same in all trees
    return Source(trees, rows, owner, bool((totals != totals[0]).any()), rate)


def _step(view: View) -> float:
    """Return how far apart shares may be that were sent as the same; 0: they are exact."""
    sites = ((LocalForest, "client"), (LeafClasses, "server"), (PooledForest, "server"))
    laws = (view.channel(kind, "probability", role) for kind, role in sites)
    widths = (law.bounds(np.array([0.5])) for law in laws if law is not None)
    return max((float((high - low)[0]) for low, high in widths), default=0.0)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Trees in one array, with thresholds as positions among all of their feature."""

    start: Ints  # int32 array, shape (T,): root of each tree
    # int32 array, shape (n_nodes, 3): feature (-1 at a leaf), position of the threshold, left
    # child; the right one follows it
    nodes: Ints
    # shape (n_nodes, K): 0 where leaves tell shares; `fedtrees.attacks.leaves.shares` fills them in
    counts: NDArray[np.int64]
    share: NDArray[np.float64]  # shape (n_nodes, K)
    # tuple of float32 array: ascending, by feature: a row is at level ``g`` if ``g`` of them are
    # not above its value, and goes left iff ``g`` is not above the position
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
        zero = np.zeros_like
        counts = [zero(t.probability, np.int64) if t.counts is None else t.counts for t in trees]
        share = np.concatenate([t.probability for t in trees])
        return Boxes(start, nodes, np.concatenate(counts), share, thresholds)

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
