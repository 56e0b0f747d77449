"""Grow a complete classification tree in one kernel, for one party with all rows.

The tree is that of `ForestGrower`, which works level by level from summed counts. The kernel is 2
to 14 times as fast. For example, 50 trees on 600 rows take 0.03 s of CPU time here, 0.21 s with
`ForestGrower`, and 0.13 s with scikit-learn. A fully grown tree on 200,000 rows, 28 features and 10
classes takes 0.4 s and 50 MiB here, and 5.4 s and 770 MiB with `ForestGrower`, because the latter
stores the counts of a complete level.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Bins, Cuts
from fedtrees.trees.forest.gini import child_key, draw_feature, scan_feature
from fedtrees.trees.forest.params import UNLIMITED, ForestParams, feature_count
from fedtrees.trees.forest.random_forest import ClassTree, shares

# A row is one int64 that contains row number, class and multiplicity. When it is moved, all of its
# data moves with it, so that only the bin has to be looked up.
_ROW, _CLASS, _LOW = 32, 16, 0xFFFF

# 2^0, ..., 2^31 have distinct remainders modulo 37, from which the exponent is looked up.
_EXPONENT = np.zeros(37, dtype=np.int64)
for _bit in range(32):
    _EXPONENT[2**_bit % 37] = _bit


@inner_kernel
def _count_all(
    column: NDArray[Any],
    missing: int,
    entries: NDArray[np.int64],
    n_classes: int,
    counts: NDArray[np.int64],
    codes: NDArray[np.int64],
) -> int:
    """Count the rows of a node with more rows than bins, and list its occupied bins."""
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        counts[code * n_classes + ((e >> _CLASS) & _LOW)] += e & _LOW
    n_occupied = 0
    for b in range(missing):
        occupied = np.int64(0)
        for k in range(n_classes):
            occupied += counts[b * n_classes + k]
        codes[n_occupied] = b
        n_occupied += 1 if occupied > 0 else 0
    return n_occupied


@inner_kernel
def _count_few(
    column: NDArray[Any],
    missing: int,
    entries: NDArray[np.int64],
    n_classes: int,
    counts: NDArray[np.int64],
    codes: NDArray[np.int64],
    bits: NDArray[np.int64],
    exponent: NDArray[np.int64],
) -> int:
    """Count the rows of a node with fewer rows than bins.

    Its occupied bins are marked in a bit set, from which they are listed without a loop over all
    bins.
    """
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        counts[code * n_classes + ((e >> _CLASS) & _LOW)] += e & _LOW
        bits[code >> 5] |= 1 << (code & 31)
    bits[missing >> 5] &= ~(1 << (missing & 31))
    n_occupied = 0
    for word in range(bits.shape[0]):
        bits_left = bits[word]
        bits[word] = 0
        while bits_left != 0:
            lowest = bits_left & -bits_left
            codes[n_occupied] = word * 32 + exponent[lowest % 37]
            n_occupied += 1
            bits_left ^= lowest
    return n_occupied


@inner_kernel
def _move(
    column: NDArray[Any],
    missing: int,
    bin: int,
    missing_left: int,
    entries: NDArray[np.int64],
    aside: NDArray[np.int64],
) -> int:
    """Move the entries that go left to the front, in their order, and return their number."""
    left = 0
    right = 0
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        goes_left = (missing_left == 1) if code == missing else code <= bin
        entries[left] = e  # this slot is free, because left never passes i
        aside[right] = e
        left += 1 if goes_left else 0
        right += 0 if goes_left else 1
    for i in range(right):
        entries[left + i] = aside[i]
    return left


class _Scratch(NamedTuple):
    """Working memory of all nodes. `sums`, `bits` and `order` are restored after each node."""

    sums: NDArray[np.int64]
    codes: NDArray[np.int64]
    bits: NDArray[np.int64]
    left: NDArray[np.int64]
    best_left: NDArray[np.int64]
    best_border: NDArray[np.int64]
    order: NDArray[np.int64]
    places: NDArray[np.int64]
    exponent: NDArray[np.int64]

    @staticmethod
    def of(missing: int, n_classes: int, features: NDArray[np.int64]) -> _Scratch:
        """Allocate the working memory."""
        return _Scratch(
            sums=np.zeros((missing + 1) * n_classes, dtype=np.int64),
            codes=np.zeros(missing + 1, dtype=np.int64),
            bits=np.zeros((missing >> 5) + 1, dtype=np.int64),
            left=np.zeros(n_classes, dtype=np.int64),
            best_left=np.zeros(n_classes, dtype=np.int64),
            best_border=np.zeros(2, dtype=np.int64),
            order=features.astype(np.int64),
            places=np.zeros(len(features), dtype=np.int64),
            exponent=_EXPONENT.copy(),
        )


@inner_kernel
def _search(
    columns: NDArray[Any],
    missing: int,
    rows: NDArray[np.int64],
    totals: NDArray[np.int64],
    key: int,
    min_leaf: int,
    max_features: int,
    s: _Scratch,
) -> int:
    """Try features in random order, and return the best one, -1 for none.

    `s.best_border` and `s.best_left` contain its split. Features that are constant among the rows
    count as tried only after one that is not constant.
    """
    n_classes = totals.shape[0]
    best, chosen = -1.0, -1
    usable = False
    tried = 0
    while tried < s.order.shape[0] and (tried < max_features or not usable):
        s.places[tried] = draw_feature(key, s.order, tried)
        f = s.order[tried]
        tried += 1
        # Listing the occupied bins by a loop over all bins only pays off for nodes with many rows.
        if rows.shape[0] * 2 > missing:
            n_codes = _count_all(columns[f], missing, rows, n_classes, s.sums, s.codes)
        else:
            n_codes = _count_few(
                columns[f], missing, rows, n_classes, s.sums, s.codes, s.bits, s.exponent
            )
        absent = np.int64(0)
        for k in range(n_classes):
            absent += s.sums[missing * n_classes + k]
        if n_codes + (absent > 0) > 1:
            usable = True
            before = best
            best = scan_feature(
                s.sums, s.codes, n_codes, missing, totals, min_leaf, best,
                s.left, s.best_left, s.best_border,
            )  # fmt: skip
            if best > before:
                chosen = f
        # Clear only the counts that this feature changed.
        s.codes[n_codes] = missing
        for i in range(n_codes + 1):
            for k in range(n_classes):
                s.sums[s.codes[i] * n_classes + k] = 0
    for j in range(tried - 1, -1, -1):  # restore the order from which every node starts
        feature = s.order[j]
        s.order[j] = s.order[s.places[j]]
        s.order[s.places[j]] = feature
    return chosen


@kernel
def _grow(
    columns: NDArray[Any],
    missing: int,
    entries: NDArray[np.int64],
    key: int,
    limits: NDArray[np.int64],
    s: _Scratch,
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    left: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> int:
    """Grow the tree in order of the node numbers, and return the number of nodes."""
    max_depth, min_split, min_leaf, max_features = limits[0], limits[1], limits[2], limits[3]
    size, n_classes = counts.shape
    begin = np.empty(size, dtype=np.int64)
    end = np.empty(size, dtype=np.int64)
    depth = np.empty(size, dtype=np.int64)
    keys = np.empty(size, dtype=np.int64)
    aside = np.empty(entries.shape[0], dtype=np.int64)
    begin[0], end[0], depth[0], keys[0] = 0, entries.shape[0], 0, key
    grown = 1
    node = -1
    while node + 1 < grown:
        node += 1
        feature[node] = -1
        total = np.int64(0)
        largest = np.int64(0)
        for k in range(n_classes):
            total += counts[node, k]
            largest = max(largest, counts[node, k])
        # Pure, small or deep nodes stay leaves.
        if largest == total or total < max(min_split, 2 * min_leaf) or depth[node] >= max_depth:
            continue
        rows = entries[begin[node] : end[node]]
        f = _search(columns, missing, rows, counts[node], keys[node], min_leaf, max_features, s)
        if f < 0:
            continue
        feature[node], bin[node], default_left[node] = f, s.best_border[0], s.best_border[1] == 1
        left[node] = grown
        middle = begin[node] + _move(
            columns[f], missing, s.best_border[0], s.best_border[1], rows, aside
        )
        begin[grown], end[grown] = begin[node], middle
        begin[grown + 1], end[grown + 1] = middle, end[node]
        for k in range(n_classes):
            counts[grown, k] = s.best_left[k]
            counts[grown + 1, k] = counts[node, k] - s.best_left[k]
        for side in range(2):
            keys[grown + side] = child_key(keys[node], side)
            depth[grown + side] = depth[node] + 1
        grown += 2
    return grown


def pack_rows(labels: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the drawn rows as one integer each: row number, class, multiplicity.

    Raises
    ------
    DataError
        If a class or multiplicity exceeds 65535.
    """
    for name, values in (("class", labels), ("multiplicity", weights)):
        if len(values) and int(values.max()) > _LOW:
            raise DataError(f"{name} {int(values.max())} is too large; forests take up to {_LOW}")
    rows = np.flatnonzero(weights)
    return (rows << _ROW) | (labels[rows] << _CLASS) | weights[rows]


