"""Best splits of all nodes of a level, with the arithmetic of XGBoost's `hist`.

Leaf weight and gain are computed from the sums of gradients and hessians (Chen and Guestrin,
"XGBoost: a scalable tree boosting system", 2016, equations 5 to 7).

Features can also be split by sets of categories. For a feature with few categories (fewer than
`max_cat_to_onehot`), one of them goes right. With more categories, those of a node are sorted by
the weight that each would have as a leaf, and a prefix of that order goes right. The best partition
is among these (Fisher, "On grouping for maximum homogeneity", 1958). Missing values go to the side
with the larger gain.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.jit import readonly


def node_weights(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``-G / (H + lambda)``, float32, shape (...), the step that minimises the loss.

    With an L1 penalty, alpha is first subtracted from ``|G|``, down to 0. The weight is 0 if the
    hessian sum is below `min_child_weight`.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    return weights_of(values[..., 0], values[..., 1], params)


def weights_of(
    g: NDArray[np.float64], h: NDArray[np.float64], params: TreeParams
) -> NDArray[np.float32]:
    """Return the result of `node_weights`, given sums in float64.

    Parameters
    ----------
    g, h : float64 array, shape (...)
        Gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    """
    usable = (h > 0) & (h >= np.float32(params.min_child_weight))
    reg = np.where(usable, h + np.float64(np.float32(params.reg_lambda)), 1.0)
    weight: NDArray[np.float64] = np.where(usable, -np.sign(g) * _beyond(g, params) / reg, 0.0)
    return weight.astype(np.float32)


def node_gains(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``G^2 / (H + lambda)``, float32, shape (...), 0 if the hessian sum is not positive.

    Numerator and denominator are first rounded to float32, as in XGBoost.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    g, h = _beyond(values[..., 0], params), values[..., 1]
    reg = np.where(h > 0, h + np.float64(np.float32(params.reg_lambda)), 1.0).astype(np.float32)
    gain: NDArray[np.float32] = np.where(h > 0, (g * g).astype(np.float32) / reg, np.float32(0))
    return gain


def _beyond(g: NDArray[np.float64], params: TreeParams) -> NDArray[np.float64]:
    """Return ``max(|G| - alpha, 0)``: XGBoost's ThresholdL1 without its sign."""
    return np.maximum(np.abs(g) - np.float64(np.float32(params.reg_alpha)), 0.0)


@dataclass(frozen=True, eq=False)
class Splits:
    """One decision per node."""

    feature: NDArray[np.int32]  # shape (n_nodes,): split column, -1 if the node stays a leaf
    # shape (n_nodes,): rows of bins up to this one go left. -1: only missing values go left.
    bin: NDArray[np.int32]
    # Shape (n_nodes,): ``cuts.values`` of that bin. A row goes left if and only if ``x <
    # threshold``. 0 at a leaf, NaN if the split is by categories (its `bin` is -1).
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]  # shape (n_nodes,): direction of missing values
    gain: NDArray[np.float32]  # shape (n_nodes,): gain of the split, 0 at a leaf
    # left_sums, right_sums, shape (n_nodes, 2): fixed-point gradient and hessian sums of the
    # children, including missing values. 0 at a leaf.
    left_sums: NDArray[np.int64]
    right_sums: NDArray[np.int64]
    # Shape (n_nodes, width): categories that go right, by code, for splits by categories. None if
    # there is no such split.
    categories: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.feature.shape[0])

    @staticmethod
    def leaves(n: int, width: int | None = None) -> Splits:
        """Return decisions that split none of n nodes, as writeable arrays.

        With a width, `categories` has this width.
        """
        none, sums = np.full(n, -1, dtype=np.int32), np.zeros((n, 2), dtype=np.int64)
        return Splits(
            feature=none,
            bin=none.copy(),
            threshold=np.zeros(n, dtype=np.float32),
            default_left=np.zeros(n, dtype=bool),
            gain=np.zeros(n, dtype=np.float32),
            left_sums=sums,
            right_sums=sums.copy(),
            categories=None if width is None else np.zeros((n, width), dtype=bool),
        )

    def where(self, chosen: NDArray[Any]) -> Splits:
        """Return the splits of some nodes (mask or indices)."""
        selected: list[Any] = [None if a is None else a[chosen] for a in vars(self).values()]
        return Splits(*selected)

    def replace(self, chosen: NDArray[np.bool_], other: Splits) -> None:
        """Copy the decisions of `other` for some nodes, in place."""
        for f in fields(self):
            into, source = getattr(self, f.name), getattr(other, f.name)
            if into is not None:
                into[chosen] = 0 if source is None else source[chosen]


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


