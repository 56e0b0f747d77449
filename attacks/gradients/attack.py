"""The attack `tableak`: reconstruct the rows of batches from the gradients of a network.

The attack reads the gradients of batches from a view and inverts each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.inversion import Inversion, invert, likely_rows, rehearse
from fedtrees.attacks.gradients.observed import BatchGradient, LocalSteps, no_rows
from fedtrees.attacks.gradients.second_layer_solve import rows_of_steps
from fedtrees.core.attack import Attack
from fedtrees.core.channel import ConditionalOmission
from fedtrees.core.claims import BatchRows, Guess
from fedtrees.core.errors import check_whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, Standardisation
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenGradient(BatchGradient):
    """The mean gradient of some rows, from a message or from the difference of two weights.

    Attributes
    ----------
    owner : tuple of str
        Clients whose rows are contained. Several if the gradient is a sum.
    round : int
        Round of the federation.
    start : float32 array, shape (parameters,)
        Network at the start of the round.
    """

    owner: tuple[str, ...]
    round: int
    start: NDArray[np.float32]


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
    """Yield the gradients of other parties' rows in order. Local steps give one gradient.

    There are none if the standardisation of the inputs was not announced.
    """
    encoding = encoding_of(view)
    if encoding is None:
        return
    common = layers_of(view, encoding), encoding, _bounds(view, encoding)
    sent = {m.round: m for _, m in view.messages(NetworkWeights)}
    everybody = tuple(
        n for n, role in view.roles.items() if role == "client" and n not in view.principals
    )
    updates, local = list(view.messages(NetworkUpdate)), local_steps_of(view)
    sparse = any(isinstance(c, ConditionalOmission) for c in view.changes(NetworkUpdate, "update"))
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
        yield SeenGradient(*common, weights, mean, rows, shown,
                           owner=owner, round=update.round, start=start.weights)  # fmt: skip
    if local is not None or any(view.roles[n] == "server" for n in view.principals):
        return
    # A single client computes the sum of the other clients' gradients from the weights of two
    # rounds: they moved by the mean over all rows, from which it subtracts its own sum.
    local_updates = {m.round: m for _, m in updates}
    batch, rate = view.parameters["batch"], np.float32(view.parameters["lr"])
    every = len(everybody) + len(view.principals)
    for round in sorted(sent)[:-1]:
        local_update = local_updates.get(round)
        if round + 1 not in sent or local_update is None or len(view.principals) > 1:
            continue
        start_weights, rows = sent[round].weights, batch * len(everybody)
        moved = (start_weights - sent[round + 1].weights) / rate
        gradient = (moved * np.float32(batch * every) - local_update.update) / np.float32(rows)
        yield SeenGradient(*common, start_weights, gradient, rows,
                           owner=everybody, round=round, start=start_weights)  # fmt: skip


def spread_evenly(seen: Sequence[T], count: int) -> list[T]:
    """Return at most `count` entries at equal distances, including the first and the last one.

    The attacks invert gradients of all stages of a training, because the network changes.
    """
    places = np.linspace(0, len(seen) - 1, count).round().astype(int)
    return [seen[at] for at in np.unique(places)] if seen else []


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
    for after the other (`second_layer_solve`), and the remaining update is treated as one gradient
    at an intermediate point. If only some coordinates were sent, the remaining ones only bound the
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
    max_rows : int
        Gradients of more rows are skipped.
    """

    claims = (BatchRows,)

    by_algebra: ClassVar[bool] = True  # the published attacks only search

    batches: int = 3
    restarts: int = 0
    steps: int = 0
    max_rows: int = 512

    def __post_init__(self) -> None:
        for name, least in {"batches": 1, "restarts": 0, "steps": 0, "max_rows": 1}.items():
            check_whole(name, getattr(self, name), least)

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no gradient of at most `max_rows` rows was seen, else None."""
        if encoding_of(view) is None:
            return Reason("no-network")
        sizes = [s.rows for s in seen_gradients(view)]
        if not sizes:
            return Reason("no-gradient")
        if min(sizes) > self.max_rows:
            return Reason("batch-too-large", rows=min(sizes), most=self.max_rows)
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Invert some of the gradients."""
        seen = [s for s in seen_gradients(view) if s.rows <= self.max_rows]
        local = local_steps_of(view) if self.by_algebra else None
        claims, notes = [], {"likely_rows": 0.0}
        for k, item in enumerate(spread_evenly(seen, self.batches)):
            rest, first = _follow_steps(item, local, rng)
            table, sure = first, np.ones(first.X.shape)
            if rest.rows:
                more, sure_of_more, notes_of_batch = self.rest(rest, view, rng)
                table, sure = Table.concat([table, more]), np.concatenate([sure, sure_of_more])
                notes["likely_rows"] += notes_of_batch.pop("likely_rows", 0.0)
                notes |= {f"{name}_{k}": value for name, value in notes_of_batch.items()}
            claims.append(BatchRows(item.owner, item.round, table, sure))
        return Guess.of(claims, notes, otherwise=self.inapplicable(view) or Reason("no-gradient"))

    def rest(
        self, item: SeenGradient, view: View, rng: np.random.Generator
    ) -> tuple[Table, NDArray[np.float64], dict[str, float]]:
        """Return the rows that algebra did not find, the confidence of their cells, and notes.

        Parameters
        ----------
        item : SeenGradient
            Gradient of the remaining rows.
        view : View
            The adversary's view.
        rng : numpy.random.Generator
            Randomness of the search.
        """
        local, prior_rows, notes = local_steps_of(view), view.prior_rows, dict[str, float]()
        prior_rows = prior_rows if prior_rows is not None and len(prior_rows) >= 2 else None
        noise, encoding = item.added_noise, item.encoding
        few = self.by_algebra and item.shown is not None
        # independent draws of columns overestimate how good likely rows are
        doubted = noise and (local is None or encoding.groups)
        if few or ((local is not None) if prior_rows is not None else doubted):
            n_sent = int(item.shown.sum()) if few and item.shown is not None else 0
            at_start = replace(item, weights=item.start)  # type: ignore[call-arg]
            trial = rehearse(at_start, noise, view, local, rng, n_sent)
            notes["rehearsed"], notes["likely"] = trial
            handicap = 1.0 if encoding.groups or prior_rows is not None else _FLATTERED
            if trial[1] > handicap * trial[0]:
                table = likely_rows(view, encoding, _as_many(view, item.rows), rng)
                return table, np.zeros(table.X.shape), {**notes, "likely_rows": 1.0}
        inversion = self.invert_gradient(item, prior_rows if local is None else None, rng)
        notes["loss"], table, sure = inversion.loss, inversion.table, inversion.confidence
        if (more := _as_many(view, item.rows) - len(table)) > 0:
            table = Table.concat([table, likely_rows(view, encoding, more, rng)])
            sure = np.append(sure, np.zeros((more, sure.shape[1])), axis=0)
        return table, sure, notes

    def invert_gradient(
        self, item: BatchGradient, likely: Table | None, rng: np.random.Generator
    ) -> Inversion:
        """Return the rows whose gradient is closest to the observed one.

        Parameters
        ----------
        item : BatchGradient
            The observed gradient.
        likely : Table or None
            Rows with the distribution of the batch.
        rng : numpy.random.Generator
            Randomness of the search.
        """
        return invert(item, rng, likely=likely, restarts=self.restarts, steps=self.steps)


def _follow_steps(
    item: SeenGradient, local: LocalSteps | None, rng: np.random.Generator
) -> tuple[SeenGradient, Table]:
    """Return the gradient of the remaining rows, and rows recovered from single local steps.

    No rows are recovered from a sum over several clients or from incomplete coordinates.
    """
    if local is None or len(item.owner) > 1 or item.shown is not None:
        return item, no_rows(item.encoding)
    update = item.gradient * np.float32(-local.rate * local.count(item.rows))
    at_start = replace(item, weights=item.start, gradient=update)  # type: ignore[call-arg]
    recovered = rows_of_steps(at_start, local, rng)
    return (item.without(recovered) if len(recovered) else item), recovered


def _as_many(view: View, rows: int) -> int:
    """Return the largest plausible batch size: with Poisson sampling, four sigma more."""
    return rows + int(4 * np.sqrt(rows)) if view.defense.requirements.poisson_sampling else rows


def _bounds(view: View, encoding: Encoding) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = encoding.bounds(view.schema)
    return np.maximum(low, -_WIDE).astype(np.float32), np.minimum(high, _WIDE).astype(np.float32)
