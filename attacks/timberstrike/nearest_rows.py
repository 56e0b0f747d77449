"""Find the rows of a pool that are nearest to boxes.

`nearest_rows` finds the row of a pool that violates a box in the fewest features. It stores sets of
rows as bits, 64 per word, so that one operation tests a feature for 64 rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.reconstruction.boxes import ANY, FeatureBoxes
from fedtrees.blind_baselines.matching import lowest_bit
from fedtrees.core.compilation import inner_kernel, kernel


def nearest_rows(
    boxes: FeatureBoxes,
    narrow: NDArray[np.bool_],
    cells: NDArray[np.int32],
    y: NDArray[np.int64],
    u: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return, for each box, a row of its label with the fewest violations.

    Of several such rows, the one that was chosen least often so far is returned. If a row were
    chosen twice, another would be left out, and a table with fewer different rows matches the
    victims' rows worse. Remaining ties go to the first row from a random place on.

    Parameters
    ----------
    boxes : FeatureBoxes
        n boxes.
    narrow : bool array, shape (n, d)
        Features in which a row can violate the box at all.
    cells : int32 array, shape (m, d)
        Cells of the rows of the pool, -1 if a value is missing.
    y : int64 array, shape (m,)
        Labels of the rows of the pool.
    u : float64 array, shape (n,)
        Uniform random numbers in [0, 1) for the ties.

    Returns
    -------
    int64 array, shape (n,)
        Index of the row, -1 if the pool has no row of the label.
    """
    out = np.full(len(boxes.y), -1, dtype=np.int64)
    if not len(y):
        return out
    # boxes may end above every cell that rows have
    top = np.maximum(cells.max(axis=0), boxes.hi.max(axis=0, initial=0)) + 1
    begin = np.concatenate([[0], np.cumsum(top.astype(np.int64) + 1)])
    for label in np.unique(boxes.y):
        rows, of_label = np.flatnonzero(y == label), np.flatnonzero(boxes.y == label)
        if not len(rows):
            continue
        below, absent = _sets(cells[rows], begin)
        start = np.searchsorted(rows, (u[of_label] * len(y)).astype(np.int64)) % len(rows)
        box = (
            boxes.lo[of_label],
            boxes.hi[of_label],
            boxes.missing[of_label],
            boxes.codes[of_label],
        )
        nearest = _search(*box, narrow[of_label], below, absent, begin, start, len(rows), ANY)
        out[of_label] = rows[nearest]
    return out


@kernel
def _sets(cells: NDArray[Any], begin: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows in cells below k, per feature and k, and the rows without value, per feature.

    Sets are uint64 (words,); those of feature f begin at ``begin[f]``.
    """
    m, d = cells.shape
    words = (m + 63) // 64
    below = np.zeros((begin[d], words), dtype=np.uint64)
    absent = np.zeros((d, words), dtype=np.uint64)
    for r in range(m):
        bit = np.uint64(1) << np.uint64(r & 63)
        for f in range(d):
            c = cells[r, f]
            if c < 0:
                absent[f, r >> 6] |= bit
            else:
                below[begin[f] + c + 1, r >> 6] |= bit
    for f in range(d):
        for k in range(begin[f] + 1, begin[f + 1]):
            for w in range(words):
                below[k, w] |= below[k - 1, w]
    return below, absent


@kernel
def _search(  # type: ignore[no-untyped-def]
    lo, hi, missing, codes, narrow, below, absent, begin, start, rows, any_code
):
    """Return the chosen row of each box, int64 (n,)."""
    n, d = lo.shape
    words = below.shape[1]
    one = np.uint64(1)
    all_rows = np.full(words, ~np.uint64(0))
    if rows & 63:  # the last word has bits beyond the last row
        all_rows[words - 1] = (one << np.uint64(rows & 63)) - one
    # Violations are counted bit-sliced: plane p contains bit p of the counts of all rows.
    planes = 1
    while (1 << planes) <= d:
        planes += 1
    fits = np.empty((d, words), dtype=np.uint64)
    count = np.empty((planes, words), dtype=np.uint64)  # violations of each row, in binary
    left = np.empty(words, dtype=np.uint64)
    fewer = np.empty(words, dtype=np.uint64)
    uses = np.zeros(rows, dtype=np.int64)
    out = np.empty(n, dtype=np.int64)
    for i in range(n):
        m = 0
        for w in range(words):
            left[w] = all_rows[w]
        for f in range(d):
            if not narrow[i, f]:
                continue
            # rows with lo <= cell < hi are those below hi that are not below lo
            a, b = begin[f] + lo[i, f], begin[f] + max(lo[i, f], hi[i, f])
            for w in range(words):
                fits[m, w] = below[b, w] & ~below[a, w]
            if codes[i, f] != any_code:
                for w in range(words):
                    fewer[w] = np.uint64(0)
                for c in range(min(64, begin[f + 1] - begin[f] - 1)):
                    if (codes[i, f] >> np.uint64(c)) & one:
                        at = begin[f] + c
                        for w in range(words):
                            fewer[w] |= below[at + 1, w] & ~below[at, w]
                for w in range(words):
                    fits[m, w] &= fewer[w]
            if missing[i, f]:
                for w in range(words):
                    fits[m, w] |= absent[f, w]
            for w in range(words):
                left[w] &= fits[m, w]
            m += 1
        any_left = np.uint64(0)
        for w in range(words):
            any_left |= left[w]
        if not any_left:  # no row fulfils all constraints
            _fewest(fits, m, all_rows, count, left, fewer)
        row = _least_used(left, uses, start[i])
        uses[row] += 1
        out[i] = row
    return out


@inner_kernel
def _fewest(fits, m, all_rows, count, left, fewer):  # type: ignore[no-untyped-def]
    """Keep in `left` the rows that are in most of the m sets."""
    planes, words = count.shape
    for p in range(planes):
        for w in range(words):
            count[p, w] = np.uint64(0)
    # Add the violations of each constraint to the counters, with carries from plane to plane.
    for k in range(m):
        for w in range(words):
            fewer[w] = ~fits[k, w]
        for p in range(planes):
            if 1 << p > k + 1:  # no row has so many yet
                break
            for w in range(words):
                both = count[p, w] & fewer[w]
                count[p, w] ^= fewer[w]
                fewer[w] = both
    for w in range(words):
        left[w] = all_rows[w]
    # From the highest bit down, keep the rows whose bit is 0 if there are any. The rows with the
    # smallest count remain.
    for p in range(planes - 1, -1, -1):
        any_fewer = np.uint64(0)
        for w in range(words):
            fewer[w] = left[w] & ~count[p, w]
            any_fewer |= fewer[w]
        if any_fewer:
            for w in range(words):
                left[w] = fewer[w]


@inner_kernel
def _least_used(rows, uses, start):  # type: ignore[no-untyped-def]
    """Return the least used row of a set. Ties go to the first row from `start` on."""
    words = rows.shape[0]
    above = ~np.uint64(0) << np.uint64(start & 63)
    chosen, least = -1, 0
    for step in range(words + 1):
        w = (start // 64 + step) % words
        bits = rows[w]
        # The first word is visited twice: its bits from `start` on, and finally those below.
        if step == 0:
            bits &= above
        elif step == words:
            bits &= ~above
        while bits:
            row = w * 64 + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            if chosen < 0 or uses[row] < least:
                chosen, least = row, uses[row]
                if least == 0:
                    return chosen
    return chosen
