"""`split-ordering`: what splits and routed rows tell of the order of rows in others' columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.attack import Attack
from fedtrees.core.guess import ColumnRanks, Guess
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.vertical import BinCounts, ChosenSplits, OpenedBinSums, replayed


@dataclass(frozen=True, eq=False)
class Told:
    """What a view tells of one column: rows have bins from ``low`` to ``high``."""

    owner: str
    low: NDArray[np.int64]
    high: NDArray[np.int64]


@register.attack("split-ordering")
@dataclass(frozen=True, kw_only=True)
class SplitOrdering(Attack):
    """Bound every row's bin in a column by the splits of that column that it came by.

    Luo et al. 2021 (Sec. IV, path restriction) bound values by the paths that fit a prediction. The
    active party need not guess paths: owners told it who goes left at each split. All splits of a
    column, over all trees, leave a row an interval of bins. Bins are quantiles, and how many rows
    are in each is known from the sums that were opened at roots; so it is an interval of ranks, and
    its middle is the guess.
    """

    def inapplicable(self, view: View) -> str | None:
        """Return why no split of others was made for the principals, None if one was."""
        if not _bounds(view):
            return "others told the principals of no split of their columns"
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return ranks of the rows in every column that was split."""
        claims = []
        for column, told in sorted(_bounds(view).items()):
            ends = cumulative(view, column, int(told.high.max()) + 1)
            low, high = ends[told.low], ends[told.high + 1]
            ids = view.own[0].ids
            claims.append(ColumnRanks(told.owner, column, ids, (low + high) / 2, low, high))
        return Guess(tuple(claims))


def _bounds(view: View) -> dict[int, Told]:
    """Return what splits tell of the columns of others."""
    own = {int(c) for held in view.own for c in held.columns}
    bins: dict[int, tuple[str, int]] = {}
    for _, counts in view.messages(BinCounts):
        for column, n in zip(counts.columns.tolist(), counts.n_bins.tolist(), strict=True):
            bins[column] = (counts.party, n)
    found: dict[int, Told] = {}
    for column, bin, rows, side in _sides(view):
        if column in own or column not in bins:
            continue
        owner, n = bins[column]
        if column not in found:
            whole = np.zeros(view.n_rows, dtype=np.int64)
            found[column] = Told(owner, whole, whole + n - 1)
        told = found[column]
        if side:
            told.high[rows] = np.minimum(told.high[rows], max(bin, 0))
        elif bin >= 0:
            told.low[rows] = np.maximum(told.low[rows], bin + 1)
    for told in found.values():  # a missing value went where it was sent, and has no bin
        np.minimum(told.low, told.high, out=told.low)
    return found


def _sides(view: View) -> Iterator[tuple[int, int, NDArray[np.int32], bool]]:
    """Yield column, bin, rows and whether these went left, of every split that was asked for."""
    trees = replayed(view)
    for _, m in view.messages(ChosenSplits):
        known = set(trees[m.tree].nodes) if m.tree in trees else set()
        for left, column, bin in zip(m.left, m.columns, m.bins, strict=True):
            if int(left) in known:
                for child in (int(left), int(left) + 1):
                    rows = trees[m.tree].rows_of(child)
                    yield int(column), int(bin), rows, child == int(left)


def cumulative(view: View, column: int, bins: int) -> NDArray[np.float64]:
    """Return the share of rows before each bin, float64, shape (bins + 1,).

    From the sums at the first root that were opened for the column: of hessians, which are equal
    before the first tree, or of class counts. Where there are none, bins are taken as even.
    """
    widths = {}
    for _, counts in view.messages(BinCounts):
        widths |= dict(zip(counts.columns.tolist(), counts.n_bins.tolist(), strict=True))
    for _, m in view.messages(OpenedBinSums):
        if m.nodes[0] != 0 or column not in m.columns:
            continue
        place = m.columns.tolist().index(column)
        start = sum(widths[c] for c in m.columns[:place].tolist())
        sums = m.sums[0, start : start + widths[column]].astype(np.float64)
        boosted = "objective" in view.parameters
        rows = sums[:, 1::2].sum(axis=1) if boosted else sums.sum(axis=1)
        if rows.sum() > 0:
            return np.concatenate([[0.0], np.cumsum(rows) / rows.sum()])
    return np.linspace(0, 1, bins + 1)
