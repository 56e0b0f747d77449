"""A model that nobody holds whole: the active party's part of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.messages.vertical_model import HeldModel
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.multi_output import MultiOutputForest
from fedtrees.trees.forest.random_forest import RandomForest
from fedtrees.trees.partition import RowPartition


@dataclass(frozen=True, eq=False)
class VerticalModel:
    """Trees as the active party knows them.

    `forest`: Features are positions in the schema. The threshold of a split that another party owns
    tells its bin, and no value: bin b reads b + 1.
    `owners`: Who holds each column.
    `rows`: Where the training rows of each tree are: the active party moved them itself.
    `y`: array, shape (n,). The labels that the trees were grown on, as defenses changed them.
    `grafts`: By tree and node: a tree over the active party's columns that speaks for all rows in
    that node. They are routed through the trees as grown all the same.
    """

    forest: Forest | MultiOutputForest | RandomForest
    owners: tuple[str, ...]
    rows: tuple[RowPartition, ...]
    y: NDArray[Any]
    grafts: Mapping[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def trees(self) -> tuple[Any, ...]:
        """The trees."""
        return self.forest.trees

    def __len__(self) -> int:
        return len(self.forest.trees)

    def predict(self, X: NDArray[np.float32]) -> NDArray[np.float64]:
        """Refuse: it takes all parties.

        Raises `ProtocolError`.
        """
        raise ProtocolError(
            "nobody holds this model whole; its parties predict together: `Training.predict`"
        )

    def scores(
        self, leaves: NDArray[np.int32], X: NDArray[np.float32], columns: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return predictions of rows by where they ended up.

        `leaves`: int32 array, shape (n, T).
        `X`: float32 array, shape (n, c). The active party's columns.
        `columns`: intp array, shape (c,). Their positions in the schema.
        """
        outputs = [self._outputs(t, leaves[:, t], X, columns) for t in range(len(self))]
        if isinstance(self.forest, RandomForest):
            total = np.zeros((len(leaves), self.forest.n_classes))
            for found in outputs:
                total += found
            total /= len(self)
            return total[:, 1] if total.shape[1] == 2 else total
        margin = np.repeat(self.forest.base_margin[:, None], len(leaves), axis=1)
        for t, found in enumerate(outputs):
            if found.ndim == 2:  # a value for every class
                margin += found.T
            else:
                margin[t % len(margin)] += found
        return self.forest.objective.predict(margin)

    def as_message(self) -> HeldModel:
        """Return what the active party knows of the trees, without grafts."""
        forest = self.forest
        names = ("feature", "threshold", "left", "right", "default_left")
        whole = {n: np.concatenate([getattr(t, n) for t in self.trees]) for n in names}
        if isinstance(forest, RandomForest):
            value = [t.probability for t in self.trees]
            objective, margin = "", np.zeros(0, dtype=np.float32)
        else:
            value = [t.value for t in self.trees]
            objective, margin = forest.objective.name, forest.base_margin
        return HeldModel(
            objective=objective,
            base_margin=margin,
            sizes=np.array([len(t) for t in self.trees], dtype=np.int64),
            value=np.concatenate(value),
            **whole,
        )

    def _outputs(
        self, t: int, leaf: NDArray[np.int32], X: NDArray[np.float32], columns: NDArray[np.intp]
    ) -> NDArray[Any]:
        """Return what a tree says of rows, its grafts included."""
        tree = self.trees[t]
        values = tree.probability if isinstance(self.forest, RandomForest) else tree.value
        found: NDArray[Any] = values[leaf]
        for (at, node), graft in self.grafts.items():
            if at == t:
                below = np.isin(leaf, descendants(tree, node))
                wide = np.full((int(below.sum()), len(self.owners)), np.nan, dtype=np.float32)
                wide[:, columns] = X[below]
                found[below] = graft(wide)
        return found


def descendants(tree: Any, node: int) -> list[int]:
    """Return a node and all below it."""
    found = [node]
    for inner in found:
        if tree.feature[inner] >= 0:
            found += [int(tree.left[inner]), int(tree.right[inner])]
    return found
