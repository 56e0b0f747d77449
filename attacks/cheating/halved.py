"""`halved-rows`: the server reads rows off nodes in which a row, or equal ones, are alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.cheating.counts import unreadable
from fedtrees.attacks.cheating.lone import lone_rows
from fedtrees.attacks.cheating.nodes import Grown, Nodes, Row, rows_alike, unmoved_trees
from fedtrees.attacks.evidence.laws import cell_variance, law_of_rows, law_of_sums, reach_of
from fedtrees.attacks.evidence.replay import hides
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, CutPoints, Histogram


@register.attack("halved-rows")
@dataclass(frozen=True)
class HalvedRows(Attack):
    """Return the rows, in bins, of nodes whose rows of one label are alike in every column.

    A sibling's sums are its parent's less the other's. Where rows that are read go follows from
    their bins: they are taken out of all nodes, and what is left is looked at again. Through noise
    nodes of one row are read, as far as this is as good as certain.
    """

    claims = (Records,)

    behaviours: ClassVar[tuple[str, ...]] = ("halving",)
    threats: ClassVar[tuple[str, ...]] = ("server:halving",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why rows do not follow from the sums, None if they do."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the rows, each with certainty."""
        if why := self.inapplicable(view):
            return Guess.none(why)
        cuts = next(m for _, m in view.messages(CutPoints))
        start = next(m for _, m in view.messages(BaseScore))
        grown = unmoved_trees(view, cuts.offsets)
        if not _exact(view, start):
            alone = _lone(view, grown, start, cuts)
            return Guess.of((alone,), otherwise=Reason("no-certain-rows"))
        trees = [tree.nodes(start, cuts.offsets) for tree in grown]
        # rows that are sampled are not the same in all trees
        apart = float(view.parameters.get("subsample", 1)) < 1
        read: dict[Row, int] = {}
        for group in [[tree] for tree in trees] if apart else [trees]:
            for row, count in _read(group, cuts.offsets).items():
                read[row] = max(read.get(row, 0), count)
        rows = np.array([row for row, n in read.items() for _ in range(n)], dtype=np.int64)
        rows = rows.reshape(-1, len(cuts.offsets))
        table = Table(_values(rows[:, :-1], cuts, view), rows[:, -1])
        rows_read, notes = Records(table, np.ones(len(table))), {"different_rows": len(read)}
        return Guess.of((rows_read,), notes, otherwise=Reason("no-certain-rows"))


def _lone(view: View, grown: list[Grown], start: BaseScore, cuts: CutPoints) -> Records:
    """Return the rows that noise leaves all but certain."""
    clients = sum(role == "client" for role in view.roles.values())
    law = None if hides(view.changes(Histogram, "sums", "client")) else law_of_sums(view, clients)
    if law is None or law_of_rows(view) is not None:
        return Records(Table.empty(view.schema), np.zeros(0))
    noise, complete = np.array(cell_variance(law)), view.schema.complete
    rows, sure = lone_rows(grown, start, cuts.offsets, noise, complete)
    return Records(Table(_values(rows[:, :-1], cuts, view), rows[:, -1]), sure)


def _exact(view: View, start: BaseScore) -> bool:
    """Tell whether sums are near enough to count rows by them."""
    if hides(view.changes(Histogram, "sums", "client")) or law_of_rows(view) is not None:
        return False
    clients = sum(role == "client" for role in view.roles.values())
    n_summands = np.array([clients * int(view.parameters["max_depth"])])
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    off = reach_of(law_of_sums(view), n_summands, (start.g_bits, start.h_bits))
    return bool(off[0] < p * (1 - p) / 2)


def _read(trees: list[Nodes], offsets: NDArray[np.int32]) -> dict[Row, int]:
    """Return the rows that are alone in a node, or are once others are taken out.

    None where sums contradict one another: then not all of them are of the same rows.
    """
    read: dict[Row, int] = {}
    while count_of_row := dict(rows_alike(trees, offsets)):
        for row, count in count_of_row.items():
            read[row] = read.get(row, 0) + count
            for nodes in trees:
                nodes.take_out(row, count, offsets)
        if any((nodes.sizes < 0).any() or (nodes.counts < 0).any() for nodes in trees):
            return {}
    return read


def _values(bins: NDArray[np.int64], cuts: CutPoints, view: View) -> NDArray[np.float32]:
    """Return a value in every bin: its middle; the code, of a category."""
    X = np.full(bins.shape, np.nan, dtype=np.float32)
    for k in range(bins.shape[1]):
        values = cuts.values[cuts.offsets[k] : cuts.offsets[k + 1]]
        low, present = np.r_[cuts.minimum[k], values[:-1]], bins[:, k] >= 0
        middle = np.ceil(low) if view.schema.categorical[k] else low + (values - low) / 2
        X[present, k] = middle[bins[present, k]]
    return X
