"""What a row brings to the sums of every tree: the trees on the grid, and the sums to meet.

Trees that other clients grew on rows of their own have no sums to meet: they move the margins.
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
    """All trees with their leaves numbered through, and the victims' sums per leaf.

    A row with probability p and label y brings ``x = (p - y + slope * h, h)`` to its leaf, with
    h = p(1-p); of several classes p and y are those of the tree's class, and h is 2p(1-p).

    Of numeric targets p is the number predicted, y the target, and h is 1.

    With statistics the slope is 0 and both sums are known; with leaf values alone
    the first is (Newton's step written as an equation), with slope v / eta, and the second is
    not. Kernels take it as it is.
    """

    root: Ints  # int32 (T,)
    # int32 (n_nodes, 4): feature, cut (a row goes left iff its cell is below), left and right
    # child; a leaf has feature -1 and its number as left child. A cut of -1 - k: a row goes right
    # iff set k has its cell
    node: Ints
    sets: NDArray[np.uint64]  # uint64 (splits by categories,)
    # int32 (L, d, 2): cells ``box[l, f, 0] <= cell < box[l, f, 1]`` that keep a row in the leaf
    box: Ints
    codes: NDArray[np.uint64]  # uint64 (L, d): codes that do
    # float64 (L,): change of the log-odds; see above
    value: Floats
    slope: Floats
    # float64 (L, 2): sums of x over the victims, and the variance of their declared error; infinite
    # where unknown
    target: Floats
    variance: Floats
    # float64 (T,): what the log-odds (of the tree's class) of every row rise by before each tree,
    # apart from the trees' values: the base margin in the first round, 0 later unless boosting
    # restarts from another base
    start: Floats
    # bool (T,): trees grown on rows of others: their values count, their sums do not
    foreign: NDArray[np.bool_]
    bend: float  # h over p(1-p): 1, or 2 of several classes; 0 where the protocol uses h = 1
    share: float  # how likely a row is in a tree
    outputs: int  # trees of a round: 1, or one for every class
    # float64 (K,): what targets in each cell of the last column are; none where rows have classes
    targets: Floats

    @staticmethod
    def of(evidence: Evidence, sums: list[LeafSums], grid: Grid) -> World:
        """Put all trees of the evidence on the grid."""
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
            if evidence.is_foreign(t):
                target, variance = np.zeros_like(target), np.full_like(variance, np.inf)
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
        """Return the weight of every squared residual, 0 where the sum is unknown.

        A gradient is as large as ``unit``, where that of a class is about 1.
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
    """Return one tree's rows of `World.node`; its splits by categories are added to ``sets``."""
    out = np.empty((len(tree), 4), dtype=np.int32)
    out[:, 0] = tree.feature
    for i in range(len(tree)):
        f = int(tree.feature[i])
        if f >= 0:
            cut = int(np.searchsorted(grid.edges[f], tree.threshold[i])) + 1
            if np.isnan(tree.threshold[i]):
                sets.append(codes_right(tree, i))
                cut = -len(sets)
            out[i, 1:] = cut, first_node + tree.left[i], first_node + tree.right[i]
    out[tree.leaves, 1:] = 0
    out[tree.leaves, 2] = first_leaf + np.arange(len(tree.leaves))
    return out
