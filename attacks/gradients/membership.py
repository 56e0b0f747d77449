"""Membership inference on networks: LiRA and RMIA over networks of the same rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.attack import encoding_of, layers_of
from fedtrees.attacks.gradients.observed import LocalSteps
from fedtrees.attacks.membership.base import MembershipAttack
from fedtrees.attacks.membership.learners import draws_noise
from fedtrees.attacks.membership.references import Trainer, class_logits, train_each
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.networks import NetworkModel, NetworkUpdate, NetworkWeights
from fedtrees.neural.perceptron import TabularNetwork
from fedtrees.neural.training import initial

Floats = NDArray[np.float64]


@register.attack("network-membership")
@dataclass(frozen=True, kw_only=True)
class NetworkMembership(MembershipAttack):
    """Score how likely each candidate is a training row of a network, with LiRA and RMIA.

    Reference models are trained in the same rounds on half of the candidates, which are distributed
    evenly to as many clients. They start from the first weights that the server sent, if the view
    contains them. If a defense clips gradients or adds noise to them, the attack does not apply,
    because the reference models would come from a different learner.
    """

    supports_regression: ClassVar[bool] = False

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if a view has no network or no reference network can be trained."""
        model = self.model(view)
        if model is None:
            return Reason("no-network")
        return Reason("no-reference-learner") if self.trainer(view, model) is None else None

    def model(self, view: View) -> TabularNetwork | None:
        """Return the released network, or else the last one that the server sent."""
        for item in view.seen:
            if isinstance(item.message, NetworkModel):
                return item.message.model()
        encoding, sent = encoding_of(view), [m for _, m in view.messages(NetworkWeights)]
        if encoding is None or not sent:
            return None
        return TabularNetwork(layers_of(view, encoding), sent[-1].weights, encoding)

    def trainer(self, view: View, model: Any) -> Trainer | None:
        """Return the learner that trains networks in the same rounds."""
        return network_trainer(view, model)

    def logits(self, view: View, model: Any, rows: Table) -> Floats:
        """Return the logit of each row's true class, float64, shape (n,)."""
        return class_logits(model.predict(rows.X), rows.y)


def network_trainer(view: View, model: TabularNetwork) -> Trainer | None:
    """Return the learner that trains networks in rounds of clients' steps.

    The parameters of the protocol determine rounds and steps. None is returned if training is
    noisy.
    """
    sites = ((NetworkUpdate, "update"), ("example-gradients", "rows"), ("labels", "y"))
    if any(draws_noise(view.changes(site, field)) for site, field in sites):
        return None
    p, layers = view.parameters, model.layers
    clients = sum(role == "client" for role in view.roles.values())
    first = next((m.weights for _, m in view.messages(NetworkWeights)), None)
    local = LocalSteps(p["batch"], p.get("epochs", 1), p["lr"])
    most_rows = (p["local_rows"] or None) if "epochs" in p else p["batch"]

    def trainer(all_rows: Table, n: int) -> Callable[[NDArray[np.bool_]], Floats]:
        inputs, rows = model.encoding.encode(all_rows.X), all_rows.take(np.arange(n))
        # a fixed seed, so that the reference models are reproducible
        rng = np.random.default_rng(0)

        def train(used: NDArray[np.bool_]) -> Floats:
            parts = np.array_split(rng.permutation(np.flatnonzero(used)), clients)
            weights = initial(layers, rng) if first is None else first
            for _ in range(p["rounds"]):
                updates = []
                for k in rng.permutation(clients)[: p.get("clients_per_round") or clients]:
                    drawn = rng.permutation(parts[k])[:most_rows]
                    steps = local.orders(len(drawn), rng)
                    updates.append(
                        local.update(layers, weights, inputs[drawn], all_rows.y[drawn], steps)
                    )
                weights = (weights + np.mean(updates, axis=0)).astype(np.float32)
            trained = TabularNetwork(layers, weights, model.encoding)
            return class_logits(trained.predict(rows.X), rows.y)

        return train_each(train)

    return trainer
