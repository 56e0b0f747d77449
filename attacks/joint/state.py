"""State of a Markov chain: rows on the grid, with their leaves, predictions and residuals."""

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
    """Rows on the grid, with everything that is derived from them. Arrays change in place.

    A named tuple of arrays, because compiled kernels accept it as an argument. The n reconstructed
    rows of the victims come first, followed by local rows, m in all.

    Attributes
    ----------
    cell : int32 array, shape (m, d)
        Cells of all rows, -1 for a missing value. Those of local rows do not change.
    lo, hi : int32 array, shape (n, d)
        A victim's row may have the cells ``lo <= cell < hi``.
    codes : uint64 array, shape (n, d)
        Category codes that a victim's row may have, as bits.
    label, component : int32 array, shape (m,)
        Label, and component of the mixture (`Classes`), of every row.
    leaf : int32 array, shape (n, T)
        Leaf of each victim's row in each tree. Leaves are numbered consecutively over all trees.
    p : float64 array, shape (n, T)
        Prediction before the round of each tree: the probability of label 1, or of the class of the
        tree, or the predicted number. 0 for foreign trees, which do not need it.
    residual : float64 array, shape (L, 2)
        Sums of the rows minus the sums in the messages, per leaf.
    inside : bool array, shape (n, T)
        Whether the row is included in the sums of the tree. Always False for foreign trees.
    sampled : bool array, shape (n,)
        Whether `inside` of the row may change, except in the first tree.
    """

    cell: Ints
    lo: Ints
    hi: Ints
    codes: NDArray[np.uint64]
    label: Ints
    component: Ints
    leaf: Ints
    p: Floats
    residual: Floats
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
        """Route the rows through all trees. All rows start in the first latent class.

        Parameters
        ----------
        world : World
            Trees and sums.
        cell : int32 array, shape (n, d)
            Cells of the victims' rows.
        box : pair of int32 array, shape (n, d)
            Bounds ``lo`` and ``hi`` of the cells.
        label : int array, shape (n,)
            Labels of the victims' rows.
        own_cell, own_label : int array, shape (r, d) and (r,)
            Cells and labels of local rows.
        codes : uint64 array, shape (n, d), or None
            Possible category codes. None: all codes.
        inside : bool array, shape (n, T), or None
            Rows in the sums of each tree. None: all rows are in all trees that are not foreign.
        sampled : bool array, shape (n,), or None
            Rows whose participation may change. None: no row.
        """
        n, T = len(cell), len(world.root)
        takes_part = np.ones((n, T), dtype=bool) if inside is None else inside
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
            takes_part & ~world.foreign,
            np.zeros(n, dtype=bool) if sampled is None else sampled.copy(),
        )
        state.refresh(world)
        return state

    def refresh(self, world: World) -> None:
        """Compute leaves, probabilities and residuals from the cells, in place."""
        _refresh(world, self)

    def mean_square(self, world: World) -> float:
        """Return the mean squared residual of the sums that messages reveal."""
        finite = np.isfinite(world.variance)
        return float((self.residual[finite] ** 2).mean())

    def energy(self, precision: Floats) -> float:
        """Return half the weighted sum of squared residuals."""
        return 0.5 * float((precision * self.residual**2).sum())


@inner_kernel
def walk(world, t, cell, i):  # type: ignore[no-untyped-def]
    """Return the leaf that row ``i`` of ``cell``, shape (m, d), reaches in tree ``t``."""
    at, node = world.root[t], world.node
    while node[at, 0] >= 0:
        c, cut = cell[i, node[at, 0]], node[at, 1]
        left = c < cut if cut >= 0 else not has(world.sets[-1 - cut], c)
        at = node[at, 2] if left else node[at, 3]
    return node[at, 2]


@inner_kernel
def contributions_of_row(p, true_value, slope, bend):  # type: ignore[no-untyped-def]
    """Return the contributions of a row to both sums of a leaf, see `World`.

    Parameters
    ----------
    p : float
        Predicted probability, or the prediction of a numeric target.
    true_value : float
        True value of ``p``, as returned by `target_of_row`.
    slope : float
        `World.slope` of the leaf.
    bend : float
        `World.bend`.
    """
    h = bend * p * (1.0 - p) if bend > 0.0 else 1.0
    return p - true_value + slope * h, h


@inner_kernel
def target_of_row(world, label, cell, i, t):  # type: ignore[no-untyped-def]
    """Return the true value that a tree should predict for a row.

    It is the numeric target. For classes it is 1 if the label is the class of the tree, else 0.

    The row is row ``i`` of ``cell``, whose last column contains numeric targets.
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
            if t % K == 0:  # a round begins: its trees use the margins after the previous round
                for c in range(K):
                    margin[c] += rise[c] + world.start[t + c]
                    rise[c] = 0.0
                _probabilities(world, state.p, i, t, margin)
            j = walk(world, t, state.cell, i)
            leaf[i, t] = j
            if state.inside[i, t]:
                y = target_of_row(world, state.label[i], state.cell, i, t)
                g, h = contributions_of_row(state.p[i, t], y, world.slope[j], world.bend)
                residual[j, 0] += g
                residual[j, 1] += h
            rise[t % K] = world.value[j]


@inner_kernel
def _probabilities(world, p, i, t, margin):  # type: ignore[no-untyped-def]
    """Fill in the predictions of row ``i`` before the round that begins with tree ``t``."""
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
