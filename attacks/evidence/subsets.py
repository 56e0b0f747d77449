"""Subset sums: which rows of a node can add up, to the last unit, to the sum that a bin has."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.jit import place

#: Partial sums that one search may list, from quick looks at everything to thorough ones.
EFFORT = (64, 512, 4096)
#: Solutions of which all are looked at; where there are more, nothing is concluded.
MOST_SOLUTIONS = 4096
#: Rows of nodes that are searched; more have more bins and rows than sums tell apart.
MOST_ROWS = 4096
_SEED = 20110101  # of multipliers that make one number of the statistics of a row


@dataclass(frozen=True, eq=False)
class NodeSums:
    """The sums over the bins of one column at one node.

    `rows`: int32 array, shape (m,). Those of the node that bring anything.
    `brings`: int64 array, shape (m, s). What each brings.
    `sums`: int64 array, shape (B + 1, s). Of the rows in every bin; last: of those without a value.
    """

    tree: int
    rows: NDArray[np.int32]
    brings: NDArray[np.int64]
    sums: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """All that is seen of one column.

    `position`: In the schema.
    `nodes`: Small nodes first.
    `allowed`: bool array, shape (N, B + 1). In which bins a row may be, by the splits of the column
    that it came by; last: no value.
    """

    owner: str
    position: int
    nodes: tuple[NodeSums, ...]
    allowed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Certain:
    """What follows from exact sums, without a guess.

    `bin`: int64 array, shape (N,). The bin of a row, the number of bins where it has no value; -1:
    open.
    `allowed`: bool array, shape (N, B + 1). In which bins it may be; one where that is certain.
    """

    bin: NDArray[np.int64]
    allowed: NDArray[np.bool_]


def certain_bins(column: Column) -> Certain:
    """Return what sums leave of the bins of every row.

    The sums are of whole numbers (fixed point), so that a set of rows is in a bin only if it adds
    up exactly. All sets that do are listed, by meeting in the middle (Horowitz and Sahni 1974), as
    far as a search may grow: rows in all of them are in the bin, rows in none are not. What is
    found at one node narrows all others.
    """
    allowed = column.allowed.copy()
    bin = np.full(len(allowed), -1, dtype=np.int64)
    nodes = [node for node in column.nodes if len(node.rows) <= MOST_ROWS]
    if not nodes:
        return Certain(bin, allowed)
    trees = sorted({node.tree for node in nodes})
    place = {tree: k for k, tree in enumerate(trees)}
    width = nodes[0].brings.shape[1]
    odd = np.random.default_rng(_SEED).integers(2**63, size=width, dtype=np.uint64) * 2 + 1
    value = np.zeros((len(trees), len(bin)), dtype=np.uint64)
    for node in nodes:
        value[place[node.tree], node.rows] = _one_number(node.brings, odd)
    measures = {node.tree: _measure(node.brings) for node in nodes}  # of the largest that is seen
    size = np.zeros(value.shape, dtype=np.int64)
    for node in nodes:
        size[place[node.tree], node.rows] = node.brings @ measures[node.tree]
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
    sure = bin >= 0
    allowed[sure] = np.arange(allowed.shape[1]) == bin[sure, None]
    return Certain(bin, allowed)


def _one_number(brings: NDArray[np.int64], odd: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a sum modulo 2^64 of the statistics times odd numbers: it adds up as they do."""
    return np.asarray((brings.astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64))


