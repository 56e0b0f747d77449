"""Limits of one growing tree, as the party that receives its requests and splits checks them.

A coordinator chooses the splits and requests sums of nodes. A malicious coordinator could request
further sums, or announce nodes that no honest tree contains. A party with rows therefore keeps the
announced nodes of each tree, and refuses messages that the public parameters exclude.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError
from fedtrees.trees.partition import Decisions


class TreeLimits:
    """The announced nodes of one tree. All methods raise `BeyondParametersError`.

    Parameters
    ----------
    max_depth : int
        Depth of the deepest leaf.
    max_leaves : int
        Largest number of leaves, 0 for no limit.
    in_order : bool
        Whether the tree is grown in a fixed order, as in horizontal protocols: the children of a
        split have the next two numbers, sums are requested for nodes that are not split yet, and
        for one child of each pair, because the sums of its sibling are the difference to their
        parent. In vertical protocols a defense may hide nodes, so that numbers are missing.
    """

    def __init__(self, max_depth: int, max_leaves: int = 0, *, in_order: bool) -> None:
        self.max_depth, self.max_leaves, self.in_order = max_depth, max_leaves, in_order
        self._depths = {0: 0}  # depth of every announced node
        self._left: dict[int, int] = {}  # left child by node
        self._requested: set[int] = set()

    def check_open(self, node: int) -> None:
        """Check that a node was announced, is not split yet, and is above the deepest leaves."""
        self._check_node(node)
        if node in self._left:
            raise BeyondParametersError(f"node {node} was split before")

    def request(self, node: int) -> None:
        """Check a request for the sums of a node."""
        if self.in_order:
            self.check_open(node)
        else:
            self._check_node(node)
        # Children are numbered in pairs, and the left child is odd.
        key = node - (node + 1) % 2 if self.in_order and node else node
        if key in self._requested:
            which = "node {} or its sibling" if self.in_order else "node {}"
            raise BeyondParametersError(f"{which.format(node)} was requested before")
        self._requested.add(key)

    def split(self, node: int, left: int) -> None:
        """Check a split of a node, whose children have the numbers `left` and `left` + 1."""
        self.check_open(node)
        if self.in_order and left != len(self._depths):
            raise BeyondParametersError(
                f"node {node}: its children begin at {left}; next is {len(self._depths)}"
            )
        self.announce_children(node, left)

    def announce_children(self, node: int, left: int) -> None:
        """Check the numbers of a node's children. They may be announced again, without a change."""
        self._check_node(node)
        # A node keeps its children, and no two nodes share a child.
        if self._left.get(node, left) != left or (node not in self._left and left in self._depths):
            raise BeyondParametersError(
                f"node {node} has other children than before, or the children of another node"
            )
        self._left[node] = left
        self._depths[left] = self._depths[left + 1] = self._depths[node] + 1
        if 0 < self.max_leaves <= len(self._left):
            limit = self.max_leaves - 1
            raise BeyondParametersError(f"{len(self._left)} splits of a tree; at most {limit}")

    def _check_node(self, node: int) -> None:
        if node not in self._depths:
            raise BeyondParametersError(f"node {node} was never announced")
        if self._depths[node] >= self.max_depth:
            raise BeyondParametersError(
                f"node {node} has depth {self._depths[node]}; max_depth={self.max_depth}"
            )


def check_splits(
    splits: Decisions,
    limits: TreeLimits,
    n_bins: NDArray[np.int32],
    complete: NDArray[np.bool_] | None = None,
) -> None:
    """Check the splits of a level.

    Parameters
    ----------
    splits : Decisions
        Splits that the server announced.
    limits : TreeLimits
        Announced nodes of the tree. The children of the splits are added.
    n_bins : int array, shape (d,)
        Number of bins of every column.
    complete : bool array, shape (d,), optional
        Columns without missing values. A split by the last bin of such a column is no split.

    Raises
    ------
    BeyondParametersError
        If the public parameters or the cut points exclude a split.
    """
    by_categories = np.isnan(splits.threshold) & (splits.categories is not None)
    columns = (splits.nodes, splits.feature, splits.bin, splits.left, by_categories)
    if any(c.shape != splits.nodes.shape for c in (*columns, splits.default_left)):
        raise BeyondParametersError(
            f"splits of {len(splits.nodes)} nodes need one column, bin, threshold, "
            "direction of missing values and left child each"
        )
    # The last bin of a complete column would send all rows left.
    n_cuts = n_bins if complete is None else n_bins - complete
    for node, feature, bin, left, by_category in zip(*(c.tolist() for c in columns), strict=True):
        if not 0 <= feature < len(n_cuts):
            limit = len(n_cuts) - 1
            raise BeyondParametersError(f"node {node}: column {feature}; they are 0 to {limit}")
        if not 0 <= bin < n_cuts[feature] and not by_category:
            raise BeyondParametersError(f"node {node}: bin {bin} of column {feature} is no cut")
        limits.split(node, left)
