"""What a leaf holds, when its sums are exact: subset sums by meeting in the middle.

Sums are kept in whole units of 2^-30. A row of label 0 brings p, one of label 1 brings
float32(p - 1), which is p - 1 up to a rounding e; both bring h. So a leaf says, exactly,

    sum h = H   and   sum p - sum over positives (1 + e) = G,

and labels drop out but for their number N1 and a known bound on e. Together these are 45 to 50
bits about which rows the leaf holds. The likeliest contents of each half of the candidates are
listed, and pairs of one from each list that meet both sums are looked up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.trees.boosted.fixed_point import FIXED_POINT_BITS

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]

UNIT = 1 << FIXED_POINT_BITS
QUARTER_BITS = 13  # a quarter's list is combined with another before it is cut again
MAX_HITS = 16  # one is wanted: more say that there is no telling
CUT = 25.0  # ways of one candidate less likely than its likeliest by exp(-25) are not listed


@dataclass(frozen=True, eq=False)
class Choices:
    """Candidates for a leaf, each there in one of several ways, independent of the others."""

    start: Longs  # int64 (k + 1,): ways ``start[i]:start[i + 1]`` belong to candidate ``i``
    # float64 (ways,): minus log probability (nats); those of a candidate add up to 1 at most
    cost: Floats
    # int64 (ways,): what each way brings, in units
    h: Longs
    p: Longs
    rows: Longs  # int64 (ways,): how many rows it puts in the leaf

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
    """What a leaf holds, and what speaks for it."""

    way: Longs  # int64 (k,): the way of every candidate, counted from its first
    positives: int  # Rows with label 1
    cost: float  # Minus log probability (nats) of these ways before the sums were seen
    chance: float  # Probability that given contents meet the sums by accident

    @property
    def doubt(self) -> float:
        """Odds that other contents explain the sums.

        These contents had probability ``exp(-cost)``, all others together the rest, of which a
        share ``chance`` meets the sums by accident. Equally: no more than ``exp(cost)`` contents
        are as likely, so that so many accidents are to be expected among them.
        """
        return self.chance * math.expm1(min(self.cost, 700.0))


def find_contents(
    choices: Choices, sums: tuple[int, int], rounding: int, list_bits: int
) -> Contents | None:
    """Return the contents that meet a leaf's sums, None where none or several are found.

    ``sums`` are G and H in units, ``rounding`` bounds \\|e\\| in units (see above); each of the two
    lists has up to 2^list_bits entries.
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
    """Return the probability that contents meet both sums by accident.

    H is taken as normal with the lists' spread, at its peak; G modulo 1 as uniform. Both move in
    steps: h and p are float32, whole multiples of more than one unit.
    """
    step_h = int(np.gcd.reduce(choices.h, initial=0)) or 1
    step_p = math.gcd(int(np.gcd.reduce(choices.p, initial=0)), UNIT)
    spread = math.sqrt(a.h.var() + b.h.var())
    typical = float(choices.h.max(initial=1)) / 4  # wrong margins would miss by about as much
    at_peak = step_h / max(math.sqrt(2 * math.pi) * spread, typical)
    window = (2 * (rounding * positives // step_p) + 1) * step_p / UNIT
    return min(at_peak, 1.0) * min(window, 1.0)


@dataclass(frozen=True, eq=False)
class _Quarter:
    """The likeliest ways of some candidates, likeliest first."""

    candidates: NDArray[np.intp]
    cost: Floats
    h: Longs
    p: Longs
    rows: Longs
    parent: Ints
    taken: Ints


def _quarter(choices: Choices, candidates: NDArray[np.intp], list_bits: int) -> _Quarter:
    size = 1 << min(QUARTER_BITS, list_bits)
    found = _list(
        candidates.astype(np.int64), choices.start, choices.cost, choices.h, choices.p,
        choices.rows, size, CUT,
    )  # fmt: skip
    return _Quarter(candidates, *found)


@dataclass(frozen=True, eq=False)
class _Half:
    """Likely pairs of entries of two quarters, sorted by h."""

    parts: tuple[_Quarter, _Quarter]
    left: Ints
    right: Ints
    cost: Floats
    h: Longs
    p: Longs
    rows: Longs

    @staticmethod
    def of(x: _Quarter, y: _Quarter, size: int) -> _Half:
        """Combine two quarters, at most ``size`` of the likeliest pairs."""
        limit = np.inf
        if len(x.cost) * len(y.cost) > size:
            low, high = 0.0, float(x.cost[-1] + y.cost[-1])
            for _ in range(40):
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
    """Return the ``size`` likeliest ways of several candidates, with how each came about.

    Candidate by candidate: the list so far, once per way of the candidate, is already sorted; the
    copies are merged and cut.
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
    """Return how many pairs of two sorted lists add up to the limit at most."""
    count, b = 0, y.shape[0]
    for a in range(x.shape[0]):
        while b > 0 and x[a] + y[b - 1] > limit:
            b -= 1
        count += b
    return count


@kernel
def _pairs(x, y, limit, count):  # type: ignore[no-untyped-def]
    """Return the positions of those pairs."""
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
def _meet(cost_a, h_a, p_a, n_a, cost_b, h_b, p_b, n_b, want_h, want_g, rounding, most):  # type: ignore[no-untyped-def]
    """Return pairs that meet both sums, the positives each implies, and their costs.

    Both lists are sorted by h.
    """
    hits = np.zeros((most, 2), dtype=np.int64)
    positives, cost = np.zeros(most, dtype=np.int64), np.zeros(most)
    found, top = 0, h_b.shape[0]
    for a in range(h_a.shape[0]):
        want = want_h - h_a[a]
        while top > 0 and h_b[top - 1] > want:
            top -= 1
        b = top - 1
        while b >= 0 and h_b[b] == want and found < most:
            over = p_a[a] + p_b[b] - want_g
            n1 = (over + UNIT // 2) // UNIT
            if 0 <= n1 <= n_a[a] + n_b[b] and abs(over - n1 * UNIT) <= rounding * n1:
                hits[found, 0], hits[found, 1] = a, b
                positives[found], cost[found] = n1, cost_a[a] + cost_b[b]
                found += 1
            b -= 1
    return hits[:found], positives[:found], cost[:found]
