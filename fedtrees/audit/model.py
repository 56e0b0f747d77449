"""Read a model file together with everything in it that prediction does not need."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.exposure import UNKNOWN
from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.files.forests import (
    is_random_decision_forest,
    load_random_forest,
    load_released,
)
from fedtrees.trees.files.lightgbm import (
    from_lightgbm_text,
    numbers_of_leaves,
    rows_of_leaves,
    sections,
)
from fedtrees.trees.files.model_file import read_model_file
from fedtrees.trees.files.xgboost import (
    from_xgboost_json,
    is_ubjson,
    learner_of,
    order_of_trees,
    trees_alone,
)
from fedtrees.trees.files.xgboost_tree import DELETED
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, shares

Floats = NDArray[np.float64]

XGBOOST_STATISTICS = ("sum_hessian", "base_weights", "loss_changes")
# XGBoost itself checks no number of columns; a file may name this many that no tree uses.
MOST_COLUMNS = 10**7
LARGEST = float(np.finfo(np.float32).max)  # statistics and weights are float32
LIGHTGBM_STATISTICS = (
    "leaf_count",
    "leaf_weight",
    "internal_count",
    "internal_weight",
    "internal_value",
    "split_gain",
)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a file says of the training rows of one tree, beside its splits and leaf values.

    Arrays have the shape (n_nodes,); None where the file lacks them.
    """

    cover: Floats | None = None  # sum of hessians of each node (sum_hessian)
    weight: Floats | None = None  # Newton step of each inner node, not shrunk (base_weights)
    gain: Floats | None = None  # of each split (loss_changes)
    rows: NDArray[np.int64] | None = None  # training rows in each node
    positives: NDArray[np.int64] | None = None  # rows of the tree's class among them
    drawn: NDArray[np.int64] | None = None  # of each class, (n_nodes, K), where rows count by draws


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model and what its file carries."""

    path: Path
    format: str  # for people: ``XGBoost JSON`` and so on
    forest: Forest | RandomForest
    statistics: tuple[Statistics, ...]  # one per tree, in the order of the forest
    # mapping of str to list of float64 array: every statistic of the file, tree by tree, as written
    raw: Mapping[str, Sequence[Floats]]
    feature_names: tuple[str, ...] = ()  # empty where the file names none
    categorical: tuple[bool, ...] = ()  # columns that some split takes as categories
    # learning_rate, reg_lambda: where the file states them (LightGBM does, XGBoost does not)
    learning_rate: float | None = None
    reg_lambda: float | None = None
    positive_weight: float = 1.0  # ``scale_pos_weight``: how much a row of class 1 counted
    # ranges, parameters: what the file says of the values of each column, and of the training
    ranges: Mapping[str, str] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    # False where LightGBM's counts of inner nodes are not the sums of those below
    consistent: bool = True
    # place in the file of each tree of the forest, which orders them by rounds of one tree an
    # output; empty where it is the same
    places: tuple[int, ...] = ()
    # tuple of int array, shape (n_nodes,): number that the file gives each node (LightGBM: each
    # leaf), as the library's ``pred_leaf`` does; empty where it is the same
    numbers: tuple[NDArray[np.int64], ...] = ()
    # a forest of random tests as its file has it; `forest` predicts the same by shares
    released: RandomDecisionForest | None = None

    def place_of(self, tree: int) -> int:
        """Return the place in the file of a tree of the forest."""
        return self.places[tree] if self.places else tree

    def number_of(self, tree: int, node: int) -> int:
        """Return the number in the file of a node of a tree of the forest."""
        return int(self.numbers[tree][node]) if self.numbers else node

    @property
    def library(self) -> str:
        """``xgboost``, ``lightgbm`` or ``fedtrees``."""
        return self.format.split()[0].lower()

    def name_of(self, feature: int) -> str:
        """Return the name of a column, its number where the file names none."""
        return self.feature_names[feature] if self.feature_names else f"column {feature}"


def read_model(path: str | PathLike[str]) -> ModelFile:
    """Read a model of any known format, told apart by its contents.

    Raises `DataError` if the file cannot be read, is of no known format, is not a complete and
    supported model of it, or holds statistics that no training leaves (negative, infinite, not a
    number).
    """
    data = read_model_file(path)
    text = data.lstrip()
    if text.startswith(b"{"):
        return _read_xgboost(Path(path), text)
    if text[:16].split(b"\n")[0].rstrip() == b"tree":
        return _read_lightgbm(Path(path), text)
    if data.startswith(b"PK"):
        if is_random_decision_forest(path):
            return _read_released(Path(path))
        return _read_random_forest(Path(path))
    raise DataError(f"{path!s} {_refusal(data)}")


def _refusal(data: bytes) -> str:
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
    if not data.strip():
        return "is empty: save the model again, or give the file it was saved to"
    return (
        f"is of no known format, it starts with {data[:12]!r}; known are XGBoost's JSON and UBJ "
        "models, LightGBM's text models, and random forests saved here (.npz)"
    )


def _read_xgboost(path: Path, data: bytes) -> ModelFile:
    learner = learner_of(data)
    _fill_absent(learner)
    left_out = _without_lone_trees(learner)
    forest = from_xgboost_json({"learner": learner})
    listed = learner["gradient_booster"]["model"]["trees"]
    info = learner["gradient_booster"]["model"]["tree_info"]
    places = order_of_trees(info, len(listed), forest.objective.n_outputs)
    trees = [listed[i] for i in places]
    _check_children(trees)
    raw = {  # of the nodes that pruning left, in the order of the forest's tree
        name: [np.asarray(tree[name], dtype=np.float64)[_listed(tree)] for tree in trees]
        for name in XGBOOST_STATISTICS
    }
    usable = [_usable(name, raw[name]) for name in XGBOOST_STATISTICS]
    statistics = tuple(map(Statistics, *usable))
    settings = learner["objective"].get("reg_loss_param") or {}
    stated = learner["gradient_booster"]["model"].get("gbtree_model_param")
    width = _width(int(learner["learner_model_param"]["num_feature"]))
    return ModelFile(
        path=path,
        format=("XGBoost UBJ" if is_ubjson(data) else "XGBoost JSON") + left_out,
        forest=forest,
        statistics=statistics,
        raw=raw,
        feature_names=_names(learner.get("feature_names") or (), width),
        categorical=_categorical(forest, width),
        positive_weight=_positive_weight(settings),
        parameters={str(k): str(v) for k, v in stated.items()} if isinstance(stated, dict) else {},
        places=tuple(places),
        numbers=tuple(np.flatnonzero(_listed(tree)) for tree in trees),
    )


def _without_lone_trees(learner: Mapping[str, Any]) -> str:
    """Leave out the trees of one class that Flower's server appends alone, and say so.

    What they were grown beside is not in the file: the statistics of whole rounds are readable.
    """
    try:
        booster = learner["gradient_booster"]["model"]
        outputs = int(learner["learner_model_param"]["num_class"])
        alone = trees_alone(booster["tree_info"], outputs)
    except (KeyError, TypeError, ValueError, OverflowError):  # told when the forest is read
        return ""
    if not alone:
        return ""
    for name in ("tree_info", "trees"):
        booster[name] = booster[name][:-alone]
    return (
        f" (without its last {alone} trees, which are of one class alone, as Flower appends them)"
    )


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


def _width(columns: int) -> int:
    if not 0 <= columns <= MOST_COLUMNS:
        raise DataError(
            f"the model says that it has {columns} columns; fewer than 0 and more than "
            f"{MOST_COLUMNS} are not believed: the file is damaged"
        )
    return columns


def _names(listed: Any, width: int) -> tuple[str, ...]:
    """Return the names of the columns; what a screen cannot show is written as an escape."""
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise DataError(f"feature_names of the model is a {type(listed).__name__}, not a list")
    if listed and len(listed) != width:
        raise DataError(f"the model has {width} columns and names {len(listed)} of them")
    return tuple(
        "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(name)) for name in listed
    )


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


def _read_lightgbm(path: Path, data: bytes) -> ModelFile:
    forest = from_lightgbm_text(data)
    lines = data.decode("utf-8", errors="replace").splitlines()
    header, blocks = sections(lines)
    width = _width(int(header["max_feature_idx"]) + 1)
    names = tuple(header.get("feature_names", "").split(" ")) if header.get("feature_names") else ()
    rows = [rows_of_leaves(block, width) for block in blocks]
    agree = [known is None or _adds_up(block) for known, block in zip(rows, blocks, strict=True)]
    known = _parameters(lines)
    known_of = zip(forest.trees, rows, strict=True)
    statistics = tuple(Statistics(cover=tree.h, rows=counted) for tree, counted in known_of)
    found = {
        name: [_numbers(block[name]) for block in blocks if block.get(name)]
        for name in LIGHTGBM_STATISTICS
    }
    if len(names) == width and names == tuple(f"Column_{k}" for k in range(width)):
        names = ()  # how LightGBM calls columns without names
    infos = header.get("feature_infos", "").split(" ")
    ranges = dict(zip(names or map(str, range(width)), infos, strict=False))
    return ModelFile(
        path=path,
        format="LightGBM text",
        forest=forest,
        statistics=statistics,
        raw={name: values for name, values in found.items() if values},
        feature_names=names if len(names) == width else (),
        categorical=(False,) * width,
        learning_rate=parameter(known, "learning_rate"),
        reg_lambda=parameter(known, "lambda_l2"),
        positive_weight=parameter(known, "scale_pos_weight") or 1.0,
        ranges=ranges if len(infos) == width else None,
        parameters=known,
        consistent=all(agree),
        numbers=tuple(numbers_of_leaves(block, width) for block in blocks),
    )


def _adds_up(block: dict[str, str]) -> bool:
    """Tell whether a tree's ``internal_count``, where it has one, is that of the two children."""
    if not block.get("internal_count"):
        return True
    inner, leaves = _numbers(block["internal_count"]), _numbers(block["leaf_count"])
    count = np.concatenate([inner, leaves[::-1]])  # child ~j is leaf j, -1 the first one
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


