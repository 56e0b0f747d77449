"""`forest-boxes`: rows from the class counts in the leaves of plain forests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.leaves.chain import State, advance, start
from fedtrees.attacks.leaves.forests import Boxes, Source, sources_of
from fedtrees.core.attack import Attack
from fedtrees.core.errors import check_positive
from fedtrees.core.guess import Guess, Records
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View

#: Moves per cell of the table while costs grow to their weight, and while samples are taken.
BURN_IN, SAMPLING, SAMPLES = 400, 200, 40
#: Weight of the log-likelihood at the beginning, and steps until it is whole.
COOL, STEPS = 0.05, 40
MOST_MOVES = 2_000_000


@register.attack("forest-boxes")
@dataclass(frozen=True, kw_only=True)
class ForestBoxes(Attack):
    """Reconstruct rows from the boxes of all leaves of a random forest and their class counts.

    Beyond the papers. Tables are sampled by how likely they make the counts, bootstrap draws or
    not, and every value is the median of its samples (docs/forests.md).

    Attributes
    ----------
    work : float
        Moves, as a multiple of the usual.
    """

    work: float = 1.0

    def __post_init__(self) -> None:
        check_positive("work", self.work)

    def inapplicable(self, view: View) -> str | None:
        """Return why the principals see no class counts of leaves, None if they do."""
        if not sources_of(view):
            return "the principals see no forest with class counts in its leaves"
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Guess the rows of the victims."""
        tables, owners = [], list[str]()
        for source in sources_of(view):
            own = Table.empty(view.schema) if view.rows is None else view.rows
            table = self._rows(
                source, own if source.owner is None else own.take(slice(0)), view, rng
            )
            tables.append(table)
            owners += [source.owner or ""] * len(table)
        if not tables:
            return Guess()
        named = tuple(owners) if all(owners) else None
        return Guess((Records(Table.concat(tables), owner=named),))

    def _rows(self, source: Source, own: Table, view: View, rng: np.random.Generator) -> Table:
        boxes = Boxes.of(source.trees, len(view.schema.features))
        known = np.stack(
            [
                np.searchsorted(t, x, side="right")
                for t, x in zip(boxes.thresholds, own.X.T, strict=True)
            ],
            axis=1,
        ).astype(np.int32)
        n = max(1, source.rows - len(own))
        y = _classes(boxes, source.rows, own, n)
        state = State.of(
            boxes, np.concatenate([start(boxes, y, rng), known]), np.concatenate([y, own.y]), n
        )
        bits = rng.integers(0, 1 << 63, 1).astype(np.uint64)
        cells = n * len(boxes.thresholds)
        moves = [int(self.work * min(m * cells, MOST_MOVES)) for m in (BURN_IN, SAMPLING)]
        for beta in np.geomspace(COOL, 1.0, STEPS).tolist():
            advance(boxes, state, beta, max(1, moves[0] // STEPS), bits)
        samples = []
        for _ in range(SAMPLES):
            advance(boxes, state, 1.0, max(1, moves[1] // SAMPLES), bits)
            samples.append(state.level[:n].copy())
        middle = np.sort(np.stack(samples), axis=0)[SAMPLES // 2]
        return Table(_values(boxes, middle, view), y)


def _classes(boxes: Boxes, rows: int, own: Table, n: int) -> NDArray[np.int64]:
    """Return a class for each of n rows, int64, as the roots tell their shares."""
    totals = boxes.counts[boxes.start].sum(axis=0).astype(np.float64)
    share = totals / totals.sum() * rows - np.bincount(own.y, minlength=len(totals))
    share = np.maximum(share, 0) + 1e-9
    ends = np.round(np.cumsum(share / share.sum()) * n).astype(np.int64)
    return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)).astype(np.int64)


def _values(boxes: Boxes, level: NDArray[np.int32], view: View) -> NDArray[np.float32]:
    """Return the value at the lower edge of every level: thresholds are values of rows."""
    out = np.empty(level.shape, dtype=np.float32)
    for f, feature in enumerate(view.schema.features):
        edges = boxes.thresholds[f]
        first = float(edges[0]) - 1.0 if len(edges) else 0.0
        if len(edges) > 1:
            first = float(edges[0]) - float(np.median(np.diff(edges)))
        low = feature.low if feature.low is not None else first
        out[:, f] = np.concatenate([[low], edges]).astype(np.float32)[level[:, f]]
    return out
