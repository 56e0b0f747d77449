"""Protocol `xgboost-vertical`: XGBoost's column split in plain text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import XGBOOST, Deployed
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import BestSplits, Intercept, PartitionBits, RowGradients
from fedtrees.messages.vertical import TreeColumns
from fedtrees.protocols.base import Seat
from fedtrees.protocols.peers.peer import Peer, Script, StartingPeer
from fedtrees.protocols.settings import ACTIVE, PASSIVE, PlainBoosting, VerticallyPartitioned
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import (
    UNIT_BITS,
    build_histogram,
    from_fixed,
    node_sums,
    to_fixed,
)
from fedtrees.trees.boosted.splitting import Splits, prune
from fedtrees.trees.cut_points import xgboost_cuts
from fedtrees.trees.partition import ROOT, Decisions, RowPartition


class ColumnHolder(Peer):
    """A party with columns. All parties grow the same trees.

    Columns are numbered as in XGBoost: those of the first party, then those of the next one.
    """

    receives = (TreeColumns, Intercept, RowGradients, BestSplits, PartitionBits)

    role = PASSIVE
    audience = (ACTIVE, PASSIVE)

    def __init__(self, seat: Seat, protocol: XGBoostVertical) -> None:
        super().__init__(seat.name)
        self.local_data, self.schema, self.params = seat.rows, seat.schema, protocol
        self.objective = protocol.objective_for(seat.schema)
        if self.local_data.y is not None:
            self.objective.check(self.local_data.y)

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return the type of a message, its round and level, and its sender."""
        fields: Any = message
        place = getattr(fields, "round", 0), getattr(fields, "level", 0)
        sender = getattr(fields, "owner", getattr(fields, "party", None))
        if sender is not None and rank is not None:
            sender = self.names[rank]
        return type(message), *place, sender

    def run_training(self) -> Script:
        """Agree on the initial prediction, compute local cut points, and boost."""
        self.assign_ranks()
        local_columns = TreeColumns(self.name, self.local_data.columns.astype(np.int32))
        received = yield from self.exchange(local_columns, "how many columns each party has")
        self.columns = np.concatenate([t.columns for t in received])
        sizes = [len(t.columns) for t in received]
        self.first = sum(sizes[: self.rank])
        self.cuts = xgboost_cuts(self.local_data.X, self.params.max_bin)
        self.bins = bin_rows(self.local_data.X, self.cuts)
        score = self.params.base_score
        if score is None:
            mean = yield from self.said_first(lambda: Intercept(self.mean, self.name), Intercept(0))
            score = mean.value
        start = self.objective.base_margin(score)
        margin, trees = np.repeat(start[:, None], len(self.local_data), axis=1), []
        for round in range(self.params.trees):
            received = yield from self.said_first(
                lambda at=round: self.gradients(at, margin), RowGradients(round, *np.zeros((2, 0)))
            )
            # All parties sum the same float32 gradients in fixed point, so that their trees are
            # equal.
            self.gh = to_fixed(np.stack([received.g, received.h], axis=1), UNIT_BITS)
            self.rows = RowPartition(len(self.local_data))
            grown = yield from self.grow_tree(round)
            leaves = grown.leaves.astype(np.int32)
            self.rows.add_to(margin[0], leaves, grown.value[leaves])
            inner = grown.feature >= 0
            # The trees number columns in party order. The model uses positions in the schema.
            feature = np.where(inner, self.columns[np.maximum(grown.feature, 0)], -1)
            trees.append(replace(grown, feature=feature.astype(np.int32)))
        self.model = Forest(tuple(trees), start, self.objective)

    @property
    def mean(self) -> float:
        """Mean label, for the party with the labels."""
        assert self.local_data.y is not None
        return float(np.float32(self.local_data.y.mean()))

    def gradients(self, round: int, margin: NDArray[np.float32]) -> RowGradients:
        """Return the gradients and hessians of all rows, for the party with the labels."""
        assert self.local_data.y is not None
        g, h = self.objective.gradients(margin, self.local_data.y)[0].T
        return RowGradients(round, g.copy(), h.copy())

    def said_first(self, state: Any, like: Message) -> Script:
        """Return a message that the first party, which has the labels, sends to all parties.

        Parameters
        ----------
        state : callable
            Creates the message at the first party.
        like : Message
            A message with the same key, by which the other parties wait for it.
        """
        if not self.rank:
            return self.send_to_others(
                state(), "every party sums them over the bins of its columns"
            )
        return (yield self.key(like, 0))

    def grow_tree(self, round: int) -> Script:
        """Grow one tree. Each party searches for the best splits by its columns."""
        root_sums = node_sums(self.gh, self.rows.rows, self.rows.ranges(ROOT))[0]
        grower, level = TreeGrower(self.cuts, self.params, root_sums), 0
        while len(grower.nodes):
            ranges = self.rows.ranges(grower.to_build)
            hist = grower.complete(build_histogram(self.bins, self.gh, self.rows.rows, ranges))
            # Gamma prunes only the best split over all parties, not the local ones.
            local_splits = grower.best(hist, pruned=False)
            best_splits = yield from self.exchange(
                self.best(round, level, grower.nodes, local_splits),
                "every party determines the best split of all columns",
            )
            # All parties receive the same messages and choose the same split.
            splits = together(best_splits, local_splits, self.rank)
            prune(splits, self.params)
            chosen = grower.accept(splits, hist)
            yield from self.move_rows(round, level, chosen)
            level += 1
        return grower.finish()

    def best(self, round: int, level: int, nodes: NDArray[np.int32], s: Splits) -> BestSplits:
        """Return the party's best splits. If no split has a gain, all fields are 0 as in XGBoost.

        Parameters
        ----------
        round, level : int
            Round of boosting, and depth of the nodes.
        nodes : int32 array, shape (k,)
            Nodes of the level.
        s : Splits
            Best splits by the party's columns.
        """
        left, right = (
            from_fixed(np.where(s.feature[:, None] < 0, 0, sums), UNIT_BITS)
            for sums in (s.left_sums, s.right_sums)
        )
        feature = np.where(s.feature < 0, 0, s.feature + self.first).astype(np.int32)
        return BestSplits(
            round, nodes.astype(np.int32), feature, s.threshold, s.gain, left, right,
            self.name, self.first, len(self.local_data.columns), level, s.default_left,
        )  # fmt: skip

    def move_rows(self, round: int, level: int, chosen: Decisions) -> Script:
        """Send which rows go left at the party's splits, and move all rows.

        Parameters
        ----------
        round, level : int
            Round of boosting, and depth of the nodes.
        chosen : Decisions
            Chosen splits of the level.
        """
        if not len(chosen):
            return
        left, missing = np.zeros((2, len(self.local_data)), np.bool_)
        rows = [self.rows.rows[begin:end] for begin, end in self.rows.ranges(chosen.nodes)]
        for rows_at_node, feature, threshold in zip(
            rows, chosen.feature, chosen.threshold, strict=True
        ):
            missing[rows_at_node] = True  # unless the party has the column and the value is present
            if 0 <= feature - self.first < len(self.local_data.columns):
                x = self.local_data.X[rows_at_node, feature - self.first]
                left[rows_at_node], missing[rows_at_node] = x < threshold, np.isnan(x)
        local_bits = PartitionBits(round, level, left, missing, self.name)
        all_bits = yield from self.exchange(local_bits, "which rows go left")
        # Only the column owner sends True. All other parties mark the value as missing.
        left = np.any([t.left for t in all_bits], axis=0)
        missing = np.all([t.missing for t in all_bits], axis=0)
        goes = [
            np.where(missing[rows_at_node], default, left[rows_at_node])
            for rows_at_node, default in zip(rows, chosen.default_left, strict=True)
        ]
        self.rows.move(chosen.nodes, chosen.left, np.concatenate(goes))


