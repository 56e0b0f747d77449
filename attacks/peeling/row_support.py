"""Find rows that class counts prove to exist.

A row that exists was drawn for most trees, with public probabilities. The probability that any row
has less support (`feasible_bins`) than `least_support` is at most `ERROR`. Every count of a bin
belongs to rows. If a single row of enough support fits it, this row exists, and was drawn as often
as the count shows. These draws are subtracted from its tree, which reduces the support of other
rows. Nothing else is subtracted, so that the remaining counts are draws of rows as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.class_histograms import AskedForest, Counts
from fedtrees.attacks.peeling.feasible_bins import (
    WORD,
    Longs,
    MaskedForest,
    build_masks,
    cell_mask,
    count,
    halve,
    has,
    holds,
    narrow,
    support_of,
    take,
    take_everywhere,
)  # fmt: skip
from fedtrees.attacks.peeling.rows import FEATURE, Ints, ReadRows
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.statistics import binomial_quantile

#: Probability that the threshold excludes any existing row of a source.
ERROR = 1e-6
#: Confidence of the rows, equal to that of rows without doubt in gradient histograms.
SURE = 0.999
#: Number of masks tried for one count.
MOST_TRIES = 40
#: Number of consecutive counts without a result that ends a round. The narrowest come first.
MOST_FAILURES = 200
#: Number of other possible rows that are stored for each class.
MOST_OTHERS = 1000


def least_support(trees: int, likely: float, rows: int) -> int:
    """Return the support that all rows have, except with a probability of `ERROR`.

    Parameters
    ----------
    trees : int
        Number of trees.
    likely : float
        Probability that a row is drawn for a tree.
    rows : int
        Number of rows.
    """
    if likely >= 1:
        return trees
    return max(0, binomial_quantile(ERROR / max(rows, 1), trees, likely))


class Search:
    """The search for rows in one source's counts.

    Parameters
    ----------
    forest : AskedForest
        The trees.
    counts : Counts
        Class counts of the source.
    likely : float
        Lower bound on the probability that a row is drawn for a tree. 1 if all trees contain all
        rows.
    rows : int
        Upper bound on the number of rows.
    most_work : float
        Limit on elementary steps.
    """

    def __init__(
        self, forest: AskedForest, counts: Counts, likely: float, rows: int, most_work: float
    ) -> None:
        self.forest, self.counts, self.most_work = forest, counts, most_work
        self.whole = likely >= 1
        self.least = least_support(forest.trees, likely, rows)
        self.most_rows = rows
        self.state = build_masks(forest, counts)
        self.work = np.zeros(1)

    def rows(self, known_rows: Ints, y: Longs) -> ReadRows:
        """Return rows in addition to known ones.

        The known rows are given as int32 (k, d) bins and int64 (k,) classes.
        """
        width = np.diff(self.forest.offsets).astype(np.int64)
        code = np.where(known_rows < 0, width - 1, known_rows).astype(np.int64)
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
        return ReadRows(
            np.where(rows == width - 1, -1, rows).astype(np.int32),
            labels.astype(np.int64),
            np.full(len(rows), SURE),
            float(self.work[0]),
            bool(self.work[0] <= self.most_work),
        )


class _Class:
    """Rows of one class: those that were found, and other possible ones."""

    def __init__(self, state: MaskedForest, k: int, known_rows: Longs, room: int) -> None:
        cells = _cells(state, k)
        volume = np.empty(len(cells))
        _volumes(state, k, cells, volume)
        some = np.argsort(volume, kind="stable")[: int(np.isfinite(volume).sum())]
        d = known_rows.shape[1]
        self.k, self.cells, self.n_known = k, cells[some], len(known_rows)
        self.settled = np.zeros(len(some), dtype=np.bool_)
        self.found = np.concatenate([known_rows, np.zeros((room, d), dtype=np.int64)])
        self.copies = np.zeros(len(self.found), dtype=np.int64)
        self.others = np.zeros((MOST_OTHERS, d), dtype=np.int64)
        self.sizes = np.array([len(known_rows), 0])

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Arrays that kernels receive."""
        return self.cells, self.settled, self.found, self.copies, self.others, self.sizes

    @property
    def new(self) -> Longs:
        """Rows that were found, int64 (m, d), with their number of proven copies."""
        some = slice(self.n_known, self.sizes[0])
        return np.repeat(self.found[some], self.copies[some], axis=0)


def _cells(state: MaskedForest, k: int) -> Longs:
    """Return bins with rows of class k in the last nodes, int64 (m, 3): node, pair, bin."""
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
    """Write the log of the number of possible rows in each bin, infinity if there is none."""
    mask = np.empty((state.offsets.shape[0] - 1, state.left.shape[1]), dtype=np.uint64)
    for c in range(cells.shape[0]):
        volume[c] = np.inf
        if cell_mask(state, k, cells[c], mask):
            volume[c] = 0.0
            for f in range(mask.shape[0]):
                volume[c] += np.log(count(mask[f]))


