"""Guess rows that are probably exact, each as often as samples of the table contain it.

The blind guess ``frequent`` (`fedtrees.guessing.blind`) uses it for the score of exact rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.schema import Table
from fedtrees.guessing.consensus import matched_consensus

#: A row is guessed once more while at least this share of the samples has an unused copy of it. The
#: remaining rows are filled by a consensus, which scores higher for them.
LEAST = 0.2
# Number of rows that are guessed together. The time grows with its square.
_BLOCK = 1000


@kernel
def _agreements(A: NDArray[Any], B: NDArray[Any], width: NDArray[Any]) -> NDArray[Any]:
    """Return whether each pair of rows agrees in all columns, bool, shape (len(A), len(B))."""
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


@kernel
def _cover(agree: NDArray[Any], samples: int, least: int, free: NDArray[Any]) -> NDArray[Any]:
    """Choose candidates greedily, and mark one agreeing row per sample as used (not `free`).

    The gain of a candidate is the number of samples with a free row that agrees with it. Gains only
    decrease. A candidate whose updated gain is still the largest is therefore the best (lazy
    evaluation).
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
    """Return n rows: the candidates that occur in most samples, completed by a consensus.

    Rows are chosen by greedy maximum coverage (Nemhauser, Wolsey and Fisher 1978). Each step
    chooses the candidate that agrees in every column with an unused row in most samples, and uses
    up one such row of each sample. If the best candidate occurs in less than a share `LEAST` of
    the samples, the remaining rows are the `matched_consensus` of the unused rows.

    Parameters
    ----------
    candidates : Table
        Rows to choose from. Duplicates are ignored.
    samples : sequence of Table
        Tables of n independent rows each. They are processed in blocks of up to 1,000 rows.
    width : float64 array, shape (d,) or (d + 1,)
        Accepted difference per feature. 0 means equality. A last entry for the label is ignored.
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
        n_left = len(rows) - len(chosen)
        if n_left:
            free_of_sample = np.split(free, len(samples))
            unused_tables = [
                t.take(rows[np.flatnonzero(unused_rows)[:n_left]])
                for t, unused_rows in zip(samples, free_of_sample, strict=True)
            ]
            parts.append(matched_consensus(unused_tables, width))
    return Table.concat(parts)


def _columns(table: Table) -> NDArray[np.float64]:
    return np.column_stack([table.X, table.y]).astype(np.float64)
