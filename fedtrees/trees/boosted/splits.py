"""Leaf weights and gains of nodes as in XGBoost, and the chosen splits of the nodes of a level.

Weight and gain follow from the gradient and hessian sums of a node (Chen and Guestrin, "XGBoost: a
scalable tree boosting system", 2016, equations 5 to 7).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.histogram import UNIT_BITS, Bits, from_fixed
from fedtrees.trees.boosted.params import TreeParams


def node_weights(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``-G / (H + lambda)``, float32, shape (...), the step that minimises the loss.

    With an L1 penalty, alpha is first subtracted from ``|G|``, down to 0. The weight is 0 if the
    hessian sum is below `min_child_weight`.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    return weights_of(values[..., 0], values[..., 1], params)


def weights_of(
    g: NDArray[np.float64], h: NDArray[np.float64], params: TreeParams
) -> NDArray[np.float32]:
    """Return the result of `node_weights`, given sums in float64.

    Parameters
    ----------
    g, h : float64 array, shape (...)
        Gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    """
    usable = (h > 0) & (h >= np.float32(params.min_child_weight))
    reg = np.where(usable, h + np.float64(np.float32(params.reg_lambda)), 1.0)
    weight: NDArray[np.float64] = np.where(usable, -np.sign(g) * _beyond(g, params) / reg, 0.0)
    return weight.astype(np.float32)


def node_gains(
    sums: NDArray[np.int64], params: TreeParams, bits: Bits = UNIT_BITS
) -> NDArray[np.float32]:
    """Return ``G^2 / (H + lambda)``, float32, shape (...), 0 if the hessian sum is not positive.

    Numerator and denominator are first rounded to float32, as in XGBoost.

    Parameters
    ----------
    sums : int64 array, shape (..., 2)
        Fixed-point gradient and hessian sums.
    params : TreeParams
        Hyperparameters.
    bits : Bits
        Binary places of the sums.
    """
    values = from_fixed(sums, bits)
    g, h = _beyond(values[..., 0], params), values[..., 1]
    reg = np.where(h > 0, h + np.float64(np.float32(params.reg_lambda)), 1.0).astype(np.float32)
    gain: NDArray[np.float32] = np.where(h > 0, (g * g).astype(np.float32) / reg, np.float32(0))
    return gain


def _beyond(g: NDArray[np.float64], params: TreeParams) -> NDArray[np.float64]:
    """Return ``max(|G| - alpha, 0)``: XGBoost's ThresholdL1 without its sign."""
    return np.maximum(np.abs(g) - np.float64(np.float32(params.reg_alpha)), 0.0)


@dataclass(frozen=True, eq=False)
class Splits:
    """One decision per node."""

    feature: NDArray[np.int32]  # shape (n_nodes,): split column, -1 if the node stays a leaf
    # shape (n_nodes,): rows of bins up to this one go left. -1: only missing values go left.
    bin: NDArray[np.int32]
    # Shape (n_nodes,): ``cuts.values`` of that bin. A row goes left if and only if ``x <
    # threshold``. 0 at a leaf, NaN if the split is by categories (its `bin` is -1).
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]  # shape (n_nodes,): direction of missing values
    gain: NDArray[np.float32]  # shape (n_nodes,): gain of the split, 0 at a leaf
    # left_sums, right_sums, shape (n_nodes, 2): fixed-point gradient and hessian sums of the
    # children, including missing values. 0 at a leaf.
    left_sums: NDArray[np.int64]
    right_sums: NDArray[np.int64]
    # Shape (n_nodes, width): categories that go right, by code, for splits by categories. None if
    # there is no such split.
    categories: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.feature.shape[0])

    @staticmethod
    def leaves(n: int, width: int | None = None) -> Splits:
        """Return decisions that split none of n nodes, as writeable arrays.

        With a width, `categories` has this width.
        """
        none, sums = np.full(n, -1, dtype=np.int32), np.zeros((n, 2), dtype=np.int64)
        return Splits(
            feature=none,
            bin=none.copy(),
            threshold=np.zeros(n, dtype=np.float32),
            default_left=np.zeros(n, dtype=bool),
            gain=np.zeros(n, dtype=np.float32),
            left_sums=sums,
            right_sums=sums.copy(),
            categories=None if width is None else np.zeros((n, width), dtype=bool),
        )

    def where(self, chosen: NDArray[Any]) -> Splits:
        """Return the splits of some nodes (mask or indices)."""
        selected: list[Any] = [None if a is None else a[chosen] for a in vars(self).values()]
        return Splits(*selected)

    def replace(self, chosen: NDArray[np.bool_], other: Splits) -> None:
        """Copy the decisions of `other` for some nodes, in place."""
        for f in fields(self):
            into, source = getattr(self, f.name), getattr(other, f.name)
            if into is not None:
                into[chosen] = 0 if source is None else source[chosen]
