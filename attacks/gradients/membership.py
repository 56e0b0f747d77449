"""Membership inference on networks: likelihood ratios over networks of the same rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.evidence import encoding_of, layers_of
from fedtrees.attacks.gradients.local_steps import LocalSteps
from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.membership.ratios import lira, rmia, weight_of
from fedtrees.attacks.membership.references import Trainer, logit_of_own, references
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.networks import NetworkModel, NetworkWeights
from fedtrees.neural.model import TabularNetwork
from fedtrees.neural.training import initial

Floats = NDArray[np.float64]


@register.attack("network-membership")
@dataclass(frozen=True, kw_only=True)
class NetworkMembership(MembershipInference):
    """Tell which candidates a network was trained on: LiRA and RMIA, as `membership` of trees.

    References go through the same rounds on half of the candidates, dealt out evenly over as many
    clients; from the weights that were sent out first, where these are seen. Noise of a defense is
    not in them.
    """

    numbers: ClassVar[bool] = False

    def inapplicable(self, view: View) -> Reason | None:
        """Return why there is no network in a view."""
        return Reason("no-network") if self.model(view) is None else None

    def model(self, view: View) -> TabularNetwork | None:
        """Return the network that was released, or else the last one that was sent out."""
        for item in view.seen:
            if isinstance(item.message, NetworkModel):
                return item.message.model()
        encoding, sent = encoding_of(view), [m for _, m in view.messages(NetworkWeights)]
        if encoding is None or not sent:
            return None
        return TabularNetwork(layers_of(view, encoding), sent[-1].weights, encoding)

    def tests(
        self, view: View, model: Any, rows: Table, rng: np.random.Generator
    ) -> tuple[dict[str, Floats], float]:
        """Return what each test scores, and what a nat of the last is worth."""
        refs = references(rows, view.rows, descends(view, model), self.models, rng)
        logit = logit_of_own(model.predict(rows.X), rows.y)
        return {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}, weight_of(refs)


def descends(view: View, model: TabularNetwork) -> Trainer:
    """Return what trains networks in rounds of clients' steps, as a view's parameters say."""
    told, layers = view.parameters, model.layers
    clients = sum(role == "client" for role in view.roles.values())
    first = next((m.weights for _, m in view.messages(NetworkWeights)), None)
    local = LocalSteps(told["batch"], told.get("epochs", 1), told["lr"])

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        inputs, rows = model.encoding.encode(every.X), every.take(np.arange(n))
        rng = np.random.default_rng(0)

        def said(used: NDArray[np.bool_]) -> Floats:
            parts = np.array_split(rng.permutation(np.flatnonzero(used)), clients)
            at = initial(layers, rng) if first is None else first
            for _ in range(told["rounds"]):
                moved = []
                for k in rng.permutation(clients)[: told.get("clients_per_round") or clients]:
                    most = (told["local_rows"] or None) if "epochs" in told else told["batch"]
                    mine = rng.permutation(parts[k])[:most]
                    steps = local.orders(len(mine), rng)
                    moved.append(local.update(layers, at, inputs[mine], every.y[mine], steps))
                at = (at + np.mean(moved, axis=0)).astype(np.float32)
            trained = TabularNetwork(layers, at, model.encoding)
            return logit_of_own(trained.predict(rows.X), rows.y)

        return said

    return trainer
