"""Pair guessed rows with true rows: counts of disagreeing columns, and the exact assignment.

The cost of a pair is a small integer (how many columns disagree), so the assignment problem is
solved by a primal-dual method that raises the duals one unit at a time and, between two raises,
finds a maximum matching on the *tight* pairs (reduced cost 0). Tight pairs are kept as bit rows,
64 columns to the word, so a whole search costs about n * n / 64 word operations. The number of
raises is about the largest mismatch of a pair, not n, which is what makes it quick: 6,219 rows
of 11 columns take a quarter of a second where a general solver takes half a minute.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.machine_code import compiled

#: Most pairs held at once: one byte per pair for the cost and one bit for tightness.
MAX_CELLS = 1_200_000_000
#: Most features of a row that is matched: with the label the count of a mismatch fits a byte.
MOST_COLUMNS = 254

# Gathers the lowest bit of each of 8 bytes into the top byte of a 64-bit product.
_GATHER = np.uint64(0x0102040810204080)


@compiled
def _mismatch(A: NDArray[Any], Bt: NDArray[Any], tol: NDArray[Any]) -> NDArray[Any]:
    n, d = A.shape
    m = Bt.shape[1]
    cost = np.zeros((n, m), dtype=np.uint8)
    for i in range(n):
        row = cost[i]
        for k in range(d):
            x = A[i, k]
            other = Bt[k]
            t = tol[k]
            if np.isnan(x):
                for j in range(m):
                    row[j] += np.uint8(not np.isnan(other[j]))
            else:
                for j in range(m):
                    row[j] += np.uint8(not (abs(x - other[j]) <= t))
    return cost


def mismatch_counts(
    true_rows: NDArray[np.floating],
    guessed_rows: NDArray[np.floating],
    tolerance: NDArray[np.floating],
) -> NDArray[np.uint8]:
    """Count, for every pair, the columns that disagree.

    Raises `DataError`: more than 255 columns, differing widths, or more than `MAX_CELLS` pairs.

    `true_rows`: float array, shape (n, c). Rows to be matched, label included as a column if it is
    scored. NaN is a missing value.
    `guessed_rows`: float array, shape (m, c).
    `tolerance`: float array, shape (c,). Columns agree iff ``|x - g| <= tolerance``; 0 means
    equality. NaN agrees with NaN only.

    Returns: uint8 array, shape (n, m).
    """
    check_pair(true_rows.shape, guessed_rows.shape)
    A = np.ascontiguousarray(true_rows, dtype=np.float64)
    Bt = np.ascontiguousarray(guessed_rows.T, dtype=np.float64)
    return _mismatch(A, Bt, np.asarray(tolerance, dtype=np.float64))


def check_pair(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    if a[1] != b[1]:
        raise DataError(f"cannot match rows of {a[1]} columns with rows of {b[1]} columns")
    if a[1] > 255:
        raise DataError(f"cannot match rows of {a[1]} columns; at most 255 are supported")
    if a[0] * b[0] > MAX_CELLS:
        raise DataError(
            f"matching {a[0]} x {b[0]} rows needs {a[0] * b[0] / 1e9:.1f} GB; "
            f"score a sample of the rows (at most {MAX_CELLS:,} pairs)"
        )


@compiled
def _tight_row(
    cost_row: NDArray[Any], v: NDArray[Any], u_r: int, flags: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write the bits of the columns with ``cost - u - v == 0`` into `out`."""
    for c in range(cost_row.shape[0]):
        flags[c] = np.uint8(np.int32(cost_row[c]) - v[c] == u_r)
    packed = flags.view(np.uint64)
    for w in range(out.shape[0]):
        word = np.uint64(0)
        for b in range(8):
            byte = (packed[8 * w + b] * _GATHER) >> np.uint64(56)
            word |= byte << np.uint64(8 * b)
        out[w] = word


@compiled
def lowest_bit(word: Any) -> int:
    n = 0
    if word & np.uint64(0xFFFFFFFF) == 0:
        n += 32
        word >>= np.uint64(32)
    if word & np.uint64(0xFFFF) == 0:
        n += 16
        word >>= np.uint64(16)
    if word & np.uint64(0xFF) == 0:
        n += 8
        word >>= np.uint64(8)
    if word & np.uint64(0xF) == 0:
        n += 4
        word >>= np.uint64(4)
    if word & np.uint64(0x3) == 0:
        n += 2
        word >>= np.uint64(2)
    if word & np.uint64(0x1) == 0:
        n += 1
    return n


