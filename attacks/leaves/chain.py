"""A chain over tables of rows, by how likely the class counts of all leaves are.

A bootstrap draws rows with replacement, so that a tree's counts of leaves and classes are
multinomial: of N draws in a leaf and class that k of n rows are in, each had the odds k / n. The
log-likelihood of a table is the sum of ``N log k`` over all leaves of all trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.leaves.forests import Boxes, Ints
from fedtrees.trees.jit import kernel

#: Rows that stand for none: a leaf that has drawn rows and holds none is unlikely, not impossible.
NONE = 0.1


@dataclass(frozen=True, eq=False)
class State:
    """Rows, changed in place: levels int32 (n, d), classes, leaves int32 (n, T), rows per leaf."""

    level: Ints
    y: NDArray[np.int64]
    leaf: Ints
    held: NDArray[np.int64]
    free: int  # so many rows move, the others are known

    @staticmethod
    def of(boxes: Boxes, level: Ints, y: NDArray[np.int64], free: int) -> State:
        """Put rows into all leaves."""
        leaf = np.empty((len(level), len(boxes.start)), dtype=np.int32)
        held = np.zeros(boxes.counts.shape, dtype=np.int64)
        _place(boxes.start, boxes.nodes, level, y, leaf, held)
        return State(level, y, leaf, held, free)


def start(boxes: Boxes, y: NDArray[np.int64], rng: np.random.Generator) -> Ints:
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


def advance(boxes: Boxes, state: State, beta: float, moves: int, bits: NDArray[np.uint64]) -> None:
    """Make so many moves of one value each, with the log-likelihood times ``beta``."""
    log = np.log(np.concatenate([[NONE], np.arange(1, len(state.level) + 2)]))
    known = (boxes.start, boxes.nodes, boxes.counts.astype(np.float64), boxes.levels)
    now = (state.level, state.y, state.leaf, state.held)
    _advance(*known, *now, state.free, log * beta, moves, bits)


@kernel
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


@kernel
def _uniform(bits):  # type: ignore[no-untyped-def]
    return next_bits(bits) * 2.0**-53


@kernel
def _advance(  # type: ignore[no-untyped-def]
    start, nodes, counts, levels, level, y, leaf, held, free, log, moves, bits
):
    d, trees = level.shape[1], start.shape[0]
    x, to = np.empty(d, dtype=np.int32), np.empty(trees, dtype=np.int32)
    for _ in range(moves):
        i = np.int64(_uniform(bits) * free)
        f = np.int64(_uniform(bits) * d)
        if levels[f] < 2:
            continue
        x[:] = level[i]
        if _uniform(bits) < 0.5:  # nearby, over an even window
            width = max(np.int64(1), levels[f] // 12)
            step = 1 + np.int64(_uniform(bits) * width)
            x[f] += step if _uniform(bits) < 0.5 else -step
        else:
            x[f] = np.int64(_uniform(bits) * levels[f])
        if x[f] < 0 or x[f] >= levels[f] or x[f] == level[i, f]:
            continue
        _route(start, nodes, x, to)
        k = y[i]
        gain = 0.0
        for t in range(trees):
            a, b = leaf[i, t], to[t]
            if a != b:
                gain += counts[a, k] * (log[held[a, k] - 1] - log[held[a, k]])
                gain += counts[b, k] * (log[held[b, k] + 1] - log[held[b, k]])
        if gain < 0 and np.log(_uniform(bits) + 1e-300) > gain:
            continue
        level[i, f] = x[f]
        for t in range(trees):
            if leaf[i, t] != to[t]:
                held[leaf[i, t], k] -= 1
                held[to[t], k] += 1
                leaf[i, t] = to[t]
