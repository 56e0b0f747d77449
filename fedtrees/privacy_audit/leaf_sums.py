"""Canaries for an audit of the leaf sums of `dp-gbdt`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import ProtocolError
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.privacy_audit.canaries import (
    SEPARATE_CANARIES,
    SEPARATE_RUNS,
    SEPARATING_DEPTH,
    Canaries,
    alone_in_leaf,
    register_audit_setting,
    register_canaries,
    spare_noise,
)
from fedtrees.protocols.horizontal.dp_gbdt import DPGBDT
from fedtrees.protocols.training import Training
from fedtrees.trees.boosted.losses import objective_of

_COLUMNS = 64
_CROWD = 8192  # rows of class 0


@dataclass(frozen=True)
class LeafSumCanaries(Canaries):
    """Rows of class 1 among many rows of class 0, so that their gradients are near the bound.

    Parameters
    ----------
    norms : (float, float)
        Bounds on a row's gradient and hessian.
    scales : (float, float)
        Scales of the Gaussian noise on their sums in a leaf.
    separate : bool
        Include so few canaries that most of them share their leaf with no other one, and one
        other row.
    """

    norms: tuple[float, float]
    scales: tuple[float, float]
    separate: bool = False

    runs = SEPARATE_RUNS
    schema = Schema(tuple(Feature(f"x{i}", low=0.0, high=1.0) for i in range(_COLUMNS)), "y")

    @property
    def max_canaries(self) -> int:  # type: ignore[override]
        """Number of canaries that the noise of some leaves hides, from 64 to 2048."""
        if self.separate:
            return SEPARATE_CANARIES
        return int(np.clip(8 * (self.scales[0] / self.norms[0]) ** 2, 64, 2048))

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries of class 1, and a crowd of class 0."""
        # Many rows of class 0 keep the predictions near class 0, where gradients of class 1 are
        # large.
        crowd = 1 if self.separate else _CROWD
        X = rng.random((count + crowd, _COLUMNS), dtype=np.float32)
        y = (np.arange(len(X)) < count).astype(np.int64)
        return Table(X[:count], y[:count]), Table(X[count:], y[count:])

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare the noisy sums of every leaf with those of the crowd and half of the canaries."""
        n, scores = len(rows), np.zeros(len(rows))
        for leaf, which, seen, b in self._sums(training, Table.concat([rows, companions])):
            # A canary takes part with probability 1/2, the crowd always.
            share = np.where(np.arange(len(b)) < n, 0.5, 1.0)
            rest = seen - np.bincount(leaf, b * share, len(seen))
            # The unknown presence of the other canaries adds variance b^2 / 4 each.
            spread = np.bincount(leaf[:n], b[:n] ** 2 / 4, len(seen))
            contribution, canary_leaf = b[:n], leaf[:n]
            variance = self.scales[which] ** 2 + spread[canary_leaf] - contribution**2 / 4
            # Log odds between two normal distributions whose means differ by the contribution.
            # Half of the contribution was already subtracted.
            scores += rest[canary_leaf] * contribution / variance
        is_alone = alone_in_leaf(training.model.apply(rows.X)[:, 0]) if self.separate else 1
        return np.asarray(scores * is_alone)

    def residuals(
        self, training: Training, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> NDArray[np.float64]:
        """Compare the noisy sums of all leaves with those of the included rows."""
        parts, included = [np.zeros(0)], Table.concat([rows.take(is_included), companions])
        trees = training.model.trees
        for k, (leaf, which, seen, b) in enumerate(self._sums(training, included)):
            difference = seen - np.bincount(leaf, b, len(seen))
            parts.append(difference[trees[k // 2].leaves] / self.scales[which])
        return np.concatenate(parts) / spare_noise(training)

    def _sums(
        self, training: Training, table: Table
    ) -> Iterator[tuple[NDArray[np.int32], int, NDArray[Any], NDArray[np.float64]]]:
        """Yield leaf of each row, index of the sum, noisy sums by node, contribution of each row.

        The index is 0 for gradients and 1 for hessians, of every tree.
        """
        forest = training.model
        if any(tree.g is None for tree in forest.trees):
            raise ProtocolError("a defense keeps the sums of leaves, which this audit reads")
        margin = np.repeat(forest.base_margin[:, None], len(table), axis=1)
        for tree, leaf in zip(forest.trees, forest.apply(table.X).T, strict=True):
            gh = forest.objective.gradients(margin, table.y)[0].astype(np.float64)
            for which, seen in enumerate((tree.g, tree.h)):
                # Contributions are clipped in the same way as in training.
                norm = self.norms[which]
                yield leaf, which, seen, np.clip(gh[:, which], -norm, norm)
            margin[0] += tree.value[leaf]


@register_canaries(DPGBDT)
def create_leaf_sum_canaries(protocol: DPGBDT) -> LeafSumCanaries | None:
    """Create canaries for an audit of leaf sums. None if the objective has several outputs."""
    objective = objective_of(protocol.objective, LeafSumCanaries.schema.classes)
    if objective.n_outputs > 1:
        return None
    noise = protocol.leaf_noise(objective)
    return LeafSumCanaries(noise.norms, noise.scales)


@register_audit_setting(DPGBDT)
def choose_leaf_sum_setting(
    protocol: DPGBDT, defense: Composition
) -> tuple[DPGBDT, LeafSumCanaries] | None:
    """Spend the budget on one deep tree, so that a leaf has one row with a large gradient."""
    deep = replace(
        protocol, trees=1, max_depth=SEPARATING_DEPTH, features_per_tree=0, base_score=0.001,
        max_bin=2,
    )  # fmt: skip
    canaries = create_leaf_sum_canaries(deep)
    return None if canaries is None else (deep, replace(canaries, separate=True))
