"""Could a row that passes every test be a mixture of two people?"""

from __future__ import annotations

import numpy as np

from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual, Sums, fits
from fedtrees.trees.jit import kernel


def doubts(forest: BinnedForest, left: Residual, bins: Ints, cell: Ints, gh: Sums) -> Ints:
    """Count the features of rows that may belong to another person, int32, shape (m,).

    Two people who shared a path up to some tree have the same fingerprint there. A row mixed of
    both can pass every test in all trees if it differs from either where histograms have room.

    A feature is beyond doubt if no other bin of it would pass every test alike; or if, in some
    tree, its bin holds this fingerprint and nothing else, and some feature shows that the node
    has no other row with this fingerprint: one bin has room for it, and for one only.
    """
    count = np.empty(len(bins), dtype=np.int32)
    nodes = (forest.feature, forest.cut, forest.left, forest.right, forest.default_left)
    _doubts(
        left.sums,
        left.alone,
        left.slack,
        bins,
        cell,
        gh,
        forest.columns(bins),
        forest.start,
        *nodes,
        forest.offsets,
        count,
    )
    return count


@kernel
def _only(sums, slack, c, k, g, h):  # type: ignore[no-untyped-def]
    """Tell whether a bin holds this row and nothing else."""
    return abs(sums[c, k, 1] - h) <= 2 * slack and abs(sums[c, k, 0] - g) <= 2 * slack


@kernel
def _one_of_a_kind(sums, alone, slack, c, f, k, g, h, offsets):  # type: ignore[no-untyped-def]
    """Tell whether no bin of feature f but k, which holds only this row, has room for its like."""
    d = offsets.shape[0] - 1
    for b in range(offsets[f], offsets[f + 1]):
        if b != k and fits(sums, alone, slack, c, b, g, h):
            return False
    missing = offsets[d] + f
    return missing == k or not fits(sums, alone, slack, c, missing, g, h)


@kernel
def _settle(sums, alone, slack, cell, columns, gh, offsets, settled):  # type: ignore[no-untyped-def]
    """Mark the features of one row that a node shows to belong to one person."""
    d = columns.shape[0]
    for f in range(d):
        settled[f] = False
    for t in range(cell.shape[0]):
        c, g, h = cell[t], gh[t, 0], gh[t, 1]
        if c < 0:
            continue
        alike = True
        for f in range(d):
            k = columns[f]
            if alike and _only(sums, slack, c, k, g, h):
                alike = not _one_of_a_kind(sums, alone, slack, c, f, k, g, h, offsets)
        if not alike:
            for f in range(d):
                settled[f] = settled[f] or _only(sums, slack, c, columns[f], g, h)


@kernel
def _same_way(bins, start, feature, cut, left, right, default_left, low, high, other):  # type: ignore[no-untyped-def]
    """Narrow, per feature, the bins with which a row takes the same path in all trees."""
    for t in range(start.shape[0] - 1):
        node = start[t]
        while feature[node] >= 0:
            f = feature[node]
            b = bins[f]
            go_left = default_left[node] if b < 0 else b <= cut[node]
            if go_left:
                high[f] = min(high[f], cut[node])
            else:
                low[f] = max(low[f], cut[node] + 1)
            other[f] = other[f] and default_left[node] == go_left
            node = left[node] if go_left else right[node]


@kernel
def _passes(sums, alone, slack, cell, k, gh):  # type: ignore[no-untyped-def]
    """Tell whether column k has room for a row in every tree."""
    for t in range(cell.shape[0]):
        c = cell[t]
        if c >= 0 and not fits(sums, alone, slack, c, k, gh[t, 0], gh[t, 1]):
            return False
    return True


@kernel
def _doubts(  # type: ignore[no-untyped-def]
    sums,
    alone,
    slack,
    bins,
    cell,
    gh,
    columns,
    start,
    feature,
    cut,
    left,
    right,
    default_left,
    offsets,
    count,
):
    d = bins.shape[1]
    low, high = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    other, settled = np.empty(d, dtype=np.bool_), np.empty(d, dtype=np.bool_)
    for i in range(bins.shape[0]):
        for f in range(d):
            low[f], high[f], other[f] = 0, offsets[f + 1] - offsets[f] - 1, True
        _same_way(bins[i], start, feature, cut, left, right, default_left, low, high, other)
        _settle(sums, alone, slack, cell[i], columns[i], gh[i], offsets, settled)
        n = 0
        for f in range(d):
            if settled[f]:
                continue
            found = False
            if other[f] and bins[i, f] >= 0:
                found = _passes(sums, alone, slack, cell[i], offsets[d] + f, gh[i])
            for b in range(low[f], high[f] + 1):
                if not found and b != bins[i, f]:
                    found = _passes(sums, alone, slack, cell[i], offsets[f] + b, gh[i])
            n += found
        count[i] = n
