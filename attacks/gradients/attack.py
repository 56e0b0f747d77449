"""`tableak`: the rows of batches off the gradients of a network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.evidence import (
    SeenGradient,
    encoding_of,
    layers_of,
    local_steps_of,
    seen_gradients,
)
from fedtrees.attacks.gradients.inversion import Inversion, drowning, invert
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


@register.attack("tableak")
@dataclass(frozen=True)
class TabLeak(Attack):
    """Rows of a batch from its gradient (Vero et al. 2023), by a better search than theirs.

    What differs from the published algorithm (`tableak-published`): logits of categories are free,
    Adam follows the gradient itself and not its sign, numbers are moved themselves and clipped, and
    rows are held to the span that the first layer's gradient leaves them. Labels are counted off
    the output bias. Beside noise, or of many rows, who has rows of its own draws batches of such
    that explain the gradient (`explained`). An update of several local steps is taken for one
    gradient on its way. Beside noise without own rows, and of several steps with some, the attack
    first rehearses on likely rows, and submits such in place of found ones if those fared better.

    Parameters
    ----------
    batches : int
        How many gradients to invert, spread evenly over the run, the first one among them.
    restarts, steps : int
        0: by the number of rows.
    most : int
        Gradients of more rows are left alone.
    """

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
            return Guess()
        seen = [s for s in seen_gradients(view) if s.rows <= self.most]
        chosen = np.unique(np.linspace(0, len(seen) - 1, self.batches).round().astype(int))
        bounds, local = _bounds(view, encoding), local_steps_of(view)
        layers, own = layers_of(view, encoding), view.rows
        own = own if own is not None and len(own) >= 2 else None
        claims, notes = [], {"likely_rows": 0.0}
        for k, at in enumerate(chosen):
            item = seen[at]
            noise = drowning(layers, item.gradient, item.rows, encoding)
            # shares of columns alone flatter rows that are drawn by them
            if (local is not None) if own is not None else noise:
                trial = rehearsed(
                    layers, item.start, noise, view, encoding, bounds, item.rows, local, rng
                )
                notes[f"rehearsed_{k}"], notes[f"likely_{k}"] = trial
                if trial[1] > trial[0]:
                    table = likely_rows(view, encoding, _as_many(view, item.rows), rng)
                    claims.append(BatchRows(item.owner, item.round, table, np.zeros(table.X.shape)))
                    notes["likely_rows"] += 1
                    continue
            likely = own if local is None else None
            found = self.inverted(item, layers, encoding, bounds, likely, rng)
            notes[f"loss_{k}"] = found.loss
            table, sure = found.table, found.confidence
            if (more := _as_many(view, item.rows) - len(table)) > 0:
                table = Table.concat([table, likely_rows(view, encoding, more, rng)])
                sure = np.append(sure, np.zeros((more, sure.shape[1])), axis=0)
            claims.append(BatchRows(item.owner, item.round, table, sure))
        return Guess(tuple(claims), notes)

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
            likely=likely, restarts=self.restarts, steps=self.steps,
        )  # fmt: skip


def _as_many(view: View, rows: int) -> int:
    """Return how many rows a batch may have: where each is drawn by itself, four sigma more."""
    return rows + int(4 * np.sqrt(rows)) if view.defense.poisson_sampling else rows


def _bounds(view: View, encoding: Encoding) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = encoding.bounds(view.schema)
    return np.maximum(low, -_WIDE).astype(np.float32), np.minimum(high, _WIDE).astype(np.float32)
