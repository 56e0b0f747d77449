"""What a view tells of FedXGBllr's second phase."""

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
    """The mean gradient of a batch, or Adam's first step along it."""

    owner: tuple[str, ...]  # whose rows: of several where it is a sum
    round: int
    rows: int
    # weights, gradient, shape (parameters,)
    weights: NDArray[np.float32]
    gradient: NDArray[np.float32]
    signs: bool  # whether it is a step, in units of Adam's rate

    def matching(self, models: ClientModels, view: View) -> Matching:
        """Return what guessed rows are compared by."""
        network = RatesNetwork.of(len(models.trees), int(models.trees[0]), len(self.weights))
        objective = objective_of(view.parameters["objective"], view.schema.classes)
        start = float(start_of(models, objective))
        width = np.ones_like(self.gradient) if self.signs else None
        law, noise = view.channel(NetworkUpdate, "update"), 0.0
        if law is not None:
            noise = float(np.sqrt(law.error(np.zeros((1, 1)))[1][0, 0] / len(self.owner)))
        changes = view.changes(NetworkUpdate, "update")
        few = any(isinstance(c, Event) for c in changes) and len(self.owner) == 1
        shown = self.gradient != 0 if few else None
        changed = bool(changes or view.changes("example-gradients", "rows"))
        return Matching(network, self.weights, self.gradient, start, width, noise, shown, changed)


def models_of(view: View) -> ClientModels | None:
    """Return everybody's models, as they were told; None where a network over them is not."""
    if "sends" not in view.parameters:
        return None
    return next((m for _, m in view.messages(ClientModels)), None)


def soft_trees(models: ClientModels, view: View) -> SoftTrees:
    """Return the trees of everybody's models."""
    return SoftTrees(tuple(unpack(models)), len(models.trees), len(view.schema.features))


def seen_batches(view: View) -> Iterator[SeenBatch]:
    """Yield the gradients of others' rows, or single steps along them, in order.

    Steps of several clients together are no function of one gradient, and are left out.
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
            if item.opened:
                continue
            mean, rows = mean / -np.float32(p["lr"]), min(p["batch"] or rows, rows)
        yield SeenBatch(owner, update.round, rows, sent[update.round], mean, signs)
