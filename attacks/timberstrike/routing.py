"""Own rows through trees, and the gradients rows bring, in the arithmetic of the training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.losses import logistic_gradients


def gradients(
    margin: NDArray[np.float32], y: NDArray[Any], constant_hessian: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return first and second derivatives of the log loss (Di Gennaro et al. 2025, Eq. 3).

    Computed in float32, as training libraries do, and returned as float64, shape (n,).
    """
    gh = logistic_gradients(margin, y).astype(np.float64)
    return gh[:, 0], np.ones(len(gh)) if constant_hessian else gh[:, 1]


def sums_by_leaf(
    leaf: NDArray[Any], weight: NDArray[np.float64], n_nodes: int
) -> NDArray[np.float64]:
    """Return the sum of ``weight`` per node number, float64, shape (n_nodes,)."""
    return np.bincount(leaf, weights=weight, minlength=n_nodes).astype(np.float64)
