"""Splits by sets of categories, as in XGBoost's `hist`.

For a feature with few categories (fewer than `max_cat_to_onehot`), one of them goes right. With
more categories, those of a node are sorted by the weight that each would have as a leaf, and a
prefix of that order goes right. The best partition is among these (Fisher, "On grouping for maximum
homogeneity", 1958). Missing values go to the side with the larger gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splits import Splits, node_gains, node_weights


@dataclass(frozen=True, eq=False)
class _Candidates:
    """All candidate splits in XGBoost's order. The first of several equal candidates is chosen.

    The categories of all categorical features are concatenated to a line of length c, in which
    those of each feature are sorted. Each of the m candidates sends the categories from `first` to
    `last` of the line to the right.
    """

    columns: NDArray[np.intp]  # shape (c,): bins of the histogram that belong to the line
    # begin, end, shape (c,): part of the line that belongs to the same feature
    begin: NDArray[np.intp]
    end: NDArray[np.intp]
    # Shape (c,): True if a prefix of the sorted feature goes right. False if a single category
    # does.
    partitioned: NDArray[np.bool_]
    # first, last, shape (m,)
    first: NDArray[np.intp]
    last: NDArray[np.intp]
    missing_left: NDArray[np.bool_]  # shape (m,)

    @staticmethod
    def of(cuts: Cuts, params: TreeParams) -> _Candidates:
        """Return the candidates of all categorical features.

        There must be at least one such feature.
        """
        assert cuts.categorical is not None
        features = np.flatnonzero(cuts.categorical)
        sizes = cuts.n_bins[features].astype(np.intp)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        parts = [_of_feature(n, params) for n in sizes.tolist()]
        counts = [len(first) for first, _, _ in parts]
        shift = np.repeat(starts, counts)
        first, last, missing_left = (np.concatenate(part) for part in zip(*parts, strict=True))
        return _Candidates(
            np.flatnonzero(np.repeat(cuts.categorical, cuts.n_bins)),
            np.repeat(starts, sizes),
            np.repeat(ends, sizes),
            np.repeat(sizes >= params.max_cat_to_onehot, sizes),
            first + shift,
            last + shift,
            missing_left,
        )


def _of_feature(
    n: int, params: TreeParams
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Return first and last category that go right, and the direction of missing values."""
    if n < params.max_cat_to_onehot:
        each = np.repeat(np.arange(n), 2)
        return each, each, np.tile([True, False], n)
    tried = min(params.max_cat_threshold, n) - 1
    last = np.concatenate([np.arange(tried), np.arange(n - 2, n - 2 - tried, -1)])
    return np.zeros_like(last), last, np.repeat([True, False], tried)


def best_categories(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    cuts: Cuts,
    params: TreeParams,
    mask: NDArray[np.bool_] | None = None,
    bits: Bits = UNIT_BITS,
) -> Splits:
    """Choose the best split by categories of every node, even if its gain is small.

    Gains are those of `fedtrees.trees.boosted.splitting.best_splits`. A feature is used only if
    `mask` allows all of its bins, because a set of categories is not a single bin.

    Parameters
    ----------
    hist : int64 array, shape (n_nodes, total_bins, 2)
        Fixed-point sums per bin.
    totals : int64 array, shape (n_nodes, 2)
        Fixed-point sums of the nodes, including missing values.
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        In addition to the parameters of gains, ``max_cat_to_onehot`` and ``max_cat_threshold`` are
        used.
    mask : bool array, shape (n_nodes, total_bins), optional
        Splits that may be chosen.
    bits : Bits
        Binary places of the sums.
    """
    c = _Candidates.of(cuts, params)
    line = hist[:, c.columns]
    order = _sort_categories(line, c, params, bits)
    sums, missing = _sums(np.take_along_axis(line, order[..., None], axis=1), totals, c)
    right = sums[:, c.last]
    # Some candidates send missing values to the right.
    right[:, ~c.missing_left] += missing[:, c.last[~c.missing_left]]
    gain = _gains(totals, right, params, bits)
    if mask is not None:
        starts = np.unique(c.begin)
        allowed = np.logical_and.reduceat(mask[:, c.columns], starts, axis=1)
        gain[~allowed[:, np.searchsorted(starts, c.begin[c.last])]] = 0
    node, best = np.arange(len(hist)), gain.argmax(axis=1)
    left_sums = totals - right[node, best]
    gain = gain[node, best]
    # The feature of a candidate follows from the bin of its last category.
    feature = np.searchsorted(cuts.offsets, c.columns[c.last[best]], side="right") - 1
    return Splits(
        feature=np.where(gain > 0, feature, -1).astype(np.int32),
        bin=np.full(len(hist), -1, dtype=np.int32),
        threshold=np.full(len(hist), np.nan, dtype=np.float32),
        default_left=c.missing_left[best],
        gain=gain,
        left_sums=left_sums,
        right_sums=totals - left_sums,
        categories=_sets(order, best, c),
    )


def _sort_categories(
    line: NDArray[np.int64], c: _Candidates, params: TreeParams, bits: Bits
) -> NDArray[np.intp]:
    """Return the sorted order of the categories, shape (n_nodes, c).

    They are sorted by weight in float32, and by code if weights are equal. One-hot features are not
    sorted.
    """
    with np.errstate(over="ignore"):  # infinite in float32: first or last in the order
        weight = np.where(c.partitioned, node_weights(line, params, bits), np.float32(0))
    return np.lexsort((weight, np.broadcast_to(c.begin, weight.shape)), axis=-1)


def _sums(
    line: NDArray[np.int64], totals: NDArray[np.int64], c: _Candidates
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sums of each prefix or category, and of missing values, shape (n_nodes, c, 2)."""
    upto = np.zeros((len(line), len(c.columns) + 1, 2), dtype=np.int64)
    np.cumsum(line, axis=1, out=upto[:, 1:])
    before = upto[:, c.begin]
    sums = np.where(c.partitioned[:, None], upto[:, 1:] - before, line)
    return sums, totals[:, None] - (upto[:, c.end] - before)


def _gains(
    totals: NDArray[np.int64], right: NDArray[np.int64], params: TreeParams, bits: Bits
) -> NDArray[np.float32]:
    """Return the gain of every candidate, 0 if a child is too light, shape (n_nodes, m)."""
    left = totals[:, None] - right
    # Overflows and divisions by 0 give gains that are refused below.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        gain = node_gains(left, params, bits) + node_gains(right, params, bits)
        gain -= node_gains(totals, params, bits)[:, None]
    weight = np.float64(np.float32(params.min_child_weight))
    lightest = from_fixed(np.minimum(left[..., 1], right[..., 1]), bits[1])
    gain[~((lightest >= weight) & (gain > 0) & (gain < np.inf))] = 0
    return gain


def _sets(order: NDArray[np.intp], best: NDArray[np.intp], c: _Candidates) -> NDArray[np.bool_]:
    """Return the categories that go right, by code, bool, shape (n_nodes, width)."""
    sets = np.zeros((len(order), int((c.end - c.begin).max())), dtype=bool)
    for node, k in enumerate(best.tolist()):
        first, last = c.first[k], c.last[k]
        sets[node, order[node, first : last + 1] - c.begin[last]] = True
    return sets
