"""Read fitted scikit-learn forests, so that models trained elsewhere can be studied here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest


def from_sklearn(model: Any) -> RandomForest:
    """Return a fitted ``RandomForestClassifier`` or ``ExtraTreesClassifier`` as a `RandomForest`.

    `RandomForest.probabilities` then equals ``predict_proba`` bit for bit. The model is read
    through its public attributes; nothing is unpickled.

    Parameters
    ----------
    model : object
        Has ``estimators_`` (trees with a ``tree_``), ``classes_`` and ``n_outputs_``.

    Raises
    ------
    DataError
        If the model is not fitted, has several outputs, or is no forest of classification trees.
    """
    kind = type(model).__name__
    try:
        trees = [e.tree_ for e in np.ravel(model.estimators_)]
        n_classes = len(np.ravel(model.classes_))
        single = model.n_outputs_ == 1
    except AttributeError as err:
        raise DataError(
            f"{kind} has no trees and classes to read ({err}); give a fitted "
            "RandomForestClassifier or ExtraTreesClassifier"
        ) from err
    if not single:
        raise DataError(f"{kind} has several outputs; give a forest of a single target")
    if not trees or any(t.value.shape[1:] != (1, n_classes) for t in trees):
        raise DataError(f"{kind} is no forest of classification trees; it cannot be read as one")
    return RandomForest(tuple(_tree(t) for t in trees))


def exact_thresholds(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return t' such that ``x < t'`` iff ``x <= t``, for every float32 x.

    That is the float32 after the largest one that does not exceed t. A split of all values from
    missing ones has t = t' = infinity.
    """
    wanted = np.asarray(thresholds, dtype=np.float64)
    with np.errstate(over="ignore"):
        nearest = wanted.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    floor = np.where(nearest.astype(np.float64) > wanted, below, nearest)
    return np.nextafter(floor, np.float32(np.inf))


def _tree(tree: Any) -> ClassTree:
    order, left = _by_level(tree.children_left, tree.children_right)
    leaf = left < 0
    value = np.asarray(tree.value, dtype=np.float64)[order, 0, :]
    sums = value.sum(axis=1, keepdims=True)
    shared = np.allclose(sums, 1.0)  # class shares since scikit-learn 1.3, counts before
    probability = value if shared else value / np.where(sums == 0, 1.0, sums)
    threshold = exact_thresholds(tree.threshold[order])
    # Not a property of Tree in every version, but a field of its node table since 1.3.
    nodes = tree.__getstate__()["nodes"]
    names = nodes.dtype.names or ()
    to_left = nodes["missing_go_to_left"] if "missing_go_to_left" in names else np.zeros(len(order))
    return ClassTree(
        feature=np.where(leaf, -1, tree.feature[order]).astype(np.int32),
        threshold=np.where(leaf, np.float32(0), threshold).astype(np.float32),
        left=left,
        right=np.where(leaf, -1, left + 1).astype(np.int32),
        default_left=~leaf & (to_left[order] != 0),
        probability=probability,
        counts=_counts(probability, np.asarray(tree.weighted_n_node_samples)[order]),
    )


def _by_level(
    left: NDArray[Any], right: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return the nodes level by level with children in pairs, and each one's new left child."""
    level = np.zeros(1, dtype=np.intp)
    levels = []
    while len(level):
        levels.append(level)
        parents = level[left[level] >= 0]
        level = np.stack([left[parents], right[parents]], axis=1).reshape(-1).astype(np.intp)
    order = np.concatenate(levels)
    inner = left[order] >= 0
    first = 2 * np.cumsum(inner) - 1
    return order, np.where(inner, first, -1).astype(np.int32)


def _counts(
    probability: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.int64] | None:
    """Return drawn rows per class, None where class or sample weights made them fractions."""
    rows = probability * weight[:, None]
    whole = np.rint(rows)
    return whole.astype(np.int64) if np.allclose(rows, whole, rtol=0, atol=1e-6) else None
