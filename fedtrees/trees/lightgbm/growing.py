"""A tree that grows best-first, as in LightGBM: the leaf with the largest gain is split next.

The search for the best split of one column follows ``feature_histogram.hpp`` of LightGBM 4.7. Sums
are computed in LightGBM's order, so that the trees are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.files.lightgbm import next_float32
from fedtrees.trees.lightgbm.bins import Mapper

EPSILON = float(np.float32(1e-15))


@dataclass(frozen=True)
class Limits:
    """Conditions that a split must satisfy."""

    min_data_in_leaf: int
    min_sum_hessian_in_leaf: float
    reg_lambda: float
    gamma: float


@dataclass(frozen=True)
class LeafTotals:
    """Gradient sum, hessian sum and number of rows of a leaf.

    The number is estimated from hessians.
    """

    gradient: float
    hessian: float
    rows: int


@dataclass(frozen=True)
class Split:
    """A split of one column. Bins up to `bin` go left.

    Attributes
    ----------
    feature, bin : int
        Column, and last bin that goes left.
    gain : float
        Gain minus that of the leaf and `gamma`.
    left, right : LeafTotals
        Sums of both sides.
    default_left : bool
        Whether missing values go left.
    """

    feature: int
    bin: int
    gain: float
    left: LeafTotals
    right: LeafTotals
    default_left: bool

    def beats(self, other: Split | None) -> bool:
        """Return whether this split is better than another.

        Equal gains: the first column is better.
        """
        if other is None or self.gain != other.gain:
            return other is None or self.gain > other.gain
        return self.feature < other.feature


def fixed(
    sums: NDArray[np.float64], frequent: int, gradient: float, hessian: float
) -> NDArray[np.float64]:
    """Return the sums of all bins, float64, shape (b, 2), including the most frequent one.

    The histogram lacks the most frequent bin, which is the difference of the leaf and all other
    bins.

    Parameters
    ----------
    sums : float64 array, shape (b, 2), or (b - 1, 2) if the most frequent bin is the first
        Sums of the bins.
    frequent : int
        The most frequent bin.
    gradient, hessian : float
        Sums of the leaf.
    """
    all_bins = sums if frequent else np.concatenate([np.zeros((1, 2)), sums])
    remaining = np.delete(all_bins, frequent, axis=0)
    all_bins = all_bins.copy()
    all_bins[frequent] = np.subtract.accumulate([[gradient, hessian], *remaining])[-1]
    return all_bins


def leaf_value(sums: LeafTotals, reg_lambda: float) -> float:
    """Return the prediction of a leaf without the learning rate."""
    return -sums.gradient / (sums.hessian + EPSILON + reg_lambda)


def best_split(
    feature: int,
    sums: NDArray[np.float64],
    leaf: LeafTotals,
    limits: Limits,
    *,
    frequent: int,
    missing: bool,
) -> Split | None:
    """Return the best split of a column.

    None if no split satisfies the limits with a positive gain.

    Parameters
    ----------
    feature : int
        Number of the column.
    sums : float64 array, shape (b, 2)
        Gradients and hessians of all bins.
    leaf : LeafTotals
        Sums of the leaf.
    limits : Limits
        Conditions.
    frequent : int
        The bin that histograms lack, if it is 0.
    missing : bool
        Whether the last bin contains missing values, which can go to either side.
    """
    both = missing and len(sums) > 2
    # LightGBM does not store bin 0 if it is the most frequent one.
    start = 1 if frequent == 0 else 0
    padded_leaf = LeafTotals(leaf.gradient, leaf.hessian + 2 * EPSILON, leaf.rows)
    best = _search(feature, sums, padded_leaf, limits, True, both)
    if both:
        forth = _search(feature, sums, padded_leaf, limits, False, both, start)
        if forth is not None and (best is None or forth.gain > best.gain):
            best = forth
    elif missing and best is not None:
        best = Split(feature, best.bin, best.gain, best.left, best.right, False)
    return best


def _search(
    feature: int,
    sums: NDArray[np.float64],
    leaf: LeafTotals,
    limits: Limits,
    back: bool,
    missing: bool,
    start: int = 0,
) -> Split | None:
    """Search from one end. From the right end, missing values go left."""
    last = len(sums) - 1 - missing  # the last bin with values
    factor = leaf.rows / leaf.hessian
    order = np.arange(last, 0, -1) if back else np.arange(len(sums) - 1)
    # LightGBM estimates the number of rows of a bin from its hessian.
    counts = np.floor(sums[:, 1] * factor + 0.5).astype(np.int64)
    first = np.array([0.0, EPSILON])
    if not back and missing and start:
        # The missing sums are the difference of the leaf and all other bins.
        all_rows = [leaf.gradient, leaf.hessian - EPSILON]
        first = np.subtract.accumulate([all_rows, *sums[1:]])[-1]
        missing_rows = leaf.rows - int(counts[1:].sum())
        steps = np.concatenate([first[None], sums[1:-1]])
        near_rows = np.cumsum(np.append(missing_rows, counts[1:-1]))
        near = np.cumsum(steps, axis=0)
    else:
        near = np.cumsum(np.concatenate([first[None], sums[order]]), axis=0)[1:]
        near_rows = np.cumsum(counts[order])
    far = np.array([leaf.gradient, leaf.hessian]) - near
    far_rows = leaf.rows - near_rows
    allowed = (near_rows >= limits.min_data_in_leaf) & (far_rows >= limits.min_data_in_leaf)
    allowed &= near[:, 1] >= limits.min_sum_hessian_in_leaf
    allowed &= far[:, 1] >= limits.min_sum_hessian_in_leaf
    shift = leaf.gradient**2 / (leaf.hessian + limits.reg_lambda) + limits.gamma
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = (
            _gain(far, limits) + _gain(near, limits)
            if back
            else _gain(near, limits) + _gain(far, limits)
        )
    gains = np.where(allowed & (gains > shift), gains, -np.inf)
    if not len(gains) or gains.max() == -np.inf:
        return None
    k = int(np.argmax(gains))
    G, H = (far if back else near)[k].tolist()
    rows = int((far_rows if back else near_rows)[k])
    left = LeafTotals(G, H - EPSILON, rows)
    right = LeafTotals(leaf.gradient - G, leaf.hessian - H - EPSILON, leaf.rows - rows)
    bin = int(order[k]) - 1 if back else int(order[k])
    return Split(feature, bin, float(gains[k] - shift), left, right, back)


def _gain(sums: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Return ``G^2 / (H + lambda)``."""
    gains: NDArray[np.float64] = sums[:, 0] ** 2 / (sums[:, 1] + limits.reg_lambda)
    return gains


