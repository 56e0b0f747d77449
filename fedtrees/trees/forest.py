"""Trees and forests as flat arrays, in XGBoost's node order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Tree:
    """One binary decision tree; node 0 is the root, children are allocated in pairs, level by level.

    Attributes
    ----------
    feature : int32 array, shape (n_nodes,)
        Split column, -1 at a leaf.
    threshold : float32 array, shape (n_nodes,)
        A row goes left iff ``x < threshold`` (float32 comparison); 0 at a leaf.
    left, right : int32 array, shape (n_nodes,)
        Children, -1 at a leaf.
    default_left : bool array, shape (n_nodes,)
        Where a missing value goes.
    value : float32 array, shape (n_nodes,)
        Leaf output in log-odds, learning rate included; 0 at an inner node.
    g, h : float64 array, shape (n_nodes,), or None
        Sums of gradients and hessians of the training rows in the node, where known.
    gain : float32 array, shape (n_nodes,), or None
        Split gain, where known; 0 at a leaf.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    g: NDArray[np.float64] | None = None
    h: NDArray[np.float64] | None = None
    gain: NDArray[np.float32] | None = None

    @property
    def leaves(self) -> NDArray[np.intp]:
        """Node numbers of the leaves, ascending."""
        return np.flatnonzero(self.feature < 0)

    def __len__(self) -> int:
        return int(self.feature.shape[0])


@dataclass(frozen=True, eq=False)
class Forest:
    """An additive ensemble for one output (binary log-odds).

    Attributes
    ----------
    trees : tuple of Tree
    base_margin : float32
        Log-odds every row starts from.
    """

    trees: tuple[Tree, ...]
    base_margin: np.float32

    def apply(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T)."""
        raise NotImplementedError

    def margin(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """Return log-odds, float32, shape (n,): float32 sums in tree order, as XGBoost does."""
        raise NotImplementedError

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return the probability of class 1, float64, shape (n,)."""
        raise NotImplementedError
