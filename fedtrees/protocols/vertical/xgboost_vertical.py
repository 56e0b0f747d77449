"""`xgboost-vertical`: XGBoost's plain column split, with nothing encrypted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.deployment import XGBOOST, Deployed
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.model import Model
from fedtrees.core.network import LocalNetwork
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.captured import BestSplits, Intercept, PartitionBits, RowGradients
from fedtrees.messages.vertical import TreeColumns
from fedtrees.protocols.boosting_protocol import PlainBoosting
from fedtrees.protocols.lockstep import First, Lockstep, Script, hears
from fedtrees.protocols.vertically_held import ACTIVE, PASSIVE, VerticallyHeld
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.fixed_point import UNIT_BITS, from_fixed, to_fixed
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import build_histogram, node_sums
from fedtrees.trees.boosted.splits import Splits
from fedtrees.trees.boosted.splitting import prune
from fedtrees.trees.boosted.xgboost_cuts import xgboost_cuts
from fedtrees.trees.partition import ROOT, Decisions, RowPartition


class ColumnHolder(Lockstep):
    """A party: what it says when, and the trees that it grows as all others do.

    Columns are numbered as XGBoost does: the first party's, then the next one's.
    """

    role = PASSIVE
    audience = (ACTIVE, PASSIVE)

    def __init__(self, name: str, held: LocalData, schema: Schema, params: XGBoostVertical) -> None:
        super().__init__(name)
        self.held, self.schema, self.params = held, schema, params
        self.objective = params.objective_for(schema)
        if held.y is not None:
            self.objective.check(held.y)

    hear_columns = hears(TreeColumns)
    hear_start = hears(Intercept)
    hear_gradients = hears(RowGradients)
    hear_splits = hears(BestSplits)
    hear_bits = hears(PartitionBits)

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return its type and place, and of whom it is."""
        told: Any = message
        place = getattr(told, "round", 0), getattr(told, "level", 0)
        whose = getattr(told, "owner", getattr(told, "party", None))
        if whose is not None and rank is not None:
            whose = self.names[rank]
        return type(message), *place, whose

    def trained(self) -> Script:
        """Settle where to start and how to cut, and boost."""
        self.sit()
        own = TreeColumns(self.name, self.held.columns.astype(np.int32))
        told = yield from self.gathered(own, "how many columns each party has")
        self.columns = np.concatenate([t.columns for t in told])
        sizes = [len(t.columns) for t in told]
        self.first = sum(sizes[: self.rank])
        self.cuts = xgboost_cuts(self.held.X, self.params.max_bin)
        self.bins = bin_rows(self.held.X, self.cuts)
        score = self.params.base_score
        if score is None:
            mean = yield from self.said_first(lambda: Intercept(self.mean, self.name), Intercept(0))
            score = mean.value
        start = self.objective.base_margin(score)
        margin, trees = np.repeat(start[:, None], len(self.held), axis=1), []
        for round in range(self.params.trees):
            told = yield from self.said_first(
                lambda at=round: self.gradients(at, margin), RowGradients(round, *np.zeros((2, 0)))
            )
            self.gh = to_fixed(np.stack([told.g, told.h], axis=1), UNIT_BITS)
            self.rows = RowPartition(len(self.held))
            grown = yield from self.grown(round)
            leaves = grown.leaves.astype(np.int32)
            self.rows.add_to(margin[0], leaves, grown.value[leaves])
            inner = grown.feature >= 0
            feature = np.where(inner, self.columns[np.maximum(grown.feature, 0)], -1)
            trees.append(replace(grown, feature=feature.astype(np.int32)))
        self.model = Forest(tuple(trees), start, self.objective)

    @property
    def mean(self) -> float:
        """The mean label, for who has the labels."""
        assert self.held.y is not None
        return float(np.float32(self.held.y.mean()))

    def gradients(self, round: int, margin: NDArray[np.float32]) -> RowGradients:
        """Return those of all rows, for who has the labels."""
        assert self.held.y is not None
        g, h = self.objective.gradients(margin, self.held.y)[0].T
        return RowGradients(round, g.copy(), h.copy())

    def said_first(self, made: Any, like: Message) -> Script:
        """Return what the first party, who has the labels, tells all."""
        if not self.rank:
            return self.to_others(made(), "every party sums them over its own bins")
        return (yield self.key(like, 0))

    def grown(self, round: int) -> Script:
        """Grow one tree: each party looks for the best splits by its columns."""
        whole = node_sums(self.gh, self.rows.rows, self.rows.ranges(ROOT))[0]
        grower, level = TreeGrower(self.cuts, self.params, whole), 0
        while len(grower.nodes):
            ranges = self.rows.ranges(grower.to_build)
            hist = grower.complete(build_histogram(self.bins, self.gh, self.rows.rows, ranges))
            own = grower.best(hist, pruned=False)  # gamma cuts off the best of all alone
            told = yield from self.gathered(
                self.best(round, level, grower.nodes, own), "everybody finds the best of all"
            )
            splits = together(told, own, self.rank)
            prune(splits, self.params)
            chosen = grower.accept(splits, hist)
            yield from self.moved(round, level, chosen)
            level += 1
        return grower.finish()

    def best(self, round: int, level: int, nodes: NDArray[np.int32], s: Splits) -> BestSplits:
        """Return its own best splits; where none gains anything, zeros, as XGBoost does."""
        left, right = (
            from_fixed(np.where(s.feature[:, None] < 0, 0, sums), UNIT_BITS)
            for sums in (s.left_sums, s.right_sums)
        )
        feature = np.where(s.feature < 0, 0, s.feature + self.first).astype(np.int32)
        return BestSplits(
            round, nodes.astype(np.int32), feature, s.threshold, s.gain, left, right,
            self.name, self.first, len(self.held.columns), level, s.default_left,
        )  # fmt: skip

    def moved(self, round: int, level: int, chosen: Decisions) -> Script:
        """Tell which rows go left at one's own splits, and move all rows."""
        if not len(chosen):
            return
        left, missing = np.zeros((2, len(self.held)), np.bool_)
        rows = [self.rows.rows[begin:end] for begin, end in self.rows.ranges(chosen.nodes)]
        for at, feature, threshold in zip(rows, chosen.feature, chosen.threshold, strict=True):
            missing[at] = True  # unless it has the column, and a value
            if 0 <= feature - self.first < len(self.held.columns):
                x = self.held.X[at, feature - self.first]
                left[at], missing[at] = x < threshold, np.isnan(x)
        own = PartitionBits(round, level, left, missing, self.name)
        told = yield from self.gathered(own, "which rows go left")
        left = np.any([t.left for t in told], axis=0)
        missing = np.all([t.missing for t in told], axis=0)
        goes = [
            np.where(missing[at], default, left[at])
            for at, default in zip(rows, chosen.default_left, strict=True)
        ]
        self.rows.move(chosen.nodes, chosen.left, np.concatenate(goes))


