"""Feature Range Inference: follow the victims' rows from tree to tree, narrowing their boxes.

Every row of the reconstruction is assigned to one leaf of each tree, so that the sums over the rows
of a leaf agree with the sums that the adversary received (Di Gennaro et al. 2025, Sec. 5.2). The
box of the row is intersected with the box of its leaf, and the leaf value is added to its margin
(Eq. 10). The gradients of the next tree follow from the new margins.

A tree of another client was not grown on the victims' rows, so that its sums contain no information
about them. Its values however are part of the margins on which the victims grow their next trees
(Sec. 5.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import LeafSums
from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    add_values,
    gradients_of,
    of_output,
)
from fedtrees.attacks.reconstruction.boxes import FeatureBoxes, Grid, LeafConstraints, send
from fedtrees.attacks.reconstruction.context import contributions, equations, slopes
from fedtrees.attacks.reconstruction.maxent import draw_leaves, max_entropy
from fedtrees.attacks.reconstruction.prior import Prior, ReachableLeaves, add_own_rows, reach
from fedtrees.attacks.timberstrike.assignment_solvers import (
    redraw_leaves,
    search_leaves,
    solve_counts,
)
from fedtrees.attacks.timberstrike.options import Options
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Boxed = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]

# Factor on the variance of margins. The error of a row is the same in every later tree, so that it
# matters more than independent noise. Measured on Pima, bagging, three seeds: RA 73.6 with factor
# 0, 74.4 with 1, 74.7 with 3.
REPEATED = 3.0


def expected_values(
    boxed: Boxed, tree: Tree, leaves: LeafConstraints, own_leaf: NDArray[np.int32], prior: Prior
) -> tuple[Floats, Floats]:
    """Return mean and variance of the values that a foreign tree adds to the rows of boxes.

    The leaves that a box reaches are weighted by the prior and by local rows of the same label.
    Without local rows, the weight of a leaf is its part of the box times its hessian sum, which
    shows where the rows of the other client are. Di Gennaro et al. (2025, Sec. 5.3) use only the
    hessian sum.

    Parameters
    ----------
    boxed : (lo, hi, y, missing)
        Cells ``lo <= cell < hi``, int32 arrays, shape (n, d); labels, shape (n,); and whether a
        value may be missing, shape (n, d).
    tree : Tree
        The foreign tree.
    leaves : LeafConstraints
        Its leaves on the grid.
    own_leaf : int32 array, shape (r,)
        Position of the leaf of every row of the prior.
    prior : Prior
        Distribution of the rows.

    Returns
    -------
    mean, variance : float64 array, shape (n,)
    """
    lo, hi, y, missing = boxed
    options = reach(leaves, (lo, hi, y), prior, missing, own_leaf)
    weight = np.exp(options.log_prior)
    if tree.h is not None and not len(prior.rows):
        weight *= np.maximum(tree.h[leaves.node], 1e-9)[options.leaf]
    value = tree.value[leaves.node].astype(np.float64)[options.leaf]
    start = options.offsets[:-1]
    total = np.add.reduceat(weight, start)
    mean = np.add.reduceat(weight * value, start) / total
    square = np.add.reduceat(weight * value**2, start) / total
    return mean, np.maximum(square - mean**2, 0.0)


def doubt_in_sums(
    options: ReachableLeaves,
    doubt: Floats,
    by_margin: tuple[Floats, Floats],
    slope: Floats | None,
    n_leaves: int,
) -> Floats:
    """Return the variance of leaf sums due to uncertain margins, float64, shape (J, K).

    Parameters
    ----------
    options : ReachableLeaves
        Reachable leaves of n groups of rows.
    doubt : float64 array, shape (n,)
        Variance of the margin times the number of rows of the group.
    by_margin : pair of float64 array, shape (n,)
        Derivatives of the gradient and of the hessian of a row with respect to its margin.
    slope : float64 array, shape (J,), or None
        ``v / eta`` if only leaf values are visible (K = 1). None if the sums of g and h are
        visible (K = 2).
    n_leaves : int
        Number of leaves, J.
    """
    dg, dh = by_margin
    width = np.diff(options.offsets)
    share = np.exp(options.log_prior)
    share /= np.repeat(np.add.reduceat(share, options.offsets[:-1]), width)
    # The variance in a leaf is proportional to the share of the rows that reach it.
    share *= np.repeat(REPEATED * doubt, width)
    dg, dh = np.repeat(dg, width), np.repeat(dh, width)
    parts = (dg, dh) if slope is None else (dg + slope[options.leaf] * dh,)
    return np.stack(
        [np.bincount(options.leaf, share * part**2, n_leaves) for part in parts], axis=1
    )


def follow(
    evidence: BoostingObservations,
    sums: list[LeafSums],
    grid: Grid,
    prior: Prior,
    boxes: FeatureBoxes,
    options: Options,
    rng: np.random.Generator,
    first: int = 1,
) -> None:
    """Assign the rows to leaves of each tree from tree ``first`` on, and narrow their boxes.

    All trees of a round are grown on the margins before the round. Under row subsampling, the rows
    that take part in a round are guessed, too, and are the same for all trees of the round. Rows
    that do not take part are assigned by the prior.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and public parameters of the training.
    sums : list of LeafSums
        Sums of the leaves, one entry per tree to follow.
    grid : Grid
        Thresholds of all trees.
    prior : Prior
        Local rows and value ranges.
    boxes : FeatureBoxes
        The reconstruction so far. Changed in place.
    options : Options
        Options of the attack, for example the solver.
    rng : numpy.random.Generator
        The only source of randomness.
    first : int
        Number of trees whose leaves the boxes already reflect.
    """
    before, in_tree = boxes.margin, boxes.first
    if first == 1 and in_tree is not None:
        _lead(evidence, grid, prior, sums[0].own_leaf, boxes, np.flatnonzero(~in_tree), rng)
        boxes.inside.append(in_tree)
    for t in range(first, len(sums)):
        tree, k = evidence.trees[t], t % evidence.outputs
        leaves = grid.leaves(tree)
        if evidence.restart is not None and t == evidence.restart[0]:
            boxes.margin += evidence.restart[1]
        if k == 0:  # all trees of a round use the margins before the round
            before = boxes.margin.copy()
        if evidence.is_foreign(t):
            if len(boxes.y):
                _move_margins(tree, k, leaves, sums[t].own_leaf, prior, boxes)
            continue
        if (len(leaves) > 1 or boxes.share is not None) and len(boxes.y):
            if k == 0 and t >= evidence.outputs:
                in_tree = None
            chosen, in_tree = _assign(
                evidence, t, sums[t], leaves, prior, boxes, before, in_tree, options, rng
            )
        else:
            chosen = np.zeros(len(boxes.y), dtype=np.int32)
        if in_tree is not None:
            boxes.inside.append(in_tree)
        send(boxes, leaves, chosen)
        add_values(boxes.margin, k, tree.value[leaves.node][chosen])


def _lead(
    evidence: BoostingObservations,
    grid: Grid,
    prior: Prior,
    own_leaf: NDArray[np.int32],
    boxes: FeatureBoxes,
    rows: NDArray[np.intp],
    rng: np.random.Generator,
) -> None:
    """Assign rows that the first tree was not grown on to its leaves, by the prior."""
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    lo, hi, y, missing, codes = (a[rows] for a in _parts(boxes))
    reachable = reach(leaves, (lo, hi, y), prior, missing, own_leaf, codes)
    each = np.arange(len(rows))
    chosen = draw_leaves(reachable, shares(reachable), each, rng.random(len(rows)))
    send(boxes, leaves, chosen, rows)
    boxes.margin[rows] += tree.value[leaves.node][chosen]


def _parts(boxes: FeatureBoxes) -> tuple[NDArray[Any], ...]:
    """Return the arrays of the boxes in the order lo, hi, y, missing, codes."""
    return boxes.lo, boxes.hi, boxes.y, boxes.missing, boxes.codes


def _move_margins(
    tree: Tree,
    output: int,
    leaves: LeafConstraints,
    own_leaf: NDArray[np.int32],
    prior: Prior,
    boxes: FeatureBoxes,
) -> None:
    """Add the expected value of a foreign tree to the margin of every row, in place."""
    _, first, group = np.unique(boxes.history, return_index=True, return_inverse=True)
    boxed = boxes.lo[first], boxes.hi[first], boxes.y[first], boxes.missing[first]
    mean, variance = expected_values(boxed, tree, leaves, own_leaf, prior)
    add_values(boxes.margin, output, mean.astype(np.float32)[group])
    if boxes.doubt is None:
        boxes.doubt = np.zeros(boxes.margin.shape)
    add_values(boxes.doubt, output, variance[group])


def _assign(
    evidence: BoostingObservations,
    t: int,
    sums: LeafSums,
    leaves: LeafConstraints,
    prior: Prior,
    boxes: FeatureBoxes,
    margin: NDArray[np.float32],
    in_tree: NDArray[np.bool_] | None,
    options: Options,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
    """Choose a leaf of tree ``t``, which was grown on the given margins, for every row.

    Under row subsampling, also return which rows took part. ``in_tree`` contains them if an earlier
    tree of the round has determined them.
    """
    # Rows with equal history have equal boxes, margins and labels. They form one group.
    share = boxes.share if in_tree is None else in_tree.astype(np.float64)
    group_key = boxes.history if in_tree is None else 2 * boxes.history + in_tree
    _, first, group, size = np.unique(
        group_key, return_index=True, return_inverse=True, return_counts=True
    )
    lo, hi, y, missing, codes = (part[first] for part in _parts(boxes))
    reachable = reach(leaves, (lo, hi, y), prior, missing, codes=codes)
    if options.random_leaf:
        chosen = draw_leaves(reachable, _evenly(reachable), group, rng.random(len(group)))
        return chosen, None if share is None else rng.random(len(share)) < share
    row_targets = (
        np.zeros(len(y)) if evidence.targets is None else evidence.targets.values[lo[:, -1]]
    )
    g, h = gradients_of(evidence, margin[first], y, row_targets, t % evidence.outputs)
    target, ridge = equations(evidence, t, sums, leaves)
    if boxes.doubt is not None:  # uncertain margins make the sums of the rows uncertain, too
        doubt = of_output(boxes.doubt, t % evidence.outputs)[first] * size
        slope = None if ridge.shape[1] == 2 else slopes(evidence, t, leaves)
        by_margin = _by_margin(evidence, t, g, h, y)
        ridge = ridge + doubt_in_sums(reachable, doubt, by_margin, slope, len(leaves))
    x = contributions(evidence, t, sums, leaves, reachable, (g, h))

    def add_own(to: ReachableLeaves, at: NDArray[np.bool_] | slice) -> None:
        if options.solver == "max-ent" and len(prior.rows):
            boxed = lo[at], hi[at], y[at]
            own_leaf = sums.own_leaf
            add_own_rows(to, boxed, prior, own_leaf, len(leaves), missing[at], codes[at])

    if share is None:
        system = _System(reachable, x, target, ridge, size, group, add_own)
        return _choose(system, boxes, options, rng), None
    add_own(reachable, slice(None))
    present, x = with_absence(reachable, x, share[first], len(leaves))
    target, ridge = np.pad(target, ((0, 1), (0, 0))), np.pad(ridge, ((0, 1), (0, 0)))
    chosen = _choose(_System(present, x, target, ridge, size, group), boxes, options, rng)
    # Absent rows still have a leaf, whose value is added to their margin. It is drawn by the prior.
    absent = chosen == len(leaves)
    u = rng.random(int(absent.sum()))
    chosen[absent] = draw_leaves(reachable, shares(reachable), group[absent], u)
    return chosen, ~absent


def _by_margin(
    evidence: BoostingObservations, t: int, g: Floats, h: Floats, y: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the derivatives of the gradient and of the hessian of each row by its margin."""
    if evidence.targets is not None:
        return np.ones_like(g), np.zeros_like(g)
    probability = g + (y == evidence.class_of(t))
    return probability * (1 - probability), h * (1 - 2 * probability)


