"""Between which values the rows of a column are, where splits and sides are told in clear."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.view import View
from fedtrees.messages.captured import BestSplits, PartitionBits
from fedtrees.messages.vertical import TreeColumns

Values = NDArray[np.float32]


def column_owners(view: View) -> dict[int, str]:
    """Return the party of every column that splits are told of and no principal has."""
    telling = {m.owner for _, m in view.messages(BestSplits)} - set(view.principals)
    told = (m for _, m in view.messages(TreeColumns) if m.party in telling)
    return {c: m.party for m in told for c in m.columns.tolist()}


def rows_told(view: View) -> int:
    """Return how many rows there are; off a capture, as many as sides are told of."""
    return next((len(m.left) for _, m in view.messages(PartitionBits)), view.n_rows)


def value_ends(view: View) -> dict[int, tuple[Values, Values]]:
    """Return the ends that splits leave the values of others' columns, by column.

    Everybody is told the best splits of all and which rows go left (`BestSplits`,
    `PartitionBits`): of every split that was taken, rows on the left are below its threshold and
    those on the right are not.

    Returns: float32 arrays, shape (N,): least value, infinite where none is known, and the one that
    the value is below; NaN of rows that have none.
    """
    owners, n = column_owners(view), rows_told(view)
    found: dict[int, tuple[Values, Values]] = {}
    for column, threshold, left, right, without in _splits(view):
        if column not in owners:
            continue
        if column not in found:
            found[column] = np.full(n, -np.inf, np.float32), np.full(n, np.inf, np.float32)
        low, high = found[column]
        high[left] = np.minimum(high[left], threshold)
        low[right] = np.maximum(low[right], threshold)
        low[without] = high[without] = np.nan
    return found


def rank_ends(low: Values, high: Values) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest rank, 0 to 1, of rows between `low` and `high`."""
    there = ~np.isnan(low)
    n = max(int(there.sum()), 1)
    below = np.searchsorted(np.sort(high[there]), low, side="right") / n
    above = np.searchsorted(np.sort(low[there]), high, side="left") / n
    return np.where(there, below, 0.0), np.where(there, above, 1.0)


def _splits(
    view: View,
) -> Iterator[tuple[int, np.float32, NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Yield column, threshold, rows on the left, on the right, and without a value of splits."""
    best: dict[tuple[int, int], dict[int, BestSplits]] = {}
    sides: dict[tuple[int, int], dict[str, PartitionBits]] = {}
    held = {m.party: m.columns for _, m in view.messages(TreeColumns)}
    for _, m in view.messages(BestSplits):
        best.setdefault((m.round, m.level), {})[m.first] = m
    for _, bits in view.messages(PartitionBits):
        sides.setdefault((bits.round, bits.level), {})[bits.owner] = bits
    nodes: dict[int, NDArray[np.intp]] = {}
    for (round, level), parts in sorted(best.items()):
        if level == 0:
            nodes, count = {0: np.arange(rows_told(view))}, 1
        told = [parts[first] for first in sorted(parts)]
        said = sides.get((round, level), {})
        if not said or not set(told[0].node.tolist()) <= set(nodes):
            nodes = {}
            continue
        winner = np.stack([m.gain for m in told]).argmax(axis=0)
        foreign = np.any([bits.missing for bits in said.values()], axis=0)
        children: dict[int, NDArray[np.intp]] = {}
        for k, node in enumerate(told[0].node.tolist()):
            m, rows = told[winner[k]], nodes[node]
            if m.owner not in said or not foreign[rows].all():
                continue  # others say of every row of a split node that they lack the column
            left, without = said[m.owner].left[rows], said[m.owner].missing[rows]
            column = int(held[m.owner][m.feature[k] - m.first])
            yield (column, m.threshold[k], rows[left & ~without], rows[~left & ~without],
                   rows[without])  # fmt: skip
            goes = np.where(without, bool(m.default_left[k]), left)
            children[count], children[count + 1] = rows[goes], rows[~goes]
            count += 2
        nodes = children