@compiled
def _search(
    start: int,
    tight: NDArray[Any],
    free: NDArray[Any],
    seen: NDArray[Any],
    at: NDArray[Any],
    row_seen: NDArray[Any],
    row_match: NDArray[Any],
    col_match: NDArray[Any],
    path: NDArray[Any],
) -> Any:
    """Depth-first search for an augmenting path of tight pairs from one free row; flip it."""
    one = np.uint64(1)
    words = tight.shape[1]
    depth = 0
    path[0] = start
    row_seen[start] = True
    while depth >= 0:
        r = path[depth]
        if at[r] < 0:  # first visit: is there a free column right here?
            for w in range(words):
                hit = tight[r, w] & free[w]
                if hit:
                    c = w * 64 + lowest_bit(hit)
                    free[w] &= ~(one << np.uint64(c & 63))
                    seen[w] |= one << np.uint64(c & 63)
                    while depth >= 0:
                        r = path[depth]
                        before = row_match[r]
                        row_match[r] = c
                        col_match[c] = r
                        c = before
                        depth -= 1
                    return True
            at[r] = 0
        child = -1
        w = at[r]
        while w < words:
            hit = tight[r, w] & ~seen[w]
            if hit:
                c = w * 64 + lowest_bit(hit)
                seen[w] |= one << np.uint64(c & 63)
                child = col_match[c]
                break
            w += 1
        at[r] = w
        if child >= 0:
            row_seen[child] = True
            depth += 1
            path[depth] = child
        else:
            depth -= 1
    return False


@compiled
def assign_kernel(
    cost: NDArray[Any], square: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int, int]:
    n, m = cost.shape
    words = (m + 63) // 64
    u = np.zeros(n, dtype=np.int32)
    v = np.zeros(m, dtype=np.int32)
    for r in range(n):
        least = np.int32(255)
        for c in range(m):
            least = min(least, np.int32(cost[r, c]))
        u[r] = least
    if square:  # column reduction is only a valid start when every column gets matched
        for c in range(m):
            v[c] = 1 << 20
        for r in range(n):
            for c in range(m):
                v[c] = min(v[c], np.int32(cost[r, c]) - u[r])
    tight = np.empty((n, words), dtype=np.uint64)
    flags = np.zeros(words * 64, dtype=np.uint8)
    for r in range(n):
        _tight_row(cost[r], v, u[r], flags, tight[r])
    row_match = np.full(n, -1, dtype=np.int32)
    col_match = np.full(m, -1, dtype=np.int32)
    free = np.zeros(words, dtype=np.uint64)
    for c in range(m):
        free[c >> 6] |= np.uint64(1) << np.uint64(c & 63)
    seen = np.zeros(words, dtype=np.uint64)
    row_seen = np.zeros(n, dtype=np.bool_)
    at = np.empty(n, dtype=np.int32)
    path = np.empty(n + 1, dtype=np.int32)
    left = n
    raises = 0
    passes = 0
    while True:
        found = 1
        while found > 0 and left > 0:
            passes += 1
            found = 0
            for w in range(words):  # loops compile in a fraction of the time of slices
                seen[w] = 0
            for r in range(n):
                row_seen[r] = False
                at[r] = -1
            for r in range(n):
                if row_match[r] < 0 and _search(
                    r, tight, free, seen, at, row_seen, row_match, col_match, path
                ):
                    found += 1
            left -= found
        if left == 0:
            break
        # No tight path is left: rows and columns reached from free rows move by one unit.
        raises += 1
        for c in range(m):
            if (seen[c >> 6] >> np.uint64(c & 63)) & np.uint64(1):
                v[c] -= 1
        for r in range(n):
            if row_seen[r]:
                u[r] += 1
                _tight_row(cost[r], v, u[r], flags, tight[r])
            else:
                for w in range(words):
                    tight[r, w] &= ~seen[w]
    return row_match, u, v, raises, passes


