"""Write a copy of a model without the statistics, and verify that its predictions are the same."""

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

MOST_POINTS = 50_000  # largest number of rows on which predictions are compared
MOST_CELLS = 10**10  # limit on rows times columns, because XGBoost visits each column of a row
LEAST = np.finfo(np.float32).min  # XGBoost rejects rows that contain an infinity

# The value of a column on one side of a split, and the codes that are still allowed there.
Side = tuple[np.float32, NDArray[np.bool_] | None]
MOST_VALUES = 10**7  # largest number of values of a batch of rows in memory

#: Functions that a scrubbed model no longer supports, for messages.
LOST = (
    "feature importances by gain and cover, SHAP values that follow the tree's own cover "
    "(tree_path_dependent), pruning or refreshing the model, and attributes but best_iteration"
)


@dataclass(frozen=True)
class Scrubbed:
    """Result of scrubbing. Splits, leaf values and base score of the copy are bit-identical."""

    path: Path
    points: int  # rows on which XGBoost's margins by both files agree bit for bit
    leaves_reached: float  # share of all leaves that some of these rows reach
    not_compared: str = ""  # why XGBoost could not compare the files, as a sentence

    @property
    def same(self) -> bool | None:
        """True if XGBoost predicts the same with both files, None if it could not compare them."""
        return None if self.not_compared else True


def scrub(model: ModelFile, out: Path, rows: NDArray[np.float32] | None = None) -> Scrubbed:
    """Write a copy of an XGBoost model with statistics of zero, and compare the predictions.

    Parameters
    ----------
    model : ModelFile
        The model.
    out : Path
        A new ``.json`` file.
    rows : float32 array, shape (n, d), optional
        Rows on which predictions are compared, in addition to a point for every leaf.

    Returns
    -------
    result : Scrubbed

    Raises
    ------
    UsageError
        If the model is not XGBoost's or cannot be scrubbed, or if `out` does not end in ``.json``
        or is the model's file.
    DataError
        If a part of the model cannot be copied, or a prediction changed. No file is written then.
    StoreError
        If the file cannot be written.
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
    """Reject the part of one party, which predicts nothing without the other parties.

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
    """Return the number of compared rows, the share of leaves they reach, and why none could be.

    Raises `DataError` if the copy differs from the model.
    """
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
        seen |= np.concatenate([seen[:0], *(np.isin(t.leaves, reached) for t, reached in pairs)])
        present = ~np.isnan(batch)
        ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
        columns = used[np.nonzero(present)[1]]
        parts.append(csr_matrix((batch[present], columns, ends), (len(batch), width)))
    return vstack(parts, format="csr"), float(seen.mean())


def _same_trees(a: Forest, b: Forest | RandomForest) -> bool:
    """Return whether splits and leaf values agree bit for bit, so that all predictions agree."""
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

    The columns that the path to the leaf does not test are missing values (NaN). A point does not
    reach its leaf if no float32 value satisfies all conditions of the path.
    """
    return chain.from_iterable(_points(tree, width) for tree in forest.trees)


def compact(forest: Forest) -> tuple[Forest, NDArray[np.intp]]:
    """Return the forest on the columns of its splits and column 0, and these columns."""
    named = np.concatenate([[0], *(tree.feature for tree in forest.trees)])
    used = np.unique(np.maximum(named, 0)).astype(np.intp)

    def moved(tree: Tree) -> Tree:
        at = np.searchsorted(used, tree.feature)
        return replace(tree, feature=np.where(tree.feature < 0, -1, at).astype(np.int32))

    return replace(forest, trees=tuple(map(moved, forest.trees))), used


def _points(tree: Tree, width: int) -> Iterator[NDArray[np.float32]]:
    """Walk a tree depth first and yield a point for each leaf."""
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
    """Return the value of the column on both sides of a split by a threshold.

    The current value is used on the side where it satisfies the condition.
    """
    value, cut = before[0], tree.threshold[node]
    left = value if value < cut else np.nextafter(cut, LEAST)
    right = value if value >= cut else cut
    return (left, before[1]), (right, before[1])


def _by_category(tree: Tree, node: int, before: Side) -> tuple[Side, Side]:
    """Return a code of the column and the allowed codes on both sides of a split by categories."""
    goes_right, out = tree.categories[node], []
    allowed = np.ones(len(goes_right), dtype=bool) if before[1] is None else before[1]
    for side in (~goes_right, goes_right):
        left = allowed & side
        # XGBoost sends a code that no node contains to the left in every split.
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        out.append((np.float32(code), left))
    return out[0], out[1]
