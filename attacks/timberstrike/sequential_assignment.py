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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import LeafSums
from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    add_values,
    gradients_of,
    of_output,
)
from fedtrees.attacks.reconstruction.boxes import (
    FeatureBoxes,
    Grid,
    LeafConstraints,
    narrow_to_leaves,
)
from fedtrees.attacks.reconstruction.context import contributions, equations, slopes
from fedtrees.attacks.reconstruction.maxent import draw_leaves, max_entropy
from fedtrees.attacks.reconstruction.prior import Prior, ReachableLeaves, add_prior_rows, reach
from fedtrees.attacks.timberstrike.assignment_solvers import redraw_leaves, search_leaves
from fedtrees.attacks.timberstrike.options import Options
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]
Boxed = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_]]

# Factor on the variance of margins. The error of a row is the same in every later tree, so that it
# matters more than independent noise. Measured on Pima, bagging, three seeds: RA 73.6 with factor
# 0, 74.4 with 1, 74.7 with 3.
REPEATED = 3.0


def expected_values(
    boxed: Boxed, tree: Tree, leaves: LeafConstraints, prior_leaf: NDArray[np.int32], prior: Prior
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
    prior_leaf : int32 array, shape (r,)
        Position of the leaf of every row of the prior.
    prior : Prior
        Distribution of the rows.

    Returns
    -------
    mean, variance : float64 array, shape (n,)
    """
    lo, hi, y, missing = boxed
    reachable = reach(leaves, (lo, hi, y), prior, missing, prior_leaf)
    weight = np.exp(reachable.log_prior)
    if tree.h is not None and not len(prior.rows):
        weight *= np.maximum(tree.h[leaves.node], 1e-9)[reachable.leaf]
    value = tree.value[leaves.node].astype(np.float64)[reachable.leaf]
    start = reachable.offsets[:-1]
    total = np.add.reduceat(weight, start)
    mean = np.add.reduceat(weight * value, start) / total
    square = np.add.reduceat(weight * value**2, start) / total
    return mean, np.maximum(square - mean**2, 0.0)


def variance_of_sums(
    reachable: ReachableLeaves,
    margin_variance: Floats,
    by_margin: tuple[Floats, Floats],
    slope: Floats | None,
    n_leaves: int,
) -> Floats:
    """Return the variance of leaf sums due to uncertain margins, float64, shape (J, K).

    Parameters
    ----------
    reachable : ReachableLeaves
        Reachable leaves of n groups of rows.
    margin_variance : float64 array, shape (n,)
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
    width = np.diff(reachable.offsets)
    share = np.exp(reachable.log_prior)
    share /= np.repeat(np.add.reduceat(share, reachable.offsets[:-1]), width)
    # The variance in a leaf is proportional to the share of the rows that reach it.
    share *= np.repeat(REPEATED * margin_variance, width)
    dg, dh = np.repeat(dg, width), np.repeat(dh, width)
    parts = (dg, dh) if slope is None else (dg + slope[reachable.leaf] * dh,)
    return np.stack(
        [np.bincount(reachable.leaf, share * part**2, n_leaves) for part in parts], axis=1
    )


def assign_rows_tree_by_tree(
    evidence: BoostingObservations,
    sums: list[LeafSums],
    grid: Grid,
    prior: Prior,
    boxes: FeatureBoxes,
    options: Options,
    rng: np.random.Generator,
    n_assigned: int = 1,
) -> None:
    """Assign the rows to the leaves of one tree after the other, and narrow their boxes.

    All trees of a round are grown on the margins before the round. Under row subsampling, the rows
    that take part in a round are guessed, too, and are the same for all trees of the round. Rows
    that do not take part are assigned by the prior.

    Parameters
    ----------
    evidence : BoostingObservations
        Trees and public parameters of the training.
    sums : list of LeafSums
        Sums of the leaves, one entry per tree.
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
    n_assigned : int
        Number of trees whose leaves the boxes already reflect. The assignment continues with the
        next tree.
    """
    before, in_tree = boxes.margin, boxes.in_first_round
    if n_assigned == 1 and in_tree is not None:
        absent = np.flatnonzero(~in_tree)
        _assign_absent_rows(evidence, grid, prior, sums[0].prior_leaf, boxes, absent, rng)
        boxes.participants.append(in_tree)
    for t in range(n_assigned, len(sums)):
        tree, k = evidence.trees[t], t % evidence.outputs
        leaves = grid.leaves(tree)
        if evidence.restart is not None and t == evidence.restart[0]:
            boxes.margin += evidence.restart[1]
        if k == 0:  # all trees of a round use the margins before the round
            before = boxes.margin.copy()
        if evidence.is_foreign(t):
            if len(boxes.y):
                _move_margins(tree, k, leaves, sums[t].prior_leaf, prior, boxes)
            continue
        if (len(leaves) > 1 or boxes.participation is not None) and len(boxes.y):
            if k == 0 and t >= evidence.outputs:
                in_tree = None
            step = _Step(evidence, t, sums[t], leaves, prior, options)
            chosen, in_tree = step.assign(boxes, before, in_tree, rng)
        else:
            chosen = np.zeros(len(boxes.y), dtype=np.int32)
        if in_tree is not None:
            boxes.participants.append(in_tree)
        narrow_to_leaves(boxes, leaves, chosen)
        add_values(boxes.margin, k, tree.value[leaves.node][chosen])


def _assign_absent_rows(
    evidence: BoostingObservations,
    grid: Grid,
    prior: Prior,
    prior_leaf: NDArray[np.int32],
    boxes: FeatureBoxes,
    rows: NDArray[np.intp],
    rng: np.random.Generator,
) -> None:
    """Assign the rows that were not in the first tree to one of its leaves, drawn from the prior.

    The value of the leaf is added to their margins as well.
    """
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    lo, hi, y, missing, codes = (
        a[rows] for a in (boxes.lo, boxes.hi, boxes.y, boxes.missing, boxes.codes)
    )
    reachable = reach(leaves, (lo, hi, y), prior, missing, prior_leaf, codes)
    each = np.arange(len(rows))
    chosen = draw_leaves(reachable, prior_shares(reachable), each, rng.random(len(rows)))
    narrow_to_leaves(boxes, leaves, chosen, rows)
    boxes.margin[rows] += tree.value[leaves.node][chosen]


def _move_margins(
    tree: Tree,
    output: int,
    leaves: LeafConstraints,
    prior_leaf: NDArray[np.int32],
    prior: Prior,
    boxes: FeatureBoxes,
) -> None:
    """Add the expected value of a foreign tree to the margin of every row, in place."""
    _, row, group = np.unique(boxes.history, return_index=True, return_inverse=True)
    boxed = boxes.lo[row], boxes.hi[row], boxes.y[row], boxes.missing[row]
    mean, variance = expected_values(boxed, tree, leaves, prior_leaf, prior)
    add_values(boxes.margin, output, mean.astype(np.float32)[group])
    if boxes.margin_variance is None:
        boxes.margin_variance = np.zeros(boxes.margin.shape)
    add_values(boxes.margin_variance, output, variance[group])


@dataclass(frozen=True, eq=False)
class _Groups:
    """Groups of equal rows: rows with equal history have equal boxes, margins and labels.

    Attributes
    ----------
    group : int array, shape (n,)
        Group of every row.
    size : int array, shape (m,)
        Number of rows of every group.
    row : int array, shape (m,)
        One row of every group.
    lo, hi, y, missing, codes
        Boxes and labels of the groups, see `FeatureBoxes`.
    """

    group: NDArray[np.intp]
    size: NDArray[np.intp]
    row: NDArray[np.intp]
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    y: NDArray[np.int64]
    missing: NDArray[np.bool_]
    codes: NDArray[np.uint64]

    @staticmethod
    def of(boxes: FeatureBoxes, in_tree: NDArray[np.bool_] | None) -> _Groups:
        """Group rows. If ``in_tree`` is known, rows in the tree and other rows are separated."""
        key = boxes.history if in_tree is None else 2 * boxes.history + in_tree
        _, row, group, size = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        parts = (boxes.lo, boxes.hi, boxes.y, boxes.missing, boxes.codes)
        return _Groups(group, size, row, *(part[row] for part in parts))


@dataclass(frozen=True, eq=False)
class _System:
    """The sums of the leaves of a tree, as equations for the leaves of groups of equal rows.

    Attributes
    ----------
    reachable : ReachableLeaves
        Reachable leaves of m groups.
    x : float64 array, shape (nnz, K)
        Contribution of one row to each equation of a leaf.
    target, variance : float64 array, shape (J, K)
        Sums of the leaves, and their variances.
    """

    reachable: ReachableLeaves
    x: Floats
    target: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class _Step:
    """The assignment of all rows to the leaves of one tree.

    Attributes
    ----------
    evidence : BoostingObservations
        Trees and public parameters of the training.
    t : int
        Index of the tree.
    sums : LeafSums
        Sums of its leaves.
    leaves : LeafConstraints
        Its leaves on the grid.
    prior : Prior
        Local rows and value ranges.
    options : Options
        Options of the attack.
    """

    evidence: BoostingObservations
    t: int
    sums: LeafSums
    leaves: LeafConstraints
    prior: Prior
    options: Options

    def assign(
        self,
        boxes: FeatureBoxes,
        margin: NDArray[np.float32],
        in_tree: NDArray[np.bool_] | None,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
        """Return a leaf for every row, and under row subsampling which rows are in the tree.

        The tree was grown on the given margins. ``in_tree`` contains the rows that are in it if an
        earlier tree of the round has determined them. The L1 distance of the sums is appended to
        the residuals of the boxes.
        """
        participation = boxes.participation if in_tree is None else in_tree.astype(np.float64)
        groups = _Groups.of(boxes, in_tree)
        box = groups.lo, groups.hi, groups.y
        reachable = reach(self.leaves, box, self.prior, groups.missing, codes=groups.codes)
        if self.options.random_leaf:
            u = rng.random(len(groups.group))
            chosen = draw_leaves(reachable, _uniform_shares(reachable), groups.group, u)
            if participation is None:
                return chosen, None
            return chosen, rng.random(len(participation)) < participation
        system = self._system(boxes, margin, groups, reachable)
        if participation is None:
            chosen, residual = self._choose(system, groups, rng)
            in_tree = None
        else:
            chosen, in_tree, residual = self._choose_sampled(system, groups, participation, rng)
        boxes.residual.append(residual)
        return chosen, in_tree

    def _system(
        self,
        boxes: FeatureBoxes,
        margin: NDArray[np.float32],
        groups: _Groups,
        reachable: ReachableLeaves,
    ) -> _System:
        """Write the sums of the leaves as equations for the groups."""
        evidence, t, row = self.evidence, self.t, groups.row
        targets = evidence.targets
        row_targets = np.zeros(len(row)) if targets is None else targets.values[groups.lo[:, -1]]
        output = t % evidence.outputs
        g, h = gradients_of(evidence, margin[row], groups.y, row_targets, output)
        target, variance = equations(evidence, t, self.sums, self.leaves)
        # uncertain margins make the sums of the rows uncertain, too
        if boxes.margin_variance is not None:
            of_group = of_output(boxes.margin_variance, output)[row] * groups.size
            slope = None if variance.shape[1] == 2 else slopes(evidence, t, self.leaves)
            by_margin = _by_margin(evidence, t, g, h, groups.y)
            variance = variance + variance_of_sums(
                reachable, of_group, by_margin, slope, len(self.leaves)
            )
        x = contributions(evidence, t, self.sums, self.leaves, reachable, (g, h))
        return _System(reachable, x, target, variance)

    def _add_local_rows(
        self, reachable: ReachableLeaves, groups: _Groups, at: NDArray[np.bool_] | slice
    ) -> None:
        """Add the local rows to the prior of the selected groups, in place."""
        if self.options.solver == "max-ent" and len(self.prior.rows):
            box = groups.lo[at], groups.hi[at], groups.y[at]
            missing_and_codes = groups.missing[at], groups.codes[at]
            add_prior_rows(
                reachable,
                box,
                self.prior,
                self.sums.prior_leaf,
                len(self.leaves),
                *missing_and_codes,
            )

    def _choose_sampled(
        self, system: _System, groups: _Groups, participation: Floats, rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_], float]:
        """Return a leaf for every row, whether the row is in the tree, and the residual."""
        reachable, absence = system.reachable, len(self.leaves)
        self._add_local_rows(reachable, groups, slice(None))
        with_choice, x = with_absence(reachable, system.x, participation[groups.row], absence)
        target, variance = (
            np.pad(part, ((0, 1), (0, 0))) for part in (system.target, system.variance)
        )
        extended = _System(with_choice, x, target, variance)
        chosen, residual = self._choose(extended, groups, rng, adds_local_rows=False)
        # Absent rows still have a leaf, whose value is added to their margin. It is drawn by the
        # prior.
        absent = chosen == absence
        u = rng.random(int(absent.sum()))
        chosen[absent] = draw_leaves(reachable, prior_shares(reachable), groups.group[absent], u)
        return chosen, ~absent, residual

    def _choose(
        self,
        system: _System,
        groups: _Groups,
        rng: np.random.Generator,
        *,
        adds_local_rows: bool = True,
    ) -> tuple[NDArray[np.int32], float]:
        """Return a leaf for every row, and the L1 distance of the sums."""
        reachable, target = system.reachable, system.target.copy()
        group, size = groups.group, groups.size
        # Rows that reach a single leaf have no choice. Their contribution is subtracted.
        free = np.diff(reachable.offsets) > 1
        fixed_entries = reachable.offsets[:-1][~free]
        fixed_sums = system.x[fixed_entries] * size[~free, None]
        np.subtract.at(target, reachable.leaf[fixed_entries], fixed_sums)
        chosen = np.empty(len(group), dtype=np.int32)
        row_free = free[group]
        chosen[~row_free] = reachable.leaf[reachable.offsets[group[~row_free]]]
        if not row_free.any():
            return chosen, float(np.abs(target).sum())
        free_leaves, x = _select_groups(reachable, system.x, free)
        if adds_local_rows:
            self._add_local_rows(free_leaves, groups, free)
        rows = (np.cumsum(free) - 1)[group[row_free]]
        free_system = _System(free_leaves, x, target, system.variance)
        chosen[row_free], residual = _solve(free_system, size[free], rows, self.options, rng)
        return chosen, residual


def _by_margin(
    evidence: BoostingObservations, t: int, g: Floats, h: Floats, y: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return the derivatives of the gradient and of the hessian of each row by its margin."""
    if evidence.targets is not None:
        return np.ones_like(g), np.zeros_like(g)
    probability = g + (y == evidence.class_of(t))
    return probability * (1 - probability), h * (1 - 2 * probability)


def _solve(
    system: _System,
    size: NDArray[np.intp],
    rows: NDArray[np.intp],
    options: Options,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], float]:
    """Return the leaves of rows that can reach several leaves, and the L1 distance of the sums.

    The groups of the system contain ``size`` rows each. ``rows`` is the group of each row.
    """
    reachable, x, target, variance = system.reachable, system.x, system.target, system.variance
    if options.solver == "max-ent":
        P = max_entropy(reachable, size.astype(np.float64), x, target, variance)
        start = draw_leaves(reachable, P, rows, rng.random(len(rows)))
        each, x_each = _entries_of_rows(reachable, x, rows)
        return redraw_leaves(each, x_each, target, variance, start, int(rng.integers(2**63)))
    each, x_each = _entries_of_rows(reachable, x, rows)
    start = draw_leaves(each, _uniform_shares(each), np.arange(len(rows)), rng.random(len(rows)))
    return search_leaves(each, x_each, target, start, int(rng.integers(2**63)))


def with_absence(
    r: ReachableLeaves, x: Floats, participation: Floats, absence: int
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
    participation : float64 array, shape (m,)
        Probability that a row takes part in the tree. A group with probability 1 gets no additional
        entry. A group with probability 0 keeps no leaf.
    absence : int
        Number of the additional leaf that represents absence.

    Returns
    -------
    (ReachableLeaves, float64 array, shape (nnz', K))
        The extended entries and their contributions.
    """
    width = np.diff(r.offsets)
    group = np.repeat(np.arange(len(width)), width)
    possible, out = participation[group] > 0, participation < 1
    with np.errstate(divide="ignore"):
        inside = (np.log(prior_shares(r)) + np.log(participation)[group])[possible]
        outside = np.log1p(-participation)[out]
    # Insert the new entry of each group after its leaves. The sort is stable for this reason.
    order = np.argsort(np.concatenate([group[possible], np.flatnonzero(out)]), kind="stable")
    size = np.bincount(group[possible], minlength=len(width)) + out
    leaf = np.concatenate([r.leaf[possible], np.full(out.sum(), absence, dtype=np.int32)])[order]
    return (
        ReachableLeaves(
            np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
            leaf.astype(np.int32),
            np.concatenate([inside, outside])[order],
        ),
        np.concatenate([x[possible], np.zeros((out.sum(), x.shape[1]))])[order],
    )


def prior_shares(r: ReachableLeaves) -> Floats:
    """Return the prior probability of every reachable leaf of every row, float64, shape (nnz,)."""
    start, width = r.offsets[:-1], np.diff(r.offsets)
    # Subtract the largest log probability of each row, so that the exponential cannot overflow.
    top = np.maximum.reduceat(r.log_prior, start) if len(start) else np.zeros(0)
    weight = np.exp(r.log_prior - np.repeat(top, width))
    total = np.add.reduceat(weight, start) if len(start) else np.zeros(0)
    return weight / np.repeat(total, width)  # type: ignore[no-any-return]


def _uniform_shares(r: ReachableLeaves) -> Floats:
    """Return equal probabilities for all reachable leaves of a row, float64, shape (nnz,)."""
    width = np.diff(r.offsets)
    return np.repeat(1.0 / width, width)


def _select_groups(
    r: ReachableLeaves, x: Floats, selected: NDArray[np.bool_]
) -> tuple[ReachableLeaves, Floats]:
    """Return the entries of the selected groups."""
    width = np.diff(r.offsets)
    keep = np.repeat(selected, width)
    offsets = np.concatenate([[0], np.cumsum(width[selected])]).astype(np.int64)
    return ReachableLeaves(offsets, r.leaf[keep], r.log_prior[keep]), x[keep]


def _entries_of_rows(
    r: ReachableLeaves, x: Floats, rows: NDArray[np.intp]
) -> tuple[ReachableLeaves, Floats]:
    """Return the entries of every single row, given those of its group."""
    width = np.diff(r.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    entry = np.repeat(r.offsets[:-1][rows] - offsets[:-1], width) + np.arange(offsets[-1])
    return ReachableLeaves(offsets, r.leaf[entry], r.log_prior[entry]), x[entry]
