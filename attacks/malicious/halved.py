"""Attack `halved-rows`: reconstruct rows that a malicious server isolated in tree nodes.

The adversary is the server of `fedtrees.protocols.behaviours.horizontal.Halving`. It announces
splits after which many nodes contain a single row, and receives the gradient histogram of each
node. The histogram of a single row shows its bin in every column and its label. Secure aggregation
does not prevent the attack, because the splits isolate rows among the rows of all clients.

The attack uses the trees that were grown while all predictions still equal the base score, so that
class counts follow from gradient sums. `nodes` rebuilds trees and class counts from the messages of
the view, and `isolated` estimates single rows if the sums contain noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.malicious.isolated import lone_rows
from fedtrees.attacks.malicious.nodes import (
    Nodes,
    Row,
    TreeSums,
    rows_alike,
    unmoved_trees,
    unreadable,
)
from fedtrees.attacks.observations.replay import (
    cell_variance,
    hides,
    law_of_rows,
    law_of_sums,
    reach_of,
)
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import BaseScore, CutPoints, Histogram


@register.attack("halved-rows")
@dataclass(frozen=True)
class HalvedRows(Attack):
    """Reconstruct the rows that the splits of a malicious server isolate.

    If all class counts can be recovered exactly (`_exact`), the attack is a peeling decoder. It
    searches for nodes in which all rows of one class have the same bin in every column, for example
    a node with a single row. The histogram determines these rows, and the decoder subtracts them
    from every node that they reach in any tree. The search is repeated until it finds no such node.

    If noise prevents exact counts, the attack returns only rows that are isolated in a node, with a
    posterior probability of at least 0.999 (`isolated.SURE`). Only two classes are supported.

    Notes
    -----
    The server does not need a histogram from both children of a split. The histogram of the second
    child is the difference between those of the parent and of the first child.
    """

    claims = (Records,)

    behaviours: ClassVar[tuple[str, ...]] = ("halving",)
    threats: ClassVar[tuple[str, ...]] = ("server:halving",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why class counts cannot be computed from the view, None if they can."""
        return unreadable(view)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Reconstruct rows from a view.

        Parameters
        ----------
        view : View
            Messages that the malicious server received and sent.
        rng : numpy.random.Generator
            Not used. The attack is deterministic.

        Returns
        -------
        guess : Guess
            Reconstructed rows with their labels (`Records`). Each value represents its bin. Rows
            from exact sums have confidence 1, and the diagnostic ``different_rows`` counts the
            distinct ones.
        """
        if reason := self.inapplicable(view):
            return Guess.none(reason)
        cuts = next(m for _, m in view.messages(CutPoints))
        base_score = next(m for _, m in view.messages(BaseScore))
        grown = unmoved_trees(view, cuts.offsets)
        if not _exact(view, base_score):
            isolated = _lone(view, grown, base_score, cuts)
            return Guess.of((isolated,), otherwise=Reason("no-certain-rows"))
        trees = [tree.nodes(base_score, cuts.offsets) for tree in grown]
        # Peeling subtracts a row from all trees of a group. Under row subsampling a row is missing
        # from some trees, so that each tree is then a group by itself.
        subsampled = float(view.parameters.get("subsample", 1)) < 1
        multiplicity: dict[Row, int] = {}
        for group in [[tree] for tree in trees] if subsampled else [trees]:
            for row, count in _read(group, cuts.offsets).items():
                # Several groups can yield the same row. Take the maximum, because the sum would
                # count it twice.
                multiplicity[row] = max(multiplicity.get(row, 0), count)
        rows = np.array([row for row, n in multiplicity.items() for _ in range(n)], dtype=np.int64)
        rows = rows.reshape(-1, len(cuts.offsets))
        table = Table(_values(rows[:, :-1], cuts, view), rows[:, -1])
        rows_read = Records(table, np.ones(len(table)))
        notes = {"different_rows": len(multiplicity)}
        return Guess.of((rows_read,), notes, otherwise=Reason("no-certain-rows"))


def _lone(view: View, grown: list[TreeSums], start: BaseScore, cuts: CutPoints) -> Records:
    """Estimate isolated rows from noisy sums, with the posterior probability of each row.

    The result is empty if a defense suppresses bins or changes the gradients of single rows,
    because the likelihood then is unknown.
    """
    clients = sum(role == "client" for role in view.roles.values())
    law = None if hides(view.changes(Histogram, "sums", "client")) else law_of_sums(view, clients)
    if law is None or law_of_rows(view) is not None:
        return Records(Table.empty(view.schema), np.zeros(0))
    noise, complete = np.array(cell_variance(law)), view.schema.complete
    rows, sure = lone_rows(grown, start, cuts.offsets, noise, complete)
    return Records(Table(_values(rows[:, :-1], cuts, view), rows[:, -1]), sure)


def _exact(view: View, start: BaseScore) -> bool:
    """Return whether every class count can be recovered from its sums by rounding."""
    if hides(view.changes(Histogram, "sums", "client")) or law_of_rows(view) is not None:
        return False
    clients = sum(role == "client" for role in view.roles.values())
    # The sums of a node are those of the root minus one sibling per level. Each client therefore
    # contributes at most `max_depth` noisy histograms to them.
    n_summands = np.array([clients * int(view.parameters["max_depth"])])
    p = 1 / (1 + np.exp(-float(start.margin[0])))
    max_error = reach_of(law_of_sums(view), n_summands, (start.g_bits, start.h_bits))
    # Each row adds p (1 - p) to a sum of hessians. Rounding to a multiple of this step is correct
    # if the error is below half a step.
    return bool(max_error[0] < p * (1 - p) / 2)


def _read(trees: list[Nodes], offsets: NDArray[np.int32]) -> dict[Row, int]:
    """Reconstruct rows from exact class counts with a peeling decoder.

    The function subtracts the reconstructed rows from `trees` in place and returns the multiplicity
    of each row. The result is empty if the trees contradict one another, because they were then
    grown on different rows.
    """
    multiplicity: dict[Row, int] = {}
    # Equal rows reach the same node of a tree, so that every node in which a row is found has the
    # same count of it.
    while count_of_row := dict(rows_alike(trees, offsets)):
        for row, count in count_of_row.items():
            multiplicity[row] = multiplicity.get(row, 0) + count
            for nodes in trees:
                nodes.take_out(row, count, offsets)
        if any((nodes.sizes < 0).any() or (nodes.counts < 0).any() for nodes in trees):
            return {}
    return multiplicity


def _values(bins: NDArray[np.int64], cuts: CutPoints, view: View) -> NDArray[np.float32]:
    """Return one value per bin, float32, same shape: the centre, or the code of a category."""
    X = np.full(bins.shape, np.nan, dtype=np.float32)
    for k in range(bins.shape[1]):
        values = cuts.values[cuts.offsets[k] : cuts.offsets[k + 1]]
        low, present = np.r_[cuts.minimum[k], values[:-1]], bins[:, k] >= 0
        # The bin of category c starts at c. Only the first bin may start slightly below its code 0,
        # which rounding up corrects.
        middle = np.ceil(low) if view.schema.categorical[k] else low + (values - low) / 2
        X[present, k] = middle[bins[present, k]]
    return X
