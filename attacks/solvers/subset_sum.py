"""Subset sums: determine which rows of a node can add up exactly to the sum of a bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.jit import place

#: Largest number of partial sums per search. All bins are searched with each limit in turn.
EFFORT = (64, 512, 4096)
#: Largest number of solutions. If there are more, nothing is concluded.
MOST_SOLUTIONS = 4096
#: Largest node that is searched. In larger ones sums do not determine the rows.
MOST_ROWS = 4096
_SEED = 20110101  # for the multipliers that hash the statistics of a row to one number


@dataclass(frozen=True, eq=False)
class NodeSums:
    """The sums over the bins of one column at one node.

    Attributes
    ----------
    tree : int
        The tree.
    rows : int32 array, shape (m,)
        Rows of the node with a nonzero contribution.
    contributions : int64 array, shape (m, s)
        Contribution of each row.
    sums : int64 array, shape (B + 1, s)
        Sums over the rows in every bin. The last entry is the sum over rows without a value.
    """

    tree: int
    rows: NDArray[np.int32]
    contributions: NDArray[np.int64]
    sums: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """All observations of one column.

    Attributes
    ----------
    owner : str
        Party that has the column.
    position : int
        Index in the schema.
    nodes : tuple of NodeSums
        Small nodes first.
    allowed : bool array, shape (N, B + 1)
        Bins that are possible for a row according to the splits of the column on its path. The last
        entry means no value.
    """

    owner: str
    position: int
    nodes: tuple[NodeSums, ...]
    allowed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Certain:
    """Conclusions from exact sums that contain no guess.

    Attributes
    ----------
    bin : int64 array, shape (N,)
        Bin of each row. It is the number of bins if the row has no value, and -1 if it is not
        determined.
    allowed : bool array, shape (N, B + 1)
        Possible bins of each row. Exactly one if it is determined.
    """

    bin: NDArray[np.int64]
    allowed: NDArray[np.bool_]


def certain_bins(column: Column) -> Certain:
    """Return the bins of every row that are compatible with the exact sums.

    The sums are integers (fixed point), so that a set of rows can be in a bin only if it adds up
    exactly. All such sets are listed by meeting in the middle (Horowitz and Sahni 1974), within the
    limits of the search. Rows in all sets are in the bin, and rows in none of them are not.
    Conclusions at one node restrict all other nodes.
    """
    allowed = column.allowed.copy()
    bin = np.full(len(allowed), -1, dtype=np.int64)
    nodes = [node for node in column.nodes if len(node.rows) <= MOST_ROWS]
    if not nodes:
        return Certain(bin, allowed)
    trees = sorted({node.tree for node in nodes})
    place = {tree: k for k, tree in enumerate(trees)}
    width = nodes[0].contributions.shape[1]
    drawn = np.random.default_rng(_SEED).integers(2**63, size=width, dtype=np.uint64)
    odd = np.asarray(drawn * 2 + 1, dtype=np.uint64)
    # one hash per row and tree replaces its vector of statistics; sums of hashes are hashes of sums
    value = np.zeros((len(trees), len(bin)), dtype=np.uint64)
    for node in nodes:
        value[place[node.tree], node.rows] = _one_number(node.contributions, odd)
    measures = {
        node.tree: _measure(node.contributions) for node in nodes
    }  # of the largest that is seen
    size = np.zeros(value.shape, dtype=np.int64)
    for node in nodes:
        size[place[node.tree], node.rows] = node.contributions @ measures[node.tree]
    system = (
        np.cumsum([0, *(len(node.rows) for node in nodes)]),
        np.concatenate([node.rows for node in nodes]).astype(np.int64),
        np.array([place[node.tree] for node in nodes]),
        value,
        size,
        np.stack([_one_number(node.sums, odd) for node in nodes]),
        np.stack([node.sums @ measures[node.tree] for node in nodes]),
    )
    for effort in EFFORT:
        tried = np.zeros((len(nodes), allowed.shape[1]), dtype=np.int64)
        while _narrow(*system, allowed, bin, effort, tried):
            pass
    # a certain row excludes all other bins
    sure = bin >= 0
    allowed[sure] = np.arange(allowed.shape[1]) == bin[sure, None]
    return Certain(bin, allowed)


def _one_number(statistics: NDArray[np.int64], odd: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a random linear combination of the statistics modulo 2^64. It is additive as well."""
    return np.asarray((statistics.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64))


