"""Read rows off gradient histograms: a row's probability is its fingerprint.

Beyond the papers. A bin that holds one victim satisfies h = |g| (1 - |g|), which gives that row's
probability p = g + label. After a few trees nearly every row has its own p, and the same p shows
in one bin of each feature of the same node: the bins of one person are linked. A row with a bin
for every feature has a computable margin, which must give p again (a checksum), and every other
tree's histograms must have room for it. Accepted rows are taken out of all histograms of all
trees, which leaves more bins with a single row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.timberstrike.bins import (
    BinnedForest,
    Residual,
    fits,
    margins_before,
    take_out,
)
from fedtrees.attacks.timberstrike.routing import gradients

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

TOLERANCE = 1.5e-6  # float32 gradients in double sums
FIRST_TREE = 8  # earlier trees have few distinct margins: fingerprints are shared
# Bound on subset sums tried per node, by round: cheap nodes first, and what they give makes the
# others cheaper. The total bounds an attack on large tables to well under a minute.
NODE_WORK = (1e5, 1e6, 1e7, 1e8, 1e8, 1e8, 1e8)
TOTAL_WORK = 1.5e9
NO_LUCK_AFTER = 3  # rounds without a new row end the search once nodes have their full work
SMALLEST_HESSIAN = 1e-3  # a fingerprint found by subtraction must carry more than rounding
MOST_FINGERPRINTS = 512  # per node
PAIRS_ONLY, TRIPLES_ONLY = 120, 40  # fingerprints above which larger subsets are not tried


@dataclass(frozen=True, eq=False)
class Peeled:
    """Rows read off the histograms.

    Attributes
    ----------
    bins : int32 array, shape (m, d)
        -1 where missing.
    y : int64 array, shape (m,)
    rejected : int
        Rows whose checksum failed.
    """

    bins: Ints
    y: NDArray[np.int64]
    rejected: int


def peel(forest: BinnedForest, left: Residual, offsets: Ints, most: int) -> Peeled:
    """Read off rows and take them out of ``left``, in place, until nothing more is found.

    Parameters
    ----------
    forest : BinnedForest
    left : Residual
        Victims' histograms.
    offsets : int32 array, shape (d + 1,)
    most : int
        Never accept more rows than this.
    """
    d = len(offsets) - 1
    found_bins, found_y, rejected = [np.zeros((0, d), np.int32)], [np.zeros(0, np.int64)], 0
    room, work = most, TOTAL_WORK
    for r, node_work in enumerate(NODE_WORK):
        before = room
        for t in range(FIRST_TREE, len(forest.start) - 1):
            if room == 0 or forest.feature[forest.start[t]] < 0:
                continue
            cells = np.flatnonzero(left.tree == t)
            bins, g, where, used = _solve_tree(left, cells, offsets, min(node_work, work))
            work = max(work - used, 0.0)
            good = _checksum(forest, bins, g, where, t)
            good[good] = fits(
                forest, left, offsets, bins[good], (g[good] < 0).astype(np.int64), 4 * TOLERANCE
            )
            rejected += int((~good).sum())
            bins, y = bins[good][:room], (g[good] < 0).astype(np.int64)[:room]
            if len(y):
                take_out(forest, left, offsets, bins, y)
                found_bins.append(bins)
                found_y.append(y)
                room -= len(y)
        if room == 0 or work == 0 or (room == before and r >= NO_LUCK_AFTER):
            break
    return Peeled(np.concatenate(found_bins), np.concatenate(found_y), rejected)


def _solve_tree(
    left: Residual, cells: NDArray[np.intp], offsets: Ints, work: float
) -> tuple[Ints, Floats, NDArray[np.int64], float]:
    """Return fully decoded rows of some nodes: bins (m, d), gradient (m,), cell (m,); and work."""
    parts = [_solve_node(left.sums[c], left.totals[c], offsets, TOLERANCE, work) for c in cells]
    used = float(sum(w for _, _, w in parts))
    d = len(offsets) - 1
    if not parts:
        return np.zeros((0, d), np.int32), np.zeros(0), np.zeros(0, np.int64), used
    where = np.repeat(cells, [len(g) for _, g, _ in parts]).astype(np.int64)
    bins, g = np.concatenate([b for b, _, _ in parts]), np.concatenate([g for _, g, _ in parts])
    return bins, g, where, used


def _checksum(
    forest: BinnedForest, bins: Ints, g: Floats, where: NDArray[np.int64], t: int
) -> NDArray[np.bool_]:
    """Check rows against the tree they were read from: same node, same probability."""
    y = (g < 0).astype(np.int64)
    cell, _ = forest.walk(bins, t)
    again, _ = gradients(margins_before(forest, bins, t), y)
    good: NDArray[np.bool_] = (cell == where) & (np.abs(again - g) <= 2 * TOLERANCE)
    # one person once: the same bins and margin twice would be two people, or one counted twice
    keys = np.column_stack([bins, y])
    _, first = np.unique(keys, axis=0, return_index=True)
    once = np.zeros(len(y), dtype=bool)
    once[first] = True
    return good & once


@njit(cache=True)
def _single(G, H, tol):  # type: ignore[no-untyped-def]
    a = abs(G)
    return 3 * tol < H and a < 1.0 and abs(H - a * (1.0 - a)) <= tol


@njit(cache=True)
def _known(fg, K, g, tol):  # type: ignore[no-untyped-def]
    for k in range(K):
        if abs(fg[k] - g) <= tol:
            return k
    return -1


@njit(cache=True)
def _price(F):  # type: ignore[no-untyped-def]
    """Return how many subsets `_subset` may try among ``F`` fingerprints."""
    n = F * F / 2.0
    if F <= PAIRS_ONLY:
        n += F**3 / 6.0
    if F <= TRIPLES_ONLY:
        n += F**4 / 24.0
    return n


@njit(cache=True)
def _subset(fg, fh, free, F, G, H, tol, pick):  # type: ignore[no-untyped-def]
    """Find the one subset of 2 to 4 fingerprints with sums (G, H); return its size, 0 if none.

    -1 if there is more than one.
    """
    found = 0
    for a in range(F):
        for b in range(a + 1, F):
            g2, h2 = fg[free[a]] + fg[free[b]], fh[free[a]] + fh[free[b]]
            if h2 > H + 4 * tol:
                continue
            if abs(g2 - G) <= 2 * tol and abs(h2 - H) <= 2 * tol:
                if found:
                    return -1
                found = 2
                pick[0], pick[1] = free[a], free[b]
    if found or F > PAIRS_ONLY:
        return found
    for a in range(F):
        for b in range(a + 1, F):
            g2, h2 = fg[free[a]] + fg[free[b]], fh[free[a]] + fh[free[b]]
            if h2 > H:
                continue
            for c in range(b + 1, F):
                if abs(g2 + fg[free[c]] - G) <= 3 * tol and abs(h2 + fh[free[c]] - H) <= 3 * tol:
                    if found:
                        return -1
                    found = 3
                    pick[0], pick[1], pick[2] = free[a], free[b], free[c]
    if found or F > TRIPLES_ONLY:
        return found
    for a in range(F):
        for b in range(a + 1, F):
            for c in range(b + 1, F):
                g3 = fg[free[a]] + fg[free[b]] + fg[free[c]]
                h3 = fh[free[a]] + fh[free[b]] + fh[free[c]]
                if h3 > H:
                    continue
                for e in range(c + 1, F):
                    if (
                        abs(g3 + fg[free[e]] - G) <= 4 * tol
                        and abs(h3 + fh[free[e]] - H) <= 4 * tol
                    ):
                        if found:
                            return -1
                        found = 4
                        pick[0], pick[1] = free[a], free[b]
                        pick[2], pick[3] = free[c], free[e]
    return found


@njit(cache=True)
def _solve_node(sums, totals, offsets, tol, limit):  # type: ignore[no-untyped-def]
    """Decode one node: return bins (m, d) and gradient (m,) of rows placed in every feature."""
    d = offsets.shape[0] - 1
    missing = offsets[d]
    fg, fh = np.empty(MOST_FINGERPRINTS), np.empty(MOST_FINGERPRINTS)
    slot = np.full((MOST_FINGERPRINTS, d), -2, dtype=np.int32)
    twice = np.zeros(MOST_FINGERPRINTS, dtype=np.bool_)
    K = 0
    # open cells of the node
    width = sums.shape[0]
    cell_f, cell_b = np.empty(width, dtype=np.int32), np.empty(width, dtype=np.int32)
    cell_G, cell_H = np.empty(width), np.empty(width)
    C = 0
    for f in range(d):
        for k in range(offsets[f], offsets[f + 1] + 1):
            last = k == offsets[f + 1]
            at = missing + f if last else k
            if sums[at, 1] <= 3 * tol:
                continue
            G, H = sums[at, 0], sums[at, 1]
            b = -1 if last else k - offsets[f]
            if _single(G, H, tol):
                q = _known(fg, K, G, 2 * tol)
                if q < 0 and K < MOST_FINGERPRINTS:
                    q, fg[K], fh[K] = K, G, H
                    K += 1
                if q >= 0:
                    if slot[q, f] != -2:
                        twice[q] = True
                    slot[q, f] = b
            else:
                cell_f[C], cell_b[C], cell_G[C], cell_H[C] = f, b, G, H
                C += 1
    work = 0.0
    free = np.empty(MOST_FINGERPRINTS, dtype=np.int64)
    pick = np.empty(4, dtype=np.int64)
    for _ in range(4):
        progress = False
        for c in range(C):
            f = cell_f[c]
            if f < 0:
                continue
            F = np.int64(0)  # a literal 0 would compile `_subset` twice
            for k in range(K):
                if slot[k, f] == -2 and not twice[k]:
                    free[F] = k
                    F += 1
            work += _price(F)
            if work > limit:
                work -= _price(F)
                continue
            size = _subset(fg, fh, free, F, cell_G[c], cell_H[c], tol, pick)
            if size == 0 and F <= PAIRS_ONLY and K < MOST_FINGERPRINTS:
                # one known fingerprint and a new one
                hits = 0
                for a in range(F):
                    G, H = cell_G[c] - fg[free[a]], cell_H[c] - fh[free[a]]
                    if H > SMALLEST_HESSIAN and _single(G, H, 2 * tol):
                        hits += 1
                        pick[0] = free[a]
                if hits == 1:
                    G = cell_G[c] - fg[pick[0]]
                    q = _known(fg, K, G, 3 * tol)
                    if q < 0:
                        q, fg[K], fh[K] = K, G, cell_H[c] - fh[pick[0]]
                        K += 1
                        pick[1] = q
                        size = 2
            if size > 0:
                for s in range(size):
                    slot[pick[s], f] = cell_b[c]
                cell_f[c] = -1
                progress = True
        # all rows of the node known: the last open cell of a feature takes the rest
        g, h = 0.0, 0.0
        for k in range(K):
            g += fg[k]
            h += fh[k]
        if abs(g - totals[0]) <= tol * (K + 2) and abs(h - totals[1]) <= tol * (K + 2):
            for f in range(d):
                still, at = 0, -1
                for c in range(C):
                    if cell_f[c] == f:
                        still += 1
                        at = c
                if still == 1:
                    for k in range(K):
                        if slot[k, f] == -2:
                            slot[k, f] = cell_b[at]
                    cell_f[at] = -1
                    progress = True
        if not progress:
            break
    done = np.zeros(K, dtype=np.bool_)
    m = 0
    for k in range(K):
        done[k] = not twice[k]
        for f in range(d):
            if slot[k, f] == -2:
                done[k] = False
        m += done[k]
    bins, grad = np.empty((m, d), dtype=np.int32), np.empty(m)
    m = 0
    for k in range(K):
        if done[k]:
            for f in range(d):
                bins[m, f] = slot[k, f]
            grad[m] = fg[k]
            m += 1
    return bins, grad, work