class LabelHolder(ColumnHolder, First):
    """The party of rank 0, who has the labels."""

    role = ACTIVE


def together(told: list[BestSplits], own: Splits, rank: int) -> Splits:
    """Return the best of what all parties found, of equal ones the first party's."""
    gain = np.stack([t.gain for t in told])
    best, at = gain.argmax(axis=0), np.arange(gain.shape[1])

    def of(name: str) -> NDArray[Any]:
        found: NDArray[Any] = np.stack([getattr(t, name) for t in told])[best, at]
        return found

    splits = gain.max(axis=0) > 0
    mine = (best == rank) & (own.feature >= 0)
    return Splits(
        np.where(splits, of("feature"), -1).astype(np.int32),
        np.where(mine, own.bin, -1).astype(np.int32),
        of("threshold"), of("default_left"), of("gain"),
        to_fixed(of("left"), UNIT_BITS), to_fixed(of("right"), UNIT_BITS),
    )  # fmt: skip


@register.protocol("xgboost-vertical")
@dataclass(frozen=True, kw_only=True)
class XGBoostVertical(VerticallyHeld, PlainBoosting):
    """XGBoost 3.2's column split (``data_split_mode=col``), vertically and in clear.

    Who has the labels tells everybody each row's gradient; every party tells all others its best
    split of every node, taken or not, and which rows go left at its own. All end with the whole
    model. XGBoost's federated server passes everything on, and sees what a passive party sees. Cuts
    are XGBoost's where columns have up to ``8 max_bin`` different values
    (`fedtrees.trees.boosted.xgboost_cuts`).
    """

    says: ClassVar[tuple[type[Message], ...]] = (
        TreeColumns, Intercept, RowGradients, BestSplits, PartitionBits
    )  # fmt: skip
    peers: ClassVar[bool] = True
    deployed: ClassVar[Mapping[str, Deployed]] = {
        "xgboost": Deployed(
            "a federated server (xgboost.federated); parties load DMatrix(..., "
            "data_split_mode=DataSplitMode.COL)", XGBOOST,
        ),
        "nvflare": Deployed(
            "XGBFedController(data_split_mode=1, secure_training=False, xgb_params={...}, ...)",
            {**XGBOOST, "trees": "num_rounds={}"},
        ),
    }  # fmt: skip
    called: ClassVar[Mapping[str, tuple[str, str]]] = {
        **VerticallyHeld.called,
        "public": ("a recipient of the released model", "recipients of the released model"),
    }

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the active party, who has the labels, and the passive ones.

        Raises `UsageError` if there is one alone.
        """
        if parties < 2:
            raise UsageError(f"{self.name!r} needs two parties or more")
        return super().roles(parties)

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:
        """Refuse weights, no columns, and labels of one class."""
        if held.weight is not None or not len(held.columns) or not len(held):
            raise DataError(f"{self.name!r} takes rows and columns of {name!r}, without weights")
        super().check_held(name, held, schema)

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> ColumnHolder:
        """Make a party; who has the labels begins."""
        assert held is not None
        return (LabelHolder if role == ACTIVE else ColumnHolder)(name, held, schema, self)

    def predict(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.float64]:
        """Return the scores of rows by the model, which all parties have."""
        scores: NDArray[np.float64] = model.predict(joined(queries))
        return scores

    def leaves(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, likewise."""
        reached: Any = model
        found: NDArray[np.int32] = reached.apply(joined(queries))
        return found


def joined(queries: Mapping[str, LocalData]) -> NDArray[np.float32]:
    """Return rows with the columns of all parties in their places."""
    parts = [*queries.values()]
    X = np.zeros((len(parts[0]), sum(len(p.columns) for p in parts)), np.float32)
    for part in parts:
        X[:, part.columns] = part.X
    return X