def grow_whole_tree(
    bins: Bins,
    labels: NDArray[np.int64],
    weights: NDArray[np.int64],
    cuts: Cuts,
    n_classes: int,
    params: ForestParams,
    features: NDArray[np.int64],
    key: int,
) -> ClassTree:
    """Grow one tree on the rows of one party. It equals the tree of `ForestGrower`.

    Parameters
    ----------
    bins : Bins
        n binned rows.
    labels, weights : int64 array, shape (n,)
        Class code and multiplicity of every row. Rows with multiplicity 0 are left out.
    cuts : Cuts
        Borders of the bins.
    n_classes : int
        Number of classes K.
    params : ForestParams
        Hyperparameters.
    features : int64 array, shape (m,)
        Features that this tree may use.
    key : int
        Random key of the root, below 2^32.
    """
    entries = pack_rows(labels, weights)
    total = int(weights.sum())
    # Upper bound of the number of leaves, for allocating the arrays of the tree.
    leaves = max(min(len(entries), total // params.min_samples_leaf), 1)
    if params.depth < 31:
        leaves = min(leaves, 2**params.depth)
    size = 2 * leaves - 1
    feature, bin, left = (np.full(size, -1, dtype=np.int32) for _ in range(3))
    default_left, counts = np.zeros(size, dtype=bool), np.zeros((size, n_classes), dtype=np.int64)
    counts[0] = np.bincount(labels, weights=weights, minlength=n_classes).astype(np.int64)
    limits = [min(params.depth, UNLIMITED), params.min_samples_split, params.min_samples_leaf]
    limits.append(feature_count(params.max_features, len(features)))
    grown = _grow(
        bins.columns,
        bins.missing,
        entries,
        key,
        np.array(limits, dtype=np.int64),
        _Scratch.of(bins.missing, n_classes, features),
        feature,
        bin,
        default_left,
        left,
        counts,
    )
    return assemble(
        feature[:grown], bin[:grown], default_left[:grown], left[:grown], counts[:grown], cuts
    )


def assemble(
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    left: NDArray[np.int32],
    counts: NDArray[np.int64],
    cuts: Cuts,
) -> ClassTree:
    """Return the tree of these arrays, with its thresholds.

    Parameters
    ----------
    feature, bin, default_left, left : arrays, shape (n_nodes,)
        Splits. Feature -1 marks a leaf.
    counts : int64 array, shape (n_nodes, K)
        Rows of each class.
    cuts : Cuts
        Borders of the bins.
    """
    leaf = feature < 0
    column = np.maximum(feature, 0)
    threshold = cuts.thresholds(column, np.minimum(bin, cuts.n_bins[column] - 1))
    return ClassTree(
        feature=feature.copy(),
        threshold=np.where(leaf, np.float32(0), threshold).astype(np.float32),
        left=left.copy(),
        right=np.where(leaf, -1, left + 1).astype(np.int32),
        default_left=default_left.copy(),
        probability=shares(counts),
        counts=counts.copy(),
    )
