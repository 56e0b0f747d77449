"""What every client does whose server tells it splits and leaf values: it follows them."""

import numpy as np

from fedtrees.core.party import handles
from fedtrees.messages.boosting import BaseScore, LeafValues, NodeSplits
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.trees.boosted.fixed_point import Bits
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.partition import Decisions, RowPartition


class GrowingClient(BinningClient):
    """A client that moves its rows through trees and adds up what the leaves say.

    `tree`: The one being grown.
    `partition`: Where its rows are in it.
    """

    objective: Objective
    tree: int
    partition: RowPartition

    @handles(BaseScore)
    def start(self, message: BaseScore) -> None:
        """Start every row's prediction."""
        self.bits: Bits = (message.g_bits, message.h_bits)
        self.margin = np.repeat(message.margin[:, None], len(self.data), axis=1)

    @handles(NodeSplits)
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children."""
        m = message
        chosen = Decisions(
            m.nodes, m.feature, m.bin, m.threshold, m.default_left, m.left, m.categories
        )
        self.follow_splits(chosen)

    def follow_splits(self, chosen: Decisions) -> None:
        """Move rows by splits, however they were found."""
        self.partition.split(self.bins, chosen)

    @handles(LeafValues)
    def end_tree(self, message: LeafValues) -> None:
        """Add the leaf values to the predictions."""
        margin = self.margin[self.tree % self.objective.n_outputs]
        self.partition.add_to(margin, message.nodes, message.value)
