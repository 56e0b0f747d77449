"""Read and write forests as XGBoost's models (gbtree, XGBoost 1.7 to 3.x), JSON and UBJ."""

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, short
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.intercept import start_margin
from fedtrees.trees.boosted.losses import (
    LEAST_PROBABILITY,
    LOGISTIC,
    SQUARED_ERROR,
    Objective,
    Softmax,
    sigmoid,
)
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.categories import Names, write_categories
from fedtrees.trees.files.model_file import read_model_file
from fedtrees.trees.files.ubjson import decode_ubjson
from fedtrees.trees.files.xgboost_tree import check_categories, check_kind, read_tree, write_tree

READ_OBJECTIVES = (
    "binary:logistic",
    "binary:logitraw",  # the same loss; only its predictions are margins
    "multi:softprob",
    "multi:softmax",  # the same loss; only its predictions are classes
    "reg:squarederror",
)

#: What to do about a file that was cut off, or that another function of XGBoost wrote.
SAVE_AGAIN = (
    "the file was cut off or changed, or save_config or dump_model wrote it: save the model again "
    "by save_model('model.json') of XGBoost"
)

_UNWRITABLE = re.compile(r"[\[\]<\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")

_MOST_ADDED = 10**5  # trees of nothing, beside those that stand alone

# Relative. Probabilities near 1 are so far apart in float32 that log-odds of 10 are met to 1e-4.
_MARGIN_ERROR = 1e-3


