"""Read a model file, and detect its format from its contents.

The formats are LightGBM's text models and XGBoost's model files, each with their statistics
(`LIGHTGBM_STATISTICS`, `XGBOOST_STATISTICS`), and the random forests that fedtrees saves
(``.npz``), with their counts.
"""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, many
from fedtrees.core.files import is_numpy_archive, unreadable
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.model import Floats, ModelFile, Statistics, parameter, width_of
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.files.categories import read_categories
from fedtrees.trees.files.forests import (
    is_random_decision_forest,
    load_columns,
    load_random_forest,
    load_released,
)
from fedtrees.trees.files.lightgbm import (
    from_lightgbm_text,
    numbers_of_leaves,
    rows_of_leaves,
    sections,
)
from fedtrees.trees.files.model_file import naming, read_model_file
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
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, shares

XGBOOST_STATISTICS = ("sum_hessian", "base_weights", "loss_changes")
LARGEST = float(np.finfo(np.float32).max)  # XGBoost computes statistics and weights in float32


def read_xgboost(path: Path, data: bytes) -> ModelFile:
    """Read a model in the JSON or UBJSON format of XGBoost.

    Parameters
    ----------
    path : Path
        Path of the file, for messages.
    data : bytes
        Its contents.

    Returns
    -------
    ModelFile
        Forest and statistics.

    Raises
    ------
    DataError
        If it is not a complete and supported model, or if its statistics are impossible.
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
            else np.asarray(tree[name], dtype=np.float64)[_present_nodes(tree)]
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
        format=("XGBoost UBJ" if is_ubjson(data) else "XGBoost JSON")
        + _describe_appended_trees(unpaired_rounds),
        forest=forest,
        statistics=statistics,
        raw=raw,
        feature_names=_names(learner.get("feature_names") or (), width),
        categorical=_categorical(forest, width),
        categories=_categories(learner, document.get("version"), width),
        positive_weight=_positive_weight(settings),
        base_score_given=learner["learner_model_param"].get("boost_from_average") != "1",
        parameters={str(k): str(v) for k, v in tree_parameters.items()}
        if isinstance(tree_parameters, dict)
        else {},
        places=tuple(places),
        numbers=tuple(
            np.zeros(1, dtype=np.int64) if tree is None else np.flatnonzero(_present_nodes(tree))
            for tree in trees
        ),
        hidden=tuple(
            np.zeros(1, dtype=bool)
            if place < 0
            else hidden[place][_present_nodes(file_trees[place])]
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


def _describe_appended_trees(n_first: int) -> str:
    """Return a remark on rounds that contain only a tree of class 0, empty without such rounds."""
    if not n_first:
        return ""
    trees = many(n_first, "tree is", "trees are")
    return f" (its last {trees} of class 0 only, as Flower appends them)"


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


def _present_nodes(tree: Mapping[str, Any]) -> NDArray[np.bool_]:
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

    In a model whose trees are single leaves, all sums may be equal by chance. Then only the value
    1, with which NVFlare masks, counts as a mask.

    Parameters
    ----------
    by_tree : sequence of float64 arrays
        Values in the nodes of each tree.

    Returns
    -------
    state : {"zero", "masked", "present"}
        ``masked`` means that all values are one constant.
    constant : float or None
        The constant of a masked statistic.
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


LIGHTGBM_STATISTICS = (
    "leaf_count",
    "leaf_weight",
    "internal_count",
    "internal_weight",
    "internal_value",
    "split_gain",
)


def read_lightgbm(path: Path, data: bytes) -> ModelFile:
    """Read a model in the text format of LightGBM.

    Parameters
    ----------
    path : Path
        Path of the file, for messages.
    data : bytes
        Its contents.

    Returns
    -------
    ModelFile
        Forest and statistics.

    Raises
    ------
    DataError
        If it is not a complete and supported model.
    """
    forest = from_lightgbm_text(data)
    lines = data.decode("utf-8", errors="replace").splitlines()
    header, blocks = sections(lines)
    width = width_of(int(header["max_feature_idx"]) + 1)
    names = tuple(header.get("feature_names", "").split(" ")) if header.get("feature_names") else ()
    rows = [rows_of_leaves(block, width) for block in blocks]
    agree = [counts is None or _adds_up(block) for counts, block in zip(rows, blocks, strict=True)]
    settings = _parameters(lines)
    trees_and_rows = zip(forest.trees, rows, strict=True)
    statistics = tuple(Statistics(cover=tree.h, rows=counted) for tree, counted in trees_and_rows)
    raw = {
        name: [_numbers(block[name]) for block in blocks if block.get(name)]
        for name in LIGHTGBM_STATISTICS
    }
    if len(names) == width and names == tuple(f"Column_{k}" for k in range(width)):
        names = ()  # LightGBM writes these names if the training table has none
    infos = header.get("feature_infos", "").split(" ")
    ranges = dict(zip(names or map(str, range(width)), infos, strict=False))
    return ModelFile(
        path=path,
        format="LightGBM text",
        categories=_lightgbm_categories(lines, infos) if len(infos) == width else {},
        forest=forest,
        statistics=statistics,
        raw={name: values for name, values in raw.items() if values},
        feature_names=names if len(names) == width else (),
        categorical=(False,) * width,
        learning_rate=parameter(settings, "learning_rate"),
        reg_lambda=parameter(settings, "lambda_l2"),
        positive_weight=parameter(settings, "scale_pos_weight") or 1.0,
        ranges=ranges if len(infos) == width else None,
        parameters=settings,
        consistent=all(agree),
        numbers=tuple(numbers_of_leaves(block, width) for block in blocks),
    )


def _lightgbm_categories(
    lines: list[str], infos: list[str]
) -> dict[int, tuple[str, ...] | tuple[int, ...]]:
    """Return the names of the categories by column that LightGBM stored from a data frame.

    The file lists them in the order of the categorical columns, and ``feature_infos`` shows codes
    without a range for these columns. The result is empty if the two numbers of columns differ.
    """
    begin = "pandas_categorical:"
    listed = next((line.removeprefix(begin) for line in lines if line.startswith(begin)), "null")
    try:
        names = json.loads(listed) or []
    except ValueError as error:
        raise DataError(f"not a complete LightGBM model: {begin} {error}") from error
    columns = [k for k, info in enumerate(infos) if not info.startswith("[")]
    if len(columns) != len(names):
        return {}
    return {
        k: tuple(of_column)
        if all(type(n) is int for n in of_column)
        else tuple(map(str, of_column))
        for k, of_column in zip(columns, names, strict=True)
        if of_column
    }


def _adds_up(block: dict[str, str]) -> bool:
    """Return whether each ``internal_count`` of a tree is the sum of its two children's counts.

    The result is True if the tree has no ``internal_count``.
    """
    if not block.get("internal_count"):
        return True
    inner, leaves = _numbers(block["internal_count"]), _numbers(block["leaf_count"])
    # LightGBM writes leaf j as child ~j = -j - 1, an index from the end of the reversed leaves.
    count = np.concatenate([inner, leaves[::-1]])
    left, right = (
        np.array(block[f"{side}_child"].split(), dtype=int) for side in ("left", "right")
    )
    return len(inner) == len(left) and bool((inner == count[left] + count[right]).all())


def _numbers(text: str) -> Floats:
    try:
        return np.array(text.split(), dtype=np.float64)
    except ValueError as error:
        raise DataError(f"not a complete LightGBM model: {error}") from error


def _parameters(lines: list[str]) -> dict[str, str]:
    """Return the training parameters that LightGBM lists after the trees."""
    if "parameters:" not in lines:
        return {}
    listed = lines[lines.index("parameters:") + 1 :]
    pairs = (line.strip("[]").partition(":") for line in listed if line.startswith("["))
    return {name: value.strip() for name, _, value in pairs}


def read_random_forest(path: Path) -> ModelFile:
    """Read a random forest together with its counts.

    Its counts are numbers of rows only if no row was drawn twice or weighted.

    Parameters
    ----------
    path : Path
        A ``.npz`` file of fedtrees.

    Returns
    -------
    ModelFile
        Forest and statistics.
    """
    forest = load_random_forest(path)
    used = 1 + max((int(t.feature.max(initial=-1)) for t in forest.trees), default=-1)
    names, categories = _columns(path, used)
    width = width_of(len(names) or used)
    # `counts` counts draws and weights, `distinct` counts rows. If both agree in every node, the
    # counts of a class are numbers of rows, too.
    once = all(
        t.counts is not None and t.distinct is not None
        and np.array_equal(t.counts.sum(axis=1), t.distinct)
        for t in forest.trees
    )  # fmt: skip
    statistics = tuple(_counts(tree, once) for tree in forest.trees)
    counts_by_name = {
        name: [getattr(t, name) for t in forest.trees] for name in ("counts", "distinct")
    }
    raw = {
        name: [each.astype(np.float64) for each in of_trees]
        for name, of_trees in counts_by_name.items()
        if all(each is not None for each in of_trees)
    }
    return ModelFile(path, "fedtrees forest (.npz)", forest, statistics, raw, feature_names=names,
                     categorical=(False,) * width, categories=categories)  # fmt: skip


def _columns(path: Path, used: int) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]]]:
    """Return the names of columns and categories in the file, both empty if it contains none.

    Raises `DataError` if there are fewer names than columns on which the trees split.
    """
    names, categories = load_columns(path)
    if names and len(names) < used:
        raise DataError(f"{path.name} names {len(names)} columns and splits on column {used - 1}")
    return names, categories


def _counts(tree: ClassTree, once: bool) -> Statistics:
    """Return the statistics of a tree.

    Parameters
    ----------
    tree : ClassTree
        Tree with its counts.
    once : bool
        True if no tree of the forest counts a row twice or with a weight other than 1.

    Returns
    -------
    statistics : Statistics
        If not `once`, a number of positives is certain only where all rows have the same label,
        which draws and weights do not change.
    """
    two = tree.n_classes == 2
    if once:
        assert tree.counts is not None
        return Statistics(rows=tree.distinct, positives=tree.counts[:, 1] if two else None)
    if tree.distinct is None:
        return Statistics(drawn=tree.counts)
    none, every = tree.probability[:, 1] == 0, tree.probability[:, 0] == 0
    positives = np.where(none, 0, np.where(every, tree.distinct, UNKNOWN)) if two else None
    return Statistics(rows=tree.distinct, positives=positives, drawn=tree.counts)


def read_released(path: Path) -> ModelFile:
    """Read a private random decision forest. Its counts are certain only if they have no noise.

    Parameters
    ----------
    path : Path
        A ``.npz`` file of fedtrees.

    Returns
    -------
    ModelFile
        Forest, whose statistics are empty if its counts have noise.
    """
    released, settings = load_released(path)
    used = 1 + int(released.splits.feature.max())
    names, categories = _columns(path, used)
    width = width_of(len(names) or used)
    exact = settings.get("epsilon") == np.inf and settings["mechanism"] != "majority"
    trees, statistics = [], []
    each = zip(released.splits.feature, released.splits.threshold, released.counts, strict=True)
    for feature, threshold, counts in each:
        inner, leaves = len(feature), np.arange(len(feature), 2 * len(feature) + 1)
        # The released trees are complete binary trees, in which node k has the children 2k + 1 and
        # 2k + 2. Only leaves have counts, so that inner nodes get zeros.
        left = np.append(2 * np.arange(inner) + 1, np.full(len(leaves), -1)).astype(np.int32)
        nothing = np.zeros((inner, counts.shape[1]), dtype=np.int64)
        every = np.vstack([nothing, counts])
        trees.append(
            ClassTree(
                np.append(feature, np.full(len(leaves), -1)).astype(np.int32),
                np.append(threshold, np.zeros(len(leaves))).astype(np.float32),
                left,
                np.where(left < 0, -1, left + 1).astype(np.int32),
                np.ones(len(left), dtype=np.bool_),
                shares(np.maximum(every, 0)),
            )
        )
        two = counts.shape[1] == 2
        statistics.append(
            Statistics(rows=every.sum(axis=1), positives=every[:, 1] if two else None)
            if exact
            else Statistics()
        )
    return ModelFile(
        path, "fedtrees private forest (.npz)", RandomForest(tuple(trees)), tuple(statistics),
        {"counts": [released.counts.astype(np.float64)]}, categorical=(False,) * width,
        feature_names=names, categories=categories,
        parameters={name: str(value) for name, value in settings.items()}, released=released,
    )  # fmt: skip


def read_model(path: str | PathLike[str]) -> ModelFile:
    """Read a model file of any supported format.

    Parameters
    ----------
    path : str or path
        XGBoost's JSON or UBJSON, LightGBM's text, or a random forest of fedtrees (``.npz``). The
        contents decide the format, not the extension.

    Returns
    -------
    model : ModelFile
        Forest, statistics and settings of the file.

    Raises
    ------
    DataError
        If the file cannot be read, has no supported format, is not a complete and supported model
        of its format, or contains statistics that no training produces (negative, infinite, or not
        a number).
    """
    data = read_model_file(path)
    text = data.removeprefix(codecs.BOM_UTF8).lstrip()
    with naming(path):
        if text.startswith(b"{"):
            return read_xgboost(Path(path), text)
        if text[:16].split(b"\n")[0].rstrip() == b"tree":
            return read_lightgbm(Path(path), text)
    if data.startswith(b"PK") and is_numpy_archive(path):
        if is_random_decision_forest(path):
            return read_released(Path(path))
        return read_random_forest(Path(path))
    raise DataError(f"{path!s} {_refusal(data)}")


def _refusal(data: bytes) -> str:
    """Return why a file of an unsupported format is rejected, with a remedy."""
    if data.startswith(b"binf"):
        return "is in XGBoost's old binary format; save it as model.json"
    size = struct.unpack("<i", data[:4])[0] if len(data) > 4 else 0
    name = data[4 : 4 + size] if 0 < size < 40 else b""
    if b":" in name and name.replace(b":", b"").replace(b"_", b"").isalpha():
        return (
            "looks like a model that FedTree saved: raw memory of its C++ objects, laid out by the "
            "compiler that built it, and not read. Take no comfort: FedTree writes the gradient "
            "and hessian sums and the number of rows of every node into it"
        )
    if reason := unreadable(data[:16], "save the model with its own save_model as JSON or text"):
        return reason
    if not data.strip():
        return "is empty: save the model again, or give the file it was saved to"
    return (
        f"is of no known format, it starts with {data[:12]!r}; known are XGBoost's JSON and UBJ "
        "models, LightGBM's text models, and random forests saved here (.npz)"
    )
