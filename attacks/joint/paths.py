"""Follow all rows through the first trees without a mistake, as far as exact sums allow.

Tree by tree: rows share out over leaves by maximum entropy, as in TimberStrike; then every leaf is
solved on its own (`exact`), the surest first, and what is solved narrows the rest. The first tree
with a leaf that cannot be solved ends it. Rows of equal margin bring equal sums, so that which of
them went where stays open; it is chosen by likelihood, and undone where a later tree objects.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.joint.exact import UNIT, solve_leaf
from fedtrees.attacks.joint.world import World
from fedtrees.attacks.timberstrike.evidence import Evidence
from fedtrees.attacks.timberstrike.grid import Grid
from fedtrees.attacks.timberstrike.maxent import max_entropy
from fedtrees.attacks.timberstrike.prior import Prior, add_own_rows, reach
from fedtrees.attacks.timberstrike.routing import gradients
from fedtrees.attacks.timberstrike.sequence import Boxes, contributions, equations
from fedtrees.attacks.timberstrike.sums import LeafSums
from fedtrees.core.guess import LeafCounts
from fedtrees.trees.fixed_point import to_fixed

Floats = NDArray[np.float64]

# Lengths of the lists, and the probability of a leaf outside a row's box: boxes of rows with equal
# margins may have been mixed up.
ROUNDS = ((1 << 12, 0.0), (1 << 12, 0.005), (1 << 16, 0.0), (1 << 16, 0.005))
SHARING = 15  # rounds of proportional fitting
LEAST = 1e-4  # probabilities are kept this far from 0 and 1
FEW_BITS = 12.0  # leaves less certain than this wait for what the surer ones say


@dataclass(eq=False)
class Paths:
    """Rows with their exact way through the first trees.

    Attributes
    ----------
    boxes : Boxes
        ``margin`` is the log-odds after the last of these trees.
    leaf : int64 array, shape (n, q)
        Leaf of each row in each of the q trees, leaves numbered through.
    margin : float32 array, shape (n, q + 1)
        Log-odds before and after each tree.
    positives : list of int64 array, shape (J,)
        Rows with label 1 per leaf, from the second tree on.
    """

    boxes: Boxes
    leaf: NDArray[np.int64]
    margin: NDArray[np.float32]
    positives: list[NDArray[np.int64]]

    def leaf_counts(self, evidence: Evidence) -> list[LeafCounts]:
        """Return the class counts of the leaves of the second to the last of these trees."""
        out, offset = [], len(evidence.trees[0].leaves)
        for t, n1 in enumerate(self.positives, start=1):
            leaves = evidence.trees[t].leaves
            n = np.bincount(self.leaf[:, t] - offset, minlength=len(leaves))
            out.append(LeafCounts(t, leaves, n - n1, n1))
            offset += len(leaves)
        return out


def follow_exactly(
    evidence: Evidence,
    sums: list[LeafSums],
    grid: Grid,
    world: World,
    prior: Prior,
    boxes: Boxes,
) -> Paths:
    """Follow rows from the first tree on while every leaf can be solved.

    Parameters
    ----------
    boxes : Boxes
        After the first tree.
    """
    first = _leaf_of_boxes(world, boxes, len(evidence.trees[0].leaves))
    start = np.full(len(boxes.y), evidence.base_margin, dtype=np.float32)
    paths = Paths(boxes, first[:, None], np.stack([start, boxes.margin], axis=1), [])
    exact = evidence.noise is None and sums[0].g is not None
    if not exact or evidence.constant_hessian or not len(boxes.y):
        return paths
    offset = len(evidence.trees[0].leaves)
    for t in range(1, len(evidence.trees)):
        tree = evidence.trees[t]
        found = _solve_tree(evidence, t, sums[t], grid, prior, paths.boxes)
        if found is None:
            break
        chosen, positives = found
        value = tree.value[tree.leaves][chosen]
        longer = Paths(
            paths.boxes,
            np.column_stack([paths.leaf, chosen + offset]),
            np.column_stack([paths.margin, paths.margin[:, -1] + value]),
            [*paths.positives, positives],
        )
        offset += len(tree.leaves)
        if not _untangle(longer, world):
            break
        paths = longer
        paths.boxes = _boxes(paths, world)
    return paths


def _leaf_of_boxes(world: World, boxes: Boxes, n_leaves: int) -> NDArray[np.int64]:
    """Return the first tree's leaf of every box."""
    low, high = world.box[:n_leaves, :, 0], world.box[:n_leaves, :, 1]
    inside = (boxes.lo[:, None] >= low).all(axis=2) & (boxes.hi[:, None] <= high).all(axis=2)
    return inside.argmax(axis=1)


