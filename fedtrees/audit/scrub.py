"""Write a model without what prediction does not need, and compare its predictions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.bare import bare_model
from fedtrees.audit.margins import margins_of
from fedtrees.audit.model import ModelFile
from fedtrees.audit.read import read_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.files import write_text
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.files.xgboost import learner_of, model_of, model_text
from fedtrees.trees.forest.random_forest import RandomForest

MOST_POINTS = 50_000  # rows the predictions are compared on
MOST_CELLS = 10**10  # rows times columns of the model, through which XGBoost goes for each row
LEAST = np.finfo(np.float32).min  # XGBoost refuses rows that hold an infinity

# The value of a column on one side of a split, and the codes that are still allowed there.
Side = tuple[np.float32, NDArray[np.bool_] | None]
MOST_VALUES = 10**7  # of points held at once

#: What a scrubbed model can no longer do, for people.
LOST = (
    "feature importances by gain and cover, SHAP values that follow the tree's own cover "
    "(tree_path_dependent), pruning or refreshing the model, and attributes but best_iteration"
)


@dataclass(frozen=True)
class Scrubbed:
    """What scrubbing did: splits, leaf values and base score are the model's, bit for bit."""

    path: Path
    points: int  # rows on which XGBoost's margins by both files agree bit for bit
    leaves_reached: float  # share of all leaves that some of them reach
    not_compared: str = ""  # why XGBoost could not compare the files, as a sentence

    @property
    def same(self) -> bool | None:
        """True: XGBoost predicts the same by both files; None: it could not compare them."""
        return None if self.not_compared else True


def scrub(model: ModelFile, out: Path, rows: NDArray[np.float32] | None = None) -> Scrubbed:
    """Write an XGBoost model anew with its statistics set to zero, and compare the predictions.

    `out`: A new ``.json`` file.
    `rows`: float32 array, shape (n, d), optional. Rows to compare on, beside a point for every
    leaf.

    Raises `UsageError` if the model is not XGBoost's, or `out` is no new .json file.
    Raises `DataError` if a part of the model cannot be copied, or a prediction changed. Then no
    file is written.
    Raises `StoreError` if the file cannot be written.
    """
    if model.library != "xgboost" or not isinstance(model.forest, Forest):
        raise UsageError(
            f"scrubbing is for XGBoost models, and {model.path.name} is {model.format}; LightGBM "
            "can write its statistics only together with the trees"
        )
    _check_whole(model)
    if model.dropout:
        raise UsageError(
            f"{model.path.name} is a DART model, whose trees have weights: a copy without "
            "statistics is not written for it; leave out --scrub"
        )
    if len(learner_of(model.path)["gradient_booster"]["model"]["trees"]) != len(model.forest):
        raise UsageError(
            f"{model.path.name} is {model.format}: a copy would lose them. Let the clients scrub "
            "what they send"
        )
    if out.suffix != ".json":
        raise UsageError(f"--scrub {out}: end the name in .json")
    if out.exists() and out.samefile(model.path):
        raise UsageError(f"--scrub {out} would overwrite the model; name another file")
    text = model_text(bare_model(model, model_of(model.path)))
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.json"
        copy.write_text(text, encoding="utf-8")
        points, share, fault = _compare(model, copy, rows)
    write_text(out, text)
    return Scrubbed(out, points, share, fault)


def _check_whole(model: ModelFile) -> None:
    """Refuse the part of one party, which predicts nothing without the other parties.

    Raises `UsageError`.
    """
    if model.hidden:
        raise UsageError(
            f"{model.path.name} lacks thresholds that another party keeps: it predicts nothing "
            "alone, and neither would a copy; leave out --scrub"
        )


