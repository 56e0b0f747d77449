"""Rows that class counts leave no other choice for.

A row that exists was drawn for most trees, by coins whose odds are public: of all rows, one has
less support (`masks`) than `least_support` with a probability of `ERROR` at most. Every count of a
bin is of somebody. Where a single row of enough support fits it, that row exists, and was drawn as
often as the count says: that often it is taken out of its tree, which leaves others less support.
Nothing else is taken out, so that what is left are draws of rows, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.counted import AskedForest, Counts
from fedtrees.attacks.peeling.masks import (
    WORD,
    Longs,
    Masked,
    cell_mask,
    count,
    halve,
    has,
    holds,
    masked,
    narrow,
    support_of,
    take,
    take_everywhere,
)  # fmt: skip
from fedtrees.attacks.peeling.rows import FEATURE, Ints
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.statistics import binomial_quantile

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


@dataclass(frozen=True, eq=False)
class Supported:
    """Rows that are sure, and others if any were put beside them."""

    bins: Ints  # int32 array, shape (m, d): -1 where missing
    y: Longs  # int64 array, shape (m,)
    confidence: NDArray[np.float64]  # shape (m,)
    work: float  # steps of about 20 nanoseconds
    finished: bool  # False where the bound on work ended the search

    def beside(self, bins: Ints, y: Longs, confidence: float) -> Supported:
        """Return these rows and others that are less sure."""
        return replace(
            self,
            bins=np.concatenate([self.bins, bins]),
            y=np.concatenate([self.y, y]),
            confidence=np.concatenate([self.confidence, np.full(len(y), confidence)]),
        )


def least_support(trees: int, likely: float, rows: int) -> int:
    """Return the support that all of so many rows have but for a chance of `ERROR`."""
    if likely >= 1:
        return trees
    return max(0, binomial_quantile(ERROR / max(rows, 1), trees, likely))


class Search:
    """The search for rows in one source's counts.

    `likely`: Probability that a row is drawn for a tree, at least; 1 where all trees are of all
    rows.
    `rows`: How many rows there are at most.
    """

    def __init__(
        self, forest: AskedForest, counts: Counts, likely: float, rows: int, most_work: float
    ) -> None:
        self.forest, self.counts, self.most_work = forest, counts, most_work
        self.whole = likely >= 1
        self.least = least_support(forest.trees, likely, rows)
        self.most_rows = rows
        self.state = masked(forest, counts)
        self.work = np.zeros(1)

    def rows(self, known: Ints, y: Longs) -> Supported:
        """Return rows beside those known, int32 (k, d) bins and int64 (k,) classes."""
        width = np.diff(self.forest.offsets).astype(np.int64)
        code = np.where(known < 0, width - 1, known).astype(np.int64)
        if self.whole:
            for row, k in zip(code, y.tolist(), strict=True):
                take_everywhere(self.state, row, k, 1)
            code, y = code[:0], y[:0]
        classes = [
            _Class(self.state, k, code[y == k], self.most_rows)
            for k in range(self.state.totals.shape[1])
        ]
        rules = (self.least, self.whole, self.most_work, self.work)
        while sum([_look(self.state, c.k, *rules, *c.arrays) for c in classes]):
            pass
        rows = np.concatenate([c.new for c in classes])
        labels = np.repeat(np.arange(len(classes)), [len(c.new) for c in classes])
        return Supported(
            np.where(rows == width - 1, -1, rows).astype(np.int32),
            labels.astype(np.int64),
            np.full(len(rows), SURE),
            float(self.work[0]),
            bool(self.work[0] <= self.most_work),
        )


class _Class:
    """Rows of one class: found ones, and others that counts leave possible."""

    def __init__(self, state: Masked, k: int, known: Longs, room: int) -> None:
        cells = _cells(state, k)
        volume = np.empty(len(cells))
        _volumes(state, k, cells, volume)
        some = np.argsort(volume, kind="stable")[: int(np.isfinite(volume).sum())]
        d = known.shape[1]
        self.k, self.cells, self.n_known = k, cells[some], len(known)
        self.settled = np.zeros(len(some), dtype=np.bool_)
        self.found = np.concatenate([known, np.zeros((room, d), dtype=np.int64)])
        self.copies = np.zeros(len(self.found), dtype=np.int64)
        self.others = np.zeros((MOST_OTHERS, d), dtype=np.int64)
        self.sizes = np.array([len(known), 0])

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What kernels work on."""
        return self.cells, self.settled, self.found, self.copies, self.others, self.sizes

    @property
    def new(self) -> Longs:
        """Rows found, int64 (m, d), as often as they are known to be there."""
        some = slice(self.n_known, self.sizes[0])
        return np.repeat(self.found[some], self.copies[some], axis=0)


