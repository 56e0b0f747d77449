"""The trees on the grid, and the leaf sums that the reconstructed rows should have.

Trees that other clients grew on their local data impose no sums on the victims' rows. They only
change the margins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.equations import equations
from fedtrees.attacks.evidence.grid import Grid, codes_right
from fedtrees.attacks.evidence.sums import LeafSums
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
    def of(evidence: Evidence, sums: list[LeafSums], grid: Grid) -> World:
        """Express all trees of the evidence by cells of the grid.

        Parameters
        ----------
        evidence : Evidence
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
            slopes.append(value / evidence.learning_rate if blind else np.zeros(len(leaves)))
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
            evidence.subsample,
            evidence.outputs,
            np.zeros(0) if evidence.targets is None else evidence.targets.values,
        )

    def precision(self, sigma: float, unit: float = 1.0) -> Floats:
        """Return the weight of every squared residual, 0 for an unknown sum, shape (L, 2).

        ``sigma`` is the tolerance in units of a gradient. ``unit`` is the size of a gradient: 1 for
        classes, and proportional to the deviation of a numeric target.
        """
        return 1.0 / ((sigma * np.array([unit, 1.0])) ** 2 + self.variance)


def _starts(evidence: Evidence) -> Floats:
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
