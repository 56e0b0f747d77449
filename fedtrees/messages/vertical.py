"""Messages of vertical tree protocols, and the tree nodes that a party can infer from them.

All parties have the same rows and different columns. Messages refer to a row by its position in the
order that all parties agreed on, from 0. The ids of the rows stay in the local data. The module
also contains the active party's share of a vertical model, of which no party has all thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.core.messages import Message, Request, Reveal, Sealed, message
from fedtrees.core.view import View
from fedtrees.trees.boosted.losses import Objective, named_objective
from fedtrees.trees.partition import RowPartition

# Rows that share a node have similar labels, so that the rows of a node reveal labels.
_NODES = frozenset({Reveal.IDS, Reveal.LABELS})


@message()
class BinCountsRequest(Request["BinCounts"]):
    """Send a party the public key, and ask for the numbers of bins of its columns.

    Attributes
    ----------
    holder : str
        Name of the party with the private key.
    bits : int
        Length of the key.
    key : Sealed
        The public key. It reveals nothing about rows.
    """

    holder: str
    bits: int
    key: Sealed


# The number of bins depends on the number of distinct values of a column.
@message(discloses={Reveal.FEATURES})
class BinCounts(Message):
    """Numbers of bins of a party's columns.

    Attributes
    ----------
    party : str
        Name of the party.
    columns : int32 array, shape (c,)
        Positions in the schema.
    n_bins : int32 array, shape (c,)
        Number of bins of each column.
    """

    party: str
    columns: NDArray[np.int32]
    n_bins: NDArray[np.int32]


# Positions of rows refer to ids that all parties know.
@message(discloses={Reveal.IDS})
class RootRows(Request["TreeColumns"]):
    """The rows that a tree is trained on.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    rows : int32 array, shape (m,)
        Positions of the rows, ascending.
    """

    tree: int
    rows: NDArray[np.int32]


# The columns are drawn at random, independently of the data.
@message(discloses=frozenset())
class TreeColumns(Message):
    """A party's reply to `RootRows`: the columns that the tree may use.

    Attributes
    ----------
    party : str
        Name of the party.
    columns : int32 array, shape (c,)
        Positions in the schema, ascending.
    """

    party: str
    columns: NDArray[np.int32]


# To the holder of the key. All other parties receive ciphertexts.
@message(discloses={Reveal.LABELS})
class RowStatistics(Message):
    """Encrypted statistics of the rows of a tree: gradients and hessians, or one-hot labels.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    limit, terms : int
        Largest absolute value of a statistic, and largest number of rows that are added
        (`fedtrees.crypto.packing.Slots`).
    statistics : Sealed
        int64, shape (m, s). One ciphertext contains all s statistics of a row.
    """

    tree: int
    limit: int
    terms: int
    statistics: Sealed


@message(discloses={Reveal.LABELS})
class OwnRowStatistics(Message):
    """Plain content of a `RowStatistics`, noted by the key holder and never sent.

    The statistics are computed from the labels after the key holder's defenses changed them. Rows
    that the sampling of a round left out have statistics 0. The key holder knows its noise and its
    random draws, so that the plain content hides neither from it.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    statistics : int64 array, shape (m, s)
        In the order of the rows of the tree.
    """

    tree: int
    statistics: NDArray[np.int64]


@message(discloses=_NODES)
class NodeRows(Request["BinSums"]):
    """Ask for the sums over the bins at some nodes, and announce the rows of these nodes.

    Only one of two sibling nodes is announced. The other one contains the remaining rows of the
    parent.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    asked : int32 array, shape (a,)
        Nodes whose sums are requested.
    nodes, parents : int32 array, shape (k,)
        Nodes whose rows are announced, and their parents. Empty for a root.
    offsets : int64 array, shape (k + 1,)
        The rows of ``nodes[j]`` are ``rows[offsets[j]:offsets[j + 1]]``.
    rows : int32 array
        Positions of the rows, ascending within a node.
    """

    tree: int
    asked: NDArray[np.int32]
    nodes: NDArray[np.int32]
    parents: NDArray[np.int32]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]


# To the holder of the key. The party that adds cannot read the sums.
@message(discloses={Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
class BinSums(Message):
    """One party's encrypted sums per bin, the reply to `NodeRows`.

    Attributes
    ----------
    party : str
        Name of the party that added.
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (a,)
        The requested nodes.
    columns : int32 array, shape (c,)
        Positions in the schema of the columns that this tree may use.
    sums : Sealed
        int64, shape (a, bins of these columns, s). Missing values are in no bin.
    """

    party: str
    tree: int
    nodes: NDArray[np.int32]
    columns: NDArray[np.int32]
    sums: Sealed


@message(discloses={Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES})
class OpenedBinSums(Message):
    """Plain content of a `BinSums`. It is noted and never sent in plain text.

    The key holder notes it after decryption. The party that adds creates it before encryption and
    applies its defenses to it.

    Attributes
    ----------
    party : str
        Name of the party that added.
    tree : int
        Number of the tree, from 0.
    nodes : int32 array, shape (a,)
        The requested nodes.
    columns : int32 array, shape (c,)
        Positions in the schema of the columns that this tree may use.
    sums : int64 array, shape (a, bins of these columns, s)
        Fixed-point sums of the statistics.
    bits : int
        Binary places of the sums.
    rows : int64 array, shape (a, bins of these columns), or None
        Number of rows in every bin. Only the party that adds knows it. None after decryption.
    """

    party: str
    tree: int
    nodes: NDArray[np.int32]
    columns: NDArray[np.int32]
    sums: NDArray[np.int64]
    bits: int = 0
    rows: NDArray[np.int64] | None = None

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the unit of a field.

        Parameters
        ----------
        field : str
            ``"sums"``, or ``"rows"``, which is a number of rows.

        Returns
        -------
        units : float
            Number of units that make 1: ``2^bits`` for the sums.
        integers : bool
            True, because both fields contain integers.
        """
        return (2.0**self.bits if field == "sums" else 1.0), True


