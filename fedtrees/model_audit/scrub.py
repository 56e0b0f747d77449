"""Write a copy of a model without the statistics, and verify that its predictions are the same.

The copy is not the original file with some entries removed. It contains only the parts of an
XGBoost model that prediction needs. Every entry is generated anew from values that were checked, so
that no unknown entry of the original file can pass into it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.files import write_text
from fedtrees.model_audit.margins import margins_of
from fedtrees.model_audit.model import ModelFile
from fedtrees.model_audit.readers import XGBOOST_STATISTICS, read_model
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import Softmax
from fedtrees.trees.files.xgboost import learner_of, model_of, model_text, order_of_trees
from fedtrees.trees.files.xgboost_tree import write_tree
from fedtrees.trees.forest.random_forest import RandomForest

FEATURE_TYPES = ("float", "int", "i", "q", "c")
LARGEST_INT32_SIZE = 2**31  # limit of the integers in a list, because XGBoost's are int32


def bare_model(model: ModelFile, stored_model: Mapping[str, Any]) -> dict[str, Any]:
    """Return an XGBoost model with the same trees in the same order, and statistics of zero.

    XGBoost 1.7 to 3.4 load the result.

    Parameters
    ----------
    model : ModelFile
        The source of the trees.
    stored_model : mapping
        The JSON object of its file. Only the entries listed here are read, checked and written. Of
        the booster's attributes, these are ``best_iteration`` and whether XGBoost's scikit-learn
        interface saved the file.

    Returns
    -------
    copy : dict
        JSON object of the copy.

    Raises
    ------
    DataError
        If a part that prediction needs is not in the form that XGBoost writes.
    """
    learner = _check_object(stored_model, "learner")
    forest = model.boosted
    booster, width = _check_object(learner, "gradient_booster", "model"), len(model.categorical)
    outputs = forest.objective.n_outputs
    places = order_of_trees(booster["tree_info"], len(forest), outputs)
    # The forest contains rounds of one tree per output. The copy restores the order of the file.
    trees = sorted(zip(places, forest.trees, strict=True), key=lambda pair: pair[0])
    score = _base_score(_check_object(learner, "learner_model_param").get("base_score"), outputs)
    categories = _categories(booster.get("cats"), width)
    # Older and newer versions read the format of 2.1. The meaning of category names depends on the
    # version that wrote them (`fedtrees.trees.files.categories.read_categories`).
    version = [3, 1, 0] if "[" in score else [2, 1, 0]
    if model.categories:
        version = _check_integers("version", stored_model.get("version"), 0, 1000)
    return {
        "version": version,
        "learner": {
            "attributes": _attributes(learner, len(forest)),
            "feature_names": _names(learner.get("feature_names"), width),
            "feature_types": _types(learner.get("feature_types"), width),
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    **_rounds(booster, len(forest)),
                    **categories,
                    "tree_info": _check_integers("tree_info", booster["tree_info"], 0, outputs - 1),
                    "trees": [_bare_tree(k, tree, width) for k, tree in trees],
                },
            },
            "learner_model_param": {
                "base_score": score,
                "boost_from_average": "1",
                "num_class": str(outputs if outputs > 1 else 0),
                "num_feature": str(width),
                "num_target": "1",
            },
            "objective": _objective(model, str(_check_object(learner, "objective").get("name"))),
        },
    }


def _bare_tree(number: int, tree: Tree, width: int) -> dict[str, Any]:
    """Return a tree in XGBoost's format, whose required arrays of statistics contain zeros."""
    written = write_tree(number, replace(tree, g=None, h=None, gain=None), width, None)
    return written | {name: [0.0] * len(tree) for name in XGBOOST_STATISTICS}


def _objective(model: ModelFile, name: str) -> dict[str, Any]:
    objective = model.boosted.objective
    if isinstance(objective, Softmax):
        return {"name": name, "softmax_multiclass_param": {"num_class": str(objective.n_outputs)}}
    # An auditor of the copy needs the weight, because weighted sums are not numbers of rows.
    weight = f"{model.positive_weight:.9g}"
    return {"name": name, "reg_loss_param": {"scale_pos_weight": weight}}


def _base_score(text: Any, outputs: int) -> str:
    """Return a base score with the digits that parse to the same float32."""
    with np.errstate(over="ignore"):
        score = np.asarray(json.loads(str(text)), dtype=np.float64).astype(np.float32)
    if score.shape not in ((), (1,), (outputs,)) or not np.isfinite(score).all():
        raise _refusal("base_score", f"is {text!r}, no number for each of {outputs} outputs")
    shown = (np.format_float_scientific(x, trim="-", exp_digits=1) for x in score.ravel())
    listed = ",".join(x.replace("e+", "e").upper() for x in shown)
    return f"[{listed}]" if score.ndim else listed