@inner_kernel
def _index(rows, n, row):  # type: ignore[no-untyped-def]
    """Return the index of a row among the first n, -1 if it is not there."""
    for i in range(n):
        same = True
        for f in range(row.shape[0]):
            same = same and rows[i, f] == row[f]
        if same:
            return i
    return -1


@inner_kernel
def _only(state, k, least, own_tree, fits, known_rows, other_rows, sizes, room, work):  # type: ignore[no-untyped-def]
    """Return how many new rows fit the first waiting mask, 2 if unknown.

    The last one is written to `only`, and all are stored as other possible rows.
    """
    queue, levels, stack, out, support, row, only = room
    more, tries, waits = 0, 0, 1
    while waits > 0 and fits + more < 2 and tries < MOST_TRIES:
        tries += 1
        waits -= 1
        now = queue[waits]
        if not narrow(state, k, least, own_tree, now, levels, stack, out, support, work):
            continue
        if halve(now, queue[waits + 1]):
            waits += 2
            if least == 0:
                break
            continue
        for f in range(row.shape[0]):
            for b in range(now.shape[1] * WORD):
                if has(now[f], b):
                    row[f] = b
        if _index(known_rows, sizes[0], row) >= 0:
            continue
        more += 1
        only[:] = row
        if sizes[1] < other_rows.shape[0] and _index(other_rows, sizes[1], row) < 0:
            other_rows[sizes[1]] = row
            sizes[1] += 1
    return 2 if waits > 0 else more


@inner_kernel
def _fitting(mask, rows, n, limit):  # type: ignore[no-untyped-def]
    """Return how many of the first n rows fit, at most `limit`, and the last of these."""
    fits, last = 0, -1
    for r in range(n):
        if holds(mask, rows[r]):
            fits += 1
            last = r
            if fits >= limit:
                break
    return fits, last


@kernel
def _look(  # type: ignore[no-untyped-def]
    state,
    k,
    least,
    all_in_trees,
    most_work,
    work,
    cells,
    is_solved,
    known_rows,
    copies,
    other_rows,
    sizes,
):
    """Examine the counts of cells for unique possible rows, and subtract the proven draws.

    `sizes` contains the number of found rows and the number of stored other rows.
    """
    d, words = known_rows.shape[1], state.left.shape[1]
    queue = np.empty((MOST_TRIES + 2, d, words), dtype=np.uint64)
    levels = np.empty((state.levels, d, words), dtype=np.uint64)
    stack = np.empty((2 * state.levels + 2, 2), dtype=np.int64)
    out, support = np.empty_like(queue[0]), np.empty((d, words * WORD), dtype=np.int32)
    row, only = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    room = queue, levels, stack, out, support, row, only
    n_kept = 0
    for j in range(sizes[1]):
        if (
            support_of(state, k, other_rows[j]) >= least
            and _index(known_rows, sizes[0], other_rows[j]) < 0
        ):
            other_rows[n_kept] = other_rows[j]
            n_kept += 1
    sizes[1] = n_kept
    n_draws, failures, mask = 0, 0, queue[0]
    for c in range(cells.shape[0]):
        n = state.bins[state.at[cells[c, 1]] + cells[c, 2], k]
        if n <= 0 or work[0] > most_work or failures > MOST_FAILURES:
            continue
        if not cell_mask(state, k, cells[c], mask):
            continue
        own_tree = np.searchsorted(state.start, cells[c, 0], side="right") - 1
        work[0] += mask.size
        fits, index = (0, -1) if all_in_trees else _fitting(mask, known_rows, sizes[0], 2)
        if fits > 1 or (is_solved[c] and fits != 1):
            continue
        if not is_solved[c]:
            if fits + _fitting(mask, other_rows, sizes[1], 2 - fits)[0] > 1:
                continue
            failures += 1
            more = _only(state, k, least, own_tree, fits, known_rows, other_rows, sizes, room, work)
            if fits + more != 1:
                continue
            is_solved[c] = True
            failures = 0
            if more == 1:
                if sizes[0] == known_rows.shape[0]:
                    continue
                index = sizes[0]
                known_rows[index] = only
                copies[index] = n if all_in_trees else 1
                sizes[0] += 1
                j = _index(other_rows, sizes[1], only)
                if j >= 0:  # it is found, and no other any more
                    other_rows[j] = other_rows[sizes[1] - 1]
                    sizes[1] -= 1
        if all_in_trees:
            take_everywhere(state, known_rows[index], k, n)
        else:
            take(state, own_tree, known_rows[index], k, n)
        n_draws += n
    return n_draws
