"""Rows through trees, and the gradients they bring, in the float32 arithmetic of the training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.trees.forest import Tree


@njit(cache=True)
def _apply(X, feature, threshold, left, right, default_left, out):  # type: ignore[no-untyped-def]
    for i in range(X.shape[0]):
        node = 0
        while feature[node] >= 0:
            x = X[i, feature[node]]
            go_left = default_left[node] if np.isnan(x) else x < threshold[node]
            node = left[node] if go_left else right[node]
        out[i] = node


def leaf_of(tree: Tree, X: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the leaf node of every row, int32, shape (n,)."""
    out = np.zeros(X.shape[0], dtype=np.int32)
    _apply(X, tree.feature, tree.threshold, tree.left, tree.right, tree.default_left, out)
    return out


def gradients(
    margin: NDArray[np.float32], y: NDArray[Any], constant_hessian: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return first and second derivatives of the log loss (Di Gennaro et al. 2025, Eq. 3).

    Computed in float32, as training libraries do, and returned as float64, shape (n,).
    """
    one = np.float32(1)
    with np.errstate(over="ignore"):
        p = one / (one + np.exp(-margin.astype(np.float32)))
    g = (p - y.astype(np.float32)).astype(np.float64)
    h = np.ones_like(g) if constant_hessian else np.maximum(p * (one - p), np.float32(1e-16))
    return g, h.astype(np.float64)


def sums_by_leaf(
    leaf: NDArray[Any], weight: NDArray[np.float64], n_nodes: int
) -> NDArray[np.float64]:
    """Return the sum of ``weight`` per node number, float64, shape (n_nodes,)."""
    return np.bincount(leaf, weights=weight, minlength=n_nodes).astype(np.float64)
