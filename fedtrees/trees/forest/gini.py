"""Class histograms, splits with the lowest Gini impurity, and the random features of a node.

All numbers are integers, except for one float64 quotient per candidate split. A split therefore
does not depend on the order of rows, nor on their distribution over parties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Bins
from fedtrees.trees.jit import readonly

_MASK = 0xFFFFFFFF
# 2^32 divided by the golden ratio: successive multiples are distributed evenly
_GOLDEN = 0x9E3779B9


@inner_kernel
def mix(x: int) -> int:
    """Return a well-mixed 32-bit hash. Every product stays below 2^63."""
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & _MASK
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & _MASK
    return x ^ (x >> 16)


@inner_kernel
def child_key(key: int, side: int) -> int:
    """Return the random key of a child node.

    It depends on the path to the node, and not on the order in which nodes are processed.
    """
    key = mix(key + (side + 1) * _GOLDEN)
    return key


@kernel
def child_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the keys of all children in pairs, int64, shape (2 k,)."""
    out = np.empty(2 * keys.shape[0], dtype=np.int64)
    for i in range(out.shape[0]):
        out[i] = child_key(keys[i >> 1], i & 1)
    return out


@inner_kernel
def draw_feature(key: int, order: NDArray[np.int64], j: int) -> int:
    """Draw the j-th feature of a node without replacement.

    The feature is swapped to position j. Its previous position is returned.
    """
    at: int = j + ((mix(key + (j + 3) * _GOLDEN) * (order.shape[0] - j)) >> 32)
    chosen = order[at]
    order[at] = order[j]
    order[j] = chosen
    return at


@kernel
def _draw_orders(keys: NDArray[np.int64], orders: NDArray[np.int64]) -> None:
    """Draw the order of features of every node."""
    for node in range(keys.shape[0]):
        for j in range(orders.shape[1]):
            draw_feature(keys[node], orders[node], j)