def to_xgboost_json(
    forest: Forest,
    n_features: int,
    feature_names: Sequence[str] = (),
    params: TreeParams | None = None,
    categories: Mapping[int, Names] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a model that ``xgboost.Booster`` loads and that predicts the same.

    XGBoost 1.7 to 3.x load it, except where classes start from different margins: XGBoost before
    3.1 does not know a base score for each class and starts all of them from 0.5 without a warning.

    Raises `DataError` if there are no trees (XGBoost would misread the base score), the trees use
    more features than there are, or the names do not fit.

    `n_features`: Columns of the table.
    `feature_names`: sequence of str, shape (d,).
    `params`: Given, inner nodes get the weight they would have as leaves, as XGBoost writes it.
    `categories`: Names of the categories by column, as the functions of
    `fedtrees.trees.files.categories` return them together with the forest.
    """
    if not forest.trees:
        raise DataError("a forest without trees cannot be written; XGBoost misreads its base score")
    used = 1 + max(int(t.feature.max(initial=-1)) for t in forest.trees)
    if used > n_features:
        raise DataError(f"the trees use {used} features, the model is given {n_features}")
    if feature_names and len(feature_names) != n_features:
        raise DataError(f"{len(feature_names)} feature names for {n_features} features")
    outputs = forest.objective.n_outputs
    score = _written_score(forest)
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(forest))},
        "iteration_indptr": list(range(0, len(forest) + 1, outputs)),
        "tree_info": [t % outputs for t in range(len(forest))],
        "trees": [write_tree(i, t, n_features, params) for i, t in enumerate(forest.trees)],
    }
    if categories:
        model["cats"] = write_categories(categories, n_features)
    learner = {
        "attributes": {},
        "feature_names": list(feature_names),
        "feature_types": (
            _feature_types(forest, n_features, categories) if feature_names or categories else []
        ),
        "gradient_booster": {"name": "gbtree", "model": model},
        "learner_model_param": {
            "base_score": score,
            "boost_from_average": "1",
            "num_class": str(outputs if outputs > 1 else 0),
            "num_feature": str(n_features),
            "num_target": "1",
        },
        "objective": _written_objective(forest.objective),
    }
    # Older and newer versions read the format of 2.1. A file that states 3.1 to 3.3 is expected to
    # contain the names of categories that these versions cut at wrong places (`read_categories`).
    newest = [3, 4, 0] if categories else [3, 1, 0]
    return {"version": newest if "[" in score else [2, 1, 0], "learner": learner}


def save_xgboost(
    forest: Forest,
    path: str | PathLike[str],
    n_features: int,
    feature_names: Sequence[str] = (),
    params: TreeParams | None = None,
    categories: Mapping[int, Names] = MappingProxyType({}),
) -> None:
    """Write a forest as an XGBoost JSON model; parameters and errors as `to_xgboost_json`.

    Raises `DataError`: also if the file cannot be written.
    """
    model = to_xgboost_json(forest, n_features, feature_names, params, categories)
    text = model_text(model)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write the model {path!s}: {error.strerror}") from error


def model_text(model: dict[str, Any]) -> str:
    """Return the JSON of a model, in which names are UTF-8: XGBoost decodes no ``\\u`` escapes."""
    return json.dumps(model, ensure_ascii=False)


def _feature_types(forest: Forest, n_features: int, categories: Mapping[int, Names]) -> list[str]:
    types = ["c" if k in categories else "float" for k in range(n_features)]
    for tree in forest.trees:
        for f in np.unique(tree.feature[np.isnan(tree.threshold)]):
            types[f] = "c"
    return types


def _written_objective(objective: Objective) -> dict[str, Any]:
    if isinstance(objective, Softmax):
        classes = str(objective.n_outputs)
        return {"name": objective.name, "softmax_multiclass_param": {"num_class": classes}}
    return {"name": objective.name, "reg_loss_param": {"scale_pos_weight": "1"}}


def _written_score(forest: Forest) -> str:
    """Return the base score, in XGBoost's units, of the margins a forest starts from."""
    margin = forest.base_margin
    if not np.isfinite(margin).all():
        raise DataError(f"base margin {margin.tolist()} is not finite")
    if forest.objective.name == LOGISTIC.name:
        return _digits(_probability(margin[0]))
    if (margin == margin[0]).all():
        return _digits(margin[0])
    return f"[{','.join(map(_digits, margin))}]"


def _digits(score: np.float32) -> str:
    """Return the shortest text that reads back as that float32, as XGBoost writes it.

    XGBoost before 3.1 takes 0.5, without a word, for a text of more digits than a float32 has.
    """
    return np.format_float_scientific(score, trim="-", exp_digits=1).replace("e+", "e").upper()


def _probability(margin: np.float32) -> np.float32:
    """Return a float32 probability whose log-odds, in float32, are the margin (or nearest)."""
    p = sigmoid(np.array([margin], dtype=np.float32))[0]
    around = (p, np.nextafter(p, np.float32(0)), np.nextafter(p, np.float32(1)))
    off = [
        (abs(float(LOGISTIC.base_margin(q)[0] - margin)), q)
        for q in around
        if LEAST_PROBABILITY <= q < 1
    ]
    error, best = min(off, default=(np.inf, p))
    if error > _MARGIN_ERROR * max(1.0, abs(float(margin))):
        raise DataError(
            f"base margin {margin} is no log-odds that XGBoost's base_score, a float32 "
            "probability, can hold; start nearer to 0"
        )
    return np.float32(best)


def from_xgboost_json(
    model: dict[str, Any] | str | bytes | PathLike[str],
    *,
    learning_rate: float | None = None,
    reg_lambda: float | None = None,
    every_round: bool = False,
) -> Forest:
    """Read a forest from an XGBoost model, JSON or its binary form UBJ.

    It predicts what XGBoost predicts. Leaf values of a DART model are multiplied by the weights of
    their trees. Rounds after ``best_iteration`` are left out if XGBoost's scikit-learn interface
    saved the file (`served_trees`).

    Gradient sums are not in the file. Given ``learning_rate`` and ``reg_lambda`` they are recovered
    from the weights as ``g = -w (h + lambda)``, with the precision of a float32 (leaves hold
    ``eta w``); otherwise ``g`` is None. With ``num_parallel_tree`` p, XGBoost's leaves hold
    ``eta w / p``; the p trees become p rounds.

    Raises `DataError` if the model is truncated, of another booster or objective (gbtree, dart and
    `READ_OBJECTIVES` are read), has leaves of several outputs, or categories beyond code 65534.

    `model`: The parsed JSON, its bytes (``Booster.save_raw("json")`` or ``"ubj"``), or a file.
    `learning_rate, reg_lambda`: float, optional. What the model was trained with.
    `every_round`: Return all trees in the file, also those after ``best_iteration``.
    """
    learner = learner_of(model)
    try:
        _check_booster(learner)
        booster = learner["gradient_booster"]["model"]
        for tree in booster["trees"]:
            check_kind(tree)
        check_categories(booster["trees"])
        objective, start = _read_objective(learner)
        if learning_rate is not None:
            learning_rate /= int(booster["gbtree_model_param"]["num_parallel_tree"])
        outputs = objective.n_outputs
        info = np.atleast_1d(np.asarray(booster["tree_info"])).tolist()
        width = int(learner["learner_model_param"]["num_feature"])
        trees = [read_tree(t, width, learning_rate, reg_lambda) for t in booster["trees"]]
        weights = dropout_weights(booster)
        if weights is not None:
            pairs = zip(trees, weights, strict=True)
            trees = [replace(tree, value=tree.value * weight) for tree, weight in pairs]
        served = None if every_round else served_trees(learner)
        # Where a tree of one output stands alone, the others of its round add nothing.
        alone = trees_alone(info, outputs)
        if alone * outputs > _MOST_ADDED:
            raise DataError(
                f"the last {alone} trees of the model are of one of {outputs} classes alone; of so "
                "many classes no more than "
                f"{_MOST_ADDED // outputs} are read: save the model with its whole rounds"
            )
        trees += [_NOTHING] * (alone * (outputs - 1))
        info += list(range(1, outputs)) * alone
        order = order_of_trees(info, len(trees), outputs)
    except DataError:  # says more than the errors below, of which it is one
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DataError(f"not a complete XGBoost model: {_missing(error)}; {SAVE_AGAIN}") from error
    forest = Forest(tuple(trees[i] for i in order), start, objective)
    return forest if served is None else forest.first(served // outputs)


def _missing(error: Exception) -> str:
    """Return what is wrong with the entries of a model, of the error that reading them raised."""
    if isinstance(error, KeyError):
        return f"it lacks the entry {error}, which every model of XGBoost contains"
    return (
        f"an entry has another type or length than XGBoost writes ({type(error).__name__} {error})"
    )


_NOTHING = Tree(
    feature=np.array([-1], dtype=np.int32),
    threshold=np.zeros(1, dtype=np.float32),
    left=np.array([-1], dtype=np.int32),
    right=np.array([-1], dtype=np.int32),
    default_left=np.zeros(1, dtype=bool),
    value=np.zeros(1, dtype=np.float32),
)


def learner_of(model: dict[str, Any] | str | bytes | PathLike[str]) -> dict[str, Any]:
    """Return the 'learner' object of a model; parameter and errors as `model_of`."""
    learner: dict[str, Any] = model_of(model)["learner"]
    return learner


def model_of(model: dict[str, Any] | str | bytes | PathLike[str]) -> dict[str, Any]:
    """Return the object of a model: the parsed JSON, its bytes, UBJ, or a file.

    Raises `DataError` if it contains no 'learner', or the model is neither JSON nor UBJ.
    """
    if isinstance(model, str | PathLike):
        model = read_model_file(model)
    if isinstance(model, bytes | bytearray):
        model = _decoded(bytes(model))
    if not isinstance(model, dict) or not isinstance(model.get("learner"), dict):
        raise DataError(f"not an XGBoost model: there is no 'learner' object; {SAVE_AGAIN}")
    return {**model, "learner": _with_dropout(model["learner"])}


def _with_dropout(learner: dict[str, Any]) -> dict[str, Any]:
    """Return the learner of a DART model as XGBoost 3.3 and later write it, others unchanged.

    These versions write the booster ``gbtree`` and the weights of its trees, ``weight_drop``,
    beside the trees. Earlier ones write the booster ``dart``, which contains the other.
    """
    booster = learner.get("gradient_booster")
    if not isinstance(booster, dict) or booster.get("name") != "dart":
        return learner
    try:
        model = {**booster["gbtree"]["model"], "weight_drop": booster["weight_drop"]}
    except (KeyError, TypeError) as error:
        raise DataError(f"not a complete XGBoost model: dart without {error}") from error
    return {**learner, "gradient_booster": {"name": "gbtree", "model": model}}


def dropout_weights(booster: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Return the factor of each tree's leaf values in a DART model, float32; else None.

    Raises `DataError` if there is not one finite number for each tree.

    `booster`: the entry ``gradient_booster.model`` of `model_of`.
    """
    weights = np.asarray(booster.get("weight_drop", ()), dtype=np.float32)
    if weights.shape == (0,) or (weights == 1).all():
        return None
    if weights.shape != (len(booster["trees"]),) or not np.isfinite(weights).all():
        raise DataError(
            f"not a complete XGBoost model: weight_drop of shape {weights.shape} for "
            f"{len(booster['trees'])} trees"
        )
    return weights


def served_trees(learner: Mapping[str, Any]) -> int | None:
    """Return how many trees XGBoost's scikit-learn interface predicts with; None: all.

    If the training stopped early it predicts with the rounds up to ``best_iteration``, and only
    then. A ``Booster`` predicts with all trees: its files are recognised because they lack the
    attribute ``scikit_learn``.

    Raises `DataError` if ``best_iteration`` is no round of the model.
    """
    notes = learner.get("attributes")
    if not isinstance(notes, Mapping) or not {"best_iteration", "scikit_learn"} <= notes.keys():
        return None
    text, booster = str(notes["best_iteration"]), learner["gradient_booster"]["model"]
    trees = len(booster["trees"])
    try:
        per_round = max(int(learner["learner_model_param"]["num_class"]), 1)
        per_round *= max(int(booster["gbtree_model_param"]["num_parallel_tree"]), 1)
        ends = [int(end) for end in booster.get("iteration_indptr", ())]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a complete XGBoost model: its rounds ({error})") from error
    ends = ends or list(range(0, trees + 1, per_round))
    if not text.isdecimal() or len(text) > 9 or int(text) + 1 >= len(ends):
        raise DataError(
            f"not a complete XGBoost model: best_iteration {short(text)!r} is none of its "
            f"{len(ends) - 1} rounds"
        )
    return int(ends[int(text) + 1])


def is_ubjson(data: bytes) -> bool:
    """Tell whether bytes that begin with a brace are UBJSON: no JSON key begins with a length."""
    return data[:1] == b"{" and data[1:2] in (b"L", b"l", b"I", b"i", b"U")


def _decoded(data: bytes) -> Any:
    if is_ubjson(data):
        try:
            return decode_ubjson(data)
        except DataError as error:
            raise DataError(f"{error}; {SAVE_AGAIN}") from error
    try:
        return json.loads(data, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:  # ValueError includes undecodable bytes
        raise DataError(f"the model is not JSON ({error}); {SAVE_AGAIN}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; of doubled names, one library reads the first and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"an object of the model has {twice!r} twice; save the model again")
    return found


def _check_booster(learner: dict[str, Any]) -> None:
    booster, name = learner["gradient_booster"]["name"], learner["objective"]["name"]
    if booster != "gbtree":
        raise DataError(f"model is of booster {short(booster)!r}; only gbtree and dart are read")
    if name not in READ_OBJECTIVES:
        raise DataError(f"model is for {short(name)!r}; read are {', '.join(READ_OBJECTIVES)}")
    targets = int(learner["learner_model_param"].get("num_target", "1"))
    if targets != 1:
        raise DataError(f"model has {targets} targets; only one is read")


def _read_objective(learner: dict[str, Any]) -> tuple[Objective, NDArray[np.float32]]:
    """Return the objective and the margins every row starts from."""
    name, shape = learner["objective"]["name"], learner["learner_model_param"]
    score = base_score_of(shape["base_score"])
    if name == "reg:squarederror":
        return SQUARED_ERROR, SQUARED_ERROR.base_margin(score)
    if name == "binary:logitraw":
        return LOGISTIC, SQUARED_ERROR.base_margin(score)  # the score is the margin
    if name == "binary:logistic":
        return LOGISTIC, _log_odds_of(score)
    classes = int(shape["num_class"])
    trees = len(learner["gradient_booster"]["model"]["trees"])
    if not 2 <= classes <= trees:  # also keeps a damaged count from asking for memory
        raise DataError(f"model has {classes} classes and {trees} trees; each class needs a tree")
    objective = Softmax(classes)
    return objective, objective.base_margin(score)


def _log_odds_of(score: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the margin of a probability.

    0 and 1, which a custom objective or labels of one class leave, are taken for probabilities of
    1e-6 from them, as XGBoost 3.2 does. It moves what is nearer than that, too; versions before did
    not, and neither do we.
    """
    if not ((score >= 0) & (score <= 1)).all():
        raise DataError(
            f"base_score {score.tolist()} of the model is no probability, and binary:logistic "
            "starts from one: XGBoost does not load it either; correct it in the file"
        )
    edge = ((score == 0) | (score == 1)).all()
    return start_margin(LOGISTIC, score.astype(np.float32)) if edge else LOGISTIC.base_margin(score)


def base_score_of(text: Any) -> NDArray[np.float64]:
    """Read "6.27E-1" or, since 3.1, "[6.27E-1]" with an entry for each output."""
    score = np.asarray(json.loads(str(text)), dtype=np.float64)
    # float32 before anything is done with it, as in XGBoost; beyond its range is infinite
    with np.errstate(over="ignore"):
        return score.astype(np.float32).astype(np.float64)


def trees_alone(tree_info: Sequence[int], outputs: int) -> int:
    """Return how many trees at the end are of output 0 alone, behind rounds of all outputs.

    Flower's ``FedXgbBagging`` (1.x) keeps all trees of the very first reply; of every later one it
    appends the first tree, as of output 0, however many classes there are.
    """
    info = list(tree_info)
    if not 2 <= outputs <= len(info):  # XGBoost writes 0 classes where there are two
        return 0
    whole, each = 0, list(range(outputs))
    while info[whole : whole + outputs] == each:
        whole += outputs
    rest = info[whole:]
    return len(rest) if whole and not any(rest) else 0


def order_of_trees(tree_info: Sequence[int], trees: int, outputs: int) -> list[int]:
    """Return the order of trees in which tree t belongs to output ``t % outputs``.

    XGBoost lists trees by round and, with ``num_parallel_tree``, several of one output in a row.
    """
    info = np.asarray(tree_info)
    if info.shape != (trees,) or info.dtype.kind not in "iu" or not trees:
        raise DataError(f"model has {trees} trees and tells the output of {info.size}")
    rounds, rest = divmod(trees, outputs)
    if rest or not np.array_equal(np.sort(info), np.repeat(np.arange(outputs), rounds)):
        raise DataError(f"the {trees} trees of the model do not divide into {outputs} outputs")
    order: list[int] = np.argsort(info, kind="stable").reshape(outputs, rounds).T.ravel().tolist()
    return order


def writable(names: Iterable[Any]) -> list[str]:
    """Return feature names as a model file may contain them, none if XGBoost refuses one of them.

    XGBoost refuses names with ``[``, ``]`` or ``<``, and reads no control characters other than
    tab, line feed and the like.

    Warns
    -----
    UserWarning
        If names are left out.
    """
    texts = [str(name) for name in names]
    refused = [text for text in texts if _UNWRITABLE.search(text)]
    if not refused:
        return texts
    warnings.warn(
        f"the model file contains no column names, because XGBoost reads none with [, ], < or a "
        f"control character ({', '.join(map(repr, refused[:5]))}): predict with the columns in the "
        "order of the training table, or rename these columns before training",
        stacklevel=3,
    )
    return []
