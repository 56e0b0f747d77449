"""A whole classification tree in one kernel, for rows that one owner holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Bins, Cuts
from fedtrees.trees.forest_params import UNLIMITED, ForestParams, feature_count
from fedtrees.trees.gini import child_key, draw_feature, scan_feature
from fedtrees.trees.jit import kernel
from fedtrees.trees.random_forest import ClassTree, shares

# A row on its way through the tree is one int64: row number, class, multiplicity. Moving it moves
# all there is to know, and nothing but the bin has to be looked up.
_ROW, _CLASS, _LOW = 32, 16, 0xFFFF

# The remainders of 2^0 ... 2^31 divided by 37 all differ: they look the exponent up.
_EXPONENT = np.zeros(37, dtype=np.int64)
for _bit in range(32):
    _EXPONENT[2**_bit % 37] = _bit


@kernel
def _count_all(
    column: NDArray[Any],
    missing: int,
    entries: NDArray[np.int64],
    n_classes: int,
    counts: NDArray[np.int64],
    codes: NDArray[np.int64],
) -> int:
    """Count a node with more rows than bins; list the occupied bins by looking at all."""
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        counts[code * n_classes + ((e >> _CLASS) & _LOW)] += e & _LOW
    found = 0
    for b in range(missing):
        occupied = np.int64(0)
        for k in range(n_classes):
            occupied += counts[b * n_classes + k]
        codes[found] = b
        found += 1 if occupied > 0 else 0
    return found


@kernel
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
    """Count a node with fewer rows than bins; list the occupied bins from marks in a bit set."""
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        counts[code * n_classes + ((e >> _CLASS) & _LOW)] += e & _LOW
        bits[code >> 5] |= 1 << (code & 31)
    bits[missing >> 5] &= ~(1 << (missing & 31))
    found = 0
    for word in range(bits.shape[0]):
        rest = bits[word]
        bits[word] = 0
        while rest != 0:
            lowest = rest & -rest
            codes[found] = word * 32 + exponent[lowest % 37]
            found += 1
            rest ^= lowest
    return found


@kernel
def _move(
    column: NDArray[Any],
    missing: int,
    bin: int,
    missing_left: int,
    entries: NDArray[np.int64],
    aside: NDArray[np.int64],
) -> int:
    """Put the entries that go left first, keeping order; return how many they are."""
    left = 0
    right = 0
    for i in range(entries.shape[0]):
        e = entries[i]
        code = np.int64(column[e >> _ROW])
        goes_left = (missing_left == 1) if code == missing else code <= bin
        entries[left] = e  # the slot is free: left never passes i
        aside[right] = e
        left += 1 if goes_left else 0
        right += 0 if goes_left else 1
    for i in range(right):
        entries[left + i] = aside[i]
    return left


@kernel
def _grow(
    columns: NDArray[Any],
    missing: int,
    entries: NDArray[np.int64],
    key: int,
    limits: NDArray[np.int64],
    order: NDArray[np.int64],
    exponent: NDArray[np.int64],
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    left: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> int:
    max_depth, min_split, min_leaf, max_features = limits[0], limits[1], limits[2], limits[3]
    size = feature.shape[0]
    n_classes = counts.shape[1]
    begin = np.empty(size, dtype=np.int64)
    end = np.empty(size, dtype=np.int64)
    depth = np.empty(size, dtype=np.int64)
    keys = np.empty(size, dtype=np.int64)
    sums = np.zeros((missing + 1) * n_classes, dtype=np.int64)
    codes = np.empty(missing + 1, dtype=np.int64)
    bits = np.zeros((missing >> 5) + 1, dtype=np.int64)
    scratch = np.empty(n_classes, dtype=np.int64)
    best_left = np.empty(n_classes, dtype=np.int64)
    found = np.empty(2, dtype=np.int64)
    places = np.empty(order.shape[0], dtype=np.int64)
    aside = np.empty(entries.shape[0], dtype=np.int64)
    begin[0], end[0], depth[0], keys[0] = 0, entries.shape[0], 0, key
    grown = 1
    node = 0
    while node < grown:
        feature[node] = -1
        total = np.int64(0)
        largest = np.int64(0)
        for k in range(n_classes):
            total += counts[node, k]
            largest = max(largest, counts[node, k])
        if (
            largest == total
            or total < min_split
            or total < 2 * min_leaf
            or depth[node] >= max_depth
        ):
            node += 1
            continue
        rows = entries[begin[node] : end[node]]
        best = -1.0
        usable = False  # has a feature been tried that differs among the rows?
        tried = 0
        while tried < order.shape[0] and (tried < max_features or not usable):
            places[tried] = draw_feature(keys[node], order, tried)
            f = order[tried]
            tried += 1
            if rows.shape[0] * 2 > missing:
                n_codes = _count_all(columns[f], missing, rows, n_classes, sums, codes)
            else:
                n_codes = _count_few(
                    columns[f], missing, rows, n_classes, sums, codes, bits, exponent
                )
            absent = np.int64(0)
            for k in range(n_classes):
                absent += sums[missing * n_classes + k]
            if n_codes + (absent > 0) > 1:
                usable = True
                before = best
                best = scan_feature(
                    sums, codes, n_codes, missing, counts[node], min_leaf, best,
                    scratch, best_left, found,
                )  # fmt: skip
                if best > before:
                    feature[node] = f
            codes[n_codes] = missing
            for i in range(n_codes + 1):
                for k in range(n_classes):
                    sums[codes[i] * n_classes + k] = 0
        for j in range(tried - 1, -1, -1):  # back to the order every node starts from
            kept = order[j]
            order[j] = order[places[j]]
            order[places[j]] = kept
        if feature[node] >= 0:
            bin[node] = found[0]
            default_left[node] = found[1] == 1
            left[node] = grown
            column = columns[feature[node]]
            middle = begin[node] + _move(column, missing, found[0], found[1], rows, aside)
            for k in range(n_classes):
                counts[grown, k] = best_left[k]
                counts[grown + 1, k] = counts[node, k] - best_left[k]
            for side in range(2):
                keys[grown + side] = child_key(keys[node], side)
                depth[grown + side] = depth[node] + 1
            begin[grown], end[grown] = begin[node], middle
            begin[grown + 1], end[grown + 1] = middle, end[node]
            grown += 2
        node += 1
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
    """Grow one tree over one owner's rows; as `fedtrees.trees.forest_grower.ForestGrower` would.

    Parameters
    ----------
    bins : Bins
        n rows.
    labels, weights : int64 array, shape (n,)
        Class code and multiplicity of every row; rows of multiplicity 0 are left out.
    cuts : Cuts
    n_classes : int
    params : ForestParams
    features : int64 array, shape (m,)
        Features this tree may use.
    key : int
        Where the coins of its nodes come from, below 2^32.
    """
    entries = pack_rows(labels, weights)
    total = int(weights.sum())
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
        bins.columns, bins.missing, entries, key, np.array(limits, dtype=np.int64),
        features.astype(np.int64), _EXPONENT, feature, bin, default_left, left, counts,
    )  # fmt: skip
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
    """Return the tree of these arrays, shape (n_nodes,) or (n_nodes, K), with its thresholds."""
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
