"""Limits of one growing tree, as the party that receives its requests and splits checks them.

A coordinator chooses the splits and requests sums of nodes. A malicious coordinator could request
further sums, or announce nodes that no honest tree contains. A party with rows therefore keeps the
announced nodes of each tree, and refuses messages that the public parameters exclude.
"""

from __future__ import annotations

from fedtrees.core.errors import BeyondParametersError


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
