"""Rows that can be in a leaf, and the prior probabilities of all possibilities.

The rows come in slots (`fedtrees.attacks.lattice.paths`): groups that no solved leaf distinguishes.
A slot of n rows has several ways to contribute to a leaf, for example with 0, 1, ..., n rows.
"""

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
    def of(paths: Paths, t: int, j: int) -> Candidates:
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
