"""The active party's share of a vertical model, of which no party has all thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.trees.boosted.losses import named_objective


@dataclass(frozen=True, eq=False)
class HeldModel(Message):
    """The trees as the active party knows them, concatenated. It notes them and never sends them.

    Attributes
    ----------
    objective : str
        Objective of boosted trees. Empty for a random forest, which averages its trees.
    base_margin : float32 array, shape (K,)
        Initial prediction of boosted trees.
    sizes : int64 array, shape (T,)
        Number of nodes of each tree.
    feature : int32 array, shape (n_nodes,)
        Position of the split column in the schema, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        At a split by a column of the active party, a row goes left if its value is below the
        threshold. At a split of a passive party, the bin plus 1, because only that party knows the
        threshold.
    left, right : int32 array, shape (n_nodes,)
        Children, numbered within the tree.
    default_left : bool array, shape (n_nodes,)
        Whether rows with a missing value go left.
    value : array, shape (n_nodes,) or (n_nodes, K)
        Margins of boosted trees, or class probabilities of a forest.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL, Reveal.LABELS})
    objective: str
    base_margin: NDArray[np.float32]
    sizes: NDArray[np.int64]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[Any]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Position of the root of each tree in the node arrays, int64, shape (T,)."""
        return np.cumsum(self.sizes) - self.sizes

    def scores(self, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the scores of rows from the leaves that they reach.

        Parameters
        ----------
        leaves : int array, shape (n, T)
            Leaf of every row in every tree, numbered within the tree.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
            Bit for bit the predictions of the parties. Shape (n,) contains the probability of class
            1, or the predicted value.
        """
        values: Sequence[Any] = [
            self.value[s + leaf] for s, leaf in zip(self.starts, leaves.T, strict=True)
        ]
        if not self.objective:
            total = np.zeros((len(leaves), self.value.shape[1]))
            for output in values:
                # Outputs are added in the order of the trees, as the parties do, so that all bits
                # are equal.
                total += output
            total /= len(self.sizes)
            return total[:, 1] if total.shape[1] == 2 else total
        margin = np.repeat(self.base_margin[:, None], len(leaves), axis=1)
        for t, output in enumerate(values):
            if output.ndim == 2:
                margin += output.T
            else:
                margin[t % len(margin)] += output
        return named_objective(self.objective, len(margin)).predict(margin)