@dataclass(frozen=True, eq=False)
class _System:
    """The sums of the leaves of a tree, as equations for the leaves of groups of equal rows.

    Attributes
    ----------
    reachable : ReachableLeaves
        Reachable leaves of m groups.
    x : float64 array, shape (nnz, K)
        Contribution of one row to each equation of a leaf.
    target, ridge : float64 array, shape (J, K)
        Sums of the leaves, and their variances.
    size : int array, shape (m,)
        Number of rows of every group.
    group : int array, shape (n,)
        Group of every row.
    add_own : callable, optional
        Adds local rows to the prior of the selected groups, in place.
    """

    reachable: ReachableLeaves
    x: Floats
    target: Floats
    ridge: Floats
    size: NDArray[np.intp]
    group: NDArray[np.intp]
    add_own: Callable[[ReachableLeaves, NDArray[np.bool_]], None] | None = None


def _choose(
    system: _System, boxes: FeatureBoxes, options: Options, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Return a leaf for every row, and append the L1 distance of the sums to the boxes."""
    reachable, x, size, group = system.reachable, system.x, system.size, system.group
    target = system.target
    # Rows that reach a single leaf have no choice. Their contribution is subtracted from the sums.
    free = np.diff(reachable.offsets) > 1
    fixed_entries = reachable.offsets[:-1][~free]
    np.subtract.at(target, reachable.leaf[fixed_entries], x[fixed_entries] * size[~free, None])
    chosen = np.empty(len(group), dtype=np.int32)
    row_free = free[group]
    chosen[~row_free] = reachable.leaf[reachable.offsets[group[~row_free]]]
    left_over = float(np.abs(target).sum())
    if row_free.any():
        sub, x = _only(reachable, x, free)
        if system.add_own is not None:
            system.add_own(sub, free)
        rows = (np.cumsum(free) - 1)[group[row_free]]
        chosen[row_free], left_over = _solve(
            sub, size[free], x, target, system.ridge, rows, options, rng
        )
    boxes.residual.append(left_over)
    return chosen


def _solve(
    sub: ReachableLeaves,
    size: NDArray[np.intp],
    x: Floats,
    target: Floats,
    ridge: Floats,
    rows: NDArray[np.intp],
    options: Options,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], float]:
    """Return the leaves of rows that can reach several leaves, and the L1 distance of the sums.

    ``sub`` contains the reachable leaves of groups of ``size`` equal rows. ``rows`` is the group of
    each row. The integer programme falls back on the local search if it finds no solution in time.
    """
    if options.solver == "max-ent":
        P = max_entropy(sub, size.astype(np.float64), x, target, ridge)
        start = draw_leaves(sub, P, rows, rng.random(len(rows)))
        each, x_each = _expand(sub, x, rows)
        return redraw_leaves(each, x_each, target, ridge, start, int(rng.integers(2**63)))
    if options.solver == "milp":
        solution = solve_counts(sub, size, x, target, options.time_limit)
        if solution is not None:
            return _hand_out(sub, solution[0], rows), solution[1]
    each, x_each = _expand(sub, x, rows)
    start = draw_leaves(each, _evenly(each), np.arange(len(rows)), rng.random(len(rows)))
    return search_leaves(each, x_each, target, start, int(rng.integers(2**63)))


def with_absence(
    r: ReachableLeaves, x: Floats, share: Floats, nowhere: int
) -> tuple[ReachableLeaves, Floats]:
    """Add "not in this tree" as a further choice to the reachable leaves of each group.

    Under row subsampling, a row may be absent from a tree. An absent row contributes nothing to the
    sums.

    Parameters
    ----------
    r : ReachableLeaves
        Reachable leaves of m groups of rows.
    x : float64 array, shape (nnz, K)
        Contribution of one row to each equation of a leaf.
    share : float64 array, shape (m,)
        Probability that a row takes part in the tree. A group with probability 1 gets no additional
        entry. A group with probability 0 keeps no leaf.
    nowhere : int
        Number of the additional leaf that represents absence.

    Returns
    -------
    (ReachableLeaves, float64 array, shape (nnz', K))
        The extended entries and their contributions.
    """
    width = np.diff(r.offsets)
    group = np.repeat(np.arange(len(width)), width)
    possible, out = share[group] > 0, share < 1
    with np.errstate(divide="ignore"):
        inside = (np.log(shares(r)) + np.log(share)[group])[possible]
        outside = np.log1p(-share)[out]
    # Insert the new entry of each group after its leaves. The sort is stable for this reason.
    order = np.argsort(np.concatenate([group[possible], np.flatnonzero(out)]), kind="stable")
    size = np.bincount(group[possible], minlength=len(width)) + out
    leaf = np.concatenate([r.leaf[possible], np.full(out.sum(), nowhere, dtype=np.int32)])[order]
    return (
        ReachableLeaves(
            np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
            leaf.astype(np.int32),
            np.concatenate([inside, outside])[order],
        ),
        np.concatenate([x[possible], np.zeros((out.sum(), x.shape[1]))])[order],
    )


def shares(r: ReachableLeaves) -> Floats:
    """Return the prior probability of every reachable leaf of every row, float64, shape (nnz,)."""
    start, width = r.offsets[:-1], np.diff(r.offsets)
    # Subtract the largest log probability of each row, so that the exponential cannot overflow.
    top = np.maximum.reduceat(r.log_prior, start) if len(start) else np.zeros(0)
    weight = np.exp(r.log_prior - np.repeat(top, width))
    total = np.add.reduceat(weight, start) if len(start) else np.zeros(0)
    return weight / np.repeat(total, width)  # type: ignore[no-any-return]


def _evenly(r: ReachableLeaves) -> Floats:
    """Return equal probabilities for all reachable leaves of a row, float64, shape (nnz,)."""
    width = np.diff(r.offsets)
    return np.repeat(1.0 / width, width)


def _only(r: ReachableLeaves, x: Floats, rows: NDArray[np.bool_]) -> tuple[ReachableLeaves, Floats]:
    """Return the entries of the selected rows."""
    width = np.diff(r.offsets)
    keep = np.repeat(rows, width)
    offsets = np.concatenate([[0], np.cumsum(width[rows])]).astype(np.int64)
    return ReachableLeaves(offsets, r.leaf[keep], r.log_prior[keep]), x[keep]


def _expand(
    r: ReachableLeaves, x: Floats, rows: NDArray[np.intp]
) -> tuple[ReachableLeaves, Floats]:
    """Return the entries of every single row, given those of its group."""
    width = np.diff(r.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    entry = np.repeat(r.offsets[:-1][rows] - offsets[:-1], width) + np.arange(offsets[-1])
    return ReachableLeaves(offsets, r.leaf[entry], r.log_prior[entry]), x[entry]


def _hand_out(
    r: ReachableLeaves, count: NDArray[np.int64], rows: NDArray[np.intp]
) -> NDArray[np.int32]:
    """Assign the leaves of a group, as often as they were counted, to its rows."""
    out = np.empty(len(rows), dtype=np.int32)
    left = count.copy()
    for m, i in enumerate(rows):
        e = int(r.offsets[i])
        while left[e] == 0:
            e += 1
        left[e] -= 1
        out[m] = r.leaf[e]
    return out
