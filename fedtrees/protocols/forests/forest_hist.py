"""Protocol `forest-hist`: a random forest grown jointly from summed class histograms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedtrees.core.errors import check_known
from fedtrees.core.network import Network
from fedtrees.core.party import handles, ignores
from fedtrees.core.registry import register
from fedtrees.core.requests import Turns, check_equal, divides, refuse
from fedtrees.messages.forests import (
    ClassCounts,
    ClassCountsRequest,
    ClassTotals,
    ClassTotalsRequest,
    LeafClasses,
)
from fedtrees.messages.horizontal import CUT_MESSAGES, SOME_CUT_MESSAGES, NodeSplits
from fedtrees.protocols.base import Coordinator, Seat
from fedtrees.protocols.cut_points import CUT_METHODS, BinningClient, settle_cuts
from fedtrees.protocols.settings import ForestProtocol, checked_rows, class_count
from fedtrees.protocols.tree_limits import TreeLimits, check_splits
from fedtrees.trees.forest.gini import class_histogram
from fedtrees.trees.forest.grower import ForestGrower, class_totals, draw_columns, draw_rows
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest
from fedtrees.trees.partition import Decisions, RowPartition


class ForestClient(BinningClient):
    """A client that draws local rows for every tree, counts their classes, and moves them.

    It counts each column at each node once, above the agreed depth, and only for the current tree.
    """

    def __init__(self, seat: Seat, protocol: ForestHist) -> None:
        self.params, self.n_classes = protocol, class_count(seat.schema)
        super().__init__(seat.name, checked_rows(seat.table, self.n_classes))
        self.tree, self.started = -1, Turns(protocol.trees)
        self.counted = set[tuple[int, int]]()  # pairs of node and column

    @handles(ClassTotalsRequest, tree="in order, each once, at most the agreed trees")
    def start_tree(self, message: ClassTotalsRequest) -> ClassTotals:
        """Draw the rows of a tree with secret local randomness, and put them into its root."""
        self.tree = self.started.take(message, "tree")
        self.limits = TreeLimits(self.params.depth, in_order=True)
        self.counted = set()
        randomness = self.streams.rng("rows", message.tree)
        self.weights = draw_rows(len(self.data), self.params, randomness)
        self.partition = RowPartition(np.flatnonzero(self.weights).astype(np.int32))
        totals = class_totals(self.data.y, self.weights, self.n_classes)
        return ClassTotals(message.tree, totals)

    @handles(
        ClassCountsRequest,
        tree="the tree that is grown",
        nodes="announced nodes above the agreed depth that are not split",
        features="columns of the schema, each once at each node",
        offsets="in order",
    )
    def count(self, message: ClassCountsRequest) -> ClassCounts:
        """Answer with the class counts of the requested features and nodes."""
        self.check_counted(message)
        counts = class_histogram(
            self.bins,
            self.data.y,
            self.weights,
            self.partition.rows,
            self.partition.ranges(message.nodes),
            message.features,
            message.offsets,
            self.n_classes,
        )
        return ClassCounts(message.tree, message.nodes, counts)

    def check_counted(self, message: ClassCountsRequest) -> None:
        """Refuse counts that the public parameters exclude, or that were sent before."""
        check_equal(message, "tree", self.tree, "the tree that is grown")
        nodes, offsets, columns = message.nodes.tolist(), message.offsets, self.cuts.n_features
        if not divides(offsets, len(nodes), len(message.features)):
            refuse(message, "offsets", "features belong to the nodes, in order")
        for node, begin, end in zip(nodes, offsets[:-1], offsets[1:], strict=True):
            self.limits.check_open(node)
            for feature in message.features[begin:end].tolist():
                if not 0 <= feature < columns:
                    refuse(message, "features", f"columns are 0 to {columns - 1}")
                # If a defense adds noise, the mean of two answers would be more accurate than one.
                if (node, feature) in self.counted:
                    refuse(message, "features", f"column {feature} of node {node} was counted")
                self.counted.add((node, feature))

    @handles(
        NodeSplits,
        tree="the tree that is grown",
        nodes="announced nodes above the agreed depth, each split once",
        left="the next two numbers",
        feature="a column of the schema",
        bin="a bin of that column",
        **dict.fromkeys(("threshold", "default_left"), "one for each node"),
        **dict.fromkeys(("g", "h", "gain", "categories"), "not read"),
    )
    def split(self, message: NodeSplits) -> None:
        """Move rows to the children of the split nodes."""
        m = message
        check_equal(m, "tree", self.tree, "the tree that is grown")
        chosen = Decisions(m.nodes, m.feature, m.bin, m.threshold, m.default_left, m.left)
        check_splits(chosen, self.limits, self.cuts.n_bins)
        self.partition.split(self.bins, chosen)

    end_tree = ignores(LeafClasses)  # the next tree does not depend on them


class ForestServer(Coordinator):
    """The server. It draws the features, sums class counts, and broadcasts the chosen splits."""

    def __init__(self, seat: Seat, protocol: ForestHist) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema

    def train(self, net: Network) -> RandomForest:
        """Grow tree by tree, level by level."""
        self.cuts = settle_cuts(net, self.params.cuts, self.params.max_bin, self.schema)
        return RandomForest(tuple(self.grow(net, tree) for tree in range(self.params.trees)))

    def grow(self, net: Network, tree: int) -> ClassTree:
        """Grow one tree from summed class counts."""
        reason = "class totals of the drawn rows, to start a tree"
        totals = net.request_sum("client", ClassTotalsRequest(tree), reason=reason)
        randomness = self.streams.rng("columns", tree)
        # The server draws the features of each node, so that clients count only these.
        columns, key = draw_columns(self.cuts.n_features, self.params, randomness)
        grower = ForestGrower(self.cuts, self.params, totals.counts, columns, key)
        while len(grower.nodes):
            request = ClassCountsRequest(tree, grower.nodes, grower.features, grower.offsets)
            reason = "class counts per bin of the drawn features, to find splits"
            counts = net.request_sum("client", request, reason=reason)
            chosen = grower.choose_splits(counts.counts)
            if len(chosen):
                net.send(
                    "client", NodeSplits(tree=tree, **vars(chosen)), reason="the chosen splits"
                )
        return self.share_leaves(net, tree, grower.finish())

    def share_leaves(self, net: Network, tree: int, grown: ClassTree) -> ClassTree:
        """Broadcast the predictions of the leaves, and return the tree as released.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : int
            Number of the tree.
        grown : ClassTree
            The tree with its class counts.
        """
        assert grown.counts is not None
        leaves = grown.leaves
        counts = grown.counts[leaves] if self.params.leaf_counts else None
        message = LeafClasses(tree, leaves.astype(np.int32), grown.probability[leaves], counts)
        sent = net.send("client", message, reason="the predictions of the leaves: the model")
        return grown.released(sent.probability, sent.counts)


@register.protocol("forest-hist")
@dataclass(frozen=True, kw_only=True)
class ForestHist(ForestProtocol):
    """A random forest grown jointly: the server sums class counts and broadcasts splits.

    The trees equal those of the centralised engine with the same cut points and row samples. The
    server requests only the features that were drawn at a node. The defaults of `max_bin` (that of
    fedtree-hist) and `max_depth` keep the messages small.

    Parameters
    ----------
    cuts : str
        Method for cut points, as in the boosting protocols.
    """

    max_depth: int | None = 10
    max_bin: int = 32
    cuts: str = "sketch"

    info = replace(
        ForestProtocol.info,
        message_types=(
            *CUT_MESSAGES, ClassTotalsRequest, ClassTotals, ClassCountsRequest,
            ClassCounts, NodeSplits, LeafClasses,
        ),
        conditional_types=SOME_CUT_MESSAGES,
    )  # fmt: skip
    party_types = {"server": ForestServer, "client": ForestClient}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("cuts", self.cuts, CUT_METHODS)
        self.check_whole_levels()
