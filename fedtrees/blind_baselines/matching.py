"""Match guessed rows with true rows: pairwise costs, and exact assignment.

The metrics score a reconstruction after matching it with the true rows, because a reconstruction
has no row order (Hungarian matching, Vero et al. 2023). `mismatch_counts` and `graded_costs`
compute the cost of every pair, and `assign` finds the assignment of least total cost.

Costs are integers that fit one byte, for example the number of columns that disagree. `assign` is
a primal-dual method. It finds a maximum matching of the *tight* pairs (reduced cost 0), raises the
dual variables until a larger matching exists, and starts again. Tight pairs are stored as bits, 64
columns per word, so that one search takes about n * n / 64 word operations. The number of searches
is about the largest cost of a pair, not n. For example, 6,219 rows of 11 columns take a quarter of
a second, while a general solver takes half a minute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError

#: Largest number of pairs. Each takes one byte for its cost and one bit for tightness.
MAX_CELLS = 1_200_000_000
#: Largest number of features. With the label, the number of disagreeing columns fits one byte.
MOST_COLUMNS = 254

# Gathers the lowest bit of each of 8 bytes into the top byte of a 64-bit product.
_GATHER = np.uint64(0x0102040810204080)


@kernel
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
    """Count the columns that disagree, for every pair of rows.

    Parameters
    ----------
    true_rows : float array, shape (n, c)
        Rows to be matched. The label is a column if it is scored. NaN is a missing value.
    guessed_rows : float array, shape (m, c)
        Rows to be matched with them.
    tolerance : float array, shape (c,)
        Values agree if ``|x - g| <= tolerance``. 0 means equality. NaN agrees only with NaN.

    Returns
    -------
    cost : uint8 array, shape (n, m)
        Number of columns that disagree.

    Raises
    ------
    DataError
        If there are more than 255 columns or more than `MAX_CELLS` pairs, or if the two tables have
        different numbers of columns.

    Examples
    --------
    >>> true_rows, guessed_rows = np.array([[20.0, 1.0]]), np.array([[22.0, 1.0], [24.0, 0.0]])
    >>> mismatch_counts(true_rows, guessed_rows, np.array([3.0, 0.0])).tolist()
    [[0, 2]]
    """
    check_pair(true_rows.shape, guessed_rows.shape)
    A = np.ascontiguousarray(true_rows, dtype=np.float64)
    Bt = np.ascontiguousarray(guessed_rows.T, dtype=np.float64)
    return _mismatch(A, Bt, np.asarray(tolerance, dtype=np.float64))


def check_pair(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise `DataError` if tables of these shapes cannot be matched (see `mismatch_counts`)."""
    if a[1] != b[1]:
        raise DataError(f"cannot match rows of {a[1]} columns with rows of {b[1]} columns")
    if a[1] > 255:
        raise DataError(f"cannot match rows of {a[1]} columns; at most 255 are supported")
    if a[0] * b[0] > MAX_CELLS:
        raise DataError(
            f"matching {a[0]} x {b[0]} rows needs {a[0] * b[0] / 1e9:.1f} GB; "
            f"score a sample of the rows (at most {MAX_CELLS:,} pairs)"
        )


@inner_kernel
def _tight_row(
    cost_row: NDArray[Any], v: NDArray[Any], u_r: int, flags: NDArray[Any], out: NDArray[Any]
) -> None:
    """Write to `out` one bit per column: 1 if ``cost - u - v == 0``."""
    for c in range(cost_row.shape[0]):
        flags[c] = np.uint8(np.int32(cost_row[c]) - v[c] == u_r)
    packed = flags.view(np.uint64)
    for w in range(out.shape[0]):
        word = np.uint64(0)
        for b in range(8):
            byte = (packed[8 * w + b] * _GATHER) >> np.uint64(56)
            word |= byte << np.uint64(8 * b)
        out[w] = word