def _boxes(paths: Paths, world: World) -> Boxes:
    """Return the rows as they stand after the solved trees."""
    lo, hi = _bounds(world, paths.leaf)
    way = np.column_stack([paths.leaf, paths.boxes.y])
    _, history = np.unique(way, axis=0, return_inverse=True)
    return Boxes(
        lo, hi, paths.boxes.y, paths.margin[:, -1].copy(), history.reshape(-1).astype(np.int64)
    )


def _bounds(world: World, leaf: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the common part of the boxes of leaves; leaf has shape (..., q)."""
    box = world.box[leaf]
    return box[..., 0].max(axis=-2), box[..., 1].min(axis=-2)


def _solve_tree(
    evidence: Evidence, t: int, sums: LeafSums, grid: Grid, prior: Prior, boxes: Boxes
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return every row's leaf of a tree and the leaves' positives, None where one stays open."""
    share, can = _shares(evidence, t, sums, grid, prior, boxes)
    margin, group = np.unique(boxes.margin, return_inverse=True)
    p, h = gradients(margin, np.zeros(len(margin)))
    ph = to_fixed(p), to_fixed(h)
    assert sums.g is not None
    assert sums.h is not None
    target = np.rint(np.stack([sums.g, sums.h], axis=1) * UNIT).astype(np.int64)
    found = _solve_leaves(share, can, group, ph, target)
    if found is None:
        return None
    count, positives, share = found
    return _hand_out(share, group, count), positives


def _shares(
    evidence: Evidence, t: int, sums: LeafSums, grid: Grid, prior: Prior, boxes: Boxes
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the maximum-entropy probability of every leaf for every row, and what it reaches."""
    leaves = grid.leaves(evidence.trees[t])
    n, J = len(boxes.y), len(leaves)
    options = reach(leaves, (boxes.lo, boxes.hi, boxes.y), prior)
    if len(prior.own):
        add_own_rows(
            options.offsets, options.leaf, options.log_prior, boxes.lo, boxes.hi, boxes.y,
            prior.own_cells, prior.own.y, sums.own_leaf, J,
        )  # fmt: skip
    target, ridge = equations(evidence, t, sums, leaves)
    x = contributions(evidence, t, sums, leaves, options, gradients(boxes.margin, boxes.y))
    solution = max_entropy(options, np.ones(n), x, target, ridge)
    share, can = np.zeros((n, J)), np.zeros((n, J), dtype=bool)
    row = np.repeat(np.arange(n), np.diff(options.offsets))
    share[row, options.leaf] = np.maximum(solution.probability, 1e-12)
    can[row, options.leaf] = True
    return share, can


def _solve_leaves(
    share: Floats,
    can: NDArray[np.bool_],
    group: NDArray[np.intp],
    ph: tuple[NDArray[np.int64], NDArray[np.int64]],
    target: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats] | None:
    """Return rows per margin and leaf, positives per leaf, and the shares that agree with them."""
    n, J = share.shape
    member = np.zeros((len(ph[0]), n))
    member[group, np.arange(n)] = 1.0
    size, reached = member.sum(axis=1).astype(np.int64), (member @ can).astype(np.int64)
    count, positives = np.zeros((len(size), J), dtype=np.int64), np.zeros(J, dtype=np.int64)
    is_open = np.ones(J, dtype=bool)
    for length, outside in ROUNDS:
        progress = True
        while is_open.any() and progress:
            share = _fit(share, member, group, count, ~is_open)
            left = (size - count.sum(axis=1))[:, None]
            cap = np.minimum(left, np.full_like(reached, n) if outside else reached)
            mean = np.clip(member @ share / np.maximum(cap, 1), outside, 1.0)
            bits = (0.5 * np.log2(1 + 12 * cap * mean * (1 - mean))).sum(axis=0)
            progress = False
            for j in np.argsort(bits):
                if not is_open[j] or (progress and bits[j] > FEW_BITS):
                    continue
                left_now = size - count.sum(axis=1)
                k = np.flatnonzero(np.minimum(cap[:, j], left_now) > 0)
                contents = solve_leaf(
                    np.minimum(cap[k, j], left_now[k]), np.clip(mean[k, j], LEAST, 1 - LEAST),
                    (ph[0][k], ph[1][k]), (int(target[j, 0]), int(target[j, 1])), length,
                )  # fmt: skip
                if contents is not None:
                    count[k, j], positives[j] = contents.count, contents.positives
                    is_open[j], progress = False, True
    if is_open.any() or (count.sum(axis=1) != size).any():
        return None
    return count, positives, _fit(share, member, group, count, ~is_open)


def _fit(
    share: Floats,
    member: Floats,
    group: NDArray[np.intp],
    count: NDArray[np.int64],
    solved: NDArray[np.bool_],
) -> Floats:
    """Scale shares until they add up to the counts of solved leaves and to 1 per row."""
    for _ in range(SHARING if solved.any() else 0):
        total = member @ share
        factor = np.divide(count, total, out=np.zeros_like(total), where=total > 1e-15)
        share = share * np.where(solved, factor, 1.0)[group]
        share = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-300)
    return share


def _hand_out(
    share: Floats, group: NDArray[np.intp], count: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Give every row of a margin one of the leaves counted for it, the likeliest way."""
    chosen = np.empty(len(share), dtype=np.int64)
    cost = -np.log(np.maximum(share, 1e-14))
    for k in range(len(count)):
        rows = np.flatnonzero(group == k)
        slots = np.repeat(np.arange(count.shape[1]), count[k])
        mine, slot = linear_sum_assignment(cost[np.ix_(rows, slots)])
        chosen[rows[mine]] = slots[slot]
    return chosen


def _untangle(paths: Paths, world: World) -> bool:
    """Let rows with an empty box trade the rest of their way with rows of equal margin, in place.

    Returns False where one cannot be helped.
    """
    lo, hi = _bounds(world, paths.leaf)
    return all(_trade(paths, world, int(i)) for i in np.flatnonzero((lo >= hi).any(axis=1)))


def _trade(paths: Paths, world: World, i: int) -> bool:
    if _fits(world, paths.leaf[i]):  # an earlier trade helped
        return True
    for t in range(paths.leaf.shape[1] - 1, 0, -1):
        for other in np.flatnonzero(paths.margin[:, t] == paths.margin[i, t]):
            pair, swapped = [i, int(other)], [int(other), i]
            leaf, margin = paths.leaf[pair], paths.margin[pair]
            leaf[:, t:], margin[:, t:] = paths.leaf[swapped, t:], paths.margin[swapped, t:]
            if _fits(world, leaf[0]) and _fits(world, leaf[1]):
                paths.leaf[pair], paths.margin[pair] = leaf, margin
                return True
    return False


def _fits(world: World, leaf: NDArray[np.int64]) -> bool:
    lo, hi = _bounds(world, leaf)
    return bool((lo < hi).all())
