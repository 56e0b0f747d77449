"""Rows on the grid and what follows from them: leaves, probabilities, residuals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.grid import ANY, has
from fedtrees.attacks.joint.world import World
from fedtrees.core.compilation import inner_kernel, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class State(NamedTuple):
    """Rows on the grid and what follows from them; arrays change in place.

    Kernels take it as it is.
    """

    cell: Ints  # int32 (m, d): victims' rows, then own ones (whose cells stay)
    # int32 (n, d): cells ``lo <= cell < hi`` a victim's row may have, and uint64 (n, d): codes
    lo: Ints
    hi: Ints
    codes: NDArray[np.uint64]
    # int32 (m,)
    label: Ints
    component: Ints
    leaf: Ints  # int32 (n, T): leaf of each victim's row in each tree, leaves numbered through
    # float64 (n, T): probability of label 1, or of the tree's class, or what is predicted, before
    # each round; 0 before foreign trees, which need none
    p: Floats
    residual: Floats  # float64 (L, 2): the rows' sums less the sums to meet
    # bool (n, T): whether each tree has the row in its sums, foreign trees never; bool (n,):
    # whether that may change, but for the first tree
    inside: NDArray[np.bool_]
    sampled: NDArray[np.bool_]

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
        codes: NDArray[np.uint64] | None = None,
        inside: NDArray[np.bool_] | None = None,
        sampled: NDArray[np.bool_] | None = None,
    ) -> State:
        """Route the rows; all are in the first class of their label.

        Without ``codes`` any is possible; without ``inside`` all rows are in all trees, without
        ``sampled`` for good.
        """
        n, T = len(cell), len(world.root)
        there = np.ones((n, T), dtype=bool) if inside is None else inside
        state = State(
            np.ascontiguousarray(np.concatenate([cell, own_cell]), dtype=np.int32),
            np.array(box[0], dtype=np.int32, order="C"),
            np.array(box[1], dtype=np.int32, order="C"),
            np.full(cell.shape, ANY) if codes is None else np.array(codes, order="C"),
            np.concatenate([label, own_label]).astype(np.int32),
            np.zeros(n + len(own_cell), dtype=np.int32),
            np.zeros((n, T), dtype=np.int32),
            np.zeros((n, T)),
            np.zeros_like(world.target),
            there & ~world.foreign,
            np.zeros(n, dtype=bool) if sampled is None else sampled.copy(),
        )
        state.refresh(world)
        return state

    def refresh(self, world: World) -> None:
        """Compute leaves, probabilities and residuals from the cells, in place."""
        _refresh(world, self)

    def mean_square(self, world: World) -> float:
        """Return the mean squared residual of the known sums."""
        known = np.isfinite(world.variance)
        return float((self.residual[known] ** 2).mean())

    def energy(self, precision: Floats) -> float:
        """Return half the weighted sum of squared residuals."""
        return 0.5 * float((precision * self.residual**2).sum())


@inner_kernel
def walk(world, t, cell, i):  # type: ignore[no-untyped-def]
    """Return the leaf that row ``i`` of ``cell`` (int32, shape (m, d)) takes in tree ``t``."""
    at, node = world.root[t], world.node
    while node[at, 0] >= 0:
        c, cut = cell[i, node[at, 0]], node[at, 1]
        left = c < cut if cut >= 0 else not has(world.sets[-1 - cut], c)
        at = node[at, 2] if left else node[at, 3]
    return node[at, 2]


@inner_kernel
def brings(p, mine, slope, bend):  # type: ignore[no-untyped-def]
    """Return what a row of probability p brings to the two sums of a leaf; see `World`.

    ``mine`` as of `stands_for`; of numeric targets p is the prediction.
    """
    h = bend * p * (1.0 - p) if bend > 0.0 else 1.0
    return p - mine + slope * h, h


@inner_kernel
def stands_for(world, label, cell, i, t):  # type: ignore[no-untyped-def]
    """Return what p of row ``i`` of ``cell`` should be in tree ``t``.

    That is its target, a number; or 1 where a row of this label is of the tree's class, else 0.
    """
    if world.targets.shape[0] > 0:
        return world.targets[cell[i, cell.shape[1] - 1]]
    return np.float64(label if world.outputs == 1 else int(label == t % world.outputs))


@kernel
def _refresh(world, state):  # type: ignore[no-untyped-def]
    leaf, residual, K = state.leaf, state.residual, world.outputs
    margin, rise = np.empty(K), np.empty(K)
    for j in range(residual.shape[0]):
        residual[j, 0] = -world.target[j, 0]
        residual[j, 1] = -world.target[j, 1]
    for i in range(leaf.shape[0]):
        margin[:] = 0.0
        rise[:] = 0.0
        for t in range(leaf.shape[1]):
            if t % K == 0:
                for c in range(K):
                    margin[c] += rise[c] + world.start[t + c]
                    rise[c] = 0.0
                _probabilities(world, state.p, i, t, margin)
            j = walk(world, t, state.cell, i)
            leaf[i, t] = j
            if state.inside[i, t]:
                mine = stands_for(world, state.label[i], state.cell, i, t)
                g, h = brings(state.p[i, t], mine, world.slope[j], world.bend)
                residual[j, 0] += g
                residual[j, 1] += h
            rise[t % K] = world.value[j]


@inner_kernel
def _probabilities(world, p, i, t, margin):  # type: ignore[no-untyped-def]
    """Fill in those of row ``i`` before the round that begins with tree ``t``."""
    K = world.outputs
    if world.foreign[t]:
        return
    if K == 1:
        p[i, t] = margin[0] if world.targets.shape[0] > 0 else 1.0 / (1.0 + math.exp(-margin[0]))
        return
    top, total = margin.max(), 0.0
    for c in range(K):
        p[i, t + c] = math.exp(margin[c] - top)
        total += p[i, t + c]
    for c in range(K):
        p[i, t + c] /= total
