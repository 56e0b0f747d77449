"""Read and write forests as XGBoost models (gbtree, XGBoost 1.7 to 3.x), in JSON and UBJ."""

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
from fedtrees.trees.boosted.losses import (
    LEAST_PROBABILITY,
    LOGISTIC,
    SQUARED_ERROR,
    Objective,
    Softmax,
    sigmoid,
    start_margin,
)
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.categories import Names, write_categories
from fedtrees.trees.files.model_file import decode_ubjson, read_model_file
from fedtrees.trees.files.xgboost_tree import check_categories, check_kind, read_tree, write_tree

READ_OBJECTIVES = (
    "binary:logistic",
    "binary:logitraw",  # the same loss, but predictions are margins
    "multi:softprob",
    "multi:softmax",  # the same loss, but predictions are classes
    "reg:squarederror",
)

#: What to do about a file that was cut off, or that another function of XGBoost wrote.
SAVE_AGAIN = (
    "the file was cut off or changed, or save_config or dump_model wrote it: save the model again "
    "by save_model('model.json') of XGBoost"
)

_UNWRITABLE = re.compile(r"[\[\]<\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")

_MOST_ADDED = 10**5  # limit of empty trees that are added to incomplete rounds (`trees_alone`)

# Relative tolerance. Float32 probabilities near 1 are so far apart that log-odds of 10 have an
# error of 1e-4.
_MARGIN_ERROR = 1e-3


