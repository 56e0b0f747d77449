"""Feature Range Inference: follow the victims' rows from tree to tree, narrowing their boxes.

Di Gennaro et al. (2025), Sec. 5.2: every row of the reconstruction is sent to one leaf of each
tree so that the leaf sums agree with the broadcast ones; its box shrinks to the leaf's and its
margin grows by the leaf's value (Eq. 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence, Options
from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.grid import Grid, LeafConstraints
from fedtrees.attacks.evidence.maxent import draw_leaves, max_entropy
from fedtrees.attacks.evidence.prior import Prior, Reach, add_own_rows, reach
from fedtrees.attacks.evidence.routing import add_values, gradients, of_output
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.timberstrike.foreign import doubt_in_sums, expected_values
from fedtrees.attacks.timberstrike.local_search import search_leaves
from fedtrees.attacks.timberstrike.milp import solve_counts
from fedtrees.attacks.timberstrike.resample import redraw_leaves
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Boxes:
    """The reconstruction so far; arrays change in place from tree to tree.

    Attributes
    ----------
    lo, hi : int32 array, shape (n, d)
        Cells ``lo <= cell < hi`` of each feature.
    y : int64 array, shape (n,)
    margin : float32 array, shape (n,) or (n, K)
        Log-odds after the trees seen; of more than two classes, a margin for each.
    history : int64 array, shape (n,)
        Rows with equal label and equal leaves so far share a number.
    residual : list of float
        L1 distance from the broadcast sums, per tree.
    doubt : float64 array of the shape of `margin`, or None
        Variance of the margins, from trees grown on rows of others.
    missing : bool array, shape (n, d)
        Whether the value may be missing (at first: nowhere); it must be where ``lo == hi``.
    """

    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    y: NDArray[np.int64]
    margin: NDArray[np.float32]
    history: NDArray[np.int64]
    residual: list[float] = field(default_factory=list)
    doubt: Floats | None = None
    missing: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.missing = np.zeros(self.lo.shape, dtype=bool)


def open_boxes(sizes: Sequence[int], grid: Grid, evidence: Evidence) -> Boxes:
    """Return so many rows of each class with no bounds."""
    n, d = int(sum(sizes)), len(grid.edges)
    y = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    boxes = Boxes(
        lo=np.zeros((n, d), dtype=np.int32),
        hi=np.tile(grid.width, (n, 1)),
        y=y,
        margin=evidence.start(n),
        history=y.copy(),
    )
    boxes.missing |= grid.missing
    return boxes


def boxes_after_first_tree(evidence: Evidence, grid: Grid, counts: Counts) -> Boxes:
    """Initialise the dataset from the first tree's counts (Sec. 5.1, Fig. 6)."""
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    boxes = open_boxes((int(counts.n0.sum()), int(counts.n1.sum())), grid, evidence)
    position = np.arange(len(leaves), dtype=np.int32)
    chosen = np.concatenate([np.repeat(position, counts.n0), np.repeat(position, counts.n1)])
    _send(boxes, leaves, chosen)
    add_values(boxes.margin, 0, tree.value[leaves.node][chosen])
    return boxes


def boxes_by_class(evidence: Evidence, grid: Grid, counts: Sequence[Counts]) -> Boxes:
    """Initialise the rows of every class from that class's own tree of the first round.

    Di Gennaro et al. (2025), App. E. Their way through the other classes' trees is still to be
    found, so no margin has moved yet.
    """
    boxes = open_boxes([int(c.n1.sum()) for c in counts], grid, evidence)
    for k, own_tree in enumerate(counts):
        leaves = grid.leaves(evidence.trees[k])
        position = np.arange(len(leaves), dtype=np.int32)
        _send(boxes, leaves, np.repeat(position, own_tree.n1), np.flatnonzero(boxes.y == k))
    return boxes


def follow(
    evidence: Evidence,
    sums: list[LeafSums],
    grid: Grid,
    prior: Prior,
    boxes: Boxes,
    options: Options,
    rng: np.random.Generator,
    first: int = 1,
) -> None:
    """Send the rows through the trees of ``sums`` from tree ``first`` on, in place.

    The trees of one round were grown on the margins before it.
    """
    before = boxes.margin
    for t in range(first, len(sums)):
        tree, k = evidence.trees[t], t % evidence.outputs
        leaves = grid.leaves(tree)
        if evidence.restart is not None and t == evidence.restart[0]:
            boxes.margin += evidence.restart[1]
        if k == 0:
            before = boxes.margin.copy()
        if evidence.is_foreign(t):
            if len(boxes.y):
                _move_margins(tree, k, leaves, sums[t].own_leaf, prior, boxes)
            continue
        if len(leaves) > 1 and len(boxes.y):
            chosen = _assign(evidence, t, sums[t], leaves, prior, boxes, before, options, rng)
        else:
            chosen = np.zeros(len(boxes.y), dtype=np.int32)
        _send(boxes, leaves, chosen)
        add_values(boxes.margin, k, tree.value[leaves.node][chosen])