def _measure(statistics: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return weights (s,) of statistics that are never negative, to bound the rows in a sum.

    Class counts are used if they are summed, because they count rows. Otherwise hessians are used.
    """
    counts = ((statistics == 0) | (statistics == 1)).all(axis=0)
    if counts.any() and (statistics[:, counts].sum(axis=1) == 1).all():
        return counts.astype(np.int64)
    return np.asarray((statistics >= 0).all(axis=0), dtype=np.int64)


@inner_kernel
def _list_sums(value, group_size, first, last, out):  # type: ignore[no-untyped-def]
    """List the sums of all choices among some groups and return their number."""
    out[0], size = np.uint64(0), 1
    for g in range(first, last):
        for k in range(1, group_size[g] + 1):
            add = np.uint64(value[g] * np.uint64(k))
            for i in range(size):
                out[k * size + i] = out[i] + add
        size *= group_size[g] + 1
    return size


@inner_kernel
def _spread(code, group_size, first, last, low, high):  # type: ignore[no-untyped-def]
    """Extend the ranges of possible counts by one listed choice."""
    for g in range(first, last):
        k = code % (group_size[g] + 1)
        code //= group_size[g] + 1
        low[g], high[g] = min(low[g], k), max(high[g], k)


@inner_kernel
def _order(value):  # type: ignore[no-untyped-def]
    """Return the sorting permutation. A separate kernel is compiled once, not in each caller."""
    return np.argsort(value)


@kernel
def _of_all(value, group_size, goal, effort, low, high):  # type: ignore[no-untyped-def]
    """Find all choices with the required sum, in two halves. Return -1 if they are too many."""
    N, cut, half, rest = len(value), 0, 1, 1
    while cut < N and half * (group_size[cut] + 1) <= effort:
        half *= group_size[cut] + 1
        cut += 1
    for g in range(cut, N):
        rest *= group_size[g] + 1
        if rest > 4 * effort:
            return -1
    left, right = np.empty(half, np.uint64), np.empty(rest, np.uint64)
    _list_sums(value, group_size, 0, cut, left)
    _list_sums(value, group_size, cut, N, right)
    order = _order(left)
    left = left[order]
    n_solutions = 0
    for j in range(rest):
        at = place(left, 0, len(left), goal - right[j])
        while at < half and left[at] == goal - right[j]:
            n_solutions += 1
            if n_solutions > MOST_SOLUTIONS:
                return -1
            _spread(order[at], group_size, 0, cut, low, high)
            _spread(j, group_size, cut, N, low, high)
            at += 1
    return n_solutions


@kernel
def _of_few(value, group_size, goal, few, effort, low, high):  # type: ignore[no-untyped-def]
    """Find all choices of at most four rows with the required sum, or return -1 if too many."""
    N = len(value)
    pairs = N * (N + 1) // 2 if few > 2 else 0
    if few > 4 or pairs > effort or 16 * effort < N:
        return -1
    sums = np.zeros(1 + N + pairs, np.uint64)
    ends = np.full((1 + N + pairs, 2), -1)
    p = 1
    for g in range(N):
        sums[p], ends[p, 0] = value[g], g
        p += 1
    if few > 2:
        for g in range(N):
            for h in range(g, N):
                sums[p], ends[p, 0], ends[p, 1] = value[g] + value[h], g, h
                p += 1
    order = _order(sums)
    ordered, count, n_solutions = sums[order], np.zeros(N, np.int64), 0
    for j in range(p):
        at = place(ordered, 0, len(ordered), goal - sums[j])
        while at < p and ordered[at] == goal - sums[j]:
            i = order[at]
            at += 1
            chosen = (ends[j, 0], ends[j, 1], ends[i, 0], ends[i, 1])
            fits, rows = True, 0
            for g in chosen:
                if g >= 0:
                    count[g] += 1
                    rows += 1
                    fits &= count[g] <= group_size[g]
            if fits and rows <= few:
                n_solutions += 1
                if n_solutions > MOST_SOLUTIONS:
                    return -1
                for g in range(N):
                    low[g], high[g] = min(low[g], count[g]), max(high[g], count[g])
            for g in chosen:
                if g >= 0:
                    count[g] = 0
    return n_solutions


@inner_kernel
def _at_one_bin(cand, value, size, goal, room, effort, b, allowed, bin):  # type: ignore[no-untyped-def]
    """Draw conclusions from one sum about its candidate rows, and return their number."""
    c = len(cand)
    # the smallest rows bound how many rows fit in the sum
    by_size, few, filled = size[_order(size.astype(np.uint64))], 0, 0
    while few < c and filled + by_size[few] <= room:
        filled += by_size[few]
        few += 1
    order = _order(value)
    group, group_size, of = np.empty(c, np.uint64), np.empty(c, np.int64), np.empty(c, np.int64)
    N = 0
    for p in range(c):
        if p == 0 or value[order[p]] != value[order[p - 1]]:
            group[N], group_size[N] = value[order[p]], 0
            N += 1
        group_size[N - 1] += 1
        of[order[p]] = N - 1
    group, group_size = group[:N], group_size[:N]
    low, high = group_size.copy(), np.zeros(N, np.int64)
    n_solutions = _of_all(group, group_size, goal, effort, low, high)
    if n_solutions < 0:
        low[:], high[:] = group_size, 0
        n_solutions = _of_few(group, group_size, goal, few, effort, low, high)
    if n_solutions <= 0:
        return 0
    concluded = 0
    for p in range(c):
        if high[of[p]] == 0:
            allowed[cand[p], b] = False
            concluded += 1
        elif low[of[p]] == group_size[of[p]]:
            bin[cand[p]] = b
            concluded += 1
    return concluded


@kernel
def _narrow(  # type: ignore[no-untyped-def]
    starts, rows, tree, value, size, sums, rooms, allowed, bin, effort, tried
):
    """Examine every sum with fewer candidates than before, and return the number of conclusions."""
    n, B = allowed.shape
    concluded = 0
    for e in range(len(tree)):
        t, begin, end = tree[e], starts[e], starts[e + 1]
        for b in range(B):
            goal, room, c = sums[e, b], rooms[e, b], 0
            for q in range(begin, end):
                i = rows[q]
                if bin[i] == b:
                    goal -= value[t, i]
                    room -= size[t, i]
                elif bin[i] < 0 and allowed[i, b]:
                    c += 1
            if c == 0 or tried[e, b] == c:
                continue
            tried[e, b] = c
            cand = np.empty(c, np.int64)
            candidate_values = np.empty(c, np.uint64)
            large = np.empty(c, np.int64)
            k = 0
            for q in range(begin, end):
                i = rows[q]
                if bin[i] < 0 and allowed[i, b]:
                    cand[k], candidate_values[k], large[k] = i, value[t, i], size[t, i]
                    k += 1
            concluded += _at_one_bin(
                cand, candidate_values, large, goal, room, effort, b, allowed, bin
            )
    for i in range(n):
        if bin[i] < 0:
            left, last = 0, -1
            for b in range(B):
                if allowed[i, b]:
                    left, last = left + 1, b
            if left == 1:
                bin[i] = last
                concluded += 1
    return concluded
