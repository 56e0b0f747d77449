"""Conversion between boosted trees and the arrays of `fedtrees.messages.shared_trees`."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.messages.shared_trees import SharedTrees
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.newton import weights_of
from fedtrees.trees.boosted.params import TreeParams

NODE_FIELDS = (
    ("feature", np.int32),
    ("threshold", np.float32),
    ("left", np.int32),
    ("default_left", np.bool_),
    ("value", np.float32),
    ("sum_hessian", np.float32),
    ("base_weights", np.float32),
    ("loss_changes", np.float32),
)


def pack(trees: Sequence[Tree], params: TreeParams) -> dict[str, NDArray[Any]]:
    """Return trees with gradient statistics as the array fields of `SharedTrees`.

    Parameters
    ----------
    trees : sequence of Tree
        Trees whose `g` and `h` are known.
    params : TreeParams
        Parameters that the trees were grown with. ``base_weights`` depends on the regularisation.
    """
    columns: dict[str, list[Any]] = {name: [] for name, _ in NODE_FIELDS}
    for tree in trees:
        for name in ("feature", "threshold", "left", "default_left", "value"):
            columns[name].append(getattr(tree, name))
        columns["sum_hessian"].append(tree.h)
        # XGBoost's file format has these fields for every node.
        columns["base_weights"].append(base_weights(tree, params))
        columns["loss_changes"].append(np.zeros(len(tree)) if tree.gain is None else tree.gain)
    arrays: dict[str, NDArray[Any]] = {
        name: np.concatenate([np.zeros(0, dtype), *columns[name]]).astype(dtype)
        for name, dtype in NODE_FIELDS
    }
    return {"sizes": np.array([len(t) for t in trees], dtype=np.int64), **arrays}


def base_weights(tree: Tree, params: TreeParams) -> NDArray[np.float32]:
    """Return XGBoost's ``base_weights`` of a tree, float32, shape (n_nodes,).

    These are leaf outputs at leaves, and weights without learning rate at inner nodes. A root that
    is a leaf also has a weight without learning rate, because XGBoost computes its weight before it
    knows that no split follows.
    """
    assert tree.g is not None
    assert tree.h is not None
    is_root = np.arange(len(tree)) == 0
    weight = weights_of(tree.g, tree.h, params)
    weights: NDArray[np.float32] = np.where((tree.feature >= 0) | is_root, weight, tree.value)
    return weights


def unpack(
    message: SharedTrees,
    learning_rate: float | None = None,
    reg_lambda: float | None = None,
    reg_alpha: float = 0.0,
) -> list[Tree]:
    """Return the trees of a message.

    Parameters
    ----------
    message : SharedTrees
        Concatenated trees.
    learning_rate, reg_lambda : float, optional
        If both are given and the message contains hessian sums and weights, gradient sums are
        recovered as ``g = -w (h + lambda) - alpha sign(w)``, with the precision of a float32. They
        are meaningless if a defense has overwritten the hessians.
    reg_alpha : float
        L1 regularisation. A node with w = 0 can have any gradient sum from -alpha to alpha, and 0
        is returned.

    Raises
    ------
    DataError
        If the node arrays do not fit the sizes.
    """
    ends = np.concatenate([[0], np.cumsum(message.sizes)])
    if any(len(a) != ends[-1] for n, _ in NODE_FIELDS if (a := getattr(message, n)) is not None):
        raise DataError(f"node arrays do not fit {ends[-1]} nodes in {len(message.sizes)} trees")
    g = None
    h, weights = message.sum_hessian, message.base_weights
    if h is not None and weights is not None and not (learning_rate is None or reg_lambda is None):
        leaf = message.feature < 0
        # Leaf values include the learning rate, which XGBoost multiplies in float32.
        w = np.where(leaf, message.value / np.float64(np.float32(learning_rate)), weights)
        g = -w * (h.astype(np.float64) + reg_lambda) - reg_alpha * np.sign(w)
    trees = []
    for begin, end in pairwise(ends.tolist()):
        span = slice(begin, end)
        left = message.left[span]
        trees.append(
            Tree(
                feature=message.feature[span],
                threshold=message.threshold[span],
                left=left,
                # XGBoost numbers siblings consecutively, so that the message contains only left
                # children.
                right=np.where(left < 0, -1, left + 1).astype(np.int32),
                default_left=message.default_left[span],
                value=message.value[span],
                g=None if g is None else g[span],
                h=None if h is None else h[span].astype(np.float64),
                gain=None if message.loss_changes is None else message.loss_changes[span],
            )
        )
    return trees


def join(messages: Sequence[SharedTrees]) -> dict[str, NDArray[Any]]:
    """Concatenate the array fields of several messages, in order.

    Optional fields that are None in any message are left out.
    """
    names = ["sizes", *(name for name, _ in NODE_FIELDS)]
    return {
        name: np.concatenate([getattr(m, name) for m in messages])
        for name in names
        if all(getattr(m, name) is not None for m in messages)
    }
