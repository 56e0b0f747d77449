"""Write a model without what prediction does not need, and show that it predicts the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.model import XGBOOST_STATISTICS, ModelFile, read_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.report.html import write_text
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.files.model_file import read_model_file
from fedtrees.trees.files.ubjson import decode_ubjson
from fedtrees.trees.files.xgboost import is_ubjson, learner_of
from fedtrees.trees.forest.random_forest import RandomForest

MOST_POINTS = 50_000  # rows the predictions are compared on
MOST_CELLS = 10**10  # rows times columns of the model, through which XGBoost goes for each row
MOST_VALUES = 10**7  # of points held at once
LEAST = np.finfo(np.float32).min  # XGBoost refuses rows that hold an infinity

# The value of a column on one side of a split, and the codes that are still allowed there.
Side = tuple[np.float32, NDArray[np.bool_] | None]

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
    compared, reached = _compare(model, out, rows)
    return Scrubbed(out, XGBOOST_STATISTICS, compared, reached, True)


def _compare(model: ModelFile, out: Path, rows: NDArray[np.float32] | None) -> tuple[int, float]:
    """Return on how many rows two files predict the same, and the share of leaves they reach.

    Raises
    ------
    DataError
        If a margin, a split or a leaf value differs in a bit.
    """
    assert isinstance(model.forest, Forest)
    (forest, used), width = _compact(model.forest), len(model.categorical)
    boosters = [_booster(path) for path in (model.path, out)]
    points = chain(() if rows is None else rows[:, used], covering_points(forest, len(used)))
    compared, same = 0, _same_trees(model.forest, read_model(out).forest)
    reached = np.zeros(sum(len(t.leaves) for t in forest.trees), dtype=bool)
    most = min(MOST_POINTS, MOST_CELLS // max(width, 1))
    for batch in _batches(islice(points, most), len(used)):
        before, after = (_margins(b, batch, used, width) for b in boosters)
        same &= np.array_equal(before.view(np.int32), after.view(np.int32))
        reached |= _reached(forest, batch)
        compared += len(batch)
    if not same:
        raise DataError(f"{out} predicts differently from {model.path}; do not use it")
    return compared, float(reached.mean())


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


def _booster(path: Path) -> Any:
    import xgboost

    return xgboost.Booster({"nthread": 1}, model_file=str(path))


def _margins(
    booster: Any, points: NDArray[np.float32], used: NDArray[np.intp], width: int
) -> NDArray[np.float32]:
    """Return XGBoost's margins of points of `width` columns, of which those `used` are given."""
    import xgboost
    from scipy.sparse import csr_matrix

    given = ~np.isnan(points)
    ends = np.concatenate([[0], np.cumsum(given.sum(axis=1))])
    sparse = csr_matrix((points[given], used[np.nonzero(given)[1]], ends), (len(points), width))
    kinds = list(booster.feature_types or ()) or None
    data = xgboost.DMatrix(sparse, feature_names=booster.feature_names, feature_types=kinds,
                           enable_categorical="c" in (kinds or ()), nthread=1)  # fmt: skip
    return np.asarray(booster.predict(data, output_margin=True), dtype=np.float32)


def _compact(forest: Forest) -> tuple[Forest, NDArray[np.intp]]:
    """Return the forest over the columns it splits on (and column 0), and those columns."""
    features = (np.maximum(tree.feature, 0) for tree in forest.trees)
    used = np.unique(np.concatenate([np.zeros(1, dtype=np.int32), *features])).astype(np.intp)

    def moved(tree: Tree) -> Tree:
        at = np.searchsorted(used, tree.feature)
        return replace(tree, feature=np.where(tree.feature < 0, -1, at).astype(np.int32))

    return replace(forest, trees=tuple(map(moved, forest.trees))), used


def _batches(points: Iterable[NDArray[np.float32]], width: int) -> Iterator[NDArray[np.float32]]:
    """Yield points together, up to `MOST_VALUES` values each time, float32, shape (b, width)."""
    points = iter(points)
    while batch := list(islice(points, max(MOST_VALUES // width, 1))):
        yield np.array(batch, dtype=np.float32)


def covering_points(forest: Forest, width: int) -> Iterator[NDArray[np.float32]]:
    """Yield points, each made to reach one leaf of one tree, float32, shape (width,).

    All leaves tree by tree; columns a leaf does not ask for are missing.
    """
    for tree in forest.trees:
        yield from _points(tree, width)


def _points(tree: Tree, width: int) -> Iterator[NDArray[np.float32]]:
    """Yield a point inside every leaf of a tree, walking it depth first."""
    point = np.full(width, np.nan, dtype=np.float32)
    codes: dict[int, NDArray[np.bool_] | None] = {}
    todo: list[tuple[int, int, Side]] = [(0, 0, (np.float32(np.nan), None))]
    while todo:
        node, f, side = todo.pop()
        point[f], codes[f] = side
        if node < 0:  # both sides are done, and the column is as it was before
            continue
        f = int(tree.feature[node])
        if f < 0:
            yield point.copy()
            continue
        before: Side = point[f], codes.get(f)
        split = _by_category if np.isnan(tree.threshold[node]) else _by_threshold
        left, right = split(tree, node, before)
        todo.append((-1, f, before))
        todo.append((int(tree.right[node]), f, right))
        todo.append((int(tree.left[node]), f, left))


def _by_threshold(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    value, cut = before[0], tree.threshold[node]
    left = value if value < cut else np.nextafter(cut, LEAST)
    right = value if value >= cut else cut
    return (left, before[1]), (right, before[1])


def _by_category(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    assert tree.categories is not None
    goes_right, out = tree.categories[node], []
    allowed = np.ones(len(goes_right), dtype=bool) if before[1] is None else before[1]
    for side in (~goes_right, goes_right):
        left = allowed & side
        # a code that no node names goes left everywhere
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        out.append((np.float32(code), left))
    return out[0], out[1]


def _reached(forest: Forest, points: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which leaves of all trees some point reaches, bool, shape (leaves of all trees,)."""
    leaves = forest.apply(points)
    found = (np.isin(tree.leaves, leaves[:, t]) for t, tree in enumerate(forest.trees))
    return np.concatenate([np.zeros(0, dtype=bool), *found])
