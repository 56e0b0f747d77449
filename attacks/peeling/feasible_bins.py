"""Rows that class counts leave possible, as bit masks over the columns of each feature.

A row was drawn for a tree only if every node on its path contains its class in each of its bins
that was requested. The number of trees in which this is true is its support.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.peeling.class_histograms import AskedForest, Counts
from fedtrees.attacks.peeling.rows import CUT, DEFAULT_LEFT, FEATURE, LEFT, RIGHT, Ints
from fedtrees.core.compilation import inner_kernel, kernel

Longs = NDArray[np.int64]
Words = NDArray[np.uint64]
WORD = 64
NONE = np.uint64(0)


class MaskedForest(NamedTuple):
    """Trees and counts in the format of kernels. A mask is uint64 (d, W), a bit for each column."""

    start: Ints
    nodes: Ints
    above: Longs  # int64 (n_nodes,): parents, -1 at roots
    pairs: Longs
    feature: Ints
    at: Longs
    offsets: Ints
    left: Words  # uint64 (n_nodes, W): columns of the split's feature that go left
    occupied: Words  # uint64 (pairs, K, W): columns with rows of the class
    bins: Longs
    totals: Longs
    levels: int


def build_masks(forest: AskedForest, counts: Counts) -> MaskedForest:
    """Return trees and a copy of the counts with the bits of both."""
    nodes, offsets = forest.nodes, forest.offsets
    words = -(-int(np.diff(offsets).max(initial=1)) // WORD)
    above = np.full(len(nodes), -1, dtype=np.int64)
    inner = np.flatnonzero(nodes[:, FEATURE] >= 0)
    for side in (LEFT, RIGHT):
        above[nodes[inner, side]] = inner
    left = np.zeros((len(nodes), words), dtype=np.uint64)
    bins, totals = counts.bins.copy(), counts.nodes.copy()
    occupied = np.zeros((len(forest.feature), totals.shape[1], words), dtype=np.uint64)
    state = MaskedForest(
        forest.start, nodes, above, forest.pairs, forest.feature, forest.at, offsets,
        left, occupied, bins, totals, forest.levels,
    )  # fmt: skip
    _mark(state)
    return state


@inner_kernel
def bit(b):  # type: ignore[no-untyped-def]
    """Return the word in which only this column is set."""
    return np.uint64(1) << np.uint64(b % WORD)


@kernel
def _mark(state):  # type: ignore[no-untyped-def]
    """Set the bits of columns that go left, and of columns with rows of each class."""
    for v in range(state.nodes.shape[0]):
        f = state.nodes[v, FEATURE]
        if f >= 0:
            n = state.offsets[f + 1] - state.offsets[f] - 1
            for b in range(n + 1):
                goes = state.nodes[v, DEFAULT_LEFT] == 1 if b == n else b <= state.nodes[v, CUT]
                if goes:
                    state.left[v, b // WORD] |= bit(b)
    for p in range(state.feature.shape[0]):
        for b in range(state.at[p + 1] - state.at[p]):
            for k in range(state.bins.shape[1]):
                if state.bins[state.at[p] + b, k] > 0:
                    state.occupied[p, k, b // WORD] |= bit(b)


@inner_kernel
def has(words, b):  # type: ignore[no-untyped-def]
    """Return whether a set contains a column."""
    return words[b // WORD] & bit(b) != 0


@inner_kernel
def count(words):  # type: ignore[no-untyped-def]
    """Return the number of bits set."""
    n = 0
    for w in range(words.shape[0]):
        x = words[w]
        while x != 0:
            x &= x - np.uint64(1)
            n += 1
    return n


@inner_kernel
def _keep(mask, words, flip):  # type: ignore[no-untyped-def]
    """Intersect the columns of one feature with a set, and return whether any remain."""
    alive = False
    for w in range(mask.shape[0]):
        mask[w] &= words[w] ^ flip
        alive = alive or mask[w] != 0
    return alive


@inner_kernel
def _at_node(state, k, v, mask):  # type: ignore[no-untyped-def]
    """Keep the columns of class k at node v, and return whether every feature has one."""
    for p in range(state.pairs[v], state.pairs[v + 1]):
        if not _keep(mask[state.feature[p]], state.occupied[p, k], NONE):
            return False
    return True


@inner_kernel
def cell_mask(state, k, cell, mask):  # type: ignore[no-untyped-def]
    """Set the possible columns of rows of class k that are counted in a bin of a node.

    The result is whether every feature has one.
    """
    v, p, b = cell[0], cell[1], cell[2]
    for f in range(mask.shape[0]):
        for w in range(mask.shape[1]):
            first = w * WORD
            n = min(max(state.offsets[f + 1] - state.offsets[f] - first, 0), WORD)
            mask[f, w] = ~np.uint64(0) >> np.uint64(WORD - n) if n > 0 else np.uint64(0)
    one = mask[state.feature[p]]
    one[:] = np.uint64(0)
    one[b // WORD] = bit(b)
    while _at_node(state, k, v, mask):
        up = state.above[v]
        if up < 0:
            return True
        flip = NONE if state.nodes[up, LEFT] == v else ~NONE
        if not _keep(mask[state.nodes[up, FEATURE]], state.left[up], flip):
            return False
        v = up
    return False


@inner_kernel
def holds(mask, row):  # type: ignore[no-untyped-def]
    """Return whether a row fits a mask."""
    for f in range(mask.shape[0]):  # noqa: SIM110  numba compiles no generators
        if not has(mask[f], row[f]):
            return False
    return True


@inner_kernel
def halve(mask, other):  # type: ignore[no-untyped-def]
    """Move half of the columns of one feature to another mask.

    It is the feature with the fewest columns, but more than one. The result is whether there is
    such a feature. `other` is then equal for all other features.
    """
    best, fewest = -1, 0
    for f in range(mask.shape[0]):
        n = count(mask[f])
        if n > 1 and (best < 0 or n < fewest):
            best, fewest = f, n
    other[:] = mask
    if best < 0:
        return False
    moved = 0
    for b in range(mask.shape[1] * WORD):
        if has(mask[best], b):
            half = mask if moved < fewest // 2 else other
            half[best, b // WORD] &= ~bit(b)
            moved += 1
    return True


@inner_kernel
def _possible(state, k, t, mask, levels, stack, out):  # type: ignore[no-untyped-def]
    """Set the columns of the rows within a mask that may have been drawn for a tree.

    The result is the work done, negative if there are no such rows. Slices of arrays are avoided,
    because their creation would take longer than their use.
    """
    nodes, totals, left, occupied = state.nodes, state.totals, state.left, state.occupied
    pairs, feature, above = state.pairs, state.feature, state.above
    d, words = mask.shape
    for f in range(d):
        for w in range(words):
            out[f, w], levels[0, f, w] = 0, mask[f, w]
    work, n, some = 0.0, 1, False
    stack[0, 0], stack[0, 1] = state.start[t], 0
    while n > 0:
        n -= 1
        v, level = stack[n, 0], stack[n, 1]
        if totals[v, k] == 0:
            continue
        work += d * words / 3  # three words take about 20 nanoseconds
        if level > 0:
            up = above[v]
            g = nodes[up, FEATURE]
            flip = NONE if nodes[up, LEFT] == v else ~NONE
            alive = np.uint64(0)
            for w in range(words):
                alive |= levels[level - 1, g, w] & (left[up, w] ^ flip)
            if alive == 0:
                continue
            for f in range(d):
                for w in range(words):
                    levels[level, f, w] = levels[level - 1, f, w]
            for w in range(words):
                levels[level, g, w] &= left[up, w] ^ flip
        alive = ~np.uint64(0)
        for p in range(pairs[v], pairs[v + 1]):
            g = feature[p]
            alive = np.uint64(0)
            for w in range(words):
                levels[level, g, w] &= occupied[p, k, w]
                alive |= levels[level, g, w]
            if alive == 0:
                break
        if alive == 0:
            continue
        if nodes[v, FEATURE] < 0:
            some = True
            for f in range(d):
                for w in range(words):
                    out[f, w] |= levels[level, f, w]
        else:
            stack[n, 0], stack[n, 1] = nodes[v, LEFT], level + 1
            stack[n + 1, 0], stack[n + 1, 1] = nodes[v, RIGHT], level + 1
            n += 2
    return work if some else -work


@inner_kernel
def narrow(state, k, least, local_tree, mask, levels, stack, out, support, work):  # type: ignore[no-untyped-def]
    """Remove columns without enough support, until all have it. Return whether any remain."""
    d, trees = mask.shape[0], state.start.shape[0] - 1
    while True:
        done = _possible(state, k, local_tree, mask, levels, stack, out)
        work[0] += abs(done)
        if done <= 0:
            return False
        changed = (mask != out).any()
        mask[:] = out
        if least == 0:
            return True
        support[:] = 1
        some = 1
        for t in range(trees):
            if t == local_tree:
                continue
            done = _possible(state, k, t, mask, levels, stack, out)
            work[0] += abs(done)
            if done > 0:
                some += 1
                for f in range(d):
                    for b in range(state.offsets[f + 1] - state.offsets[f]):
                        support[f, b] += (out[f, b // WORD] & bit(b)) != 0
            if some + trees - 1 - t - (1 if local_tree > t else 0) < least:
                return False
        for f in range(d):
            alive = False
            for b in range(state.offsets[f + 1] - state.offsets[f]):
                if has(mask[f], b):
                    if support[f, b] < least:
                        mask[f, b // WORD] &= ~bit(b)
                        changed = True
                    else:
                        alive = True
            if not alive:
                return False
        if not changed:
            return True


@inner_kernel
def support_of(state, k, row):  # type: ignore[no-untyped-def]
    """Return the number of trees for which a row may have been drawn."""
    n = 0
    for t in range(state.start.shape[0] - 1):
        v = np.int64(state.start[t])
        fits = state.totals[v, k] > 0
        while fits:
            for p in range(state.pairs[v], state.pairs[v + 1]):
                fits = fits and has(state.occupied[p, k], row[state.feature[p]])
            f = state.nodes[v, FEATURE]
            if f < 0:
                break
            v = np.int64(state.nodes[v, LEFT if has(state.left[v], row[f]) else RIGHT])
            fits = fits and state.totals[v, k] > 0
        n += fits
    return n


@inner_kernel
def take(state, t, row, k, n):  # type: ignore[no-untyped-def]
    """Subtract n draws of a row from a tree."""
    v = np.int64(state.start[t])
    while True:
        state.totals[v, k] -= n
        for p in range(state.pairs[v], state.pairs[v + 1]):
            b = row[state.feature[p]]
            i = state.at[p] + b
            state.bins[i, k] -= n
            if state.bins[i, k] <= 0:
                state.occupied[p, k, b // WORD] &= ~bit(b)
        f = state.nodes[v, FEATURE]
        if f < 0:
            break
        v = np.int64(state.nodes[v, LEFT if has(state.left[v], row[f]) else RIGHT])


@kernel
def take_everywhere(state, row, k, n):  # type: ignore[no-untyped-def]
    """Subtract n draws of a row from every tree."""
    for t in range(state.start.shape[0] - 1):
        take(state, t, row, k, n)
