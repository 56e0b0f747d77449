"""Membership inference on networks over clients' trees, by thresholds and likelihood ratios."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.replay import params_of
from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.membership.references import Trainer, own_logit
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.messages.networks import NetworkWeights
from fedtrees.messages.shared_trees import ClientModels
from fedtrees.messages.tree_networks import TreeNetwork, TreeNetworkModel, start_of
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.routing import Routes
from fedtrees.trees.sketch import quantile_cuts

Floats = NDArray[np.float64]


@register.attack("tree-network-membership")
@dataclass(frozen=True, kw_only=True)
class TreeNetworkMembership(MembershipInference):
    """Tell which candidates trees below a network were grown on, as `membership` of trees."""

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no network over trees in a view."""
        return Reason("no-tree-network") if self.model(view) is None else None

    def model(self, view: View) -> TreeNetwork | None:
        """Return the network that was released, or was sent out last."""
        for seen in view.seen:
            if isinstance(seen.message, TreeNetworkModel):
                return seen.message.model()
        models = next((m for _, m in view.messages(ClientModels)), None)
        sent = [m for _, m in view.messages(NetworkWeights)]
        if models is None or not sent:
            return None
        parts = {f.name: getattr(models, f.name) for f in fields(models)}
        name = objective_of(view.parameters.get("objective"), view.schema.classes).name
        return TreeNetwork(TreeNetworkModel(**parts, objective=name, weights=sent[-1].weights))

    def trainer(self, view: View, model: Any) -> Trainer:
        """Return what grows every client's trees anew."""
        return rates(view, model)

    def said(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit of each row's own class."""
        return own_logit(model.predict(rows.X), rows, not view.schema.classes)


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
