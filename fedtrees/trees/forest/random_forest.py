"""Random forests: trees whose leaves contain class probabilities, which are averaged."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.routing import NODE_KINDS, LeafRouting, TreeStructure, join_nodes, split_nodes

#: dtype of each node array of a forest in messages and files. Right children are not sent.
FOREST_DTYPES: dict[str, Any] = {
    **{name: kind for name, kind in NODE_KINDS.items() if name != "right"},
    "probability": np.float64,
    "counts": np.int64,
}


@dataclass(frozen=True, eq=False)
class ClassTree(TreeStructure):
    """One classification tree. No split is by categories.

    Attributes
    ----------
    feature, threshold, left, right, default_left : arrays, shape (n_nodes,)
        As in `TreeStructure`.
    probability : float64 array, shape (n_nodes, K)
        Share of each class among the training rows of the node. Inner nodes of a tree without
        counts may contain NaN.
    counts : int64 array, shape (n_nodes, K), or None
        Training rows of each class in the node, if known. A row that was drawn twice counts twice.
    distinct : int64 array, shape (n_nodes,), or None
        Distinct training rows in the node, if known.
    """

    probability: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None
    distinct: NDArray[np.int64] | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.probability.shape[1])

    def released(
        self, probability: NDArray[np.float64], counts: NDArray[np.int64] | None
    ) -> ClassTree:
        """Return a copy with the given values of the leaves, as a recipient of these values has it.

        Parameters
        ----------
        probability : float64 array, shape (n_leaves, K)
            Class shares of the leaves.
        counts : int64 array, shape (n_leaves, K), or None
            Class counts of the leaves. Those of inner nodes are computed by addition.
        """
        node_probability = np.full(self.probability.shape, np.nan)
        node_probability[self.leaves] = probability
        if counts is None:
            return replace(self, probability=node_probability, counts=None, distinct=None)
        sums = np.zeros(self.probability.shape, dtype=np.int64)
        sums[self.leaves] = counts
        inner = np.flatnonzero(self.feature >= 0)
        for node in inner[::-1]:  # children follow their parent
            sums[node] = sums[self.left[node]] + sums[self.right[node]]
        node_probability[inner] = shares(sums[inner])
        return replace(self, probability=node_probability, counts=sums, distinct=None)


@dataclass(frozen=True, eq=False)
class RandomForest(LeafRouting):
    """An ensemble that averages the class probabilities of its trees.

    Attributes
    ----------
    trees : tuple of ClassTree
        At least one tree. All trees have the same number of classes K.

    Raises
    ------
    DataError
        If there is no tree, or if the numbers of classes differ.
    """

    trees: tuple[ClassTree, ...]

    def __post_init__(self) -> None:
        widths = {t.n_classes for t in self.trees}
        if len(widths) != 1:
            raise DataError(
                f"a forest needs trees with the same classes; {len(self.trees)} trees "
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
        """Return the forest with `distinct` equal to the sum of the counts.

        This is correct if every row was drawn at most once.
        """
        trees = (replace(t, distinct=None if t.counts is None else t.counts.sum(axis=1))
                 for t in self.trees)  # fmt: skip
        return RandomForest(tuple(trees))

    def probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the mean class probabilities, float64, shape (n, K). Errors as in `apply`.

        They are summed in the order of the trees, as in scikit-learn.
        """
        X = self._routes.rows(X)
        total = np.zeros((len(X), self.n_classes))
        for block, leaves in self._routes.blocks(X):
            for tree, leaf in zip(self.trees, leaves.T, strict=True):
                total[block] += tree.probability[leaf]
        return total / len(self.trees)

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of class 1, shape (n,), if K is 2, else `probabilities`."""
        probabilities = self.probabilities(X)
        return probabilities[:, 1] if self.n_classes == 2 else probabilities

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the concatenated arrays of all trees, by name.

        ``counts`` is included only if all trees know it. Messages contain these arrays. `distinct`
        rows are stored in files only.
        """
        sizes = np.array([len(t) for t in self.trees], dtype=np.int64)
        return {"sizes": sizes, **join_nodes(self.trees, FOREST_DTYPES)}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any] | None]) -> RandomForest:
        """Return the forest of the arrays that `to_arrays` returned.

        Raises
        ------
        DataError
            If an array is missing, or the arrays do not fit together.
        """
        present = {n: a for n, a in arrays.items() if a is not None and n != "right"}
        try:
            trees = split_nodes(present.pop("sizes"), present)
            return RandomForest(tuple(ClassTree(**tree) for tree in trees))
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f"arrays {sorted(present)} are no forest ({err})") from err


def shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return class counts as probabilities, float64, shape (k, K), uniform if all counts are 0."""
    totals = counts.sum(axis=1, keepdims=True)
    uniform = np.full(counts.shape, 1.0 / counts.shape[1])
    # Nodes without rows keep equal shares.
    np.divide(counts, totals, out=uniform, where=totals > 0)
    return uniform


def keep_best_splits(tree: ClassTree, max_leaf_nodes: int) -> ClassTree:
    """Return the tree at which best-first growth would have stopped.

    From the root on, the split that decreases ``rows * Gini`` most is made next, until there are
    `max_leaf_nodes` leaves. A split depends only on the rows of its node. Therefore, growing the
    complete tree and selecting its best splits gives the same tree as best-first growth.

    Raises
    ------
    DataError
        If the tree does not know its counts.
    """
    if tree.counts is None:
        raise DataError("the best splits are found by class counts, which this tree does not keep")
    n = tree.counts.sum(axis=1)
    purity = np.sum(tree.counts.astype(np.float64) ** 2, axis=1) / np.maximum(n, 1)
    # rows * Gini is the number of rows minus the purity, so that the decrease is a difference of
    # purities.
    gain = np.where(tree.feature < 0, 0, purity[tree.left] + purity[tree.right] - purity)
    selected = np.zeros(len(tree), dtype=bool)
    queue = [(-float(gain[0]), 0)] if tree.feature[0] >= 0 else []
    while queue and selected.sum() < max_leaf_nodes - 1:
        _, node = heapq.heappop(queue)
        selected[node] = True
        for child in (int(tree.left[node]), int(tree.right[node])):
            if tree.feature[child] >= 0:
                heapq.heappush(queue, (-float(gain[child]), child))
    return _cut_back(tree, selected)


def keep_large_leaves(tree: ClassTree, leaves: NDArray[np.int32], least: int) -> ClassTree:
    """Return the tree without splits that leave fewer than `least` rows on one side.

    Parameters
    ----------
    tree : ClassTree
        A tree with counts.
    leaves : int32 array, shape (n,)
        Leaf of every row.
    least : int
        Smallest number of rows.
    """
    rows = np.bincount(leaves, minlength=len(tree))
    inner = np.flatnonzero(tree.feature >= 0)
    for node in inner[::-1]:  # children follow their parent
        rows[node] = rows[tree.left[node]] + rows[tree.right[node]]
    selected, alive = np.zeros(len(tree), dtype=bool), np.zeros(len(tree), dtype=bool)
    alive[0] = True
    for node in inner:
        pair = [tree.left[node], tree.right[node]]
        selected[node] = alive[node] and (rows[pair] >= least).all()
        alive[pair] = selected[node]
    return _cut_back(tree, selected)


def _cut_back(tree: ClassTree, remaining: NDArray[np.bool_]) -> ClassTree:
    """Return the tree with only some of its splits. The parent of a remaining split must remain."""
    alive = np.zeros(len(tree), dtype=bool)
    alive[0] = True
    alive[tree.left[remaining]] = True
    alive[tree.right[remaining]] = True
    # The order of the nodes, and with it pairs and levels, is unchanged.
    number = np.cumsum(alive) - 1
    inner = remaining[alive]

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
