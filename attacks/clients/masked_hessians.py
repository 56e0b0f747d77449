"""Restore masked hessian sums from weights and gains.

NVFlare's bagging overwrites ``sum_hessian`` with 1 and keeps ``base_weights``, leaf values and
``loss_changes``. A node of weight w and hessian sum H has gradient sum ``-w (H + lambda)`` (Chen
and Guestrin 2016, Eq. 5). Gradients and hessians of children add up to those of the parent, and the
gain of a split is the increase of ``w^2 (H + lambda)`` (Eq. 7):

    w_L (H_L + lambda) + w_R (H_R + lambda)     = w (H_L + H_R + lambda)
    w_L^2 (H_L + lambda) + w_R^2 (H_R + lambda) = w^2 (H_L + H_R + lambda) + gain

These are two linear equations per split in the hessian sums of the leaves below it, 2 J - 2
equations for J leaves. We know of no paper that solves them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.boosting import leaves_below, relatives, sums_below
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Nodes = NDArray[np.intp]

FLOAT32 = 2.0**-23  # spacing of float32 relative to 1; statistics are stored as float32
# Largest residual of an equation in units of its float32 error. Honest models reach 1.7 (Pima,
# Stroke, depths 1 to 8, subsampling, several lambdas); wrong eta or lambda, thousands.
AGREES = 16.0
MAX_LEAVES = 128  # leaves per system, because the equations are a dense matrix
_SPREAD = 4.0  # error of a solved sum in standard errors. The largest observed one is 1.7
OPEN = 1e30  # error of a sum that the equations do not determine
_PASSES = 3  # iterations, because the errors of equations depend on the solution


def is_masked(sum_hessian: NDArray[np.float32], sizes: NDArray[np.int64]) -> bool:
    """Return whether all sums of a message were overwritten by one number.

    Sums of a tree with splits are never all equal, because a parent's sum is that of its children.
    Trees of one leaf may have equal sums (``sizes``, int64 (T,), counts nodes). They count as
    masked if all sums are 1.
    """
    if not len(sum_hessian) or np.any(sum_hessian != sum_hessian[0]):
        return False
    return bool(sizes.max() > 1 or sum_hessian[0] == 1)


@dataclass(frozen=True, eq=False)
class Splits:
    """The inner nodes of one tree as equations.

    Attributes
    ----------
    member : float64 array, shape (n_nodes, J)
        1 if leaf j is below the node.
    inner, left, right : int array, shape (k,)
        Numbers of inner nodes and of their children.
    weight, gain : float64 array, shape (k,)
        Weight and gain of the inner nodes.
    child : float64 array, shape (n_nodes,)
        Weight of inner nodes, and value of leaves, which is eta times the weight.
    leaf : bool array, shape (n_nodes,)
        Whether a node is a leaf.
    """

    member: Floats
    inner: Nodes
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weight: Floats
    gain: Floats
    child: Floats
    leaf: NDArray[np.bool_]

    @staticmethod
    def of(tree: Tree, weight: NDArray[np.floating], gain: NDArray[np.floating]) -> Splits:
        """Return the splits of a tree.

        Parameters
        ----------
        tree : Tree
            Its values are used for leaves.
        weight : float array, shape (n_nodes,)
            ``-G / (H + lambda)`` of inner nodes. Entries of leaves are not read.
        gain : float array, shape (n_nodes,)
            Gains of the splits.
        """
        inner, leaf = np.flatnonzero(tree.feature >= 0), tree.feature < 0
        return Splits(
            member=leaves_below(tree),
            inner=inner,
            left=tree.left[inner],
            right=tree.right[inner],
            weight=weight[inner].astype(np.float64),
            gain=gain[inner].astype(np.float64),
            child=np.where(leaf, tree.value, weight).astype(np.float64),
            leaf=leaf,
        )

    def system(self, eta: float | Floats) -> tuple[Floats, Floats, Floats]:
        """Return A, c, b of ``A H + c lambda = b`` for the hessian sums H of the leaves.

        The arrays are float64 of shapes (..., 2k, J), (..., 2k) and (2k,) for k splits and eta of
        shape (...).
        """
        u = 1 / np.asarray(eta)[..., None]
        value = self.child[self.leaf] * u
        below = self.member[self.inner]
        w, wl, wr = self.weight, *self._children(u)
        of_gradient = (w[:, None] - value[..., None, :]) * below
        of_gain = (
            (wl**2)[..., None] * self.member[self.left]
            + (wr**2)[..., None] * self.member[self.right]
            - (w**2)[:, None] * below
        )
        c = np.concatenate([w - value @ below.T, wl**2 + wr**2 - w**2], axis=-1)
        b = np.concatenate([np.zeros(len(w)), self.gain])
        return np.concatenate([of_gradient, of_gain], axis=-2), c, b

    def error(self, h: Floats, eta: float | Floats, reg_lambda: float | Floats) -> Floats:
        """Return the float32 error of each equation, float64 of shape (..., 2k).

        Parameters
        ----------
        h : float64 array, shape (..., J)
            Hessian sums of the leaves.
        eta, reg_lambda : float or float64 array, shape (...)
            Learning rate and L2 penalty.
        """
        u = 1 / np.asarray(eta)[..., None]
        below, shift = self.member[self.inner], np.maximum(reg_lambda, 0.0)[..., None]
        at = h @ self.member.T + shift
        value = np.abs(self.child[self.leaf]) * u
        w, wl, wr = np.abs(self.weight), *self._children(u)
        of_gradient = w * at[..., self.inner] + (value * (h + shift)) @ below.T
        of_gain = (
            wl**2 * at[..., self.left] + wr**2 * at[..., self.right] + w**2 * at[..., self.inner]
        )
        return FLOAT32 * np.concatenate([of_gradient, of_gain], axis=-1) + 1e-12

    def _children(self, u: Floats) -> tuple[Floats, Floats]:
        scaled = np.where(self.leaf, self.child * u, self.child)
        return scaled[..., self.left], scaled[..., self.right]


@dataclass(frozen=True, eq=False)
class Piece:
    """A subtree that is solved separately, with the numbers of its nodes in the complete tree."""

    tree: Tree
    nodes: Nodes

    @staticmethod
    def of(tree: Tree, nodes: Nodes) -> Piece:
        """Return the subtree of some nodes in ascending order, of which the first is the root.

        A node becomes a leaf if its children are not among them.
        """
        number = np.full(len(tree) + 1, -1, dtype=np.int32)  # the last entry: no child
        number[nodes] = np.arange(len(nodes), dtype=np.int32)
        left = number[tree.left[nodes]]
        part = Tree(
            feature=np.where(left < 0, -1, tree.feature[nodes]).astype(np.int32),
            threshold=tree.threshold[nodes],
            left=left,
            right=number[tree.right[nodes]],
            default_left=tree.default_left[nodes],
            value=tree.value[nodes],
        )
        return Piece(part, nodes)

    def splits(self, weight: NDArray[np.floating], gain: NDArray[np.floating]) -> Splits:
        """Return its splits from the weights and gains of the complete tree."""
        return Splits.of(self.tree, weight[self.nodes], gain[self.nodes])

    def __len__(self) -> int:
        return len(self.tree.leaves)


def pieces(tree: Tree) -> list[Piece]:
    """Divide a tree into subtrees of at most `MAX_LEAVES` leaves."""
    below, parent = sums_below(tree, np.ones(len(tree.leaves))), relatives(tree)[:, 0]
    # the largest subtrees that are small enough
    top = (below <= MAX_LEAVES) & ((below[parent] > MAX_LEAVES) | (np.arange(len(tree)) == 0))
    root = np.where(top, np.arange(len(tree)), -1)
    for node in range(1, len(tree)):  # parents come first
        if not top[node]:
            root[node] = root[parent[node]]
    return [Piece.of(tree, np.flatnonzero(root == r)) for r in np.flatnonzero(top)]


def hessians_from_gains(
    tree: Tree,
    weight: NDArray[np.floating],
    gain: NDArray[np.floating],
    eta: float,
    reg_lambda: float,
) -> tuple[Floats, Floats] | None:
    """Return the hessian sums of the leaves and their errors.

    Parameters
    ----------
    tree : Tree
        Splits and leaf values.
    weight : float array, shape (n_nodes,)
        ``-G / (H + lambda)`` of inner nodes, without learning rate.
    gain : float array, shape (n_nodes,)
        Gains of the splits.
    eta : float
        Learning rate.
    reg_lambda : float
        L2 penalty.

    Returns
    -------
    tuple of float64 array, shape (J,) each, or None
        None if no positive sums fit or if the tree has no split.
    """
    if len(tree) < 2:
        return None
    # leaves have weights instead of values below, so that a cut node is like a leaf
    node_weights = np.where(tree.feature < 0, tree.value / np.float64(eta), weight)
    weighed, parent = replace(tree, value=node_weights), relatives(tree)[:, 0]
    h, error = np.zeros(len(tree)), np.zeros(len(tree))
    for piece in pieces(weighed):
        is_single = len(piece) == 1  # only the parent's equations determine it
        if is_single:
            node = parent[piece.nodes[0]]
            both = np.sort(np.array([node, tree.left[node], tree.right[node]], dtype=np.intp))
            solved = _solve(Piece.of(weighed, both).splits(node_weights, gain), reg_lambda)
        else:
            solved = _solve(piece.splits(node_weights, gain), reg_lambda)
        if solved is None:
            return None
        if is_single:
            side = int(piece.nodes[0] == tree.right[node])
            h[piece.nodes], error[piece.nodes] = solved[0][side], solved[1][side]
        else:
            leaves = piece.nodes[piece.tree.leaves]
            h[leaves], error[leaves] = solved
    return h[tree.leaves], error[tree.leaves]


def _solve(splits: Splits, reg_lambda: float) -> tuple[Floats, Floats] | None:
    """Return the sums of the leaves and their errors, None if the equations contradict."""
    a, c, b = splits.system(1.0)
    target, h = b - c * reg_lambda, np.ones(a.shape[1])
    for _ in range(_PASSES):
        # weight each equation by its float32 error at the present solution
        scale = splits.error(np.maximum(h, 1e-3), 1.0, reg_lambda)
        h = np.asarray(np.linalg.lstsq(a / scale[:, None], target / scale, rcond=None)[0])
    residual = np.abs((a @ h - target) / splits.error(np.maximum(h, 1e-3), 1.0, reg_lambda))
    if not residual.max() <= AGREES or (h <= 0).any():
        return None
    return h, _SPREAD * _spread(a / scale[:, None]) + FLOAT32 * h


def _spread(a: Floats) -> Floats:
    """Return the standard errors of the unknowns if equations have errors of 1, shape (J,).

    Two pure leaves of one value are determined only by their sum, and get the error `OPEN`. The
    Gram matrix would round the square of a singular value to 0 or treat such sums as certain.
    """
    _, size, v = np.linalg.svd(a, full_matrices=False)
    is_determined = size > len(a) * np.finfo(float).eps * size[0]
    shares = np.where(is_determined[:, None], v / np.where(is_determined, size, 1.0)[:, None], 0.0)
    left = (np.abs(v) > 1e-7) & ~is_determined[:, None]
    return np.where(left.any(axis=0), OPEN, np.sqrt((shares**2).sum(axis=0)))
