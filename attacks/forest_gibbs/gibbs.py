"""Gibbs sampling of tables, given the class counts or class shares of all leaves.

A bootstrap draws rows with replacement, so that the counts of a tree are multinomial. If k of n
rows are in a leaf and class, each draw is there with probability k / n. The log-likelihood of a
table is therefore the sum of ``N log k`` over all leaves and classes of all trees, with the counts
N of the model. Without a bootstrap k equals N, which also maximises this sum. A step draws one
value of a row from its conditional distribution given everything else (Geman and Geman 1984).

If leaves contain only class shares, the number of draws is an additional part of the state. Shares
restrict it: for example, a share of 1/3 needs a multiple of three draws, while a pure leaf can have
any number. Given the rows of the table in the leaf, the number has the probability of the resulting
class counts. A bootstrap draws from k rows a Poisson number with mean k times the draws per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.forest_gibbs.forests import FlatForest, Ints, TargetForest
from fedtrees.attacks.solvers.sampling import below
from fedtrees.core.compilation import inner_kernel, kernel

Longs = NDArray[np.int64]
#: Number of rows that replaces 0. A leaf with draws but without rows in the table is then unlikely
#: instead of impossible, so that the chain can pass through such tables.
NONE = 0.1
#: Logarithms are multiples of this unit, so that their sums are exact.
UNIT = 2.0**-24


@dataclass(frozen=True, eq=False)
class State:
    """Table of a chain. Arrays change in place.

    Attributes
    ----------
    level : int32 array, shape (n, d)
        Level of every value, see `FlatForest`.
    y : int64 array, shape (n,)
        Class of every row.
    leaf : int32 array, shape (n, T)
        Leaf of every row in every tree.
    occupancy : int64 array, shape (n_nodes, K)
        Rows of the table in each leaf and class.
    free : int
        The first `free` rows change. The remaining ones are known.
    """

    level: Ints
    y: Longs
    leaf: Ints
    occupancy: Longs
    free: int

    @staticmethod
    def of(boxes: FlatForest, level: Ints, y: Longs, free: int) -> State:
        """Route the rows to the leaves of all trees, and count them."""
        leaf = np.empty((len(level), len(boxes.start)), dtype=np.int32)
        occupancy = np.zeros(boxes.counts.shape, dtype=np.int64)
        _place(boxes.start, boxes.nodes, level, y, leaf, occupancy)
        return State(level, y, leaf, occupancy, free)


def start(boxes: FlatForest, y: Longs, rng: np.random.Generator) -> Ints:
    """Draw initial levels of rows with given classes, int32, shape (n, d).

    Each row is uniformly distributed in the box of a random leaf of its class. A leaf is chosen
    with probability proportional to its count in the model.

    Parameters
    ----------
    boxes : FlatForest
        Leaves of the model and their counts.
    y : int64 array, shape (n,)
        Class of every row.
    rng : numpy.random.Generator
        Randomness of the draw.
    """
    d = len(boxes.thresholds)
    box = np.zeros((len(boxes.nodes), d, 2), dtype=np.int32)
    box[boxes.start, :, 1] = boxes.levels - 1
    for v in np.flatnonzero(boxes.nodes[:, 0] >= 0):
        f, cut, left = boxes.nodes[v]
        box[left], box[left + 1] = box[v], box[v]
        box[left, f, 1] = cut
        box[left + 1, f, 0] = cut + 1
    leaves = np.flatnonzero(boxes.nodes[:, 0] < 0)
    out = np.empty((len(y), d), dtype=np.int32)
    for k in np.unique(y):
        weight = boxes.counts[leaves, k] + 1e-9
        rows = np.flatnonzero(y == k)
        chosen = box[rng.choice(leaves, len(rows), p=weight / weight.sum())]
        out[rows] = rng.integers(chosen[:, :, 0], chosen[:, :, 1] + 1)
    return out


def likelihood(boxes: FlatForest, state: State) -> float:
    """Return the log-likelihood of a table and its counts up to a constant, in nats."""
    leaves = boxes.nodes[:, 0] < 0
    fit = boxes.counts * np.log(np.maximum(state.occupancy, NONE)) - gammaln(boxes.counts + 1)
    return float(fit[leaves].sum())


def advance(
    boxes: FlatForest, state: State, beta: float, draws: int, bits: NDArray[np.uint64]
) -> None:
    """Redraw values of random free rows in place.

    Parameters
    ----------
    boxes : FlatForest
        Trees and counts.
    state : State
        The table. Changed in place.
    beta : float
        Factor on the log-likelihood.
    draws : int
        Number of values to redraw.
    bits : uint64 array, shape (1,)
        State of the random number generator.
    """
    log = [NONE, *range(1, len(state.level) + 2)]
    fixed = np.array([round(math.log(x) * beta / UNIT) for x in log], dtype=np.int64)
    trees = (boxes.start, boxes.nodes, boxes.counts, boxes.levels)
    _advance(
        *trees, state.level, state.y, state.leaf, state.occupancy, state.free, fixed, draws, bits
    )


@inner_kernel
def _route(start, nodes, x, out):  # type: ignore[no-untyped-def]
    for t in range(start.shape[0]):
        v = start[t]
        while nodes[v, 0] >= 0:
            v = nodes[v, 2] + (x[nodes[v, 0]] > nodes[v, 1])
        out[t] = v


@kernel
def _place(start, nodes, level, y, leaf, occupancy):  # type: ignore[no-untyped-def]
    for i in range(level.shape[0]):
        _route(start, nodes, level[i], leaf[i])
        for t in range(start.shape[0]):
            occupancy[leaf[i, t], y[i]] += 1


@inner_kernel
def _gains(start, nodes, counts, level, i, f, k, leaf, occupancy, log, levels, gain, stack):  # type: ignore[no-untyped-def]
    """Compute the change of the log-likelihood for each level of feature f of row i.

    A depth-first search visits all leaves that the row can reach by another value of f. Changes are
    stored as differences of neighbouring levels, and summed up at the end.
    """
    for g in range(levels + 1):
        gain[g] = 0
    for t in range(start.shape[0]):
        a = leaf[i, t]
        # change of the log-likelihood if the row leaves its present leaf
        leaves = counts[a, k] * (log[occupancy[a, k] - 1] - log[occupancy[a, k]])
        stack[0, 0], stack[0, 1], stack[0, 2] = start[t], 0, levels - 1
        n = 1
        while n > 0:
            n -= 1
            v, lo, hi = stack[n, 0], stack[n, 1], stack[n, 2]
            while nodes[v, 0] >= 0:
                g = nodes[v, 0]
                if g != f:
                    v = nodes[v, 2] + (level[i, g] > nodes[v, 1])
                elif hi <= nodes[v, 1]:
                    v = nodes[v, 2]
                elif lo > nodes[v, 1]:
                    v = nodes[v, 2] + 1
                else:
                    stack[n, 0], stack[n, 1], stack[n, 2] = nodes[v, 2] + 1, nodes[v, 1] + 1, hi
                    n += 1
                    hi = nodes[v, 1]
                    v = nodes[v, 2]
            if v != a:
                change = leaves
                if counts[v, k] > 0:
                    change += counts[v, k] * (log[occupancy[v, k] + 1] - log[occupancy[v, k]])
                gain[lo] += change
                gain[hi + 1] -= change
    for g in range(1, levels):
        gain[g] += gain[g - 1]


@inner_kernel
def choose(gain, weight, levels, bits):  # type: ignore[no-untyped-def]
    """Draw a level with the given log-probabilities, up to a constant, in units of `UNIT`."""
    best = gain[0]
    for g in range(1, levels):
        best = max(best, gain[g])
    total = np.int64(0)
    for g in range(levels):
        weight[g] = np.int64(math.exp((gain[g] - best) * UNIT) * 2.0**30)
        total += weight[g]
    rest = below(bits, total)
    for g in range(levels):
        rest -= weight[g]
        if rest < 0:
            return g
    return levels - 1


@kernel
def _advance(  # type: ignore[no-untyped-def]
    start, nodes, counts, levels, level, y, leaf, occupancy, free, log, draws, bits
):
    d, trees = level.shape[1], start.shape[0]
    max_levels = levels.max()
    gain = np.empty(max_levels + 1, dtype=np.int64)
    weight = np.empty(max_levels, dtype=np.int64)
    stack = np.empty((max_levels + 2, 3), dtype=np.int64)
    to = np.empty(trees, dtype=np.int32)
    for _ in range(draws):
        i = below(bits, free)
        f = below(bits, d)
        m, k = levels[f], y[i]
        if m < 2:
            continue
        _gains(start, nodes, counts, level, i, f, k, leaf, occupancy, log, m, gain, stack)
        g = choose(gain, weight, m, bits)
        if g == level[i, f]:
            continue
        level[i, f] = g
        _route(start, nodes, level[i], to)
        for t in range(trees):
            if leaf[i, t] != to[t]:
                occupancy[leaf[i, t], k] -= 1
                occupancy[to[t], k] += 1
                leaf[i, t] = to[t]


#: Tolerance of an unrounded share, which is a float64 quotient of two integers.
_EXACT = 1e-12


@dataclass(frozen=True, eq=False)
class Numbers:
    """Possible numbers of draws in ``leaves`` with class shares.

    Attributes
    ----------
    off : float
        Largest rounding error of a share.
    rate : float
        Number of draws of a tree per row.
    max_draws, min_draws : int
        Bounds on the draws in a leaf.
    """

    leaves: NDArray[np.int64]
    off: float
    rate: float
    max_draws: int
    min_draws: int

    @staticmethod
    def of(boxes: FlatForest, source: TargetForest) -> Numbers:
        """Initialise the counts of a source with shares, with leaves of equal size if possible."""
        assert source.step is not None
        leaves = np.flatnonzero(boxes.nodes[:, 0] < 0).astype(np.int64)
        off, draws = source.step / 2 + _EXACT, max(1, round(source.rows * source.rate))
        numbers = Numbers(leaves, off, source.rate, draws, source.least)
        each = draws * len(boxes.start) / max(len(leaves), 1)
        near = np.zeros(draws + 1, dtype=np.int64)
        near[:] = -np.abs(np.arange(draws + 1) - each) / UNIT
        sharp = np.zeros(1, dtype=np.int64), np.zeros(draws + 1, dtype=np.int64), near
        numbers._put(boxes, np.zeros_like(boxes.counts), *sharp, np.zeros(1, dtype=np.uint64))
        return numbers

    def draw(
        self, boxes: FlatForest, state: State, weight: float, bits: NDArray[np.uint64]
    ) -> None:
        """Redraw the counts of all leaves, given the rows in them, in place.

        Parameters
        ----------
        boxes : FlatForest
            Its counts change in place.
        state : State
            The table.
        weight : float
            Factor on the log-likelihood.
        bits : uint64 array, shape (1,)
            State of the random number generator.
        """
        log = [math.log(self.rate * x) for x in (NONE, *range(1, len(state.level) + 2))]
        terms = np.array(log), -_log_factorials(self.max_draws), np.zeros(self.max_draws + 1)
        fixed = (np.rint(t * weight / UNIT).astype(np.int64) for t in terms)
        self._put(boxes, state.occupancy, *fixed, bits)

    def _put(
        self,
        boxes: FlatForest,
        occupancy: NDArray[np.int64],
        *terms: NDArray[np.int64] | NDArray[np.uint64],
    ) -> None:
        limits = self.off, self.min_draws, self.max_draws
        _redraw(self.leaves, boxes.share, *limits, occupancy, boxes.counts, *terms)


def _log_factorials(largest: int) -> NDArray[np.float64]:
    """Return ``log n!`` for n from 0 to ``largest``, float64, shape (largest + 1,)."""
    return np.array([math.lgamma(n + 1) for n in range(largest + 1)])


@kernel
def _redraw(leaves, share, off, least, largest, occupancy, counts, log, each, by_size, bits):  # type: ignore[no-untyped-def]
    """Draw the counts of every leaf in place.

    A count c of k rows adds ``c log[k] + each[c]`` to the log-probability, and the total number n
    of draws adds ``by_size[n]``. A leaf for which no number of draws fits the shares is unchanged.
    """
    classes = share.shape[1]
    gain = np.empty(largest + 1, dtype=np.int64)
    number = np.empty(largest + 1, dtype=np.int64)
    weight = np.empty(largest + 1, dtype=np.int64)
    for v in leaves:
        m = 0
        for n in range(least, largest + 1):
            total, value = np.int64(0), by_size[n]
            for k in range(classes):
                c = np.int64(share[v, k] * n + 0.5)
                if abs(c - share[v, k] * n) > off * n:
                    total = -1
                    break
                total += c
                value += c * log[occupancy[v, k]] + each[c]
            if total == n:
                gain[m], number[m] = value, n
                m += 1
        if m == 0:
            continue
        n = number[choose(gain, weight, m, bits)]
        for k in range(classes):
            counts[v, k] = np.int64(share[v, k] * n + 0.5)