def _sums(
    line: NDArray[np.int64], totals: NDArray[np.int64], c: _Candidates
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sums of each prefix or category, and of missing values, shape (n_nodes, c, 2)."""
    upto = np.zeros((len(line), len(c.columns) + 1, 2), dtype=np.int64)
    np.cumsum(line, axis=1, out=upto[:, 1:])
    before = upto[:, c.begin]
    sums = np.where(c.partitioned[:, None], upto[:, 1:] - before, line)
    return sums, totals[:, None] - (upto[:, c.end] - before)


def _sets(order: NDArray[np.intp], best: NDArray[np.intp], c: _Candidates) -> NDArray[np.bool_]:
    """Return the categories that go right, by code, bool, shape (n_nodes, width)."""
    sets = np.zeros((len(order), int((c.end - c.begin).max())), dtype=bool)
    for node, k in enumerate(best.tolist()):
        first, last = c.first[k], c.last[k]
        sets[node, order[node, first : last + 1] - c.begin[last]] = True
    return sets


MIN_GAIN = np.float32(1e-6)  # XGBoost's kRtEps: smaller gains can be rounding errors


@inner_kernel
def _gain(g: float, h: float, reg_lambda: float, alpha: float) -> np.float32:
    """Return ``G^2 / (H + lambda)`` of one child."""
    if h <= 0.0:  # an empty child or, with noisy sums, an impossible one
        return np.float32(0)
    g = max(abs(g) - alpha, 0.0)  # XGBoost's ThresholdL1 without its sign
    return np.float32(g * g) / np.float32(h + reg_lambda)  # XGBoost divides in float32


@inner_kernel
def _split_gain(
    lg: np.int64, lh: np.int64, rg: np.int64, rh: np.int64,
    root: np.float32, limits: NDArray[np.float64],
) -> np.float32:  # fmt: skip
    """Return the gain of a split into sums (lg, lh) and (rg, rh), -infinity if it is not allowed.

    `root` is the gain of the node itself. `limits` is described in `_scan`.
    """
    reg_lambda, alpha, weight = limits[0], limits[1], limits[2]
    unit_g, unit_h = limits[3], limits[4]
    a = lh * unit_h
    b = rh * unit_h
    if a < weight or b < weight:
        return np.float32(-np.inf)
    gain = (
        _gain(lg * unit_g, a, reg_lambda, alpha) + _gain(rg * unit_g, b, reg_lambda, alpha) - root
    )
    # An overflow or a division by 0 gives infinity or NaN, which is not greater than any gain.
    return gain if gain < np.inf else np.float32(-np.inf)


def scan_limits(params: TreeParams, bits: Bits) -> NDArray[np.float64]:
    """Return lambda, alpha, the least weight of a child, and the units of both sums, for a scan."""
    limits = np.array(  # XGBoost stores its parameters in float32
        [params.reg_lambda, params.reg_alpha, params.min_child_weight], dtype=np.float32
    ).astype(np.float64)
    return np.append(limits, np.ldexp(1.0, np.negative(bits)))


@kernel
def _scan(
    hist: NDArray[np.int64],
    totals: NDArray[np.int64],
    offsets: NDArray[np.int32],
    mask: NDArray[np.bool_],
    limits: NDArray[np.float64],
    feature: NDArray[np.int32],
    bin: NDArray[np.int32],
    default_left: NDArray[np.bool_],
    gain: NDArray[np.float32],
    left_sums: NDArray[np.int64],
) -> None:
    """Choose the best threshold of every node by a forward and a backward scan over all bins.

    `limits` contains lambda, alpha, the smallest hessian of a child, and the size of one unit of
    the gradient and of the hessian. The last five arrays are results, one entry per node.
    """
    masked = mask.shape[0] > 0
    for node in range(hist.shape[0]):
        tg = totals[node, 0]
        th = totals[node, 1]
        root = _gain(tg * limits[3], th * limits[4], limits[0], limits[1])
        best = np.float32(0)
        for f in range(offsets.shape[0] - 1):
            # Forward: missing values go right.
            lg = np.int64(0)
            lh = np.int64(0)
            for i in range(offsets[f], offsets[f + 1]):
                lg += hist[node, i, 0]
                lh += hist[node, i, 1]
                if masked and not mask[node, i]:
                    continue
                candidate = _split_gain(lg, lh, tg - lg, th - lh, root, limits)
                if candidate > best:
                    best = candidate
                    feature[node], bin[node] = f, i - offsets[f]
                    default_left[node] = False
                    left_sums[node, 0], left_sums[node, 1] = lg, lh
            # Without missing values, the backward scan finds the same splits.
            if lg == tg and lh == th:
                continue
            # Backward: missing values go left.
            rg = np.int64(0)
            rh = np.int64(0)
            for i in range(offsets[f + 1] - 1, offsets[f] - 1, -1):
                rg += hist[node, i, 0]
                rh += hist[node, i, 1]
                # A split before the first bin separates the same groups as one after the last bin,
                # so that they share a mask.
                if masked and not mask[node, i - 1 if i > offsets[f] else offsets[f + 1] - 1]:
                    continue
                candidate = _split_gain(tg - rg, th - rh, rg, rh, root, limits)
                if candidate > best:
                    best = candidate
                    feature[node], bin[node] = f, i - offsets[f] - 1
                    default_left[node] = True
                    left_sums[node, 0], left_sums[node, 1] = tg - rg, th - rh
        gain[node] = best


class SplitFinder:
    """Search for the best splits of the nodes of one tree.

    Gains follow XGBoost's CPU `hist`: ``G^2`` and ``H + lambda`` are rounded to float32 and divided
    in float32. The gains of both children are added and that of the parent is subtracted, also in
    float32. Only a strictly larger gain replaces an earlier one. Ties therefore go to the lowest
    feature, then to the scan that sends missing values right, then to the first scanned bin.

    A feature that is split by categories is used only if all of its bins are allowed, because a set
    of categories is not a single bin.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins, and the features that are split by categories.
    params : TreeParams
        Uses ``reg_lambda``, ``reg_alpha``, ``gamma``, ``min_child_weight`` and, for categories,
        ``max_cat_to_onehot``, ``max_cat_threshold``.
    bits : Bits
        Binary places of the gradients and of the hessians in histograms.
    """

    def __init__(self, cuts: Cuts, params: TreeParams, bits: Bits = UNIT_BITS) -> None:
        self._cuts, self._params, self._bits = cuts, params, bits
        self._limits = scan_limits(params, bits)
        self._categories: _Candidates | None = None
        if cuts.categorical is not None:
            self._categories = _Candidates.of(cuts, params)
            self._ordered = ~np.repeat(cuts.categorical, cuts.n_bins)

    def best(
        self,
        hist: NDArray[np.int64],
        totals: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
        *,
        pruned: bool = True,
    ) -> Splits:
        """Return the best split of every node.

        Parameters
        ----------
        hist : int64 array, shape (n_nodes, total_bins, 2)
            Fixed-point sums per bin. They may contain noise: children with a hessian sum of 0 or
            less have a gain of 0, and the second child need not be plausible.
        totals : int64 array, shape (n_nodes, 2)
            Fixed-point sums of the nodes, including missing values.
        mask : bool array, shape (n_nodes, total_bins), optional
            Splits that may be chosen, by the bin after which they split.
        pruned : bool
            Whether nodes stay leaves if their best split gains too little (`prune`).
        """
        splits = self._best_thresholds(hist, totals, mask)
        if self._categories is not None:
            rival = self._best_categories(hist, totals, mask, self._categories)
            # Of equal gains, the lower feature wins, as in a common scan.
            tie = (rival.gain == splits.gain) & (rival.feature < splits.feature)
            rival.replace(~((rival.gain > splits.gain) | tie), splits)
            splits = rival
        if pruned:
            prune(splits, self._params)
        return splits

    def _best_thresholds(
        self, hist: NDArray[np.int64], totals: NDArray[np.int64], mask: NDArray[np.bool_] | None
    ) -> Splits:
        """Return the best split by a threshold of every node, even if its gain is small."""
        best, cuts = Splits.leaves(len(hist)), self._cuts
        allowed = np.zeros((0, 0), dtype=bool) if mask is None else mask
        if self._categories is not None:
            allowed = np.broadcast_to(self._ordered, hist.shape[:2])
            allowed = allowed if mask is None else allowed & mask
        _scan(
            readonly(hist), readonly(totals), cuts.offsets, readonly(allowed), self._limits,
            best.feature, best.bin, best.default_left, best.gain, best.left_sums,
        )  # fmt: skip
        best.threshold[:] = cuts.thresholds(np.maximum(best.feature, 0), best.bin)
        np.subtract(totals, best.left_sums, out=best.right_sums)
        return best

    def _best_categories(
        self,
        hist: NDArray[np.int64],
        totals: NDArray[np.int64],
        mask: NDArray[np.bool_] | None,
        c: _Candidates,
    ) -> Splits:
        """Return the best split by categories of every node, even if its gain is small."""
        line = hist[:, c.columns]
        # Categories are sorted by weight in float32, and by code if weights are equal. One-hot
        # features are not sorted.
        with np.errstate(over="ignore"):  # infinite in float32: first or last in the order
            weight = node_weights(line, self._params, self._bits)
        weight = np.where(c.partitioned, weight, np.float32(0))
        order = np.lexsort((weight, np.broadcast_to(c.begin, weight.shape)), axis=-1)
        sums, missing = _sums(np.take_along_axis(line, order[..., None], axis=1), totals, c)
        right = sums[:, c.last]
        # Some candidates send missing values to the right.
        right[:, ~c.missing_left] += missing[:, c.last[~c.missing_left]]
        gain = self._gains(totals, right)
        if mask is not None:
            starts = np.unique(c.begin)
            allowed = np.logical_and.reduceat(mask[:, c.columns], starts, axis=1)
            gain[~allowed[:, np.searchsorted(starts, c.begin[c.last])]] = 0
        node, best = np.arange(len(hist)), gain.argmax(axis=1)
        left_sums = totals - right[node, best]
        gain = gain[node, best]
        # The feature of a candidate follows from the bin of its last category.
        feature = np.searchsorted(self._cuts.offsets, c.columns[c.last[best]], side="right") - 1
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

    def _gains(self, totals: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the gain of every candidate, 0 if a child is too light, shape (n_nodes, m)."""
        left, params, bits = totals[:, None] - right, self._params, self._bits
        # Overflows and divisions by 0 give gains that are refused below.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            gain = node_gains(left, params, bits) + node_gains(right, params, bits)
            gain -= node_gains(totals, params, bits)[:, None]
        weight = np.float64(np.float32(params.min_child_weight))
        lightest = from_fixed(np.minimum(left[..., 1], right[..., 1]), bits[1])
        gain[~((lightest >= weight) & (gain > 0) & (gain < np.inf))] = 0
        return gain


def prune(s: Splits, params: TreeParams) -> None:
    """Replace splits by leaves, in place, if a split is impossible or gains too little."""
    leaf = (s.feature < 0) | (s.gain <= MIN_GAIN) | (s.gain < np.float32(params.gamma))
    leaf |= (s.left_sums[:, 1] == 0) | (s.right_sums[:, 1] == 0)
    s.replace(leaf, Splits.leaves(len(s)))


def leaf_values(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return leaf values ``-G / (H + lambda) * eta`` as margins, float32, shape (k,).

    With an L1 penalty, alpha is first subtracted from ``|G|``, down to 0.

    Parameters
    ----------
    sums : int64 array, shape (k, 2)
        Fixed-point gradient and hessian sums of the leaves.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    return node_weights(sums, params, bits) * np.float32(params.learning_rate)
