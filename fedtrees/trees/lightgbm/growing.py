"""A tree that grows best-first, as in LightGBM: the leaf with the largest gain is split next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.files.lightgbm import next_float32
from fedtrees.trees.lightgbm.bins import Mapper
from fedtrees.trees.lightgbm.splits import LeafTotals, Split, leaf_value


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


class Growing:
    """The leaves of a tree that is grown, by number. The left child of a leaf keeps its number.

    Parameters
    ----------
    rows : intp array, shape (n,)
        Local rows.
    whole : LeafTotals
        Sums over all rows of all machines.

    Attributes
    ----------
    leaves : list of Leaf
        The leaves.
    parent : dict of int to float64 array
        Histogram of the leaf that was split last.
    """

    def __init__(self, rows: NDArray[np.intp], whole: LeafTotals) -> None:
        self.leaves = [Leaf(rows, whole)]
        self.parent: dict[int, NDArray[np.float64]] = {}
        self._splits: dict[int, tuple[Split, int, int]] = {}  # by node, with both children
        self._sums = [whole]  # by node

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

    def settle(self, pair: tuple[int, int], told: Sequence[Sequence[Split | None]]) -> None:
        """Set the best split of each of two leaves, among the splits that all machines found."""
        for k, index in enumerate(pair):
            if index >= 0:
                best = None
                for machine_splits in told:
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
