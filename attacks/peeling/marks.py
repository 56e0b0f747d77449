"""Rows told apart by the noise on their gradients.

Where every hessian is 1 a bin's hessian says how many rows it holds, and the noise on a row's
gradient, one draw a tree, is in the bins of all features: it marks the row. A bin of one row shows
its mark, and of the marks of a node few sets have the very sum of a larger bin.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.subsets import Column, NodeSums, certain_bins
from fedtrees.attacks.peeling.peel import Peeled
from fedtrees.attacks.peeling.rows import BinnedForest, Ints, Residual
from fedtrees.core.channel import Channel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

_ONE = 1 << 30  # the hessian of a row, in units of 2^-30
RIGHT = 0.999  # of rows whose sums all add up; a chance match is one in millions


@dataclass(frozen=True, eq=False)
class Marked:
    """The rows of a terminal node."""

    mark: Longs  # int64 array, shape (n,): gradient with its noise, in units of 2^-30
    bins: Ints  # int32 array, shape (n, d): -1 where missing, -2 where it is open


def marked_rows(forest: BinnedForest, left: Residual, law: Channel) -> Peeled:
    """Return the rows whose bins are beyond doubt, each with the label that its marks make likely.

    Every row is in every tree: of rows that look alike there are as many as some tree shows.

    `left`: What no known row explains; it stays as it is.
    `law`: What is done to a row's gradient.
    """
    found: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for c, t in enumerate(forest.tree_of.tolist()):
        for mark, bins in _whole(marked_in(forest, left, c)):
            found[bins][t].append(mark)
    d = len(forest.offsets) - 1
    bins = np.array(list(found), dtype=np.int32).reshape(-1, d)
    _, margin = forest.route(bins)
    true = [forest.gradients(margin, np.full(len(bins), y))[..., 0] for y in (0, 1)]
    law, prior = law.within(_ONE), float(forest.base_margin)
    y, sure, copies = [], [], []
    for seen, zero, one in zip(found.values(), *true, strict=True):
        most = max(len(marks) for marks in seen.values())
        odds = prior + _odds(seen, zero, one, law, most)
        y.append(odds > 0)
        sure.append(RIGHT / (1 + np.exp(-np.abs(odds))))
        copies.append(np.full(most, len(copies)))
    at = np.concatenate([np.zeros(0, dtype=np.int64), *copies])
    labels, sure = (np.concatenate([np.zeros(0), *part]) for part in (y, sure))
    work = float(left.sums.size)
    return Peeled(bins[at], labels.astype(np.int64), sure, 0, work, True)


def _odds(
    seen: Mapping[int, list[int]], zero: Longs, one: Longs, law: Channel, most: int
) -> Floats:
    """Return what marks tell of the labels of rows that look alike, log odds, (most,).

    ``zero`` and ``one`` are the gradients of either label in every tree. Of several rows it is not
    known which of one tree is which of another: those of one tree count.
    """
    if most > 1:
        t = max(seen, key=lambda t: len(seen[t]))
        seen = {t: seen[t]}
    total = np.zeros(most)
    for t, marks in seen.items():
        y = np.array(marks, dtype=np.float64)[:, None]
        of_one, of_zero = (law.log_likelihood(y, x[[t]][None]) for x in (one, zero))
        total = total + of_one - of_zero
    return total


def _whole(found: Marked | None) -> Iterator[tuple[int, tuple[int, ...]]]:
    if found is not None:
        for mark, bins in zip(found.mark.tolist(), found.bins.tolist(), strict=True):
            if min(bins) > -2:
                yield mark, tuple(bins)


def marked_in(forest: BinnedForest, left: Residual, c: int) -> Marked | None:
    """Return the rows of a terminal node; None unless every row shows its mark somewhere."""
    offsets, sums = forest.offsets, left.sums[c]
    d = len(offsets) - 1
    rows, rest = np.divmod(sums[:, 1], _ONE)
    whole = int(left.totals[c, 1] // _ONE)
    if rest.any() or (rows < 0).any() or (rows > whole).any() or not whole:
        return None
    columns = [np.append(np.arange(*offsets[f : f + 2]), offsets[-1] + f) for f in range(d)]
    shown = _Shown([sums[at, 0] for at in columns], [rows[at] for at in columns])
    while shown.alone() or (len(shown.place) < whole and shown.in_pairs()):
        pass
    if len(shown.place) == whole - 1:  # the only one that is nowhere told from the others
        shown.place[int(left.totals[c, 0]) - sum(shown.place)] = [-1] * d
    mark = np.array(list(shown.place), dtype=np.int64)
    if len(mark) != whole or int(mark.sum()) != left.totals[c, 0]:
        return None
    bins = np.array(list(shown.place.values())).reshape(-1, d)
    told = np.stack([sums[:, 0], rows], axis=1)
    brings = np.stack([mark, np.ones_like(mark)], axis=1)
    everyone = np.arange(len(mark), dtype=np.int32)
    for f, at in enumerate(columns):
        open_ = bins[:, f] < 0
        if open_.any():
            fits = np.ones((len(mark), len(at)), dtype=bool) & (rows[at] > 0)
            fits[~open_] = np.arange(len(at)) == bins[~open_, f, None]
            node = NodeSums(0, everyone, brings, told[at])
            bins[:, f] = certain_bins(Column("", f, (node,), fits)).bin
    last = np.array([len(at) - 1 for at in columns])
    bins = np.where(bins == last, -1, np.where(bins < 0, -2, bins))
    return Marked(mark, bins.astype(np.int32))


class _Shown:
    """The marks of a node that show.

    `sums, rows`: sequence of int64 array. Gradients and rows of every bin, by feature.

    `place`: The bin of every mark by feature, -1 where that is not known.
    """

    def __init__(self, sums: Sequence[Longs], rows: Sequence[Longs]) -> None:
        self.sums, self.rows = sums, rows
        self.place: dict[int, list[int]] = {}

    def _left(self, f: int) -> tuple[Longs, Longs]:
        """Return sums and rows of a feature's bins without the marks known to be there."""
        rest, left = self.sums[f].copy(), self.rows[f].copy()
        for mark, where in self.place.items():
            if where[f] >= 0:
                rest[where[f]] -= mark
                left[where[f]] -= 1
        return rest, left

    def alone(self) -> bool:
        """Find marks in bins all other rows of which are known; tell whether there are any."""
        moved = False
        for f in range(len(self.sums)):
            rest, left = self._left(f)
            for b in np.flatnonzero(left == 1).tolist():
                self.place.setdefault(int(rest[b]), [-1] * len(self.sums))[f] = b
                moved = True
        return moved

    def in_pairs(self) -> bool:
        """Find marks that two bins of two rows tell, with another known mark each."""
        seen: dict[int, tuple[int, int, int]] = {}
        for f in range(len(self.sums)):
            rest, left = self._left(f)
            known = [mark for mark, where in self.place.items() if where[f] < 0]
            for b in np.flatnonzero(left == 2).tolist():
                for mark in known:
                    other = int(rest[b]) - mark
                    g, at, partner = seen.setdefault(other, (f, b, mark))
                    if partner != mark and g != f and other not in self.place:
                        where = self.place[other] = [-1] * len(self.sums)
                        where[f], where[g] = b, at
                        self.place[mark][f], self.place[partner][g] = b, at
                        return True
        return False
