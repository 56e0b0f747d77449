"""Rows that class counts leave no other choice for.

A row was drawn for a tree only if every node on its way has its class in each of its bins that was
asked for. How many trees say so is its support. A row that exists was drawn for most trees, by
coins whose odds are public: one of too little support does not exist. Some leaf of some tree holds
a row of a class in a bin; where a single row of enough support fits, it is that one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedtrees.attacks.peeling.counted import AskedForest, Counts
from fedtrees.attacks.peeling.rows import CUT, DEFAULT_LEFT, FEATURE, LEFT, RIGHT, Ints
from fedtrees.trees.jit import kernel

Mask = NDArray[np.bool_]
#: Columns of a row, one per feature, and its class.
Row = tuple[tuple[int, ...], int]
#: How likely a row that exists has less support than is asked for.
MISSED = 1e-3
#: By how many trees the support of a row exceeds that of all others, where others are ruled out.
AHEAD = 6
#: Leaves in a row that tell nothing new, after which the search ends.
MOST_FAILURES = 300
#: Confidence of rows that counts tell as they are: none of 354 that were measured was wrong. And
#: of those told by what is left: others may have been taken out too often with a row.
SURE, LESS_SURE = 0.99, 0.95
#: Masks tried for one leaf.
MOST_TRIES = 40


@dataclass(frozen=True, eq=False)
class Supported:
    """Rows that are sure.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 where missing.
    y : int64 array, shape (m,)
    confidence : float64 array, shape (m,)
        See `SURE` and docs/forests.md.
    open : int
        Leaves in which somebody is whom none of these rows can be.
    work : float
        Mask columns looked at.
    finished : bool
        False where the bound on work ended the search.
    """

    bins: Ints
    y: NDArray[np.int64]
    confidence: NDArray[np.float64]
    open: int
    work: float
    finished: bool


def least_support(trees: int, likely: float) -> int:
    """Return the support that a row has but for a chance of `MISSED`."""
    if likely >= 1:
        return trees
    return max(0, int(binom.ppf(MISSED, trees, likely)))


class Search:
    """The search for rows in one source's counts.

    Parameters
    ----------
    forest : AskedForest
    counts : Counts
    likely : float
        Probability that a row is drawn for a tree, at least.
    most_work : float
    once : bool
        Whether no row is drawn twice for a tree.
    """

    def __init__(
        self,
        forest: AskedForest,
        counts: Counts,
        likely: float,
        most_work: float,
        once: bool = False,
    ) -> None:
        self.forest, self.most_work = forest, most_work
        self._copies = 1 if once else 2**40
        self.counts = Counts(counts.bins.copy(), counts.nodes.copy())
        self.least = least_support(forest.trees, likely)
        self.enough = min(forest.trees, self.least + AHEAD) if self.least else 0
        self.work, self._support = 0.0, 0
        self._levels = np.empty((forest.levels, int(forest.offsets[-1])), dtype=bool)
        self._first = forest.offsets[:-1].astype(np.int64)

    def rows(self, known: Ints, y: NDArray[np.int64]) -> Supported:
        """Return rows beside those known, int32 (k, d) bins and int64 (k,) classes.

        What is found is taken out of the counts, wherever they have room for it: what is left
        tells more of the others.
        """
        found: dict[Row, float] = dict.fromkeys(
            zip(map(tuple, self._columns(known).tolist()), y.tolist(), strict=True), 1.0
        )
        n_known, new = len(found), list(found)
        while True:
            self._take_out(new)
            new, left = self._round(found)
            found |= dict.fromkeys(new, LESS_SURE if len(found) > n_known else SURE)
            if not new or self.work > self.most_work:
                break
        rows = list(found)[n_known:]
        columns = np.array([c for c, _ in rows], dtype=np.int64).reshape(-1, len(self._first))
        bins = columns - self._first
        bins[columns == self.forest.offsets[1:] - 1] = -1
        labels = np.array([k for _, k in rows], dtype=np.int64)
        done = self.work <= self.most_work
        sure = np.array([found[r] for r in rows], dtype=np.float64)
        return Supported(bins.astype(np.int32), labels, sure, left, self.work, done)

    def _round(self, found: Collection[Row]) -> tuple[list[Row], int]:
        """Return the rows that leaves tell besides, and how many leaves stay open."""
        new: list[Row] = []
        left = failures = 0
        for leaf, column, k in self._sightings():
            if self.work > self.most_work or failures > MOST_FAILURES:
                break
            mask = self._mask(leaf, column, k)
            if any(c == k and mask[list(x)].all() for x, c in new):
                continue
            only = self.only_row(mask, k)
            row = None if only is None else (tuple(only.tolist()), k)
            if row is None or row in found:
                left += 1
                failures += 1
            else:
                failures = 0
                new.append(row)
        return new, left

    def _take_out(self, rows: Sequence[Row]) -> None:
        """Take rows out of the counts of every tree, as often as these have room for them."""
        for columns, k in rows:
            at = np.array(columns, dtype=np.int64)
            _subtract(*self.forest.arrays, self.counts.bins, self.counts.nodes, k, at, self._copies)

    def only_row(self, mask: Mask, k: int) -> NDArray[np.int64] | None:
        """Return the columns of the only row within a mask that has enough support, (d,)."""
        waiting, only = [mask], None
        for _ in range(MOST_TRIES):
            if not waiting:
                return only
            narrowed = self.narrow(waiting.pop(), k)
            if narrowed is None:
                continue
            choices = np.add.reduceat(narrowed, self._first, dtype=np.int64)
            if choices.max() == 1:
                if only is not None or self._support < self.enough:
                    return None
                only = np.flatnonzero(narrowed)
                continue
            f = int(np.where(choices > 1, choices, 2**31).argmin())
            a, b = self.forest.offsets[f : f + 2]
            for c in a + np.flatnonzero(narrowed[a:b]):
                one = narrowed.copy()
                one[a:b] = False
                one[c] = True
                waiting.append(one)
        return only if not waiting else None

    def narrow(self, mask: Mask, k: int) -> Mask | None:
        """Leave out columns without support, until all have it; None where nothing is left."""
        while True:
            support = np.zeros(len(mask), dtype=np.int64)
            self.work += _supports(
                *self.forest.arrays, self.counts.bins, self.counts.nodes, k, mask,
                self._levels, support,
            )  # fmt: skip
            kept = mask & (support >= self.least)
            if not np.logical_or.reduceat(kept, self._first).all():
                return None
            if (kept == mask).all():
                self._support = int(support[mask].min())
                return kept
            mask = kept

    def _columns(self, bins: Ints) -> NDArray[np.int64]:
        last = self.forest.offsets[1:].astype(np.int64) - 1
        return np.where(bins < 0, last, self._first + bins)

    def _mask(self, leaf: int, column: int, k: int) -> Mask:
        mask = np.ones(int(self.forest.offsets[-1]), dtype=bool)
        _path_mask(*self.forest.arrays, self.counts.bins, k, leaf, self._above, mask)
        f = int(np.searchsorted(self._first, column, side="right")) - 1
        mask[self.forest.offsets[f] : self.forest.offsets[f + 1]] = False
        mask[column] = True
        return mask

    def _sightings(self) -> list[tuple[int, int, int]]:
        """Return leaves, columns of the last split there and classes of rows, narrowest first."""
        nodes = self.forest.nodes
        self._above = np.full(len(nodes), -1, dtype=np.int64)
        inner = np.flatnonzero(nodes[:, FEATURE] >= 0)
        for side in (LEFT, RIGHT):
            self._above[nodes[inner, side]] = inner
        parts = []
        for k in range(self.counts.nodes.shape[1]):
            some = np.flatnonzero(
                (nodes[:, FEATURE] < 0) & (self.counts.nodes[:, k] > 0) & (self._above >= 0)
            )
            size = np.empty((len(some), 2 + int(np.diff(self.forest.offsets).max())))
            _sizes(*self.forest.arrays, self.counts.bins, k, some, self._above, size)
            row, place = np.nonzero(np.isfinite(size[:, 1:]))
            column = self.forest.offsets[nodes[self._above[some[row]], FEATURE]] + place
            parts.append((some[row], column, np.full(len(row), k), size[row, 0]))
        leaf, column, label, volume = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.argsort(volume, kind="stable")
        return list(
            zip(leaf[order].tolist(), column[order].tolist(), label[order].tolist(), strict=True)
        )


@kernel
def _on_side(nodes, offsets, v, b, right):  # type: ignore[no-untyped-def]
    """Tell whether column b of the split feature of node v goes to this side."""
    f = nodes[v, FEATURE]
    code = b - offsets[f]
    left = nodes[v, DEFAULT_LEFT] == 1 if b == offsets[f + 1] - 1 else code <= nodes[v, CUT]
    return left != right


@kernel
def _filter(pairs, feature, at, offsets, bins, k, v, mask):  # type: ignore[no-untyped-def]
    """Leave the columns that have class k at node v; tell whether every feature has one."""
    for p in range(pairs[v], pairs[v + 1]):
        f = feature[p]
        alive = False
        for b in range(offsets[f], offsets[f + 1]):
            if mask[b]:
                mask[b] = bins[at[p] + b - offsets[f], k] > 0
                alive = alive or mask[b]
        if not alive:
            return False
    return True


@kernel
def _enter(nodes, offsets, v, right, mask):  # type: ignore[no-untyped-def]
    """Leave the columns that go to one side of node v; tell whether there are any."""
    f = nodes[v, FEATURE]
    alive = False
    for b in range(offsets[f], offsets[f + 1]):
        if mask[b]:
            mask[b] = _on_side(nodes, offsets, v, b, right)
            alive = alive or mask[b]
    return alive


@kernel
def _push(stack, n, v, level, right, parent):  # type: ignore[no-untyped-def]
    stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3] = v, level, right, parent


@kernel
def _supports(  # type: ignore[no-untyped-def]
    start, nodes, pairs, feature, at, offsets, bins, totals, k, mask, levels, support
):
    """Count, for every column, the trees in which some row within the mask may have been."""
    width = mask.shape[0]
    depth = levels.shape[0]
    # a node waits with its depth, whether it is a right child, and its parent
    stack = np.empty((2 * depth + 2, 4), dtype=np.int64)
    out = np.empty(width, dtype=np.bool_)
    work = 0.0
    for t in range(start.shape[0] - 1):
        out[:] = False
        _push(stack, 0, start[t], 0, 0, -1)
        n = 1
        while n > 0:
            n -= 1
            v, level, right, parent = stack[n, 0], stack[n, 1], stack[n, 2], stack[n, 3]
            if totals[v, k] == 0:
                continue
            work += width / 8  # eight columns take about 20 nanoseconds
            now = levels[level]
            now[:] = mask if level == 0 else levels[level - 1]
            if parent >= 0 and not _enter(nodes, offsets, parent, right == 1, now):
                continue
            if not _filter(pairs, feature, at, offsets, bins, k, v, now):
                continue
            if nodes[v, FEATURE] < 0:
                for b in range(width):
                    out[b] = out[b] or now[b]
            else:
                _push(stack, n, nodes[v, LEFT], level + 1, 0, v)
                _push(stack, n + 1, nodes[v, RIGHT], level + 1, 1, v)
                n += 2
        for b in range(width):
            support[b] += out[b]
    return work


@kernel
def _subtract(start, nodes, pairs, feature, at, offsets, bins, totals, k, row, most):  # type: ignore[no-untyped-def]
    """Take a row out of every tree, as many times as all counts on its way have it."""
    for t in range(start.shape[0] - 1):
        room = np.int64(most)
        for take in range(2):
            v = np.int64(start[t])
            while True:
                room = min(room, totals[v, k])
                if take:
                    totals[v, k] -= room
                for p in range(pairs[v], pairs[v + 1]):
                    f = feature[p]
                    i = at[p] + row[f] - offsets[f]
                    room = min(room, bins[i, k])
                    if take:
                        bins[i, k] -= room
                if nodes[v, FEATURE] < 0:
                    break
                b = row[nodes[v, FEATURE]]
                v = np.int64(nodes[v, LEFT if _on_side(nodes, offsets, v, b, False) else RIGHT])


@kernel
def _path_mask(start, nodes, pairs, feature, at, offsets, bins, k, leaf, above, mask):  # type: ignore[no-untyped-def]
    """Leave the columns that rows of class k in a leaf can have, as its own tree tells."""
    v = leaf
    _filter(pairs, feature, at, offsets, bins, k, v, mask)
    while above[v] >= 0:
        parent = above[v]
        _enter(nodes, offsets, parent, nodes[parent, RIGHT] == v, mask)
        _filter(pairs, feature, at, offsets, bins, k, parent, mask)
        v = parent


@kernel
def _sizes(start, nodes, pairs, feature, at, offsets, bins, k, some, above, size):  # type: ignore[no-untyped-def]
    """Tell the log of how many rows fit each leaf, and the columns of its last split that do."""
    mask = np.empty(offsets[offsets.shape[0] - 1], dtype=np.bool_)
    for i in range(some.shape[0]):
        mask[:] = True
        _path_mask(start, nodes, pairs, feature, at, offsets, bins, k, some[i], above, mask)
        size[i, :] = np.inf
        size[i, 0] = 0.0
        last = nodes[above[some[i]], FEATURE]
        for f in range(offsets.shape[0] - 1):
            n = 0
            for b in range(offsets[f], offsets[f + 1]):
                if mask[b]:
                    n += 1
                    if f == last:
                        size[i, 1 + b - offsets[f]] = 0.0
            if f != last:
                size[i, 0] += np.log(max(n, 1))
