"""Fingerprints: bins with a single row reveal the probability of this row exactly.

A bin with a single row of gradient g and hessian h satisfies h = |g| (1 - |g|), and a bin with k
rows of the same prediction and label satisfies h = |g| (1 - |g| / k). The same (g, h) appears in
one bin of each feature of the same node. These bins belong to one person. For example, (g, h) =
(0.3, 0.21) is a row of class 0 with the predicted probability 0.3.

If every hessian is 1, a bin's hessian is its number of rows. The noise on a row's gradient, one
draw per tree, is then in the bins of all features and marks the row (`marked_rows`). A bin of one
row shows its mark, and few sets of the marks of a node have exactly the sum of a larger bin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import (
    ANYTHING,
    UNIT,
    BinnedForest,
    Ints,
    ReadRows,
    Residual,
    Sums,
)
from fedtrees.attacks.solvers.subset_sum import Column, NodeSums, certain_bins
from fedtrees.core.channel import Channel
from fedtrees.core.compilation import inner_kernel, kernel

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
        for mark, marked_bins in _complete_marks(marked_in(forest, left, c)):
            marks_of[marked_bins][t].append(mark)
    d = len(forest.offsets) - 1
    bins = np.array(list(marks_of), dtype=np.int32).reshape(-1, d)
    _, margin = forest.route(bins)
    true = [forest.gradients(margin, np.full(len(bins), y))[..., 0] for y in (0, 1)]
    law, prior = law.in_units_of(_ONE), float(forest.base_margin)
    y, sure = list[NDArray[np.bool_]](), list[NDArray[np.float64]]()
    copies = list[NDArray[np.int64]]()
    for seen, zero, one in zip(marks_of.values(), *true, strict=True):
        copies_shown = max(len(marks) for marks in seen.values())
        odds = prior + _odds(seen, zero, one, law, copies_shown)
        y.append(odds > 0)
        sure.append(RIGHT / (1 + np.exp(-np.abs(odds))))
        copies.append(np.full(copies_shown, len(copies)))
    at = np.concatenate([np.zeros(0, dtype=np.int64), *copies])
    labels = np.concatenate([np.zeros(0), *y]).astype(np.int64)
    certainty = np.concatenate([np.zeros(0), *sure])
    return ReadRows(bins[at], labels, certainty, float(left.sums.size))


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


_TYPES = (np.int32, np.int32, np.int64, np.int64, np.int32)
MOST_CANDIDATES = 64  # rows per bin that are tried in pairs. 8 times as many are tried singly
UNKNOWN = -1
LEAST_ALONE = 2**23  # a smaller hessian could hide a second row of probability 1e-7
MOST_SLACK = 1e3  # with a larger error, too many sums of several rows resemble one row


@dataclass(frozen=True, eq=False)
class Entries:
    """Bins that contain a single row, or k equal ones.

    Attributes
    ----------
    cell, column : int32 array, shape (e,)
        Cell and column of the bin.
    g, h : int64 array, shape (e,)
        Gradient and hessian of one row, in units of 2^-30.
    copies : int32 array, shape (e,)
        Number of rows.
    """

    cell: Ints
    column: Ints
    g: Sums
    h: Sums
    copies: Ints  # int32 (e,)

    def __len__(self) -> int:
        return len(self.cell)

    def where(self, chosen: NDArray[np.generic]) -> Entries:
        """Return the entries selected by a mask or by indices."""
        return Entries(*(a[chosen] for a in vars(self).values()))

    @staticmethod
    def join(parts: list[Entries]) -> Entries:
        """Return the union, sorted, without duplicates."""
        merged = [np.concatenate(a) for a in zip(*(vars(p).values() for p in parts), strict=True)]
        order = np.lexsort(merged[::-1])
        merged = [a[order] for a in merged]
        new = np.ones(len(order), dtype=bool)
        new[1:] = np.any([np.diff(a) != 0 for a in merged], axis=0)
        return Entries(*(a[new] for a in merged))

    @staticmethod
    def empty(n: int) -> Entries:
        """Return n uninitialised entries."""
        return Entries(*(np.empty(n, t) for t in _TYPES))


@dataclass(frozen=True, eq=False)
class Sightings:
    """A fingerprint in a node, with the bins in which it appears.

    Attributes
    ----------
    cell : int32 array, shape (s,)
        Ascending.
    g, h : int64 array, shape (s,)
        Gradient and hessian of one row.
    columns : int32 array, shape (s, d)
        Column of `Residual.sums` by feature, -1 if it did not appear.
    copies : int32 array, shape (s,)
        Number of rows with this fingerprint.
    margin, error : float64 array, shape (s,)
        Log-odds of the row, and their largest error.
    """

    cell: Ints  # int32 (s,)
    g: Sums
    h: Sums
    columns: Ints  # int32 (s, d)
    copies: Ints  # int32 (s,)
    margin: Floats
    error: Floats

    def __len__(self) -> int:
        return len(self.cell)

    def where(self, chosen: NDArray[np.generic]) -> Sightings:
        """Return the sightings selected by a mask or by indices."""
        return Sightings(*(a[chosen] for a in vars(self).values()))


def singles(left: Residual) -> Entries:
    """Return every bin with a single row or equal rows, and mark those with a single row."""
    size = int(np.count_nonzero(left.sums[..., 1] > 0))
    out = Entries.empty(size)
    n = _scan(left.sums, left.alone, left.slack, *vars(out).values())
    return out.where(np.arange(n))


def group(entries: Entries, feature_of: Ints, slack: Floats) -> Sightings:
    """Collect the entries of a node with the same fingerprint.

    A fingerprint in two bins of a feature belongs to two persons and is left out.

    Parameters
    ----------
    entries : Entries
        Bins with a single row.
    feature_of : int32 array
        Feature of every column.
    slack : float64 array, shape (cells,)
        Largest errors of the sums.
    """
    d = int(feature_of.max()) + 1
    order = np.lexsort((entries.h, entries.g, entries.cell))
    e = entries.where(order)
    near = 2 * slack[e.cell[1:]]
    new = np.ones(len(e), dtype=bool)
    new[1:] = (np.diff(e.cell) > 0) | (np.diff(e.g) > near) | (np.abs(np.diff(e.h)) > near)
    which = np.cumsum(new) - 1
    n = int(new.sum())
    columns = np.full((n, d), UNKNOWN, dtype=np.int32)
    f = feature_of[e.column]
    columns[which, f] = e.column
    twice = np.zeros(n, dtype=bool)
    np.logical_or.at(twice, which, columns[which, f] != e.column)
    largest, least = np.zeros(n, np.int32), np.full(n, 2**31 - 1, np.int32)
    np.maximum.at(largest, which, e.copies)
    np.minimum.at(least, which, e.copies)
    good = ~twice & (largest == least)
    first = np.flatnonzero(new)[good]
    g, h = e.g[first], e.h[first]
    margin, error = margins(g, h, slack[e.cell[first]])
    return Sightings(e.cell[first], g, h, columns[good], largest[good], margin, error)


def margins(g: Sums, h: Sums, slack: Floats) -> tuple[Floats, Floats]:
    """Return the log-odds of fingerprints and the largest rounding errors, (s,) each.

    Parameters
    ----------
    g, h : int64 array, shape (s,)
        Gradients and hessians.
    slack : float64 array, shape (s,)
        Largest errors of the sums.
    """
    a, q = np.abs(g) * UNIT, h * UNIT
    p = np.where(g < 0, 1 - a, a)
    # p - 1 in float32 loses the last bits of a small p, which p (1 - p) keeps
    exact = (g < 0) & (p < 0.25)
    p = np.where(exact, (1 - np.sqrt(np.maximum(1 - 4 * q, 0))) / 2, p)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    m = np.log(p / (1 - p))
    error = (p * 2.0**-22 + (2 + 2 * slack) * UNIT) / (p * (1 - p)) + np.abs(m) * 2.0**-22
    return m, error


@inner_kernel
def _single(G, H, slack):  # type: ignore[no-untyped-def]
    """Return the number of equal rows with the sum (G, H), 0 if there is none or it is unclear."""
    a, h = abs(G) * UNIT, H * UNIT
    if h <= 0.0 or a <= h:
        return 0
    ratio = a * a / (a - h)
    k = np.int64(round(min(ratio, 1e9)))
    if k < 1 or (k > 1 and (slack > 0 or G % k != 0 or H % k != 0)):
        return 0
    a, h = a / k, h / k
    if a > 1.0 + slack * UNIT:
        return 0
    # float32 rounds p, 1 - p and their product to 24 bits
    p = 1.0 - a if G < 0 else a
    tolerance = 1.5 + 64.0 * h + 2.0 * slack
    if p < 0.5:
        tolerance += 32.0 * p
        if G < 0:
            tolerance += 32.0 * (1.0 - 2.0 * p)
    # the sum of two rows must differ from one row by more than the tolerance
    if h * h < 4.0 * tolerance * UNIT:
        return 0
    return k if abs(h - a * (1.0 - a)) <= tolerance * UNIT else np.int64(0)


@kernel
def _scan(sums, single, slack, cell, column, g, h, copies):  # type: ignore[no-untyped-def]
    n = 0
    for c in range(sums.shape[0]):
        for b in range(sums.shape[1]):
            single[c, b] = False
            if sums[c, b, 1] <= 0:
                continue
            k = _single(sums[c, b, 0], sums[c, b, 1], slack[c])
            single[c, b] = k == 1 and slack[c] <= MOST_SLACK and sums[c, b, 1] >= LEAST_ALONE
            if k > 0:
                cell[n], column[n], copies[n] = c, b, k
                g[n], h[n] = sums[c, b, 0] // k, sums[c, b, 1] // k
                n += 1
    return n


def within(
    left: Residual, seen: Sightings, masks: NDArray[np.bool_], feature_of: Ints, work: float
) -> tuple[Entries, float]:
    """Decode bins of several rows with the fingerprints of their node, which are sorted by cell.

    A row that can be in no other bin of a feature is subtracted. Of the remaining rows one or two
    are subtracted if the remainder is then empty or a single row, and only if exactly one choice
    achieves this.

    Parameters
    ----------
    left : Residual
        Remaining sums.
    seen : Sightings
        Fingerprints.
    masks : bool array, shape (s, total_bins + d)
        Possible columns of each fingerprint.
    feature_of : int32 array
        Feature of every column.
    work : float
        Approximate number of sums to try.

    Returns
    -------
    entries : Entries
        Decoded rows.
    used : float
        Number of tried sums.
    """
    start = np.searchsorted(seen.cell, np.arange(len(left.sums) + 1)).astype(np.int64)
    certain = _certain(masks, feature_of)
    out = Entries.empty(8 * len(seen) + 64)
    parts = (seen.g, seen.h, seen.copies), (masks, certain)
    n, used = _within(left.sums, start, *parts, left.slack, work, tuple(vars(out).values()))
    return out.where(np.arange(n)), used


def _certain(masks: NDArray[np.bool_], feature_of: Ints) -> NDArray[np.bool_]:
    """Return the masks of the features in which only one column is possible."""
    out = masks.copy()
    for f in range(int(feature_of.max()) + 1):
        at = feature_of == f
        out[:, at] &= (masks[:, at].sum(axis=1) == 1)[:, None]
    return out


@inner_kernel
def _choose_one(free, F, g, h, G, H, near, slack):  # type: ignore[no-untyped-def]
    """Return the fingerprint that leaves a single row, -1, and the number of such choices."""
    x, choices = np.int64(-1), 0
    for i in range(F):
        s = free[i]
        if h[s] > H or _single(G - g[s], H - h[s], near + slack) != 1:
            continue
        if x >= 0 and _same(G - g[x], H - h[x], g[s], h[s], near + slack):
            continue  # it is the row that the first choice leaves
        x = s if x < 0 else x
        choices += 1
    return x, np.int64(-1), choices


@inner_kernel
def _choose_two(free, F, g, h, G, H, near, slack):  # type: ignore[no-untyped-def]
    """Return the pair of fingerprints that leaves a single row, and the number of such pairs."""
    x, y, choices = np.int64(-1), np.int64(-1), 0
    wide = near + 2 * slack
    for i in range(F):
        for j in range(i):
            s, t = free[i], free[j]
            G2, H2 = G - g[s] - g[t], H - h[s] - h[t]
            if H2 < 0 or _single(G2, H2, wide) != 1:
                continue
            if x >= 0:
                rest_g, rest_h = G - g[x] - g[y], H - h[x] - h[y]
                inside_s = s in (x, y) or _same(rest_g, rest_h, g[s], h[s], wide)
                inside_t = t in (x, y) or _same(rest_g, rest_h, g[t], h[t], wide)
                if inside_s and inside_t:
                    continue
            else:
                x, y = s, t
            choices += 1
    return x, y, choices


@inner_kernel
def _same(g1, h1, g2, h2, near):  # type: ignore[no-untyped-def]
    return abs(g1 - g2) <= 2 * near and abs(h1 - h2) <= 2 * near


@kernel
def _within(sums, start, seen, where, off, work, out):  # type: ignore[no-untyped-def]
    g, h, copies = seen
    masks, certain = where
    out_cell, out_column, out_g, out_h, out_copies = out
    n, used = 0, 0.0
    room = out_cell.shape[0]
    free = np.empty(8 * MOST_CANDIDATES, dtype=np.int64)
    for c in range(sums.shape[0]):
        a, b, slack = start[c], start[c + 1], off[c]
        if a == b:
            continue
        for k in range(sums.shape[1]):
            G, H = sums[c, k, 0], sums[c, k, 1]
            if 4 * slack >= H or H > ANYTHING // 2:
                continue
            F = np.int64(0)  # a literal would compile the callee once more
            sure = 0
            for s in range(a, b):
                if not masks[s, k]:
                    continue
                if certain[s, k]:
                    G -= g[s] * copies[s]
                    H -= h[s] * copies[s]
                    sure += 1
                elif free.shape[0] > F and copies[s] == 1:
                    free[F] = s
                    F += 1
            if 4 * slack >= H or n + 3 > room:
                continue  # nothing left to explain
            near = (2 + sure) * slack
            one = _single(G, H, near)
            if one > 0:
                if sure > 0:
                    out_cell[n], out_column[n], out_copies[n] = c, k, one
                    out_g[n], out_h[n] = G // one, H // one
                    n += 1
                continue
            if used > work:
                continue
            used += F
            x, y, choices = _choose_one(free, F, g, h, G, H, near, slack)
            if choices == 0 and F <= MOST_CANDIDATES:
                used += F * F / 2
                x, y, choices = _choose_two(free, F, g, h, G, H, near, slack)
            if choices != 1:
                continue
            rest_g, rest_h = G, H
            for s in (x, y):
                if s >= 0:
                    out_cell[n], out_column[n], out_copies[n] = c, k, 1
                    out_g[n], out_h[n] = g[s], h[s]
                    rest_g -= g[s]
                    rest_h -= h[s]
                    n += 1
            out_cell[n], out_column[n], out_copies[n] = c, k, 1
            out_g[n], out_h[n] = rest_g, rest_h
            n += 1
    return n, used
