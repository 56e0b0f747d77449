"""Decide whether a view contains boosted trees whose leaves an attack can use.

`released_trees` divides a released model into the trees of single clients.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.replay import params_of, trees_grown_locally
from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Feature
from fedtrees.core.view import View
from fedtrees.messages.horizontal import (
    ClientModels,
    GlobalHistogram,
    GlobalTrees,
    Histogram,
    LeafSums,
    LeafValues,
    SharedTrees,
)
from fedtrees.messages.lightgbm import FoundSplits
from fedtrees.messages.models import BoostedModel
from fedtrees.trees.boosted.losses import Logistic, Softmax, SquaredError, objective_of, sigmoid
from fedtrees.trees.boosted.splitting import weights_of

Floats = NDArray[np.float32]


def released_trees(view: View) -> list[SharedTrees]:
    """Return the messages of a released model, or an empty list if the growers are not determined.

    Public parameters determine the grower of each tree. In bagging every client adds the same
    number of trees per round. An average of separate models contains the same number of trees of
    every client. Base scores of separate models are not released, so that their mean is used for
    all.
    """
    model = next((m for _, m in view.messages(BoostedModel)), None)
    rounds = view.parameters.get("trees", 0)
    if model is None or "intercept" not in view.parameters:
        return []
    shared, bagged = (name in view.parameters for name in ("local_trees", "arrival"))
    if shared and not bagged:
        return [_trees(view, model, 0, 0, len(model.sizes))]
    if shared:
        steps = range(0, len(model.sizes) + 1, len(model.sizes) // rounds)
        if len(model.sizes) % rounds:
            return []  # a client did not reply in some round
        return [_trees(view, model, r, a, b) for r, (a, b) in enumerate(pairwise(steps))]
    each = rounds * len(model.base_margin)
    clients = [*view.roles.values()].count("client")
    if len(model.sizes) != each * clients:
        return []
    return [
        ClientModels(
            0,
            **_nodes(view, model, slice(None), clients),
            sizes=model.sizes,
            base_score=np.repeat(_score(view, model)[None], clients, axis=0),
            owner=np.arange(clients, dtype=np.int32),
            trees=np.full(clients, each),
        )
    ]


def _trees(view: View, model: BoostedModel, round: int, first: int, last: int) -> GlobalTrees:
    ends = np.concatenate([[0], np.cumsum(model.sizes)])
    return GlobalTrees(
        round,
        **_nodes(view, model, slice(ends[first], ends[last])),
        sizes=model.sizes[first:last],
        base_score=_score(view, model),
        first=first,
    )


def _score(view: View, model: BoostedModel) -> Floats:
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    margin = model.base_margin
    return sigmoid(margin) if isinstance(objective, Logistic) else margin


def _nodes(view: View, model: BoostedModel, span: slice, times: float = 1) -> dict[str, Any]:
    """Return the node fields in XGBoost's format, with leaf values multiplied by `times`."""
    value, sums = model.value * np.float32(times), {}
    if model.g is not None and model.h is not None:
        root = np.zeros(len(value), dtype=bool)
        root[np.cumsum(model.sizes) - model.sizes] = True
        weight = weights_of(model.g, model.h, params_of(view))
        weights = np.where((model.feature >= 0) | root, weight, value).astype(np.float32)
        sums = {"sum_hessian": model.h, "base_weights": weights, "loss_changes": model.gain}
    same = ("feature", "threshold", "left", "default_left")
    columns = {**{name: getattr(model, name) for name in same}, "value": value, **sums}
    return {name: None if part is None else part[span] for name, part in columns.items()}


#: Largest number of categories of a feature that trees split by sets: the bits of a word.
MOST_CODES = 64

TREES: tuple[type[Message], ...] = (
    LeafValues,
    LeafSums,
    Histogram,
    GlobalHistogram,
    SharedTrees,
    BoostedModel,
)


def shows(view: View, *kinds: type[Message]) -> bool:
    """Return whether the view contains a readable message of these types from another party.

    A sum that one of the adversary's parties opened counts, because it contains other parties'
    data.
    """
    return any(
        s.opened or s.sender not in view.principals for k in kinds for s, _ in view.messages(k)
    )


def no_trees(view: View, *, supports_regression: bool = False) -> Reason | None:
    """Return the reason why the adversary sees no usable boosted trees, or None.

    If `numbers` is True, trees of squared error are usable as well.
    """
    splits = "num_leaves" in view.parameters and shows(view, FoundSplits)
    if not (splits or shows(view, *TREES)):
        return Reason("no-trees")
    if trees_grown_locally(view) and not (shows(view, SharedTrees) or released_trees(view)):
        return Reason("trees-of-several")
    if classes_of_leaves(view) is None and not (supports_regression and squared_error(view)):
        return Reason("other-leaves")
    if any(len(f.categories) > MOST_CODES for f in split_by_sets(view)):
        return Reason("many-categories", most=MOST_CODES)
    return None


def squared_error(view: View) -> bool:
    """Return whether leaf values are Newton steps of squared error."""
    try:
        objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    except UsageError:
        return False
    return isinstance(objective, SquaredError)


def split_by_sets(view: View) -> list[Feature]:
    """Return the features that trees split by sets of categories."""
    if not view.parameters.get("enable_categorical"):
        return []
    return [f for f in view.schema.features if f.kind == "categorical"]


def some_rows(view: View) -> Reason | None:
    """Return the reason why some trees were grown without some rows, None if all contain all."""
    if view.parameters.get("subsample", 1) != 1:
        return Reason("sampled-rows")
    if view.parameters.get("early_stopping_rounds"):
        return Reason("held-out-rows")
    return None


def classes_of_leaves(view: View) -> int | None:
    """Return the number of classes if leaf values are Newton steps of log loss, else None."""
    try:
        objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    except UsageError:
        return None
    if isinstance(objective, Logistic):
        return 2
    return objective.n_classes if isinstance(objective, Softmax) else None
