"""Regressions, and networks over clients' trees: which model is seen, and what trains as it was."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.replay import params_of
from fedtrees.attacks.membership.references import Trainer, own_logit
from fedtrees.attacks.regression.horizontal import averages, common_scales
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.messages.fixed_point import decoded, integers
from fedtrees.messages.networks import NetworkWeights
from fedtrees.messages.regression import SIGMOIDS, RegressionWeights
from fedtrees.messages.shared_trees import ClientModels
from fedtrees.messages.tree_networks import TreeNetwork, TreeNetworkModel, start_of
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.routing import Routes
from fedtrees.trees.sketch import quantile_cuts

Floats = NDArray[np.float64]
Other = RegressionWeights | TreeNetwork


def other_model(view: View) -> Other | None:
    """Return the regression or network over trees that was released, or was sent out last."""
    for seen in view.seen:
        if isinstance(seen.message, RegressionWeights | TreeNetworkModel):
            return seen.message.model()
    told, scales = averages(view), common_scales(view)
    if told and scales is not None:
        classes, d = bool(view.schema.classes), len(view.schema.features)
        kind = view.parameters["kind"] or ("logistic" if classes else "linear")
        weights = np.zeros(d + 1)
        weights[: len(told[-1].weights)] = decoded(integers(told[-1].weights), told[-1].bits)
        return RegressionWeights(kind, classes, scales.mean, scales.scale, weights)
    models = next((m for _, m in view.messages(ClientModels)), None)
    sent = [m for _, m in view.messages(NetworkWeights)]
    if models is None or not sent:
        return None
    parts = {f.name: getattr(models, f.name) for f in fields(models)}
    name = objective_of(view.parameters.get("objective"), view.schema.classes).name
    return TreeNetwork(TreeNetworkModel(**parts, objective=name, weights=sent[-1].weights))


def trains_other(view: View, model: Other) -> Trainer:
    """Return what trains as a regression or a network over trees was."""
    return steps(view, model) if isinstance(model, RegressionWeights) else rates(view, model)


def steps(view: View, model: RegressionWeights) -> Trainer:
    """Return what takes a regression's steps, on all rows at once, over its own scales."""
    p = view.parameters
    slope, constant = 1.0, 0.0
    if model.kind == "logistic":
        constant, slope = map(float, SIGMOIDS[1])

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        mean, scale = model.mean[:-1], np.where(model.scale[:-1] > 0, model.scale[:-1], np.inf)
        Z = np.nan_to_num((every.X.astype(np.float64) - mean) / scale, nan=0.0)
        Z = np.column_stack([Z, np.full(len(Z), float(p["intercept"]))])
        y, rows = (every.y - model.mean[-1]) / model.scale[-1], every.take(np.arange(n))

        def said(used: NDArray[np.bool_]) -> Floats:
            w, X, target = np.zeros(Z.shape[1]), Z[used], y[used]
            for _ in range(p["rounds"]):
                off = slope * (X @ w) + constant - target
                w -= p["lr"] * (X.T @ off / len(X) + p["alpha"] * w)
            found = replace(model, weights=w)
            return own_logit(found.predict(rows.X), rows, numbers=not model.classes)

        return said

    return trainer


def rates(view: View, model: TreeNetwork) -> Trainer:
    """Return what boosts every client's trees anew, below the network as it is.

    Its weights are few, and of no single row as leaves are.
    """
    params, network = params_of(view), model.network
    start = start_of(model.told, model.objective)

    def grown(X: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[Tree, ...]:
        classes = model.told.objective != "binary" or len(np.unique(y)) == 2
        started = params if classes else replace(params, base_score=0.5)
        cuts = quantile_cuts(X, params.max_bin)
        bins = bin_rows(X, cuts)
        return grow_forest(bins, y, cuts, started, model.objective, streams=Streams(0)).trees

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        rows, rng = every.take(np.arange(n)), np.random.default_rng(0)

        def said(used: NDArray[np.bool_]) -> Floats:
            V = np.empty((n, network.models, network.trees), dtype=np.float32)
            dealt = np.array_split(rng.permutation(np.flatnonzero(used)), network.models)
            for k, part in enumerate(dealt):
                trees = grown(every.X[part], every.y[part])
                leaves = Routes.of(trees).apply(rows.X)
                for t, tree in enumerate(trees):
                    V[:, k, t] = tree.value[leaves[:, t]]
            margin = network.outputs(model.told.weights, V) + start
            found = model.objective.predict(np.asarray(margin, dtype=np.float32)[None])
            return own_logit(found, rows, numbers=not view.schema.classes)

        return said

    return trainer
