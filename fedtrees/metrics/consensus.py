"""Sharpen samples of a table by matching them row to row and voting per cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.core.schema import Table
from fedtrees.metrics.matching import assign, graded_costs

# Steps per column of the matching cost, fewer where they would not fit a byte.
_STEPS = 8
# Weight of a wrong label against a wrong feature.
_LABEL_WEIGHT = 2
#: Rows matched at once; longer tables are cut into blocks of about this many slots.
BLOCK = 1000


@njit(cache=True, nogil=True)
def _vote(values: NDArray[Any], width: NDArray[Any], out: NDArray[Any]) -> None:
    samples, n, d = values.shape
    for i in range(n):
        for k in range(d):
            best, most = 0, -1
            for s in range(samples):
                x = values[s, i, k]
                votes = 0
                for t in range(samples):
                    other = values[t, i, k]
                    if abs(x - other) <= width[k] or (np.isnan(x) and np.isnan(other)):
                        votes += 1
                if votes > most:
                    best, most = s, votes
            out[i, k] = values[best, i, k]


def matched_consensus(
    samples: Sequence[Table], width: NDArray[np.float64], *, rounds: int = 2, block: int = BLOCK
) -> Table:
    """Return one table that agrees with as many samples as possible, slot by slot.

    Every sample is matched to the last one (cost per feature ``min(|dx| / (2 width), 1)``, twice
    that for a wrong label); then every cell of a slot takes the sample value with most other
    samples within `width`, the label its majority. The result is the reference of the next round.

    Parameters
    ----------
    samples : sequence of Table
        Tables of n rows each.
    width : float64 array, shape (d,) or (d + 1,)
        Accepted difference per feature; 0 means equality. A last entry for the label is ignored.
    rounds : int
    block : int
        Slots matched at once. Rows of independent draws are exchangeable, so a table of more
        slots is cut into equal blocks in row order; time then grows with n, not n squared.

    Returns
    -------
    Table
        n rows.

    Notes
    -----
    Uses no information but the samples; it raises Hungarian scores all the same, which is why the
    blind adversary must have it too.
    """
    n, d = samples[0].X.shape
    stack = np.stack([np.column_stack([t.X, t.y]).astype(np.float64) for t in samples])
    tight = np.append(np.asarray(width, dtype=np.float64)[:d], 0.0)
    out = np.empty((n, d + 1))
    for rows in np.array_split(np.arange(n), max(1, -(-n // block))):
        out[rows] = _block_consensus(stack[:, rows], tight, rounds)
    return Table(out[:, :d].astype(np.float32), out[:, d].astype(np.int64))


def _block_consensus(
    values: NDArray[np.float64], width: NDArray[np.float64], rounds: int
) -> NDArray[np.float64]:
    columns = values.shape[2]
    steps = max(1, min(_STEPS, 255 // (columns - 1 + _LABEL_WEIGHT)))
    weight = np.full(columns, steps)
    weight[-1] = min(steps * _LABEL_WEIGHT, 255 - steps * (columns - 1))
    reference: NDArray[np.float64] = values[-1]
    for _ in range(rounds):
        matched = np.empty_like(values)
        for s, sample in enumerate(values):
            matched[s] = sample[assign(graded_costs(reference, sample, 2 * width, weight))]
        reference = np.empty_like(reference)
        _vote(matched, width, reference)
    return reference
