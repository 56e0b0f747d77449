"""XGBoost's model files, and the statistics in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import Floats, ModelFile, Statistics, width_of
from fedtrees.core.counts import many
from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.files.categories import read_categories
from fedtrees.trees.files.xgboost import (
    dropout_weights,
    from_xgboost_json,
    is_ubjson,
    model_of,
    order_of_trees,
    served_trees,
    trees_alone,
)
from fedtrees.trees.files.xgboost_tree import DELETED, hidden_thresholds, with_placeholders

XGBOOST_STATISTICS = ("sum_hessian", "base_weights", "loss_changes")
LARGEST = float(np.finfo(np.float32).max)  # statistics and weights are float32


def read_xgboost(path: Path, data: bytes) -> ModelFile:
    whole = model_of(data)
    learner = whole["learner"]
    _fill_absent(learner)
    hidden = _without_hidden(learner)
    forest = from_xgboost_json({"learner": learner}, every_round=True)
    served = served_trees(learner)
    trees, places = _in_order(learner, forest)
    listed = learner["gradient_booster"]["model"]["trees"]
    _check_children([tree for tree in trees if tree is not None])
    raw = {  # of the nodes that pruning left, in the order of the forest's tree
        name: [
            np.zeros(0) if tree is None
            else np.asarray(tree[name], dtype=np.float64)[_listed(tree)]
            for tree in trees
        ]
        for name in XGBOOST_STATISTICS
    }  # fmt: skip
    usable = [_usable(name, raw[name]) for name in XGBOOST_STATISTICS]
    statistics = tuple(
        Statistics() if tree is None else Statistics(*values)
        for tree, *values in zip(trees, *usable, strict=True)
    )
    alone = sum(tree is None for tree in trees) // max(forest.objective.n_outputs - 1, 1)
    settings = learner["objective"].get("reg_loss_param") or {}
    stated = learner["gradient_booster"]["model"].get("gbtree_model_param")
    width = width_of(int(learner["learner_model_param"]["num_feature"]))
    return ModelFile(
        path=path,
        format=("XGBoost UBJ" if is_ubjson(data) else "XGBoost JSON") + _appended(alone),
        forest=forest,
        statistics=statistics,
        raw=raw,
        feature_names=_names(learner.get("feature_names") or (), width),
        categorical=_categorical(forest, width),
        categories=_categories(learner, whole.get("version"), width),
        positive_weight=_positive_weight(settings),
        base_score_given=learner["learner_model_param"].get("boost_from_average") != "1",
        parameters={str(k): str(v) for k, v in stated.items()} if isinstance(stated, dict) else {},
        places=tuple(places),
        numbers=tuple(
            np.zeros(1, dtype=np.int64) if tree is None else np.flatnonzero(_listed(tree))
            for tree in trees
        ),
        hidden=tuple(
            np.zeros(1, dtype=bool) if place < 0 else hidden[place][_listed(listed[place])]
            for place in places
        )
        if any(nodes.any() for nodes in hidden)
        else (),
        dropout=dropout_weights(learner["gradient_booster"]["model"]) is not None,
        served_rounds=None if served is None else served // forest.objective.n_outputs,
    )


def _in_order(
    learner: Mapping[str, Any], forest: Forest
) -> tuple[list[Mapping[str, Any] | None], list[int]]:
    """Return the trees of the file in the order of the forest, and their places in the file.

    Flower's server appends trees of class 0 alone. The forest then contains trees of a single leaf
    for the other classes of these rounds. They are in no file: None, at place -1.
    """
    booster, outputs = learner["gradient_booster"]["model"], forest.objective.n_outputs
    listed = booster["trees"]
    info = np.atleast_1d(np.asarray(booster["tree_info"])).tolist()
    alone = trees_alone(info, outputs)
    order = order_of_trees(info + list(range(1, outputs)) * alone, len(forest), outputs)
    places = [place if place < len(listed) else -1 for place in order]
    return [None if place < 0 else listed[place] for place in places], places


def _appended(alone: int) -> str:
    if not alone:
        return ""
    trees = many(alone, "tree is", "trees are")
    return f" (its last {trees} of class 0 alone, as Flower appends them)"


def _check_children(trees: Sequence[Mapping[str, Any]]) -> None:
    """Refuse trees that XGBoost does not walk as they are written.

    To it a leaf is a node of left child -1, and the right child is the node after the left one,
    whatever the file says. Of a damaged file it leaves the tree, or goes round in circles.
    """
    for t, tree in enumerate(trees):
        left, right = (np.asarray(tree[f"{side}_children"]) for side in ("left", "right"))
        if (left < -1).any() or (right != np.where(left < 0, -1, left + 1)).any():
            raise DataError(
                f"the children of a node of tree {t} are no pair as XGBoost numbers them; the "
                "model is damaged"
            )


def _names(listed: Any, width: int) -> tuple[str, ...]:
    """Return the names of the columns; what a screen cannot show is written as an escape."""
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise DataError(f"feature_names of the model is a {type(listed).__name__}, not a list")
    if listed and len(listed) != width:
        raise DataError(f"the model has {width} columns and names {len(listed)} of them")
    return tuple(
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name)) for name in listed
    )


def _categories(
    learner: Mapping[str, Any], version: Any, width: int
) -> dict[int, tuple[str, ...] | tuple[int, ...]]:
    names = read_categories(learner["gradient_booster"]["model"], _version(version))
    if any(k >= width for k in names):
        raise DataError(f"the model names categories of column {max(names)} and has {width}")
    return names


def _version(version: Any) -> list[int]:
    """Return the version of XGBoost that a file states, an empty list if it states none."""
    try:
        return np.asarray(version, dtype=np.int64).ravel().tolist()
    except (TypeError, ValueError, OverflowError):
        return []


def _positive_weight(settings: Any) -> float:
    try:
        weight = float(settings.get("scale_pos_weight", 1.0))
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"not a complete XGBoost model: scale_pos_weight ({error})") from error
    if not 1 / LARGEST < weight < LARGEST:
        raise DataError(f"scale_pos_weight {weight} of the model must be a positive float32")
    return weight


def _fill_absent(learner: dict[str, Any]) -> None:
    """Give trees that lack a statistic zeros in its place, as scrubbing leaves them."""
    try:
        trees = learner["gradient_booster"]["model"]["trees"]
        for tree in trees:
            for name in XGBOOST_STATISTICS:
                tree.setdefault(name, [0.0] * len(tree["split_indices"]))
    except (AttributeError, KeyError, TypeError):
        return  # of another booster, or damaged: reading the forest says which


def _without_hidden(learner: dict[str, Any]) -> list[NDArray[np.bool_]]:
    """Put 0 in place of thresholds that another party keeps; return their nodes, tree by tree."""
    try:
        booster = learner["gradient_booster"]["model"]
        hidden = [hidden_thresholds(tree) for tree in booster["trees"]]
        booster["trees"] = [with_placeholders(tree) for tree in booster["trees"]]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return []  # damaged: reading the forest states how
    return hidden


def _listed(tree: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which nodes of a file's tree pruning left."""
    return np.asarray(np.asarray(tree["split_indices"]) != DELETED)


