"""`tableak`: the rows of batches off the gradients of a network."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.evidence import (
    SeenGradient,
    encoding_of,
    layers_of,
    local_steps_of,
    seen_gradients,
)
from fedtrees.attacks.gradients.hidden import rows_of_steps
from fedtrees.attacks.gradients.inversion import Inversion, drowning, invert
from fedtrees.attacks.gradients.local_steps import LocalSteps, batch_gradient
from fedtrees.attacks.gradients.rehearsal import likely_rows, rehearsed
from fedtrees.core.attack import Attack
from fedtrees.core.errors import check_whole
from fedtrees.core.guess import BatchRows, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers

#: A number without declared range is looked for within so many standard deviations.
_WIDE = 20.0
#: Numbers drawn by themselves are harder to find than rows, whose columns go together: by so much
#: more likely rows have to fare better where there are numbers alone.
_FLATTERED = 1.2


@register.attack("tableak")
@dataclass(frozen=True)
class TabLeak(Attack):
    """Rows of a batch from its gradient (Vero et al. 2023), by a better search than theirs.

    What differs from the published algorithm (`tableak-published`): logits of categories are free,
    Adam follows the gradient itself and not its sign, numbers are moved themselves and clipped, and
    rows are held to the span that the first layer's gradient leaves them. Labels are counted off
    the output bias. Beside noise, or of many rows, an adversary with own rows or rows of the
    population draws batches of such rows that explain the gradient (`explained`). Fewer rows than
    hidden units are roots of equations, those of local steps one step after the other (`hidden`);
    what is left of an update is taken for one gradient on its way. Coordinates that were not sent
    only bound the gradient. Beside noise without such rows, of several steps with some, and of few
    coordinates, the attack first rehearses on likely rows, and submits such in place of found ones
    if those fared better.

    Parameters
    ----------
    batches : int
        How many gradients to invert, spread evenly over the run, the first one among them.
    restarts, steps : int
        0: by the number of rows.
    most : int
        Gradients of more rows are left alone.
    """

    claims = (BatchRows,)

    by_algebra: ClassVar[bool] = True  # what is published is search alone

    batches: int = 3
    restarts: int = 0
    steps: int = 0
    most: int = 512

    def __post_init__(self) -> None:
        for name, least in {"batches": 1, "restarts": 0, "steps": 0, "most": 1}.items():
            check_whole(name, getattr(self, name), least)

    def inapplicable(self, view: View) -> Reason | None:
        """Return that no gradient of a network was seen, or only of more rows than `most`."""
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
        chosen = np.unique(np.linspace(0, len(seen) - 1, self.batches).round().astype(int))
        bounds, local = _bounds(view, encoding), local_steps_of(view)
        layers = layers_of(view, encoding)
        claims, notes = [], {"likely_rows": 0.0}
        for k, at in enumerate(chosen):
            steps = local if self.by_algebra else None
            item, first = _followed(seen[at], layers, encoding, steps, rng)
            table, sure = first, np.ones(first.X.shape)
            if item.rows:
                rest, told = self.rest(item, view, layers, encoding, bounds, rng)
                table, sure = Table.concat([table, rest[0]]), np.concatenate([sure, rest[1]])
                notes["likely_rows"] += told.pop("likely_rows", 0.0)
                notes |= {f"{name}_{k}": value for name, value in told.items()}
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
        """Return rows, how sure their cells are, and what there is to note."""
        local, known, notes = local_steps_of(view), view.prior_rows, dict[str, float]()
        known = known if known is not None and len(known) >= 2 else None
        noise = drowning(layers, item.gradient, item.rows, encoding)
        few = self.by_algebra and item.shown is not None
        # shares of columns alone flatter rows that are drawn by them
        doubted = noise and (local is None or encoding.groups)
        if few or ((local is not None) if known is not None else doubted):
            kept = int(item.shown.sum()) if few and item.shown is not None else 0
            notes["rehearsed"], notes["likely"] = trial = rehearsed(
                layers, item.start, noise, view, encoding, bounds, item.rows, local, rng, kept
            )
            handicap = 1.0 if encoding.groups or known is not None else _FLATTERED
            if trial[1] > handicap * trial[0]:
                table = likely_rows(view, encoding, _as_many(view, item.rows), rng)
                return (table, np.zeros(table.X.shape)), {**notes, "likely_rows": 1.0}
        likely = known if local is None else None
        found = self.inverted(item, layers, encoding, bounds, likely, rng)
        notes["loss"], table, sure = found.loss, found.table, found.confidence
        if (more := _as_many(view, item.rows) - len(table)) > 0:
            table = Table.concat([table, likely_rows(view, encoding, more, rng)])
            sure = np.append(sure, np.zeros((more, sure.shape[1])), axis=0)
        return (table, sure), notes

    def inverted(
        self,
        item: SeenGradient,
        layers: Layers,
        encoding: Encoding,
        bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
        likely: Table | None,
        rng: np.random.Generator,
    ) -> Inversion:
        """Return the rows whose gradient is nearest to one that was seen."""
        return invert(
            layers, item.weights, item.gradient, encoding, bounds, item.rows, rng,
            likely=likely, restarts=self.restarts, steps=self.steps, shown=item.shown,
        )  # fmt: skip


def _followed(
    item: SeenGradient,
    layers: Layers,
    encoding: Encoding,
    local: LocalSteps | None,
    rng: np.random.Generator,
) -> tuple[SeenGradient, Table]:
    """Return rows that single local steps of a client tell, and about the mean gradient of others.

    None of a sum over several clients, or where coordinates were not sent.
    """
    none = Table(np.zeros((0, len(encoding.coded)), np.float32), np.zeros(0, np.int64))
    if local is None or len(item.owner) > 1 or item.shown is not None:
        return item, none
    update = item.gradient * np.float32(-local.rate * local.count(item.rows))
    found = rows_of_steps(layers, item.start, update, encoding, item.rows, local, rng)
    if not len(found):
        return item, none
    told, left = batch_gradient(layers, item.weights, encoding.encode(found.X), found.y), item.rows
    left -= len(found)
    rest = (item.gradient * item.rows - told * len(found)) / np.float32(max(left, 1))
    return replace(item, rows=left, gradient=rest), found


def _as_many(view: View, rows: int) -> int:
    """Return how many rows a batch may have: where each is drawn by itself, four sigma more."""
    return rows + int(4 * np.sqrt(rows)) if view.defense.poisson_sampling else rows


def _bounds(view: View, encoding: Encoding) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = encoding.bounds(view.schema)
    return np.maximum(low, -_WIDE).astype(np.float32), np.minimum(high, _WIDE).astype(np.float32)
