"""What public parameters rule out of what a passive party is told and asked of trees."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError
from fedtrees.messages.vertical import ChosenSplits, NodeRows, RootRows, RowStatistics, sibling


@dataclass(frozen=True)
class Limits:
    """What the public parameters of a run allow of every tree.

    `trees`: How many there are.
    `depth`: Of the deepest leaf.
    `leaves`: At most; 0: no limit.
    `statistics`: What each row brings.
    `classes`: One-hot labels that may come beside them, where a defense counts classes.
    `bits`: Binary places of statistics.
    `ranges`: Least and greatest value of each statistic, in units; none: nobody holds rows to any.
    """

    trees: int
    depth: int
    leaves: int
    statistics: int
    classes: int = 0
    bits: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def clipped(self, statistics: NDArray[np.int64]) -> NDArray[np.int64]:
        """Hold what rows bring to its ranges, as a proof would that each ciphertext is in them."""
        if not self.ranges:
            return statistics
        return np.clip(statistics, *np.array(self.ranges, dtype=np.int64).T)


@dataclass(eq=False)
class LimitedTree:
    """One tree as a passive party is told it; raises `BeyondParametersError` in every method.

    `number`: Of the tree; -1 before the first.
    `rows`: How many it is grown on.
    `held`: How many rows the party has.
    """

    limits: Limits
    number: int = -1
    rows: int = 0
    held: int = 0
    _brought: bool = False
    _depths: dict[int, int] = field(default_factory=lambda: {0: 0})  # by node
    _left: dict[int, int] = field(default_factory=dict)  # left child by node
    _asked: set[int] = field(default_factory=set)

    def next(self, told: RootRows, held: int) -> "LimitedTree":
        """Begin the tree after this one, on some of the rows held; defenses may leave trees out."""
        if not self.number < told.tree < self.limits.trees:
            raise BeyondParametersError(
                f"tree {told.tree} after {self.number}; they are {self.limits.trees}, in turn"
            )
        rows = told.rows
        if len(rows) and not (rows[0] >= 0 and rows[-1] < held and (np.diff(rows) > 0).all()):
            raise BeyondParametersError(f"tree {told.tree}: its rows are none of 0 to {held - 1}")
        return LimitedTree(self.limits, told.tree, len(rows), held)

    def bring(self, told: RowStatistics) -> None:
        """Take what the rows bring: once, of a width that is known, with terms for all of them."""
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
        """Take a question for sums: of each node once, and above the deepest leaves."""
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
        """Take the splits that were chosen among the bins of the columns of this tree."""
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
        if self._left.get(node, left) != left or (node not in self._left and left in self._depths):
            raise BeyondParametersError(f"node {node} has other children than before, or others'")
        self._left[node] = left
        self._depths[left] = self._depths[left + 1] = self._depths[node] + 1
        max_splits = self.limits.leaves - 1
        if 0 < max_splits < len(self._left):
            raise BeyondParametersError(f"{len(self._left)} splits of a tree; at most {max_splits}")
