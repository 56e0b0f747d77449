"""Labels that an audit of label-DP looks for: of a line of rows, which is cut where they change."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.vertical import visible_nodes
from fedtrees.protocols.canaries import Canaries
from fedtrees.protocols.views import view_of

_KNOWN = 64  # labels that everybody knows, to tell which class is which


@dataclass(frozen=True)
class LabelCanaries(Canaries):
    """Rows of one passive column, whose labels a tree grown out tells: it parts unlike neighbours.

    A passive party sees which rows are in which node. A canary's coin is its label.
    """

    most: int = 128
    runs: int = 16

    schema = Schema(
        (Feature("own", low=0.0, high=1.0), Feature("x", low=0.0, high=1.0)), "y", ("0", "1")
    )

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows in a line, labels to be set, and rows of class 1 beyond their end."""
        x = np.linspace(0, 1, count + _KNOWN, dtype=np.float32)
        X = np.stack([np.zeros_like(x), x], axis=1)
        return (
            Table(X[:count], np.zeros(count, np.int64)), Table(X[count:], np.ones(_KNOWN, np.int64))
        )  # fmt: skip

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return the labels with a column that tells nothing, and the line."""
        X, y = np.concatenate([rows.X, others.X]), np.concatenate([there, others.y])
        ids = np.arange(len(X))
        own, line = (np.array([c]) for c in (0, 1))
        return {
            "active": LocalData(ids, own, X[:, own], y.astype(np.int64)),
            "passive-1": LocalData(ids, line, X[:, line]),
        }

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Give neighbours in one leaf one label, and the next leaf the other."""
        held = self.held(rows, np.zeros(len(rows), bool), others)
        leaf, size = np.zeros(len(rows) + _KNOWN), np.full(len(rows) + _KNOWN, np.inf)
        view = view_of(training, ("passive-1",), held)
        for _, node, inside in visible_nodes(view):
            smaller = inside[len(inside) < size[inside]]
            leaf[smaller], size[smaller] = node, len(inside)
        side = np.cumsum(np.diff(leaf, prepend=leaf[0]) != 0) % 2
        ones = side[len(rows) :].mean() > 0.5
        return np.where(side[: len(rows)] == ones, 1.0, -1.0)
