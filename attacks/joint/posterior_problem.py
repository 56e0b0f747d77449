"""The trees on the grid, the leaf sums that the rows should have, and the state of a chain.

Trees that other clients grew on their local data impose no sums on the victims' rows. They only
change the margins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import LeafSums
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.reconstruction.boxes import ANY, Grid, codes_right, has
from fedtrees.attacks.reconstruction.context import equations
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class World(NamedTuple):
    """All trees with consecutively numbered leaves, and the victims' sums per leaf.

    A row with probability p and label y contributes ``x = (p - y + slope * h, h)`` to its leaf,
    with h = p (1 - p). For more than two classes, p and y refer to the class of the tree, and h is
    2 p (1 - p). For a numeric target, p is the predicted number, y the target, and h is 1.

    If sums of gradients and hessians are visible, the slope is 0 and both sums are known. If only
    the leaf values v are visible, Newton's step ``v = -eta G / (H + lambda)`` is one equation. It
    is the first sum with slope v / eta, and the second sum is unknown.

    A named tuple of arrays, because compiled kernels accept it as an argument.

    Attributes
    ----------
    root : int32 array, shape (T,)
        Root node of each tree.
    node : int32 array, shape (n_nodes, 4)
        Feature, cut, left and right child. A row goes left if its cell is below the cut. A cut of
        -1 - k is a split by categories: a row goes right if set k contains its cell. A leaf has
        feature -1, and its number instead of the left child.
    sets : uint64 array, shape (n_category_splits,)
        Sets of category codes, as bits.
    box : int32 array, shape (L, d, 2)
        Rows in leaf l have cells ``box[l, f, 0] <= cell < box[l, f, 1]``.
    codes : uint64 array, shape (L, d)
        Category codes of rows in the leaf.
    value, slope : float64 array, shape (L,)
        Change of the margin by the leaf, and the slope explained above.
    target : float64 array, shape (L, 2)
        Sums of x over the victims.
    variance : float64 array, shape (L, 2)
        Variance of their declared error, infinite for an unknown sum.
    start : float64 array, shape (T,)
        Increase of the margin before each tree that is not due to other trees: the base margin in
        the first round, later 0 unless boosting restarts from another base score.
    foreign : bool array, shape (T,)
        Trees that were grown on the rows of other clients.
    bend : float
        h / (p (1 - p)): 1, or 2 for more than two classes. 0 if the protocol uses h = 1.
    share : float
        Probability that a row takes part in a tree.
    outputs : int
        Number of trees of a round: 1, or the number of classes if there are more than two.
    targets : float64 array, shape (K,)
        Numeric target of each cell of the last column. Empty for classes.
    """

    root: Ints
    node: Ints
    sets: NDArray[np.uint64]
    box: Ints
    codes: NDArray[np.uint64]
    value: Floats
    slope: Floats
    target: Floats
    variance: Floats
    start: Floats
    foreign: NDArray[np.bool_]
    bend: float
    share: float
    outputs: int
    targets: Floats

    @staticmethod
    def of(evidence: BoostingObservations, sums: list[LeafSums], grid: Grid) -> World:
        """Express all trees of the evidence by cells of the grid.

        Parameters
        ----------
        evidence : BoostingObservations
            Trees and public parameters of the training.
        sums : list of LeafSums
            Sums of the leaves, one entry per tree.
        grid : Grid
            All thresholds of the trees.
        """
        parts, boxes, targets, variances, slopes, values = [], [], [], [], [], []
        roots, n_nodes, n_leaves = [], 0, 0
        sets: list[np.uint64] = []
        codes = []
        for t, tree in enumerate(evidence.trees):
            leaves = grid.leaves(tree)
            roots.append(n_nodes)
            parts.append(_on_grid(tree, grid, n_nodes, n_leaves, sets))
            boxes.append(np.stack(leaves.boxes(grid.width), axis=2))
            codes.append(leaves.sets(len(grid.edges)))
            value = tree.value[leaves.node].astype(np.float64)
            target, variance = equations(evidence, t, sums[t], leaves)
            # A tree that was grown on other clients' rows says nothing about the victims' sums.
            # With an infinite variance their weight is 0, but the leaf values still change margins.
            if evidence.is_foreign(t):
                target, variance = np.zeros_like(target), np.full_like(variance, np.inf)
            # Only leaf values are visible: one equation per leaf. The unknown second sum is padded
            # with an infinite variance below.
            blind = target.shape[1] == 1
            slopes.append(value / evidence.params.learning_rate if blind else np.zeros(len(leaves)))
            targets.append(np.pad(target, ((0, 0), (0, 2 - target.shape[1]))))
            variances.append(
                np.pad(variance, ((0, 0), (0, 2 - variance.shape[1])), constant_values=np.inf)
            )
            values.append(value)
            n_nodes += len(tree)
            n_leaves += len(leaves)
        return World(
            np.array(roots, dtype=np.int32),
            np.concatenate(parts),
            np.array(sets, dtype=np.uint64),
            np.concatenate(boxes),
            np.concatenate(codes),
            np.concatenate(values),
            np.concatenate(slopes),
            np.concatenate(targets),
            np.concatenate(variances),
            _starts(evidence),
            np.array(evidence.foreign or [False] * len(evidence.trees), dtype=np.bool_),
            0.0 if evidence.constant_hessian else float(min(evidence.outputs, 2)),
            evidence.params.subsample,
            evidence.outputs,
            np.zeros(0) if evidence.targets is None else evidence.targets.values,
        )

    def precision(self, sigma: float, unit: float = 1.0) -> Floats:
        """Return the weight of every squared residual, 0 for an unknown sum, shape (L, 2).

        ``sigma`` is the tolerance in units of a gradient. ``unit`` is the size of a gradient: 1 for
        classes, and proportional to the deviation of a numeric target.
        """
        return 1.0 / ((sigma * np.array([unit, 1.0])) ** 2 + self.variance)


def _starts(evidence: BoostingObservations) -> Floats:
    """Return `World.start`."""
    out = np.zeros(len(evidence.trees))
    out[: evidence.outputs] = np.float32(evidence.base_margin)
    if evidence.restart is not None and evidence.restart[0] < len(out):
        at, rise = evidence.restart
        out[at : at + evidence.outputs] += np.float64(rise)
    return out


def _on_grid(
    tree: Tree, grid: Grid, first_node: int, first_leaf: int, sets: list[np.uint64]
) -> Ints:
    """Return the rows of `World.node` for a tree, and add its splits by categories to ``sets``."""
    out = np.empty((len(tree), 4), dtype=np.int32)
    out[:, 0] = tree.feature
    for i in range(len(tree)):
        f = int(tree.feature[i])
        if f >= 0:
            cut = int(np.searchsorted(grid.edges[f], tree.threshold[i])) + 1
            # A split by categories has no threshold. Its set gets the next negative number.
            if np.isnan(tree.threshold[i]):
                sets.append(codes_right(tree, i))
                cut = -len(sets)
            out[i, 1:] = cut, first_node + tree.left[i], first_node + tree.right[i]
    out[tree.leaves, 1:] = 0
    out[tree.leaves, 2] = first_leaf + np.arange(len(tree.leaves))
    return out


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
