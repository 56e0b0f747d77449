"""Limits that the public parameters set on the messages to a passive party.

A malicious active party could otherwise request sums of arbitrary sets of rows.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RootRows, RowStatistics, sibling


@dataclass(frozen=True)
class Limits:
    """Limits that the public parameters of a run set on every tree.

    Attributes
    ----------
    trees : int
        Number of trees.
    depth : int
        Depth of the deepest leaf.
    leaves : int
        Largest number of leaves, 0 for no limit.
    statistics : int
        Number of statistics of each row.
    classes : int
        Number of one-hot labels that may accompany the statistics if a defense counts classes.
    bits : int
        Binary places of the statistics.
    ranges : tuple of (int, int)
        Smallest and largest value of each statistic, in fixed-point units. Empty if the statistics
        are not clipped.
    """

    trees: int
    depth: int
    leaves: int
    statistics: int
    classes: int = 0
    bits: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def clipped(self, statistics: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clip row statistics to their ranges.

        It simulates a zero-knowledge proof that each ciphertext is in its range.
        """
        if not self.ranges:
            return statistics
        return np.clip(statistics, *np.array(self.ranges, dtype=np.int64).T)


@dataclass(eq=False)
class LimitedTree:
    """The announced part of one tree. Messages beyond the limits raise `BeyondParametersError`.

    Attributes
    ----------
    limits : Limits
        The limits.
    number : int
        Number of the tree, -1 before the first one.
    rows : int
        Number of rows that the tree is trained on.
    held : int
        Number of rows of the party.
    """

    limits: Limits
    number: int = -1
    rows: int = 0
    held: int = 0
    _brought: bool = False
    _depths: dict[int, int] = field(default_factory=lambda: {0: 0})  # depth of every known node
    _left: dict[int, int] = field(default_factory=dict)  # left child by node
    _asked: set[int] = field(default_factory=set)

    def next(self, told: RootRows, held: int) -> "LimitedTree":
        """Return the state of a later tree on some of the party's `held` rows.

        Trees may be missing between the two, because defenses may hide a tree from the party.
        """
        if not self.number < told.tree < self.limits.trees:
            raise BeyondParametersError(
                f"tree {told.tree} after {self.number}; they are {self.limits.trees}, in turn"
            )
        rows = told.rows
        if len(rows) and not (rows[0] >= 0 and rows[-1] < held and (np.diff(rows) > 0).all()):
            raise BeyondParametersError(f"tree {told.tree}: its rows are none of 0 to {held - 1}")
        return LimitedTree(self.limits, told.tree, len(rows), held)

    def bring(self, told: RowStatistics) -> None:
        """Accept row statistics once, with the agreed width and the number of rows of the tree."""
        self._same(told.tree)
        if self._brought:
            raise BeyondParametersError(f"tree {self.number}: its rows brought statistics before")
        self._brought, few = True, self.limits.statistics
        n, width = told.statistics.shape
        if (n, told.terms) != (self.rows,) * 2 or width not in (few, few + self.limits.classes):
            raise BeyondParametersError(
                f"{n} rows bring {width} statistics each, of which {told.terms} are added; they "
                f"are {self.rows} rows, and {few} statistics"
            )

    def ask(self, told: NodeRows) -> None:
        """Accept a request for sums: each node once, and only above the deepest leaves."""
        self._same(told.tree)
        if not self._brought:
            raise BeyondParametersError(f"tree {self.number}: sums of what no row brought")
        count, offsets = len(told.nodes), told.offsets
        ordered = offsets.shape == (count + 1,) and not (np.diff(offsets) < 0).any()
        if not ordered or len(told.parents) != count or offsets[0] or offsets[-1] != len(told.rows):
            raise BeyondParametersError(f"{count} nodes need a parent each, and rows in order")
        if len(told.rows) and not 0 <= told.rows.min() <= told.rows.max() < self.held:
            raise BeyondParametersError(f"rows of nodes are none of 0 to {self.held - 1}")
        for node, parent in zip(told.nodes.tolist(), told.parents.tolist(), strict=True):
            self._part(parent, min(node, sibling(node)))
        for node in told.asked.tolist():
            if node in self._asked:
                raise BeyondParametersError(f"node {node} was asked for before")
            self._asked.add(node)
            self._above(node)

    def split(
        self, told: ChosenSplits, columns: NDArray[np.int32], n_bins: NDArray[np.int32]
    ) -> None:
        """Accept the splits that were chosen among the bins of the columns of this tree.

        Parameters
        ----------
        told : ChosenSplits
            The message of the active party.
        columns : int32 array, shape (c,)
            Columns that this tree may use.
        n_bins : int32 array, shape (c,)
            Their numbers of bins.
        """
        self._same(told.tree)
        bins = dict(zip(columns.tolist(), n_bins.tolist(), strict=True))
        parts = (told.nodes, told.left, told.columns, told.bins, told.default_left)
        if len({len(part) for part in parts}) > 1:
            raise BeyondParametersError("each node needs one split")
        for node, left, column, bin in zip(
            *(a.tolist() for a in (told.nodes, told.left, told.columns, told.bins)), strict=True
        ):
            if not -1 <= bin < bins.get(column, -1):
                raise BeyondParametersError(f"node {node}: bin {bin} of column {column} is no cut")
            if node in self._left:
                raise BeyondParametersError(f"node {node} was split before")
            self._part(node, left)

    def _same(self, tree: int) -> None:
        if self.number < 0:
            raise BeyondParametersError(f"tree {tree} before its root; tell its rows first")
        if tree != self.number:
            raise BeyondParametersError(f"tree {tree}, while {self.number} is grown")

    def _above(self, node: int) -> None:
        if node not in self._depths:
            raise BeyondParametersError(f"node {node} is none that was told of")
        if self._depths[node] >= self.limits.depth:
            raise BeyondParametersError(f"node {node} is deeper than max_depth={self.limits.depth}")

    def _part(self, node: int, left: int) -> None:
        self._above(node)
        # A node keeps its children, and no two nodes share a child.
        if self._left.get(node, left) != left or (node not in self._left and left in self._depths):
            raise BeyondParametersError(f"node {node} has other children than before, or others'")
        self._left[node] = left
        self._depths[left] = self._depths[left + 1] = self._depths[node] + 1
        max_splits = self.limits.leaves - 1
        if 0 < max_splits < len(self._left):
            raise BeyondParametersError(f"{len(self._left)} splits of a tree; at most {max_splits}")