def parameter(known: Mapping[str, str], name: str) -> float | None:
    """Return a training parameter that is a finite number, None where it is absent or another."""
    try:
        value = float(known[name])
    except (KeyError, ValueError):
        return None
    return value if np.isfinite(value) else None


def _read_random_forest(path: Path) -> ModelFile:
    forest = load_random_forest(path)
    width = _width(1 + max((int(t.feature.max(initial=-1)) for t in forest.trees), default=-1))
    once = all(
        t.counts is not None and t.distinct is not None
        and np.array_equal(t.counts.sum(axis=1), t.distinct)
        for t in forest.trees
    )  # fmt: skip
    statistics = tuple(_counts(tree, once) for tree in forest.trees)
    kept = {name: [getattr(t, name) for t in forest.trees] for name in ("counts", "distinct")}
    raw = {
        name: [each.astype(np.float64) for each in of_trees]
        for name, of_trees in kept.items()
        if all(each is not None for each in of_trees)
    }
    return ModelFile(path, "fedtrees forest (.npz)", forest, statistics, raw,
                     categorical=(False,) * width)  # fmt: skip


def _counts(tree: ClassTree, once: bool) -> Statistics:
    """Return what a tree says of its rows; `once`: of no tree a row is drawn twice, or weighs more.

    Else labels are certain where all rows have one, which draws and weights do not change.
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


def _read_released(path: Path) -> ModelFile:
    """Read a forest of random tests; its counts are certain only where they are without noise."""
    found, told = load_released(path)
    width = _width(1 + int(found.splits.feature.max()))
    exact = told.get("epsilon") == np.inf and told["mechanism"] != "majority"
    trees, statistics = [], []
    each = zip(found.splits.feature, found.splits.threshold, found.counts, strict=True)
    for feature, threshold, counts in each:
        inner, leaves = len(feature), np.arange(len(feature), 2 * len(feature) + 1)
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
        {"counts": [found.counts.astype(np.float64)]}, categorical=(False,) * width,
        parameters={name: str(value) for name, value in told.items()}, released=found,
    )  # fmt: skip


def without_statistics(model: ModelFile) -> ModelFile:
    """Return what is left of a model without what prediction does not need."""
    bare = (Statistics(),) * len(model.statistics)
    return replace(model, statistics=bare, raw={}, ranges=None)


def is_logistic(model: ModelFile) -> bool:
    """Tell whether the model is boosted on the log loss of two classes."""
    return isinstance(model.forest, Forest) and model.forest.objective.name == LOGISTIC.name
