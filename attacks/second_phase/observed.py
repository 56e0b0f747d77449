"""Trees of FedXGBllr and gradients of its network, as an adversary observes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.second_phase.matching import Matching
from fedtrees.attacks.second_phase.routing import SoftTrees
from fedtrees.core.channel import Event
from fedtrees.core.view import View
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import unpack
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, start_of
from fedtrees.neural.tree_outputs import RatesNetwork
from fedtrees.trees.boosted.losses import objective_of


@dataclass(frozen=True, eq=False)
class SeenBatch:
    """Observed mean gradient of a batch, or the first Adam step along it.

    Attributes
    ----------
    owner : tuple of str
        Clients whose rows are in the batch. Several if the gradient is a sum over clients.
    round : int
        Round of the update.
    rows : int
        Number of rows in the batch.
    weights : float32 array, shape (parameters,)
        Weights at which the gradient was computed.
    gradient : float32 array, shape (parameters,)
        Mean gradient, or the negative step divided by the learning rate.
    signs : bool
        Whether it is an Adam step.
    """

    owner: tuple[str, ...]
    round: int
    rows: int
    weights: NDArray[np.float32]
    gradient: NDArray[np.float32]
    signs: bool

    def matching(self, models: ClientModels, view: View) -> Matching:
        """Return the loss that compares guessed rows with this gradient."""
        network = RatesNetwork.of(len(models.trees), int(models.trees[0]), len(self.weights))
        objective = objective_of(view.parameters["objective"], view.schema.classes)
        start = float(start_of(models, objective))
        width = np.ones_like(self.gradient) if self.signs else None
        law, noise = view.channel(NetworkUpdate, "update"), 0.0
        if law is not None:
            # The gradient is a mean over clients, so that its noise variance is divided by their
            # number.
            noise = float(np.sqrt(law.error(np.zeros((1, 1)))[1][0, 0] / len(self.owner)))
        changes = view.changes(NetworkUpdate, "update")
        sparsified = any(isinstance(c, Event) for c in changes) and len(self.owner) == 1
        shown = self.gradient != 0 if sparsified else None
        changed = bool(changes or view.changes("example-gradients", "rows"))
        trees = soft_trees(models, view)
        return Matching(
            trees, network, self.weights, self.gradient, start, width, noise, shown, changed
        )


def models_of(view: View) -> ClientModels | None:
    """Return the trees of all clients, None if no network is trained on their outputs."""
    if "sends" not in view.parameters:
        return None
    return next((m for _, m in view.messages(ClientModels)), None)


def soft_trees(models: ClientModels, view: View) -> SoftTrees:
    """Return the trees of all clients in differentiable form."""
    return SoftTrees(tuple(unpack(models)), len(models.trees), len(view.schema.features))


def seen_batches(view: View) -> Iterator[SeenBatch]:
    """Yield the gradients, or single Adam steps, of rows of other clients in the order of rounds.

    Sums of the Adam steps of several clients are skipped, because they are not a function of one
    gradient.
    """
    p, signs = view.parameters, view.parameters["sends"] == "update"
    sent = {m.round: m.weights for _, m in view.messages(NetworkWeights)}
    clients = [n for n, role in view.roles.items() if role == "client"]
    for item, update in view.messages(NetworkUpdate):
        rows = int(update.rows[0])
        if not rows or (item.sender in view.principals and not item.opened):
            continue
        owner = tuple(n for n in clients if item.opened or n == item.sender)
        mean = update.update / np.float32(rows)
        if signs:
            # A sum of Adam steps does not determine a gradient.
            if item.opened:
                continue
            mean, rows = mean / -np.float32(p["lr"]), min(p["batch"] or rows, rows)
        yield SeenBatch(owner, update.round, rows, sent[update.round], mean, signs)
