"""What parties with other columns of the same rows say, and what a party has seen of the trees.

Rows are named by their place in the order that all parties have agreed on, from 0; ids are the
local data'.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.sealed import Sealed
from fedtrees.core.view import View
from fedtrees.trees.partition import RowPartition

_NODES = frozenset({Reveal.IDS, Reveal.LABELS})  # which rows are alike tells of their labels


@dataclass(frozen=True, eq=False)
class BinCountsRequest(Message):
    """Ask a party how many bins its columns have, and tell it the key of the statistics to come.

    Attributes
    ----------
    holder : str
        Who has the private key.
    bits : int
        Length of the key.
    key : Sealed
        The public part; it says nothing of rows.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    holder: str
    bits: int
    key: Sealed


@dataclass(frozen=True, eq=False)
class BinCounts(Message):
    """How many bins the columns of a party have.

    `columns`: int32 array, shape (c,). Positions in the schema.
    `n_bins`: int32 array, shape (c,)
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    party: str
    columns: NDArray[np.int32]
    n_bins: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RootRows(Message):
    """The rows that a tree is grown on.

    `rows`: int32 array, shape (m,). Ascending.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.IDS})
    tree: int
    rows: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TreeColumns(Message):
    """A party's answer to `RootRows`: which of its columns the tree may use.

    `columns`: int32 array, shape (c,). Positions in the schema, ascending.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset()
    party: str
    columns: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RowStatistics(Message):
    """Encrypted statistics of the rows of a tree: gradients and hessians, or one-hot labels.

    `limit, terms`: The greatest absolute value of a statistic, and how many are added at most
    (`fedtrees.sealing.slots.Slots`).
    `statistics`: int64, shape (m, s); one ciphertext for all statistics of a row.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    tree: int
    limit: int
    terms: int
    statistics: Sealed


@dataclass(frozen=True, eq=False)
class OwnRowStatistics(Message):
    """What the holder of the key put into a `RowStatistics`; it notes it, and nothing crosses.

    It is made of the labels that trees are grown on, as defenses changed them, and is 0 for rows
    that a round left out: noise and draws of the holder's own are no secret to it.

    `statistics`: int64 array, shape (m, s). In the order of the rows of the tree.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS})
    tree: int
    statistics: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NodeRows(Message):
    """Ask for sums over the bins at some nodes, and tell which rows are in them.

    Of two children one is told; the other one has the rest of their parent's rows.

    Attributes
    ----------
    asked : int32 array, shape (a,)
        Nodes whose sums are wanted.
    nodes, parents : int32 array, shape (k,)
        Nodes of which the rows are told, and their parents; none for a root.
    offsets : int64 array, shape (k + 1,)
        The rows of ``nodes[j]`` are ``rows[offsets[j]:offsets[j + 1]]``.
    rows : int32 array
        Ascending within a node.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NODES
    tree: int
    asked: NDArray[np.int32]
    nodes: NDArray[np.int32]
    parents: NDArray[np.int32]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BinSums(Message):
    """One party's encrypted sums per bin, the answer to `NodeRows`.

    Attributes
    ----------
    nodes : int32 array, shape (a,)
        As asked.
    columns : int32 array, shape (c,)
        Positions in the schema of the columns that this tree may use.
    sums : Sealed
        int64, shape (a, bins of these columns, s). Missing values are in no bin.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}
    )
    party: str
    tree: int
    nodes: NDArray[np.int32]
    columns: NDArray[np.int32]
    sums: Sealed


@dataclass(frozen=True, eq=False)
class OpenedBinSums(Message):
    """What is in a `BinSums`: the holder of the key notes it, and nothing crosses in the open.

    A party that adds passes it through its defenses before it is sealed.

    Attributes
    ----------
    party, tree, nodes, columns
        As in the `BinSums`.
    sums : int64 array, shape (a, bins of these columns, s)
    bits : int
        Binary places of the sums.
    rows : int64 array, shape (a, bins of these columns), or None
        How many rows are in every bin, as the party that adds knows; None where it was opened.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(
        {Reveal.LABELS, Reveal.COUNTS, Reveal.FEATURES}
    )
    party: str
    tree: int
    nodes: NDArray[np.int32]
    columns: NDArray[np.int32]
    sums: NDArray[np.int64]
    bits: int = 0
    rows: NDArray[np.int64] | None = None

    def unit_of(self, field: str) -> tuple[float, bool]:
        """Return the units of sums."""
        return (2.0**self.bits if field == "sums" else 1.0), True


