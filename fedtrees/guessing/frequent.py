"""Guess the rows that are there exactly, as often as they are expected."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.machine_code import compiled
from fedtrees.core.schema import Table
from fedtrees.guessing.consensus import matched_consensus

#: A row is guessed once more while at least this share of the samples has an unguessed copy of
#: it; the other slots go to a consensus, which scores more there.
LEAST = 0.2
# Slots filled at once: time grows with their square.
_BLOCK = 1000


@compiled
def _agreements(A: NDArray[Any], B: NDArray[Any], width: NDArray[Any]) -> NDArray[Any]:
    agree = np.zeros((len(A), len(B)), dtype=np.bool_)
    for i in range(len(A)):
        for j in range(len(B)):
            same = True
            for k in range(A.shape[1]):
                x, y = A[i, k], B[j, k]
                if not (abs(x - y) <= width[k] or (np.isnan(x) and np.isnan(y))):
                    same = False
                    break
            agree[i, j] = same
    return agree


@compiled
def _cover(agree: NDArray[Any], samples: int, least: int, free: NDArray[Any]) -> NDArray[Any]:
    """Choose rows greedily; each takes one free row that it agrees with from every sample.

    A gain only falls, so a candidate that leads with a gain counted anew is the best.
    """
    n = agree.shape[1] // samples
    gain = np.full(len(agree), samples, dtype=np.int64)
    chosen = np.empty(n, dtype=np.int64)
    taken = np.empty(samples, dtype=np.int64)
    for i in range(n):
        while True:
            best = 0
            for c in range(len(gain)):
                if gain[c] > gain[best]:
                    best = c
            count = 0
            for s in range(samples):
                taken[s] = -1
                for j in range(s * n, (s + 1) * n):
                    if free[j] and agree[best, j]:
                        taken[s] = j
                        count += 1
                        break
            if count == gain[best]:
                break
            gain[best] = count
        if gain[best] < least:
            return chosen[:i]
        chosen[i] = best
        for s in range(samples):
            if taken[s] >= 0:
                free[taken[s]] = False
    return chosen


def frequent_rows(candidates: Table, samples: Sequence[Table], width: NDArray[np.float64]) -> Table:
    """Return the rows that most samples have, repeated, and a consensus of what is left.

    Rows are chosen one by one: the candidate that agrees in every column with a row not yet taken
    in most samples, which then is taken in each of them (greedy maximum coverage: Nemhauser,
    Wolsey and Fisher 1978). Below `LEAST` the rows not taken make up tables of their own.

    `samples`: Tables of n rows each, of independent draws: a thousand rows are covered at once.
    `width`: float64 array, shape (d,) or (d + 1,). Accepted difference per feature; 0 means
    equality. A last entry for the label is ignored.

    Returns: n rows.
    """
    n, d = samples[0].X.shape
    rows_once = np.unique(np.nan_to_num(_columns(candidates), nan=1e300), axis=0, return_index=True)
    candidates = candidates.take(np.sort(rows_once[1]))
    tight = np.append(np.asarray(width, dtype=np.float64)[:d], 0.0)
    parts = []
    for rows in np.array_split(np.arange(n), -(-n // _BLOCK)):
        pool = Table.concat([t.take(rows) for t in samples])
        agree = _agreements(_columns(candidates), _columns(pool), tight)
        free = np.ones(len(pool), dtype=bool)
        least = max(1, int(np.ceil(LEAST * len(samples))))
        chosen = _cover(agree, len(samples), least, free)
        parts.append(candidates.take(chosen))
        left = len(rows) - len(chosen)
        if left:
            unused = np.split(free, len(samples))
            spare = [
                t.take(rows[np.flatnonzero(mine)[:left]])
                for t, mine in zip(samples, unused, strict=True)
            ]
            parts.append(matched_consensus(spare, width))
    return Table.concat(parts)


def _columns(table: Table) -> NDArray[np.float64]:
    return np.column_stack([table.X, table.y]).astype(np.float64)
