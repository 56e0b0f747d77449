"""Chosen splits of the nodes of a level."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
