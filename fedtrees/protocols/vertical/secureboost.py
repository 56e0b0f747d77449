"""`secureboost`: boosting over columns, with encrypted gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.holding import Holding
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.crypto.slots import Slots
from fedtrees.protocols.horizontal.boosting_protocol import BoostingProtocol
from fedtrees.protocols.vertical.active import Active
from fedtrees.protocols.vertical.columns import GlobalBins
from fedtrees.protocols.vertical.model import VerticalModel
from fedtrees.protocols.vertical.passive import Passive
from fedtrees.protocols.vertical.settings import ACTIVE, VerticalProtocol
from fedtrees.trees.boosted.boosting import checked_weights
from fedtrees.trees.boosted.fixed_point import to_fixed, weighted
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.grower import TreeGrower
from fedtrees.trees.boosted.losses import SquaredError
from fedtrees.trees.boosted.sampling import drop_rows
from fedtrees.trees.partition import RowPartition


class BoostingActive(Active):
    """The active party of `secureboost`."""

    params: SecureBoost

    def train(self, net: Network) -> VerticalModel:
        """Boost tree by tree, level by level."""
        y, weight = self.held.y, self.held.weight
        assert y is not None
        self.objective = self.params.objective_for(self.schema)
        self.objective.check(y)
        if weight is not None:
            checked_weights(weight, len(y))
        self.settle(net)
        totals, score = self.objective.target_sums(y, weight), self.params.base_score
        self.bits = self.objective.bits(totals)
        start = self.objective.start(totals) if score is None else self.objective.base_margin(score)
        margin = np.repeat(start[:, None], len(y), axis=1)
        trees: list[Tree] = []
        rows: list[RowPartition] = []
        for round in range(self.params.trees):
            units = to_fixed(
                weighted(self.objective.gradients(margin, y), weight, self.bits), self.bits
            )
            drop_rows(units, self.params.subsample, self.streams, round)
            for k, gh in enumerate(units):
                tree, partition = self.grow(net, len(trees), np.ascontiguousarray(gh))
                leaves = tree.leaves.astype(np.int32)
                partition.add_to(margin[k], leaves, tree.value[leaves])
                trees.append(tree)
                rows.append(partition)
        forest = Forest(tuple(trees), start, self.objective)
        return VerticalModel(forest, tuple(self.owner), tuple(rows))

    def grow(self, net: Network, number: int, gh: NDArray[np.int64]) -> tuple[Tree, RowPartition]:
        """Grow one tree; rows that a round leaves out bring zeros, and nobody else can tell."""
        every = np.arange(len(gh), dtype=np.int32)
        tree = self.begin(net, number, every, gh, self.slots(len(gh)))
        grower = TreeGrower(self.cuts, self.params, gh.sum(axis=0), bits=self.bits)
        while len(grower.nodes):
            hist, known = self.sums(net, tree, grower.nodes, grower.to_build)
            mask = net.allowed_splits(number, len(grower.nodes), self.cuts.total_bins)
            if not known.all():
                shape = (len(grower.nodes), len(known))
                mask = np.broadcast_to(known, shape) if mask is None else mask & known
            self.split(net, tree, grower.decide(hist, mask))
        return grower.finish(), tree.rows

    def slots(self, rows: int) -> Slots:
        """Return places for sums of gradients and hessians, as public knowledge bounds them."""
        if self.held.weight is None and not isinstance(self.objective, SquaredError):
            return Slots(1 << max(self.bits), rows)  # |g| <= 1 and 0 <= h <= 1 of every row
        return Slots((2**63 - 1) // rows, rows)


@register.protocol("secureboost")
@dataclass(frozen=True, kw_only=True)
class SecureBoost(VerticalProtocol, BoostingProtocol):
    """SecureBoost (Cheng et al. 2021): boosting over columns.

    The active party encrypts every row's gradient and hessian; passive parties add them over their
    bins; the active party opens the sums, picks a split, and the owner of its column tells who goes
    left. It grows the trees of the central engine, given the same columns drawn. Defaults are those
    of the code of Takahashi et al. (2023) where it has them.

    Parameters
    ----------
    max_bin : int
        Candidate splits of a column, quantiles over all rows.
    colsample_bytree : float
        Share of its columns that each party draws for each tree.
    """

    trees: int = 5
    max_bin: int = 32
    min_child_weight: float = 0.0
    colsample_bytree: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("colsample_bylevel", "colsample_bynode"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name}={getattr(self, name)}: every party draws its columns once for each "
                    "tree; use colsample_bytree"
                )

    def party(
        self, name: str, role: str, held: Holding | None, schema: Schema, defense: Composition
    ) -> Active | Passive:
        """Make the active party or a passive one."""
        assert held is not None
        bins, share = GlobalBins(held, self.max_bin), self.colsample_bytree
        share_or_all = None if share == 1 else float(share)
        if role == ACTIVE:
            return BoostingActive(name, held, bins, share_or_all, self, schema)
        return Passive(name, held, bins, share_or_all)