@inner_kernel
def lowest_bit(word: Any) -> int:
    """Return the position of the lowest set bit of a 64-bit word, 63 if there is none."""
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


@inner_kernel
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
    """Search an augmenting path of tight pairs from a free row, and augment the matching along it.

    Depth-first search. Returns True if a path was found. `seen`, `row_seen` and `at` contain the
    visited columns, the visited rows, and the word at which the scan of each row continues.
    """
    one = np.uint64(1)
    words = tight.shape[1]
    depth = 0
    path[0] = start
    row_seen[start] = True
    while depth >= 0:
        r = path[depth]
        if at[r] < 0:  # first visit: look for a free column before descending
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


_NO_SLACK = 1 << 28  # above every reduced cost
_REACHED = -1  # replaces the slack of a reached column


@inner_kernel
def _lower_slack(cost_row: NDArray[Any], u_r: int, v: NDArray[Any], slack: NDArray[Any]) -> None:
    """Include the pairs of a newly reached row in the least reduced cost of every column."""
    for c in range(cost_row.shape[0]):  # int32 throughout: twice as many lanes of a vector
        slack[c] = min(slack[c], np.int32(np.int32(np.int32(cost_row[c]) - u_r) - v[c]))


@inner_kernel
def _raise_duals(
    cost: NDArray[Any],
    u: NDArray[Any],
    v: NDArray[Any],
    tight: NDArray[Any],
    seen: NDArray[Any],
    row_seen: NDArray[Any],
    slack: NDArray[Any],
    columns: NDArray[Any],
) -> int:
    """Raise the dual variables by the least amount that lets reached rows reach another column.

    The raise keeps the tight pairs of reached rows with reached columns. Write the new columns to
    `columns`, and return their number.
    """
    n, m = cost.shape
    amount = np.int32(_NO_SLACK)
    for c in range(m):
        if slack[c] > 0:
            amount = min(amount, slack[c])
    n_new = 0
    for c in range(m):
        if slack[c] == _REACHED:
            v[c] -= amount
        else:
            slack[c] -= amount
            if slack[c] == 0:
                columns[n_new] = c
                n_new += 1
    for r in range(n):
        if row_seen[r]:
            u[r] += amount
            for k in range(n_new):
                c = columns[k]
                if np.int32(cost[r, c]) - u[r] - v[c] == 0:
                    tight[r, c >> 6] |= np.uint64(1) << np.uint64(c & 63)
        else:
            for w in range(tight.shape[1]):
                tight[r, w] &= ~seen[w]
    return n_new


@inner_kernel
def _grow(
    cost: NDArray[Any],
    u: NDArray[Any],
    v: NDArray[Any],
    tight: NDArray[Any],
    free: NDArray[Any],
    seen: NDArray[Any],
    row_seen: NDArray[Any],
    col_match: NDArray[Any],
    slack: NDArray[Any],
    columns: NDArray[Any],
) -> None:
    """Raise the dual variables until an augmenting path of tight pairs exists.

    `seen` and `row_seen` contain the columns and rows that a search from all free rows has reached,
    and `slack` the least reduced cost of every other column in these rows. After a raise, the set
    grows by the rows that became reachable, and only these are read. The path itself is left to a
    new search, so that it depends on the tight pairs only.
    """
    one = np.uint64(1)
    while True:
        depth = _raise_duals(cost, u, v, tight, seen, row_seen, slack, columns)
        for k in range(depth):
            c = columns[k]
            seen[c >> 6] |= one << np.uint64(c & 63)
            slack[c] = _REACHED
        while depth > 0:
            depth -= 1
            c = columns[depth]
            if free[c >> 6] >> np.uint64(c & 63) & one:
                return
            r = col_match[c]
            row_seen[r] = True
            _lower_slack(cost[r], u[r], v, slack)
            for w in range(tight.shape[1]):
                hits = tight[r, w] & ~seen[w]
                seen[w] |= hits
                while hits:
                    c = w * 64 + lowest_bit(hits)
                    hits &= hits - one
                    slack[c] = _REACHED
                    columns[depth] = c
                    depth += 1


