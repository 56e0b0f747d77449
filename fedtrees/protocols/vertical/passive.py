"""The passive party of vertical tree protocols, and the limits of the requests that it answers.

It adds encrypted row statistics over the bins of its columns without decrypting them, and answers
which rows go left at the splits that the active party chose among its candidates. It refuses
requests that the public parameters do not allow, because a malicious active party could otherwise
request sums of arbitrary sets of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.messages import Sealed
from fedtrees.core.party import Party, handles
from fedtrees.core.requests import Once, check_among, check_equal, divides, refuse
from fedtrees.crypto.bin_sums import BinLayout, BinSumAdder
from fedtrees.crypto.packing import Slots
from fedtrees.messages.vertical import (
    BinCounts,
    BinCountsRequest,
    BinSums,
    ChosenSplits,
    KnownNodes,
    NodeRows,
    OpenedBinSums,
    RootRows,
    RoutedRows,
    RoutesOfRows,
    RowStatistics,
    RowsToRoute,
    TreeColumns,
    sibling,
)
from fedtrees.protocols.base import Seat
from fedtrees.protocols.settings import ACTIVE, PASSIVE
from fedtrees.protocols.tree_limits import TreeLimits
from fedtrees.protocols.vertical.local_bins import LocalBins
from fedtrees.trees.forest.params import feature_count


@dataclass(frozen=True)
class Limits:
    """Limits that the public parameters of a run set on every tree.

    Attributes
    ----------
    trees : int
        Number of trees.
    depth : int
        Depth of the deepest leaf.
    leaves : int
        Largest number of leaves, 0 for no limit.
    statistics : int
        Number of statistics of each row.
    classes : int
        Number of one-hot labels that may accompany the statistics if a defense counts classes.
    bits : int
        Binary places of the statistics.
    ranges : tuple of (int, int)
        Smallest and largest value of each statistic, in fixed-point units. Empty if the statistics
        are not clipped.
    """

    trees: int
    depth: int
    leaves: int
    statistics: int
    classes: int = 0
    bits: int = 0
    ranges: tuple[tuple[int, int], ...] = ()

    def clipped(self, statistics: NDArray[np.int64]) -> NDArray[np.int64]:
        """Clip row statistics to their ranges.

        It simulates a zero-knowledge proof that each ciphertext is in its range.
        """
        if not self.ranges:
            return statistics
        return np.clip(statistics, *np.array(self.ranges, dtype=np.int64).T)


class PassiveTreeLimits(TreeLimits):
    """Limits of one tree, and of the row statistics that a passive party adds.

    All methods raise `BeyondParametersError`.

    Parameters
    ----------
    limits : Limits
        Limits of the public parameters.
    number : int
        Number of the tree, -1 before the first one.
    rows : int
        Number of rows that the tree is trained on.
    n_party_rows : int
        Number of rows of the party.
    """

    def __init__(
        self, limits: Limits, number: int = -1, rows: int = 0, n_party_rows: int = 0
    ) -> None:
        super().__init__(limits.depth, limits.leaves, in_order=False)
        self.limits, self.number, self.rows = limits, number, rows
        self.n_party_rows, self.has_statistics = n_party_rows, False

    def start_next(self, root_rows: RootRows, n_rows: int) -> PassiveTreeLimits:
        """Return the state of a later tree on some of the party's `n_rows` rows.

        Trees may be missing between the two, because defenses may hide a tree from the party.
        """
        if not self.number < root_rows.tree < self.limits.trees:
            raise BeyondParametersError(
                f"tree {root_rows.tree} after {self.number}; they are {self.limits.trees}, in turn"
            )
        rows = root_rows.rows
        if len(rows) and not (rows[0] >= 0 and rows[-1] < n_rows and (np.diff(rows) > 0).all()):
            raise BeyondParametersError(
                f"tree {root_rows.tree}: its rows are none of 0 to {n_rows - 1}"
            )
        return PassiveTreeLimits(self.limits, root_rows.tree, len(rows), n_rows)

    def check_statistics(self, statistics: RowStatistics) -> None:
        """Accept row statistics once, with the agreed width and the number of rows of the tree."""
        self._check_number(statistics.tree)
        if self.has_statistics:
            raise BeyondParametersError(f"tree {self.number}: its statistics were sent before")
        self.has_statistics, few = True, self.limits.statistics
        n, width = statistics.statistics.shape
        if (n, statistics.terms) != (self.rows,) * 2 or width not in (
            few,
            few + self.limits.classes,
        ):
            raise BeyondParametersError(
                f"{n} rows bring {width} statistics each, of which {statistics.terms} are added; "
                f"they are {self.rows} rows, and {few} statistics"
            )

    def check_request(self, request: NodeRows) -> None:
        """Accept a request for sums: each node once, and only above the deepest leaves."""
        self._check_number(request.tree)
        if not self.has_statistics:
            raise BeyondParametersError(f"tree {self.number}: no statistics were sent to sum")
        count = len(request.nodes)
        if len(request.parents) != count or not divides(request.offsets, count, len(request.rows)):
            raise BeyondParametersError(f"{count} nodes need a parent each, and rows in order")
        if (
            len(request.rows)
            and not 0 <= request.rows.min() <= request.rows.max() < self.n_party_rows
        ):
            raise BeyondParametersError(f"rows of nodes are none of 0 to {self.n_party_rows - 1}")
        for node, parent in zip(request.nodes.tolist(), request.parents.tolist(), strict=True):
            self.announce_children(parent, min(node, sibling(node)))
        for node in request.asked.tolist():
            self.request(node)

    def check_splits(
        self, chosen: ChosenSplits, columns: NDArray[np.int32], n_bins: NDArray[np.int32]
    ) -> None:
        """Accept the splits that were chosen among the bins of the columns of this tree.

        Parameters
        ----------
        chosen : ChosenSplits
            The message of the active party.
        columns : int32 array, shape (c,)
            Columns that this tree may use.
        n_bins : int32 array, shape (c,)
            Their numbers of bins.
        """
        self._check_number(chosen.tree)
        bins = dict(zip(columns.tolist(), n_bins.tolist(), strict=True))
        parts = (chosen.nodes, chosen.left, chosen.columns, chosen.bins, chosen.default_left)
        if len({len(part) for part in parts}) > 1:
            raise BeyondParametersError("each node needs one split")
        for node, left, column, bin in zip(
            *(a.tolist() for a in (chosen.nodes, chosen.left, chosen.columns, chosen.bins)),
            strict=True,
        ):
            if not -1 <= bin < bins.get(column, -1):
                raise BeyondParametersError(f"node {node}: bin {bin} of column {column} is no cut")
            self.split(node, left)

    def _check_number(self, tree: int) -> None:
        if self.number < 0:
            raise BeyondParametersError(f"tree {tree} was not started; send its rows first")
        if tree != self.number:
            raise BeyondParametersError(f"tree {tree}, while {self.number} is grown")


class SplitHolder(Party):
    """A party with columns. Only this party knows the thresholds of splits by its columns.

    Attributes
    ----------
    bins : LocalBins
        Its columns, in bins.
    splits : dict of (int, int) to (int, float32, bool)
        Column, threshold and direction of missing values, by tree and node.
    """

    role = PASSIVE

    def __init__(self, seat: Seat, protocol: Any) -> None:
        super().__init__(seat.name)
        self.local_data = seat.rows
        self.bins: LocalBins = protocol.local_bins(seat.rows)
        self.splits: dict[tuple[int, int], tuple[int, np.float32, bool]] = {}

    def own_thresholds(self) -> dict[tuple[int, int], tuple[int, float]]:
        """Return column and threshold of its splits, by tree and node. They are never sent."""
        columns = self.bins.columns
        return {at: (int(columns[c]), float(t)) for at, (c, t, _) in self.splits.items()}

    def own_bins(self) -> dict[int, NDArray[np.int64]]:
        """Return the bin of every row, by column. Empty if bins differ between nodes."""
        return self.bins.bins_by_column()

    def note_splits(self, m: ChosenSplits) -> None:
        """Store the thresholds of the chosen splits."""
        thresholds = self.bins.thresholds(m.nodes, m.columns, m.bins)
        column = np.searchsorted(self.bins.columns, m.columns)
        for node, *split in zip(m.nodes, column, thresholds, m.default_left, strict=True):
            self.splits[m.tree, int(node)] = (int(split[0]), split[1], bool(split[2]))

    @handles(
        RowsToRoute,
        trees="with `nodes`, a split of this party",
        nodes="with `trees`, a split of this party",
        rows="rows to predict, none of the training",
        offsets="in order",
    )
    def route(self, message: RowsToRoute) -> RoutesOfRows:
        """Answer which test rows go left at splits of this party."""
        nodes = list(zip(message.trees.tolist(), message.nodes.tolist(), strict=True))
        # Thresholds of other parties are unknown here, so that only local splits can be answered.
        if unknown := [tree_node for tree_node in nodes if tree_node not in self.splits]:
            refuse(message, "nodes", f"(tree, node) {unknown[0]} is no split of this party")
        goes_left = np.zeros(len(message.rows), dtype=bool)
        for j, tree_node in enumerate(
            zip(message.trees.tolist(), message.nodes.tolist(), strict=True)
        ):
            rows_at_node = slice(message.offsets[j], message.offsets[j + 1])
            column, threshold, missing_left = self.splits[tree_node]
            x = self.queries.X[message.rows[rows_at_node], column]
            goes_left[rows_at_node] = np.where(np.isnan(x), missing_left, x < threshold)
        return RoutesOfRows(goes_left)


class Passive(SplitHolder):
    """A party with columns and without labels, which adds encrypted statistics.

    It refuses messages beyond `limits` with `BeyondParametersError`. If a defense changes the sums,
    the ideal functionality shows the sums to the defense before it encrypts them.

    Attributes
    ----------
    bins : LocalBins
        Its columns, in bins.
    limits : Limits
        Limits of the public parameters.
    """

    encryption: BinSumAdder

    def __init__(self, seat: Seat, protocol: Any) -> None:
        super().__init__(seat, protocol)
        self.params = protocol
        self.limits = protocol.limits(seat.schema, seat.defense.requirements)
        self.limited = PassiveTreeLimits(self.limits)
        # Without a defense of sums, the party adds ciphertexts and never sees a statistic.
        self.defended = any(PASSIVE in part.roles for part in seat.defense.parts)
        self.described = Once()

    @handles(
        BinCountsRequest,
        holder="the active party",
        bits="the agreed `key_bits`",
        key="taken once",
    )
    def describe(self, message: BinCountsRequest) -> BinCounts:
        """Answer with the number of bins of every column, once, and store the public key."""
        check_among(message, "holder", self.agreement.members(ACTIVE), "the holder of the key")
        check_equal(message, "bits", self.agreement.parameters["key_bits"], "the length of the key")
        self.described.take(message)
        self.holder, self.key = message.holder, message.bits
        self.encryption.learn(message.key.payload, message.bits)
        return BinCounts(self.name, self.bins.columns, self.bins.n_bins)

    @handles(
        RootRows,
        tree="ascending, at most the agreed trees",
        rows="row numbers, ascending",
    )
    def start_tree(self, message: RootRows) -> TreeColumns:
        """Start a tree: draw the columns that it may use."""
        self.limited = self.limited.start_next(message, len(self.local_data))
        self.tree, self.root, self.known = message.tree, message.rows, KnownNodes(message.rows)
        rng = self.streams.rng("columns", message.tree)
        share = self.params.column_share
        self.bins.choose_columns(drawn_columns(len(self.bins.columns), share, rng))
        return TreeColumns(self.name, self.bins.columns[self.bins.chosen])

    @handles(
        RowStatistics,
        tree="the tree that is grown",
        limit="any: only the sender can read the slots that it sizes",
        terms="the number of rows of the tree",
        statistics="once, of the agreed width; clipped if a defense requires it",
    )
    def keep(self, message: RowStatistics) -> None:
        """Store the encrypted row statistics of the tree."""
        self.limited.check_statistics(message)
        self.statistics = message
        # Plain statistics of all rows. Only the ideal functionality sets them.
        self.every: NDArray[np.int64] | None = None

    @handles(
        NodeRows,
        tree="the tree that is grown",
        asked="nodes above the agreed depth, each once",
        nodes="children of known nodes",
        parents="known nodes, each with the children that it had before",
        offsets="as `rows`",
        rows="any rows of the tree: a node may be any set of rows",
    )
    def add(self, message: NodeRows) -> BinSums:
        """Answer with the encrypted sums over the bins of the requested nodes."""
        self.limited.check_request(message)
        # The party records the rows of all nodes, and derives those of siblings.
        self.known.record_announced(message)
        sent, rows = self.statistics, self.known.partition
        self.bins.compute_bins(rows, message.asked)
        _, width = sent.statistics.shape
        ranges = rows.ranges(message.asked)
        # Shape of the encrypted sums: rows per node, bins per column, statistics per row.
        sums = BinLayout(
            ranges[:, 1] - ranges[:, 0],
            self.bins.n_bins[self.bins.chosen],
            width,
            Slots(sent.limit, sent.terms),
        )

        def binned() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            # Position among the rows of the tree, because ciphertexts exist only for these rows.
            place = np.full(len(self.root), -1)
            for j, (begin, end) in enumerate(ranges):
                place[np.searchsorted(self.root, rows.rows[begin:end])] = j
            return self.bins.bins_of_rows(self.root), place

        def adding(statistics: NDArray[np.int64]) -> NDArray[np.int64]:
            # With proofs, a malicious active party cannot send statistics outside of their ranges.
            statistics = self.limits.clipped(statistics)
            if len(statistics) == len(self.local_data):
                self.every = statistics
            elif self.every is None:
                self.every = np.zeros((len(self.local_data), width), dtype=np.int64)
                self.every[self.root] = statistics
            bin_sums = self.bins.sums(self.every, rows, message.asked)
            return self._changed(message, bin_sums) if self.defended else bin_sums

        payload = self.encryption.sum_rows(self.name, sent.statistics.payload, sums, binned, adding)
        traffic = sums.traffic(self.key)
        nbytes = sum(t.nbytes for t in traffic)
        self.encryption.ledger.sent("BinSums", sum(t.ciphertexts for t in traffic), nbytes)
        sealed = Sealed((self.holder,), sums.shape, "<i8", nbytes, payload)
        return BinSums(
            self.name, message.tree, message.asked, self.bins.columns[self.bins.chosen], sealed
        )

    def _changed(self, request: NodeRows, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sums after the party's defenses changed them."""
        # The party knows the number of rows per bin. Some defenses suppress bins with few rows.
        one = np.ones((len(self.local_data), 1), dtype=np.int64)
        counts = self.bins.sums(one, self.known.partition, request.asked)[..., 0]
        columns, bits = self.bins.columns[self.bins.chosen], self.limits.bits
        opened = OpenedBinSums(self.name, request.tree, request.asked, columns, sums, bits, counts)
        defended: OpenedBinSums = self.before_encryption(opened)
        return defended.sums

    @handles(
        ChosenSplits,
        tree="the tree that is grown",
        nodes="known nodes above the agreed depth, each once",
        left="children of no other node",
        columns="columns that this party drew for the tree",
        bins="bins of these columns",
        default_left="any: the direction of missing values",
    )
    def split(self, message: ChosenSplits) -> RoutedRows:
        """Move rows to the children, store the thresholds, and answer which rows go left."""
        m, chosen = message, self.bins.chosen
        self.limited.check_splits(m, self.bins.columns[chosen], self.bins.n_bins[chosen])
        goes_left = self.bins.goes_left(
            self.known.partition, m.nodes, m.columns, m.bins, m.default_left
        )
        self.note_splits(m)
        routed = RoutedRows(m.tree, m.nodes, m.left, goes_left)
        self.known.record_routed(routed)
        return routed


def drawn_columns(
    count: int, share: str | int | float | None, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Draw the columns that a tree may use, by position among the party's columns, ascending.

    Parameters
    ----------
    count : int
        Number of columns of the party.
    share : str, int, float or None
        Share of them, as scikit-learn's ``max_features``. None for all.
    rng : numpy.random.Generator
        Randomness of the party.

    Returns
    -------
    places : intp array
    """
    if not count:
        return np.zeros(0, dtype=np.intp)
    return np.sort(rng.permutation(count)[: feature_count(share, count)])
