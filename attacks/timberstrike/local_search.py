"""Assign rows to leaves by local search on the published objective, without a prior.

The authors' code minimises the L1 distance of leaf sums (the paper prints squared L2, Di Gennaro
et al. 2025, Eq. 13; we follow the code) with a mixed-integer solver under a time limit. Single
moves and swaps from an even start take milliseconds and end at a local optimum: on the second of
Pima's trees (FedTree, depth 3) at 17, where annealing reaches 0.8 and the true rows give 0. RA is
the same within a point from any of these, and 3 to 6 points lower from corner solutions, which
send rows that look alike to one leaf.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.evidence.prior import Reach

Floats = NDArray[np.float64]

MOVES_PER_ROW = 1000
MAX_MOVES = 3_000_000


def search_leaves(
    reach: Reach, x: Floats, target: Floats, start: NDArray[np.int32], seed: int
) -> tuple[NDArray[np.int32], float]:
    """Return leaves, int32 (n,), and the L1 residual reached from ``start``.

    Parameters
    ----------
    reach : Reach
        Reachable leaves of n rows.
    x : float64 array, shape (nnz, K)
        What a row brings to each equation of each leaf it can reach.
    target : float64 array, shape (J, K)
    start : int32 array, shape (n,)
        Leaf positions to start from.
    seed : int
        Seed of the proposals.
    """
    moves = min(MOVES_PER_ROW * start.shape[0], MAX_MOVES)
    if start.shape[0] == 0:
        return start, float(np.abs(target).sum())
    entry = entries(reach.offsets, reach.leaf, start)
    left = _search(reach.offsets, reach.leaf, x, target, entry, moves, np.uint64(seed))
    return reach.leaf[entry], float(left)


@njit(cache=True)
def entries(offsets, leaf, chosen):  # type: ignore[no-untyped-def]
    out = np.empty(chosen.shape[0], dtype=np.int64)
    for i in range(chosen.shape[0]):
        for e in range(offsets[i], offsets[i + 1]):
            if leaf[e] == chosen[i]:
                out[i] = e
    return out


@njit(cache=True)
def find(offsets, leaf, i, j):  # type: ignore[no-untyped-def]
    for e in range(offsets[i], offsets[i + 1]):
        if leaf[e] == j:
            return e
    return -1


@njit(cache=True)
def _search(offsets, leaf, x, target, entry, moves, seed):  # type: ignore[no-untyped-def]
    n, K = entry.shape[0], x.shape[1]
    left = -target.copy()
    for i in range(n):
        for k in range(K):
            left[leaf[entry[i]], k] += x[entry[i], k]
    state = np.array([seed], dtype=np.uint64)
    for _ in range(moves):
        i = np.int64(next_bits(state) % np.uint64(n))
        old = entry[i]
        a = leaf[old]
        width = offsets[i + 1] - offsets[i]
        if width < 2:
            continue
        new = offsets[i] + np.int64(next_bits(state) % np.uint64(width))
        b = leaf[new]
        if a == b:
            continue
        # half of the proposals swap with a row now in b that can reach a
        partner, back = -1, -1
        if next_bits(state) % np.uint64(2) == 0:
            q = np.int64(next_bits(state) % np.uint64(n))
            if leaf[entry[q]] == b:
                back = find(offsets, leaf, q, a)
                partner = q if back >= 0 else -1
            if partner < 0:
                continue
        change = 0.0
        for k in range(K):
            da, db = -x[old, k], x[new, k]
            if partner >= 0:
                da += x[back, k]
                db -= x[entry[partner], k]
            change += abs(left[a, k] + da) - abs(left[a, k])
            change += abs(left[b, k] + db) - abs(left[b, k])
        if change <= 0.0:
            for k in range(K):
                left[a, k] -= x[old, k]
                left[b, k] += x[new, k]
                if partner >= 0:
                    left[a, k] += x[back, k]
                    left[b, k] -= x[entry[partner], k]
            entry[i] = new
            if partner >= 0:
                entry[partner] = back
    return np.abs(left).sum()
