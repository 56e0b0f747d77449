"""Read and write forests as XGBoost's JSON models (gbtree, binary:logistic, XGBoost 1.7 to 3.x)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.forest import Forest, Tree
from fedtrees.trees.losses import base_margin, sigmoid
from fedtrees.trees.params import TreeParams

_ROOT_PARENT = 2147483647  # how XGBoost marks a node without parent


def to_xgboost_json(
    forest: Forest,
    n_features: int,
    feature_names: Sequence[str] = (),
    params: TreeParams | None = None,
) -> dict[str, Any]:
    """Return a model that ``xgboost.Booster`` loads and that predicts the same.

    Parameters
    ----------
    forest : Forest
    n_features : int
        Columns of the table.
    feature_names : sequence of str, shape (d,), optional
    params : TreeParams, optional
        Given, inner nodes get the weight they would have as leaves, as XGBoost writes it.

    Raises
    ------
    DataError
        If there are no trees (XGBoost would misread the base score), the trees use more features
        than there are, or the names do not fit.
    """
    if not forest.trees:
        raise DataError("a forest without trees cannot be written; XGBoost misreads its base score")
    used = 1 + max((int(t.feature.max(initial=-1)) for t in forest.trees), default=-1)
    if used > n_features:
        raise DataError(f"the trees use {used} features, the model is given {n_features}")
    if feature_names and len(feature_names) != n_features:
        raise DataError(f"{len(feature_names)} feature names for {n_features} features")
    trees = [_write_tree(i, tree, n_features, params) for i, tree in enumerate(forest.trees)]
    shape = {"num_class": "0", "num_feature": str(n_features), "num_target": "1"}
    learner = {
        "attributes": {},
        "feature_names": list(feature_names),
        "feature_types": ["float"] * len(feature_names),
        "gradient_booster": {
            "name": "gbtree",
            "model": {
                "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                "iteration_indptr": list(range(len(trees) + 1)),
                "tree_info": [0] * len(trees),
                "trees": trees,
            },
        },
        "learner_model_param": {
            "base_score": repr(_probability(forest.base_margin)),
            "boost_from_average": "1",
            **shape,
        },
        "objective": {"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    # The format of 2.1: 3.x reads it too, and a plain base_score is understood by all.
    return {"version": [2, 1, 0], "learner": learner}


def _probability(margin: np.float32) -> float:
    """Return a float32 probability whose log-odds, in float32, are the margin (or nearest)."""
    p = sigmoid(np.array([margin], dtype=np.float32))[0]
    around = [p, np.nextafter(p, np.float32(0)), np.nextafter(p, np.float32(1))]
    inside = [q for q in around if 0 < q < 1]
    if not inside:
        raise DataError(f"base margin {margin} is no log-odds that XGBoost's base_score can hold")
    return float(min(inside, key=lambda q: abs(base_margin(q) - margin)))


def _write_tree(
    number: int, tree: Tree, n_features: int, params: TreeParams | None
) -> dict[str, Any]:
    n = len(tree)
    leaf = tree.feature < 0
    parents = np.full(n, _ROOT_PARENT)
    inner = np.flatnonzero(~leaf)
    parents[tree.left[inner]] = inner
    parents[tree.right[inner]] = inner
    zeros = np.zeros(n, dtype=np.float32)
    cover = zeros if tree.h is None else np.nan_to_num(tree.h).astype(np.float32)
    gain = zeros if tree.gain is None else tree.gain
    return {
        "base_weights": _weights(tree, params).tolist(),
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": tree.default_left.astype(int).tolist(),
        "id": number,
        "left_children": tree.left.tolist(),
        "loss_changes": gain.tolist(),
        "parents": parents.tolist(),
        "right_children": tree.right.tolist(),
        "split_conditions": np.where(leaf, tree.value, tree.threshold).tolist(),
        "split_indices": np.maximum(tree.feature, 0).tolist(),
        "split_type": [0] * n,
        "sum_hessian": cover.tolist(),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def _weights(tree: Tree, params: TreeParams | None) -> NDArray[np.float32]:
    """Return XGBoost's base_weights: leaf outputs, and unshrunk weights at inner nodes."""
    weights = tree.value.astype(np.float32).copy()
    if params is not None and tree.g is not None and tree.h is not None:
        reg = tree.h + params.reg_lambda
        usable = (tree.feature >= 0) & (tree.h > 0) & np.isfinite(tree.g)
        weights[usable] = -tree.g[usable] / reg[usable]
    return weights


