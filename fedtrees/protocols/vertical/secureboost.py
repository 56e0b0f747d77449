"""Protocol `secureboost`: vertical boosting with encrypted gradients (Cheng et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Deployed, Requirements
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.network import Network
from fedtrees.core.parameters import flag, one_of
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.crypto.packing import Slots
from fedtrees.messages.vertical import OpenedBinSums
from fedtrees.protocols.base import Seat
from fedtrees.protocols.settings import ACTIVE, PASSIVE, BoostingProtocol
from fedtrees.protocols.vertical.active import Active
from fedtrees.protocols.vertical.local_bins import LocalBins, NodeQuantiles
from fedtrees.protocols.vertical.passive import Limits, Passive
from fedtrees.protocols.vertical.protocol import VerticalModel, VerticalProtocol
from fedtrees.trees.boosted.boosting import checked_weights, drop_rows
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.histogram import FIXED_POINT_BITS, node_sums, to_fixed, weighted
from fedtrees.trees.boosted.losses import Objective, SquaredError, clipped_bounds
from fedtrees.trees.boosted.multi_output import MultiOutputForest, MultiOutputGrower, add_to_margins
from fedtrees.trees.boosted.splitting import leaf_values
from fedtrees.trees.partition import RowPartition

CANDIDATES = ("global", "node-quantiles")


class BoostingActive(Active):
    """The active party of `secureboost`."""

    params: SecureBoost

    def __init__(self, seat: Seat, protocol: SecureBoost) -> None:
        super().__init__(seat, protocol)
        requirements, site = seat.defense.requirements, (OpenedBinSums, "sums")
        self.clip, self.proven = requirements.gradient_clip, requirements.range_proofs
        self.sums_law = tuple(seat.defense.changes(site, self.schema, protocol.parameters))

    @property
    def sums_differ(self) -> bool:
        """Whether a defense of the passive parties changes sums before their encryption."""
        return bool(self.sums_law)

    def train(self, net: Network) -> VerticalModel:
        """Boost tree by tree, level by level."""
        y, weight = self.local_data.y, self.local_data.weight
        assert y is not None
        self.objective = self.params.objective_for(self.schema)
        self.objective.check(y)
        if weight is not None:
            checked_weights(weight, len(y))
            if self.clip is not None:
                # The noise is calibrated for unweighted gradients.
                raise DataError("a weight lifts rows over their bounds; drop weights or the noise")
        self.settle(net)
        self.pure_leaves = self.params.pure_leaves and bool(self.schema.classes)
        totals, score = self.objective.target_sums(y, weight), self.params.base_score
        self.bits = self.objective.bits(totals)
        # The active party has all labels, so that the base score needs no message.
        start = self.objective.start(totals) if score is None else self.objective.base_margin(score)
        margin = np.repeat(start[:, None], len(y), axis=1)
        trees: list[Any] = []
        rows: list[RowPartition] = []
        for round in range(self.params.trees):
            gradients = weighted(self.objective.gradients(margin, y), weight, self.bits)
            units = to_fixed(gradients, self.bits)
            if self.clip is not None:
                units = np.clip(units, *np.array(self.params.ranges(self.objective, self.clip)).T)
            drop_rows(units, self.params.subsample, self.streams, round)
            for tree, partition in self.boost(net, round, len(trees), units, margin):
                trees.append(tree)
                rows.append(partition)
        kind = MultiOutputForest if self.together else Forest
        forest = kind(tuple(trees), start, self.objective)
        return VerticalModel(forest, tuple(self.owner), tuple(rows), y)

    @property
    def together(self) -> bool:
        """Whether one tree has outputs for all classes."""
        return self.params.multi_output and self.objective.n_outputs > 1

    def boost(
        self,
        net: Network,
        round: int,
        first: int,
        units: NDArray[np.int64],
        margin: NDArray[np.float32],
    ) -> Iterator[tuple[Any, RowPartition]]:
        """Grow the trees of a round, and add their leaf values to the margins.

        Parameters
        ----------
        net : Network
            Network of the run.
        round : int
            Round of boosting.
        first : int
            Number of the round's first tree.
        units : int64 array, shape (K, n, 2)
            Fixed-point gradients and hessians.
        margin : float32 array, shape (K, n)
            Current predictions, changed in place.
        """
        if self.together:
            # One tree for all classes: the pairs (g, h) of all classes are the statistics of a row.
            gh = np.ascontiguousarray(units.transpose(1, 0, 2)).reshape(len(margin[0]), -1)
            tree, rows = self.grow(net, first, round, gh)
            add_to_margins(tree, rows, margin)
            yield tree, rows
            return
        for k, gh in enumerate(units):
            tree, rows = self.grow(net, first + k, round, np.ascontiguousarray(gh))
            leaves = tree.leaves.astype(np.int32)
            rows.add_to(margin[k], leaves, tree.value[leaves])
            yield tree, rows

    def grow(
        self, net: Network, number: int, round: int, gh: NDArray[np.int64]
    ) -> tuple[Any, RowPartition]:
        """Grow one tree on all rows.

        Rows that the sampling of the round left out have statistics 0. No other party can
        distinguish them, because the statistics are encrypted.

        Parameters
        ----------
        net : Network
            Network of the run.
        number, round : int
            Number of the tree, and round of boosting.
        gh : int64 array, shape (n, 2) or (n, 2 K)
            Fixed-point gradients and hessians.
        """
        all_rows, labels = np.arange(len(gh), dtype=np.int32), self.one_hot(net)
        statistics = np.concatenate([gh, labels], axis=1) if labels.size else gh
        tree = self.begin(net, number, round, all_rows, statistics, self.slots(len(gh)))
        grower, width = self.grower(gh.sum(axis=0)), gh.shape[1]
        while len(grower.nodes):
            sums, allowed = self.sums(net, tree, grower.nodes, grower.to_build)
            hist = np.ascontiguousarray(sums[..., :width])
            if self.together:
                hist = hist.reshape(*hist.shape[:2], -1, 2)
            self.split(net, tree, grower.choose_splits(hist, allowed))
        grown = grower.finish()
        if self.sums_differ and not self.together:
            # The active party knows the exact sums of the leaves from its gradients.
            leaves = grower.leaves()[0]
            exact = node_sums(gh, tree.rows.rows, tree.rows.ranges(leaves))
            grown = grower.finish(leaf_values(exact, self.params, self.bits))
        for node, threshold in tree.thresholds.items():
            grown.threshold[node] = threshold
        return grown, tree.rows

    def grower(self, root: NDArray[np.int64]) -> TreeGrower:
        """Return the split finder, given the sums over all rows, shape (2 K,)."""
        # Otherwise the bins of a child differ from those of its parent, so that the sums of its
        # sibling are not the difference of the two.
        same_bins = self.params.candidates == "global"
        settings: Any = {"bits": self.bits, "subtract": same_bins}
        if self.together:
            return MultiOutputGrower(self.cuts, self.params, root.reshape(-1, 2), **settings)
        complete = self.schema.complete if self.sums_differ else None
        return TreeGrower(self.cuts, self.params, root, complete=complete, **settings)

    def one_hot(self, net: Network) -> NDArray[np.int64]:
        """Return one-hot labels, shape (n, K). The width is 0 unless a defense counts classes."""
        classes = len(self.schema.classes) if net.defense.requirements.class_counts else 0
        labels: Any = self.local_data.y
        one_hot: NDArray[np.int64] = (labels[:, None] == np.arange(classes)).astype(np.int64)
        return one_hot

    def slots(self, rows: int) -> Slots:
        """Return the plaintext layout of gradient and hessian sums, from public bounds on a row."""
        if self.local_data.weight is None and not isinstance(self.objective, SquaredError):
            return Slots(1 << max(self.bits), rows)  # |g| <= 1 and 0 <= h <= 1 of every row
        # Weights or squared errors have no public bound. The slots fit any sum in an int64.
        return Slots((2**63 - 1) // rows, rows)


@register.protocol("secureboost")
@dataclass(frozen=True, kw_only=True)
class SecureBoost(VerticalProtocol, BoostingProtocol):
    """SecureBoost (Cheng et al. 2021): vertical boosting with encrypted gradients.

    The active party encrypts the gradient and hessian of every row. The passive parties add the
    ciphertexts over the bins of their columns. The active party decrypts the sums and chooses a
    split, and the owner of the split column answers which rows go left. The trees equal those of
    the centralised engine with the same column samples. Default values follow the code of Takahashi
    et al. (2023) where it defines them.

    Parameters
    ----------
    max_bin : int
        Number of candidate splits of a column (quantiles).
    candidates : {"global", "node-quantiles"}
        Quantiles over all rows, as in SecureBoost, or over the rows of each node, as in the code of
        Takahashi et al.
    multi_output : bool
        With more than two classes, grow one tree per round with a value for every class, as in that
        code. Otherwise one tree per class.
    pure_leaves : bool
        Make every node of a single class a leaf, as in that code. XGBoost splits such a node while
        the gain is positive.
    colsample_bytree : float
        Share of its columns that each party draws for each tree.
    """

    trees: int = 5
    max_bin: int = 32
    candidates: str = one_of(CANDIDATES, default="global")
    multi_output: bool = flag(False)
    pure_leaves: bool = flag(False)
    min_child_weight: float = 0.0
    colsample_bytree: float = 0.8

    info = replace(
        VerticalProtocol.info,
        capabilities=VerticalProtocol.info.capabilities | {"gradient_clip"},
        deployments={
            "secretflow": Deployed(
                "Sgb(heu).train(params, dataset, label), with a Paillier HEU",
                {
                    "trees": "num_boost_round={}",
                    "max_depth": "max_depth={}",
                    "learning_rate": "learning_rate={}",
                    "reg_lambda": "reg_lambda={}",
                    "gamma": "gamma={}",
                    "colsample_bytree": "colsample_by_tree={}",
                    "max_bin": "sketch_eps=1/{}",
                },
                {
                    "candidates": "global",
                    "multi_output": False,
                    "pure_leaves": False,
                    "subsample": 1.0,
                },
            )
        },
    )
    party_types = {ACTIVE: BoostingActive, PASSIVE: Passive}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multi_output and (self.max_leaves or self.grow_policy != "depthwise"):
            raise UsageError("multi_output trees grow level by level; leave max_leaves out")
        if self.candidates == "node-quantiles" and self.grow_policy != "depthwise":
            raise UsageError(
                f"grow_policy={self.grow_policy!r}: candidates=node-quantiles exist for one "
                "level only; take candidates=global, or leave grow_policy out"
            )
        for name in ("colsample_bylevel", "colsample_bynode"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name}={getattr(self, name)}: every party draws its columns once for each "
                    "tree; use colsample_bytree"
                )

    def missing_requirement(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return why a defense cannot clip the rows, None if it can or no defense clips."""
        reason = super().missing_requirement(schema, defense)
        if reason is not None or defense.requirements.gradient_clip is None:
            return reason
        clips = next(p for p in defense.parts if p.requirements.gradient_clip is not None)
        unbounded = [] if schema.classes else ["a numeric target"]
        unbounded += (
            ["class counts in addition to gradients"] if defense.requirements.class_counts else []
        )
        named = {"subject": clips.name, "protocol": self.name}
        return Reason("unbounded-rows", what=unbounded[0], **named) if unbounded else None

    def local_bins(self, local_data: LocalData) -> LocalBins:
        """Return the candidate splits of a party's columns."""
        kind = LocalBins if self.candidates == "global" else NodeQuantiles
        return kind(local_data, self.max_bin)

    @property
    def column_share(self) -> float | None:
        """Share of its columns that each party draws for a tree. None for all."""
        return None if self.colsample_bytree == 1 else float(self.colsample_bytree)

    def limits(self, schema: Schema, requirements: Requirements) -> Limits:
        """Return the limits within which a passive party answers."""
        objective = self.objective_for(schema)
        together = self.multi_output and objective.n_outputs > 1
        limits = Limits(
            self.trees if together else self.trees * objective.n_outputs,
            self.max_depth,
            self.max_leaves,
            2 * objective.n_outputs if together else 2,
            len(schema.classes),
        )
        if requirements.gradient_clip is None:
            return limits
        # Only with proofs can a passive party rely on the ranges of encrypted statistics.
        ranges = self.ranges(objective, requirements.gradient_clip) * (limits.statistics // 2)
        proven = ranges if requirements.range_proofs else ()
        return replace(limits, bits=FIXED_POINT_BITS, ranges=proven)

    def ranges(self, objective: Objective, clip: float) -> tuple[tuple[int, int], ...]:
        """Return the range of a clipped gradient and of a clipped hessian, in fixed-point units."""
        g, h = (int(np.ldexp(end, FIXED_POINT_BITS)) for end in clipped_bounds(objective, clip))
        return (-g, g), (0, h)