class LabelHolder(ColumnHolder, StartingPeer):
    """The party of rank 0, which has the labels."""

    role = ACTIVE


def together(announced: list[BestSplits], local_splits: Splits, rank: int) -> Splits:
    """Return the best split of each node over all parties. Of equal gains, the first party's.

    Parameters
    ----------
    announced : list of BestSplits
        Best splits of each party, by rank.
    local_splits : Splits
        Best splits of this party, which include their bins.
    rank : int
        Rank of this party.
    """
    gain = np.stack([t.gain for t in announced])
    best, node_index = gain.argmax(axis=0), np.arange(gain.shape[1])

    def of(name: str) -> NDArray[Any]:
        values: NDArray[Any] = np.stack([getattr(t, name) for t in announced])[best, node_index]
        return values

    # XGBoost leaves a node unsplit if no split has a positive gain.
    splits = gain.max(axis=0) > 0
    # Only the owner of the split column knows the bin. The other parties need no bin.
    is_local = (best == rank) & (local_splits.feature >= 0)
    return Splits(
        np.where(splits, of("feature"), -1).astype(np.int32),
        np.where(is_local, local_splits.bin, -1).astype(np.int32),
        of("threshold"), of("default_left"), of("gain"),
        to_fixed(of("left"), UNIT_BITS), to_fixed(of("right"), UNIT_BITS),
    )  # fmt: skip


@register.protocol("xgboost-vertical")
@dataclass(frozen=True, kw_only=True)
class XGBoostVertical(VerticallyPartitioned, PlainBoosting):
    """XGBoost 3.2's column split (``data_split_mode=col``), vertical and in plain text.

    The party with the labels sends the gradient of each row to all parties. Every party sends all
    other parties its best split of every node, whether or not it is used, and which rows go left at
    its splits. All parties end with the complete model. XGBoost's federated server forwards all
    messages and sees as much as a passive party. The cut points equal XGBoost's if columns have up
    to ``8 max_bin`` distinct values (`fedtrees.trees.cut_points`).
    """

    info = replace(
        VerticallyPartitioned.info,
        message_types=ColumnHolder.receives,
        peer_to_peer=True,
        deployments={
            "xgboost": Deployed(
                "a federated server (xgboost.federated); parties load DMatrix(..., "
                "data_split_mode=DataSplitMode.COL)",
                XGBOOST,
            ),
            "nvflare": Deployed(
                "XGBFedController(data_split_mode=1, secure_training=False, xgb_params={...}, ...)",
                {**XGBOOST, "trees": "num_rounds={}"},
            ),
        },
        role_labels={
            **VerticallyPartitioned.info.role_labels,
            "public": ("a recipient of the released model", "recipients of the released model"),
        },
    )
    party_types = {ACTIVE: LabelHolder, PASSIVE: ColumnHolder}

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the roles: the active party, which has the labels, and the passive parties.

        Raises
        ------
        UsageError
            If there is a single party.
        """
        if parties < 2:
            raise UsageError(f"{self.name!r} needs two parties or more")
        return super().roles(parties)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse weights, a party without columns or rows, and labels of one class."""
        if local_data.weight is not None or not len(local_data.columns) or not len(local_data):
            raise DataError(f"{self.name!r} takes rows and columns of {name!r}, without weights")
        super().check_local_data(name, local_data, schema)
