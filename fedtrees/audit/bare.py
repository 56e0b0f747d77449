"""Write the parts of an XGBoost model that prediction needs, from values that were checked.

The copy is not the original file with some entries removed. Every entry is generated anew, so that
no unknown entry of the original file can pass into it.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedtrees.audit.model import ModelFile
from fedtrees.audit.read_xgboost import XGBOOST_STATISTICS
from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import Softmax
from fedtrees.trees.files.xgboost import order_of_trees
from fedtrees.trees.files.xgboost_tree import write_tree

FEATURE_TYPES = ("float", "int", "i", "q", "c")
MOST_VALUES = 2**31  # limit of the integers in a list, because XGBoost's are int32


def bare_model(model: ModelFile, whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return an XGBoost model with the same trees in the same order, and statistics of zero.

    XGBoost 1.7 to 3.4 load the result.

    Parameters
    ----------
    model : ModelFile
        The source of the trees.
    whole : mapping
        The JSON object of its file. Only the entries listed here are read, checked and written. Of
        the booster's attributes, these are ``best_iteration`` and whether XGBoost's scikit-learn
        interface saved the file.

    Returns
    -------
    copy : dict

    Raises
    ------
    DataError
        If a part that prediction needs is not in the form that XGBoost writes.
    """
    learner = _of(whole, "learner")
    forest = model.forest
    booster, width = _of(learner, "gradient_booster", "model"), len(model.categorical)
    outputs = forest.objective.n_outputs
    places = order_of_trees(booster["tree_info"], len(forest), outputs)
    # The forest contains rounds of one tree per output. The copy restores the order of the file.
    trees = sorted(zip(places, forest.trees, strict=True), key=lambda pair: pair[0])
    score = _base_score(_of(learner, "learner_model_param").get("base_score"), outputs)
    categories = _categories(booster.get("cats"), width)
    # Older and newer versions read the format of 2.1. The meaning of category names depends on the
    # version that wrote them (`fedtrees.trees.files.categories.read_categories`).
    version = [3, 1, 0] if "[" in score else [2, 1, 0]
    if model.categories:
        version = _whole("version", whole.get("version"), 0, 1000)
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
                    "tree_info": _whole("tree_info", booster["tree_info"], 0, outputs - 1),
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
            "objective": _objective(model, str(_of(learner, "objective").get("name"))),
        },
    }


def _bare_tree(number: int, tree: Tree, width: int) -> dict[str, Any]:
    """Return a tree in XGBoost's format, whose required arrays of statistics contain zeros."""
    written = write_tree(number, replace(tree, g=None, h=None, gain=None), width, None)
    return written | {name: [0.0] * len(tree) for name in XGBOOST_STATISTICS}


def _objective(model: ModelFile, name: str) -> dict[str, Any]:
    objective = model.forest.objective
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
        raise _refused("base_score", f"is {text!r}, no number for each of {outputs} outputs")
    shown = (np.format_float_scientific(x, trim="-", exp_digits=1) for x in score.ravel())
    listed = ",".join(x.replace("e+", "e").upper() for x in shown)
    return f"[{listed}]" if score.ndim else listed


def _rounds(booster: Mapping[str, Any], trees: int) -> dict[str, Any]:
    """Return the division of trees into rounds. Models before XGBoost 2 do not list its borders."""
    parallel_trees = _of(booster, "gbtree_model_param").get("num_parallel_tree", "1")
    parallel = _digits("num_parallel_tree", parallel_trees, 1, trees)
    out: dict[str, Any] = {
        "gbtree_model_param": {"num_parallel_tree": parallel, "num_trees": str(trees)}
    }
    if "iteration_indptr" in booster:
        begin = _whole("iteration_indptr", booster["iteration_indptr"], 0, trees)
        if begin[:1] != [0] or begin[-1] != trees or sorted(set(begin)) != begin:
            raise _refused("iteration_indptr", f"does not divide {trees} trees into rounds")
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
        "best_iteration": _digits("best_iteration", notes["best_iteration"], 0, trees - 1)
    }
    if "scikit_learn" in notes:
        kind = "classifier" if "classifier" in str(notes["scikit_learn"]) else "regressor"
        attributes["scikit_learn"] = json.dumps({"_estimator_type": kind})
    return attributes


