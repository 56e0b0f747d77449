"""Read XGBoost's model files together with their statistics (`XGBOOST_STATISTICS`)."""

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
LARGEST = float(np.finfo(np.float32).max)  # XGBoost computes statistics and weights in float32


def read_xgboost(path: Path, data: bytes) -> ModelFile:
    """Read a JSON or UBJSON file, whose contents are `data`.

    Raises `DataError` if it is not a complete and supported model, or if its statistics are
    impossible.
    """
    document = model_of(data)
    learner = document["learner"]
    _fill_absent(learner)
    hidden = _without_hidden(learner)
    forest = from_xgboost_json({"learner": learner}, every_round=True)
    served = served_trees(learner)
    trees, places = _in_order(learner, forest)
    file_trees = learner["gradient_booster"]["model"]["trees"]
    _check_children([tree for tree in trees if tree is not None])
    raw = {  # without the nodes that pruning deleted, in the node order of the forest's tree
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
    unpaired_rounds = sum(tree is None for tree in trees) // max(forest.objective.n_outputs - 1, 1)
    settings = learner["objective"].get("reg_loss_param") or {}
    tree_parameters = learner["gradient_booster"]["model"].get("gbtree_model_param")
    width = width_of(int(learner["learner_model_param"]["num_feature"]))
    return ModelFile(
        path=path,
        format=("XGBoost UBJ" if is_ubjson(data) else "XGBoost JSON") + _appended(unpaired_rounds),
        forest=forest,
        statistics=statistics,
        raw=raw,
        feature_names=_names(learner.get("feature_names") or (), width),
        categorical=_categorical(forest, width),
        categories=_categories(learner, document.get("version"), width),
        positive_weight=_positive_weight(settings),
        parameters={str(k): str(v) for k, v in tree_parameters.items()}
        if isinstance(tree_parameters, dict)
        else {},
        places=tuple(places),
        numbers=tuple(
            np.zeros(1, dtype=np.int64) if tree is None else np.flatnonzero(_listed(tree))
            for tree in trees
        ),
        hidden=tuple(
            np.zeros(1, dtype=bool) if place < 0 else hidden[place][_listed(file_trees[place])]
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
    """Return the trees of the file in the order of the forest, and their positions in the file.

    Flower's server appends trees of class 0 without trees of the other classes. The forest then
    contains trees with a single leaf for the other classes of these rounds. They are not in the
    file, so that their entries are None and their position is -1.
    """
    booster, outputs = learner["gradient_booster"]["model"], forest.objective.n_outputs
    listed = booster["trees"]
    info = np.atleast_1d(np.asarray(booster["tree_info"])).tolist()
    unpaired_rounds = trees_alone(info, outputs)
    order = order_of_trees(info + list(range(1, outputs)) * unpaired_rounds, len(forest), outputs)
    places = [place if place < len(listed) else -1 for place in order]
    return [None if place < 0 else listed[place] for place in places], places


def _appended(alone: int) -> str:
    """Return a remark on rounds that contain only a tree of class 0, empty without such rounds."""
    if not alone:
        return ""
    trees = many(alone, "tree is", "trees are")
    return f" (its last {trees} of class 0 alone, as Flower appends them)"


def _check_children(trees: Sequence[Mapping[str, Any]]) -> None:
    """Reject trees whose children XGBoost would not reach by its rule.

    For XGBoost, a node is a leaf if its left child is -1, and the right child is the node after the
    left one, whatever the file contains. In a damaged file it would leave the tree or loop forever.
    """
    for t, tree in enumerate(trees):
        left, right = (np.asarray(tree[f"{side}_children"]) for side in ("left", "right"))
        if (left < -1).any() or (right != np.where(left < 0, -1, left + 1)).any():
            raise DataError(
                f"the children of a node of tree {t} are no pair as XGBoost numbers them; the "
                "model is damaged"
            )


def _names(listed: Any, width: int) -> tuple[str, ...]:
    """Return the names of the columns, with unprintable characters written as escapes."""
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
    """Return the version of XGBoost in the file, or an empty list if it contains none."""
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
    """Add statistics of zero to trees that lack them. A scrubbed file contains the same zeros."""
    try:
        trees = learner["gradient_booster"]["model"]["trees"]
        for tree in trees:
            for name in XGBOOST_STATISTICS:
                tree.setdefault(name, [0.0] * len(tree["split_indices"]))
    except (AttributeError, KeyError, TypeError):
        return  # another booster, or a damaged file: reading the forest raises the exact error


def _without_hidden(learner: dict[str, Any]) -> list[NDArray[np.bool_]]:
    """Replace thresholds that another party stores by 0, and return their nodes for each tree."""
    try:
        booster = learner["gradient_booster"]["model"]
        hidden = [hidden_thresholds(tree) for tree in booster["trees"]]
        booster["trees"] = [with_placeholders(tree) for tree in booster["trees"]]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return []  # a damaged file: reading the forest raises the exact error
    return hidden


def _listed(tree: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Return which nodes of a tree in the file pruning did not delete, bool, shape (n_nodes,)."""
    return np.asarray(np.asarray(tree["split_indices"]) != DELETED)


def _usable(name: str, by_tree: list[Floats]) -> Sequence[Floats | None]:
    """Return a statistic of all trees, or None for each tree if the statistic is a constant.

    A constant shows that the statistic was masked or scrubbed. Training never leaves one constant
    in a tree with a split, because the sum of a node is the sum of its children. Raises `DataError`
    if a value is impossible.
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
    """Return the state of a statistic, and the constant if it is masked.

    The state is ``zero``, ``masked`` (one constant) or ``present``. In a model whose trees are
    single leaves, all sums may be equal by chance. Then only the value 1, with which NVFlare masks,
    counts as a mask.
    """
    values = np.concatenate([*map(np.ravel, by_tree), np.zeros(0)])
    if (values == 0).all():
        return "zero", None
    if (values == values[0]).all() and (values[0] == 1 or any(len(v) > 1 for v in by_tree)):
        return "masked", float(values[0])
    return "present", None


def _categorical(forest: Forest, width: int) -> tuple[bool, ...]:
    """Return for each column whether a split on it lists categories (its threshold is NaN)."""
    is_categorical = np.zeros(width, dtype=bool)
    for tree in forest.trees:
        is_categorical[tree.feature[np.isnan(tree.threshold)]] = True
    return tuple(is_categorical.tolist())