def from_xgboost_json(
    model: dict[str, Any] | str | bytes | PathLike[str],
    *,
    learning_rate: float | None = None,
    reg_lambda: float | None = None,
) -> Forest:
    """Read a forest from an XGBoost model.

    Gradient sums are not in the file. Given ``learning_rate`` and ``reg_lambda`` they are recovered
    from the weights as ``g = -w (h + lambda)``, with the precision of a float32 (leaves hold
    ``eta w``); otherwise ``g`` is None.

    Parameters
    ----------
    model : dict, bytes or path
        The parsed JSON, its bytes (``Booster.save_raw("json")``), or a file.
    learning_rate, reg_lambda : float, optional
        What the model was trained with.

    Raises
    ------
    DataError
        If the JSON is truncated or no gbtree model for binary:logistic with numerical splits.
    """
    learner = _learner(model)
    try:
        booster = learner["gradient_booster"]
        name, objective = booster["name"], learner["objective"]["name"]
        if name != "gbtree" or objective != "binary:logistic":
            raise DataError(
                f"model is {name!r} for {objective!r}; only 'gbtree' for 'binary:logistic' is read"
            )
        targets = int(learner["learner_model_param"].get("num_target", "1"))
        if targets != 1:
            raise DataError(f"model has {targets} targets; only one is read")
        score = _base_score(learner["learner_model_param"]["base_score"])
        trees = [_read_tree(t, learning_rate, reg_lambda) for t in booster["model"]["trees"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"not a complete XGBoost model: {type(error).__name__} {error}") from error
    return Forest(tuple(trees), base_margin(score))


def _learner(model: dict[str, Any] | str | bytes | PathLike[str]) -> dict[str, Any]:
    if isinstance(model, str | PathLike):
        try:
            model = Path(model).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read the model {model!s}: {error.strerror}") from error
    if isinstance(model, bytes | bytearray):
        try:
            model = json.loads(model)
        except ValueError as error:  # includes undecodable bytes
            raise DataError(f"the model is not JSON ({error}); save it as model.json") from error
    if not isinstance(model, dict) or not isinstance(model.get("learner"), dict):
        raise DataError("not an XGBoost model: there is no 'learner' object")
    learner: dict[str, Any] = model["learner"]
    return learner


def _base_score(text: Any) -> float:
    """Read "6.27E-1" or, since 3.1, "[6.27E-1]"."""
    score = json.loads(str(text))
    if isinstance(score, list):
        if len(score) != 1:
            raise DataError(f"model has {len(score)} base scores; only one output is read")
        score = score[0]
    return float(score)


def _read_tree(tree: dict[str, Any], eta: float | None, reg_lambda: float | None) -> Tree:
    left = np.array(tree["left_children"], dtype=np.int32)
    right = np.array(tree["right_children"], dtype=np.int32)
    leaf = left < 0
    condition = np.array(tree["split_conditions"], dtype=np.float32)
    columns = np.array(tree["split_indices"], dtype=np.int32)
    default_left = np.array(tree["default_left"], dtype=bool)
    gain = np.array(tree["loss_changes"], dtype=np.float32)
    h = np.array(tree["sum_hessian"], dtype=np.float64)
    weights = np.array(tree["base_weights"], dtype=np.float64)
    arrays = (right, condition, columns, default_left, gain, h, weights)
    if left.ndim != 1 or not len(left) or any(a.shape != left.shape for a in arrays):
        raise DataError("not a complete XGBoost model: node arrays of a tree differ in length")
    _check_shape(left, right)
    if any(tree.get("split_type", ())):
        raise DataError("model has categorical splits; only numerical ones are read")
    g = None
    if eta is not None and reg_lambda is not None:
        g = -np.where(leaf, condition / eta, weights) * (h + reg_lambda)
    return Tree(
        feature=np.where(leaf, -1, columns).astype(np.int32),
        threshold=np.where(leaf, 0, condition).astype(np.float32),
        left=left,
        right=right,
        default_left=default_left & ~leaf,
        value=np.where(leaf, condition, 0).astype(np.float32),
        g=g,
        h=h,
        gain=np.where(leaf, 0, gain).astype(np.float32),
    )


def _check_shape(left: NDArray[np.int32], right: NDArray[np.int32]) -> None:
    """Raise DataError unless every node but the root is the child of exactly one node before it."""
    inner = np.flatnonzero(left >= 0)
    children = np.concatenate([left[inner], right[inner]])
    twice = np.concatenate([inner, inner])
    one_sided = ((left < 0) != (right < 0)).any()
    complete = np.array_equal(np.sort(children), np.arange(1, len(left)))
    if one_sided or not complete or (children <= twice).any():
        raise DataError("not a complete XGBoost model: the nodes of a tree do not form a tree")