class HasMapper(Protocol):
    """A column of the table."""

    @property
    def bins(self) -> NDArray[np.int64]:
        """Bins of the local rows."""

    @property
    def mapper(self) -> Mapper:
        """Bins of the column."""


@dataclass(eq=False)
class Leaf:
    """A leaf of a tree that is grown.

    Attributes
    ----------
    rows : intp array, shape (n,)
        Local rows in the leaf.
    sums : LeafTotals
        Sums over the rows of all machines.
    node, depth : int
        Number of the node, and its depth.
    best : Split or None
        Best split of the leaf.
    histogram : dict of int to float64 array, shape (b, 2)
        Histograms by column.
    """

    rows: NDArray[np.intp]
    sums: LeafTotals
    node: int = 0
    depth: int = 0
    best: Split | None = None
    histogram: dict[int, NDArray[np.float64]] = field(default_factory=dict)


class LeafWiseGrower:
    """The leaves of a tree that is grown, by number. The left child of a leaf keeps its number.

    Parameters
    ----------
    rows : intp array, shape (n,)
        Local rows.
    totals : LeafTotals
        Sums over all rows of all machines.

    Attributes
    ----------
    leaves : list of Leaf
        The leaves.
    parent : dict of int to float64 array
        Histogram of the leaf that was split last.
    """

    def __init__(self, rows: NDArray[np.intp], totals: LeafTotals) -> None:
        self.leaves = [Leaf(rows, totals)]
        self.parent: dict[int, NDArray[np.float64]] = {}
        self._splits: dict[int, tuple[Split, int, int]] = {}  # by node, with both children
        self._sums = [totals]  # by node

    def worth(self, pair: tuple[int, int], least_rows: int, max_depth: int) -> bool:
        """Return whether two new leaves, or the root, may be split.

        Parameters
        ----------
        pair : pair of int
            Numbers of the leaves, -1 for none.
        least_rows : int
            Smallest number of rows on each side of a split.
        max_depth : int
            Largest depth, 0 for no limit.
        """
        both = [self.leaves[k] for k in pair if k >= 0]
        deep = max_depth > 0 and both[0].depth >= max_depth
        return not deep and any(leaf.sums.rows >= 2 * least_rows for leaf in both)

    def ordered(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Return the leaf with fewer rows first, or the right leaf if both have the same number."""
        left, right = pair
        # Histograms are built for the smaller leaf only. The other one follows by subtraction.
        if right >= 0 and self.leaves[left].sums.rows >= self.leaves[right].sums.rows:
            return right, left
        return pair

    def settle(self, pair: tuple[int, int], proposals: Sequence[Sequence[Split | None]]) -> None:
        """Set the best split of each of two leaves, among the splits that all machines found."""
        for k, index in enumerate(pair):
            if index >= 0:
                best = None
                for machine_splits in proposals:
                    split = machine_splits[k]
                    if split is not None and split.beats(best):
                        best = split
                self.leaves[index].best = best

    def best(self) -> int | None:
        """Return the number of the leaf to split next, None if no split has a positive gain."""
        chosen, taken = None, None
        for k, leaf in enumerate(self.leaves):
            if leaf.best is not None and leaf.best.gain > 0 and leaf.best.beats(taken):
                chosen, taken = k, leaf.best
        return chosen

    def advance(self, columns: Mapping[int, HasMapper]) -> tuple[int, int] | None:
        """Split the best leaf and return both new leaves, None if no split has a positive gain."""
        chosen = self.best()
        if chosen is None:
            return None
        split = self.leaves[chosen].best
        assert split is not None
        column = columns[split.feature]
        return self.split(chosen, column.bins, column.mapper)

    def split(self, index: int, bins: NDArray[np.int64], mapper: Mapper) -> tuple[int, int]:
        """Split a leaf and return the numbers of both new leaves.

        Parameters
        ----------
        index : int
            Number of the leaf.
        bins : int64 array, shape (n,)
            Bins of the local rows in the column of the split.
        mapper : Mapper
            Bins of the column.
        """
        leaf = self.leaves[index]
        split = leaf.best
        assert split is not None
        leaf_bins = bins[leaf.rows]
        goes_left = leaf_bins <= split.bin
        if mapper.missing:
            goes_left = np.where(leaf_bins == len(mapper.bounds) - 1, split.default_left, goes_left)
        first = len(self._sums)
        self._splits[leaf.node] = split, first, first + 1
        self._sums += [split.left, split.right]
        self.parent = leaf.histogram
        self.leaves[index] = Leaf(leaf.rows[goes_left], split.left, first, leaf.depth + 1)
        self.leaves.append(Leaf(leaf.rows[~goes_left], split.right, first + 1, leaf.depth + 1))
        return index, len(self.leaves) - 1

    def values(self, reg_lambda: float, learning_rate: float) -> list[float]:
        """Return the number that each leaf adds to the margin."""
        return [leaf_value(leaf.sums, reg_lambda) * learning_rate for leaf in self.leaves]

    @property
    def order(self) -> list[int]:
        """The nodes, level by level."""
        order = [0]
        for node in order:
            order += self._splits[node][1:] if node in self._splits else ()
        return order

    def tree(self, columns: Mapping[int, HasMapper], values: list[float]) -> Tree:
        """Return the tree with its nodes level by level."""
        order = self.order
        place = {node: k for k, node in enumerate(order)}
        n = len(order)
        tree = Tree(
            np.full(n, -1, np.int32), np.zeros(n, np.float32), np.full(n, -1, np.int32),
            np.full(n, -1, np.int32), np.zeros(n, np.bool_), np.zeros(n, np.float32),
            np.array([self._sums[node].gradient for node in order]),
            np.array([self._sums[node].hessian for node in order]), np.zeros(n, np.float32),
        )  # fmt: skip
        assert tree.gain is not None
        for node, (split, left, right) in self._splits.items():
            k, mapper = place[node], columns[split.feature].mapper
            bound = mapper.bounds[split.bin]
            tree.feature[k], tree.gain[k] = split.feature, split.gain
            tree.left[k], tree.right[k] = place[left], place[right]
            tree.threshold[k] = next_float32(np.array([bound]))[0]
            # Without a separate bin, a missing value counts as 0.
            tree.default_left[k] = split.default_left if mapper.missing else bound >= 0
        for leaf, value in zip(self.leaves, values, strict=True):
            tree.value[place[leaf.node]] = value
        return tree
