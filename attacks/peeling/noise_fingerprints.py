"""Distinguish rows by the noise on their gradients.

If every hessian is 1, a bin's hessian is its number of rows. The noise on a row's gradient, one
draw per tree, is in the bins of all features and marks the row. A bin of one row shows its mark,
and few sets of the marks of a node have exactly the sum of a larger bin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import BinnedForest, Ints, ReadRows, Residual
from fedtrees.attacks.solvers.subset_sum import Column, NodeSums, certain_bins
from fedtrees.core.channel import Channel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

_ONE = 1 << 30  # the hessian of a row, in units of 2^-30
RIGHT = 0.999  # confidence of rows whose sums all match. Accidents are one in millions


@dataclass(frozen=True, eq=False)
class Marked:
    """The rows of a terminal node.

    Attributes
    ----------
    mark : int64 array, shape (n,)
        Gradient with its noise, in units of 2^-30.
    bins : int32 array, shape (n, d)
        -1 if missing, -2 if unknown.
    """

    mark: Longs  # int64 (n,)
    bins: Ints  # int32 (n, d)


def marked_rows(forest: BinnedForest, left: Residual, law: Channel) -> ReadRows:
    """Return the rows whose bins are certain, with the label that their marks make likely.

    Every row is in every tree. The number of identical rows is the largest that a tree shows.

    Parameters
    ----------
    forest : BinnedForest
        The trees.
    left : Residual
        Remaining sums. They are not changed.
    law : Channel
        Mechanism applied to a row's gradient.
    """
    marks_of: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for c, t in enumerate(forest.tree_of.tolist()):
        for mark, bins in _complete_marks(marked_in(forest, left, c)):
            marks_of[bins][t].append(mark)
    d = len(forest.offsets) - 1
    bins = np.array(list(marks_of), dtype=np.int32).reshape(-1, d)
    _, margin = forest.route(bins)
    true = [forest.gradients(margin, np.full(len(bins), y))[..., 0] for y in (0, 1)]
    law, prior = law.in_units_of(_ONE), float(forest.base_margin)
    y, sure, copies = [], [], []
    for seen, zero, one in zip(marks_of.values(), *true, strict=True):
        copies_shown = max(len(marks) for marks in seen.values())
        odds = prior + _odds(seen, zero, one, law, copies_shown)
        y.append(odds > 0)
        sure.append(RIGHT / (1 + np.exp(-np.abs(odds))))
        copies.append(np.full(copies_shown, len(copies)))
    at = np.concatenate([np.zeros(0, dtype=np.int64), *copies])
    labels, sure = (np.concatenate([np.zeros(0), *part]) for part in (y, sure))
    return ReadRows(bins[at], labels.astype(np.int64), sure, float(left.sums.size))


def _odds(
    seen: Mapping[int, list[int]], zero: Longs, one: Longs, law: Channel, n_rows: int
) -> Floats:
    """Return the log odds of the labels of identical rows given their marks, (most,).

    ``zero`` and ``one`` are the gradients of either label in every tree. Marks of several rows
    cannot be matched between trees, so that only those of one tree are used.
    """
    if n_rows > 1:
        t = max(seen, key=lambda t: len(seen[t]))
        seen = {t: seen[t]}
    total = np.zeros(n_rows)
    for t, marks in seen.items():
        y = np.array(marks, dtype=np.float64)[:, None]
        of_one, of_zero = (law.log_likelihood(y, x[[t]][None]) for x in (one, zero))
        total = total + of_one - of_zero
    return total


def _complete_marks(marked: Marked | None) -> Iterator[tuple[int, tuple[int, ...]]]:
    if marked is not None:
        for mark, bins in zip(marked.mark.tolist(), marked.bins.tolist(), strict=True):
            if min(bins) > -2:
                yield mark, tuple(bins)


def marked_in(forest: BinnedForest, left: Residual, c: int) -> Marked | None:
    """Return the rows of a terminal node. None unless every row shows its mark somewhere."""
    offsets, sums = forest.offsets, left.sums[c]
    d = len(offsets) - 1
    rows, rest = np.divmod(sums[:, 1], _ONE)
    n_rows = int(left.totals[c, 1] // _ONE)
    if rest.any() or (rows < 0).any() or (rows > n_rows).any() or not n_rows:
        return None
    columns = [np.append(np.arange(*offsets[f : f + 2]), offsets[-1] + f) for f in range(d)]
    shown = _Shown([sums[at, 0] for at in columns], [rows[at] for at in columns])
    while shown.alone() or (len(shown.place) < n_rows and shown.in_pairs()):
        pass
    if len(shown.place) == n_rows - 1:  # the last row is the remainder
        shown.place[int(left.totals[c, 0]) - sum(shown.place)] = [-1] * d
    mark = np.array(list(shown.place), dtype=np.int64)
    if len(mark) != n_rows or int(mark.sum()) != left.totals[c, 0]:
        return None
    bins = np.array(list(shown.place.values())).reshape(-1, d)
    sums_and_rows = np.stack([sums[:, 0], rows], axis=1)
    statistics = np.stack([mark, np.ones_like(mark)], axis=1)
    all_rows = np.arange(len(mark), dtype=np.int32)
    for f, at in enumerate(columns):
        open_ = bins[:, f] < 0
        if open_.any():
            fits = np.ones((len(mark), len(at)), dtype=bool) & (rows[at] > 0)
            fits[~open_] = np.arange(len(at)) == bins[~open_, f, None]
            node = NodeSums(0, all_rows, statistics, sums_and_rows[at])
            bins[:, f] = certain_bins(Column("", f, (node,), fits)).bin
    last = np.array([len(at) - 1 for at in columns])
    bins = np.where(bins == last, -1, np.where(bins < 0, -2, bins))
    return Marked(mark, bins.astype(np.int32))


class _Shown:
    """The visible marks of a node.

    Attributes
    ----------
    sums, rows : sequence of int64 array
        Gradients and rows of every bin, by feature.
    place : dict of int to list of int
        Bin of every mark by feature, -1 if unknown.
    """

    def __init__(self, sums: Sequence[Longs], rows: Sequence[Longs]) -> None:
        self.sums, self.rows = sums, rows
        self.place: dict[int, list[int]] = {}

    def _unmarked_bins(self, f: int) -> tuple[Longs, Longs]:
        """Return sums and rows of a feature's bins without the marks known to be in them."""
        rest, left = self.sums[f].copy(), self.rows[f].copy()
        for mark, where in self.place.items():
            if where[f] >= 0:
                rest[where[f]] -= mark
                left[where[f]] -= 1
        return rest, left

    def alone(self) -> bool:
        """Find marks in bins with one unknown row, and return whether there are any."""
        moved = False
        for f in range(len(self.sums)):
            rest, left = self._unmarked_bins(f)
            for b in np.flatnonzero(left == 1).tolist():
                self.place.setdefault(int(rest[b]), [-1] * len(self.sums))[f] = b
                moved = True
        return moved

    def in_pairs(self) -> bool:
        """Find marks from two bins with two unknown rows each, one of which has a known mark."""
        seen: dict[int, tuple[int, int, int]] = {}
        for f in range(len(self.sums)):
            rest, left = self._unmarked_bins(f)
            unplaced = [mark for mark, where in self.place.items() if where[f] < 0]
            for b in np.flatnonzero(left == 2).tolist():
                for mark in unplaced:
                    other = int(rest[b]) - mark
                    g, at, partner = seen.setdefault(other, (f, b, mark))
                    if partner != mark and g != f and other not in self.place:
                        where = self.place[other] = [-1] * len(self.sums)
                        where[f], where[g] = b, at
                        self.place[mark][f], self.place[partner][g] = b, at
                        return True
        return False
