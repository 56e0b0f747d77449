"""`halving`: a server whose splits leave rows alone, whatever they do to the loss."""

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

#: Within what factor (its log) of the size that is wanted sides are equally good: without such
#: room few columns are split, and the same rows are alone in every tree.
NEAR = 0.5


@dataclass(frozen=True, eq=False)
class Node:
    """A node whose histogram is known: rows by bin, int64 (total_bins,), and in all."""

    number: int
    rows: NDArray[np.int64]
    size: int


@register.behaviour("halving")
class Halving(Behaviour, DecidingServer):
    """Split so that single rows are left in the nodes that are asked for, in half of the trees.

    A side has as many rows as there are nodes left below it, or half of them. Each tree ends as a
    leaf of value 0, so that every row brings the same hessian to the next.
    """

    beyond = "chooses splits that leave single rows alone, in the first half of the trees"
    noticed = "no: every split is legal, and a client cannot tell why it was chosen"

    def settle_start(self, net: Network) -> BaseScore:
        """Note what one row brings to a sum of hessians."""
        start = super().settle_start(net)
        one = self.objective.gradients(start.margin[:, None], np.zeros(1, dtype=np.int64))
        self.brings = np.ldexp(one[0, 0, 1], start.h_bits)
        return start

    def grow(self, net: Network, tree: int) -> Tree:
        """Ask for the histograms of a tree down to the depth that clients allow."""
        if 2 * tree >= self.params.trees * self.objective.n_outputs:
            return super().grow(net, tree)
        root_sums = self.ask_histograms(net, tree, ROOT)
        level = [
            self.node(0, root_sums.sums[0], int(np.rint(root_sums.totals[0, 1] / self.brings)))
        ]
        rng, count = self.streams.rng("halving", tree), 1
        for depth in range(self.params.max_depth - 1):
            peels = depth >= tree % 3  # trees that halve first leave other rows alone
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
        """Count the rows of a histogram."""
        return Node(number, np.rint(sums[:, 1] / self.brings).astype(np.int64), size)

    def cut(
        self, node: Node, below: float, rng: np.random.Generator
    ) -> tuple[int, int, int] | None:
        """Return column and bin of a split, and the rows on its left; None where all are alike.

        `below`: How many nodes its smaller side may still end in.
        """
        offsets = self.cuts.offsets
        left = np.cumsum(node.rows)
        left = left - np.repeat(np.r_[0, left[offsets[1:-1] - 1]], np.diff(offsets))
        smaller = np.minimum(left, node.size - left)
        last = np.zeros(len(left), dtype=bool)
        last[offsets[1:] - 1] = True
        if self.cuts.categorical is not None:
            last |= np.repeat(self.cuts.categorical, np.diff(offsets))
        smaller[last] = 0
        if node.size < 2 or not (smaller > 0).any():
            return None
        target = min(node.size / 2, below)
        off = np.maximum(np.abs(np.log(np.maximum(smaller, 1) / target)), NEAR)
        off += rng.random(len(left)) / 100
        at = int(np.where(smaller > 0, off, np.inf).argmin())
        column = int(np.searchsorted(offsets, at, side="right")) - 1
        return column, at - int(offsets[column]), int(left[at])