# The choice depends on the labels, and the splits are part of the model.
@message(discloses={Reveal.LABELS, Reveal.MODEL})
class ChosenSplits(Request["RoutedRows"]):
    """Announce to a party which of its candidate splits were chosen, and at which nodes.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes, left : int32 array, shape (k,)
        Nodes, and their left children. The number of the right child is one larger.
    columns : int32 array, shape (k,)
        Positions in the schema.
    bins : int32 array, shape (k,)
        Rows in this bin or a lower one go left. -1 if only rows with a missing value go left.
    default_left : bool array, shape (k,)
        Whether rows with a missing value go left.
    """

    tree: int
    nodes: NDArray[np.int32]
    left: NDArray[np.int32]
    columns: NDArray[np.int32]
    bins: NDArray[np.int32]
    default_left: NDArray[np.bool_]


@message(discloses={Reveal.IDS, Reveal.FEATURES})
class RoutedRows(Message):
    """The reply of the column owner to `ChosenSplits`: the direction of every row.

    Attributes
    ----------
    tree : int
        Number of the tree, from 0.
    nodes, left : int32 array, shape (k,)
        As in the `ChosenSplits`.
    goes_left : bool array
        Directions of the rows of all these nodes, concatenated, ascending within a node.
    """

    tree: int
    nodes: NDArray[np.int32]
    left: NDArray[np.int32]
    goes_left: NDArray[np.bool_]


@message(discloses=_NODES)
class RowsToRoute(Request["RoutesOfRows"]):
    """Ask a party for the directions of test rows at the nodes that it split.

    Attributes
    ----------
    trees, nodes : int32 array, shape (k,)
        Tree and node of each question.
    offsets : int64 array, shape (k + 1,)
        Question j concerns ``rows[offsets[j]:offsets[j + 1]]``.
    rows : int32 array
        Positions among the test rows.
    """

    trees: NDArray[np.int32]
    nodes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]


# The direction of a test row depends on its value.
@message(discloses={Reveal.FEATURES})
class RoutesOfRows(Message):
    """The reply to `RowsToRoute`: whether each row goes left.

    Attributes
    ----------
    goes_left : bool array
        Directions in the order of the rows of the request.
    """

    goes_left: NDArray[np.bool_]


# Bin numbers can be equal to values of rows by chance, for example for categories.
@message(discloses={Reveal.FEATURES}, verbatim={"bins"})
class RowBuckets(Message):
    """The bin of every row in a party's columns. FederBoost sends it once, before training.

    Attributes
    ----------
    party : str
        Name of the party.
    columns : int32 array, shape (c,)
        Positions in the schema.
    n_bins : int32 array, shape (c,)
        Number of bins of each column.
    bins : int64 array, shape (c, n)
        From 0, in the order of the values. -1 for a missing value. Randomised if the protocol has a
        budget.
    """

    party: str
    columns: NDArray[np.int32]
    n_bins: NDArray[np.int32]
    bins: NDArray[np.int64]


