"""The trees that a server announces, as a client follows and limits them.

A client applies the splits and leaf values that the server broadcasts to its local rows. It refuses
requests that the public parameters do not allow, because a malicious server could otherwise request
additional sums.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.messages import names_of_type
from fedtrees.core.party import handles
from fedtrees.core.requests import check_bounded, refuse
from fedtrees.core.schema import Schema
from fedtrees.messages.horizontal import BaseScore, CutPoints, LeafValues, NodeSplits
from fedtrees.protocols.cut_points import BinningClient
from fedtrees.trees.boosted.histogram import Bits
from fedtrees.trees.boosted.losses import Objective
from fedtrees.trees.boosted.params import TreeParams
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


def check_cuts(announced: CutPoints, params: TreeParams, schema: Schema) -> None:
    """Check the number of bins of every column.

    Parameters
    ----------
    announced : CutPoints
        Cut points that the server announced.
    params : TreeParams
        Public parameters.
    schema : Schema
        Columns.

    Raises
    ------
    BeyondParametersError
        If a column has more bins than `max_bin`, and more than its declared cut points or
        categories.
    """
    for feature, bins in zip(schema.features, np.diff(announced.offsets).tolist(), strict=True):
        max_bins = max(params.max_bin, len(feature.cuts), len(feature.categories))
        if bins > max_bins:
            raise BeyondParametersError(f"{bins} bins of {feature.name!r}; at most {max_bins}")


class FollowedTree:
    """The announced part of one tree. It rejects messages that the parameters exclude.

    A server may request only one child of a pair, once, and only above the deepest leaves.

    Parameters
    ----------
    params : TreeParams
        Public parameters.
    n_bins : int array, shape (d,)
        Number of bins of every column.
    complete : bool array, shape (d,)
        Columns without missing values. A split by the last bin of such a column is no split.

    Raises
    ------
    BeyondParametersError
        In every method.
    """

    def __init__(
        self, params: TreeParams, n_bins: NDArray[np.int32], complete: NDArray[np.bool_]
    ) -> None:
        self.params, self.n_bins, self.complete = params, n_bins, complete
        self._depths = [0]  # depth of every node
        self._split: set[int] = set()
        self._asked: set[int] = set()  # left children of the requested pairs

    def ask(self, nodes: NDArray[np.int32]) -> None:
        """Check a request for the sums of nodes."""
        if not len(nodes):
            raise BeyondParametersError("a request for the sums of no node; name some that wait")
        for node in nodes.tolist():
            self._waits(node, "asked for")
            # Children are numbered in pairs, and the left child is odd.
            pair = node - (node + 1) % 2 if node else 0
            if pair in self._asked:
                raise BeyondParametersError(f"node {node} or its sibling was asked for before")
            self._asked.add(pair)

    def split(self, decisions: Decisions) -> None:
        """Check the splits of a level."""
        columns = (
            decisions.nodes,
            decisions.feature,
            decisions.bin,
            decisions.left,
            np.isnan(decisions.threshold),
        )
        if any(c.shape != decisions.nodes.shape for c in (*columns, decisions.default_left)):
            raise BeyondParametersError(
                f"splits of {len(decisions.nodes)} nodes need one column, bin, threshold, "
                "direction of missing values and left child each"
            )
        for node, feature, bin, left, by_category in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            self._waits(node, "split")
            if not 0 <= feature < len(self.n_bins):
                limit = len(self.n_bins) - 1
                raise BeyondParametersError(f"node {node}: column {feature}; they are 0 to {limit}")
            # The last bin of a complete column would send all rows left.
            bins = int(self.n_bins[feature]) - bool(self.complete[feature])
            if not 0 <= bin < bins and not by_category:
                raise BeyondParametersError(f"node {node}: bin {bin} of column {feature} is no cut")
            if left != len(self._depths):
                raise BeyondParametersError(
                    f"node {node}: its children begin at {left}; next is {len(self._depths)}"
                )
            self._split.add(node)
            self._depths += [self._depths[node] + 1] * 2
        if 0 < self.params.max_leaves <= len(self._split):
            limit = self.params.max_leaves - 1
            raise BeyondParametersError(f"{len(self._split)} splits of a tree; at most {limit}")

    def _waits(self, node: int, what: str) -> None:
        if not 0 <= node < len(self._depths) or node in self._split:
            raise BeyondParametersError(f"node {node} is {what}; it is none that waits")
        if self._depths[node] >= self.params.max_depth:
            raise BeyondParametersError(
                f"node {node} is {what} at depth {self._depths[node]}, and max_depth is "
                f"{self.params.max_depth}"
            )
