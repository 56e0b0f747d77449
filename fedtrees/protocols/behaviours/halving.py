"""Behaviour `halving`: a malicious server chooses splits that isolate rows, ignoring the loss."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.behaviour import Behaviour
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.messages.boosting import BaseScore, LeafValues, NodeSplits
from fedtrees.protocols.horizontal.histograms import DecidingServer
from fedtrees.trees.boosted.builder import TreeBuilder
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.partition import ROOT

#: Sizes within this factor (its logarithm) of the target are equally good. Without such tolerance
#: few columns are split, and the same rows are isolated in every tree.
NEAR = 0.5


@dataclass(frozen=True, eq=False)
class Node:
    """A node with known histogram.

    Attributes
    ----------
    number : int
        Number of the node.
    rows : int64 array, shape (total_bins,)
        Number of rows in each bin.
    size : int
        Number of rows.
    """

    number: int
    rows: NDArray[np.int64]
    size: int


@register.behaviour("halving")
class Halving(Behaviour, DecidingServer):
    """Split so that the requested nodes contain single rows, in the first half of the trees.

    The smaller side of a split has as many rows as there are open nodes below it, or half of the
    rows. Each tree ends as a leaf of value 0, so that every row has the same hessian in the next
    tree.
    """

    beyond = "chooses splits that leave single rows alone, in the first half of the trees"
    noticed = "no: every split is legal, and a client cannot tell why it was chosen"

    def settle_start(self, net: Network) -> BaseScore:
        """Store the contribution of one row to a sum of hessians."""
        start = super().settle_start(net)
        one = self.objective.gradients(start.margin[:, None], np.zeros(1, dtype=np.int64))
        self.brings = np.ldexp(one[0, 0, 1], start.h_bits)
        return start

    def grow(self, net: Network, tree: int) -> Tree:
        """Request the histograms of a tree down to the depth that clients permit."""
        if 2 * tree >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, tree)
        # All rows have the same hessian before the first update, so that hessian sums count rows.
        root_sums = self.ask_histograms(net, tree, ROOT)
        level = [
            self.node(0, root_sums.sums[0], int(np.rint(root_sums.totals[0, 1] / self.brings)))
        ]
        rng, count = self.streams.rng("halving", tree), 1
        for depth in range(self.params.max_depth - 1):
            # Two of three trees start with halving, so that they isolate different rows.
            peels = depth >= tree % 3
            below = 2.0 ** (self.params.max_depth - 2 - depth) if peels else np.inf
            splits = [(node, *cut) for node in level if (cut := self.cut(node, below, rng))]
            if not splits or 0 < self.params.max_leaves <= count // 2 + len(splits):
                break
            nodes, columns, bins = np.array(
                [(node.number, column, bin) for node, column, bin, _ in splits], dtype=np.int32
            ).T
            left = np.arange(count, count + 2 * len(splits), 2, dtype=np.int32)
            where, default = self.cuts.thresholds(columns, bins), np.zeros(len(splits), dtype=bool)
            message = NodeSplits(tree, nodes, columns, bins, where, default, left)
            net.tell("client", message, why="splits that leave rows alone")
            sums = self.ask_histograms(net, tree, left).sums
            level, count = [], count + 2 * len(splits)
            for (node, _, _, size), number, answer in zip(splits, left.tolist(), sums, strict=True):
                child = self.node(number, answer, size)
                level += [child, Node(number + 1, node.rows - child.rows, node.size - size)]
        net.tell("client", LeafValues(tree, ROOT, np.zeros(1, np.float32)), why="a leaf of 0")
        return TreeBuilder().build()

    def node(self, number: int, sums: NDArray[np.int64], size: int) -> Node:
        """Return a node with the row counts of its histogram."""
        return Node(number, np.rint(sums[:, 1] / self.brings).astype(np.int64), size)

    def cut(
        self, node: Node, below: float, rng: np.random.Generator
    ) -> tuple[int, int, int] | None:
        """Return column and bin of a split, and the number of rows on its left side.

        None if no split separates rows.

        Parameters
        ----------
        node : Node
            The node to split.
        below : float
            Largest useful number of rows of the smaller side. inf for halving.
        rng : numpy.random.Generator
            Decides between equally good splits.
        """
        offsets = self.cuts.offsets
        left = np.cumsum(node.rows)
        # Cumulative counts restart at each column.
        left = left - np.repeat(np.r_[0, left[offsets[1:-1] - 1]], np.diff(offsets))
        smaller = np.minimum(left, node.size - left)
        last = np.zeros(len(left), dtype=bool)
        last[offsets[1:] - 1] = True
        if self.cuts.categorical is not None:
            last |= np.repeat(self.cuts.categorical, np.diff(offsets))
        # The last bin of a column has no split, and splits of categories are not used.
        smaller[last] = 0
        if node.size < 2 or not (smaller > 0).any():
            return None
        target = min(node.size / 2, below)
        distance = np.maximum(np.abs(np.log(np.maximum(smaller, 1) / target)), NEAR)
        # Random choice among equally good splits.
        distance += rng.random(len(left)) / 100
        best = int(np.where(smaller > 0, distance, np.inf).argmin())
        column = int(np.searchsorted(offsets, best, side="right")) - 1
        return column, best - int(offsets[column]), int(left[best])
