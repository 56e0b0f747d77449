"""Who may be in a leaf, and how likely: slots of rows, each in one of several ways."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.lattice.contents import Choices
from fedtrees.attacks.lattice.exact_sums import rounding_of, units_of
from fedtrees.attacks.lattice.paths import Inside, Paths

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

MOST_WAYS = 300  # ways of one slot that are listed
ELSEWHERE = 1e-6  # probability to be elsewhere of rows none of whose pieces is


@dataclass(frozen=True, eq=False)
class Candidates:
    """Slots that have pieces in one leaf.

    A *look* is a pair (p, h) of margins before the tree: what sums tell rows apart by.
    """

    slot: Longs  # int64 (k,)
    size: Longs  # int64 (k,): rows of each
    weight: Floats  # float64 (k, looks): of them probably in the leaf, per look
    gradients: Longs  # int64 (looks, 2): p and h of each look in units
    bound: NDArray[np.bool_]  # bool (k,): slots without a piece elsewhere
    look: Longs  # int64 (m,): look of every piece of all paths; -1 where it is not in the leaf
    rounding: int  # As of `find_contents`

    @staticmethod
    def of(paths: Paths, t: int, j: int) -> Candidates:
        """Return the slots with pieces in leaf ``j`` of tree ``t``."""
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
        """Return the ways of every slot, and per slot its looks and rows per way and look.

        Probabilities are kept ``least`` away from 0 and 1.
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
        """Return which rows are in the leaf, given every slot's way."""
        return [
            Inside(int(self.slot[i]), int(looks[c]), int(rows[w, c]))
            for i, ((looks, rows), w) in enumerate(zip(ways, way, strict=True))
            for c in np.flatnonzero(rows[w])
        ]


def multinomial_ways(n: int, q: Floats, rest: float, most: int) -> tuple[Longs, Floats]:
    """Return counts of n rows over k looks, the likeliest, and their minus log probability (nats).

    Looks weigh ``q``, float64 (k,), and being elsewhere ``rest``; no more than ``most`` ways are
    kept at each look in turn. Shapes (ways, k) and (ways,).
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
        if len(cost) > most:
            kept = np.argsort(cost, kind="stable")[:most]
            rows, cost = rows[kept], cost[kept]
    return rows, cost
