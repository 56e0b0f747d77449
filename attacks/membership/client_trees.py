"""Reference models for protocols in which clients grow trees on their local data and share them.

The candidates of a reference model are dealt at random to as many clients as the federation has,
because the adversary does not know which client has which row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.clients.blocks import blocks_of
from fedtrees.attacks.evidence.replay import params_of
from fedtrees.attacks.membership.references import Trainer, forest_logits
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import Continuation, Owned, add_trees
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.intercept import estimated_score, start_margin
from fedtrees.trees.boosted.losses import Objective, objective_of
from fedtrees.trees.boosted.xgboost_cuts import xgboost_cuts


def shared_model(view: View) -> Forest | None:
    """Return the ensemble of the clients' trees, None if the view does not show them."""
    shared = blocks_of(view)
    if shared is None:
        return None
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    if shared.score is not None:
        trees = tuple(t for block in shared.blocks for t in block.trees)
        return Forest(trees, start_margin(objective, shared.score), objective)
    scores = [s for block in shared.blocks if (s := block.score) is not None]
    return _mean([b.trees for b in shared.blocks], scores, objective) if scores else None


def client_trainer(view: View, objective: Objective) -> Trainer:
    """Return the learner that simulates a federation whose clients share their local trees.

    The learner assigns the candidates to the clients at random. The rows that the adversary knows
    to be members form the local data of one client. The clients then grow trees in the order that
    the parameters of the protocol declare.
    """
    clients = [*view.roles.values()].count("client")

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        rng, local = np.random.default_rng(0), every.take(np.arange(n, len(every)))
        rows, n_others = every.take(np.arange(n)), clients - bool(len(local))

        def train(used: NDArray[np.bool_]) -> NDArray[np.float64]:
            dealt = np.array_split(rng.permutation(np.flatnonzero(used[:n])), n_others)
            parts = [p for p in (*map(every.take, dealt), local) if len(p)]
            return forest_logits(_trained(view, parts, objective), rows)

        return train

    return trainer


@dataclass(eq=False)
class _Client:
    """A client of a reference federation: its rows, their margins so far, and its growth."""

    rows: Table
    growth: Continuation
    score: NDArray[np.float32]
    margin: NDArray[np.float32]
    trees: list[Tree] = field(default_factory=list)

    @staticmethod
    def of(view: View, rows: Table, objective: Objective) -> "_Client":
        """Prepare the local training of a client.

        Parameters
        ----------
        view : View
            Its public parameters describe the training.
        rows : Table
            Local data of the client.
        objective : Objective
            Loss of the boosting.
        """
        params, base_score = params_of(view), view.parameters["base_score"]
        score = np.full(objective.n_outputs, base_score or 0, dtype=np.float32)
        if base_score is None:
            sums = objective.target_sums(rows.y, None)
            score = estimated_score(objective, sums, view.parameters["intercept"])
        cuts = xgboost_cuts(rows.X, params.max_bin)
        owned = Owned(bin_rows(rows.X, cuts), rows.y, None)
        growth = Continuation(owned, cuts, params, objective, Streams(0))
        start = start_margin(objective, score)
        return _Client(rows, growth, score, np.repeat(start[:, None], len(rows), axis=1))

    def grow(self, at: int, each: int) -> list[Tree]:
        """Return the client's trees of the next rounds, grown on top of the current model."""
        margin = self.margin.copy()
        return [t for i in range(each) for t in self.growth.round(at * each + i, margin)]


def _trained(view: View, parts: Sequence[Table], objective: Objective) -> Forest:
    """Return the model of a federation whose clients have these rows."""
    p, clients = view.parameters, [_Client.of(view, part, objective) for part in parts]
    if "local_trees" not in p:
        each = [c.grow(0, p["trees"]) for c in clients]
        return _mean(each, [c.score for c in clients], objective)
    start, trees = start_margin(objective, clients[0].score), list[Tree]()
    for at in range(p["trees"]):
        turn = clients if "arrival" in p else [clients[at % len(clients)]]
        grown = [t for c in turn for t in c.grow(at, p["local_trees"])]
        for c in clients:
            if not trees:  # the base score of the first client becomes that of the model
                c.margin = np.repeat(start[:, None], len(c.rows), axis=1)
            add_trees(grown, c.rows.X, c.margin, len(trees))
        trees += grown
    return Forest(tuple(trees), start, objective)


def _mean(models: Sequence[Sequence[Tree]], scores: Sequence[Any], objective: Objective) -> Forest:
    """Return one model whose margin is the mean of the margins of several models."""
    share = np.float32(1 / len(models))
    scaled = tuple(replace(t, value=t.value * share) for trees in models for t in trees)
    starts = [start_margin(objective, score) for score in scores]
    return Forest(scaled, np.mean(starts, axis=0, dtype=np.float64), objective)
