"""Trees and forests as flat arrays, in XGBoost's node order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.losses import LOGISTIC, Objective
from fedtrees.trees.routing import LeafRouting, TreeStructure


@dataclass(frozen=True, eq=False)
class Tree(TreeStructure):
    """One boosted tree.

    Attributes
    ----------
    feature, threshold, left, right, default_left : arrays, shape (n_nodes,)
        As in `TreeStructure`.
    value : float32 array, shape (n_nodes,), or (n_nodes, K) in a multi-output tree
        Leaf value in units of the margin, including the learning rate. 0 at an inner node.
    g, h : float64 array, shape (n_nodes,), or None
        Sums of gradients and hessians of the training rows in the node, if known.
    gain : float32 array, shape (n_nodes,), or None
        Gain of the split, if known. 0 at a leaf.
    categories : bool array, shape (n_nodes, width), or None
        Categories that go right, by code, if the split is by categories. Values that are not such a
        code go left, as in XGBoost. None if no split is by categories.
    """

    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    gain: NDArray[np.float32] | None = None
    categories: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Forest(LeafRouting):
    """A boosted ensemble with K outputs. Tree t adds to output ``t % K``.

    Raises
    ------
    DataError
        If the trees or base margins do not fit the number of outputs.
    """

    trees: tuple[Tree, ...]  # K trees per round
    base_margin: NDArray[np.float32]  # shape (K,): initial margins of every row
    objective: Objective = LOGISTIC  # converts margins to predictions and determines K

    def __post_init__(self) -> None:
        start = np.atleast_1d(np.asarray(self.base_margin, dtype=np.float32))
        k = self.objective.n_outputs
        if start.shape != (k,) or len(self.trees) % k:
            raise DataError(
                f"{len(self.trees)} trees and {len(start)} base margins do not fit {k} outputs"
            )
        object.__setattr__(self, "base_margin", start)

    @property
    def rounds(self) -> int:
        """Number of boosting rounds."""
        return len(self.trees) // self.objective.n_outputs

    def first(self, rounds: int) -> Forest:
        """Return the forest of the first rounds."""
        count = rounds * self.objective.n_outputs
        return Forest(self.trees[:count], self.base_margin, self.objective)

    def _margins(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return margins, float32, shape (K, n)."""
        X = self._routes.rows(X)
        out = np.repeat(self.base_margin[:, None], len(X), axis=1)
        for block, leaves in self._routes.blocks(X):
            for t, leaf in enumerate(leaves.T):
                # The order of the float32 additions is that of XGBoost.
                out[t % len(out), block] += self.trees[t].value[leaf]
        return out

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return margins, float32, shape (n,) if K is 1, else (n, K).

        They are float32 sums in the order of the trees, as in XGBoost. Parameters and errors as in
        `apply`.
        """
        out = self._margins(X)
        return out[0] if len(out) == 1 else np.ascontiguousarray(out.T)

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predictions of XGBoost's ``Booster.predict``, float64.

        Errors as in `apply`.

        The probability of class 1, shape (n,). With more than two classes, the probability of each,
        shape (n, K). For a regression, the value, shape (n,).
        """
        return self.objective.predict(self._margins(X))
