"""Write a model without what prediction does not need, and show that it predicts the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import XGBOOST_STATISTICS, ModelFile, read_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.report.html import write_text
from fedtrees.trees.forest import Forest, Tree
from fedtrees.trees.model_file import read_model_file
from fedtrees.trees.random_forest import RandomForest
from fedtrees.trees.ubjson import decode_ubjson
from fedtrees.trees.xgboost_io import is_ubjson, learner_of

MOST_POINTS = 50_000  # rows the predictions are compared on

# Codes a path still allows, by column; and a point with them.
Codes = dict[int, NDArray[np.bool_]]
Side = tuple[NDArray[np.float32], Codes]

#: What a scrubbed model can no longer do, for people.
LOST = (
    "feature importances by gain and cover, SHAP values that follow the tree's own cover "
    "(tree_path_dependent), and pruning or refreshing the model"
)


@dataclass(frozen=True)
class Scrubbed:
    """What scrubbing did.

    Attributes
    ----------
    path : Path
        The new file.
    removed : tuple of str
        Statistics that are zero now.
    points : int
        Rows on which predictions were compared.
    leaves_reached : float
        Share of all leaves that some of them reach.
    same : bool
        Every margin agrees bit for bit, and so do all splits and leaf values.
    """

    path: Path
    removed: tuple[str, ...]
    points: int
    leaves_reached: float
    same: bool


def scrub(model: ModelFile, out: Path, rows: NDArray[np.float32] | None = None) -> Scrubbed:
    """Write an XGBoost model with its statistics set to zero, and compare the predictions.

    XGBoost will not load a tree without the arrays, so they stay, as zeros.

    Parameters
    ----------
    model : ModelFile
    out : Path
        A new ``.json`` file.
    rows : float32 array, shape (n, d), optional
        Rows to compare on, beside points made for every leaf.

    Raises
    ------
    UsageError
        If the model is not XGBoost's, or `out` is no new .json file.
    DataError
        If a prediction changed.
    """
    if model.library != "xgboost" or not isinstance(model.forest, Forest):
        raise UsageError(
            f"scrubbing is for XGBoost models, and {model.path.name} is {model.format}; LightGBM "
            "can write its statistics only together with the trees"
        )
    if out.suffix != ".json":
        raise UsageError(f"--scrub {out}: end the name in .json")
    if out.exists() and out.samefile(model.path):
        raise UsageError(f"--scrub {out} would overwrite the model; name another file")
    whole = _parsed(model.path)
    learner = learner_of(whole)
    for tree in learner["gradient_booster"]["model"]["trees"]:
        for name in XGBOOST_STATISTICS:
            tree[name] = [0.0] * len(tree["split_indices"])
    write_text(out, json.dumps(_plain(whole)))
    points = covering_points(model.forest, len(model.categorical))
    if rows is not None:
        points = np.concatenate([rows.astype(np.float32), points])[:MOST_POINTS]
    before, after = (_margins(path, points) for path in (model.path, out))
    same = np.array_equal(before.view(np.int32), after.view(np.int32))
    if not same or not _same_trees(model.forest, read_model(out).forest):
        raise DataError(f"{out} predicts differently from {model.path}; do not use it")
    return Scrubbed(out, XGBOOST_STATISTICS, len(points), _reached(model.forest, points), True)


def _same_trees(a: Forest, b: Forest | RandomForest) -> bool:
    """Tell whether splits and leaf values agree bit for bit: then so does every prediction."""
    if not isinstance(b, Forest) or len(a) != len(b):
        return False
    parts = ("feature", "threshold", "left", "right", "default_left", "value", "categories")
    return np.array_equal(a.base_margin, b.base_margin) and all(
        np.array_equal(np.asarray(getattr(x, name), dtype=np.float64),
                       np.asarray(getattr(y, name), dtype=np.float64), equal_nan=True)
        for x, y in zip(a.trees, b.trees, strict=True) for name in parts
    )  # fmt: skip


def _parsed(path: Path) -> dict[str, Any]:
    data = read_model_file(path).lstrip()
    found = decode_ubjson(data) if is_ubjson(data) else json.loads(data)
    return dict(found)


def _plain(value: Any) -> Any:
    """Return a decoded UBJ with lists in place of arrays, as JSON needs them."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        # as float32 prints, so that every number reads back to the same float32
        return [float(str(x)) for x in value] if value.dtype == np.float32 else value.tolist()
    return value


def _margins(path: Path, points: NDArray[np.float32]) -> NDArray[np.float32]:
    import xgboost

    booster = xgboost.Booster({"nthread": 1}, model_file=str(path))
    kinds = list(booster.feature_types or ()) or None
    data = xgboost.DMatrix(points, feature_names=booster.feature_names, feature_types=kinds,
                           enable_categorical="c" in (kinds or ()), nthread=1)  # fmt: skip
    return np.asarray(booster.predict(data, output_margin=True), dtype=np.float32)


def covering_points(forest: Forest, width: int) -> NDArray[np.float32]:
    """Return points, each made to reach one leaf of one tree, float32, shape (n, width).

    All leaves in turn, up to `MOST_POINTS`; columns a leaf does not ask for are missing.
    """
    boxes = (box for tree in forest.trees for box in _boxes(tree, width))
    out = [point for _, point in zip(range(MOST_POINTS), boxes, strict=False)]
    return np.array(out, dtype=np.float32).reshape(len(out), width)


def _boxes(tree: Tree, width: int) -> list[NDArray[np.float32]]:
    """Return a point inside every leaf of a tree, walking down from the root."""
    missing = np.full(width, np.nan, dtype=np.float32)
    at: dict[int, tuple[NDArray[np.float32], Codes]] = {0: (missing, {})}
    for node in range(len(tree)):
        if tree.feature[node] >= 0:
            point, codes = at.pop(node)
            split = _by_category if np.isnan(tree.threshold[node]) else _by_threshold
            sides = split(tree, node, point, codes)
            at[int(tree.left[node])], at[int(tree.right[node])] = sides
    return [at[int(leaf)][0] for leaf in tree.leaves]


def _by_threshold(
    tree: Tree, node: int, point: NDArray[np.float32], codes: Codes
) -> tuple[Side, Side]:
    f, cut = int(tree.feature[node]), tree.threshold[node]
    left, right = point.copy(), point.copy()
    if not point[f] < cut:
        left[f] = np.nextafter(cut, np.float32(-np.inf))
    if not point[f] >= cut:
        right[f] = cut
    return (left, codes), (right, codes)


def _by_category(
    tree: Tree, node: int, point: NDArray[np.float32], codes: Codes
) -> tuple[Side, Side]:
    assert tree.categories is not None
    f, out = int(tree.feature[node]), []
    goes_right = tree.categories[node]
    before = codes.get(f, np.ones(len(goes_right), dtype=bool))
    for side in (~goes_right, goes_right):
        left = before & side
        # a code that no node names goes left everywhere
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        moved = point.copy()
        moved[f] = code
        out.append((moved, {**codes, f: left}))
    return out[0], out[1]


def _reached(forest: Forest, points: NDArray[np.float32]) -> float:
    leaves = forest.apply(points)
    found = sum(len(np.unique(leaves[:, t])) for t in range(len(forest.trees)))
    return found / sum(len(t.leaves) for t in forest.trees)
