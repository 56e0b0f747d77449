"""The attack `tableak`: reconstruct the rows of batches from the gradients of a network.

The attack reads the gradients of batches from a view and inverts each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.gradient_matching import LocalSteps, batch_gradient
from fedtrees.attacks.gradients.hidden import rows_of_steps
from fedtrees.attacks.gradients.inversion import Inversion, drowning, invert, likely_rows, rehearse
from fedtrees.core.attack import Attack
from fedtrees.core.channel import Event
from fedtrees.core.errors import check_whole
from fedtrees.core.guess import BatchRows, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
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


#: Search range of a number without declared range, in standard deviations.
_WIDE = 20.0
#: Factor by which likely rows must be better than found rows, if all columns are numeric and there
#: are no prior rows. The rehearsal then draws columns independently, and such rows are harder to
#: find than real rows.
_FLATTERED = 1.2


@register.attack("tableak")
@dataclass(frozen=True)
class TabLeak(Attack):
    """Reconstruct the rows of a batch from its gradient by an improved TabLeak (Vero et al. 2023).

    There are several differences from the published algorithm (`tableak-published`). Logits of
    categories are unconstrained, Adam follows the gradient instead of its sign, and numbers are
    changed directly and clipped. Rows are pulled into the span of the first layer's gradient.
    Labels are counted from the output bias.

    With noise or many rows, an adversary with local rows or rows of the population samples batches
    of such rows that explain the gradient (`explain_gradient`). If a batch has fewer rows than
    hidden units, its rows are roots of equations. With local steps, the rows of one step are solved
    for after the other (`hidden`), and the remaining update is treated as one gradient at an
    intermediate point. If only some coordinates were sent, the remaining ones only bound the
    gradient.

    In three cases the attack first rehearses on likely rows, and submits such rows instead of found
    ones if they are better: noise without prior rows, several local steps with prior rows, and few
    coordinates.

    Parameters
    ----------
    batches : int
        Number of gradients to invert, spread evenly over the run, including the first.
    restarts, steps : int
        Effort of the search. 0 means that the number of rows determines it.
    most : int
        Gradients of more rows are skipped.
    """

    claims = (BatchRows,)

    by_algebra: ClassVar[bool] = True  # the published attacks only search

    batches: int = 3
    restarts: int = 0
    steps: int = 0
    most: int = 512

    def __post_init__(self) -> None:
        for name, least in {"batches": 1, "restarts": 0, "steps": 0, "most": 1}.items():
            check_whole(name, getattr(self, name), least)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no gradient of at most `most` rows was seen, else None."""
        if encoding_of(view) is None:
            return Reason("no-network")
        sizes = [s.rows for s in seen_gradients(view)]
        if not sizes:
            return Reason("no-gradient")
        if min(sizes) > self.most:
            return Reason("batch-too-large", rows=min(sizes), most=self.most)
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert some of the gradients."""
        encoding = encoding_of(view)
        if encoding is None:
            return Guess.none(Reason("no-network"))
        seen = [s for s in seen_gradients(view) if s.rows <= self.most]
        # spread evenly, because the network changes during training
        chosen = np.unique(np.linspace(0, len(seen) - 1, self.batches).round().astype(int))
        bounds, local = _bounds(view, encoding), local_steps_of(view)
        layers = layers_of(view, encoding)
        claims, notes = [], {"likely_rows": 0.0}
        for k, at in enumerate(chosen):
            steps = local if self.by_algebra else None
            item, first = _follow_steps(seen[at], layers, encoding, steps, rng)
            table, sure = first, np.ones(first.X.shape)
            if item.rows:
                rest, notes_of_batch = self.rest(item, view, layers, encoding, bounds, rng)
                table, sure = Table.concat([table, rest[0]]), np.concatenate([sure, rest[1]])
                notes["likely_rows"] += notes_of_batch.pop("likely_rows", 0.0)
                notes |= {f"{name}_{k}": value for name, value in notes_of_batch.items()}
            claims.append(BatchRows(item.owner, item.round, table, sure))
        return Guess.of(claims, notes, otherwise=self.inapplicable(view) or Reason("no-gradient"))

    def rest(
        self,
        item: SeenGradient,
        view: View,
        layers: Layers,
        encoding: Encoding,
        bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
        rng: np.random.Generator,
    ) -> tuple[tuple[Table, NDArray[np.float64]], dict[str, float]]:
        """Return the rows that algebra did not find, the confidence of their cells, and notes.

        Parameters
        ----------
        item : SeenGradient
            Gradient of the remaining rows.
        view : View
            The adversary's view.
        layers : Layers
            Sizes of the network.
        encoding : Encoding
            Conversion of rows to inputs.
        bounds : pair of float32 array
            Smallest and largest standardised value of every number.
        rng : numpy.random.Generator
            Randomness of the search.
        """
        local, prior_rows, notes = local_steps_of(view), view.prior_rows, dict[str, float]()
        prior_rows = prior_rows if prior_rows is not None and len(prior_rows) >= 2 else None
        noise = drowning(layers, item.gradient, item.rows, encoding)
        few = self.by_algebra and item.shown is not None
        # independent draws of columns overestimate how good likely rows are
        doubted = noise and (local is None or encoding.groups)
        if few or ((local is not None) if prior_rows is not None else doubted):
            n_sent = int(item.shown.sum()) if few and item.shown is not None else 0
            notes["rehearsed"], notes["likely"] = trial = rehearse(
                layers, item.start, noise, view, encoding, bounds, item.rows, local, rng, n_sent
            )
            handicap = 1.0 if encoding.groups or prior_rows is not None else _FLATTERED
            if trial[1] > handicap * trial[0]:
                table = likely_rows(view, encoding, _as_many(view, item.rows), rng)
                return (table, np.zeros(table.X.shape)), {**notes, "likely_rows": 1.0}
        likely = prior_rows if local is None else None
        inversion = self.invert_gradient(item, layers, encoding, bounds, likely, rng)
        notes["loss"], table, sure = inversion.loss, inversion.table, inversion.confidence
        if (more := _as_many(view, item.rows) - len(table)) > 0:
            table = Table.concat([table, likely_rows(view, encoding, more, rng)])
            sure = np.append(sure, np.zeros((more, sure.shape[1])), axis=0)
        return (table, sure), notes

    def invert_gradient(
        self,
        item: SeenGradient,
        layers: Layers,
        encoding: Encoding,
        bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
        likely: Table | None,
        rng: np.random.Generator,
    ) -> Inversion:
        """Return the rows whose gradient is closest to the observed one.

        Parameters
        ----------
        item : SeenGradient
            The observed gradient.
        layers : Layers
            Sizes of the network.
        encoding : Encoding
            Conversion of rows to inputs.
        bounds : pair of float32 array
            Smallest and largest standardised value of every number.
        likely : Table or None
            Rows with the distribution of the batch.
        rng : numpy.random.Generator
            Randomness of the search.
        """
        return invert(
            layers, item.weights, item.gradient, encoding, bounds, item.rows, rng,
            likely=likely, restarts=self.restarts, steps=self.steps, shown=item.shown,
        )  # fmt: skip


def _follow_steps(
    item: SeenGradient,
    layers: Layers,
    encoding: Encoding,
    local: LocalSteps | None,
    rng: np.random.Generator,
) -> tuple[SeenGradient, Table]:
    """Return the gradient of the remaining rows, and rows recovered from single local steps.

    No rows are recovered from a sum over several clients or from incomplete coordinates.
    """
    no_rows = Table(np.zeros((0, len(encoding.coded)), np.float32), np.zeros(0, np.int64))
    if local is None or len(item.owner) > 1 or item.shown is not None:
        return item, no_rows
    update = item.gradient * np.float32(-local.rate * local.count(item.rows))
    recovered = rows_of_steps(layers, item.start, update, encoding, item.rows, local, rng)
    if not len(recovered):
        return item, no_rows
    gradient_of_recovered, left = (
        batch_gradient(layers, item.weights, encoding.encode(recovered.X), recovered.y),
        item.rows,
    )
    left -= len(recovered)
    rest = (item.gradient * item.rows - gradient_of_recovered * len(recovered)) / np.float32(
        max(left, 1)
    )
    return replace(item, rows=left, gradient=rest), recovered


def _as_many(view: View, rows: int) -> int:
    """Return the largest plausible batch size: with Poisson sampling, four sigma more."""
    return rows + int(4 * np.sqrt(rows)) if view.defense.requirements.poisson_sampling else rows


def _bounds(view: View, encoding: Encoding) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = encoding.bounds(view.schema)
    return np.maximum(low, -_WIDE).astype(np.float32), np.minimum(high, _WIDE).astype(np.float32)