def assign(cost: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the column of each row in an assignment of least total cost.

    `cost`: uint8 array, shape (n, m).

    Returns: int array, shape (n,). Column matched to each row, -1 where a row stays unmatched (only
    if n > m; then exactly n - m rows stay unmatched).

    Notes
    -----
    Exact. Duals stay integers with ``u + v <= cost``, equality on the matched pairs and ``v = 0``
    on unmatched columns, which certifies the optimum (Kuhn 1955; the maximum matching between
    two dual raises is found by repeated depth-first search, Pothen and Fan 1990). Memory: n * m
    bytes for `cost` (held by the caller) and n * m / 8 bytes here.
    """
    n, m = cost.shape
    if n == 0 or m == 0:
        return np.full(n, -1, dtype=np.intp)
    if n <= m:
        return assign_kernel(np.ascontiguousarray(cost), n == m)[0].astype(np.intp)
    row_of_column = assign_kernel(np.ascontiguousarray(cost.T), False)[0]
    columns = np.full(n, -1, dtype=np.intp)
    columns[row_of_column] = np.arange(m)
    return columns


@compiled
def _tie_costs(cost: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> NDArray[Any]:
    """Cost 0 for tight pairs that agree in full, 1 for other tight pairs, 255 for the rest."""
    out = np.empty_like(cost)
    for r in range(cost.shape[0]):
        for c in range(cost.shape[1]):
            tight = np.int32(cost[r, c]) - u[r] - v[c] == 0
            out[r, c] = np.uint8(min(cost[r, c], 1) if tight else 255)
    return out


def assign_most_exact(cost: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return an assignment of least total cost with, among those, the most pairs of cost 0.

    `cost`: uint8 array, shape (n, m).

    Returns: int array, shape (n,). As `assign`.

    Notes
    -----
    Equally good matchings can break up pairs that agree in full: of 484 rows of which 70% were
    known exactly, between 64% and 72% came out as exact pairs, depending on the tie. Every best
    matching consists of tight pairs, so a second assignment on those alone settles the tie. With
    n != m it may find no best matching (the first one is returned then).
    """
    n, m = cost.shape
    if n == 0 or m == 0:
        return np.full(n, -1, dtype=np.intp)
    if n > m:
        row_of_column = assign_most_exact(np.ascontiguousarray(cost.T))
        columns = np.full(n, -1, dtype=np.intp)
        columns[row_of_column] = np.arange(m)
        return columns
    cost = np.ascontiguousarray(cost)
    first, u, v, _, _ = assign_kernel(cost, n == m)
    second = assign_kernel(_tie_costs(cost, u, v), n == m)[0]
    rows = np.arange(n)
    least = cost[rows, first].sum(dtype=np.int64)
    best = second if cost[rows, second].sum(dtype=np.int64) == least else first
    return best.astype(np.intp)


@compiled
def graded_kernel(
    A: NDArray[Any], Bt: NDArray[Any], scale: NDArray[Any], weight: NDArray[Any]
) -> NDArray[Any]:
    n, d = A.shape
    m = Bt.shape[1]
    cost = np.zeros((n, m), dtype=np.uint8)
    for i in range(n):
        row = cost[i]
        for k in range(d):
            x = A[i, k]
            other = Bt[k]
            w = weight[k]
            if np.isnan(x):
                for j in range(m):
                    row[j] += np.uint8(0 if np.isnan(other[j]) else w)
            elif scale[k] > 0:
                f = w / scale[k]
                for j in range(m):
                    step = abs(x - other[j]) * f
                    row[j] += np.uint8(step + 0.5) if step < w else np.uint8(w)
            else:
                for j in range(m):
                    row[j] += np.uint8(0 if x == other[j] else w)
    return cost


def graded_costs(
    true_rows: NDArray[np.floating],
    guessed_rows: NDArray[np.floating],
    scale: NDArray[np.floating],
    weight: NDArray[np.integer],
) -> NDArray[np.uint8]:
    """Sum ``weight * min(|x - g| / scale, 1)`` over the columns, each rounded to an integer.

    Raises `DataError` as `mismatch_counts`, or weights above 255 in all.

    `true_rows`: float array, shape (n, c).
    `guessed_rows`: float array, shape (m, c).
    `scale`: float array, shape (c,). Difference at which a column counts in full; 0 means equality.
    A missing value differs in full from any value and not at all from another missing one.
    `weight`: int array, shape (c,). Integer weight of each column, at most 255 in all.

    Returns: uint8 array, shape (n, m).
    """
    check_pair(true_rows.shape, guessed_rows.shape)
    if int(np.sum(weight)) > 255:
        raise DataError(f"column weights sum to {int(np.sum(weight))}; at most 255 fit a byte")
    A = np.ascontiguousarray(true_rows, dtype=np.float64)
    Bt = np.ascontiguousarray(guessed_rows.T, dtype=np.float64)
    return graded_kernel(A, Bt, np.asarray(scale, np.float64), np.asarray(weight, np.int64))