@dataclass(frozen=True, eq=False)
class ChosenSplits(Message):
    """Tell a party which of its candidates were chosen, and at which nodes.

    Attributes
    ----------
    nodes, left : int32 array, shape (k,)
        Nodes, and their left children; the right child is one more.
    columns : int32 array, shape (k,)
        Positions in the schema.
    bins : int32 array, shape (k,)
        Rows up to this bin go left; -1: only those without a value.
    default_left : bool array, shape (k,)
        Where rows without a value go.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS, Reveal.MODEL})
    tree: int
    nodes: NDArray[np.int32]
    left: NDArray[np.int32]
    columns: NDArray[np.int32]
    bins: NDArray[np.int32]
    default_left: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RoutedRows(Message):
    """The owner's answer to `ChosenSplits`.

    `nodes, left`: int32 array, shape (k,). As chosen.
    `goes_left`: bool array. Of the rows of all these nodes, one node after the other, ascending
    within a node.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.IDS, Reveal.FEATURES})
    tree: int
    nodes: NDArray[np.int32]
    left: NDArray[np.int32]
    goes_left: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowsToRoute(Message):
    """Ask where rows to predict go at the nodes that a party split.

    Attributes
    ----------
    trees, nodes : int32 array, shape (k,)
    offsets : int64 array, shape (k + 1,)
        Asked of node j are ``rows[offsets[j]:offsets[j + 1]]``.
    rows : int32 array
        Places among the rows to predict.
    """

    discloses: ClassVar[frozenset[Reveal]] = _NODES
    trees: NDArray[np.int32]
    nodes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RoutesOfRows(Message):
    """The answer to `RowsToRoute`: who goes left, bool, in the order of its rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    goes_left: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowBuckets(Message):
    """The bin of every row in a party's columns, as FederBoost sends it once.

    Attributes
    ----------
    party : str
    columns : int32 array, shape (c,)
        Positions in the schema.
    n_bins : int32 array, shape (c,)
    bins : int64 array, shape (c, n)
        From 0, in the order of values; -1: no value. Randomised where the protocol says so.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    verbatim: ClassVar[frozenset[str]] = frozenset({"bins"})
    party: str
    columns: NDArray[np.int32]
    n_bins: NDArray[np.int32]
    bins: NDArray[np.int64]


def routed(view: View) -> Iterator[tuple[int, int, NDArray[np.int32], NDArray[np.bool_]]]:
    """Yield tree, node, rows to predict that were asked about there, and which of them go left."""
    asked: RowsToRoute | None = None
    for item in view.seen:
        m = item.message
        if isinstance(m, RowsToRoute):
            asked = m
        elif isinstance(m, RoutesOfRows) and asked is not None:
            for j, (tree, node) in enumerate(zip(asked.trees, asked.nodes, strict=True)):
                here = slice(asked.offsets[j], asked.offsets[j + 1])
                yield int(tree), int(node), asked.rows[here], m.goes_left[here]


def sibling(node: int) -> int:
    """Return the other child of a node's parent: children come in pairs, the left one is odd."""
    return node + 1 if node % 2 else node - 1


