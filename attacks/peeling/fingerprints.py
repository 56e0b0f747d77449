"""Fingerprints: bins that hold one row give that row's probability, exactly.

A bin with a single row of gradient g and hessian h satisfies h = |g| (1 - |g|), a bin with k rows
of one and the same prediction and label h = |g| (1 - |g| / k). The same (g, h) shows in one bin of
each feature of the same node: these bins belong to one person.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import ANYTHING, UNIT, Ints, Residual, Sums
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]

_TYPES = (np.int32, np.int32, np.int64, np.int64, np.int32)
MOST_CANDIDATES = 64  # rows tried inside one bin by pairs, and 8 times as many one by one
UNKNOWN = -1
LEAST_ALONE = 2**23  # beside less, a row of probability 1e-7 or so could hide
MOST_SLACK = 1e3  # beyond it, too many sums of several rows look like one row


@dataclass(frozen=True, eq=False)
class Entries:
    """Bins in which a single row, or k equal ones, show."""

    # int32 (e,)
    cell: Ints
    column: Ints
    # int64 (e,): of one row, in units of 2^-30
    g: Sums
    h: Sums
    copies: Ints  # int32 (e,)

    def __len__(self) -> int:
        return len(self.cell)

    def where(self, chosen: NDArray[np.generic]) -> Entries:
        """Return some of them (mask or indices)."""
        return Entries(*(a[chosen] for a in vars(self).values()))

    @staticmethod
    def join(parts: list[Entries]) -> Entries:
        """Return all of them, each once."""
        every = [np.concatenate(a) for a in zip(*(vars(p).values() for p in parts), strict=True)]
        order = np.lexsort(every[::-1])
        every = [a[order] for a in every]
        new = np.ones(len(order), dtype=bool)
        new[1:] = np.any([np.diff(a) != 0 for a in every], axis=0)
        return Entries(*(a[new] for a in every))

    @staticmethod
    def empty(n: int) -> Entries:
        """Return so many entries to be filled in."""
        return Entries(*(np.empty(n, t) for t in _TYPES))


@dataclass(frozen=True, eq=False)
class Sightings:
    """A fingerprint in a node, with the bins it showed in."""

    cell: Ints  # int32 (s,): ascending
    # int64 (s,)
    g: Sums
    h: Sums
    columns: Ints  # int32 (s, d): column of `Residual.sums` by feature; -1 where it did not show
    copies: Ints  # int32 (s,): rows that share it
    # float64 (s,): log-odds behind it, and how far off they may be
    margin: Floats
    error: Floats

    def __len__(self) -> int:
        return len(self.cell)

    def where(self, chosen: NDArray[np.generic]) -> Sightings:
        """Return some of them (mask or indices)."""
        return Sightings(*(a[chosen] for a in vars(self).values()))


def singles(left: Residual) -> Entries:
    """Return every bin that holds a single row, or equal ones; mark the former."""
    size = int(np.count_nonzero(left.sums[..., 1] > 0))
    out = Entries.empty(size)
    n = _scan(left.sums, left.alone, left.slack, *vars(out).values())
    return out.where(np.arange(n))


def group(entries: Entries, feature_of: Ints, slack: Floats) -> Sightings:
    """Collect the entries of one node that show the same fingerprint.

    One that shows in two bins of a feature belongs to two people and is left out.
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
    most, least = np.zeros(n, np.int32), np.full(n, 2**31 - 1, np.int32)
    np.maximum.at(most, which, e.copies)
    np.minimum.at(least, which, e.copies)
    good = ~twice & (most == least)
    first = np.flatnonzero(new)[good]
    g, h = e.g[first], e.h[first]
    margin, error = margins(g, h, slack[e.cell[first]])
    return Sightings(e.cell[first], g, h, columns[good], most[good], margin, error)


def margins(g: Sums, h: Sums, slack: Floats) -> tuple[Floats, Floats]:
    """Return the log-odds of fingerprints and the largest error rounding leaves, (s,) each."""
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
    """Return how many equal rows add up to (G, H): 0 if none do, or it cannot be told."""
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
def _scan(sums, alone, slack, cell, column, g, h, copies):  # type: ignore[no-untyped-def]
    n = 0
    for c in range(sums.shape[0]):
        for b in range(sums.shape[1]):
            alone[c, b] = False
            if sums[c, b, 1] <= 0:
                continue
            k = _single(sums[c, b, 0], sums[c, b, 1], slack[c])
            alone[c, b] = k == 1 and slack[c] <= MOST_SLACK and sums[c, b, 1] >= LEAST_ALONE
            if k > 0:
                cell[n], column[n], copies[n] = c, b, k
                g[n], h[n] = sums[c, b, 0] // k, sums[c, b, 1] // k
                n += 1
    return n


def within(
    left: Residual, seen: Sightings, masks: NDArray[np.bool_], feature_of: Ints, work: float
) -> tuple[Entries, float]:
    """Decode bins of several rows with the fingerprints of their node, which are sorted by cell.

    A row that can be in no other bin of a feature is subtracted; of the others one or two are, if
    what then remains is nothing or a single row, and only if a single choice does that. ``masks``,
    bool (s, total_bins + d), tells which columns each may be in. About ``work`` sums are tried;
    returned is also how many were.
    """
    start = np.searchsorted(seen.cell, np.arange(len(left.sums) + 1)).astype(np.int64)
    certain = _certain(masks, feature_of)
    out = Entries.empty(8 * len(seen) + 64)
    parts = (seen.g, seen.h, seen.copies), (masks, certain)
    n, used = _within(left.sums, start, *parts, left.slack, work, tuple(vars(out).values()))
    return out.where(np.arange(n)), used


def _certain(masks: NDArray[np.bool_], feature_of: Ints) -> NDArray[np.bool_]:
    """Return the masks of the features in which only one column is left."""
    out = masks.copy()
    for f in range(int(feature_of.max()) + 1):
        at = feature_of == f
        out[:, at] &= (masks[:, at].sum(axis=1) == 1)[:, None]
    return out


@inner_kernel
def _choose_one(free, F, g, h, G, H, near, slack):  # type: ignore[no-untyped-def]
    """Find the one fingerprint that leaves a single row; return it, -1, and how many do."""
    x, choices = np.int64(-1), 0
    for i in range(F):
        s = free[i]
        if h[s] > H or _single(G - g[s], H - h[s], near + slack) != 1:
            continue
        if x >= 0 and _same(G - g[x], H - h[x], g[s], h[s], near + slack):
            continue  # the row that the first choice left
        x = s if x < 0 else x
        choices += 1
    return x, np.int64(-1), choices


@inner_kernel
def _choose_two(free, F, g, h, G, H, near, slack):  # type: ignore[no-untyped-def]
    """Find the one pair of fingerprints that leaves a single row; and how many pairs do."""
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
            F, sure = np.int64(0), 0  # a literal would compile what it is passed to once more
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