def _rounds(booster: Mapping[str, Any], trees: int) -> dict[str, Any]:
    """Return the division of trees into rounds. Models before XGBoost 2 do not list its borders."""
    parallel_trees = _check_object(booster, "gbtree_model_param").get("num_parallel_tree", "1")
    parallel = _check_digits("num_parallel_tree", parallel_trees, 1, trees)
    out: dict[str, Any] = {
        "gbtree_model_param": {"num_parallel_tree": parallel, "num_trees": str(trees)}
    }
    if "iteration_indptr" in booster:
        begin = _check_integers("iteration_indptr", booster["iteration_indptr"], 0, trees)
        if begin[:1] != [0] or begin[-1] != trees or sorted(set(begin)) != begin:
            raise _refusal("iteration_indptr", f"does not divide {trees} trees into rounds")
        out["iteration_indptr"] = begin
    return out


def _attributes(learner: Mapping[str, Any], trees: int) -> dict[str, str]:
    """Return the attributes that decide with how many rounds XGBoost's interfaces predict.

    The scikit-learn interface predicts with the rounds up to ``best_iteration``. All further
    attributes are notes of the user and are not copied.
    """
    notes = learner.get("attributes")
    if not isinstance(notes, Mapping) or "best_iteration" not in notes:
        return {}
    attributes = {
        "best_iteration": _check_digits("best_iteration", notes["best_iteration"], 0, trees - 1)
    }
    if "scikit_learn" in notes:
        kind = "classifier" if "classifier" in str(notes["scikit_learn"]) else "regressor"
        attributes["scikit_learn"] = json.dumps({"_estimator_type": kind})
    return attributes


def _names(listed: Any, width: int) -> list[str]:
    names = _check_list("feature_names", listed)
    if len(names) not in (0, width) or not all(isinstance(name, str) for name in names):
        raise _refusal("feature_names", f"are no {width} names")
    return names


def _types(listed: Any, width: int) -> list[str]:
    types = _check_list("feature_types", listed)
    if len(types) not in (0, width) or any(kind not in FEATURE_TYPES for kind in types):
        raise _refusal("feature_types", f"are no {width} of {', '.join(FEATURE_TYPES)}")
    return types


def _categories(cats: Any, width: int) -> dict[str, Any]:
    """Return the names of categories (XGBoost 3.1), with which XGBoost codes a data frame."""
    if cats is None:
        return {}
    encoded = _check_list("cats", _check_object({"cats": cats}, "cats").get("enc"))
    if len(encoded) not in (0, width):
        raise _refusal("cats", f"has {len(encoded)} columns, the model {width}")
    ends = _check_integers("cats", cats.get("feature_segments"), 0, LARGEST_INT32_SIZE)
    index = _check_integers("cats", cats.get("sorted_idx"), 0, max(ends[-1:], default=0))
    columns = [_encode_categories(column) for column in encoded]
    sizes = [len(c["offsets"][1:]) if "offsets" in c else len(c["values"]) for c in columns]
    if ends != ([0, *np.cumsum(sizes).tolist()] if sizes else []) or len(index) != sum(sizes):
        raise _refusal("cats", "does not list the categories of every column")
    # `sorted_idx` must be a permutation of the categories of each column.
    for begin, size in zip(ends, sizes, strict=False):
        if sorted(index[begin : begin + size]) != list(range(size)):
            raise _refusal("cats", "does not put the categories of a column in order")
    return {"cats": {"enc": columns, "feature_segments": ends, "sorted_idx": index}}


def _encode_categories(column: Any) -> dict[str, Any]:
    """Return the categories of one column: bytes of text with offsets, or integers."""
    column = _check_object({"cats": column}, "cats")
    if "offsets" not in column:
        values = _check_integers("cats", column.get("values"), -(2**63), 2**63 - 1)
        kind = _check_integers("cats", [column.get("type")], 0, 255)[0]
        return {"type": kind, "values": values}
    offsets = _check_integers("cats", column["offsets"], 0, LARGEST_INT32_SIZE)
    values = _check_integers("cats", column.get("values"), -128, 127)
    if offsets != sorted(offsets) or (offsets or [0])[0] or (offsets or [0])[-1] != len(values):
        raise _refusal("cats", "has offsets that do not divide its text")
    return {"offsets": offsets, "values": values}


def _check_list(name: str, values: Any) -> list[Any]:
    """Return a list. In a UBJSON file it is an array."""
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    if not isinstance(values, list | None):
        raise _refusal(name, "is no list")
    return values or []


def _check_integers(name: str, values: Any, smallest: int, largest: int) -> list[int]:
    """Return a list of integers, after checking that each is between `smallest` and `largest`."""
    listed = _check_list(name, values)
    if not all(type(x) is int and smallest <= x <= largest for x in listed):
        raise _refusal(name, f"is no list of whole numbers from {smallest} to {largest}")
    return listed


def _check_digits(name: str, text: Any, smallest: int, largest: int) -> str:
    """Return an integer that is written as text, after checking that it is within the bounds."""
    usable = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    if not usable or not smallest <= int(text) <= largest:
        raise _refusal(name, f"is {str(text)[:40]!r}, no number from {smallest} to {largest}")
    return str(text)