def _measure(brings: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return weights (s,) of statistics that no row lowers: how many rows fit in a sum at most.

    Class counts where they are summed, since these count rows; else hessians.
    """
    counts = ((brings == 0) | (brings == 1)).all(axis=0)
    if counts.any() and (brings[:, counts].sum(axis=1) == 1).all():
        return counts.astype(np.int64)
    return (brings >= 0).all(axis=0).astype(np.int64)


@inner_kernel
def _listed(value, most, first, last, out):  # type: ignore[no-untyped-def]
    """List the sums of every choice among some groups; return how many there are."""
    out[0], size = np.uint64(0), 1
    for g in range(first, last):
        for k in range(1, most[g] + 1):
            add = np.uint64(value[g] * np.uint64(k))
            for i in range(size):
                out[k * size + i] = out[i] + add
        size *= most[g] + 1
    return size


@inner_kernel
def _spread(code, most, first, last, low, high):  # type: ignore[no-untyped-def]
    """Widen what is possible by one listed choice."""
    for g in range(first, last):
        k = code % (most[g] + 1)
        code //= most[g] + 1
        low[g], high[g] = min(low[g], k), max(high[g], k)


@inner_kernel
def _order(value):  # type: ignore[no-untyped-def]
    """Sort indirectly: a kernel of its own is compiled once, and not in each that calls it."""
    return np.argsort(value)


@kernel
def _of_all(value, most, wanted, effort, low, high):  # type: ignore[no-untyped-def]
    """Find all choices that add up, by two halves; -1: too many to list."""
    N, cut, half, rest = len(value), 0, 1, 1
    while cut < N and half * (most[cut] + 1) <= effort:
        half *= most[cut] + 1
        cut += 1
    for g in range(cut, N):
        rest *= most[g] + 1
        if rest > 4 * effort:
            return -1
    left, right = np.empty(half, np.uint64), np.empty(rest, np.uint64)
    _listed(value, most, 0, cut, left)
    _listed(value, most, cut, N, right)
    order = _order(left)
    left = left[order]
    found = 0
    for j in range(rest):
        at = place(left, 0, len(left), wanted - right[j])
        while at < half and left[at] == wanted - right[j]:
            found += 1
            if found > MOST_SOLUTIONS:
                return -1
            _spread(order[at], most, 0, cut, low, high)
            _spread(j, most, cut, N, low, high)
            at += 1
    return found


@kernel
def _of_few(value, most, wanted, few, effort, low, high):  # type: ignore[no-untyped-def]
    """Find all choices of at most four rows that add up, by two halves; -1: too many to list."""
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
    ordered, count, found = sums[order], np.zeros(N, np.int64), 0
    for j in range(p):
        at = place(ordered, 0, len(ordered), wanted - sums[j])
        while at < p and ordered[at] == wanted - sums[j]:
            i = order[at]
            at += 1
            chosen = (ends[j, 0], ends[j, 1], ends[i, 0], ends[i, 1])
            fits, rows = True, 0
            for g in chosen:
                if g >= 0:
                    count[g] += 1
                    rows += 1
                    fits &= count[g] <= most[g]
            if fits and rows <= few:
                found += 1
                if found > MOST_SOLUTIONS:
                    return -1
                for g in range(N):
                    low[g], high[g] = min(low[g], count[g]), max(high[g], count[g])
            for g in chosen:
                if g >= 0:
                    count[g] = 0
    return found


@inner_kernel
def _at_one_bin(cand, value, size, wanted, room, effort, b, allowed, bin):  # type: ignore[no-untyped-def]
    """Conclude what one sum says of its candidates; return how much was."""
    c = len(cand)
    by_size, few, filled = size[_order(size.astype(np.uint64))], 0, 0
    while few < c and filled + by_size[few] <= room:
        filled += by_size[few]
        few += 1
    order = _order(value)
    group, most, of = np.empty(c, np.uint64), np.empty(c, np.int64), np.empty(c, np.int64)
    N = 0
    for p in range(c):
        if p == 0 or value[order[p]] != value[order[p - 1]]:
            group[N], most[N] = value[order[p]], 0
            N += 1
        most[N - 1] += 1
        of[order[p]] = N - 1
    group, most = group[:N], most[:N]
    low, high = most.copy(), np.zeros(N, np.int64)
    found = _of_all(group, most, wanted, effort, low, high)
    if found < 0:
        low[:], high[:] = most, 0
        found = _of_few(group, most, wanted, few, effort, low, high)
    if found <= 0:
        return 0
    concluded = 0
    for p in range(c):
        if high[of[p]] == 0:
            allowed[cand[p], b] = False
            concluded += 1
        elif low[of[p]] == most[of[p]]:
            bin[cand[p]] = b
            concluded += 1
    return concluded


@kernel
def _narrow(  # type: ignore[no-untyped-def]
    starts, rows, tree, value, size, sums, rooms, allowed, bin, effort, tried
):
    """Look once at every sum whose candidates are fewer than before; return what was concluded."""
    n, B = allowed.shape
    concluded = 0
    for e in range(len(tree)):
        t, begin, end = tree[e], starts[e], starts[e + 1]
        for b in range(B):
            wanted, room, c = sums[e, b], rooms[e, b], 0
            for q in range(begin, end):
                i = rows[q]
                if bin[i] == b:
                    wanted -= value[t, i]
                    room -= size[t, i]
                elif bin[i] < 0 and allowed[i, b]:
                    c += 1
            if c == 0 or tried[e, b] == c:
                continue
            tried[e, b] = c
            cand, mine, large = np.empty(c, np.int64), np.empty(c, np.uint64), np.empty(c, np.int64)
            k = 0
            for q in range(begin, end):
                i = rows[q]
                if bin[i] < 0 and allowed[i, b]:
                    cand[k], mine[k], large[k] = i, value[t, i], size[t, i]
                    k += 1
            concluded += _at_one_bin(cand, mine, large, wanted, room, effort, b, allowed, bin)
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
