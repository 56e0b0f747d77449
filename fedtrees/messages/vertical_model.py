"""What the active party knows of a model that nobody holds whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.messages import Message, Reveal
from fedtrees.trees.boosted.losses import named_objective


@dataclass(frozen=True, eq=False)
class HeldModel(Message):
    """The trees as the active party holds them, end to end; it notes them, and nothing crosses."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.MODEL, Reveal.LABELS})
    objective: str  # of boosted trees; empty: a forest that averages
    base_margin: NDArray[np.float32]  # shape (K,): of boosted trees
    sizes: NDArray[np.int64]  # shape (T,): nodes of each tree
    feature: NDArray[np.int32]  # shape (n_nodes,): position in the schema; -1: a leaf
    # shape (n_nodes,): of own splits: a row goes left iff its value is below. Of another party's:
    # the bin, plus 1.
    threshold: NDArray[np.float32]
    # left, right, shape (n_nodes,): numbers within the tree
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]  # shape (n_nodes,)
    value: NDArray[Any]  # array, shape (n_nodes,), or (n_nodes, K): margins, or class probabilities

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each tree begins, int64, shape (T,)."""
        return np.cumsum(self.sizes) - self.sizes

    def scores(self, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the scores of rows by their leaves.

        `leaves`: int array, shape (n, T).

        Returns: float64 array, shape (n,) or (n, K). Bit for bit what the parties predict.
        """
        values: Sequence[Any] = [
            self.value[s + leaf] for s, leaf in zip(self.starts, leaves.T, strict=True)
        ]
        if not self.objective:
            total = np.zeros((len(leaves), self.value.shape[1]))
            for found in values:
                total += found
            total /= len(self.sizes)
            return total[:, 1] if total.shape[1] == 2 else total
        margin = np.repeat(self.base_margin[:, None], len(leaves), axis=1)
        for t, found in enumerate(values):
            if found.ndim == 2:
                margin += found.T
            else:
                margin[t % len(margin)] += found
        return named_objective(self.objective, len(margin)).predict(margin)
