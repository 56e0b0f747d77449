"""Which rows a leaf holds, when its sums are exact: subset sums by meeting in the middle.

Rows with equal margin bring equal p and h. A leaf's sums say, in whole units of 2^-30,

    sum_k n_k h_k = H   and   sum_k n_k p_k - N1 = G,

with n_k rows of margin k and N1 rows of label 1 in it (labels drop out of the left sums): about
50 bits about the n_k. The likeliest count vectors of each half of the margins are listed, and
pairs of one from each list that meet both sums are looked up. As long as the lists hold far fewer
than 2^50 pairs, a hit is no accident.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.trees.fixed_point import FIXED_POINT_BITS
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

UNIT = 1 << FIXED_POINT_BITS
H_ERROR = 2  # units: own rows are subtracted before they are rounded
# float32(p - 1) is off p - 1 by up to 2^-25, 32 units, for every row of label 1
G_ERROR = 34
CUT = 18.0  # counts of one margin less likely than the likeliest by exp(-18) are not listed
ACCIDENTS = 0.01  # expected accidental hits that a unique hit is believed under
MAX_HITS = 64


@dataclass(frozen=True, eq=False)
class Contents:
    """What a leaf holds.

    Attributes
    ----------
    count : int64 array, shape (k,)
        Rows per margin.
    positives : int
        Rows with label 1.
    """

    count: Longs
    positives: int


def solve_leaf(
    cap: Longs, share: Floats, ph: tuple[Longs, Longs], sums: tuple[int, int], size: int
) -> Contents | None:
    """Return the likeliest contents that meet the sums, None where none is found for sure.

    Parameters
    ----------
    cap : int64 array, shape (k,)
        At most so many rows of each margin.
    share : float64 array, shape (k,)
        Prior probability of each of them to be in this leaf.
    ph : pair of int64 array, shape (k,)
        p and h of each margin in units.
    sums : pair of int
        G and H of the leaf in units.
    size : int
        Length of each of the two lists.
    """
    least, costs = _costs(cap, share)
    p, h = ph
    want_h = sums[1] - int(least @ h)
    want_p = sums[0] - int(least @ p)
    spread = np.array([_entropy(c) for c in costs])
    order = np.argsort(-spread, kind="stable")
    halves = order[::2], order[1::2]
    a, b = (_likeliest([costs[k] for k in half], h[half], p[half], size) for half in halves)
    rank = np.argsort(b.h, kind="stable")
    hits, positives, cost = _meet(
        a.cost, a.h, a.p, b.cost, b.h[rank], b.p, rank, want_h, want_p, MAX_HITS
    )
    if len(hits) == 0 or _accidents(a, b, int(positives.max())) > ACCIDENTS:
        return None
    best = int(np.argmin(cost))
    count = least.copy()
    for half, part, number in ((halves[0], a, hits[best, 0]), (halves[1], b, hits[best, 1])):
        count[half] += part.trace(int(number))
    return Contents(count, int(positives[best]))


def _costs(cap: Longs, share: Floats) -> tuple[Longs, list[Floats]]:
    """Return per margin the least count worth listing, and minus log probability from there on."""
    least, costs = np.zeros(len(cap), dtype=np.int64), []
    for k, (c, q) in enumerate(zip(cap, share, strict=True)):
        n = np.arange(c + 1)
        log_choose = gammaln(c + 1) - gammaln(n + 1) - gammaln(c - n + 1)
        cost = -(log_choose + n * math.log(q) + (c - n) * math.log1p(-q))
        worth = np.flatnonzero(cost < cost.min() + CUT)
        least[k] = worth[0]
        costs.append(cost[worth[0] : worth[-1] + 1])
    return least, costs


def _entropy(cost: Floats) -> float:
    weight = np.exp(cost.min() - cost)
    weight /= weight.sum()
    return float(-(weight * np.log(weight + 1e-300)).sum())


@dataclass(frozen=True, eq=False)
class _Part:
    """The likeliest count vectors of one half, likeliest first."""

    cost: Floats
    h: Longs
    p: Longs
    parent: NDArray[np.int32]
    taken: NDArray[np.int16]

    def trace(self, number: int) -> Longs:
        """Return the count vector of one entry."""
        out = np.zeros(len(self.parent), dtype=np.int64)
        for k in range(len(out) - 1, -1, -1):
            out[k] = self.taken[k, number]
            number = int(self.parent[k, number])
        return out


def _likeliest(costs: list[Floats], h: Longs, p: Longs, size: int) -> _Part:
    start = np.concatenate([[0], np.cumsum([len(c) for c in costs])]).astype(np.int64)
    flat = np.concatenate([*costs, np.zeros(0)])
    return _Part(*_list(start, flat, np.ascontiguousarray(h), np.ascontiguousarray(p), size))


def _accidents(a: _Part, b: _Part, positives: int) -> float:
    """Return how many pairs are expected to meet the sums by chance."""
    width = 4 * (a.h.std() + b.h.std()) + 1
    window_h = (2 * H_ERROR + 1) / width
    window_g = min(2 * (G_ERROR * (positives + 1) + 4) / UNIT, 1.0)
    return float(len(a.cost) * len(b.cost) * min(window_h, 1.0) * window_g)


@kernel
def _list(start, costs, h, p, size):  # type: ignore[no-untyped-def]
    """Return the ``size`` likeliest sums over margins, with the way each came about.

    Margin by margin: the list so far, once per count of the margin, is already sorted; the copies
    are merged and cut.
    """
    K = start.shape[0] - 1
    cost, sum_h, sum_p = np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64)
    new, new_h, new_p = np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.int64)
    parent = np.zeros((K, size), dtype=np.int32)
    taken = np.zeros((K, size), dtype=np.int16)
    filled = 1
    for k in range(K):
        options = start[k + 1] - start[k]
        at = np.zeros(options, dtype=np.int64)
        out = 0
        while out < size:
            best, least = -1, np.inf
            for n in range(options):
                if at[n] < filled:
                    c = cost[at[n]] + costs[start[k] + n]
                    if c < least:
                        best, least = n, c
            if best < 0:
                break
            q = at[best]
            at[best] += 1
            new[out], new_h[out], new_p[out] = least, sum_h[q] + best * h[k], sum_p[q] + best * p[k]
            parent[k, out], taken[k, out] = q, best
            out += 1
        filled = out
        cost, new = new, cost
        sum_h, new_h = new_h, sum_h
        sum_p, new_p = new_p, sum_p
    return cost[:filled], sum_h[:filled], sum_p[:filled], parent, taken


@kernel
def _meet(cost_a, h_a, p_a, cost_b, h_b, p_b, rank, want_h, want_p, most):  # type: ignore[no-untyped-def]
    """Return pairs that meet both sums, the positives each implies, and their costs.

    ``h_b`` is sorted, by ``rank``; the other arrays of b are not.
    """
    hits = np.zeros((most, 2), dtype=np.int64)
    positives, cost = np.zeros(most, dtype=np.int64), np.zeros(most)
    found = 0
    for a in range(h_a.shape[0]):
        low, high = 0, h_b.shape[0]
        while low < high:
            middle = (low + high) // 2
            if h_b[middle] < want_h - h_a[a] - H_ERROR:
                low = middle + 1
            else:
                high = middle
        while low < h_b.shape[0] and h_b[low] <= want_h - h_a[a] + H_ERROR and found < most:
            b = rank[low]
            over = p_a[a] + p_b[b] - want_p
            n1 = (over + UNIT // 2) // UNIT
            if n1 >= 0 and abs(over - n1 * UNIT) <= G_ERROR * (n1 + 1) + 4:
                hits[found, 0], hits[found, 1] = a, b
                positives[found], cost[found] = n1, cost_a[a] + cost_b[b]
                found += 1
            low += 1
    return hits[:found], positives[:found], cost[:found]
