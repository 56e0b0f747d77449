"""Splits with the lowest Gini impurity among the allowed ones.

The result is that of `fedtrees.trees.forest.gini.choose_splits` with a restriction. It is slower.
"""

import numpy as np
from numpy.typing import NDArray


def choose_allowed(
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    totals: NDArray[np.int64],
    min_leaf: int,
    first_only: bool,
    allowed: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Choose the best allowed split of each node among its counted features.

    Parameters
    ----------
    counts, starts, offsets, totals, min_leaf, first_only
        As in `fedtrees.trees.forest.gini.choose_splits`.
    allowed : bool array, shape (bins of all features,)
        Whether rows may be split after a bin. An empty bin must have the value of the last bin
        before it that is not empty.

    Returns
    -------
    pair, found, left, usable
        As in `fedtrees.trees.forest.gini.choose_splits`.
    """
    n, n_classes = totals.shape
    pair, borders = np.full(n, -1, dtype=np.int64), np.zeros((n, 2), dtype=np.int64)
    left, usable = np.zeros((n, n_classes), dtype=np.int64), np.zeros(n, dtype=bool)
    for node in range(n):
        best = -1.0
        for p in range(offsets[node], offsets[node + 1]):
            here = slice(starts[p], starts[p + 1])
            bins = counts[here]
            codes = np.flatnonzero(bins.sum(axis=1))
            absent = totals[node] - bins.sum(axis=0)
            if len(codes) + bool(absent.any()) < 2:
                continue
            usable[node] = True
            purity, at, rows = _best(bins, codes, absent, totals[node], min_leaf, allowed[here])
            if purity > best:
                best, pair[node], borders[node], left[node] = purity, p, at, rows
            if first_only:
                break
    return pair, borders, left, usable


def _best(
    bins: NDArray[np.int64],
    codes: NDArray[np.intp],
    absent: NDArray[np.int64],
    total: NDArray[np.int64],
    min_leaf: int,
    allowed: NDArray[np.bool_],
) -> tuple[float, tuple[int, bool], NDArray[np.int64]]:
    """Return the best split of one feature.

    The values are its purity, its last bin and the side of missing values, and the rows on the
    left.
    """
    missing = bool(absent.any())
    below = np.cumsum(bins[codes], axis=0)
    # Missing values are tried on the right, then on the left.
    sides = [below, below + absent] if missing else [below]
    best, at, rows = -1.0, (0, False), total
    for missing_left, side in enumerate(sides):
        # Without missing values, or with missing values on the left, a split after the last bin
        # leaves no rows on the right.
        side = side[: len(codes) - (not missing or missing_left == 1)]
        rest = total - side
        n_left, n_right = side.sum(axis=1), rest.sum(axis=1)
        good = (n_left >= min_leaf) & (n_right >= min_leaf) & allowed[codes[: len(side)]]
        if not good.any():
            continue
        purity = (side**2).sum(axis=1) / np.maximum(n_left, 1)
        purity = np.where(good, purity + (rest**2).sum(axis=1) / np.maximum(n_right, 1), -1.0)
        i = int(purity.argmax())
        if purity[i] > best:
            after = int(codes[i + 1]) if i + 1 < len(codes) else len(bins)
            bin = (int(codes[i]) + after - 1) // 2 if i + 1 < len(codes) else after - 1
            default_left = bool(missing_left) if missing else bool(n_left[i] > n_right[i])
            best, at, rows = float(purity[i]), (bin, default_left), side[i]
    return best, at, rows
