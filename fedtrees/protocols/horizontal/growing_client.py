"""Clients that follow the splits and leaf values that the server broadcasts."""

import numpy as np

from fedtrees.core.messages import names_of_type
from fedtrees.core.party import handles
from fedtrees.core.requests import check_bounded, refuse
from fedtrees.messages.boosting import BaseScore, LeafValues, NodeSplits
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.trees.boosted.fixed_point import Bits
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.partition import Decisions, RowPartition


class GrowingClient(BinningClient):
    """A client that routes its rows through trees and adds the leaf values to its predictions.

    Attributes
    ----------
    tree : int
        Number of the current tree.
    partition : RowPartition
        The client's rows in each node of the current tree.
    """

    objective: Objective
    tree: int
    partition: RowPartition

    started = False
    ended = -1  # the last tree whose leaf values arrived

    @handles(BaseScore, margin="once", g_bits="once", h_bits="once")
    def start(self, message: BaseScore) -> None:
        """Store the initial prediction of every row, once."""
        if self.started:
            refuse(message, "", "every prediction has started; it starts once")
        self.started = True
        # The units are announced by the server, because they can depend on sample weights.
        self.bits: Bits = (message.g_bits, message.h_bits)
        self.margin = np.repeat(message.margin[:, None], len(self.data), axis=1)

    @handles(
        NodeSplits,
        **dict.fromkeys(names_of_type(NodeSplits), "as a derived type of client checks it"),
    )
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children of the split nodes."""
        splits = message
        chosen = Decisions(
            splits.nodes,
            splits.feature,
            splits.bin,
            splits.threshold,
            splits.default_left,
            splits.left,
            splits.categories,
        )
        self.follow_splits(chosen)

    def follow_splits(self, chosen: Decisions) -> None:
        """Move rows by splits, whether the server sent them or the client found them."""
        self.partition.split(self.bins, chosen)

    @handles(
        LeafValues,
        tree="the tree that is grown; each tree ends once",
        nodes="nodes of the tree, each once",
        value="one for each node, finite and at most 1e30 in size",
        g="not read",
        h="not read",
    )
    def end_tree(self, message: LeafValues) -> None:
        """Add the leaf values to the predictions."""
        if message.tree != self.tree or message.tree == self.ended:
            refuse(message, "tree", f"tree {self.tree} is grown, and ends once")
        nodes = message.nodes
        if message.value.shape != nodes.shape or len(np.unique(nodes)) != len(nodes):
            refuse(message, "nodes", "each node has one value")
        check_bounded(message, "value")
        self.ended = message.tree
        # Trees alternate between the outputs of the model.
        margin = self.margin[self.tree % self.objective.n_outputs]
        self.partition.add_to(margin, message.nodes, message.value)
