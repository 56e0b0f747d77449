"""Collect the forests of a view whose leaves contain class counts or class shares.

Trees that were grown on the same rows form one `TargetForest`: those of one client, or those of all
clients together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.applicability import shows
from fedtrees.attacks.observations.forests import grown_trees
from fedtrees.core.view import View
from fedtrees.messages.forests import ForestModel, LeafClasses, LocalForest, PooledForest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TargetForest:
    """Trees that were grown on the same rows.

    Attributes
    ----------
    rows : int
        Number of rows. It is an estimate if the trees belong to one client and contain shares.
    owner : str or None
        The client. None: the trees were grown on the rows of all clients, principals included.
    drawn : bool
        Whether trees were grown on bootstrap samples.
    rate : float
        Number of draws of a tree per row.
    step : float or None
        None if leaves contain counts. Otherwise leaves contain shares that are rounded to this
        step, 0 if they are not rounded.
    least : int
        Smallest number of draws in a leaf.
    """

    trees: tuple[ClassTree, ...]
    rows: int
    owner: str | None
    drawn: bool
    rate: float = 1.0
    step: float | None = None
    least: int = 1


def read_target_forests(view: View) -> list[TargetForest]:
    """Return the victims' forests in a view, empty if it contains no class counts or shares."""
    local = [(s.sender, m) for s, m in view.messages(LocalForest) if type(m) is LocalForest]
    local = [(o, m) for o, m in local if o not in view.principals]
    if local:
        return _apart(
            view, [(o, RandomForest.from_arrays(vars(m)).trees) for o, m in local if len(m.sizes)]
        )
    if not shows(view, PooledForest, ForestModel):
        return [_source(view, trees, view.n_rows, None)] if (trees := grown_trees(view)) else []
    released = [m for _, m in view.messages(PooledForest)] or [
        m for _, m in view.messages(ForestModel)
    ]
    trees = RandomForest.from_arrays(vars(released[-1])).trees
    if view.protocol != "local-forests":
        return [_source(view, trees, view.n_rows, None)]
    # Every client with rows grew the same number of trees. They are in the order of the clients.
    each = int(view.parameters["trees"])
    clients = [name for name, role in view.roles.items() if role == "client"]
    blocks = [trees[k : k + each] for k in range(0, len(trees), each)]
    if len(blocks) == len(clients):
        parts = zip(clients, blocks, strict=True)
        return _apart(view, [(o, block) for o, block in parts if o not in view.principals])
    # A client without rows sent no trees. The principals recognise the trees that they sent.
    sent = [
        RandomForest.from_arrays(vars(m)).trees
        for s, m in view.messages(LocalForest)
        if type(m) is LocalForest and s.sender in view.principals and len(m.sizes)
    ]
    blocks = [
        block
        for block in blocks
        if not any(_same_splits(block, local_forest) for local_forest in sent)
    ]
    other_clients = [name for name in clients if name not in view.principals]
    # If also other clients have no rows, the owners are unknown.
    owners = other_clients if len(other_clients) == len(blocks) else [""] * len(blocks)
    return _apart(view, list(zip(owners, blocks, strict=True)))


def _same_splits(one: Sequence[ClassTree], other: Sequence[ClassTree]) -> bool:
    """Return whether two forests have the same splits."""
    return len(one) == len(other) and all(
        np.array_equal(a.feature, b.feature) and np.array_equal(a.threshold, b.threshold)
        for a, b in zip(one, other, strict=True)
    )


def _apart(view: View, parts: list[tuple[str, tuple[ClassTree, ...]]]) -> list[TargetForest]:
    """Return one source per client, given its name and trees."""
    n_local = 0 if view.rows is None else len(view.rows)
    # A client with more rows has trees with more leaves. Without counts this is the only evidence
    # about its number of rows.
    leaves = [sum(len(t.leaves) for t in trees) for _, trees in parts]
    n_rows = [(view.n_rows - n_local) * n / max(sum(leaves), 1) for n in leaves]
    return [_source(view, t, max(1, round(n)), o) for (o, t), n in zip(parts, n_rows, strict=True)]


def _source(view: View, trees: tuple[ClassTree, ...], rows: int, owner: str | None) -> TargetForest:
    public = view.parameters
    rate = float(public.get("max_samples") or 1.0)
    drawn = bool(public.get("bootstrap", True)) or rate < 1
    if any(t.counts is None for t in trees):
        step = _step(view)
        least = max(int(public.get("min_samples_leaf", 1)), view.defense.requirements.min_leaf_rows)
        return TargetForest(trees, rows, owner, drawn, rate, step, least)
    totals = np.stack([t.counts[0] for t in trees if t.counts is not None])
    if owner is not None:
        rows = max(1, round(int(totals[0].sum()) / rate))
    # trees of all rows have equal class totals, bootstrap samples do not
    return TargetForest(trees, rows, owner, bool((totals != totals[0]).any()), rate)


def _step(view: View) -> float:
    """Return the width of the interval of shares that are rounded to the same value, 0 if exact."""
    sites = ((LocalForest, "client"), (LeafClasses, "server"), (PooledForest, "server"))
    laws = (view.channel(kind, "probability", role) for kind, role in sites)
    widths = (law.bounds(np.array([0.5])) for law in laws if law is not None)
    return max((float((high - low)[0]) for low, high in widths), default=0.0)


@dataclass(frozen=True, eq=False)
class FlatForest:
    """All trees in one array, with thresholds replaced by their rank within the feature.

    The *level* of a value is the number of thresholds of its feature that are not above it. For
    example, with the thresholds 1 and 5, the values 0, 1 and 7 have the levels 0, 1 and 2. A row
    goes left if its level does not exceed the rank of the threshold.

    Attributes
    ----------
    start : int32 array, shape (T,)
        Root of each tree.
    nodes : int32 array, shape (n_nodes, 3)
        Feature (-1 at a leaf), rank of the threshold, left child. The right child follows it.
    counts : int64 array, shape (n_nodes, K)
        Class counts. If leaves contain only shares, they are 0 until
        `fedtrees.attacks.forest_gibbs.gibbs` fills them in.
    share : float64 array, shape (n_nodes, K)
        Class shares.
    thresholds : tuple of float32 array
        Thresholds of each feature in ascending order.
    """

    start: Ints
    nodes: Ints
    counts: NDArray[np.int64]
    share: NDArray[np.float64]
    thresholds: tuple[NDArray[np.float32], ...]

    @staticmethod
    def of(trees: tuple[ClassTree, ...], features: int) -> FlatForest:
        """Flatten trees over the given number of features."""
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
        return FlatForest(start, nodes, np.concatenate(counts), share, thresholds)

    def level(self, X: NDArray[np.float32]) -> Ints:
        """Return the levels of rows, int32, shape (n, d). A missing value has the largest level."""
        each = zip(self.thresholds, X.T, strict=True)
        return np.stack([np.searchsorted(t, x, side="right") for t, x in each], axis=1).astype(
            np.int32
        )

    @property
    def levels(self) -> NDArray[np.int64]:
        """Number of levels of every feature, int64, shape (d,)."""
        return np.array([len(t) + 1 for t in self.thresholds], dtype=np.int64)
