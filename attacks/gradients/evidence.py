"""Gradients of batches that a view tells."""

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
    """The mean gradient of some rows, as it was seen."""

    owner: tuple[str, ...]  # whose rows: of several where it is a sum
    round: int
    rows: int  # how many, as far as is known
    # shape (parameters,): the network that the gradient was taken at; of several local steps on the
    # way
    weights: NDArray[np.float32]
    gradient: NDArray[np.float32]  # shape (parameters,)
    start: NDArray[np.float32]  # shape (parameters,): the network at the start of the round
    # bool array, shape (parameters,): coordinates that were sent, where others were not; else None
    shown: NDArray[np.bool_] | None = None


def encoding_of(view: View) -> Encoding | None:
    """Return how rows become inputs, None where that was not told."""
    told = next((m for _, m in view.messages(Standardisation)), None)
    return None if told is None else Encoding.of(view.schema).standardised(told.mean, told.std)


def layers_of(view: View, encoding: Encoding) -> Layers:
    """Return the sizes of the network, which are public."""
    units, outputs = view.parameters["units"], max(len(view.schema.classes), 2)
    return Layers((len(encoding), units, units, outputs))


def local_steps_of(view: View) -> LocalSteps | None:
    """Return how clients train between two messages, None where they send a gradient."""
    told = view.parameters
    return LocalSteps(told["batch"], told["epochs"], told["lr"]) if "epochs" in told else None


def seen_gradients(view: View) -> Iterator[SeenGradient]:
    """Yield the gradients of others' rows, in order; of several local steps one for all."""
    sent = {m.round: m for _, m in view.messages(NetworkWeights)}
    everybody = tuple(
        n for n, role in view.roles.items() if role == "client" and n not in view.principals
    )
    updates, local = list(view.messages(NetworkUpdate)), local_steps_of(view)
    sparse = any(isinstance(c, Event) for c in view.changes(NetworkUpdate, "update"))
    for item, update in updates:
        rows = int(update.rows[0])
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
    others: tuple[str, ...],
    own: dict[int, NetworkUpdate],
) -> Iterator[SeenGradient]:
    """Yield the sums of others' gradients that a client finds between two rounds' weights."""
    if "epochs" in view.parameters:
        return
    batch, rate = view.parameters["batch"], np.float32(view.parameters["lr"])
    every = len(others) + len(view.principals)
    for round in sorted(sent)[:-1]:
        mine = own.get(round)
        if round + 1 not in sent or mine is None or len(view.principals) > 1:
            continue
        moved = (sent[round].weights - sent[round + 1].weights) / rate
        rows = batch * len(others)
        gradient = (moved * np.float32(batch * every) - mine.update) / np.float32(rows)
        start = sent[round].weights
        yield SeenGradient(others, round, rows, start, gradient, start)
