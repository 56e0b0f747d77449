"""A chain over tables of rows, by how likely the class counts of all leaves are.

A bootstrap draws rows with replacement, so that a tree's counts of leaves and classes are
multinomial: of N draws in a leaf and class that k of n rows are in, each had the odds k / n. The
log-likelihood of a table is the sum of ``N log k`` over all leaves of all trees. Without a
bootstrap k is N, where that sum is largest, too. A move draws one value of a row from all it can
have, each as likely as all trees then are (Gibbs sampling, Geman and Geman 1984).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.leaves.forests import Boxes, Ints
from fedtrees.core.compilation import inner_kernel, kernel

Longs = NDArray[np.int64]
#: Rows that stand for none: a leaf that has drawn rows and holds none is unlikely, not impossible.
NONE = 0.1
#: Logarithms are whole multiples of this, so that sums of them are exact.
UNIT = 2.0**-24


@dataclass(frozen=True, eq=False)
class State:
    """Rows, changed in place: levels int32 (n, d), classes, leaves int32 (n, T), rows per leaf."""

    level: Ints
    y: Longs
    leaf: Ints
    held: Longs
    free: int  # so many rows move, the others are known

    @staticmethod
    def of(boxes: Boxes, level: Ints, y: Longs, free: int) -> State:
        """Put rows into all leaves."""
        leaf = np.empty((len(level), len(boxes.start)), dtype=np.int32)
        held = np.zeros(boxes.counts.shape, dtype=np.int64)
        _place(boxes.start, boxes.nodes, level, y, leaf, held)
        return State(level, y, leaf, held, free)


def start(boxes: Boxes, y: Longs, rng: np.random.Generator) -> Ints:
    """Return levels of rows of given classes, int32 (n, d), anywhere in leaves that have draws."""
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


def likelihood(boxes: Boxes, state: State) -> float:
    """Return the log-likelihood of a table and its counts, but for a constant, in nats."""
    leaves = boxes.nodes[:, 0] < 0
    fit = boxes.counts * np.log(np.maximum(state.held, NONE)) - gammaln(boxes.counts + 1)
    return float(fit[leaves].sum())


def advance(boxes: Boxes, state: State, beta: float, draws: int, bits: NDArray[np.uint64]) -> None:
    """Draw so many values of free rows anew.

    `beta`: What the log-likelihood is multiplied by.
    """
    log = [NONE, *range(1, len(state.level) + 2)]
    fixed = np.array([round(math.log(x) * beta / UNIT) for x in log], dtype=np.int64)
    known = (boxes.start, boxes.nodes, boxes.counts, boxes.levels)
    _advance(*known, state.level, state.y, state.leaf, state.held, state.free, fixed, draws, bits)


@inner_kernel
def _route(start, nodes, x, out):  # type: ignore[no-untyped-def]
    for t in range(start.shape[0]):
        v = start[t]
        while nodes[v, 0] >= 0:
            v = nodes[v, 2] + (x[nodes[v, 0]] > nodes[v, 1])
        out[t] = v


@kernel
def _place(start, nodes, level, y, leaf, held):  # type: ignore[no-untyped-def]
    for i in range(level.shape[0]):
        _route(start, nodes, level[i], leaf[i])
        for t in range(start.shape[0]):
            held[leaf[i, t], y[i]] += 1


@inner_kernel
def _gains(start, nodes, counts, level, i, f, k, leaf, held, log, levels, gain, stack):  # type: ignore[no-untyped-def]
    """Set what the log-likelihood gains by each level of feature f that row i may have."""
    for g in range(levels + 1):
        gain[g] = 0
    for t in range(start.shape[0]):
        a = leaf[i, t]
        leaves = counts[a, k] * (log[held[a, k] - 1] - log[held[a, k]])
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
                found = leaves
                if counts[v, k] > 0:
                    found += counts[v, k] * (log[held[v, k] + 1] - log[held[v, k]])
                gain[lo] += found
                gain[hi + 1] -= found
    for g in range(1, levels):
        gain[g] += gain[g - 1]


@inner_kernel
def choose(gain, weight, levels, bits):  # type: ignore[no-untyped-def]
    """Return one of some levels by their log-probabilities."""
    best = gain[0]
    for g in range(1, levels):
        best = max(best, gain[g])
    total = np.int64(0)
    for g in range(levels):
        weight[g] = np.int64(math.exp((gain[g] - best) * UNIT) * 2.0**30)
        total += weight[g]
    rest = np.int64(next_bits(bits) * 2.0**-53 * total)
    for g in range(levels):
        rest -= weight[g]
        if rest < 0:
            return g
    return levels - 1


@kernel
def _advance(  # type: ignore[no-untyped-def]
    start, nodes, counts, levels, level, y, leaf, held, free, log, draws, bits
):
    d, trees = level.shape[1], start.shape[0]
    most = levels.max()
    gain = np.empty(most + 1, dtype=np.int64)
    weight = np.empty(most, dtype=np.int64)
    stack = np.empty((most + 2, 3), dtype=np.int64)
    to = np.empty(trees, dtype=np.int32)
    for _ in range(draws):
        i = np.int64(next_bits(bits) * 2.0**-53 * free)
        f = np.int64(next_bits(bits) * 2.0**-53 * d)
        m, k = levels[f], y[i]
        if m < 2:
            continue
        _gains(start, nodes, counts, level, i, f, k, leaf, held, log, m, gain, stack)
        g = choose(gain, weight, m, bits)
        if g == level[i, f]:
            continue
        level[i, f] = g
        _route(start, nodes, level[i], to)
        for t in range(trees):
            if leaf[i, t] != to[t]:
                held[leaf[i, t], k] -= 1
                held[to[t], k] += 1
                leaf[i, t] = to[t]
