"""Read the gradients of batches from a view."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.local_steps import LocalSteps
from fedtrees.core.channel import Event
from fedtrees.core.view import View
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers


@dataclass(frozen=True, eq=False)
class SeenGradient:
    """The mean gradient of some rows, from a message or from the difference of two weights.

    Attributes
    ----------
    owner : tuple of str
        Clients whose rows are contained. Several if the gradient is a sum.
    round : int
        Round of the federation.
    rows : int
        Number of rows, announced or assumed from the batch size.
    weights : float32 array, shape (parameters,)
        Network at which the gradient was computed. With several local steps, a point on their path.
    gradient : float32 array, shape (parameters,)
        The mean gradient.
    start : float32 array, shape (parameters,)
        Network at the start of the round.
    shown : bool array, shape (parameters,), or None
        Coordinates that were sent. None means all.
    """

    owner: tuple[str, ...]
    round: int
    rows: int
    # shape (parameters,)
    weights: NDArray[np.float32]
    gradient: NDArray[np.float32]  # shape (parameters,)
    start: NDArray[np.float32]  # shape (parameters,): the network at the start of the round
    # shape (parameters,)
    shown: NDArray[np.bool_] | None = None


def encoding_of(view: View) -> Encoding | None:
    """Return the conversion of rows to inputs, None if the standardisation was not announced."""
    scaling = next((m for _, m in view.messages(Standardisation)), None)
    return (
        None
        if scaling is None
        else Encoding.of(view.schema).standardised(scaling.mean, scaling.std)
    )


def layers_of(view: View, encoding: Encoding) -> Layers:
    """Return the sizes of the network, which are public."""
    units, outputs = view.parameters["units"], max(len(view.schema.classes), 2)
    return Layers((len(encoding), units, units, outputs))


def local_steps_of(view: View) -> LocalSteps | None:
    """Return how clients train between two messages, None if they send a single gradient."""
    parameters = view.parameters
    return (
        LocalSteps(parameters["batch"], parameters["epochs"], parameters["lr"])
        if "epochs" in parameters
        else None
    )


def seen_gradients(view: View) -> Iterator[SeenGradient]:
    """Yield the gradients of other parties' rows in order. Local steps give one gradient."""
    sent = {m.round: m for _, m in view.messages(NetworkWeights)}
    everybody = tuple(
        n for n, role in view.roles.items() if role == "client" and n not in view.principals
    )
    updates, local = list(view.messages(NetworkUpdate)), local_steps_of(view)
    sparse = any(isinstance(c, Event) for c in view.changes(NetworkUpdate, "update"))
    for item, update in updates:
        rows = int(update.rows[0])
        # updates of the adversary's parties contain no rows of victims
        if not rows or (item.sender in view.principals and not item.opened):
            continue
        start = sent[update.round]
        owner: tuple[str, ...] = (item.sender,)
        if item.opened:
            owner = tuple(start.chosen.split(",")) if start.chosen else everybody
        weights, mean = start.weights, update.update / np.float32(rows)
        if local is not None:
            weights, mean = local.as_gradient(weights, mean, rows // len(owner))
        shown = update.update != 0 if sparse and len(owner) == 1 else None
        yield SeenGradient(owner, update.round, rows, weights, mean, start.weights, shown)
    if any(role == "server" for n, role in view.roles.items() if n in view.principals):
        return
    yield from _from_steps(view, sent, everybody, {m.round: m for _, m in updates})


def _from_steps(
    view: View,
    sent: dict[int, NetworkWeights],
    other_clients: tuple[str, ...],
    local_updates: dict[int, NetworkUpdate],
) -> Iterator[SeenGradient]:
    """Yield the sums of gradients that a client computes from the weights of two rounds."""
    if "epochs" in view.parameters:
        return
    batch, rate = view.parameters["batch"], np.float32(view.parameters["lr"])
    every = len(other_clients) + len(view.principals)
    for round in sorted(sent)[:-1]:
        local_update = local_updates.get(round)
        if round + 1 not in sent or local_update is None or len(view.principals) > 1:
            continue
        moved = (sent[round].weights - sent[round + 1].weights) / rate
        rows = batch * len(other_clients)
        # the weights moved by the mean over all clients' rows, from which the local sum is
        # subtracted
        gradient = (moved * np.float32(batch * every) - local_update.update) / np.float32(rows)
        start = sent[round].weights
        yield SeenGradient(other_clients, round, rows, start, gradient, start)
