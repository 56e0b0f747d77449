"""Redraw an assignment so that it also meets the leaf sums, without forgetting the prior.

The maximum-entropy P meets the sums on average only; rows drawn from it miss them by their
sampling noise, and the misses feed into the margins of every later tree. Metropolis moves on

    sum |residual|^2 / (2 sigma^2) - sum log prior

(single moves and swaps) take the noise out. Greedy moves on the residual alone lower it further
and reconstruct worse: many assignments fit, few of them are plausible.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.evidence.draws import next_bits
from fedtrees.attacks.evidence.prior import Reach
from fedtrees.attacks.timberstrike.local_search import entries, find

Floats = NDArray[np.float64]

MOVES_PER_ROW = 150
SIGMA = 0.15  # residual (in gradients) at which prior and sums weigh the same; .1 to .3 do equally


def redraw_leaves(
    reach: Reach, x: Floats, target: Floats, variance: Floats, start: NDArray[np.int32], seed: int
) -> tuple[NDArray[np.int32], float]:
    """Return leaves, int32 (n,), and the L1 residual they leave.

    Parameters
    ----------
    reach : Reach
        Reachable leaves of n rows, with log prior.
    x : float64 array, shape (nnz, K)
        What a row brings to each equation of each leaf it can reach.
    target, variance : float64 array, shape (J, K)
        Sums to meet, and the variance of the noise on them.
    start : int32 array, shape (n,)
        Leaf positions to start from.
    """
    precision = 1.0 / np.maximum(variance, SIGMA**2)
    entry = entries(reach.offsets, reach.leaf, start)
    left = _metropolis(
        reach.offsets,
        reach.leaf,
        reach.log_prior,
        x,
        target,
        precision,
        entry,
        MOVES_PER_ROW * start.shape[0],
        np.uint64(seed),
    )
    return reach.leaf[entry], float(left)


@njit(cache=True)
def _metropolis(offsets, leaf, log_prior, x, target, precision, entry, moves, seed):  # type: ignore[no-untyped-def]
    n, K = entry.shape[0], x.shape[1]
    left = -target.copy()
    for i in range(n):
        for k in range(K):
            left[leaf[entry[i]], k] += x[entry[i], k]
    state = np.array([seed], dtype=np.uint64)
    for _ in range(moves):
        i = np.int64(next_bits(state) % np.uint64(n))
        old = entry[i]
        new = offsets[i] + np.int64(next_bits(state) % np.uint64(offsets[i + 1] - offsets[i]))
        a, b = leaf[old], leaf[new]
        if a == b:
            continue
        gain = log_prior[new] - log_prior[old]
        # half of the proposals swap with a row now in b that can reach a
        partner, back = -1, -1
        if next_bits(state) % np.uint64(2) == 0:
            partner = np.int64(next_bits(state) % np.uint64(n))
            if leaf[entry[partner]] == b:
                back = find(offsets, leaf, partner, a)
            if back < 0:
                continue
            gain += log_prior[back] - log_prior[entry[partner]]
        for k in range(K):
            da, db = -x[old, k], x[new, k]
            if partner >= 0:
                da += x[back, k]
                db -= x[entry[partner], k]
            gain -= 0.5 * precision[a, k] * da * (2.0 * left[a, k] + da)
            gain -= 0.5 * precision[b, k] * db * (2.0 * left[b, k] + db)
        if gain < 0.0 and np.float64(next_bits(state)) * 2.0**-53 >= np.exp(gain):
            continue
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
