"""Decide whether a row that passes all tests may be a mixture of two persons."""

from __future__ import annotations

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

CHANCE = 1e-3  # probability that any of the rows is shown by accident


def doubts(forest: BinnedForest, left: Residual, bins: Ints, cell: Ints, gh: Sums) -> Ints:
    """Count the features of rows that may belong to another person, int32, shape (m,).

    Two persons with the same path up to a tree have the same fingerprint there, so that a row may
    be a mixture of both. But if a row's fingerprint is the only content of a bin, a person has it,
    and took the row's path in all trees before. Let t be the last such tree. This person's bins are
    among those which leave the path up to t unchanged and have room for the row up to t. (Under
    noise, the content may be another row. Then t is the last tree from which on so many bins show
    it that they cannot all be accidental.)

    A feature is doubtful if this is true of other bins than the row's, with one exception: in some
    tree its bin contains exactly this fingerprint, and some feature shows that the node has no
    other row with this fingerprint, because only one bin has room for it, and only for one.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Remaining sums.
    bins : int32 array, shape (m, d)
        Rows.
    cell : int32 array, shape (m, T)
        Their cells.
    gh : int64 array, shape (m, T, 2)
        Their gradients.
    """
    count = np.empty(len(bins), dtype=np.int32)
    needed = math.log(CHANCE / max(1, len(bins)))
    arrays = (left.sums, left.alone, left.slack, needed, bins, cell, gh, forest.columns(bins))
    _doubts(*arrays, forest.start, forest.nodes, forest.sets, forest.cell, forest.offsets, count)
    return count


@inner_kernel
def _only(sums, slack, c, k, g, h):  # type: ignore[no-untyped-def]
    """Return whether a bin contains this row and nothing else."""
    return abs(sums[c, k, 1] - h) <= 2 * slack[c] and abs(sums[c, k, 0] - g) <= 2 * slack[c]


@inner_kernel
def _one_of_a_kind(sums, single, slack, c, f, k, g, h, offsets):  # type: ignore[no-untyped-def]
    """Return whether only bin k of feature f, which contains only this row, has room for it."""
    missing = offsets[offsets.shape[0] - 1] + f
    for b in range(offsets[f], offsets[f + 1]):
        if b != k and fits(sums, single, slack, c, b, g, h):
            return False
    return missing == k or not fits(sums, single, slack, c, missing, g, h)


@inner_kernel
def _settle(sums, single, slack, needed, cell, columns, gh, offsets, i, is_proven):  # type: ignore[no-untyped-def]
    """Mark the features of row i that a node proves to belong to one person.

    The result is the last tree from which on bins with exactly this row cannot all be accidental,
    at log odds of ``needed`` (nats). It is -1 if there is none.
    """
    last, seen = -1, 0.0
    for f in range(columns.shape[1]):
        is_proven[f] = False
    for t in range(cell.shape[1] - 1, -1, -1):
        c, g, h = cell[i, t], gh[i, t, 0], gh[i, t, 1]
        alone_here, unique = False, False
        for f in range(columns.shape[1]):
            k = np.int64(columns[i, f])
            if c >= 0 and not unique and _only(sums, slack, c, k, g, h):
                alone_here = True
                unique = _one_of_a_kind(sums, single, slack, c, f, k, g, h, offsets)
        if alone_here:
            seen += log_chance(slack[c])
            if seen <= needed and last < 0:
                last = t
        if unique and seen <= needed:
            for f in range(columns.shape[1]):
                is_proven[f] = is_proven[f] or _only(sums, slack, c, np.int64(columns[i, f]), g, h)
    return last


@inner_kernel
def _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut):  # type: ignore[no-untyped-def]
    """Find the bins with which row i takes the same path: ``low`` to ``high``, unless ``shut``.

    In tree ``last`` the path ends at cell ``stop``, where the histogram was seen.
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
def _passes(sums, single, slack, cell, i, last, k, gh):  # type: ignore[no-untyped-def]
    """Return whether column k has room for row i in every tree up to the last."""
    for t in range(last + 1):
        c = cell[i, t]
        if c >= 0 and not fits(sums, single, slack, c, k, gh[i, t, 0], gh[i, t, 1]):
            return False
    return True


@kernel
def _doubts(  # type: ignore[no-untyped-def]
    sums, single, slack, needed, bins, cell, gh, columns, start, nodes, sets, cells, offsets, count
):
    d = bins.shape[1]
    total = offsets[d]
    low, high = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    is_proven, shut = np.empty(d, dtype=np.bool_), np.empty(sums.shape[1], dtype=np.bool_)
    for i in range(bins.shape[0]):
        last = _settle(sums, single, slack, needed, cell, columns, gh, offsets, i, is_proven)
        stop = cell[i, max(last, 0)]
        _same_way(start, nodes, sets, cells, offsets, bins, i, stop, last, low, high, shut)
        n = 0
        for f in range(d):
            is_doubtful = is_proven[f]
            # missing values come before the first bin here
            for b in range(low[f] - 1, high[f] + 1):
                k = total + f if b < low[f] else offsets[f] + b
                if not is_doubtful and k != columns[i, f] and not shut[k]:
                    is_doubtful = _passes(sums, single, slack, cell, i, last, k, gh)
            n += is_doubtful and not is_proven[f]
        count[i] = n
