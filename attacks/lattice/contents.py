"""Find the rows in a leaf from its exact sums: a subset-sum problem, solved in the middle.

All sums are integers in units of 2^-30. A row of label 0 contributes the gradient p. A row of label
1 contributes float32(p - 1), which is p - 1 up to a rounding error e. Both contribute the hessian
h. The sums of a leaf are therefore, exactly,

    sum h = H   and   sum p - sum over positives (1 + e) = G.

Labels matter only by their number N1, up to the known bound on e. Both equations contain 45 to 50
bits of information about the rows in the leaf. The search lists the most probable contents of each
half of the candidates, and looks for pairs, one from each list, that have both sums (meet in the
middle, Horowitz and Sahni 1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.lattice.exact_sums import UNIT
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]

QUARTER_BITS = 13  # the lists of two quarters are combined and then cut again
MAX_HITS = 16  # the search can stop early, because more than one hit means that it is undecided
CUT = 25.0  # ways of a candidate that are less probable than its best one by exp(-25) are omitted


@dataclass(frozen=True, eq=False)
class Choices:
    """Candidates for a leaf with independent choices, each one of several ways.

    Attributes
    ----------
    start : int64 array, shape (k + 1,)
        Ways ``start[i]`` to ``start[i + 1] - 1`` belong to candidate i.
    cost : float64 array, shape (ways,)
        Minus log probability in nats. The probabilities of a candidate add up to at most 1.
    h, p : int64 array, shape (ways,)
        Contribution of each way to both sums, in units of 2^-30.
    rows : int64 array, shape (ways,)
        Number of rows that the way puts into the leaf.
    """

    start: Longs
    cost: Floats
    h: Longs
    p: Longs
    rows: Longs

    def bits(self) -> Floats:
        """Return the entropy (bits) of every candidate, float64, shape (k,)."""
        weight = np.exp(-self.cost)
        owner = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        total = np.bincount(owner, weight, len(self.start) - 1)[owner]
        share = weight / total
        bits = -share * np.log2(np.maximum(share, 1e-300))
        return np.bincount(owner, bits, len(self.start) - 1)


@dataclass(frozen=True, eq=False)
class Contents:
    """Contents of a leaf, and their probability.

    Attributes
    ----------
    way : int64 array, shape (k,)
        The way of every candidate, counted from its first.
    positives : int
        Number of rows with label 1.
    cost : float
        Minus log prior probability of these ways, in nats.
    chance : float
        Probability that arbitrary contents have the same sums by accident.
    """

    way: Longs
    positives: int
    cost: float
    chance: float

    @property
    def doubt(self) -> float:
        """Odds that other contents explain the sums.

        These contents have the prior probability ``exp(-cost)``. All other contents have the rest,
        and a share ``chance`` of them has the same sums by accident. The odds are therefore
        ``chance * (exp(cost) - 1)``.
        """
        return self.chance * math.expm1(min(self.cost, 700.0))


def find_contents(
    choices: Choices, sums: tuple[int, int], rounding: int, list_bits: int
) -> Contents | None:
    """Find the contents of a leaf with the given sums.

    Parameters
    ----------
    choices : Choices
        Candidates with prior probabilities.
    sums : (int, int)
        G and H in units of 2^-30.
    rounding : int
        Bound on the rounding error of p - 1 for one row, in units.
    list_bits : int
        Each of the two lists has up to 2^list_bits entries.

    Returns
    -------
    Contents or None
        None if no contents or several contents are found.
    """
    bits = choices.bits()
    order = np.argsort(-bits, kind="stable")
    quarters = [_quarter(choices, order[q::4], list_bits) for q in (0, 3, 1, 2)]
    size = 1 << list_bits
    a, b = _Half.of(quarters[0], quarters[1], size), _Half.of(quarters[2], quarters[3], size)
    hits, positives, cost = _meet(
        a.cost, a.h, a.p, a.rows, b.cost, b.h, b.p, b.rows, sums[1], sums[0], rounding, MAX_HITS
    )
    if len(hits) != 1:
        return None
    way = np.zeros(len(bits), dtype=np.int64)
    for half, entry in ((a, hits[0, 0]), (b, hits[0, 1])):
        half.trace(int(entry), way)
    chance = _chance(choices, a, b, rounding, int(positives[0]))
    return Contents(way, int(positives[0]), float(cost[0]), chance)


def _chance(choices: Choices, a: _Half, b: _Half, rounding: int, positives: int) -> float:
    """Return the probability that contents have both sums by accident.

    H is assumed to be normal with the spread of the lists, at the peak of its density. G modulo 1
    is assumed to be uniform. Both are multiples of a step above one unit, because h and p are
    float32.
    """
    step_h = int(np.gcd.reduce(choices.h, initial=0)) or 1
    step_p = math.gcd(int(np.gcd.reduce(choices.p, initial=0)), UNIT)
    spread = math.sqrt(a.h.var() + b.h.var())
    # Contents with a wrong margin have a hessian sum that is off by about this much.
    typical = float(choices.h.max(initial=1)) / 4
    at_peak = step_h / max(math.sqrt(2 * math.pi) * spread, typical)
    window = (2 * (rounding * positives // step_p) + 1) * step_p / UNIT
    return min(at_peak, 1.0) * min(window, 1.0)


@dataclass(frozen=True, eq=False)
class _Quarter:
    """The most probable combinations of ways of a quarter of the candidates, in order."""

    candidates: NDArray[np.intp]
    cost: Floats
    h: Longs
    p: Longs
    rows: Longs
    parent: Ints
    taken: Ints


def _quarter(choices: Choices, candidates: NDArray[np.intp], list_bits: int) -> _Quarter:
    size = 1 << min(QUARTER_BITS, list_bits)
    entries = _list(
        candidates.astype(np.int64), choices.start, choices.cost, choices.h, choices.p,
        choices.rows, size, CUT,
    )  # fmt: skip
    return _Quarter(candidates, *entries)


@dataclass(frozen=True, eq=False)
class _Half:
    """The most probable pairs of entries of two quarters, sorted by h."""

    parts: tuple[_Quarter, _Quarter]
    left: Ints
    right: Ints
    cost: Floats
    h: Longs
    p: Longs
    rows: Longs

    @staticmethod
    def of(x: _Quarter, y: _Quarter, size: int) -> _Half:
        """Combine two quarters to at most ``size`` of their most probable pairs."""
        limit = np.inf
        if len(x.cost) * len(y.cost) > size:
            low, high = 0.0, float(x.cost[-1] + y.cost[-1])
            for _ in range(40):  # bisection for the largest cost with at most `size` pairs
                limit = (low + high) / 2
                if _pairs_below(x.cost, y.cost, limit) > size:
                    high = limit
                else:
                    low = limit
            limit = low
        left, right = _pairs(x.cost, y.cost, limit, _pairs_below(x.cost, y.cost, limit))
        h = x.h[left] + y.h[right]
        rank = np.argsort(h, kind="stable")
        left, right = left[rank], right[rank]
        return _Half(
            (x, y), left, right, x.cost[left] + y.cost[right], h[rank], x.p[left] + y.p[right],
            x.rows[left] + y.rows[right],
        )  # fmt: skip

    def trace(self, entry: int, way: Longs) -> None:
        """Write the ways of one entry into ``way``."""
        for part, number in ((self.parts[0], self.left[entry]), (self.parts[1], self.right[entry])):
            at = int(number)
            for k in range(len(part.candidates) - 1, -1, -1):
                way[part.candidates[k]] = part.taken[k, at]
                at = int(part.parent[k, at])


@kernel
def _list(candidates, start, cost, h, p, rows, size, cut):  # type: ignore[no-untyped-def]
    """Return the ``size`` most probable combinations of ways, with their origin.

    For each candidate in turn, one copy of the sorted list per way is merged with the other copies,
    and the result is cut.
    """
    K = candidates.shape[0]
    old, new = np.zeros(size), np.zeros(size)
    sums, new_sums = np.zeros((size, 3), np.int64), np.zeros((size, 3), np.int64)
    parent = np.zeros((K, size), dtype=np.int32)
    taken = np.zeros((K, size), dtype=np.int32)
    filled = 1
    for k in range(K):
        first, last = start[candidates[k]], start[candidates[k] + 1]
        least = np.inf
        for w in range(first, last):
            least = min(least, cost[w])
        at = np.zeros(last - first, dtype=np.int64)
        out = 0
        while out < size:
            best, c = -1, np.inf
            for w in range(first, last):
                q = at[w - first]
                if q < filled and cost[w] < least + cut and old[q] + cost[w] < c:
                    best, c = w, old[q] + cost[w]
            if best < 0:
                break
            q = at[best - first]
            at[best - first] += 1
            new[out] = c
            new_sums[out, 0] = sums[q, 0] + h[best]
            new_sums[out, 1] = sums[q, 1] + p[best]
            new_sums[out, 2] = sums[q, 2] + rows[best]
            parent[k, out], taken[k, out] = q, best - first
            out += 1
        filled = out
        old, new = new, old
        sums, new_sums = new_sums, sums
    return (
        old[:filled], sums[:filled, 0].copy(), sums[:filled, 1].copy(), sums[:filled, 2].copy(),
        parent, taken,
    )  # fmt: skip


@kernel
def _pairs_below(x, y, limit):  # type: ignore[no-untyped-def]
    """Count the pairs of two sorted lists whose sum is at most the limit."""
    count, b = 0, y.shape[0]
    for a in range(x.shape[0]):
        while b > 0 and x[a] + y[b - 1] > limit:
            b -= 1
        count += b
    return count


@kernel
def _pairs(x, y, limit, count):  # type: ignore[no-untyped-def]
    """Return the positions of the pairs that `_pairs_below` counts."""
    left, right = np.empty(count, np.int32), np.empty(count, np.int32)
    filled = 0
    for a in range(x.shape[0]):
        for b in range(y.shape[0]):
            if x[a] + y[b] > limit:
                break
            left[filled], right[filled] = a, b
            filled += 1
    return left, right


@kernel
def _meet(cost_a, h_a, p_a, n_a, cost_b, h_b, p_b, n_b, want_h, want_g, rounding, max_hits):  # type: ignore[no-untyped-def]
    """Return pairs with both sums, the number of positives of each, and their costs.

    Both lists are sorted by h, so that one pass finds all pairs with the sum H.
    """
    hits = np.zeros((max_hits, 2), dtype=np.int64)
    positives, cost = np.zeros(max_hits, dtype=np.int64), np.zeros(max_hits)
    n_hits, top = 0, h_b.shape[0]
    for a in range(h_a.shape[0]):
        want = want_h - h_a[a]
        while top > 0 and h_b[top - 1] > want:
            top -= 1
        b = top - 1
        while b >= 0 and h_b[b] == want and n_hits < max_hits:
            over = p_a[a] + p_b[b] - want_g
            # The excess over G is the number of positives, up to their rounding errors.
            n1 = (over + UNIT // 2) // UNIT
            if 0 <= n1 <= n_a[a] + n_b[b] and abs(over - n1 * UNIT) <= rounding * n1:
                hits[n_hits, 0], hits[n_hits, 1] = a, b
                positives[n_hits], cost[n_hits] = n1, cost_a[a] + cost_b[b]
                n_hits += 1
            b -= 1
    return hits[:n_hits], positives[:n_hits], cost[:n_hits]
