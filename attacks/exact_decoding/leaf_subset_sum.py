"""Find the rows in a leaf from its exact sums: a subset-sum problem, solved in the middle.

All sums are integers in units of 2^-30. A row of label 0 contributes the gradient p. A row of label
1 contributes float32(p - 1), which is p - 1 up to a rounding error e. Both contribute the hessian
h. The sums of a leaf are therefore, exactly,

    sum h = H   and   sum p - sum over positives (1 + e) = G.

Labels matter only by their number N1, up to the known bound on e. Both equations contain 45 to 50
bits of information about the rows in the leaf. The search lists the most probable contents of each
half of the candidates, and looks for pairs, one from each list, that have both sums (meet in the
middle, Horowitz and Sahni 1974).

The candidates come in slots (`fedtrees.attacks.exact_decoding.path_hypotheses`): groups of rows
that no solved leaf distinguishes. A slot of n rows has several ways to contribute to a leaf, for
example with 0, 1, ..., n rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.exact_decoding.integer_sums import UNIT, rounding_of, units_of
from fedtrees.attacks.exact_decoding.path_hypotheses import Inside, PathHypotheses
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
        return np.asarray(np.bincount(owner, bits, len(self.start) - 1), dtype=np.float64)


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


MOST_WAYS = 300  # ways of one slot that are listed
ELSEWHERE = 1e-6  # probability to be in another leaf for rows whose pieces are all in this leaf


@dataclass(frozen=True, eq=False)
class Candidates:
    """Slots that have pieces in one leaf.

    A *look* is a pair (p, h) that follows from the margin before the tree. The sums of the leaf
    distinguish two rows only if their looks differ.

    Attributes
    ----------
    slot, size : int64 array, shape (k,)
        Slots, and their numbers of rows.
    weight : float64 array, shape (k, looks)
        Expected number of their rows in the leaf, per look.
    gradients : int64 array, shape (looks, 2)
        p and h of each look, in units of 2^-30.
    bound : bool array, shape (k,)
        Slots without a piece in another leaf.
    look : int64 array, shape (m,)
        Look of every piece of all paths, -1 if the piece is not in the leaf.
    rounding : int
        Bound on the rounding of p - 1, see `find_contents`.
    """

    slot: Longs
    size: Longs
    weight: Floats
    gradients: Longs
    bound: NDArray[np.bool_]
    look: Longs
    rounding: int

    @staticmethod
    def of(paths: PathHypotheses, t: int, j: int) -> Candidates:
        """Return the slots of ``paths`` with pieces in leaf ``j`` of tree ``t``."""
        here = np.flatnonzero(paths.leaf[:, t] == j)
        margin = paths.margin[here, t]
        gradients, look = np.unique(units_of(margin, 0), axis=0, return_inverse=True)
        slot, local = np.unique(paths.slot[here], return_inverse=True)
        weight = np.zeros((len(slot), len(gradients)))
        np.add.at(weight, (local.reshape(-1), look.reshape(-1)), paths.weight[here])
        pieces = np.bincount(paths.slot, minlength=len(paths.size))
        inside = np.bincount(paths.slot[here], minlength=len(paths.size))
        every = np.full(len(paths.slot), -1, dtype=np.int64)
        every[here] = look.reshape(-1)
        return Candidates(
            slot, paths.size[slot], weight, gradients, (inside == pieces)[slot], every,
            rounding_of(margin),
        )  # fmt: skip

    def choices(self, least: float) -> tuple[Choices, list[tuple[NDArray[np.intp], Longs]]]:
        """Return the ways of every slot, and per slot its looks and the rows per way and look.

        Probabilities are kept at a distance of ``least`` from 0 and 1.
        """
        ways, costs, sums = [], [], []
        for i, n in enumerate(self.size):
            looks = np.flatnonzero(self.weight[i] > 0)
            q = np.maximum(self.weight[i, looks] / n, least / len(looks))
            rest = ELSEWHERE if self.bound[i] else max(1 - q.sum(), least)
            rows, cost = multinomial_ways(int(n), q, rest, MOST_WAYS)
            costs.append(cost)
            sums.append(rows @ self.gradients[looks])
            ways.append((looks, rows))
        start = np.concatenate([[0], np.cumsum([len(c) for c in costs])]).astype(np.int64)
        both = np.concatenate(sums)
        total = np.concatenate([rows.sum(axis=1) for _, rows in ways])
        return Choices(
            start, np.concatenate(costs), both[:, 1].copy(), both[:, 0].copy(), total
        ), ways

    def inside(self, ways: list[tuple[NDArray[np.intp], Longs]], way: Longs) -> list[Inside]:
        """Return the rows in the leaf, given the way of every slot."""
        return [
            Inside(int(self.slot[i]), int(looks[c]), int(rows[w, c]))
            for i, ((looks, rows), w) in enumerate(zip(ways, way, strict=True))
            for c in np.flatnonzero(rows[w])
        ]


def multinomial_ways(n: int, q: Floats, rest: float, max_ways: int) -> tuple[Longs, Floats]:
    """Enumerate the most probable multinomial counts of n rows over k looks.

    Parameters
    ----------
    n : int
        Number of rows.
    q : float64 array, shape (k,)
        Weight of each look.
    rest : float
        Weight of being in another leaf.
    max_ways : int
        Number of ways that are kept after each look (a beam search).

    Returns
    -------
    rows : int64 array, shape (ways, k)
        Rows per way and look.
    cost : float64 array, shape (ways,)
        Minus log probability in nats.

    Examples
    --------
    >>> rows, cost = multinomial_ways(1, np.array([0.25]), 0.75, 10)
    >>> rows.ravel().tolist(), np.exp(-cost).round(2).tolist()
    ([0, 1], [0.75, 0.25])
    """
    rows, cost = np.zeros((1, 0), dtype=np.int64), np.zeros(1)
    left_weight = q.sum() + rest
    for weight in q:
        share = weight / left_weight
        left_weight -= weight
        left = n - rows.sum(axis=1)
        parent = np.repeat(np.arange(len(rows)), left + 1)
        c = left[parent]
        x = np.arange(len(parent)) - np.repeat(np.cumsum(left + 1) - left - 1, left + 1)
        log_choose = gammaln(c + 1) - gammaln(x + 1) - gammaln(c - x + 1)
        log_share = x * np.log(share) + (c - x) * np.log1p(-share)
        rows, cost = np.column_stack([rows[parent], x]), cost[parent] - log_choose - log_share
        if len(cost) > max_ways:
            likeliest = np.argsort(cost, kind="stable")[:max_ways]
            rows, cost = rows[likeliest], cost[likeliest]
    return rows, cost
