"""Could a row that passes every test be a mixture of two people?"""

import math

import numpy as np

from fedtrees.attacks.peeling.rows import (
    CUT,
    DEFAULT_LEFT,
    FEATURE,
    LEFT,
    RIGHT,
    SET,
    BinnedForest,
    Ints,
    Residual,
    Sums,
    fits,
    goes_left,
    log_chance,
)
from fedtrees.core.compilation import inner_kernel, kernel

CHANCE = 1e-3  # of any of the rows being shown where it is not


def doubts(forest: BinnedForest, left: Residual, bins: Ints, cell: Ints, gh: Sums) -> Ints:
    """Count the features of rows that may belong to another person, int32, shape (m,).

    Two people who shared a path up to some tree have the same fingerprint there, so that a row
    may be mixed of both. But where a row's fingerprint shows alone in a bin, somebody has it, and
    so took the row's path in all trees before. Let t be the last such tree: that person's bins
    are among those which leave the path up to t the same and have room for the row up to t. (Under
    noise, what shows alone may be another; t is then the last tree from which on so many bins show
    it that all of them cannot be chance.) A
    feature is in doubt if that is true of more bins than the row's own; unless in some tree its
    bin holds this fingerprint and nothing else, and some feature shows that the node has no other
    row with this fingerprint: one bin has room for it, and for one only.
    """
    count = np.empty(len(bins), dtype=np.int32)
    needed = math.log(CHANCE / max(1, len(bins)))
    arrays = (left.sums, left.alone, left.slack, needed, bins, cell, gh, forest.columns(bins))
    _doubts(*arrays, forest.start, forest.nodes, forest.sets, forest.cell, forest.offsets, count)
    return count


@inner_kernel
def _only(sums, slack, c, k, g, h):  # type: ignore[no-untyped-def]
    """Tell whether a bin holds this row and nothing else."""
    return abs(sums[c, k, 1] - h) <= 2 * slack[c] and abs(sums[c, k, 0] - g) <= 2 * slack[c]


@inner_kernel
def _one_of_a_kind(sums, alone, slack, c, f, k, g, h, offsets):  # type: ignore[no-untyped-def]
    """Tell whether no bin of feature f but k, which holds only this row, has room for its like."""
    missing = offsets[offsets.shape[0] - 1] + f
    for b in range(offsets[f], offsets[f + 1]):
        if b != k and fits(sums, alone, slack, c, b, g, h):
            return False
    return missing == k or not fits(sums, alone, slack, c, missing, g, h)


@inner_kernel
def _settle(sums, alone, slack, needed, cell, columns, gh, offsets, i, settled):  # type: ignore[no-untyped-def]
    """Mark the features of row i that a node shows to belong to one person.

    Returns the last tree from which on bins that hold this row and nothing else are not all
    chance, but at odds of ``needed`` (nats); -1 if there is none.
    """
    last, seen = -1, 0.0
    for f in range(columns.shape[1]):
        settled[f] = False
    for t in range(cell.shape[1] - 1, -1, -1):
        c, g, h = cell[i, t], gh[i, t, 0], gh[i, t, 1]
        alone_here, unique = False, False
        for f in range(columns.shape[1]):
            k = np.int64(columns[i, f])
            if c >= 0 and not unique and _only(sums, slack, c, k, g, h):
                alone_here = True
                unique = _one_of_a_kind(sums, alone, slack, c, f, k, g, h, offsets)
        if alone_here:
            seen += log_chance(slack[c])
            if seen <= needed and last < 0:
                last = t
        if unique and seen <= needed:
            for f in range(columns.shape[1]):
                settled[f] = settled[f] or _only(sums, slack, c, np.int64(columns[i, f]), g, h)
    return last


@inner_kernel
def _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut):  # type: ignore[no-untyped-def]
    """Narrow the bins with which row i takes the same path: ``low`` to ``high``, if not ``shut``.

    In tree ``last`` the path ends where the histogram was seen, at cell ``stop``.
    """
    total = offsets[offsets.shape[0] - 1]
    for f in range(low.shape[0]):
        low[f], high[f] = 0, offsets[f + 1] - offsets[f] - 1
    for k in range(shut.shape[0]):
        shut[k] = False
    for t in range(last + 1):
        node = start[t]
        while nodes[node, FEATURE] >= 0 and not (t == last and cells[node] == stop):
            f = nodes[node, FEATURE]
            left = goes_left(nodes, sets, node, bins[i, f])
            if nodes[node, SET] >= 0:
                for b in range(offsets[f + 1] - offsets[f]):
                    k = offsets[f] + b
                    shut[k] = shut[k] or sets[nodes[node, SET], b] == left
            elif left:
                high[f] = min(high[f], nodes[node, CUT])
            else:
                low[f] = max(low[f], nodes[node, CUT] + 1)
            if (nodes[node, DEFAULT_LEFT] == 1) != left:
                shut[total + f] = True
            node = nodes[node, LEFT if left else RIGHT]


@inner_kernel
def _passes(sums, alone, slack, cell, i, last, k, gh):  # type: ignore[no-untyped-def]
    """Tell whether column k has room for row i in every tree up to the last."""
    for t in range(last + 1):
        c = cell[i, t]
        if c >= 0 and not fits(sums, alone, slack, c, k, gh[i, t, 0], gh[i, t, 1]):
            return False
    return True


@kernel
def _doubts(  # type: ignore[no-untyped-def]
    sums, alone, slack, needed, bins, cell, gh, columns, start, nodes, sets, cells, offsets, count
):
    d = bins.shape[1]
    total = offsets[d]
    low, high = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    settled, shut = np.empty(d, dtype=np.bool_), np.empty(sums.shape[1], dtype=np.bool_)
    for i in range(bins.shape[0]):
        last = _settle(sums, alone, slack, needed, cell, columns, gh, offsets, i, settled)
        stop = cell[i, max(last, 0)]
        _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut)
        n = 0
        for f in range(d):
            found = settled[f]
            # the missing stand before the first bin here
            for b in range(low[f] - 1, high[f] + 1):
                k = total + f if b < low[f] else offsets[f] + b
                if not found and k != columns[i, f] and not shut[k]:
                    found = _passes(sums, alone, slack, cell, i, last, k, gh)
            n += found and not settled[f]
        count[i] = n