def _cells(state: Masked, k: int) -> Longs:
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
def _volumes(state, k, cells, volume):  # type: ignore[no-untyped-def]
    """Tell the log of how many rows fit each bin; infinity where none does."""
    mask = np.empty((state.offsets.shape[0] - 1, state.left.shape[1]), dtype=np.uint64)
    for c in range(cells.shape[0]):
        volume[c] = np.inf
        if cell_mask(state, k, cells[c], mask):
            volume[c] = 0.0
            for f in range(mask.shape[0]):
                volume[c] += np.log(count(mask[f]))


@inner_kernel
def _index(rows, n, row):  # type: ignore[no-untyped-def]
    """Return where a row is among the first n, -1 where it is not."""
    for i in range(n):
        same = True
        for f in range(row.shape[0]):
            same = same and rows[i, f] == row[f]
        if same:
            return i
    return -1


@inner_kernel
def _only(state, k, least, own, fits, found, others, sizes, room, work):  # type: ignore[no-untyped-def]
    """Return how many rows beside the found ones fit the first mask waiting; 2 where unknown.

    The last goes into `only`; all are kept in mind as others.
    """
    waiting, levels, stack, out, support, row, only = room
    more, tries, waits = 0, 0, 1
    while waits > 0 and fits + more < 2 and tries < MOST_TRIES:
        tries += 1
        waits -= 1
        now = waiting[waits]
        if not narrow(state, k, least, own, now, levels, stack, out, support, work):
            continue
        if halve(now, waiting[waits + 1]):
            waits += 2
            if least == 0:
                break
            continue
        for f in range(row.shape[0]):
            for b in range(now.shape[1] * WORD):
                if has(now[f], b):
                    row[f] = b
        if _index(found, sizes[0], row) >= 0:
            continue
        more += 1
        only[:] = row
        if sizes[1] < others.shape[0] and _index(others, sizes[1], row) < 0:
            others[sizes[1]] = row
            sizes[1] += 1
    return 2 if waits > 0 else more


@inner_kernel
def _fitting(mask, rows, n, most):  # type: ignore[no-untyped-def]
    """Return how many of the first n rows fit, but no more than some, and which came last."""
    fits, who = 0, -1
    for r in range(n):
        if holds(mask, rows[r]):
            fits += 1
            who = r
            if fits >= most:
                break
    return fits, who


@kernel
def _look(  # type: ignore[no-untyped-def]
    state, k, least, whole, most_work, work, cells, settled, found, copies, others, sizes
):
    """Look at the counts of cells for rows that are alone there; take draws out that are told.

    Of `sizes`, the first is how many rows are found, the second how many others are kept.
    """
    d, words = found.shape[1], state.left.shape[1]
    waiting = np.empty((MOST_TRIES + 2, d, words), dtype=np.uint64)
    levels = np.empty((state.levels, d, words), dtype=np.uint64)
    stack = np.empty((2 * state.levels + 2, 2), dtype=np.int64)
    out, support = np.empty_like(waiting[0]), np.empty((d, words * WORD), dtype=np.int32)
    row, only = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    room = waiting, levels, stack, out, support, row, only
    kept = 0
    for j in range(sizes[1]):
        if support_of(state, k, others[j]) >= least and _index(found, sizes[0], others[j]) < 0:
            others[kept] = others[j]
            kept += 1
    sizes[1] = kept
    told, failures, mask = 0, 0, waiting[0]
    for c in range(cells.shape[0]):
        n = state.bins[state.at[cells[c, 1]] + cells[c, 2], k]
        if n <= 0 or work[0] > most_work or failures > MOST_FAILURES:
            continue
        if not cell_mask(state, k, cells[c], mask):
            continue
        own = np.searchsorted(state.start, cells[c, 0], side="right") - 1
        work[0] += mask.size
        fits, who = (0, -1) if whole else _fitting(mask, found, sizes[0], 2)
        if fits > 1 or (settled[c] and fits != 1):
            continue
        if not settled[c]:
            if fits + _fitting(mask, others, sizes[1], 2 - fits)[0] > 1:
                continue
            failures += 1
            more = _only(state, k, least, own, fits, found, others, sizes, room, work)
            if fits + more != 1:
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
                j = _index(others, sizes[1], only)
                if j >= 0:  # it is found, and no other any more
                    others[j] = others[sizes[1] - 1]
                    sizes[1] -= 1
        if whole:
            take_everywhere(state, found[who], k, n)
        else:
            take(state, own, found[who], k, n)
        told += n
    return told