def _compare(
    model: ModelFile, copy: Path, rows: NDArray[np.float32] | None
) -> tuple[int, float, str]:
    """Return the rows compared, the share of leaves they reach, and why none could be."""
    if not _same_trees(model.forest, read_model(copy).forest):
        raise DataError(f"the copy of {model.path} has other trees; none was written")
    points, share = _rows_to_compare(model, rows)
    before, after = margins_of([model.path, copy], points)
    if isinstance(before, str):
        return 0, 0.0, f"XGBoost itself does not predict by {model.path.name}: {before}"
    if isinstance(after, str):
        raise DataError(
            f"XGBoost predicts by {model.path} and not by its copy ({after}); none was written"
        )
    if not np.array_equal(before.view(np.int32), after.view(np.int32)):
        raise DataError(
            f"a copy of {model.path} predicts differently; XGBoost reads the file another way, and "
            "no copy was written"
        )
    return len(before), share, ""


def _rows_to_compare(model: ModelFile, rows: NDArray[np.float32] | None) -> tuple[Any, float]:
    """Return rows as a sparse matrix of the model's columns, and the share of leaves they reach."""
    from scipy.sparse import csr_matrix, vstack

    (forest, used), width = compact(model.forest), max(len(model.categorical), 1)
    points = chain(() if rows is None else rows[:, used], covering_points(forest, len(used)))
    points = islice(points, min(MOST_POINTS, MOST_CELLS // width))
    seen, parts = np.zeros(sum(len(t.leaves) for t in forest.trees), dtype=bool), []
    while some := list(islice(points, max(MOST_VALUES // len(used), 1))):
        batch = np.array(some, dtype=np.float32)
        pairs = zip(forest.trees, forest.apply(batch).T, strict=True)
        seen |= np.concatenate([seen[:0], *(np.isin(t.leaves, found) for t, found in pairs)])
        given = ~np.isnan(batch)
        ends = np.concatenate([[0], np.cumsum(given.sum(axis=1))])
        columns = used[np.nonzero(given)[1]]
        parts.append(csr_matrix((batch[given], columns, ends), (len(batch), width)))
    return vstack(parts, format="csr"), float(seen.mean())


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


def covering_points(forest: Forest, width: int) -> Iterator[NDArray[np.float32]]:
    """Return a point for each leaf of each tree, float32, shape (width,).

    A point lacks the columns its leaf does not ask for. It misses its leaf where no float32 meets
    all conditions.
    """
    return chain.from_iterable(_points(tree, width) for tree in forest.trees)


def compact(forest: Forest) -> tuple[Forest, NDArray[np.intp]]:
    """Return the forest over the columns it splits on (and column 0), and those columns."""
    named = np.concatenate([[0], *(tree.feature for tree in forest.trees)])
    used = np.unique(np.maximum(named, 0)).astype(np.intp)

    def moved(tree: Tree) -> Tree:
        at = np.searchsorted(used, tree.feature)
        return replace(tree, feature=np.where(tree.feature < 0, -1, at).astype(np.int32))

    return replace(forest, trees=tuple(map(moved, forest.trees))), used


def _points(tree: Tree, width: int) -> Iterator[NDArray[np.float32]]:
    """Walk a tree depth first."""
    todo: list[tuple[int, dict[int, Side]]] = [(0, {})]
    while todo:
        node, sides = todo.pop()
        f = int(tree.feature[node])
        if f < 0:
            point = np.full(width, np.nan, dtype=np.float32)
            point[list(sides)] = [value for value, _ in sides.values()]
            yield point
            continue
        split = _by_category if np.isnan(tree.threshold[node]) else _by_threshold
        left, right = split(tree, node, sides.get(f, (np.float32(np.nan), None)))
        todo.append((int(tree.right[node]), sides | {f: right}))
        todo.append((int(tree.left[node]), sides | {f: left}))


def _by_threshold(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    value, cut = before[0], tree.threshold[node]
    left = value if value < cut else np.nextafter(cut, LEAST)
    right = value if value >= cut else cut
    return (left, before[1]), (right, before[1])


def _by_category(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    goes_right, out = tree.categories[node], []
    allowed = np.ones(len(goes_right), dtype=bool) if before[1] is None else before[1]
    for side in (~goes_right, goes_right):
        left = allowed & side
        # a code that no node names goes left everywhere
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        out.append((np.float32(code), left))
    return out[0], out[1]
