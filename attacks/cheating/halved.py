"""`halved-rows`: the server reads rows off nodes in which a row, or equal ones, are alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import class_counts, sums_by_node, unreadable
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.boosting import BaseScore, NodeSplits
from fedtrees.messages.cuts import CutPoints

#: Bin of every column, -1 for none, and the label.
Row = tuple[int, ...]


@register.attack("halved-rows")
@dataclass(frozen=True)
class HalvedRows(Attack):
    """Return the rows, in bins, of all nodes whose rows are alike in every column and label.

    A sibling's sums are its parent's less the other's. Of rows that several trees isolate, as many
    are returned as one node had at most.
    """

    behaviours: ClassVar[tuple[str, ...]] = ("halving",)
    threats: ClassVar[tuple[str, ...]] = ("server:halving",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why rows do not follow from the sums, None if they do."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the rows, each with certainty."""
        if self.inapplicable(view):
            return Guess()
        cuts = next(m for _, m in view.messages(CutPoints))
        start = next(m for _, m in view.messages(BaseScore))
        alone: dict[Row, int] = {}
        for sums in _nodes(view):
            row, count = _alike(class_counts(sums, start), cuts.offsets, view.schema.complete)
            if count:
                alone[row] = max(alone.get(row, 0), count)
        rows = np.array([row for row, n in alone.items() for _ in range(n)], dtype=np.int64)
        rows = rows.reshape(-1, len(cuts.offsets))
        table = Table(_values(rows[:, :-1], cuts, view), rows[:, -1])
        return Guess((Records(table, np.ones(len(table))),), {"nodes_read": len(alone)})


def _nodes(view: View) -> Iterator[NDArray[np.int64]]:
    """Yield the sums of every node that was asked for, or whose sibling was."""
    known = sums_by_node(view)
    for _, m in view.messages(NodeSplits):
        for node, left in zip(m.nodes.tolist(), m.left.tolist(), strict=True):
            pair = (m.tree, left), (m.tree, left + 1)
            there = [at for at in pair if at in known]
            if (m.tree, node) in known and len(there) == 1:
                (other,) = {*pair} - {*there}
                known[other] = known[m.tree, node] - known[there[0]]
    yield from known.values()


def _alike(
    counts: NDArray[np.int64], offsets: NDArray[np.int32], complete: NDArray[np.bool_]
) -> tuple[Row, int]:
    """Return the one content of a node and how many rows have it; 0: several, or not all is told.

    `complete`: bool array, shape (d,). Columns in which no row lacks a value.
    """
    columns = np.split(counts, offsets[1:-1])
    count = max(int(column.sum()) for column in columns)
    if count < 1 or (counts < 0).any():
        return (), 0
    if any(c.sum() < count for c, whole in zip(columns, complete, strict=True) if whole):
        return (), 0
    row = []
    for column in columns:
        bins, label = np.nonzero(column)
        if len(bins) > 1 or (len(bins) and column[bins[0], label[0]] != count):
            return (), 0
        row.append(int(bins[0]) if len(bins) else -1)
        if len(bins):
            y = int(label[0])
    return (*row, y), count


def _values(bins: NDArray[np.int64], cuts: CutPoints, view: View) -> NDArray[np.float32]:
    """Return a value in every bin: its middle; the code, of a category."""
    X = np.full(bins.shape, np.nan, dtype=np.float32)
    for k in range(bins.shape[1]):
        values = cuts.values[cuts.offsets[k] : cuts.offsets[k + 1]]
        low, there = np.r_[cuts.minimum[k], values[:-1]], bins[:, k] >= 0
        middle = np.ceil(low) if view.schema.categorical[k] else low + (values - low) / 2
        X[there, k] = middle[bins[there, k]]
    return X
