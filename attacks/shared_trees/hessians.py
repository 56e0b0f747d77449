"""Hessian sums from weights and gains: what masking ``sum_hessian`` leaves open.

NVFlare's bagging overwrites ``sum_hessian`` with 1 and leaves ``base_weights``, leaf values and
``loss_changes``. With w = -G / (H + lambda) of a node and of its children,

    w_L (H_L + lambda) + w_R (H_R + lambda)     = w (H_L + H_R + lambda)
    w_L^2 (H_L + lambda) + w_R^2 (H_R + lambda) = w^2 (H_L + H_R + lambda) + gain

(gradients add up; XGBoost's gain) are two linear equations in the hessian sums of the leaves below
each split: twice as many as there are leaves, less two. Not in a paper.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.forest import Tree

Floats = NDArray[np.float64]

FLOAT32 = 6e-8  # relative error of weights and gains
PASSES = 3


def is_masked(sum_hessian: NDArray[np.float32]) -> bool:
    """Tell whether all sums were overwritten by one number; of a tree, no two sums are equal."""
    return len(sum_hessian) > 1 and bool(np.all(sum_hessian == sum_hessian[0]))


def hessians_from_gains(tree: Tree, weight: Floats, reg_lambda: float) -> Floats | None:
    """Return the hessian sums of all nodes, float64, shape (n_nodes,); None where none fit.

    Parameters
    ----------
    tree : Tree
        With gains.
    weight : float64 array, shape (n_nodes,)
        ``-G / (H + lambda)`` of every node, without learning rate.
    reg_lambda : float
    """
    inner, leaves = np.flatnonzero(tree.feature >= 0), tree.leaves
    if tree.gain is None or not len(inner):
        return None
    below = _leaves_below(tree)
    left, right = below[tree.left[inner]], below[tree.right[inner]]
    w, wl, wr = weight[inner], weight[tree.left[inner]], weight[tree.right[inner]]
    rows, sides, scales = [], [], []
    for power in (1, 2):
        a, b, c = w**power, wl**power, wr**power
        gain = tree.gain[inner].astype(np.float64) if power == 2 else 0.0
        rows.append(left * (b - a)[:, None] + right * (c - a)[:, None])
        sides.append(reg_lambda * (a - b - c) + gain)
        scales.append(np.maximum(np.abs(b) + np.abs(c), np.abs(a)))
    A, y, scale = np.concatenate(rows), np.concatenate(sides), np.concatenate(scales)
    size = np.ones(2 * len(inner))
    for _ in range(PASSES):  # an equation is off by a float32's share of what it adds up
        error = FLOAT32 * scale * size + 1e-12
        h = np.linalg.lstsq(A / error[:, None], y / error, rcond=None)[0]
        size = np.tile(np.maximum((left + right) @ h, 1.0) + reg_lambda, 2)
    if not np.isfinite(h).all() or (h <= 0).any():
        return None
    assert len(h) == len(leaves)
    return np.asarray(below @ h)


def _leaves_below(tree: Tree) -> Floats:
    """Return which leaves lie in each node's subtree, 0 or 1, shape (n_nodes, J)."""
    leaves = tree.leaves
    out = np.zeros((len(tree), len(leaves)))
    out[leaves, np.arange(len(leaves))] = 1.0
    for node in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        out[node] = out[tree.left[node]] + out[tree.right[node]]
    return out
