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
from fedtrees.protocols.tree_limits import TreeLimits
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


def check_splits(
    splits: Decisions,
    limits: TreeLimits,
    n_bins: NDArray[np.int32],
    complete: NDArray[np.bool_],
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
    complete : bool array, shape (d,)
        Columns without missing values. A split by the last bin of such a column is no split.

    Raises
    ------
    BeyondParametersError
        If the public parameters or the cut points exclude a split.
    """
    columns = (splits.nodes, splits.feature, splits.bin, splits.left, np.isnan(splits.threshold))
    if any(c.shape != splits.nodes.shape for c in (*columns, splits.default_left)):
        raise BeyondParametersError(
            f"splits of {len(splits.nodes)} nodes need one column, bin, threshold, "
            "direction of missing values and left child each"
        )
    # The last bin of a complete column would send all rows left.
    n_cuts = n_bins - complete
    for node, feature, bin, left, by_category in zip(*(c.tolist() for c in columns), strict=True):
        if not 0 <= feature < len(n_cuts):
            limit = len(n_cuts) - 1
            raise BeyondParametersError(f"node {node}: column {feature}; they are 0 to {limit}")
        if not 0 <= bin < n_cuts[feature] and not by_category:
            raise BeyondParametersError(f"node {node}: bin {bin} of column {feature} is no cut")
        limits.split(node, left)