@kernel
def assign_kernel(
    cost: NDArray[Any], square: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Solve the assignment problem for n <= m. `assign` describes the method.

    Returns the column of every row, and the dual variables of rows and columns. `square` must be
    True only if n = m.
    """
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
    slack = np.empty(m, dtype=np.int32)
    columns = np.empty(m, dtype=np.int32)
    n_unmatched = n
    while True:
        n_augmented = 1
        while n_augmented > 0 and n_unmatched > 0:
            n_augmented = 0
            for w in range(words):  # loops compile in a fraction of the time of slices
                seen[w] = 0
            for r in range(n):
                row_seen[r] = False
                at[r] = -1
            for r in range(n):
                if row_match[r] < 0 and _search(
                    r, tight, free, seen, at, row_seen, row_match, col_match, path
                ):
                    n_augmented += 1
            n_unmatched -= n_augmented
        if n_unmatched == 0:
            return row_match, u, v
        # There is no further augmenting path of tight pairs.
        for c in range(m):
            reached = (seen[c >> 6] >> np.uint64(c & 63)) & np.uint64(1)
            slack[c] = _REACHED if reached else _NO_SLACK
        for r in range(n):
            if row_seen[r]:
                _lower_slack(cost[r], u[r], v, slack)
        _grow(cost, u, v, tight, free, seen, row_seen, col_match, slack, columns)


def assign(cost: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return an assignment of least total cost.

    Parameters
    ----------
    cost : uint8 array, shape (n, m)
        Cost of every pair.

    Returns
    -------
    column : intp array, shape (n,)
        Column matched to each row. If n > m, exactly n - m rows are unmatched and have -1.

    Notes
    -----
    The result is exact. The dual variables remain integers with ``u + v <= cost``, with equality on
    the matched pairs and ``v = 0`` on unmatched columns, which proves optimality (Kuhn 1955). Each
    maximum matching of tight pairs is found by repeated depth-first search (Pothen and Fan 1990).
    The function allocates n * m / 8 bytes in addition to `cost`, and n * m bytes if n > m.
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


@kernel
def _tie_costs(cost: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> NDArray[Any]:
    """Return cost 0 for tight pairs of cost 0, 1 for further tight pairs, and 255 for the rest."""
    out = np.empty_like(cost)
    for r in range(cost.shape[0]):
        for c in range(cost.shape[1]):
            tight = np.int32(cost[r, c]) - u[r] - v[c] == 0
            out[r, c] = np.uint8(min(cost[r, c], 1) if tight else 255)
    return out


def assign_most_exact(cost: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the assignment with the most pairs of cost 0 among those of least total cost.

    Argument and result are as in `assign`.

    Assignments of equal cost can differ in the number of exact pairs. For example, of 484 rows of
    which 70% were known exactly, between 64% and 72% were matched as exact pairs, depending on the
    resolution of ties. Every optimal assignment consists of tight pairs, so that a second
    assignment among the tight pairs resolves the ties. If n != m, the second assignment may not be
    optimal. The first one is then returned.
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
    first, u, v = assign_kernel(cost, n == m)
    second = assign_kernel(_tie_costs(cost, u, v), n == m)[0]
    rows = np.arange(n)
    least = cost[rows, first].sum(dtype=np.int64)
    best = second if cost[rows, second].sum(dtype=np.int64) == least else first
    return best.astype(np.intp)


@kernel
def graded_kernel(
    A: NDArray[Any], Bt: NDArray[Any], scale: NDArray[Any], weight: NDArray[Any]
) -> NDArray[Any]:
    """Compute `graded_costs`, with the guessed rows transposed: `Bt` has shape (c, m)."""
    n, d = A.shape
    m = Bt.shape[1]
    cost = np.empty((n, m), dtype=np.uint8)
    total = np.empty(
        m, dtype=np.int32
    )  # sums in int32 need fewer conversions of vectors than bytes
    for i in range(n):
        for j in range(m):
            total[j] = 0
        for k in range(d):
            x = A[i, k]
            other = Bt[k]
            w = np.int32(weight[k])
            if np.isnan(x):
                for j in range(m):
                    total[j] += np.int32(0) if np.isnan(other[j]) else w
            elif scale[k] > 0:
                f = w / scale[k]
                for j in range(m):
                    step = abs(x - other[j]) * f
                    total[j] += np.int32((step if step < w else float(w)) + 0.5)  # NaN costs w
            else:
                for j in range(m):
                    total[j] += np.int32(0) if x == other[j] else w
        for j in range(m):
            cost[i, j] = np.uint8(total[j])
    return cost


def graded_costs(
    true_rows: NDArray[np.floating],
    guessed_rows: NDArray[np.floating],
    scale: NDArray[np.floating],
    weight: NDArray[np.integer],
) -> NDArray[np.uint8]:
    """Sum ``weight * min(|x - g| / scale, 1)`` over the columns, each rounded to an integer.

    Parameters
    ----------
    true_rows, guessed_rows
        See `mismatch_counts`.
    scale : float array, shape (c,)
        Difference from which on a column counts its full weight. 0 means equality. A missing value
        counts the full weight against a value, and 0 against another missing value.
    weight : int array, shape (c,)
        Largest cost of each column. The sum is at most 255.

    Returns
    -------
    cost : uint8 array, shape (n, m)
        Cost of every pair. Errors are raised as in `mismatch_counts`.
    """
    check_pair(true_rows.shape, guessed_rows.shape)
    if int(np.sum(weight)) > 255:
        raise DataError(f"column weights sum to {int(np.sum(weight))}; at most 255 fit a byte")
    A = np.ascontiguousarray(true_rows, dtype=np.float64)
    Bt = np.ascontiguousarray(guessed_rows.T, dtype=np.float64)
    return graded_kernel(A, Bt, np.asarray(scale, np.float64), np.asarray(weight, np.int64))


def match_cells(
    guess: NDArray[np.floating], truth: NDArray[np.floating], width: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """Match guessed with true rows of small tables so that as many cells as possible agree.

    Parameters
    ----------
    guess : float array, shape (m, d)
        Guessed rows. Only the first n are used.
    truth : float array, shape (n, d)
        True rows.
    width : float64 array, shape (d,)
        Largest accepted difference per feature.

    Returns
    -------
    cells : bool array, shape (n, d)
        Which cells of every true row agree. All are False in an unmatched row.
    pair : intp array, shape (n,)
        Guessed row of every true row, 0 for an unmatched row.
    """
    from scipy.optimize import linear_sum_assignment

    a, b = truth[:, None].astype(np.float64), guess[None, : len(truth)].astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (np.abs(a - b) <= width) | (np.isnan(a) & np.isnan(b))
    rows, columns = linear_sum_assignment(-same.sum(axis=2))
    cells, pair = np.zeros(truth.shape, dtype=bool), np.zeros(len(truth), dtype=np.intp)
    cells[rows], pair[rows] = same[rows, columns], columns
    return cells, pair


def matched_accuracy(cost: NDArray[np.uint8], columns: int) -> float:
    """Return the share of cells of n rows that agree after `assign` (Vero et al. 2023, Eq. 7).

    `cost` are the `mismatch_counts` of n true and m guessed rows of so many columns. Cells of
    unmatched rows do not agree.
    """
    pair = assign(cost)
    matched = np.flatnonzero(pair >= 0)
    wrong = int(cost[matched, pair[matched]].sum(dtype=np.int64))
    return (len(matched) * columns - wrong) / (len(cost) * columns)
