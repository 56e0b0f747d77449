"""Canaries for an audit of label differential privacy in vertical protocols.

All rows are on a line. A tree that grows until its leaves are pure splits wherever the label
changes, which a passive party sees from the rows of the nodes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.vertical import visible_nodes
from fedtrees.privacy_audit.canaries import Canaries, register_audit_setting
from fedtrees.protocols.settings import ACTIVE, PASSIVE
from fedtrees.protocols.training import Training
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.vertical.vertical_forest import VerticalForest
from fedtrees.protocols.views import view_of

_KNOWN = 64  # rows of known class 1, which decide which of two labels is class 1
_FIRST_PASSIVE = f"{PASSIVE}-1"


@dataclass(frozen=True)
class LabelCanaries(Canaries):
    """Rows on a line in one passive column, whose labels are the canaries' coin flips.

    A fully grown tree separates neighbours with different labels. A passive party sees which rows
    share a node.
    """

    max_canaries: int = 128
    runs: int = 16

    schema = Schema(
        (Feature("own", low=0.0, high=1.0), Feature("x", low=0.0, high=1.0)), "y", ("0", "1")
    )

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows on a line with labels to be set, and rows of class 1 beyond their end."""
        x = np.linspace(0, 1, count + _KNOWN, dtype=np.float32)
        X = np.stack([np.zeros_like(x), x], axis=1)
        return (
            Table(X[:count], np.zeros(count, np.int64)), Table(X[count:], np.ones(_KNOWN, np.int64))
        )  # fmt: skip

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return labels and a constant column of the active party, and the passive party's line."""
        X, y = np.concatenate([rows.X, companions.X]), np.concatenate([is_included, companions.y])
        ids = np.arange(len(X))
        constant_column, line = (np.array([c]) for c in (0, 1))
        return {
            ACTIVE: LocalData(ids, constant_column, X[:, constant_column], y.astype(np.int64)),
            _FIRST_PASSIVE: LocalData(ids, line, X[:, line]),
        }

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Predict one label for the rows of a leaf, and the other label for the next leaf."""
        local_data = self.distribute(rows, np.zeros(len(rows), bool), companions)
        leaf, size = np.zeros(len(rows) + _KNOWN), np.full(len(rows) + _KNOWN, np.inf)
        view = view_of(training, (_FIRST_PASSIVE,), local_data)
        for _, node, inside in visible_nodes(view):
            # The smallest visible node of a row is its leaf.
            smaller = inside[len(inside) < size[inside]]
            leaf[smaller], size[smaller] = node, len(inside)
        # Neighbours in different leaves have different labels in a tree with pure leaves.
        side = np.cumsum(np.diff(leaf, prepend=leaf[0]) != 0) % 2
        ones = side[len(rows) :].mean() > 0.5
        return np.where(side[: len(rows)] == ones, 1.0, -1.0)


@register_audit_setting(SecureBoost)
def choose_boosting_setting(
    protocol: SecureBoost, defense: Composition
) -> tuple[SecureBoost, LabelCanaries]:
    """Grow one tree until each leaf has a single class."""
    grown = replace(
        protocol, trees=1, max_depth=30, max_leaves=0, grow_policy="depthwise", max_bin=256,
        candidates="global", multi_output=False, pure_leaves=True, subsample=1.0,
        colsample_bytree=1.0, reg_lambda=0.0, reg_alpha=0.0, gamma=0.0, min_child_weight=0.0,
        base_score=0.5, crypto="ideal",
    )  # fmt: skip
    return grown, LabelCanaries()


@register_audit_setting(VerticalForest)
def choose_vertical_forest_setting(
    protocol: VerticalForest, defense: Composition
) -> tuple[VerticalForest, LabelCanaries]:
    """Grow one tree of all rows until each leaf has a single class."""
    grown = replace(
        protocol, trees=1, max_depth=None, min_samples_split=2, min_samples_leaf=1, max_bin=256,
        max_features=None, tree_features=None, bootstrap=False, max_samples=None,
        crypto="ideal",
    )  # fmt: skip
    return grown, LabelCanaries()