def feature_orders(keys: NDArray[np.int64], features: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all features in the order in which each node tries them, int64, shape (k, m).

    Parameters
    ----------
    keys : int64 array, shape (k,)
        Random keys of the nodes.
    features : int64 array, shape (m,)
        The features.
    """
    orders = np.tile(np.asarray(features, dtype=np.int64), (len(keys), 1))
    _draw_orders(keys, orders)
    return orders


@inner_kernel
def scan_feature(
    counts: NDArray[np.int64],
    codes: NDArray[np.int64],
    n_codes: int,
    missing: int,
    totals: NDArray[np.int64],
    min_leaf: int,
    best: float,
    left: NDArray[np.int64],
    best_left: NDArray[np.int64],
    border: NDArray[np.int64],
    allowed: NDArray[np.bool_] | None = None,
) -> float:
    """Search for a better split on one feature of one node.

    Among all borders between two neighbouring occupied bins, the middle one is chosen, because the
    rows do not distinguish them. scikit-learn likewise chooses the middle of two values.

    Parameters
    ----------
    counts : int64 array, shape (>= (missing + 1) * K,)
        Rows of class k in bin b at ``b * K + k``. Missing values are bin ``missing``.
    codes : int64 array
        The first `n_codes` numbers are the occupied bins, ascending.
    n_codes : int
        Number of occupied bins.
    missing : int
        Code of missing values, and number of bins.
    totals : int64 array, shape (K,)
        Rows of the node, including missing values.
    min_leaf : int
        Smallest number of rows on each side.
    best : float
        Purity that a split must exceed.
    left : int64 array, shape (K,)
        Working memory.
    best_left : int64 array, shape (K,)
        Overwritten by a better split: rows that go left.
    border : int64 array, shape (2,)
        Overwritten by a better split: last bin that goes left, and whether missing values go left.
    allowed : bool array, shape (missing,), or None
        Whether rows may be split after a bin. None compiles a kernel without this test.

    Returns
    -------
    purity : float
        ``sum_k left_k^2 / n_left + sum_k right_k^2 / n_right`` of the best split so far.
    """
    n_classes = totals.shape[0]
    total = 0
    absent = 0
    for k in range(n_classes):
        total += totals[k]
        absent += counts[missing * n_classes + k]
    for missing_left in range(2 if absent > 0 else 1):
        n_left = 0
        left_squares = 0
        right_squares = 0
        for k in range(n_classes):
            start = counts[missing * n_classes + k] if missing_left else 0
            left[k] = start
            n_left += start
            left_squares += start * start
            right_squares += (totals[k] - start) * (totals[k] - start)
        # Without missing values, or with missing values on the left, a split after the last bin
        # leaves no rows on the right.
        for i in range(n_codes - (absent == 0 or missing_left == 1)):
            base = codes[i] * n_classes
            for k in range(n_classes):
                c = counts[base + k]
                before = left[k]
                # (a + c)^2 - a^2 = c (2 a + c), so that the sums of squares are updated exactly.
                left_squares += c * (2 * before + c)
                right_squares -= c * (2 * (totals[k] - before) - c)
                left[k] = before + c
                n_left += c
            n_right = total - n_left
            if n_left < min_leaf or n_right < min_leaf:
                continue
            # Nested, because numba removes the test if the type of `allowed` is None.
            if allowed is not None:  # noqa: SIM102
                if not allowed[codes[i]]:
                    continue
            purity = left_squares / n_left + right_squares / n_right
            if purity > best:
                best = purity
                after = codes[i + 1] if i + 1 < n_codes else missing
                border[0] = (codes[i] + after - 1) // 2 if i + 1 < n_codes else after - 1
                border[1] = missing_left if absent > 0 else n_left > n_right
                for k in range(n_classes):
                    best_left[k] = left[k]
    return best


@kernel
def _choose(
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    totals: NDArray[np.int64],
    first_only: bool,
    min_leaf: int,
    widest: int,
    pair: NDArray[np.int64],
    border: NDArray[np.int64],
    left: NDArray[np.int64],
    usable: NDArray[np.bool_],
    allowed: NDArray[np.bool_] | None,
) -> None:
    """Choose the best split of every node from its class histograms."""
    n_classes = totals.shape[1]
    flat = np.empty((widest + 1) * n_classes, dtype=np.int64)
    codes = np.empty(widest, dtype=np.int64)
    scratch = np.empty(n_classes, dtype=np.int64)
    absent = np.empty(n_classes, dtype=np.int64)
    for node in range(totals.shape[0]):
        best = -1.0
        for p in range(offsets[node], offsets[node + 1]):
            n_bins = starts[p + 1] - starts[p]
            n_codes = 0
            n_absent = np.int64(0)
            for k in range(n_classes):
                absent[k] = totals[node, k]
            for b in range(n_bins):
                occupied = np.int64(0)
                for k in range(n_classes):
                    c = counts[starts[p] + b, k]
                    flat[b * n_classes + k] = c
                    absent[k] -= c
                    occupied += c
                codes[n_codes] = b
                n_codes += 1 if occupied > 0 else 0
            for k in range(n_classes):
                # Suppressed bins are 0 where rows are. The totals of a node are then estimates from
                # the shown bins of its parent, and a class can have more rows in shown bins than in
                # total. Suppression never adds rows, so that no row of this class lacks a bin.
                n_missing = max(absent[k], 0)
                flat[n_bins * n_classes + k] = n_missing
                n_absent += n_missing
            # All rows have the same value, so that the feature cannot split the node.
            if n_codes + (n_absent > 0) < 2:
                continue
            # The feature differs among the rows of the node.
            usable[node] = True
            before = best
            best = scan_feature(
                flat, codes, n_codes, n_bins, totals[node], min_leaf, best,
                scratch, left[node], border[node],
                None if allowed is None else allowed[starts[p] : starts[p + 1]],
            )  # fmt: skip
            if best > before:
                pair[node] = p
            if first_only:
                break


def choose_splits(
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    totals: NDArray[np.int64],
    min_leaf: int,
    first_only: bool,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Choose the best split of each node among its counted features.

    Parameters
    ----------
    counts : int64 array
        A `class_histogram`.
    starts : int64 array
        Position of the first bin of each feature in it (`pair_starts`).
    offsets : int64 array, shape (n_nodes + 1,)
        Position of the first feature of each node.
    totals : int64 array, shape (n_nodes, K)
        Rows of every node, including missing values.
    min_leaf : int
        Smallest number of rows on each side.
    first_only : bool
        Stop at the first feature that differs among the rows of a node.
    allowed : bool array, shape (bins of all features,), optional
        Whether rows may be split after a bin. An empty bin must have the value of the last bin
        before it that is not empty. None if all splits are allowed.

    Returns
    -------
    pair : int64 array, shape (n_nodes,)
        Position of the chosen feature, -1 for none.
    border : int64 array, shape (n_nodes, 2)
        Last bin that goes left, and whether missing values go left.
    left : int64 array, shape (n_nodes, K)
        Rows that go left.
    usable : bool array, shape (n_nodes,)
        Whether any of the features differs among the rows of the node.
    """
    n, n_classes = totals.shape
    pair, border = np.full(n, -1, dtype=np.int64), np.zeros((n, 2), dtype=np.int64)
    left, usable = np.zeros((n, n_classes), dtype=np.int64), np.zeros(n, dtype=bool)
    widest = int(np.diff(starts).max(initial=1))
    _choose(
        readonly(counts),
        starts,
        offsets,
        np.ascontiguousarray(totals),
        first_only,
        min_leaf,
        widest,
        pair,
        border,
        left,
        usable,
        None if allowed is None else readonly(allowed),
    )
    return pair, border, left, usable


@kernel
def _count(
    columns: NDArray[Any],
    missing: int,
    labels: NDArray[np.int64],
    weights: NDArray[np.int64],
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    features: NDArray[np.int32],
    offsets: NDArray[np.int64],
    starts: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Count the rows of each class per bin."""
    for node in range(ranges.shape[0]):
        for pair in range(offsets[node], offsets[node + 1]):
            column = columns[features[pair]]
            for i in range(ranges[node, 0], ranges[node, 1]):
                row = rows[i]
                code = np.int64(column[row])
                if code != missing:
                    out[starts[pair] + code, labels[row]] += weights[row]


def class_histogram(
    bins: Bins,
    labels: NDArray[np.int64],
    weights: NDArray[np.int64],
    rows: NDArray[np.int32],
    ranges: NDArray[np.int64],
    features: NDArray[np.int32],
    offsets: NDArray[np.int64],
    n_classes: int,
) -> NDArray[np.int64]:
    """Count the rows of each class per bin, for some features of each node.

    Parameters
    ----------
    bins : Bins
        n binned rows.
    labels, weights : int64 array, shape (n,)
        Class code and multiplicity of every row.
    rows, ranges : arrays
        The rows of every node, as in `fedtrees.trees.boosted.histogram.build_histogram`.
    features : int32 array, shape (p,)
        Features of all nodes, one after the other.
    offsets : int64 array, shape (n_nodes + 1,)
        The features of node j are ``features[offsets[j]:offsets[j + 1]]``.
    n_classes : int
        Number of classes K.

    Returns
    -------
    counts : int64 array, shape (sum of the bins of `features`, K)
        Missing values are in no bin.
    """
    starts = pair_starts(features, np.diff(bins.offsets))
    out = np.zeros((int(starts[-1]), n_classes), dtype=np.int64)
    _count(
        readonly(bins.columns),
        bins.missing,
        readonly(labels),
        readonly(weights),
        readonly(rows),
        readonly(ranges),
        readonly(features),
        readonly(offsets),
        readonly(starts),
        out,
    )
    return out


def pair_starts(features: NDArray[np.int32], n_bins: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of each feature's first bin in a `class_histogram`, shape (p + 1,).

    The last number is the length of the histogram.
    """
    return np.concatenate([[0], np.cumsum(n_bins[features], dtype=np.int64)]).astype(np.int64)