def routed(view: View) -> Iterator[tuple[int, int, NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield the test rows that reached a node, and their directions.

    The directions are those that the view contains: replies to `RowsToRoute`.

    Parameters
    ----------
    view : View
        Messages of the principals.

    Yields
    ------
    tree, node : int
        Number of the tree, and of the node within it.
    rows : int32 array, shape (m,)
        Positions among the test rows.
    goes_left : bool array, shape (m,)
        Whether each of these rows goes left.
    """
    request: RowsToRoute | None = None
    for item in view.seen:
        message = item.message
        if isinstance(message, RowsToRoute):
            # Each reply belongs to the last request before it.
            request = message
        elif isinstance(message, RoutesOfRows) and request is not None:
            for j, (tree, node) in enumerate(zip(request.trees, request.nodes, strict=True)):
                rows_at_node = slice(request.offsets[j], request.offsets[j + 1])
                yield (
                    int(tree),
                    int(node),
                    request.rows[rows_at_node],
                    message.goes_left[rows_at_node],
                )


def sibling(node: int) -> int:
    """Return the other child of a node's parent.

    Parameters
    ----------
    node : int
        Number of a node other than the root. Children form pairs, and the left child is odd.

    Returns
    -------
    int
        Number of its sibling.

    Examples
    --------
    >>> sibling(3), sibling(4)
    (4, 3)
    """
    return node + 1 if node % 2 else node - 1


class KnownNodes:
    """The nodes of one tree, and their rows, as far as the messages determine them.

    Passive parties use it in training, and attacks replay received messages with it. What a party
    computes with is therefore exactly what it can infer.

    Parameters
    ----------
    rows : int32 array, shape (m,)
        Rows of the root, ascending.
    """

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.partition = RowPartition(rows)
        self._left: dict[int, int] = {}  # left child by node, of all known splits
        # Scratch space: a mask over all rows, cleared after every use.
        self._in_node = np.zeros(int(rows.max(initial=-1)) + 1, dtype=bool)

    @property
    def nodes(self) -> list[int]:
        """All known nodes, the root first."""
        return [0, *(child for left in self._left.values() for child in (left, left + 1))]

    @property
    def left(self) -> dict[int, int]:
        """Left child of every node whose children are known. The right child is one larger."""
        return dict(self._left)

    @property
    def leaves(self) -> list[int]:
        """Known nodes without a known child."""
        return [node for node in self.nodes if node not in self._left]

    def rows_of(self, node: int) -> NDArray[np.int32]:
        """Return the rows of a known node.

        Parameters
        ----------
        node : int
            Number of the node.

        Returns
        -------
        rows : int32 array, shape (m,)
            Positions of the rows, ascending.
        """
        # The partition stores the rows of one child after those of the other.
        return np.sort(self.partition.rows_of(node))

    def record_announced(self, message: NodeRows) -> None:
        """Record the announced rows of nodes, and infer those of their siblings.

        Parameters
        ----------
        message : NodeRows
            Announcement to the party. Children of a parent whose split is already known are
            skipped.

        Raises
        ------
        ProtocolError
            If the rows of a parent are unknown.
        """
        for j, (node, parent) in enumerate(zip(message.nodes, message.parents, strict=True)):
            # Several requests can announce the same child. The first one already determined both
            # children.
            if int(parent) in self._left:
                continue
            announced_rows = message.rows[message.offsets[j] : message.offsets[j + 1]]
            self._in_node[announced_rows] = True
            # The announced node is the left child if its number is odd. `is_left` marks the rows of
            # the parent that belong to the left child, whichever of the two was announced.
            is_left = self._in_node[self._known(int(parent))] == bool(node % 2)
            self._in_node[announced_rows] = False
            self._split(np.array([parent]), np.array([min(node, sibling(int(node)))]), is_left)

    def record_routed(self, message: RoutedRows) -> None:
        """Record how a column owner split nodes.

        Parameters
        ----------
        message : RoutedRows
            Directions of the rows. A message that was recorded before changes nothing.
        """
        if len(message.nodes) and int(message.nodes[0]) not in self._left:
            self._split(message.nodes, message.left, message.goes_left)

    def _known(self, node: int) -> NDArray[np.int32]:
        if node and node not in self.nodes:
            raise ProtocolError(f"node {node} has children with rows, but was not announced")
        return self.partition.rows_of(node)

    def _split(
        self, nodes: NDArray[np.integer], left: NDArray[np.integer], goes_left: NDArray[np.bool_]
    ) -> None:
        self.partition.move(nodes.astype(np.int32), left.astype(np.int32), goes_left)
        self._left.update(zip(nodes.tolist(), left.tolist(), strict=True))


def replayed(view: View) -> dict[int, KnownNodes]:
    """Return what the principals can infer about every tree.

    The result follows from the messages that they received and sent, for any number of principals.
    It contains the rows of roots, of announced nodes, of the siblings of such nodes, and of the
    children of nodes that the principals split.

    Parameters
    ----------
    view : View
        Messages of the principals.

    Returns
    -------
    dict of int to KnownNodes
        Known nodes by the number of the tree. Trees without a message to the principals are
        missing.
    """
    trees: dict[int, KnownNodes] = {}
    for item in view.seen:
        message = item.message
        if isinstance(message, RootRows):
            # Several colluding parties receive the same message, which must not reset the tree.
            trees.setdefault(message.tree, KnownNodes(message.rows))
        elif isinstance(message, NodeRows):
            trees[message.tree].record_announced(message)
        elif isinstance(message, RoutedRows):
            trees[message.tree].record_routed(message)
    return trees


def visible_leaves(view: View) -> NDArray[np.int32]:
    """Return which visible leaf of each tree contains each row.

    A visible leaf is a node whose rows the principals know, while they know the rows of none of its
    children.

    Parameters
    ----------
    view : View
        Messages of the principals.

    Returns
    -------
    leaves : int32 array, shape (N, T)
        Rows are in the order of ``view.local_data[0].ids``. Trees are in the order of their
        numbers, up to the last visible one. -1 if the tree is not visible or was not trained on
        the row.
    """
    trees = replayed(view)
    leaves = np.full((view.n_rows, 1 + max(trees, default=-1)), -1, dtype=np.int32)
    for tree, tree_nodes in trees.items():
        for node in tree_nodes.leaves:
            leaves[tree_nodes.rows_of(node), tree] = node
    return leaves


def visible_nodes(view: View) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """Yield every visible node with its rows: roots, inner nodes and leaves.

    Parameters
    ----------
    view : View
        Messages of the principals.

    Yields
    ------
    tree, node : int
        Number of the tree, ascending, and of the node within it.
    rows : int32 array, shape (m,)
        Positions of the rows at the node, ascending.
    """
    for tree, tree_nodes in sorted(replayed(view).items()):
        for node in tree_nodes.nodes:
            yield tree, node, tree_nodes.rows_of(node)


@message(discloses={Reveal.MODEL, Reveal.LABELS})
class HeldModel(Message):
    """The trees as the active party knows them, concatenated. It notes them and never sends them.

    Attributes
    ----------
    objective : str
        Objective of boosted trees. Empty for a random forest, which averages its trees.
    base_margin : float32 array, shape (K,)
        Initial prediction of boosted trees.
    sizes : int64 array, shape (T,)
        Number of nodes of each tree.
    feature : int32 array, shape (n_nodes,)
        Position of the split column in the schema, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        At a split by a column of the active party, a row goes left if its value is below the
        threshold. At a split of a passive party, the bin plus 1, because only that party knows the
        threshold.
    left, right : int32 array, shape (n_nodes,)
        Children, numbered within the tree.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    value : array, shape (n_nodes,) or (n_nodes, K)
        Margins of boosted trees, or class probabilities of a forest.
    """

    objective: str
    base_margin: NDArray[np.float32]
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[Any]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Position of the root of each tree in the node arrays, int64, shape (T,)."""
        return np.cumsum(self.sizes) - self.sizes

    def scores(self, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the scores of rows from the leaves that they reach.

        Parameters
        ----------
        leaves : int array, shape (n, T)
            Leaf of every row in every tree, numbered within the tree.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
            Bit for bit the predictions of the parties. Shape (n,) contains the probability of class
            1, or the predicted value.
        """
        outputs = [self.value[s + leaf] for s, leaf in zip(self.starts, leaves.T, strict=True)]
        if not self.objective:
            return mean_scores(outputs)
        objective = named_objective(self.objective, len(self.base_margin))
        return summed_scores(outputs, self.base_margin, objective)


def mean_scores(outputs: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the mean of the class probabilities that the trees of a random forest predict.

    Parameters
    ----------
    outputs : sequence of float arrays, each of shape (n, K)
        Probabilities in the leaves that the rows reach, by tree.

    Returns
    -------
    scores : float64 array, shape (n,) or (n, K)
        Shape (n,) contains the probability of class 1.
    """
    total = np.zeros_like(outputs[0], dtype=np.float64)
    for output in outputs:
        # Added in the order of the trees, so that all parties compute equal bits.
        total += output
    total /= len(outputs)
    return total[:, 1] if total.shape[1] == 2 else total


def summed_scores(
    outputs: Sequence[NDArray[Any]], base_margin: NDArray[np.float32], objective: Objective
) -> NDArray[np.float64]:
    """Return the predictions of boosted trees from the values of the leaves that rows reach.

    Parameters
    ----------
    outputs : sequence of float32 arrays, each of shape (n,) or (n, K)
        Values of the leaves, by tree. Trees with one value alternate between the K margins.
    base_margin : float32 array, shape (K,)
        Initial prediction.
    objective : Objective
        Loss function.

    Returns
    -------
    scores : float64 array, shape (n,) or (n, K)
        Shape (n,) contains the probability of class 1, or the predicted value.
    """
    margin = np.repeat(base_margin[:, None], len(outputs[0]), axis=1)
    for t, output in enumerate(outputs):
        if output.ndim == 2:
            margin += output.T
        else:
            margin[t % len(margin)] += output
    return objective.predict(margin)
