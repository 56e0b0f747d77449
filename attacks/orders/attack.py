"""`split-ordering`: what splits and routed rows tell of the order of rows in others' columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.told_sides import column_owners, rank_ends, value_ends
from fedtrees.attacks.orders.expected import better_ranks, common_ranks, what_is_known
from fedtrees.core.attack import Attack
from fedtrees.core.guess import ColumnRanks, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.guessing.names import likest
from fedtrees.messages.vertical import BinCounts, ChosenSplits, OpenedBinSums, replayed


@dataclass(frozen=True, eq=False)
class Told:
    """What a view tells of one column: where the ranks of its rows are, 0 to 1."""

    owner: str
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@register.attack("split-ordering")
@dataclass(frozen=True, kw_only=True)
class SplitOrdering(Attack):
    """Bound every row's bin in a column by the splits of that column that it came by.

    Luo et al. 2021 (Sec. IV, path restriction) bound values by the paths that fit a prediction. The
    active party need not guess paths: owners told it who goes left at each split. All splits of a
    column, over all trees, leave a row an interval of bins. How many rows are in a bin is known
    from the sums that were opened at roots; so it is an interval of ranks. Where in it, own columns
    and labels say, or the own column of the likest name where splits bear it out
    (`better_ranks`); a column without a split is guessed by that name, or in the order that own
    columns and split ones have in common. Sums tell more (`linear-reconstruction`).

    `own_columns`: Whether they do; else the guess is the middle of the interval.
    """

    claims = (ColumnRanks,)

    numbers: ClassVar[bool] = True

    own_columns: bool = True

    def inapplicable(self, view: View) -> Reason | None:
        """Return why no split of others was made for the principals, None if one was."""
        if not view.own or not _bounds(view):
            return Reason("no-splits")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return ranks of the rows in every column that was split."""
        bounds, claims = _bounds(view), []
        if not bounds:
            return Guess.none(Reason("no-splits"))
        ids, known = view.own[0].ids, what_is_known(view)
        own, by_name = [int(c) for held in view.own for c in held.columns], 0
        for column, at in sorted(bounds.items()):
            rank = (at.low + at.high) / 2
            if self.own_columns:
                alone = known[:, [likest(view.schema, own, column)]] if own else known
                rank, named = better_ranks(known, alone, at.low, at.high)
                by_name += 1 if named else -1
            claims.append(ColumnRanks(at.owner, column, ids, rank, at.low, at.high))
        if self.own_columns:
            common = common_ranks(np.column_stack([known, *(c.rank - 0.5 for c in claims)]))
            whole = np.ones(len(ids))
            for column, owner in sorted(owners_of_others(view).items()):
                if column not in bounds:
                    order = common
                    if by_name > 0:
                        order = known[:, likest(view.schema, own, column)] + 0.5
                    claims.append(ColumnRanks(owner, column, ids, order, 0 * whole, whole))
        return Guess.of(claims, otherwise=Reason("no-splits"))


def _bounds(view: View) -> dict[int, Told]:
    """Return what splits tell of the columns of others.

    Where bins are each node's own, a split still tells that rows on the right have as many rows
    below them as are on its left, and the other way round.
    """
    owners = owners_of_others(view)
    shares = cumulative(view)
    found: dict[int, Told] = {}
    for split in _splits(view):
        if split.column not in owners:
            continue
        if split.column not in found:
            whole = np.zeros(view.n_rows)
            found[split.column] = Told(owners[split.column], whole, whole + 1)
        told, n = found[split.column], view.n_rows
        below, above = len(split.left) / n, 1 - len(split.right) / n
        if split.column in shares:
            below = above = float(shares[split.column][max(split.bin, -1) + 1])
        told.high[split.left] = np.minimum(told.high[split.left], above)
        told.low[split.right] = np.maximum(told.low[split.right], below)
    for column, ends in value_ends(view).items():
        found[column] = Told(owners[column], *rank_ends(*ends))
    for told in found.values():  # a missing value went where it was sent, and has no rank
        np.minimum(told.low, told.high, out=told.low)
    return found


def owners_of_others(view: View) -> dict[int, str]:
    """Return who told of the bins or splits of a column that no principal has, by column."""
    own = {int(c) for held in view.own for c in held.columns}
    told = ((int(c), m.party) for _, m in view.messages(BinCounts) for c in m.columns)
    return {c: party for c, party in told if c not in own} | column_owners(view)


@dataclass(frozen=True, eq=False)
class Split:
    """A split that was asked for: the rows on either side."""

    column: int
    bin: int
    left: NDArray[np.int32]
    right: NDArray[np.int32]


def _splits(view: View) -> Iterator[Split]:
    """Yield the splits that the principals asked for and were answered."""
    trees = replayed(view)
    for _, m in view.messages(ChosenSplits):
        known = set(trees[m.tree].nodes) if m.tree in trees else set()
        for left, column, bin in zip(m.left.tolist(), m.columns, m.bins, strict=True):
            if left in known:
                sides = (trees[m.tree].rows_of(child) for child in (left, left + 1))
                yield Split(int(column), int(bin), *sides)


def cumulative(view: View) -> dict[int, NDArray[np.float64]]:
    """Return the share of rows up to each bin of a column, float64, (bins + 1,), first 0.

    From the first sums that were opened at a root: of hessians, which are equal before the first
    tree, or of class counts. Empty where bins are each node's own, or sums are changed.
    """
    found: dict[int, NDArray[np.float64]] = {}
    global_bins = view.parameters.get("candidates", "global") == "global"
    if not global_bins or view.changes(OpenedBinSums, "sums"):
        return found
    forest = "reg_lambda" not in view.parameters
    widths: dict[int, int] = {}
    for _, counts in view.messages(BinCounts):
        widths |= dict(zip(counts.columns.tolist(), counts.n_bins.tolist(), strict=True))
    for _, m in view.messages(OpenedBinSums):
        if len(m.nodes) != 1 or m.nodes[0] != 0:
            continue
        ends = np.cumsum([0, *(widths[c] for c in m.columns.tolist())])
        for column, a, b in zip(m.columns.tolist(), ends[:-1], ends[1:], strict=True):
            sums = m.sums[0, a:b].astype(np.float64)
            rows = sums.sum(axis=1) if forest else sums[:, 1]
            total = np.cumsum(rows)
            if column not in found and len(total) and total[-1] > 0:
                found[column] = np.concatenate([[0.0], total / total[-1]])
    return found