def _move_margins(
    tree: Tree,
    output: int,
    leaves: LeafConstraints,
    own_leaf: NDArray[np.int32],
    prior: Prior,
    boxes: Boxes,
) -> None:
    """Add to every row what a tree grown on rows of others adds on average, in place."""
    _, first, group = np.unique(boxes.history, return_index=True, return_inverse=True)
    boxed = boxes.lo[first], boxes.hi[first], boxes.y[first], boxes.missing[first]
    mean, variance = expected_values(boxed, tree, leaves, own_leaf, prior)
    add_values(boxes.margin, output, mean.astype(np.float32)[group])
    if boxes.doubt is None:
        boxes.doubt = np.zeros(boxes.margin.shape)
    add_values(boxes.doubt, output, variance[group])


def _assign(
    evidence: Evidence,
    t: int,
    sums: LeafSums,
    leaves: LeafConstraints,
    prior: Prior,
    boxes: Boxes,
    margin: NDArray[np.float32],
    options: Options,
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Choose a leaf of tree ``t``, grown on these margins, for every row."""
    _, first, group, size = np.unique(
        boxes.history, return_index=True, return_inverse=True, return_counts=True
    )
    lo, hi, y, missing = (part[first] for part in (boxes.lo, boxes.hi, boxes.y, boxes.missing))
    options_of = reach(leaves, (lo, hi, y), prior, missing)
    if options.random_leaf:
        return draw_leaves(options_of, _evenly(options_of), group, rng.random(len(group)))
    g, h = gradients(margin[first], y, evidence.constant_hessian, t % evidence.outputs)
    target, ridge = equations(evidence, t, sums, leaves)
    if boxes.doubt is not None:
        doubt = of_output(boxes.doubt, t % evidence.outputs)[first] * size
        slope = None if ridge.shape[1] == 2 else _slopes(evidence, t, leaves)
        positive = y == evidence.class_of(t)
        ridge = ridge + doubt_in_sums(options_of, doubt, (g, h), positive, slope, len(leaves))
    x = contributions(evidence, t, sums, leaves, options_of, (g, h))

    free = np.diff(options_of.offsets) > 1
    fixed_entries = options_of.offsets[:-1][~free]
    np.subtract.at(target, options_of.leaf[fixed_entries], x[fixed_entries] * size[~free, None])
    chosen = np.empty(len(group), dtype=np.int32)
    row_free = free[group]
    chosen[~row_free] = options_of.leaf[options_of.offsets[group[~row_free]]]
    if not row_free.any():
        boxes.residual.append(float(np.abs(target).sum()))
        return chosen
    sub, x = _only(options_of, x, free)
    if options.solver == "max-ent" and len(prior.own):
        boxed = lo[free], hi[free], y[free]
        own = prior.own_cells, prior.own.y, sums.own_leaf
        add_own_rows(sub.offsets, sub.leaf, sub.log_prior, *boxed, *own, len(leaves), missing[free])
    rows = (np.cumsum(free) - 1)[group[row_free]]
    chosen[row_free], left_over = _solve(sub, size[free], x, target, ridge, rows, options, rng)
    boxes.residual.append(left_over)
    return chosen


def _solve(
    sub: Reach,
    size: NDArray[np.intp],
    x: Floats,
    target: Floats,
    ridge: Floats,
    rows: NDArray[np.intp],
    options: Options,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int32], float]:
    """Return the leaves of rows that have a choice, and what the sums are off by then.

    Parameters
    ----------
    sub : Reach
        Of every group of equal rows.
    size : int array, shape (n_groups,)
    x : float64 array, shape (nnz, K)
    target, ridge : float64 array, shape (J, K)
    rows : int array, shape (n,)
        The group of each row.
    """
    if options.solver == "max-ent":
        solution = max_entropy(sub, size.astype(np.float64), x, target, ridge)
        start = draw_leaves(sub, solution.probability, rows, rng.random(len(rows)))
        each, x_each = _expand(sub, x, rows)
        return redraw_leaves(each, x_each, target, ridge, start, int(rng.integers(2**63)))
    if options.solver == "milp":
        found = solve_counts(sub, size, x, target, options.time_limit)
        if found is not None:
            return _hand_out(sub, found.count, rows), found.residual
    each, x_each = _expand(sub, x, rows)
    start = draw_leaves(each, _evenly(each), np.arange(len(rows)), rng.random(len(rows)))
    return search_leaves(each, x_each, target, start, int(rng.integers(2**63)))


def _evenly(r: Reach) -> Floats:
    """Return equal probabilities for all leaves a row can reach."""
    width = np.diff(r.offsets)
    return np.repeat(1.0 / width, width)


def equations(
    evidence: Evidence, t: int, sums: LeafSums, leaves: LeafConstraints
) -> tuple[Floats, Floats]:
    """Return targets and error variances, (J, K): K = 2 with statistics, 1 with values alone.

    A leaf value gives one equation, sum_i g_i + (v/eta) h_i = -lambda v/eta.
    """
    if sums.g is not None and sums.h is not None:
        return np.stack([sums.g, sums.h], axis=1), np.stack([sums.var_g, sums.var_h], axis=1)
    u = _slopes(evidence, t, leaves)
    target = -evidence.reg_lambda * u - sums.own_g - u * sums.own_h
    step = 0.0 if evidence.rounding is None else evidence.rounding / evidence.learning_rate
    weight = sums.own_h + evidence.reg_lambda + 1.0
    variance = (step * weight) ** 2 / 12 + sums.var_g + u * u * sums.var_h
    return target[:, None], variance[:, None]


def _slopes(evidence: Evidence, t: int, leaves: LeafConstraints) -> Floats:
    """Return v / eta of every leaf, float64, shape (J,)."""
    return evidence.trees[t].value[leaves.node].astype(np.float64) / evidence.learning_rate


def contributions(
    evidence: Evidence,
    t: int,
    sums: LeafSums,
    leaves: LeafConstraints,
    options_of: Reach,
    gh: tuple[Floats, Floats],
) -> Floats:
    """Return what each row brings to the equations of each leaf it can reach, (nnz, K)."""
    width = np.diff(options_of.offsets)
    ge, he = np.repeat(gh[0], width), np.repeat(gh[1], width)
    if sums.g is not None:
        return np.stack([ge, he], axis=1)
    u = _slopes(evidence, t, leaves)
    return (ge + u[options_of.leaf] * he)[:, None]


def _send(
    boxes: Boxes,
    leaves: LeafConstraints,
    chosen: NDArray[np.int32],
    rows: NDArray[np.intp] | None = None,
) -> None:
    """Narrow the boxes of some rows (all) to their leaves', in place."""
    if rows is None:
        rows = np.arange(len(boxes.y))
    constraints = (leaves.offsets, leaves.feature, leaves.lo, leaves.hi, leaves.missing)
    _narrow(boxes.lo, boxes.hi, boxes.missing, rows, chosen, *constraints)
    way = boxes.history * len(leaves)
    way[rows] += chosen
    boxes.history = np.unique(way, return_inverse=True)[1].astype(np.int64)


@njit(cache=True)
def _narrow(  # type: ignore[no-untyped-def]
    lo, hi, missing, rows, chosen, offsets, feature, leaf_lo, leaf_hi, leaf_missing
):
    for r in range(chosen.shape[0]):
        i, first, last = rows[r], offsets[chosen[r]], offsets[chosen[r] + 1]
        inside = True
        for k in range(first, last):
            f = feature[k]
            empty = max(lo[i, f], leaf_lo[k]) >= min(hi[i, f], leaf_hi[k])
            if empty and not (missing[i, f] and leaf_missing[k]):
                inside = False  # under noise a leaf that no value reaches may claim rows
        if inside:
            for k in range(first, last):
                f = feature[k]
                lo[i, f] = max(lo[i, f], leaf_lo[k])
                hi[i, f] = max(min(hi[i, f], leaf_hi[k]), lo[i, f])
                missing[i, f] = missing[i, f] and leaf_missing[k]


def _only(r: Reach, x: Floats, rows: NDArray[np.bool_]) -> tuple[Reach, Floats]:
    """Return the entries of some rows."""
    width = np.diff(r.offsets)
    keep = np.repeat(rows, width)
    offsets = np.concatenate([[0], np.cumsum(width[rows])]).astype(np.int64)
    return Reach(offsets, r.leaf[keep], r.log_prior[keep]), x[keep]


def _expand(r: Reach, x: Floats, rows: NDArray[np.intp]) -> tuple[Reach, Floats]:
    """Return the entries with groups written out as rows."""
    width = np.diff(r.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    entry = np.repeat(r.offsets[:-1][rows] - offsets[:-1], width) + np.arange(offsets[-1])
    return Reach(offsets, r.leaf[entry], r.log_prior[entry]), x[entry]


def _hand_out(r: Reach, count: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.int32]:
    """Give each row of a group one of the leaves counted for it."""
    out = np.empty(len(rows), dtype=np.int32)
    left = count.copy()
    for m, i in enumerate(rows):
        e = int(r.offsets[i])
        while left[e] == 0:
            e += 1
        left[e] -= 1
        out[m] = r.leaf[e]
    return out
