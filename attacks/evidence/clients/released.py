"""A released model of trees that clients grew, as the messages that it was put together from."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.replay import params_of
from fedtrees.core.view import View
from fedtrees.messages.models import BoostedModel
from fedtrees.messages.shared_trees import ClientModels, GlobalTrees, SharedTrees
from fedtrees.trees.boosted.losses import Logistic, objective_of, sigmoid
from fedtrees.trees.boosted.newton import weights_of

Floats = NDArray[np.float32]


def released_trees(view: View) -> list[SharedTrees]:
    """Return the messages of a released model; none where it does not say who grew what.

    That follows from public parameters: in bagging every client adds as many trees in a round, and
    of models of their own, whose average it is, everybody's has as many. Base scores of these are
    not told: the models' mean stands for all.
    """
    found = next((m for _, m in view.messages(BoostedModel)), None)
    rounds = view.parameters.get("trees", 0)
    if found is None or "intercept" not in view.parameters:
        return []
    shared, bagged = (name in view.parameters for name in ("local_trees", "arrival"))
    if shared and not bagged:
        return [_trees(view, found, 0, 0, len(found.sizes))]
    if shared:
        steps = range(0, len(found.sizes) + 1, len(found.sizes) // rounds)
        if len(found.sizes) % rounds:
            return []  # some client did not answer in some round
        return [_trees(view, found, r, a, b) for r, (a, b) in enumerate(pairwise(steps))]
    each = rounds * len(found.base_margin)
    clients = [*view.roles.values()].count("client")
    if len(found.sizes) != each * clients:
        return []
    return [
        ClientModels(
            0,
            **_nodes(view, found, slice(None), clients),
            sizes=found.sizes,
            base_score=np.repeat(_score(view, found)[None], clients, axis=0),
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
    """Return the fields of nodes as XGBoost has them, leaf values so many times as large."""
    value, told = model.value * np.float32(times), {}
    if model.g is not None and model.h is not None:
        root = np.zeros(len(value), dtype=bool)
        root[np.cumsum(model.sizes) - model.sizes] = True
        weight = weights_of(model.g, model.h, params_of(view))
        weights = np.where((model.feature >= 0) | root, weight, value).astype(np.float32)
        told = {"sum_hessian": model.h, "base_weights": weights, "loss_changes": model.gain}
    same = ("feature", "threshold", "left", "default_left")
    every = {**{name: getattr(model, name) for name in same}, "value": value, **told}
    return {name: None if part is None else part[span] for name, part in every.items()}
