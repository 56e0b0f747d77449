"""Fingerprints: bins with a single row reveal the probability of this row exactly.

A bin with a single row of gradient g and hessian h satisfies h = |g| (1 - |g|), and a bin with k
rows of the same prediction and label satisfies h = |g| (1 - |g| / k). The same (g, h) appears in
one bin of each feature of the same node. These bins belong to one person. For example, (g, h) =
(0.3, 0.21) is a row of class 0 with the predicted probability 0.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.rows import ANYTHING, UNIT, Ints, Residual, Sums
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]

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
