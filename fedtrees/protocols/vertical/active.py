"""The active party of vertical tree protocols.

It has the labels and the private key. It sends encrypted row statistics to the passive parties,
decrypts their sums per bin, chooses the splits, and asks the owner of each split column which rows
go left.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import OpenNodes
from fedtrees.core.errors import ProtocolError
from fedtrees.core.messages import Sealed
from fedtrees.core.network import Network
from fedtrees.crypto import costs
from fedtrees.crypto.bin_sums import BinLayout, BinSumDecrypter
from fedtrees.crypto.costs import public_key_bytes
from fedtrees.crypto.packing import Slots
from fedtrees.messages.vertical import (
    BinCountsRequest,
    ChosenSplits,
    NodeRows,
    OpenedBinSums,
    OwnRowStatistics,
    RootRows,
    RoutesOfRows,
    RowStatistics,
    RowsToRoute,
    sibling,
)
from fedtrees.protocols.base import Coordinator, Seat
from fedtrees.protocols.settings import ACTIVE, PASSIVE
from fedtrees.protocols.tree_masks import allowed_splits, reads_open_nodes, visible_nodes
from fedtrees.protocols.vertical.passive import drawn_columns
from fedtrees.protocols.vertical.protocol import VerticalModel
from fedtrees.trees.binning import Cuts
from fedtrees.trees.partition import ROOT, Decisions, RowPartition


@dataclass(eq=False)
class TreeInProgress:
    """State of the tree that the active party is growing.

    Attributes
    ----------
    number, round : int
        Number of the tree, and round of training.
    statistics : int64 array, shape (n, s)
        Statistics of all rows, 0 for rows that the tree is not trained on.
    slots : Slots
        Layout of the statistics in a plaintext.
    rows : RowPartition
        Rows of each node.
    columns : dict of str to int32 array
        Columns that the tree may use, by party.
    parents : dict of int to int
        Parent of every node except the root.
    hidden : set of int
        Nodes that are not announced to the passive parties.
    thresholds : dict of int to float32
        Thresholds of the splits by columns of the active party, by node.
    classes : dict of int to int64 array, shape (total_bins, K)
        Rows by bin and class, by node. Filled only if a defense or the protocol reads it.
    """

    number: int
    round: int
    statistics: NDArray[np.int64]
    slots: Slots
    rows: RowPartition
    columns: dict[str, NDArray[np.int32]]
    parents: dict[int, int] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    thresholds: dict[int, np.float32] = field(default_factory=dict)
    classes: dict[int, NDArray[np.int64]] = field(default_factory=dict)


class Active(Coordinator):
    """Base class of active parties. Subclasses define which trees are grown.

    Attributes
    ----------
    bins : LocalBins
        The active party's columns, in bins.
    pure_leaves : bool
        Whether a node of a single class is a leaf.
    """

    role = ACTIVE
    encryption: BinSumDecrypter
    pure_leaves = False
    bits: tuple[int, int] = (0, 0)  # binary places of statistics

    def __init__(self, seat: Seat, protocol: Any) -> None:
        super().__init__(seat.name)
        self.local_data, self.bins = seat.rows, protocol.local_bins(seat.rows)
        self.params, self.schema = protocol, seat.schema

    # --- before the first tree

    def settle(self, net: Network) -> None:
        """Send the public key, and receive the numbers of bins of the passive parties' columns."""
        bits = self.params.key_bits
        size = public_key_bytes(bits, djn=False)
        key = Sealed((), (size,), "|u1", size, self.encryption.public_key())
        self.passive = bool(net.members(PASSIVE))
        replies = []
        if self.passive:
            reason = "the numbers of candidate splits, and the key for the encrypted sums"
            replies = net.request(PASSIVE, BinCountsRequest(self.name, bits, key), reason=reason)
        d = len(self.schema.features)
        cuts: list[Any] = [None] * d
        minimum, self.owner = np.zeros(d, dtype=np.float32), [self.name] * d
        local_cuts, counts = self.bins.cuts, self.bins.n_bins.tolist()
        for place, column in enumerate(self.bins.columns.tolist()):
            cuts[column] = (
                np.arange(1, counts[place] + 1) if local_cuts is None else local_cuts.of(place)
            )
            minimum[column] = 0 if local_cuts is None else local_cuts.minimum[place]
        for bin_counts in replies:
            for column, count in zip(
                bin_counts.columns.tolist(), bin_counts.n_bins.tolist(), strict=True
            ):
                # Only the bins of a passive column are known. Bin b has the placeholder b + 1.
                cuts[column] = np.arange(1, count + 1)
                self.owner[column] = bin_counts.party
        self.cuts = Cuts.join(cuts, minimum)

    # --- trees

    def begin(
        self,
        net: Network,
        number: int,
        round: int,
        rows: NDArray[np.int32],
        statistics: NDArray[np.int64],
        slots: Slots,
    ) -> TreeInProgress:
        """Start a tree: send its rows and their encrypted statistics to the passive parties.

        Nothing is sent if there is no passive party, or if a defense hides the root from all of
        them.

        Parameters
        ----------
        net : Network
            Network of the run.
        number, round : int
            Number of the tree, and round of training.
        rows : int32 array, shape (m,)
            Rows that the tree is trained on, ascending.
        statistics : int64 array, shape (n, s)
            Statistics of all rows.
        slots : Slots
            Layout of the statistics in a plaintext.
        """
        rng = self.streams.rng("columns", number)
        share = self.params.column_share
        self.bins.choose_columns(drawn_columns(len(self.bins.columns), share, rng))
        columns = {self.name: self.bins.columns[self.bins.chosen]}
        tree = TreeInProgress(number, round, statistics, slots, RowPartition(rows), columns)
        # A defense can hide a tree completely from the passive parties.
        hidden = (
            reads_open_nodes(net.defense) and not visible_nodes(net, self._level(tree, ROOT))[0]
        )
        if hidden or not self.passive:
            tree.hidden.add(0)
            return tree
        for reply in net.request(PASSIVE, RootRows(number, rows), reason="the rows of the tree"):
            columns[reply.party] = reply.columns
        if len(columns) == 1:  # a defense hid the request from all passive parties
            tree.hidden.add(0)
            return tree
        # Rows that the tree does not use are not encrypted. This saves time and traffic.
        sent_statistics = statistics if len(rows) == len(statistics) else statistics[rows]
        self._send_statistics(net, number, sent_statistics, slots, len(columns) - 1)
        return tree

    def _level(
        self, tree: TreeInProgress, nodes: NDArray[np.int32], left: NDArray[np.int64] | None = None
    ) -> OpenNodes:
        """Return the facts about open nodes that defenses may read.

        Parameters
        ----------
        tree : TreeInProgress
            State of the tree.
        nodes : int32 array, shape (k,)
            Nodes that wait for a split.
        left : int64 array or None
            Class counts left of each candidate split, if a defense reads them.
        """
        classes, y = len(self.schema.classes), self.local_data.y
        counts = np.zeros((len(nodes), classes), dtype=np.int64)
        totals = np.zeros(classes, dtype=np.int64)
        # Class counts follow from the local labels, without any message.
        if classes and y is not None:
            totals = np.bincount(y, minlength=classes)
            for k, node in enumerate(nodes.tolist()):
                counts[k] = np.bincount(y[tree.rows.rows_of(node)], minlength=classes)
        is_passive_column = np.array([owner != self.name for owner in self.owner])
        offsets = self.cuts.offsets
        return OpenNodes(
            tree.number, tree.round, nodes, counts, totals, offsets, is_passive_column, left
        )

    def _send_statistics(
        self, net: Network, tree: int, rows: NDArray[np.int64], slots: Slots, receivers: int
    ) -> None:
        payload = self.encryption.encrypt(rows, slots)
        nbytes = costs.row_traffic(len(rows), self.params.key_bits).nbytes
        sealed = Sealed((self.name,), rows.shape, "<i8", nbytes, payload)
        message = RowStatistics(tree, slots.limit, slots.terms, sealed)
        net.send(
            PASSIVE,
            message,
            reason="the encrypted statistics of each row, which only the active party can decrypt",
        )
        net.record_opened(
            OwnRowStatistics(tree, rows),
            reason="the same statistics, as the active party knows them",
        )
        self.encryption.ledger.sent("RowStatistics", receivers * len(rows), receivers * nbytes)

    def sums(
        self,
        net: Network,
        tree: TreeInProgress,
        open_nodes: NDArray[np.int32],
        requested: NDArray[Any],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Return the sums of nodes over the bins of all parties, and the permitted splits.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : TreeInProgress
            State of the tree.
        open_nodes : int32 array, shape (k,)
            Nodes that wait for a split: the root, or children in pairs.
        requested : int32 array, shape (a,)
            Nodes whose sums are computed: the root, or at least one node of each pair. The sums of
            the sibling are the difference to the sums of the parent.

        Returns
        -------
        sums : int64 array, shape (a, total_bins, s)
            0 in the bins of parties that do not know a node.
        allowed : bool array, shape (k, total_bins), or None
            None if all splits are permitted.
        """
        shown = self._announced_nodes(net, tree, open_nodes)
        out = np.zeros(
            (len(requested), self.cuts.total_bins, tree.statistics.shape[1]), dtype=np.int64
        )
        is_known = np.zeros((len(open_nodes), self.cuts.total_bins), dtype=bool)
        self.bins.compute_bins(tree.rows, requested)
        local_places = self._places(tree.columns[self.name])
        out[:, local_places] = self.bins.sums(tree.statistics, tree.rows, requested)
        is_known[:, local_places] = True
        if shown.any():
            is_shown = np.isin(requested, open_nodes[shown])
            for party, party_sums in self._ask_sums(
                net, tree, open_nodes[shown], requested[is_shown]
            ).items():
                places = self._places(tree.columns[party])
                out[np.ix_(is_shown, places)] = party_sums
                is_known[np.ix_(shown, places)] = True
        return out, self._permitted_splits(net, tree, open_nodes, requested, out, is_known)

    def _announced_nodes(
        self, net: Network, tree: TreeInProgress, nodes: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return which nodes are announced to the passive parties, bool, shape (k,)."""
        if nodes[0] == 0:
            return np.array([0 not in tree.hidden])
        # The children of a hidden node are hidden, too.
        above = np.array([tree.parents[node] not in tree.hidden for node in nodes.tolist()])
        # If both children are leaves, no party needs their sums.
        if self.pure_leaves:
            above &= np.repeat(~self._pure(tree, nodes).reshape(-1, 2).all(axis=1), 2)
        if above.any() and reads_open_nodes(net.defense):
            above &= visible_nodes(net, self._level(tree, nodes))
        tree.hidden.update(nodes[~above].tolist())
        return above

    def _permitted_splits(
        self,
        net: Network,
        tree: TreeInProgress,
        nodes: NDArray[np.int32],
        requested: NDArray[np.int32],
        sums: NDArray[np.int64],
        is_known: NDArray[np.bool_],
    ) -> NDArray[np.bool_] | None:
        """Return which splits have known sums and are permitted by the defenses. None for all."""
        mask = None
        if self.pure_leaves:
            mask = np.broadcast_to(~self._pure(tree, nodes)[:, None], is_known.shape)
        if reads_open_nodes(net.defense):
            left = None
            if net.defense.requirements.class_counts:
                parts = sums[..., sums.shape[2] - len(self.schema.classes) :]
                tree.classes.update(complete_counts(tree, nodes, requested, parts))
                class_counts = np.stack([tree.classes[node] for node in nodes.tolist()])
                # Bins whose owner does not know the node have no valid counts.
                class_counts[~is_known] = 0
                left = cumulate(class_counts, self.cuts.offsets)
            level = self._level(tree, nodes, left)
            allowed = allowed_splits(net, tree.number, len(nodes), is_known.shape[1], level)
            if allowed is not None:
                mask = allowed if mask is None else mask & allowed
        if is_known.all():
            return mask
        return is_known if mask is None else mask & is_known

    def _pure(self, tree: TreeInProgress, nodes: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which nodes contain rows of a single class only."""
        counts = self._level(tree, nodes).counts
        return np.asarray((counts > 0).sum(axis=1) < 2)

    def _places(self, columns: NDArray[np.int32]) -> NDArray[np.intp]:
        """Return the positions of the bins of some columns among the bins of all columns."""
        spans = [np.arange(self.cuts.offsets[c], self.cuts.offsets[c + 1]) for c in columns]
        return np.concatenate([np.zeros(0, dtype=np.intp), *spans])

    def _ask_sums(
        self,
        net: Network,
        tree: TreeInProgress,
        open_nodes: NDArray[np.int32],
        requested: NDArray[Any],
    ) -> dict[str, NDArray[np.int64]]:
        """Ask the passive parties for sums, and decrypt their replies."""
        reason = "the rows of each node, whose statistics are summed over bins"
        message = node_rows(tree, open_nodes, requested)
        ranges = tree.rows.ranges(message.asked)
        counts, sums_by_party = ranges[:, 1] - ranges[:, 0], {}
        for reply in net.request(PASSIVE, message, reason=reason):
            bins = self.cuts.n_bins[reply.columns]
            shape = BinLayout(counts, bins, tree.statistics.shape[1], tree.slots)
            opened = self.encryption.decrypt(reply.party, reply.sums.payload, shape)
            sums_by_party[reply.party] = opened
            # The note puts the decrypted sums into the view of this party, which attacks read.
            note = OpenedBinSums(
                reply.party, tree.number, reply.nodes, reply.columns, opened, self.bits[0]
            )
            net.record_opened(
                note, reason="sums per candidate, opened with the key, to find splits"
            )
        return sums_by_party

    def split(self, net: Network, tree: TreeInProgress, chosen: Decisions) -> None:
        """Let the column owners split the rows of their nodes, and move all rows.

        Parameters
        ----------
        net : Network
            Network of the run.
        tree : TreeInProgress
            State of the tree.
        chosen : Decisions
            Chosen splits of a level.
        """
        splits_by_party: dict[str, list[int]] = defaultdict(list)
        for k, column in enumerate(chosen.feature.tolist()):
            splits_by_party[self.owner[column]].append(k)
        for party, indices in splits_by_party.items():
            c = Decisions(*(None if a is None else a[indices] for a in vars(chosen).values()))  # type: ignore[arg-type]
            if party == self.name:
                goes = self.bins.goes_left(tree.rows, c.nodes, c.feature, c.bin, c.default_left)
                # Only the owner knows the threshold. The message contains the bin.
                cut_at = self.bins.thresholds(c.nodes, c.feature, c.bin)
                tree.thresholds.update(zip(c.nodes.tolist(), cut_at, strict=True))
            else:
                message = ChosenSplits(
                    tree.number, c.nodes, c.left, c.feature, c.bin, c.default_left
                )
                reason = "the splits that were chosen among its candidates"
                (reply,) = net.request(party, message, reason=reason)
                goes = reply.goes_left
            tree.rows.move(c.nodes, c.left, goes)
        for node, left in zip(chosen.nodes.tolist(), chosen.left.tolist(), strict=True):
            tree.parents[left] = tree.parents[left + 1] = node

    # --- predictions

    def finished(self, net: Network) -> None:
        """Note the final model, so that the active party's view contains it."""
        if self.passive:
            reason = "the trees of the active party, with the bin of each split of another party"
            net.record_opened(self.model.as_message(), reason=reason)

    def predict(self, net: Network) -> NDArray[np.float64]:
        """Route the test rows through all trees, and return their scores.

        The owners of the splits answer where the rows go.
        """
        model: VerticalModel = self.model
        return model.scores(self.leaves(net), self.queries.X, self.queries.columns)

    def leaves(self, net: Network) -> NDArray[np.int32]:
        """Return the leaves that the test rows reach, int32, shape (n, T)."""
        model: VerticalModel = self.model
        n, partitions = len(self.queries), [RowPartition(len(self.queries)) for _ in model.trees]
        leaves = np.zeros((n, len(model)), dtype=np.int32)
        # All trees are traversed together, so that each level needs one request per party.
        level = [(t, 0) for t in range(len(model))]
        while level:
            level = self._route_level(net, model, partitions, leaves, level)
        return leaves

    def _route_level(
        self,
        net: Network,
        model: VerticalModel,
        at: list[RowPartition],
        leaves: NDArray[np.int32],
        level: list[tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """Move the rows of some nodes one level down. Return the nodes that they reach."""
        # One message per party and level, instead of one per node.
        nodes_of_owner: dict[str, list[tuple[int, int]]] = defaultdict(list)
        reached = []
        for t, node in level:
            rows, column = at[t].rows_of(node), int(model.trees[t].feature[node])
            if column < 0:
                leaves[rows, t] = node
            elif len(rows):
                nodes_of_owner[model.owners[column]].append((t, node))
        for party, nodes in nodes_of_owner.items():
            for (t, node), goes in zip(nodes, self._goes(net, party, at, nodes), strict=True):
                tree = model.trees[t]
                left = tree.left[node : node + 1]
                at[t].move(np.array([node], dtype=np.int32), left, goes)
                reached += [(t, int(left[0])), (t, int(left[0]) + 1)]
        return reached

    def _goes(
        self, net: Network, party: str, at: list[RowPartition], nodes: list[tuple[int, int]]
    ) -> list[NDArray[np.bool_]]:
        """Return which test rows at a party's nodes go left."""
        rows = [at[t].rows_of(node) for t, node in nodes]
        if party == self.name:
            return [self._own_goes(t, node, r) for (t, node), r in zip(nodes, rows, strict=True)]
        offsets = np.cumsum([0, *map(len, rows)])
        trees, numbers = np.array(nodes, dtype=np.int32).T
        message = RowsToRoute(trees, numbers, offsets, np.concatenate(rows))
        (reply,) = net.request(party, message, reason="where rows to predict go at its splits")
        if not isinstance(reply, RoutesOfRows) or len(reply.goes_left) != offsets[-1]:
            raise ProtocolError(f"{party!r} did not assign all {offsets[-1]} rows to a side")
        return np.split(reply.goes_left, offsets[1:-1])

    def _own_goes(self, t: int, node: int, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        tree = self.model.trees[t]
        x = self.queries.X[rows, np.searchsorted(self.queries.columns, tree.feature[node])]
        goes: NDArray[np.bool_] = np.where(
            np.isnan(x), tree.default_left[node], x < tree.threshold[node]
        )
        return goes


def complete_counts(
    tree: TreeInProgress,
    open_nodes: NDArray[np.int32],
    requested: NDArray[np.int32],
    sums: NDArray[np.int64],
) -> dict[int, NDArray[np.int64]]:
    """Return the class counts of all open nodes, by node.

    The counts of a node that was not requested are those of the parent, in ``tree.classes``, minus
    those of the sibling.

    Parameters
    ----------
    tree : TreeInProgress
        State of the tree.
    open_nodes : int32 array, shape (k,)
        Open nodes.
    requested : int32 array, shape (a,)
        Nodes whose counts are known.
    sums : int64 array, shape (a, total_bins, K)
        Their counts.
    """
    counts = dict(zip(requested.tolist(), sums, strict=True))
    for node in open_nodes.tolist():
        if node not in counts:
            counts[node] = tree.classes[tree.parents[node]] - counts[sibling(node)]
    return counts


def cumulate(counts: NDArray[np.int64], offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the sums up to each bin within its column, of an array of shape (k, bins, K)."""
    total = np.cumsum(counts, axis=1)
    before = np.zeros_like(total[:, : len(offsets) - 1])
    # The sum over all earlier columns is subtracted, so that each column starts at 0.
    before[:, 1:] = total[:, offsets[1:-1] - 1]
    return np.asarray(total - np.repeat(before, np.diff(offsets), axis=1))


def node_rows(
    tree: TreeInProgress, open_nodes: NDArray[np.int32], requested: NDArray[np.int32]
) -> NodeRows:
    """Return the request for sums. It announces the rows of the smaller child of every pair.

    Parameters
    ----------
    tree : TreeInProgress
        State of the tree.
    open_nodes : int32 array, shape (k,)
        The root, or children in pairs.
    requested : int32 array, shape (a,)
        Nodes whose sums are requested.
    """
    nodes = np.zeros(0, dtype=np.int32)
    if open_nodes[0] != 0:
        pairs = open_nodes.reshape(-1, 2)
        sizes = np.diff(tree.rows.ranges(open_nodes), axis=1).reshape(-1, 2)
        # The rows of the smaller child determine those of the larger one and need less traffic.
        nodes = np.where(sizes[:, 1] < sizes[:, 0], pairs[:, 1], pairs[:, 0]).astype(np.int32)
    parts = [tree.rows.rows_of(node) for node in nodes.tolist()]
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return NodeRows(
        tree.number,
        requested.astype(np.int32),
        nodes,
        np.array([tree.parents[n] for n in nodes.tolist()], dtype=np.int32),
        offsets,
        np.concatenate([np.zeros(0, dtype=np.int32), *parts]),
    )
