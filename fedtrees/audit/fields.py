"""What a file carries beside splits and leaf values, and what each field gives away."""

from __future__ import annotations

from dataclasses import dataclass

from fedtrees.audit.model import (
    LIGHTGBM_STATISTICS,
    XGBOOST_STATISTICS,
    ModelFile,
    state_of,
)
from fedtrees.trees.boosted.forest import Forest

_REVEALS = {
    "sum_hessian": "how much the rows of every node weigh: their number, wherever they share one "
    "prediction",
    "base_weights": "the step of every inner node; with loss_changes it gives sum_hessian back",
    "loss_changes": "the gain of every split; with base_weights it gives sum_hessian back",
    "leaf_count": "the number of training rows in every leaf of every tree",
    "leaf_weight": "the hessian sum of every leaf; with leaf_value its labels in the first tree",
    "internal_count": "the number of training rows in every inner node",
    "internal_weight": "the hessian sum of every inner node",
    "internal_value": "the step of every inner node",
    "split_gain": "the gain of every split",
    "feature_infos": "smallest and largest training value of every column",
    "counts": "rows of each class in every node",
    "base_score": "the share of class 1 in the (first) training table",
}


@dataclass(frozen=True)
class Field:
    """One kind of number in a model file.

    Attributes
    ----------
    name : str
        Its name in the file.
    state : {"present", "masked", "zero", "absent"}
        ``masked``: one constant everywhere, which training never leaves.
    value : float or None
        The constant of a masked field.
    needed : bool
        Whether prediction needs it.
    reveals : str
        What it gives away where it is present.
    """

    name: str
    state: str
    value: float | None
    needed: bool
    reveals: str


def fields_of(model: ModelFile) -> tuple[Field, ...]:
    """Return what the file carries beside splits and leaf values."""
    names = {"xgboost": XGBOOST_STATISTICS, "lightgbm": LIGHTGBM_STATISTICS}.get(
        model.library, ("counts",)
    )
    out = [_field(model, name) for name in names]
    if model.library == "lightgbm":
        state = "present" if model.ranges else "absent"
        out.append(Field("feature_infos", state, None, False, _REVEALS["feature_infos"]))
    if model.library == "xgboost":
        out.append(Field("base_score", "present", None, True, _REVEALS["base_score"]))
    return tuple(out)


def _field(model: ModelFile, name: str) -> Field:
    found = model.raw.get(name)
    if found is None:
        return Field(name, "absent", None, False, _REVEALS[name])
    state, constant = state_of(found)
    if name == "base_weights" and _leaves_only(model):
        # inner nodes are what matters; leaves repeat what prediction needs
        state, constant = "zero", 0.0
    named = {"varies": "present", "constant": "masked", "zero": "zero"}[state]
    return Field(name, named, constant if named == "masked" else None, False, _REVEALS[name])


def _leaves_only(model: ModelFile) -> bool:
    assert isinstance(model.forest, Forest)
    weights = model.raw["base_weights"]
    inner = [w[t.feature >= 0] for w, t in zip(weights, model.forest.trees, strict=True)]
    return any(len(w) for w in inner) and all((w == 0).all() for w in inner)