def to_xgboost_json(
    forest: Forest,
    n_features: int,
    feature_names: Sequence[str] = (),
    params: TreeParams | None = None,
    categories: Mapping[int, Names] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a model that ``xgboost.Booster`` loads and that makes the same predictions.

    XGBoost 1.7 to 3.x load it. There is one exception: if classes have different initial margins,
    XGBoost before 3.1 does not know a base score per class and starts all of them from 0.5 without
    a warning.

    Parameters
    ----------
    forest : Forest
        The forest.
    n_features : int
        Number of columns of the table.
    feature_names : sequence of str, shape (d,)
        Names of the columns.
    params : TreeParams, optional
        If given, inner nodes get the weight that they would have as leaves, as XGBoost writes it.
    categories : mapping of int to names
        Names of the categories by column, as the functions of `fedtrees.trees.files.categories`
        return them together with the forest.

    Raises
    ------
    DataError
        If there are no trees (XGBoost would misread the base score), if the trees use more features
        than there are, or if the names do not fit.
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
    # All versions of XGBoost read the format of 2.1. A file with a version from 3.1 to 3.3 is
    # expected to contain the names of categories that these versions cut at wrong positions
    # (`read_categories`).
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
    """Write a forest as an XGBoost JSON model.

    Parameters
    ----------
    forest, n_features, feature_names, params, categories
        As in `to_xgboost_json`.
    path : path
        The file.

    Raises
    ------
    DataError
        As in `to_xgboost_json`, or if the file cannot be written.
    """
    model = to_xgboost_json(forest, n_features, feature_names, params, categories)
    text = model_text(model)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write the model {path!s}: {error.strerror}") from error


def model_text(model: dict[str, Any]) -> str:
    r"""Return the JSON of a model with names in UTF-8.

    XGBoost decodes no ``\u`` escapes.
    """
    return json.dumps(model, ensure_ascii=False)


def _feature_types(forest: Forest, n_features: int, categories: Mapping[int, Names]) -> list[str]:
    """Return XGBoost's type of each column, ``c`` for columns that are split by categories."""
    types = ["c" if k in categories else "float" for k in range(n_features)]
    for tree in forest.trees:
        for f in np.unique(tree.feature[np.isnan(tree.threshold)]):
            types[f] = "c"
    return types


def _written_objective(objective: Objective) -> dict[str, Any]:
    """Return the entry of an objective."""
    if isinstance(objective, Softmax):
        classes = str(objective.n_outputs)
        return {"name": objective.name, "softmax_multiclass_param": {"num_class": classes}}
    return {"name": objective.name, "reg_loss_param": {"scale_pos_weight": "1"}}


def _written_score(forest: Forest) -> str:
    """Return the base score, in XGBoost's units, for the initial margins of a forest."""
    margin = forest.base_margin
    if not np.isfinite(margin).all():
        raise DataError(f"base margin {margin.tolist()} is not finite")
    if forest.objective.name == LOGISTIC.name:
        return _digits(_probability(margin[0]))
    if (margin == margin[0]).all():
        return _digits(margin[0])
    return f"[{','.join(map(_digits, margin))}]"


def _digits(score: np.float32) -> str:
    """Return the shortest text that is read as this float32, in XGBoost's notation.

    XGBoost before 3.1 silently uses 0.5 for a text with more digits than a float32 has.
    """
    return np.format_float_scientific(score, trim="-", exp_digits=1).replace("e+", "e").upper()


def _probability(margin: np.float32) -> np.float32:
    """Return the float32 probability whose log-odds, in float32, are closest to the margin."""
    p = sigmoid(np.array([margin], dtype=np.float32))[0]
    # The rounding of the sigmoid can miss the closest probability by one float32.
    candidates = (p, np.nextafter(p, np.float32(0)), np.nextafter(p, np.float32(1)))
    errors = [
        (abs(float(LOGISTIC.base_margin(q)[0] - margin)), q)
        for q in candidates
        if LEAST_PROBABILITY <= q < 1
    ]
    error, best = min(errors, default=(np.inf, p))
    if error > _MARGIN_ERROR * max(1.0, abs(float(margin))):
        raise DataError(
            f"base margin {margin} is no log-odds that XGBoost's base_score, a float32 "
            "probability, can represent; start nearer to 0"
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

    It makes the predictions of XGBoost. Leaf values of a DART model are multiplied by the weights
    of their trees. Rounds after ``best_iteration`` are left out if XGBoost's scikit-learn interface
    saved the file (`served_trees`).

    The file does not contain gradient sums. Given ``learning_rate`` and ``reg_lambda``, they are
    computed from the weights as ``g = -w (h + lambda)``, with the precision of a float32 (leaves
    contain ``eta w``). Otherwise ``g`` is None. With ``num_parallel_tree`` p, XGBoost's leaves
    contain ``eta w / p``, and the p trees become p rounds.

    Parameters
    ----------
    model : dict, bytes or path
        The parsed JSON, its bytes (``Booster.save_raw("json")`` or ``"ubj"``), or a file.
    learning_rate, reg_lambda : float, optional
        Parameters of the training.
    every_round : bool
        Return all trees in the file, including those after ``best_iteration``.

    Raises
    ------
    DataError
        If the model is truncated, has another booster or objective (gbtree, dart and
        `READ_OBJECTIVES` are read), has leaves with several outputs, or has category codes above
        65534.
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
            # Each of the parallel trees has a leaf value divided by their number.
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
        # Trees of output 0 without the remaining outputs of their round: empty trees complete it.
        alone = trees_alone(info, outputs)
        if alone * outputs > _MOST_ADDED:
            raise DataError(
                f"the last {alone} trees of the model are of only one of {outputs} "
                f"classes; of so many classes no more than {_MOST_ADDED // outputs} are "
                "read: save the model with complete rounds"
            )
        trees += [_NOTHING] * (alone * (outputs - 1))
        info += list(range(1, outputs)) * alone
        order = order_of_trees(info, len(trees), outputs)
    except DataError:  # its message is more specific than those below, and it is a ValueError
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
    """Return the 'learner' object of a model. Parameter and errors as in `model_of`."""
    learner: dict[str, Any] = model_of(model)["learner"]
    return learner


def model_of(model: dict[str, Any] | str | bytes | PathLike[str]) -> dict[str, Any]:
    """Return the object of a model, given the parsed JSON, its bytes, UBJ, or a file.

    Raises
    ------
    DataError
        If the model is neither JSON nor UBJ, or contains no 'learner'.
    """
    if isinstance(model, str | PathLike):
        model = read_model_file(model)
    if isinstance(model, bytes | bytearray):
        model = _decode(bytes(model))
    if not isinstance(model, dict) or not isinstance(model.get("learner"), dict):
        raise DataError(f"not an XGBoost model: there is no 'learner' object; {SAVE_AGAIN}")
    return {**model, "learner": _with_dropout(model["learner"])}


def _with_dropout(learner: dict[str, Any]) -> dict[str, Any]:
    """Return the learner of a DART model in the format of XGBoost 3.3 and later.

    These versions write the booster ``gbtree``, and the weights of its trees, ``weight_drop``, next
    to the trees. Earlier versions write the booster ``dart``, which contains the ``gbtree``.
    Further models are returned unchanged.
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
    """Return the factor of each tree's leaf values in a DART model, float32.

    None for further models.

    Parameters
    ----------
    booster : mapping
        The entry ``gradient_booster.model`` of `model_of`.

    Raises
    ------
    DataError
        If there is not one finite number for each tree.
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
    """Return the number of trees that XGBoost's scikit-learn interface uses, None for all.

    If the training stopped early, it predicts with the rounds up to ``best_iteration``. A
    ``Booster`` predicts with all trees. Its files are recognised by the missing attribute
    ``scikit_learn``.

    Raises
    ------
    DataError
        If ``best_iteration`` is no round of the model.
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
    """Return whether bytes that begin with a brace are UBJSON: no JSON key begins with a length."""
    return data[:1] == b"{" and data[1:2] in (b"L", b"l", b"I", b"i", b"U")


def _decode(data: bytes) -> Any:
    """Return the parsed JSON or UBJSON."""
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
    """Return an object of the model, and refuse duplicate names.

    With duplicate names, one JSON library uses the first value and another one the last.
    """
    by_name = dict(pairs)
    if len(by_name) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"an object of the model has {twice!r} twice; save the model again")
    return by_name


def _check_booster(learner: dict[str, Any]) -> None:
    """Raise `DataError` unless booster and objective are supported."""
    booster, name = learner["gradient_booster"]["name"], learner["objective"]["name"]
    if booster != "gbtree":
        raise DataError(f"model is of booster {short(booster)!r}; only gbtree and dart are read")
    if name not in READ_OBJECTIVES:
        raise DataError(f"model is for {short(name)!r}; read are {', '.join(READ_OBJECTIVES)}")
    targets = int(learner["learner_model_param"].get("num_target", "1"))
    if targets != 1:
        raise DataError(f"model has {targets} targets; only one is read")


def _read_objective(learner: dict[str, Any]) -> tuple[Objective, NDArray[np.float32]]:
    """Return the objective and the initial margins of every row."""
    name, shape = learner["objective"]["name"], learner["learner_model_param"]
    score = base_score_of(shape["base_score"])
    if name == "reg:squarederror":
        return SQUARED_ERROR, SQUARED_ERROR.base_margin(score)
    if name == "binary:logitraw":
        return LOGISTIC, SQUARED_ERROR.base_margin(score)  # the score is a margin
    if name == "binary:logistic":
        return LOGISTIC, _log_odds(score)
    classes = int(shape["num_class"])
    trees = len(learner["gradient_booster"]["model"]["trees"])
    if not 2 <= classes <= trees:  # this also prevents a damaged count from allocating memory
        raise DataError(f"model has {classes} classes and {trees} trees; each class needs a tree")
    objective = Softmax(classes)
    return objective, objective.base_margin(score)


def _log_odds(score: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the margin of a probability.

    A custom objective, or labels of a single class, can lead to 0 or 1. They are replaced by a
    probability at a distance of 1e-6, as in XGBoost 3.2. XGBoost 3.2 also replaces other
    probabilities that are closer than that. Earlier versions do not, and neither does this
    function.
    """
    if not ((score >= 0) & (score <= 1)).all():
        raise DataError(
            f"base_score {score.tolist()} of the model is no probability, and binary:logistic "
            "starts from one: XGBoost does not load it either; correct it in the file"
        )
    edge = ((score == 0) | (score == 1)).all()
    return start_margin(LOGISTIC, score.astype(np.float32)) if edge else LOGISTIC.base_margin(score)


def base_score_of(text: Any) -> NDArray[np.float64]:
    """Read "6.27E-1" or, since 3.1, "[6.27E-1]" with one number per output."""
    score = np.asarray(json.loads(str(text)), dtype=np.float64)
    # Rounded to float32 before any use, as in XGBoost. Numbers out of range become infinite.
    with np.errstate(over="ignore"):
        return score.astype(np.float32).astype(np.float64)


def trees_alone(tree_info: Sequence[int], outputs: int) -> int:
    """Return the number of trees at the end that belong to output 0, after complete rounds.

    Flower's ``FedXgbBagging`` (1.x) stores all trees of the very first reply. Of every later reply
    it appends only the first tree, as a tree of output 0, for any number of classes.
    """
    info = list(tree_info)
    if not 2 <= outputs <= len(info):  # XGBoost writes 0 classes if there are two
        return 0
    n_complete, each = 0, list(range(outputs))
    while info[n_complete : n_complete + outputs] == each:
        n_complete += outputs
    rest = info[n_complete:]
    return len(rest) if n_complete and not any(rest) else 0


def order_of_trees(tree_info: Sequence[int], trees: int, outputs: int) -> list[int]:
    """Return the order of trees in which tree t belongs to output ``t % outputs``.

    XGBoost lists trees by round and, with ``num_parallel_tree``, several trees of one output in a
    row.

    Parameters
    ----------
    tree_info : sequence of int
        Output of each tree in the file.
    trees : int
        Number of trees.
    outputs : int
        Number of outputs.
    """
    info = np.asarray(tree_info)
    if info.shape != (trees,) or info.dtype.kind not in "iu" or not trees:
        raise DataError(f"model has {trees} trees and the outputs of {info.size}")
    rounds, rest = divmod(trees, outputs)
    if rest or not np.array_equal(np.sort(info), np.repeat(np.arange(outputs), rounds)):
        raise DataError(f"the {trees} trees of the model do not divide into {outputs} outputs")
    order: list[int] = np.argsort(info, kind="stable").reshape(outputs, rounds).T.ravel().tolist()
    return order


def writable(names: Iterable[Any]) -> list[str]:
    """Return feature names for a model file, or none if XGBoost refuses one of them.

    XGBoost refuses names with ``[``, ``]`` or ``<``, and control characters except for tab, line
    feed and a few similar ones.

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
