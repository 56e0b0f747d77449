"""Probabilities of the possible paths, given the sums of unsolved leaves (maximum entropy)."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.basis import Basis
from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.equations import contributions, equations
from fedtrees.attacks.evidence.maxent import max_entropy
from fedtrees.attacks.evidence.prior import ReachableLeaves, reach
from fedtrees.attacks.evidence.routing import gradients
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.lattice.paths import Paths

Longs = NDArray[np.int64]

# Smallest share of a path, because maximum entropy is overconfident if few rows remain. With 1e-9
# rows lost their true path at about the twentieth tree.
FLOOR = 1e-4
SWEEPS = 2  # passes of iterative proportional fitting over the label counts of all trees


def grow(paths: Paths, evidence: Evidence, t: int, basis: Basis) -> None:
    """Extend all pieces by tree ``t``, to every leaf that they can reach, in place.

    The weights are the distribution closest to the prior whose expected sums equal the sums of the
    leaves.
    """
    tree, sums = evidence.trees[t], basis.sums[t]
    leaves = basis.grid.leaves(tree)
    boxed = (paths.lo, paths.hi, paths.label)
    options = reach(leaves, boxed, basis.prior, own_leaf=sums.own_leaf, codes=paths.codes)
    gh = gradients(paths.margin[:, -1], paths.label)
    x = contributions(evidence, t, sums, leaves, options, gh)
    target, ridge = equations(evidence, t, sums, leaves)
    share = max_entropy(options, paths.weight, x, target, ridge)
    piece = np.repeat(np.arange(len(paths.slot)), np.diff(options.offsets))
    weight = paths.weight[piece] * np.maximum(share, FLOOR)
    paths.grow(piece, options.leaf, weight, tree, basis.grid)


def fit_labels(
    paths: Paths, solved: list[NDArray[np.bool_]], count: list[Longs], positives: list[Longs]
) -> None:
    """Scale weights towards the label counts of solved leaves, in place.

    Parameters
    ----------
    paths : Paths
        Changed in place.
    solved : list of bool array, shape (J,)
        Solved leaves of every tree.
    count, positives : list of int64 array, shape (J,)
        Rows, and rows with label 1, in solved leaves.
    """
    for _ in range(SWEEPS):
        for t in range(paths.trees):
            side = paths.leaf[:, t] * 2 + paths.label
            total = np.bincount(side, paths.weight, 2 * len(solved[t]))
            goal = np.stack([count[t] - positives[t], positives[t]], axis=1).reshape(-1)
            factor = np.where(np.repeat(solved[t], 2), goal / np.maximum(total, 1e-12), 1.0)
            paths.weight = np.maximum(paths.weight * factor[side], 1e-9)
            paths.normalise()


def fit_sums(paths: Paths, t: int, sums: LeafSums) -> None:
    """Change weights so that the expected sums of tree ``t`` equal ``sums``, in place."""
    assert sums.g is not None
    assert sums.h is not None
    order = np.argsort(paths.slot, kind="stable")
    width = np.bincount(paths.slot, minlength=len(paths.size))
    share = (paths.weight / paths.size[paths.slot])[order]
    options = ReachableLeaves(
        np.concatenate([[0], np.cumsum(width)]).astype(np.int64),
        paths.leaf[order, t].astype(np.int32),
        np.log(np.maximum(share, 1e-12)),
    )
    x = np.stack(gradients(paths.margin[order, t], paths.label[order]), axis=1)
    target = np.stack([sums.g, sums.h], axis=1)
    share = max_entropy(options, paths.size.astype(np.float64), x, target, np.zeros_like(target))
    weight = np.empty_like(paths.weight)
    weight[order] = np.repeat(paths.size, width) * np.maximum(share, FLOOR)
    paths.weight = weight
    paths.normalise()