class KnownNodes:
    """The nodes of one tree that somebody knows, and their rows, from what crossed.

    The parties that are asked keep it, and so does whoever replays what they received: what a
    party computes with and what it has seen are one thing.

    `rows`: int32 array, shape (m,). Of the root, ascending.
    """

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self.partition = RowPartition(rows)
        self._left: dict[int, int] = {}  # left child by node, of all known splits
        self._in_node = np.zeros(int(rows.max(initial=-1)) + 1, dtype=bool)

    @property
    def nodes(self) -> list[int]:
        """All known nodes, the root first."""
        return [0, *(child for left in self._left.values() for child in (left, left + 1))]

    @property
    def left(self) -> dict[int, int]:
        """The left child of every node whose children are known; the right one is one more."""
        return dict(self._left)

    @property
    def leaves(self) -> list[int]:
        """Known nodes of which no child is known."""
        return [node for node in self.nodes if node not in self._left]

    def rows_of(self, node: int) -> NDArray[np.int32]:
        """Return the rows of a known node, int32, ascending."""
        return np.sort(self._rows(node))  # its children's rows stand one after the other

    def _rows(self, node: int) -> NDArray[np.int32]:
        ((begin, end),) = self.partition.ranges(np.array([node], dtype=np.int32))
        return self.partition.rows[begin:end]

    def told(self, message: NodeRows) -> None:
        """Take in which rows are in which nodes.

        Raises `ProtocolError` if a parent is not known.
        """
        for j, (node, parent) in enumerate(zip(message.nodes, message.parents, strict=True)):
            if int(parent) in self._left:
                continue
            inside = message.rows[message.offsets[j] : message.offsets[j + 1]]
            self._in_node[inside] = True
            is_left = self._in_node[self._known(int(parent))] == bool(node % 2)
            self._in_node[inside] = False
            self._split(np.array([parent]), np.array([min(node, sibling(int(node)))]), is_left)

    def routed(self, message: RoutedRows) -> None:
        """Take in how an owner split nodes."""
        if len(message.nodes) and int(message.nodes[0]) not in self._left:
            self._split(message.nodes, message.left, message.goes_left)

    def _known(self, node: int) -> NDArray[np.int32]:
        if node and node not in self.nodes:
            raise ProtocolError(f"node {node} has children with rows, and was never told of")
        return self._rows(node)

    def _split(
        self, nodes: NDArray[np.integer], left: NDArray[np.integer], goes_left: NDArray[np.bool_]
    ) -> None:
        self.partition.move(nodes.astype(np.int32), left.astype(np.int32), goes_left)
        self._left.update(zip(nodes.tolist(), left.tolist(), strict=True))


def replayed(view: View) -> dict[int, KnownNodes]:
    """Return what the principals have seen of every tree, by the tree's number.

    It is replayed from the messages that they received and sent, whatever the number of parties:
    the rows of roots, of nodes that they were asked about, of the other child of such a node, and
    of the children of nodes that they split. Trees that they were not told of are left out.
    """
    found: dict[int, KnownNodes] = {}
    for item in view.seen:
        message = item.message
        if isinstance(message, RootRows):
            found.setdefault(message.tree, KnownNodes(message.rows))
        elif isinstance(message, NodeRows):
            found[message.tree].told(message)
        elif isinstance(message, RoutedRows):
            found[message.tree].routed(message)
    return found


def visible_leaves(view: View) -> NDArray[np.int32]:
    """Return in which visible leaf of which tree a row is, int32, shape (N, T); -1: in none.

    A visible leaf is a node that the principals know the rows of, and of no child of it. Rows stand
    in the order of ``view.own[0].ids``; trees in that of their numbers, up to the last one seen. Of
    a tree that they were not told of, or did not draw a row of, there is no leaf.
    """
    trees = replayed(view)
    leaves = np.full((view.n_rows, 1 + max(trees, default=-1)), -1, dtype=np.int32)
    for tree, known in trees.items():
        for node in known.leaves:
            leaves[known.rows_of(node), tree] = node
    return leaves


def visible_nodes(view: View) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
    """Yield tree, node and rows of everything visible: roots, inner nodes and leaves."""
    for tree, known in sorted(replayed(view).items()):
        for node in known.nodes:
            yield tree, node, known.rows_of(node)