def _usable(name: str, by_tree: list[Floats]) -> Sequence[Floats | None]:
    """Return a statistic of all trees, None of each where it is one constant: masked or scrubbed.

    Training leaves no constant where there is a split: a node's sum is that of its children.
    """
    for t, values in enumerate(by_tree):
        if not np.isfinite(values).all():
            raise DataError(f"{name} of tree {t} is not finite; the model is damaged")
        if (np.abs(values) > LARGEST).any():
            raise DataError(f"{name} of tree {t} is beyond float32; the model is damaged")
        if name == "sum_hessian" and (values < 0).any():
            raise DataError(f"{name} of tree {t} is negative ({values.min():g}); it cannot be")
    return by_tree if state_of(by_tree)[0] == "present" else [None] * len(by_tree)


def state_of(by_tree: Sequence[Floats]) -> tuple[str, float | None]:
    """Tell whether a statistic is ``present``, ``zero``, or ``masked`` by one constant: which.

    Trees of one leaf may all have one sum; of these 1 alone, with which NVFlare masks, is a mask.
    """
    values = np.concatenate([*map(np.ravel, by_tree), np.zeros(0)])
    if (values == 0).all():
        return "zero", None
    if (values == values[0]).all() and (values[0] == 1 or any(len(v) > 1 for v in by_tree)):
        return "masked", float(values[0])
    return "present", None


def _categorical(forest: Forest, width: int) -> tuple[bool, ...]:
    found = np.zeros(width, dtype=bool)
    for tree in forest.trees:
        found[tree.feature[np.isnan(tree.threshold)]] = True
    return tuple(found.tolist())
