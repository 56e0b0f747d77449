"""Train XGBoost and this engine on the same cuts and base score, and compare node by node."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb

from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import LOGISTIC, Objective
from fedtrees.trees.boosted.params import TreeParams


@dataclass(frozen=True)
class Reference:
    booster: xgb.Booster
    cuts: Cuts

    @property
    def model(self) -> dict[str, Any]:
        return json.loads(self.booster.save_raw("json"))

    @property
    def trees(self) -> list[dict[str, Any]]:
        return self.model["learner"]["gradient_booster"]["model"]["trees"]

    def margin(self, X):
        return self.booster.predict(xgb.DMatrix(X), output_margin=True)


def settings(params: TreeParams, objective: Objective = LOGISTIC) -> dict[str, Any]:
    """Return the parameters with XGBoost's names; row and column samples are drawn elsewhere."""
    xgboost_parameters = {
        "objective": objective.name,
        "tree_method": "hist",
        "nthread": 1,
        "max_bin": params.max_bin,
        "max_depth": params.max_depth,
        "max_leaves": params.max_leaves,
        "grow_policy": params.grow_policy,
        "eta": params.learning_rate,
        "lambda": params.reg_lambda,
        "alpha": params.reg_alpha,
        "gamma": params.gamma,
        "min_child_weight": params.min_child_weight,
    }
    if objective.n_outputs > 1:
        xgboost_parameters["num_class"] = objective.n_outputs
    if params.base_score is not None:
        xgboost_parameters["base_score"] = params.base_score
    return xgboost_parameters


def train(X, y, params: TreeParams, objective: Objective = LOGISTIC, weight=None) -> Reference:
    data = xgb.QuantileDMatrix(
        np.asarray(X, np.float32), y, weight=weight, max_bin=params.max_bin, nthread=1
    )
    booster = xgb.train(settings(params, objective), data, params.trees)
    return Reference(booster, Cuts.from_xgboost(*data.get_quantile_cut()))


def difference(tree: Tree, reference_tree: dict[str, Any], rtol: float = 2e-6) -> str | None:
    """Return the first difference between two trees, or None.

    Leaf values may differ by ``rtol`` of themselves plus 2e-7, because XGBoost adds float64 numbers
    in row order, and we add integers of 2^-30.
    """
    left = np.array(reference_tree["left_children"])
    if not np.array_equal(left, tree.left):
        return f"shape: {left} and {tree.left}"
    inner = left >= 0
    conditions = np.array(reference_tree["split_conditions"], dtype=np.float32)
    for name, actual, expected in (
        ("feature", tree.feature, np.array(reference_tree["split_indices"])),
        ("threshold", tree.threshold, conditions),
        ("default_left", tree.default_left, np.array(reference_tree["default_left"], dtype=bool)),
    ):
        if not np.array_equal(actual[inner], expected[inner]):
            return f"{name}: {expected[inner]} and {actual[inner]}"
    if not np.allclose(tree.value[~inner], conditions[~inner], rtol=rtol, atol=2e-7):
        return f"leaf values: {conditions[~inner]} and {tree.value[~inner]}"
    return None


def differences(forest: Forest, reference: Reference, rtol: float = 2e-6) -> dict[int, str]:
    """Return a description of the difference of each tree that differs, by number."""
    assert len(forest.trees) == len(reference.trees)
    pairs = enumerate(zip(forest.trees, reference.trees, strict=True))
    texts = {
        number: difference(tree, reference_tree, rtol) for number, (tree, reference_tree) in pairs
    }
    return {number: text for number, text in texts.items() if text is not None}
