"""Rows that class counts leave no other choice for.

A row was drawn for a tree only if every node on its way has its class in each of its bins that was
asked for. In how many trees that holds is its support. A row that exists was drawn for most trees,
by coins whose odds are public: of all rows, one has less support than `least_support` with a
probability of `ERROR` at most. Every count of a bin is of somebody. Where a single row of enough
support fits it, that row exists, and was drawn as often as the count says: that often it is taken
out of its tree, which leaves others less support. Nothing else is taken out, so that what is left
are draws of rows, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedtrees.attacks.peeling.counted import AskedForest, Counts
from fedtrees.attacks.peeling.rows import CUT, DEFAULT_LEFT, FEATURE, LEFT, RIGHT, Ints
from fedtrees.trees.jit import kernel

Longs = NDArray[np.int64]
Words = NDArray[np.uint64]
#: How likely coins are to rule out some row of a source that exists.
ERROR = 1e-6
#: Confidence of what is found: as that of rows without doubt in histograms of gradients.
SURE = 0.999
#: Masks tried for one count.
MOST_TRIES = 40
#: Counts in a row that tell nothing new, after which a round ends: the narrowest come first.
MOST_FAILURES = 200
#: Rows beside the found ones that are kept in mind as possible, of each class.
MOST_OTHERS = 1000
WORD = 64


@dataclass(frozen=True, eq=False)
class Supported:
    """Rows that are sure.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 where missing.
    y : int64 array, shape (m,)
    confidence : float64 array, shape (m,)
    open : int
        Counts looked at that are of nobody found.
    work : float
        Steps of about 20 nanoseconds.
    finished : bool
        False where the bound on work ended the search.
    """

    bins: Ints
    y: Longs
    confidence: NDArray[np.float64]
    open: int
    work: float
    finished: bool


def least_support(trees: int, likely: float, rows: int) -> int:
    """Return the support that all of so many rows have but for a chance of `ERROR`."""
    if likely >= 1:
        return trees
    return max(0, int(binom.ppf(ERROR / max(rows, 1), trees, likely)))


class _Masked(NamedTuple):
    """Trees and counts as kernels take them; a mask is uint64 (d, W), a bit for each column."""

    start: Ints
    nodes: Ints
    above: Longs  # int64 (n_nodes,): parents, -1 at roots
    pairs: Longs
    feature: Ints
    at: Longs
    offsets: Ints
    left: Words  # uint64 (n_nodes, W): columns of the split's feature that go left
    there: Words  # uint64 (pairs, K, W): columns that the class is in
    bins: Longs
    totals: Longs
    levels: int


class Search:
    """The search for rows in one source's counts.

    Parameters
    ----------
    forest : AskedForest
    counts : Counts
    likely : float
        Probability that a row is drawn for a tree, at least; 1 where all trees are of all rows.
    rows : int
        How many rows there are at most.
    most_work : float
    """

    def __init__(
        self, forest: AskedForest, counts: Counts, likely: float, rows: int, most_work: float
    ) -> None:
        self.forest, self.most_work = forest, most_work
        self.whole = likely >= 1
        self.least = least_support(forest.trees, likely, rows)
        self.most_rows = rows
        self.state = _masked(forest, counts)
        self.work = np.zeros(1)

    def rows(self, known: Ints, y: Longs) -> Supported:
        """Return rows beside those known, int32 (k, d) bins and int64 (k,) classes."""
        width = np.diff(self.forest.offsets).astype(np.int64)
        code = np.where(known < 0, width - 1, known).astype(np.int64)
        if self.whole:
            for row, k in zip(code, y.tolist(), strict=True):
                _take_everywhere(self.state, row, k, 1)
            code, y = code[:0], y[:0]
        classes = [
            _Class.of(self.state, k, code[y == k], self.most_rows)
            for k in range(self.state.totals.shape[1])
        ]
        rules = (self.least, self.whole, self.most_work)
        while sum([c.look(self.state, *rules, self.work) for c in classes]):
            pass
        rows = np.concatenate([c.new for c in classes])
        labels = np.repeat(np.arange(len(classes)), [len(c.new) for c in classes])
        return Supported(
            np.where(rows == width - 1, -1, rows).astype(np.int32),
            labels.astype(np.int64),
            np.full(len(rows), SURE),
            sum(c.open(self.state) for c in classes),
            float(self.work[0]),
            bool(self.work[0] <= self.most_work),
        )


class _Class:
    """Rows of one class: found ones, and others that counts leave possible."""

    def __init__(self, k: int, cells: Longs, found: Longs, room: int) -> None:
        self.k, self.cells, self.n_known = k, cells, len(found)
        self.settled = np.zeros(len(cells), dtype=np.bool_)
        d = found.shape[1]
        self.found = np.concatenate([found, np.zeros((room, d), dtype=np.int64)])
        self.copies = np.zeros(len(self.found), dtype=np.int64)
        self.others = np.zeros((MOST_OTHERS, d), dtype=np.int64)
        self.sizes = np.array([len(found), 0])

    @staticmethod
    def of(state: _Masked, k: int, known: Longs, room: int) -> _Class:
        cells = _cells(state, k)
        volume = np.empty(len(cells))
        _volumes(state, k, cells, volume)
        some = np.argsort(volume, kind="stable")[: int(np.isfinite(volume).sum())]
        return _Class(k, cells[some], known, room)

    @property
    def new(self) -> Longs:
        """Rows found, int64 (m, d), as often as they are known to be there."""
        some = slice(self.n_known, self.sizes[0])
        return np.repeat(self.found[some], self.copies[some], axis=0)

    def open(self, state: _Masked) -> int:
        at = state.at[self.cells[:, 1]] + self.cells[:, 2]
        return int((state.bins[at, self.k] > 0).sum())

    def look(
        self, state: _Masked, least: int, whole: bool, most_work: float, work: NDArray[np.float64]
    ) -> int:
        """Look at all counts once; return how many draws were told."""
        told: int = _look(
            state, self.k, least, whole, most_work, work, self.cells, self.settled,
            self.found, self.copies, self.others, self.sizes,
        )  # fmt: skip
        return told


def _masked(forest: AskedForest, counts: Counts) -> _Masked:
    nodes, offsets = forest.nodes, forest.offsets
    words = -(-int(np.diff(offsets).max(initial=1)) // WORD)
    above = np.full(len(nodes), -1, dtype=np.int64)
    inner = np.flatnonzero(nodes[:, FEATURE] >= 0)
    for side in (LEFT, RIGHT):
        above[nodes[inner, side]] = inner
    left = np.zeros((len(nodes), words), dtype=np.uint64)
    bins, totals = counts.bins.copy(), counts.nodes.copy()
    there = np.zeros((len(forest.feature), totals.shape[1], words), dtype=np.uint64)
    state = _Masked(
        forest.start, nodes, above, forest.pairs, forest.feature, forest.at, offsets,
        left, there, bins, totals, forest.levels,
    )  # fmt: skip
    _mark(state)
    return state


def _cells(state: _Masked, k: int) -> Longs:
    """Return bins that class k is in, int64 (m, 3): node, pair, bin, where nodes end."""
    ends = np.zeros(len(state.nodes), dtype=np.bool_)
    leaf = state.nodes[:, FEATURE] < 0
    ends[leaf] = True
    ends[state.above[leaf & (state.above >= 0)]] = True
    pair = np.repeat(np.arange(len(state.feature)), np.diff(state.at))
    column = np.flatnonzero(state.bins[:, k] > 0)
    node = np.repeat(np.arange(len(state.nodes)), np.diff(state.pairs))
    pair = pair[column]
    some = ends[node[pair]]
    cells = np.stack([node[pair], pair, column - state.at[pair]], axis=1)
    return cells[some].astype(np.int64)


@kernel
def _mark(state):  # type: ignore[no-untyped-def]
    """Set the bits of columns that go left, and of those that classes are in."""
    one = np.uint64(1)
    for v in range(state.nodes.shape[0]):
        f = state.nodes[v, FEATURE]
        if f >= 0:
            n = state.offsets[f + 1] - state.offsets[f] - 1
            for b in range(n + 1):
                goes = state.nodes[v, DEFAULT_LEFT] == 1 if b == n else b <= state.nodes[v, CUT]
                if goes:
                    state.left[v, b // WORD] |= one << np.uint64(b % WORD)
    for p in range(state.feature.shape[0]):
        for b in range(state.at[p + 1] - state.at[p]):
            for k in range(state.bins.shape[1]):
                if state.bins[state.at[p] + b, k] > 0:
                    state.there[p, k, b // WORD] |= one << np.uint64(b % WORD)


@kernel
def _has(words, b):  # type: ignore[no-untyped-def]
    return (words[b // WORD] >> np.uint64(b % WORD)) & np.uint64(1) != 0


@kernel
def _count(words):  # type: ignore[no-untyped-def]
    """Return the number of bits set."""
    n = 0
    for w in range(words.shape[0]):
        x = words[w]
        while x != 0:
            x &= x - np.uint64(1)
            n += 1
    return n


@kernel
def _keep(mask, words):  # type: ignore[no-untyped-def]
    """Leave the columns of one feature that are among some; tell whether there are any."""
    alive = False
    for w in range(mask.shape[0]):
        mask[w] &= words[w]
        alive = alive or mask[w] != 0
    return alive


@kernel
def _lose(mask, words):  # type: ignore[no-untyped-def]
    """Leave the columns of one feature that are not among some; tell whether there are any."""
    alive = False
    for w in range(mask.shape[0]):
        mask[w] &= ~words[w]
        alive = alive or mask[w] != 0
    return alive


@kernel
def _at_node(state, k, v, mask):  # type: ignore[no-untyped-def]
    """Leave the columns that class k has at node v; tell whether every feature has one."""
    for p in range(state.pairs[v], state.pairs[v + 1]):
        if not _keep(mask[state.feature[p]], state.there[p, k]):
            return False
    return True


@kernel
def _to_child(state, v, mask):  # type: ignore[no-untyped-def]
    """Leave the columns that go from the parent of node v to v; tell whether there are any."""
    parent = state.above[v]
    f = state.nodes[parent, FEATURE]
    if state.nodes[parent, LEFT] == v:
        return _keep(mask[f], state.left[parent])
    return _lose(mask[f], state.left[parent])


@kernel
def _cell_mask(state, k, cell, mask):  # type: ignore[no-untyped-def]
    """Set the columns that rows of class k counted in a bin of a node can have, as its tree tells.

    Tell whether every feature has one.
    """
    v, p, b = cell[0], cell[1], cell[2]
    for f in range(mask.shape[0]):
        for w in range(mask.shape[1]):
            first = w * WORD
            n = min(max(state.offsets[f + 1] - state.offsets[f] - first, 0), WORD)
            mask[f, w] = ~np.uint64(0) >> np.uint64(WORD - n) if n > 0 else np.uint64(0)
    one = mask[state.feature[p]]
    one[:] = np.uint64(0)
    one[b // WORD] = np.uint64(1) << np.uint64(b % WORD)
    if not _at_node(state, k, v, mask):
        return False
    while state.above[v] >= 0:
        if not _to_child(state, v, mask):
            return False
        v = state.above[v]
        if not _at_node(state, k, v, mask):
            return False
    return True


@kernel
def _volumes(state, k, cells, volume):  # type: ignore[no-untyped-def]
    """Tell the log of how many rows fit each bin; infinity where none does."""
    mask = np.empty((state.offsets.shape[0] - 1, state.left.shape[1]), dtype=np.uint64)
    for c in range(cells.shape[0]):
        volume[c] = np.inf
        if _cell_mask(state, k, cells[c], mask):
            volume[c] = 0.0
            for f in range(mask.shape[0]):
                volume[c] += np.log(_count(mask[f]))


@kernel
def _fits(mask, row):  # type: ignore[no-untyped-def]
    for f in range(mask.shape[0]):  # noqa: SIM110  numba compiles no generators
        if not _has(mask[f], row[f]):
            return False
    return True


@kernel
def _possible(state, k, t, mask, levels, stack, out):  # type: ignore[no-untyped-def]
    """Set the columns of the rows within a mask that may have been drawn for a tree.

    Return the work done, negative where there are none. Slices of arrays are avoided: to make them
    would take longer than what is done with them.
    """
    nodes, totals, left, there = state.nodes, state.totals, state.left, state.there
    pairs, feature, above = state.pairs, state.feature, state.above
    d, words = mask.shape
    for f in range(d):
        for w in range(words):
            out[f, w] = 0
    work, n, some = 0.0, 1, False
    stack[0, 0], stack[0, 1] = state.start[t], 0
    while n > 0:
        n -= 1
        v, level = stack[n, 0], stack[n, 1]
        if totals[v, k] == 0:
            continue
        work += d * words / 3  # three words take about 20 nanoseconds
        if level == 0:
            for f in range(d):
                for w in range(words):
                    levels[0, f, w] = mask[f, w]
        else:
            up = above[v]
            g = nodes[up, FEATURE]
            flip = np.uint64(0) if nodes[up, LEFT] == v else ~np.uint64(0)
            alive = np.uint64(0)
            for w in range(words):
                alive |= levels[level - 1, g, w] & (left[up, w] ^ flip)
            if alive == 0:
                continue
            for f in range(d):
                for w in range(words):
                    levels[level, f, w] = levels[level - 1, f, w]
            for w in range(words):
                levels[level, g, w] &= left[up, w] ^ flip
        alive = ~np.uint64(0)
        for p in range(pairs[v], pairs[v + 1]):
            g = feature[p]
            alive = np.uint64(0)
            for w in range(words):
                levels[level, g, w] &= there[p, k, w]
                alive |= levels[level, g, w]
            if alive == 0:
                break
        if alive == 0:
            continue
        if nodes[v, FEATURE] < 0:
            some = True
            for f in range(d):
                for w in range(words):
                    out[f, w] |= levels[level, f, w]
        else:
            stack[n, 0], stack[n, 1] = nodes[v, LEFT], level + 1
            stack[n + 1, 0], stack[n + 1, 1] = nodes[v, RIGHT], level + 1
            n += 2
    return work if some else -work


@kernel
def _narrow(state, k, least, own, mask, levels, stack, out, support, work):  # type: ignore[no-untyped-def]
    """Leave out columns without enough support, until all have it; tell whether any are left."""
    d, words = mask.shape
    trees = state.start.shape[0] - 1
    while True:
        changed = False
        done = _possible(state, k, own, mask, levels, stack, out)
        work[0] += abs(done)
        if done <= 0:
            return False
        for f in range(d):
            for w in range(words):
                changed = changed or mask[f, w] != out[f, w]
                mask[f, w] = out[f, w]
        if least == 0:
            return True
        support[:] = 1
        some = 1
        for t in range(trees):
            if t == own:
                continue
            done = _possible(state, k, t, mask, levels, stack, out)
            work[0] += abs(done)
            if done > 0:
                some += 1
                for f in range(d):
                    for w in range(words):
                        x = out[f, w]
                        b = 0
                        while x != 0:
                            if x & np.uint64(1):
                                support[f, w * WORD + b] += 1
                            x >>= np.uint64(1)
                            b += 1
            if some + trees - 1 - t - (1 if own > t else 0) < least:
                return False
        for f in range(d):
            alive = False
            for b in range(state.offsets[f + 1] - state.offsets[f]):
                if _has(mask[f], b):
                    if support[f, b] < least:
                        mask[f, b // WORD] &= ~(np.uint64(1) << np.uint64(b % WORD))
                        changed = True
                    else:
                        alive = True
            if not alive:
                return False
        if not changed:
            return True


@kernel
def _support(state, k, row):  # type: ignore[no-untyped-def]
    """Return the number of trees that a row may have been drawn for."""
    n = 0
    for t in range(state.start.shape[0] - 1):
        v = np.int64(state.start[t])
        fits = state.totals[v, k] > 0
        while fits:
            for p in range(state.pairs[v], state.pairs[v + 1]):
                fits = fits and _has(state.there[p, k], row[state.feature[p]])
            f = state.nodes[v, FEATURE]
            if f < 0:
                break
            v = np.int64(state.nodes[v, LEFT if _has(state.left[v], row[f]) else RIGHT])
            fits = fits and state.totals[v, k] > 0
        n += fits
    return n


@kernel
def _take(state, t, row, k, n):  # type: ignore[no-untyped-def]
    """Take n draws of a row out of a tree."""
    v = np.int64(state.start[t])
    while True:
        state.totals[v, k] -= n
        for p in range(state.pairs[v], state.pairs[v + 1]):
            b = row[state.feature[p]]
            i = state.at[p] + b
            state.bins[i, k] -= n
            if state.bins[i, k] <= 0:
                state.there[p, k, b // WORD] &= ~(np.uint64(1) << np.uint64(b % WORD))
        f = state.nodes[v, FEATURE]
        if f < 0:
            break
        v = np.int64(state.nodes[v, LEFT if _has(state.left[v], row[f]) else RIGHT])


@kernel
def _take_everywhere(state, row, k, n):  # type: ignore[no-untyped-def]
    for t in range(state.start.shape[0] - 1):
        _take(state, t, row, k, n)


@kernel
def _index(rows, n, row):  # type: ignore[no-untyped-def]
    """Return where a row is among the first n, -1 where it is not."""
    for i in range(n):
        same = True
        for f in range(row.shape[0]):
            same = same and rows[i, f] == row[f]
        if same:
            return i
    return -1


@kernel
def _halve(mask, other):  # type: ignore[no-untyped-def]
    """Move half of the columns of the feature with the fewest, but more than one, to another mask.

    Tell whether there is such a feature; `other` is then the same elsewhere.
    """
    best, fewest = -1, 0
    for f in range(mask.shape[0]):
        n = _count(mask[f])
        if n > 1 and (best < 0 or n < fewest):
            best, fewest = f, n
    other[:] = mask
    if best < 0:
        return False
    moved = 0
    for b in range(mask.shape[1] * WORD):
        if _has(mask[best], b):
            bit = np.uint64(1) << np.uint64(b % WORD)
            if moved < fewest // 2:
                mask[best, b // WORD] &= ~bit
            else:
                other[best, b // WORD] &= ~bit
            moved += 1
    return True


@kernel
def _look(  # type: ignore[no-untyped-def]
    state, k, least, whole, most_work, work, cells, settled, found, copies, others, sizes
):
    """Look at the counts of cells for rows that are alone there; take draws out that are told.

    Of `sizes`, the first is how many rows are found, the second how many others are kept.
    """
    d, words = state.offsets.shape[0] - 1, state.left.shape[1]
    waiting = np.empty((MOST_TRIES + 2, d, words), dtype=np.uint64)
    levels = np.empty((state.levels, d, words), dtype=np.uint64)
    stack = np.empty((2 * state.levels + 2, 2), dtype=np.int64)
    out = np.empty((d, words), dtype=np.uint64)
    support = np.empty((d, words * WORD), dtype=np.int32)
    mask = np.empty((d, words), dtype=np.uint64)
    row = np.empty(d, dtype=np.int64)
    only = np.empty(d, dtype=np.int64)
    kept = 0
    for j in range(sizes[1]):
        if _support(state, k, others[j]) >= least and _index(found, sizes[0], others[j]) < 0:
            others[kept] = others[j]
            kept += 1
    sizes[1] = kept
    told, failures = 0, 0
    for c in range(cells.shape[0]):
        i = state.at[cells[c, 1]] + cells[c, 2]
        n = state.bins[i, k]
        if n <= 0 or work[0] > most_work or failures > MOST_FAILURES:
            continue
        if not _cell_mask(state, k, cells[c], mask):
            continue
        own = np.searchsorted(state.start, cells[c, 0], side="right") - 1
        work[0] += d * words
        fits, who = 0, -1
        if not whole:
            for r in range(sizes[0]):
                if _fits(mask, found[r]):
                    fits += 1
                    who = r
                    if fits > 1:
                        break
        if fits > 1:
            continue
        if not settled[c]:
            more = 0
            for r in range(sizes[1]):
                if _fits(mask, others[r]):
                    more += 1
                    if fits + more > 1:
                        break
            if fits + more > 1:
                continue
            failures += 1
            more, tries, waits = 0, 0, 1
            waiting[0] = mask
            while waits > 0 and fits + more < 2 and tries < MOST_TRIES:
                tries += 1
                now = waiting[waits - 1]
                waits -= 1
                if not _narrow(state, k, least, own, now, levels, stack, out, support, work):
                    continue
                if _halve(now, waiting[waits + 1]):
                    waits += 2
                    if least == 0:
                        break
                    continue
                for f in range(d):
                    for b in range(words * WORD):
                        if _has(now[f], b):
                            row[f] = b
                if _index(found, sizes[0], row) >= 0:
                    continue
                more += 1
                only[:] = row
                if sizes[1] < others.shape[0] and _index(others, sizes[1], row) < 0:
                    others[sizes[1]] = row
                    sizes[1] += 1
            if waits > 0 or fits + more != 1:
                continue
            settled[c] = True
            failures = 0
            if more == 1:
                if sizes[0] == found.shape[0]:
                    continue
                who = sizes[0]
                found[who] = only
                copies[who] = n if whole else 1
                sizes[0] += 1
                for r in range(sizes[1]):  # it is found, and no other any more
                    if _index(only.reshape(1, d), 1, others[r]) == 0:
                        others[r] = others[sizes[1] - 1]
                        sizes[1] -= 1
                        break
        elif fits != 1:
            continue
        if whole:
            _take_everywhere(state, found[who], k, n)
        else:
            _take(state, own, found[who], k, n)
        told += n
    return told
