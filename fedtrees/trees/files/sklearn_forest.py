"""Convert fitted random forests of scikit-learn. Its files are pickles, which are not read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

#: Tolerance of counts, which are computed from quotients of float64 sums.
_WHOLE = 1e-6


def from_sklearn(estimator: Any) -> RandomForest:
    """Convert a fitted forest or tree of scikit-learn, with the class counts that it stores.

    Parameters
    ----------
    estimator : scikit-learn classifier
        Fitted, with one output. Class codes are positions in its ``classes_``.

    Returns
    -------
    forest : RandomForest
        It makes the same predictions. Counts are those of the drawn rows, or None if rows or
        classes had weights that are not integers. For scikit-learn's forests and trees, `distinct`
        rows are also known. For bagging they are not, because it may draw rows before its trees
        receive them.

    Raises
    ------
    DataError
        If the estimator is not fitted, is no classifier of trees or has several outputs, or if its
        trees have weights or use different columns.
    """
    trees = getattr(estimator, "estimators_", [estimator])
    fitted: list[Any] = [
        getattr(t, "tree_", None) for t in np.ravel(np.asarray(trees, dtype=object))
    ]
    if not hasattr(estimator, "classes_") or any(t is None for t in fitted):
        raise DataError(
            f"a {type(estimator).__name__} is no fitted classifier of trees; give a fitted "
            "RandomForestClassifier, ExtraTreesClassifier or DecisionTreeClassifier"
        )
    if any(t.value.shape[1:] != (1, len(np.ravel(estimator.classes_))) for t in fitted):
        raise DataError(
            f"a {type(estimator).__name__} of several outputs, or of boosted trees, is "
            "not supported: its leaves contain no class shares of one target"
        )
    columns = getattr(estimator, "estimators_features_", [])
    if hasattr(estimator, "estimator_weights_") or any(
        not np.array_equal(c, np.arange(estimator.n_features_in_)) for c in columns
    ):
        raise DataError(
            f"a {type(estimator).__name__} whose trees have weights or different columns "
            "is not supported: the trees of a forest have equal weights and use all "
            "columns; give a "
            "RandomForestClassifier, or bagging with max_features=1.0"
        )
    # Bagging draws rows before the trees are fitted.
    draws = hasattr(estimator, "estimators_features_")
    return RandomForest(tuple(_tree(t, not draws) for t in fitted))


def _tree(tree: Any, distinct: bool) -> ClassTree:
    """Return one tree with its children in pairs, level by level."""
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
    integral = np.abs(counts - drawn).max() < _WHOLE and (counts.sum(axis=1) > 0).all()
    return ClassTree(
        np.where(leaf, -1, tree.feature[at]).astype(np.int32),
        np.where(leaf, 0, _above(tree.threshold[at])).astype(np.float32),
        child(tree.children_left),
        child(tree.children_right),
        np.where(leaf, False, tree.missing_go_to_left[at].astype(bool)),
        share,
        counts if integral else None,
        # Forests draw rows by weights: the number of rows with positive weight.
        tree.n_node_samples[at].astype(np.int64) if distinct else None,
    )


def _above(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the smallest float32 above each threshold.

    ``x <= threshold`` is then equivalent to ``x < result``, for every float32 x.
    """
    near = threshold.astype(np.float32)
    under = np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)
    return np.nextafter(under, np.float32(np.inf))
