"""Take over fitted random forests of scikit-learn, whose own files are pickles and are not read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

#: Counts are quotients of float64 sums times their denominators.
_WHOLE = 1e-6


def from_sklearn(estimator: Any) -> RandomForest:
    """Return a fitted forest or tree of scikit-learn with the class counts that it keeps.

    `estimator`: Fitted, of one output. Class codes are positions in its ``classes_``.

    Raises `DataError` if it is not fitted, no classifier of trees, of several outputs, or if its
    trees have weights or columns of their own.

    Returns: Of the same predictions. Counts are of drawn rows; None where rows or classes had
    weights that are no whole numbers. Its own forests and trees know the `distinct` rows besides;
    bagging may draw rows before its trees see them.
    """
    trees = getattr(estimator, "estimators_", [estimator])
    kept: list[Any] = [getattr(t, "tree_", None) for t in np.ravel(np.asarray(trees, dtype=object))]
    if not hasattr(estimator, "classes_") or any(t is None for t in kept):
        raise DataError(
            f"a {type(estimator).__name__} is no fitted classifier of trees; give a fitted "
            "RandomForestClassifier, ExtraTreesClassifier or DecisionTreeClassifier"
        )
    if any(t.value.shape[1:] != (1, len(np.ravel(estimator.classes_))) for t in kept):
        raise DataError(
            f"a {type(estimator).__name__} of several outputs, or of boosted trees, is not taken: "
            "its leaves hold no shares of the classes of one target"
        )
    columns = getattr(estimator, "estimators_features_", [])
    if hasattr(estimator, "estimator_weights_") or any(
        not np.array_equal(c, np.arange(estimator.n_features_in_)) for c in columns
    ):
        raise DataError(
            f"a {type(estimator).__name__} whose trees have weights, or columns of their own, is "
            "not taken: a forest's trees count alike and know all columns; give a "
            "RandomForestClassifier, or bagging with max_features=1.0"
        )
    draws = hasattr(estimator, "estimators_features_")  # of bagging
    return RandomForest(tuple(_tree(t, not draws) for t in kept))


def _tree(tree: Any, distinct: bool) -> ClassTree:
    """Return one tree with its nodes in pairs, level by level."""
    order = [0]
    for node in order:
        if tree.children_left[node] >= 0:
            order += [tree.children_left[node], tree.children_right[node]]
    at = np.array(order)
    number = np.empty(len(at), dtype=np.int32)
    number[at] = np.arange(len(at))
    leaf = tree.children_left[at] < 0

    def child(nodes: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.where(leaf, -1, number[np.maximum(nodes[at], 0)]).astype(np.int32)

    value = tree.value[at, 0, :].astype(np.float64)
    share = value / value.sum(axis=1, keepdims=True)
    drawn = share * tree.weighted_n_node_samples[at, None]
    counts = np.rint(drawn).astype(np.int64)
    whole = np.abs(counts - drawn).max() < _WHOLE and (counts.sum(axis=1) > 0).all()
    return ClassTree(
        np.where(leaf, -1, tree.feature[at]).astype(np.int32),
        np.where(leaf, 0, _above(tree.threshold[at])).astype(np.float32),
        child(tree.children_left),
        child(tree.children_right),
        np.where(leaf, False, tree.missing_go_to_left[at].astype(bool)),
        share,
        counts if whole else None,
        # of rows that are drawn by weights, as forests do: those of a weight that is not 0
        tree.n_node_samples[at].astype(np.int64) if distinct else None,
    )


def _above(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the least float32 above: a row goes left there iff it is not above the threshold."""
    near = threshold.astype(np.float32)
    under = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return np.nextafter(under, np.float32(np.inf))
