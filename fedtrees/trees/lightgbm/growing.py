"""A tree that grows the leaf of greatest gain first, as LightGBM's."""

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
    """A column."""

    @property
    def bins(self) -> NDArray[np.int64]:
        """Bins of one's own rows."""

    @property
    def mapper(self) -> Mapper:
        """Its bins."""


@dataclass(eq=False)
class Leaf:
    """A leaf of a tree that grows.

    `rows`: intp array, shape (n,). One's own.
    `sums`: Of everybody's.
    `histogram`: dict of int to float64 array, shape (b, 2). By column.
    """

    rows: NDArray[np.intp]
    sums: LeafTotals
    node: int = 0
    depth: int = 0
    best: Split | None = None
    histogram: dict[int, NDArray[np.float64]] = field(default_factory=dict)


class Growing:
    """Leaves, by number: of two that a leaf becomes, the left one keeps it.

    `rows`: intp array, shape (n,).

    `parent`: The histogram of the leaf that was split last.
    """

    def __init__(self, rows: NDArray[np.intp], whole: LeafTotals) -> None:
        self.leaves = [Leaf(rows, whole)]
        self.parent: dict[int, NDArray[np.float64]] = {}
        self._splits: dict[int, tuple[Split, int, int]] = {}  # by node, with both children
        self._sums = [whole]  # by node

    def worth(self, pair: tuple[int, int], least_rows: int, max_depth: int) -> bool:
        """Return whether two new leaves, or a root, may be split at all."""
        both = [self.leaves[k] for k in pair if k >= 0]
        deep = max_depth > 0 and both[0].depth >= max_depth
        return not deep and any(leaf.sums.rows >= 2 * least_rows for leaf in both)

    def ordered(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Return the smaller one first, the right one if they have as many rows."""
        left, right = pair
        if right >= 0 and self.leaves[left].sums.rows >= self.leaves[right].sums.rows:
            return right, left
        return pair

    def settle(self, pair: tuple[int, int], told: Sequence[Sequence[Split | None]]) -> None:
        """Take the best split of each of two leaves of those that every machine found."""
        for k, index in enumerate(pair):
            if index >= 0:
                best = None
                for found in told:
                    split = found[k]
                    if split is not None and split.beats(best):
                        best = split
                self.leaves[index].best = best

    def best(self) -> int | None:
        """Return the leaf to split next, None if no split gains anything."""
        found, taken = None, None
        for k, leaf in enumerate(self.leaves):
            if leaf.best is not None and leaf.best.gain > 0 and leaf.best.beats(taken):
                found, taken = k, leaf.best
        return found

    def advance(self, columns: Mapping[int, HasMapper]) -> tuple[int, int] | None:
        """Split the best leaf; return both new ones, None if no split gains anything."""
        chosen = self.best()
        if chosen is None:
            return None
        split = self.leaves[chosen].best
        assert split is not None
        column = columns[split.feature]
        return self.split(chosen, column.bins, column.mapper)

    def split(self, index: int, bins: NDArray[np.int64], mapper: Mapper) -> tuple[int, int]:
        """Split a leaf; return both new ones."""
        leaf = self.leaves[index]
        split = leaf.best
        assert split is not None
        own = bins[leaf.rows]
        goes_left = own <= split.bin
        if mapper.missing:
            goes_left = np.where(own == len(mapper.bounds) - 1, split.default_left, goes_left)
        first = len(self._sums)
        self._splits[leaf.node] = split, first, first + 1
        self._sums += [split.left, split.right]
        self.parent = leaf.histogram
        self.leaves[index] = Leaf(leaf.rows[goes_left], split.left, first, leaf.depth + 1)
        self.leaves.append(Leaf(leaf.rows[~goes_left], split.right, first + 1, leaf.depth + 1))
        return index, len(self.leaves) - 1

    def values(self, reg_lambda: float, learning_rate: float) -> list[float]:
        """Return what each leaf adds to the margin."""
        return [leaf_value(leaf.sums, reg_lambda) * learning_rate for leaf in self.leaves]

    @property
    def order(self) -> list[int]:
        """The nodes, level by level."""
        order = [0]
        for node in order:
            order += self._splits[node][1:] if node in self._splits else ()
        return order

    def tree(self, columns: Mapping[int, HasMapper], values: list[float]) -> Tree:
        """Return the tree, its nodes level by level."""
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
            # without a bin of its own, what is missing counts as 0
            tree.default_left[k] = split.default_left if mapper.missing else bound >= 0
        for leaf, value in zip(self.leaves, values, strict=True):
            tree.value[place[leaf.node]] = value
        return tree
