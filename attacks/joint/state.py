"""Rows on the grid and what follows from them: leaves, probabilities, residuals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.joint.world import World
from fedtrees.trees.jit import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(eq=False)
class State:
    """Rows on the grid and what follows from them; arrays change in place.

    Attributes
    ----------
    cell : int32 array, shape (m, d)
        Victims' rows, then own ones (whose cells stay).
    lo, hi : int32 array, shape (n, d)
        Cells ``lo <= cell < hi`` a victim's row may have.
    label, component : int32 array, shape (m,)
    leaf : int32 array, shape (n, T)
        Leaf of each victim's row in each tree, leaves numbered through.
    p : float64 array, shape (n, T)
        Probability of label 1 before each tree; 0 before foreign trees, which need none.
    residual : float64 array, shape (L, 2)
        The rows' sums less the sums to meet.
    """

    cell: Ints
    lo: Ints
    hi: Ints
    label: Ints
    component: Ints
    leaf: Ints
    p: Floats
    residual: Floats

    @property
    def n(self) -> int:
        """Number of victims' rows."""
        return len(self.leaf)

    @staticmethod
    def of(
        world: World,
        cell: Ints,
        box: tuple[Ints, Ints],
        label: Ints,
        own_cell: Ints,
        own_label: Ints,
    ) -> State:
        """Route the rows; all are in the first class of their label."""
        n, T = len(cell), len(world.root)
        state = State(
            np.ascontiguousarray(np.concatenate([cell, own_cell]), dtype=np.int32),
            np.array(box[0], dtype=np.int32, order="C"),
            np.array(box[1], dtype=np.int32, order="C"),
            np.concatenate([label, own_label]).astype(np.int32),
            np.zeros(n + len(own_cell), dtype=np.int32),
            np.zeros((n, T), dtype=np.int32),
            np.zeros((n, T)),
            np.zeros_like(world.target),
        )
        state.refresh(world)
        return state

    def refresh(self, world: World) -> None:
        """Compute leaves, probabilities and residuals from the cells, in place."""
        _refresh(
            self.cell, self.label, world.root, world.node, world.value, world.slope,
            world.target, world.start, world.foreign, world.flat, self.leaf, self.p, self.residual,
        )  # fmt: skip

    def mean_square(self, world: World) -> float:
        """Return the mean squared residual of the known sums."""
        known = np.isfinite(world.variance)
        return float((self.residual[known] ** 2).mean())

    def energy(self, precision: Floats) -> float:
        """Return half the weighted sum of squared residuals."""
        return 0.5 * float((precision * self.residual**2).sum())


@kernel
def walk(root, node, cell):  # type: ignore[no-untyped-def]
    """Return the leaf of a row."""
    while node[root, 0] >= 0:
        root = node[root, 2] if cell[node[root, 0]] < node[root, 1] else node[root, 3]
    return node[root, 2]


@kernel
def _refresh(
    cell, label, root, node, value, slope, target, start, foreign, flat, leaf, p, residual
):  # type: ignore[no-untyped-def]  # fmt: skip
    for j in range(residual.shape[0]):
        residual[j, 0] = -target[j, 0]
        residual[j, 1] = -target[j, 1]
    for i in range(leaf.shape[0]):
        margin = 0.0
        for t in range(root.shape[0]):
            margin += start[t]
            j = walk(root[t], node, cell[i])
            leaf[i, t] = j
            if not foreign[t]:
                q = 1.0 / (1.0 + math.exp(-margin))
                h = 1.0 if flat else q * (1.0 - q)
                residual[j, 0] += q - label[i] + slope[j] * h
                residual[j, 1] += h
                p[i, t] = q
            margin += value[j]
