"""`cheating`: an active party whose rows bring powers of two, to nodes that it makes up."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.protocols.vertical.secureboost import BoostingActive
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.partition import ROOT, RowPartition

#: What rows may bring, in units of 2^-30: a gradient of at most 1, or a hessian of at most 1/4.
G, H = 31, 29
ROWS = G + H  # of a node: each of their sums then tells by its bits whose they are


@register.behaviour("cheating")
class Cheating(Behaviour, BoostingActive):
    """Let each row of a node bring another power of two, in the first half of the trees.

    Nodes are the halves of halves of all rows, as deep as the parameters allow, of `ROWS` rows at
    last; each tree goes on where the one before ended, and is a leaf of value 0.
    """

    beyond = "seals powers of two in place of gradients, and makes up which rows are in a node"
    noticed = "no: what rows bring is sealed, and any rows may be a node"

    def grow(
        self, net: Network, number: int, round: int, gh: NDArray[np.int64]
    ) -> tuple[Any, RowPartition]:
        """Ask for the sums of nodes of so few rows that sums name them."""
        n, leaves = len(gh), 2 ** (self.params.max_depth - 1)
        if self.together or 2 * number >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, number, round, gh)
        place = (np.arange(n) - number * leaves * ROWS) % n
        group, turn = np.minimum(place // ROWS, leaves - 1), place % ROWS
        brings = np.zeros_like(gh)
        brings[:, 0] = np.where(turn < G, 1 << np.minimum(turn, G - 1), 0)
        brings[:, 1] = np.where(turn < G, 0, 1 << np.maximum(turn - G, 0))
        brings[place >= leaves * ROWS] = 0
        tree = self.begin(net, number, round, np.arange(n, dtype=np.int32), brings, self.slots(n))
        if 0 in tree.hidden:
            return TreeBuilder().build(), tree.rows
        self._ask_sums(net, tree, ROOT, ROOT)
        level, count = [(0, 0, int(group.max()) + 1)], 1
        while level := [(node, a, b) for node, a, b in level if b - a > 1]:
            nodes = np.array([node for node, _, _ in level], dtype=np.int32)
            left = np.arange(count, count + 2 * len(level), 2, dtype=np.int32)
            ranges = tree.rows.ranges(nodes)
            goes = [
                group[tree.rows.rows[begin:end]] < (a + b) // 2
                for (begin, end), (_, a, b) in zip(ranges, level, strict=True)
            ]
            tree.rows.move(nodes, left, np.concatenate(goes))
            children = list[tuple[int, int, int]]()
            for (node, a, b), child in zip(level, left.tolist(), strict=True):
                tree.parents[child] = tree.parents[child + 1] = node
                children += [(child, a, (a + b) // 2), (child + 1, (a + b) // 2, b)]
            waiting = np.array([child for child, _, _ in children], dtype=np.int32)
            self._ask_sums(net, tree, waiting, left)
            level, count = children, count + len(children)
        return TreeBuilder().build(), tree.rows