def _names(listed: Any, width: int) -> list[str]:
    names = _listed("feature_names", listed)
    if len(names) not in (0, width) or not all(isinstance(name, str) for name in names):
        raise _refused("feature_names", f"are no {width} names")
    return names


def _types(listed: Any, width: int) -> list[str]:
    types = _listed("feature_types", listed)
    if len(types) not in (0, width) or any(kind not in FEATURE_TYPES for kind in types):
        raise _refused("feature_types", f"are no {width} of {', '.join(FEATURE_TYPES)}")
    return types


def _categories(cats: Any, width: int) -> dict[str, Any]:
    """Return the names of categories (XGBoost 3.1), with which XGBoost codes a data frame."""
    if cats is None:
        return {}
    encoded = _listed("cats", _of({"cats": cats}, "cats").get("enc"))
    if len(encoded) not in (0, width):
        raise _refused("cats", f"has {len(encoded)} columns, the model {width}")
    ends = _whole("cats", cats.get("feature_segments"), 0, MOST_VALUES)
    index = _whole("cats", cats.get("sorted_idx"), 0, max(ends[-1:], default=0))
    columns = [_encoded(column) for column in encoded]
    sizes = [len(c["offsets"][1:]) if "offsets" in c else len(c["values"]) for c in columns]
    if ends != ([0, *np.cumsum(sizes).tolist()] if sizes else []) or len(index) != sum(sizes):
        raise _refused("cats", "does not list the categories of every column")
    # `sorted_idx` must be a permutation of the categories of each column.
    for begin, size in zip(ends, sizes, strict=False):
        if sorted(index[begin : begin + size]) != list(range(size)):
            raise _refused("cats", "does not put the categories of a column in order")
    return {"cats": {"enc": columns, "feature_segments": ends, "sorted_idx": index}}


def _encoded(column: Any) -> dict[str, Any]:
    """Return the categories of one column: bytes of text with offsets, or integers."""
    column = _of({"cats": column}, "cats")
    if "offsets" not in column:
        values = _whole("cats", column.get("values"), -(2**63), 2**63 - 1)
        kind = _whole("cats", [column.get("type")], 0, 255)[0]
        return {"type": kind, "values": values}
    offsets = _whole("cats", column["offsets"], 0, MOST_VALUES)
    values = _whole("cats", column.get("values"), -128, 127)
    if offsets != sorted(offsets) or (offsets or [0])[0] or (offsets or [0])[-1] != len(values):
        raise _refused("cats", "has offsets that do not divide its text")
    return {"offsets": offsets, "values": values}


def _listed(name: str, values: Any) -> list[Any]:
    """Return a list. In a UBJSON file it is an array."""
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    if not isinstance(values, list | None):
        raise _refused(name, "is no list")
    return values or []


def _whole(name: str, values: Any, least: int, most: int) -> list[int]:
    """Return a list of integers, after checking that each is between `least` and `most`."""
    listed = _listed(name, values)
    if not all(type(x) is int and least <= x <= most for x in listed):
        raise _refused(name, f"is no list of whole numbers from {least} to {most}")
    return listed


def _digits(name: str, text: Any, least: int, most: int) -> str:
    """Return an integer that is written as text, after checking that it is within the bounds."""
    usable = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    if not usable or not least <= int(text) <= most:
        raise _refused(name, f"is {str(text)[:40]!r}, no number from {least} to {most}")
    return str(text)


def _of(parent: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a nested object, after checking that each level is an object."""
    for name in names:
        child = parent.get(name)
        if not isinstance(child, Mapping):
            raise _refused(name, "is no object")
        parent = child
    return parent


def _refused(name: str, fault: str) -> DataError:
    return DataError(f"the model cannot be copied: its {name} {fault}; the file is damaged")
