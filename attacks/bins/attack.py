"""`linear-reconstruction`: the active party reads others' bins off the sums that it opens."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.bins.changed import shares_of_changed
from fedtrees.attacks.bins.feasible import MOST_ROWS, Told, told_of_open
from fedtrees.attacks.bins.likely import likely_shares, middles, rank_interval, ranks_of
from fedtrees.attacks.bins.sums import columns_of
from fedtrees.attacks.evidence.subsets import Certain, Column, certain_bins
from fedtrees.attacks.orders.expected import expected_ranks, what_is_known
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Claim, ColumnBins, ColumnRanks, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import OpenedBinSums, OwnRowStatistics

#: How far rows are ranked by a regression that sums move, and not by their shares in bins: few sums
#: leave shares open (breast cancer, 5 trees of a forest, three seeds: .817 by shares, .872 by the
#: regression, .865 by both), many do not (20 trees: .923, .944, .953).
EXPECTED = 2 / 3


@register.attack("linear-reconstruction")
@dataclass(frozen=True)
class LinearReconstruction(Attack):
    """Solve, over all trees, for the bin that every row of another party's column is in.

    The active party opens what the rows of a node bring to every bin of a column, and knows what
    each of its rows brings: one linear equation in who is in the bin, at every node of every tree,
    as in linear reconstruction (Dinur and Nissim 2003; Dwork, McSherry and Talwar 2007). It asks
    for nothing that the protocol does not. Equations are of whole numbers, so that at small nodes
    they are subset sums with few solutions: what follows from these is certain. What is left open
    is solved for together, by shares of rows in bins (`fedtrees.attacks.bins.feasible`); where
    sums tell several rows not apart, own columns and labels say which is likelier.
    """

    claims = (ColumnBins, ColumnRanks)

    numbers: ClassVar[bool] = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why no sums were opened whose rows are known, None if some were."""
        if not any(isinstance(s.message, OwnRowStatistics) for s in view.seen):
            return Reason("no-row-gradients")
        if not any(isinstance(s.message, OpenedBinSums) for s in view.seen):
            return Reason("no-opened-sums")
        if view.parameters.get("candidates", "global") != "global":
            return Reason("bins-per-node", use="split-ordering")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return bins and ranks of all rows in every column that sums were opened of."""
        if self.inapplicable(view):
            return Guess.none(self.inapplicable(view) or Reason("no-opened-sums"))
        ids, known_features, claims = view.own[0].ids, what_is_known(view), list[Claim]()
        sure = cells = 0
        changes = view.changes(OpenedBinSums, "sums")
        unit = next(m.unit_of("sums")[0] for _, m in view.messages(OpenedBinSums))
        for column in columns_of(view):
            if changes:
                allowed = column.allowed
                certain, shares_told = Certain(np.full(len(allowed), -1), allowed), None
                shares = shares_of_changed(column, changes, unit, sweeps=0)
                shares *= np.where(
                    allowed, likely_shares(known_features, shares, allowed, None), 0.0
                )
                shares /= shares.sum(axis=1, keepdims=True)
            else:
                certain = certain_bins(column)
                shares, shares_told = _read(column, certain, known_features)
            sure, cells = sure + int((certain.bin >= 0).sum()), cells + len(certain.bin)
            bin = shares.argmax(axis=1)
            bin[bin == shares.shape[1] - 1] = -1
            whose = column.owner, column.position, ids
            ends, rank = ranks_of(shares)
            low, high = rank_interval(ends, certain.allowed)
            if shares_told is not None:
                by_rank = partial(shares_told.moved, middle=middles(ends))
                expected = expected_ranks(known_features, low, high, by_rank)
                rank += EXPECTED * (expected - rank)
            claims.append(ColumnBins(*whose, bin))
            claims.append(ColumnRanks(*whose, np.clip(rank, low, high), low, high))
        notes = {"bins_certain": sure / cells} if cells else {}
        return Guess.of(claims, notes, otherwise=Reason("no-opened-sums"))


def _read(
    column: Column, certain: Certain, known_features: NDArray[np.float64]
) -> tuple[NDArray[np.float64], Told | None]:
    """Return the shares of all rows in bins that keep to sums, (N, B + 1), and what these say."""
    open = certain.bin < 0
    shares = certain.allowed / certain.allowed.sum(axis=1, keepdims=True)
    if not open.any():
        return shares, None
    open_shares = None
    if np.count_nonzero(open) <= MOST_ROWS:
        open_shares = told_of_open(column, certain)
        shares[open] = open_shares.nearest(open_shares.even)
    likely = np.where(
        certain.allowed, likely_shares(known_features, shares, certain.allowed, open_shares), 0.0
    )
    likely /= likely.sum(axis=1, keepdims=True)
    shares[open] = likely[open] if open_shares is None else open_shares.nearest(likely[open])
    return shares, open_shares
