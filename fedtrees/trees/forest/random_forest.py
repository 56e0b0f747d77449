"""Random forests: trees whose leaves hold class probabilities, averaged."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.routing import Routed


@dataclass(frozen=True, eq=False)
class ClassTree:
    """One classification tree; node 0 is the root, children come in pairs, level by level.

    `feature`: int32 array, shape (n_nodes,). Split column, -1 at a leaf.
    `threshold`: float32 array, shape (n_nodes,). A row goes left iff ``x < threshold`` (float32
    comparison); 0 at a leaf.
    `left, right`: int32 array, shape (n_nodes,). Children, -1 at a leaf.
    `default_left`: bool array, shape (n_nodes,). Where a missing value goes.
    `probability`: float64 array, shape (n_nodes, K). Share of each class among the training rows of
    the node; inner nodes of a tree without counts may hold NaN.
    `counts`: int64 array, shape (n_nodes, K), or None. Training rows of each class in the node (a
    row drawn twice counts twice), where known.
    `distinct`: int64 array, shape (n_nodes,), or None. Training rows in the node, each counted
    once, where known.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None
    distinct: NDArray[np.int64] | None = None

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Node numbers of the leaves, ascending."""
        return np.flatnonzero(self.feature < 0)

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.probability.shape[1])

    def __len__(self) -> int:
        return int(self.feature.shape[0])

    def released(
        self, probability: NDArray[np.float64], counts: NDArray[np.int64] | None
    ) -> ClassTree:
        """Return the tree as someone knows it who was told of its leaves only.

        `probability`: float64 array, shape (n_leaves, K)
        `counts`: int64 array, shape (n_leaves, K), or None
        """
        told = np.full(self.probability.shape, np.nan)
        told[self.leaves] = probability
        if counts is None:
            return replace(self, probability=told, counts=None, distinct=None)
        sums = np.zeros(self.probability.shape, dtype=np.int64)
        sums[self.leaves] = counts
        inner = np.flatnonzero(self.feature >= 0)
        for node in inner[::-1]:  # children follow their parent
            sums[node] = sums[self.left[node]] + sums[self.right[node]]
        told[inner] = shares(sums[inner])
        return replace(self, probability=told, counts=sums, distinct=None)


@dataclass(frozen=True, eq=False)
class RandomForest(Routed):
    """An ensemble that averages the class probabilities of its trees.

    `trees`: All of the same number of classes K.

    Raises `DataError` if there is no tree, or the trees differ in their number of classes.
    """

    trees: tuple[ClassTree, ...]

    def __post_init__(self) -> None:
        widths = {t.n_classes for t in self.trees}
        if len(widths) != 1:
            raise DataError(
                f"a forest needs trees that all tell the same classes; {len(self.trees)} trees "
                f"with {sorted(widths)} classes"
            )

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return self.trees[0].n_classes

    def first(self, count: int) -> RandomForest:
        """Return the forest of the first ``count`` trees."""
        return RandomForest(self.trees[:count])

    def counted_once(self) -> RandomForest:
        """Return the forest as one whose counts are of rows that were drawn once each."""
        trees = (replace(t, distinct=None if t.counts is None else t.counts.sum(axis=1))
                 for t in self.trees)  # fmt: skip
        return RandomForest(tuple(trees))

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean class probabilities, float64, shape (n, K); errors as `apply`.

        Summed in tree order, as scikit-learn does.
        """
        X = self._routes.rows(X)
        total = np.zeros((len(X), self.n_classes))
        for block, leaves in self._routes.blocks(X):
            for tree, leaf in zip(self.trees, leaves.T, strict=True):
                total[block] += tree.probability[leaf]
        return total / len(self.trees)

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of class 1, shape (n,), if K is 2, else `probabilities`."""
        found = self.probabilities(X)
        return found[:, 1] if self.n_classes == 2 else found

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the trees end to end, by name; ``counts`` only where all trees know them.

        That is what a message says of a forest; `distinct` rows are for files alone.
        """
        names = ["feature", "threshold", "left", "default_left", "probability"]
        if all(t.counts is not None for t in self.trees):
            names.append("counts")
        sizes = np.array([len(t) for t in self.trees], dtype=np.int64)
        joined = {n: np.concatenate([getattr(t, n) for t in self.trees]) for n in names}
        return {"sizes": sizes, **joined}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any] | None]) -> RandomForest:
        """Return the forest that `to_arrays` took apart.

        Raises `DataError` if an array is missing, or the arrays do not fit one another.
        """
        kept = {name: array for name, array in arrays.items() if array is not None}
        try:
            ends = np.cumsum(kept.pop("sizes"))[:-1]
            parts = {name: np.split(array, ends) for name, array in kept.items()}
            trees = [
                dict(zip(parts, tree, strict=True)) for tree in zip(*parts.values(), strict=True)
            ]
            for tree in trees:
                tree["right"] = np.where(tree["left"] < 0, -1, tree["left"] + 1).astype(np.int32)
            return RandomForest(tuple(ClassTree(**tree) for tree in trees))
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f"arrays {sorted(kept)} are no forest ({err})") from err


def shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return class counts as probabilities, float64, shape (k, K); uniform where none counts."""
    totals = counts.sum(axis=1, keepdims=True)
    uniform = np.full(counts.shape, 1.0 / counts.shape[1])
    np.divide(counts, totals, out=uniform, where=totals > 0)
    return uniform


def keep_best_splits(tree: ClassTree, max_leaf_nodes: int) -> ClassTree:
    """Return the tree that best-first growth would have stopped at.

    From the root on, the split that lowers ``rows * Gini`` most is made next, until there are
    `max_leaf_nodes` leaves. Nothing a split depends on lies outside its node, so growing fully
    and keeping the best gives what growing best-first gives.

    Raises `DataError` if the tree does not know its counts.
    """
    if tree.counts is None:
        raise DataError("the best splits are found by class counts, which this tree does not keep")
    n = tree.counts.sum(axis=1)
    purity = np.sum(tree.counts.astype(np.float64) ** 2, axis=1) / np.maximum(n, 1)
    gain = np.where(tree.feature < 0, 0, purity[tree.left] + purity[tree.right] - purity)
    kept = np.zeros(len(tree), dtype=bool)
    waiting = [(-float(gain[0]), 0)] if tree.feature[0] >= 0 else []
    while waiting and kept.sum() < max_leaf_nodes - 1:
        _, node = heapq.heappop(waiting)
        kept[node] = True
        for child in (int(tree.left[node]), int(tree.right[node])):
            if tree.feature[child] >= 0:
                heapq.heappush(waiting, (-float(gain[child]), child))
    return _cut_back(tree, kept)


def keep_large_leaves(tree: ClassTree, leaves: NDArray[np.int32], least: int) -> ClassTree:
    """Return the tree without splits that leave fewer rows than `least` on one side.

    `tree`: With counts.
    `leaves`: int32 array, shape (n,). Leaf of every row.
    `least`: Rows.
    """
    rows = np.bincount(leaves, minlength=len(tree))
    inner = np.flatnonzero(tree.feature >= 0)
    for node in inner[::-1]:  # children follow their parent
        rows[node] = rows[tree.left[node]] + rows[tree.right[node]]
    kept, alive = np.zeros(len(tree), dtype=bool), np.zeros(len(tree), dtype=bool)
    alive[0] = True
    for node in inner:
        pair = [tree.left[node], tree.right[node]]
        kept[node] = alive[node] and (rows[pair] >= least).all()
        alive[pair] = kept[node]
    return _cut_back(tree, kept)


def _cut_back(tree: ClassTree, kept: NDArray[np.bool_]) -> ClassTree:
    """Return the tree of which only some splits are kept (a kept node's parent is kept)."""
    alive = np.zeros(len(tree), dtype=bool)
    alive[0] = True
    alive[tree.left[kept]] = True
    alive[tree.right[kept]] = True
    number = np.cumsum(alive) - 1  # order, and with it pairs and levels, stays
    inner = kept[alive]

    def where_kept(values: NDArray[Any], otherwise: Any) -> NDArray[Any]:
        return np.where(inner, values[alive], otherwise).astype(values.dtype)

    assert tree.counts is not None
    return replace(
        tree,
        feature=where_kept(tree.feature, -1),
        threshold=where_kept(tree.threshold, 0),
        left=where_kept(number.astype(np.int32)[tree.left], -1),
        right=where_kept(number.astype(np.int32)[tree.right], -1),
        default_left=where_kept(tree.default_left, False),
        probability=tree.probability[alive],
        counts=tree.counts[alive],
        distinct=None if tree.distinct is None else tree.distinct[alive],
    )