def _check_object(parent: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a nested object, after checking that each level is an object."""
    for name in names:
        child = parent.get(name)
        if not isinstance(child, Mapping):
            raise _refusal(name, "is no object")
        parent = child
    return parent


def _refusal(name: str, fault: str) -> DataError:
    return DataError(f"the model cannot be copied: its {name} {fault}; the file is damaged")


MOST_POINTS = 50_000  # largest number of rows on which predictions are compared
MOST_CELLS = 10**10  # limit on rows times columns, because XGBoost visits each column of a row
LEAST = np.finfo(np.float32).min  # XGBoost rejects rows that contain an infinity

# The value of a column on one side of a split, and the codes that are still allowed there.
Side = tuple[np.float32, NDArray[np.bool_] | None]
VALUES_IN_MEMORY = 10**7  # largest number of values of a batch of rows in memory

#: Functions that a scrubbed model no longer supports, for messages.
LOST = (
    "feature importances by gain and cover, SHAP values that follow the tree's own cover "
    "(tree_path_dependent), pruning or refreshing the model, and attributes but best_iteration"
)


@dataclass(frozen=True)
class Scrubbed:
    """Result of scrubbing. Splits, leaf values and base score of the copy are bit-identical.

    Attributes
    ----------
    path : Path
        The copy.
    points : int
        Rows on which XGBoost's margins by both files agree bit for bit.
    leaves_reached : float
        Share of all leaves that some of these rows reach.
    not_compared : str
        Why XGBoost could not compare the files, as a sentence. Empty if it could.
    """

    path: Path
    points: int
    leaves_reached: float
    not_compared: str = ""

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
        Path of the copy, and the comparison of the predictions.

    Raises
    ------
    UsageError
        If the model is not XGBoost's or cannot be scrubbed, or if `out` does not end in ``.json``
        or exists.
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
            f"{model.path.name} is {model.format}: a copy would lose them. Let the clients remove "
            "the statistics from the trees that they send"
        )
    if out.suffix != ".json":
        raise UsageError(f"--scrub {out}: end the name in .json")
    if out.exists():
        what = "the model" if out.samefile(model.path) else "a file"
        raise UsageError(f"--scrub {out} would overwrite {what}; name a new file")
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
            f"{model.path.name} lacks thresholds that only another party has: neither "
            "the file nor a copy can predict; leave out --scrub"
        )


def _compare(
    model: ModelFile, copy: Path, rows: NDArray[np.float32] | None
) -> tuple[int, float, str]:
    """Return the number of compared rows, the share of leaves they reach, and why none could be.

    Raises `DataError` if the copy differs from the model.
    """
    if not _same_trees(model.boosted, read_model(copy).boosted):
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

    (forest, used), width = compact(model.boosted), max(len(model.categorical), 1)
    every_point = chain(() if rows is None else rows[:, used], covering_points(forest, len(used)))
    points = islice(every_point, min(MOST_POINTS, MOST_CELLS // width))
    seen, parts = np.zeros(sum(len(t.leaves) for t in forest.trees), dtype=bool), []
    while some := list(islice(points, max(VALUES_IN_MEMORY // len(used), 1))):
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
    """Return a point for each leaf of each tree.

    The columns that the path to the leaf does not test are missing values (NaN). A point does not
    reach its leaf if no float32 value satisfies all conditions of the path.

    Parameters
    ----------
    forest : Forest
        The trees.
    width : int
        Number of columns.

    Returns
    -------
    iterator of float32 arrays, each of shape (width,)
        Points in the order of the trees and leaves.
    """
    return chain.from_iterable(_points(tree, width) for tree in forest.trees)


def compact(forest: Forest) -> tuple[Forest, NDArray[np.intp]]:
    """Return the forest on the columns of its splits and column 0, and these columns.

    Parameters
    ----------
    forest : Forest
        The trees.

    Returns
    -------
    forest : Forest
        The same trees with renumbered columns.
    columns : int array
        Original number of each column, ascending.
    """
    named = np.concatenate([[0], *(tree.feature for tree in forest.trees)])
    used = np.unique(np.maximum(named, 0)).astype(np.intp)

    def renumber_columns(tree: Tree) -> Tree:
        at = np.searchsorted(used, tree.feature)
        return replace(tree, feature=np.where(tree.feature < 0, -1, at).astype(np.int32))

    return replace(forest, trees=tuple(map(renumber_columns, forest.trees))), used


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
    assert tree.categories is not None
    goes_right, out = tree.categories[node], list[Side]()
    allowed = np.ones(len(goes_right), dtype=bool) if before[1] is None else before[1]
    for side in (~goes_right, goes_right):
        left = allowed & side
        # XGBoost sends a code that no node contains to the left in every split.
        code = int(np.argmax(left)) if left.any() else len(goes_right)
        out.append((np.float32(code), left))
    return out[0], out[1]
