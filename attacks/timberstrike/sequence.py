"""Feature Range Inference: follow the victims' rows from tree to tree, narrowing their boxes.

Di Gennaro et al. (2025), Sec. 5.2: every row of the reconstruction is sent to one leaf of each
tree so that the leaf sums agree with the broadcast ones; its box shrinks to the leaf's and its
margin grows by the leaf's value (Eq. 10).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.boxes import Boxes, send
from fedtrees.attacks.evidence.equations import contributions, equations, slopes
from fedtrees.attacks.evidence.grid import Grid, LeafConstraints
from fedtrees.attacks.evidence.maxent import draw_leaves, max_entropy
from fedtrees.attacks.evidence.prior import Prior, Reach, add_own_rows, reach
from fedtrees.attacks.evidence.routing import add_values, gradients, of_output
from fedtrees.attacks.evidence.sums import LeafSums
from fedtrees.attacks.timberstrike.foreign import doubt_in_sums, expected_values
from fedtrees.attacks.timberstrike.milp import solve_counts
from fedtrees.attacks.timberstrike.moves import redraw_leaves, search_leaves
from fedtrees.attacks.timberstrike.options import Options
from fedtrees.trees.boosted.forest import Tree

Floats = NDArray[np.float64]


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
        send(boxes, leaves, chosen)
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
        slope = None if ridge.shape[1] == 2 else slopes(evidence, t, leaves)
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
        add_own_rows(sub, boxed, prior, sums.own_leaf, len(leaves), missing[free])
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

    ``sub`` is of groups of ``size`` equal rows; ``rows`` tells the group of each row.
    """
    if options.solver == "max-ent":
        P = max_entropy(sub, size.astype(np.float64), x, target, ridge)
        start = draw_leaves(sub, P, rows, rng.random(len(rows)))
        each, x_each = _expand(sub, x, rows)
        return redraw_leaves(each, x_each, target, ridge, start, int(rng.integers(2**63)))
    if options.solver == "milp":
        found = solve_counts(sub, size, x, target, options.time_limit)
        if found is not None:
            return _hand_out(sub, found[0], rows), found[1]
    each, x_each = _expand(sub, x, rows)
    start = draw_leaves(each, _evenly(each), np.arange(len(rows)), rng.random(len(rows)))
    return search_leaves(each, x_each, target, start, int(rng.integers(2**63)))


def _evenly(r: Reach) -> Floats:
    """Return equal probabilities for all leaves a row can reach."""
    width = np.diff(r.offsets)
    return np.repeat(1.0 / width, width)


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
