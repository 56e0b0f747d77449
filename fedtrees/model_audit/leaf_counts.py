"""Derive rows and labels per leaf of boosted XGBoost models from the sums of their leaves.

The rows of a first tree are counted exactly, because all of them have the same hessian
(`fedtrees.model_audit.first_trees`). The rows of later trees are only bounded. With squared error,
each row has a hessian of 1 in every tree, so that all trees are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.masked_hessians import FLOAT32
from fedtrees.model_audit.exposure import UNKNOWN, Known, TreeExposure, least_rows, most_rows
from fedtrees.model_audit.first_trees import (
    LEAST_SHARE,
    FirstTree,
    LeafStatistics,
    counts_at,
    find_first_tree,
)
from fedtrees.model_audit.model import ModelFile, Statistics, parameter
from fedtrees.model_audit.training_settings import Settings, leaf_sums
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import SQUARED_ERROR, Softmax, sigmoid

FROM_SUMS = "H and G of the leaf: one base score, whole numbers of rows and of labels"
NOT_ITS_START = "H of the leaf; whether it started from the file's base score nothing shows"
LATER = "rows enter with different predictions: bounds only"
MEETING = "bounds, which meet in some leaves"
# Added if the second tree was not shown to follow the first, for example with several clients.
IF_WHOLE = " and no tree was taken out of the file"
IF_NO_MARGINS = ", if later trainings gave rows no base margins"
NOT_FOLLOWED = "the second tree does not follow from the leaves of the first: lower bounds only"
NOT_WHOLE = "sums of hessians are no whole numbers: rows had weights"
NO_SUMS = "the file contains no sums of hessians, and they cannot be computed from it"
WITHOUT_ETA = "H of the leaf; labels do not follow without eta and lambda"
SHRUNK = "H of the leaf; labels do not follow, an L1 penalty may have moved G by a whole number"
SQUARED = "H of the leaf is its number of rows (squared error)"
UNSURE = (
    "no first tree has whole-number counts: rows may have had weights, so that bounds "
    "would be wrong"
)

NEAR = 1e-5  # numbers with a smaller relative difference are considered equal
# Largest number of rows that is tried for the smallest leaf, or of other starts of a tree.
MOST_TRIED = 10**6
# A larger relative error of a root's H does not determine where the first tree started.
MOST_LOOSE = 1e-4
# Largest accepted probability that hessians without meaning are integer multiples of one row's.
LONE_CHANCE = 1e-3


def sums_of(tree: Tree, statistics: Statistics, settings: Settings | None) -> LeafStatistics | None:
    """Return the sums of the leaves of a tree.

    Parameters
    ----------
    tree : Tree
        The tree, whose leaf values give G if eta and lambda are known.
    statistics : Statistics
        The statistics in the file.
    settings : Settings or None
        Eta and lambda. Without them, H is known only if the file contains it, and G is unknown.

    Returns
    -------
    sums : LeafStatistics or None
        H is that of the file, or solved for from weights and gains. None if neither is possible.
    """
    if settings is None:
        if statistics.cover is None:
            return None
        h = statistics.cover[tree.leaves]
        return LeafStatistics(None, h, None, FLOAT32 * h)
    solved = leaf_sums(tree, statistics, settings)
    if solved is None:
        return None
    h, h_error = solved
    step = -tree.value[tree.leaves].astype(np.float64) / settings.learning_rate
    size = np.abs(step)
    g = step * (h + settings.reg_lambda)
    g_error = np.abs(step) * h_error + 2 * FLOAT32 * np.abs(g)
    return LeafStatistics(g, h, g_error, h_error, unshrunk=settings.unshrunk, step=size)


def start_of(forest: Forest, k: int) -> float:
    """Return the probability before the first tree of class k, or of class 1 if there are two."""
    start = forest.base_margin[:, None]
    return float(np.asarray(forest.objective.predict(start)).reshape(-1)[k])


def recover_boosted(
    model: ModelFile, sums: Sequence[LeafStatistics | None], background: Known
) -> list[TreeExposure]:
    """Return the exposure of every tree of a boosted XGBoost model.

    Parameters
    ----------
    model : ModelFile
        The model.
    sums : sequence of LeafStatistics or None
        The sums of the leaves of each tree (`sums_of`).
    background : Known
        Background knowledge of the auditor.

    Returns
    -------
    trees : list of TreeExposure
        In the order of the forest.
    """
    if model.boosted.objective.name == SQUARED_ERROR.name:
        return _squared_errors(model, sums)
    forest, outputs = model.boosted, model.boosted.objective.n_outputs
    sums, together = _mark_truncated_steps(sums), first_round(model)
    # Log-odds from which rows may start. It need not be the base score of the file, which a later
    # training may have changed and which base margins of rows replace. First trees show others.
    starts = [float(forest.base_margin.min()), float(forest.base_margin.max())]
    # The sum of all earlier trees is between these bounds, also if a row did not pass some of them,
    # as in bagging.
    below = above = 0.0
    out: list[TreeExposure] = []
    for t, (tree, s) in enumerate(zip(forest.trees, sums, strict=True)):
        margins = min(starts) + below, max(starts) + above
        out.append(_exposure_of_classes(model, t, s, margins, background))
        starts += _possible_margins(out[t])
        values = tree.value[tree.leaves]
        below, above = below + min(0.0, float(values.min())), above + max(0.0, float(values.max()))
    followed = False
    if outputs == 1:
        root = forest.trees[0]
        values, second = root.value[root.leaves], sums[1] if len(out) > 1 else None
        followed = _is_followed(out[0], float(forest.base_margin[0]), values, second)
        # With leaf values of 0, any start would lead to the second tree.
        moved = followed and float(np.abs(values).max()) > NEAR
        out[:together] = _drop_unproven_starts(model, out[:together], sums, moved, background)
    return _drop_unproven_bounds(_agreeing(out, outputs), followed, together)


def _possible_margins(t: TreeExposure) -> list[float]:
    """Return the log-odds with which all rows may have entered a tree, empty if they differ."""
    if t.base_score is None:
        return []
    margin = float(np.log(t.base_score / (1 - t.base_score)))
    # Without labels, the sums of hessians are the same for p and 1 - p.
    return [margin, -margin] if (t.n_pos == UNKNOWN).all() else [margin]


def _drop_unproven_starts(
    model: ModelFile,
    first_trees: Sequence[TreeExposure],
    sums: Sequence[LeafStatistics | None],
    followed: bool,
    background: Known,
) -> list[TreeExposure]:
    """Drop the counts of the first round unless the file shows from which margin it started.

    The file contains the base score of the last training only, and no base margins of rows. All
    trees of the round start alike. The start is shown if one of these trees excludes every other
    start, or if the second tree follows from the first (`followed`).
    """
    lone = len(first_trees) == len(model.boosted.trees) and not model.base_score_given
    if lone and not _is_simple(start_of(model.boosted, 0)):
        # XGBoost estimated the base score from the rows of this round. Another start leaves whole
        # multiples of its hessian only by chance, unless the base score is a simple number.
        return [*first_trees]
    shown = [
        t.base_score
        for t, s in zip(first_trees, sums, strict=False)
        if t.base_score is not None
        and (t.at in background.starts or (t.at == 0 and followed) or _is_only_start(model, t, s))
    ]
    return [
        t
        if t.base_score is None or any(abs(t.base_score - p) < NEAR for p in shown)
        else _without_counts(t, NOT_ITS_START)
        for t in first_trees
    ]


def _is_simple(p: float) -> bool:
    """Return whether p is a multiple of 1/1000 or of 1/1, ..., 1/7."""
    return any(abs(p * d - round(p * d)) < NEAR * d for d in (*range(1, 8), 1000))


def _is_only_start(model: ModelFile, t: TreeExposure, sums: LeafStatistics | None) -> bool:
    """Return whether no other start explains the sums of a first tree by other numbers of rows.

    The hessians of a leaf's rows are equal, so that another start multiplies the numbers of rows in
    all leaves by one factor. It fits if the labels are integers again.
    """
    if sums is None or sums.g is None or sums.g_error is None or t.base_score is None:
        return False
    if not t.exact.any():
        return False
    factor = int(np.gcd.reduce(t.n[t.counted]))
    if model.positive_weight != 1:
        return factor == 1  # the weights of the other rows would have to be searched for, too
    variance = factor * t.base_score * (1 - t.base_score)
    largest = int(variance / (LEAST_SHARE * (1 - LEAST_SHARE))) + 1
    if largest > MOST_TRIED:
        return False
    # Divide the numbers of rows by their greatest common divisor and multiply them by another one.
    other = np.arange(max(int(4 * variance * (1 - NEAR)), 1), largest + 1)
    other = other[other != factor]
    v = variance / other  # p (1 - p) of the other start
    error = v * (float((sums.h_error[t.counted] / sums.h[t.counted]).min()) + 4 * FLOAT32)
    spread, inner, outer = (np.sqrt(np.maximum(0.25 - v + x, 0.0)) for x in (0.0, -error, error))
    for p in (0.5 - spread, 0.5 + spread):
        fits = np.ones(len(other), dtype=np.bool_)
        for j in np.flatnonzero(t.exact):
            rows = t.n[j] // factor * other
            n_pos = rows * p - sums.g[j]
            tolerance = sums.g_error[j] + rows * (outer - inner + FLOAT32) + NEAR
            fits &= np.abs(n_pos - np.clip(np.rint(n_pos), 0, rows)) <= tolerance
        if fits.any():
            return False
    return True


def _mark_truncated_steps(
    sums: Sequence[LeafStatistics | None],
) -> list[LeafStatistics | None]:
    """Mark the leaves whose step may have been truncated.

    G does not follow from a truncated step, and the limit (``max_delta_step``) is not in the file.
    It leaves several steps of the same size, the largest of the model, or a largest step that is a
    number people choose (two significant digits).
    """
    steps = np.concatenate(
        [np.zeros(0), *(s.step for s in sums if s is not None and s.step is not None)]
    )
    largest = float(steps.max(initial=0.0))
    ties = np.count_nonzero(steps >= largest * (1 - NEAR))
    chosen = abs(float(f"{largest:.2g}") - largest) <= NEAR * largest
    if not largest or not (ties > 1 or chosen):
        return list(sums)
    return [
        s if s is None or s.step is None else replace(s, cut=s.step >= largest * (1 - NEAR))
        for s in sums
    ]


def first_round(model: ModelFile) -> int:
    """Return how many trees of a training start from the model's base score."""
    parallel = parameter(model.parameters, "num_parallel_tree") or 1
    outputs, trees = model.boosted.objective.n_outputs, len(model.boosted.trees)
    return outputs * int(min(max(parallel, 1), trees // outputs))


def _is_followed(
    first: TreeExposure, margin: float, values: NDArray[np.float32], second: LeafStatistics | None
) -> bool:
    """Return whether the first tree leads to the second, from `margin` or from its own start.

    The counts and values of the first tree determine the prediction of each row before the second
    tree, and therefore H of the second root. A different H shows that the second tree has other
    rows (a sample, or those of another client), or that a tree is missing.
    """
    if first.base_score is None or second is None or first.rows is None:
        return False
    second_h, error = float(second.h.sum()), float(second.h_error.sum())
    for start in (margin, float(np.log(first.base_score / (1 - first.base_score)))):
        p = sigmoid((np.float32(start) + values).astype(np.float32)).astype(np.float64)
        h = float(first.n @ (p * (1 - p)))
        if abs(h - second_h) <= error + 8 * FLOAT32 * h and error <= MOST_LOOSE * h:
            return True
    return False


def _agreeing(trees: list[TreeExposure], outputs: int) -> list[TreeExposure]:
    """Drop the counts of every round in which some trees have no consistent counts.

    The trees of a round, one per class, have the same rows. With weighted rows, some of the trees
    can agree with integer counts by chance.
    """
    out = list(trees)
    for k in range(0, len(trees) if outputs > 1 else 0, outputs):
        together = trees[k : k + outputs]
        if any(t.base_score is None and len(t.leaf) > 1 for t in together):
            for t in together:
                out[t.at] = t if t.base_score is None else _without_counts(t, UNSURE)
    return out


def _drop_unproven_bounds(
    trees: list[TreeExposure], followed: bool, together: int
) -> list[TreeExposure]:
    """Drop bounds whose assumptions are not shown, and count leaves in which both bounds agree.

    Bounds are valid for rows of weight 1, which a first tree with integer counts shows. They are
    not valid for a client's first tree, which starts from another base score than the model's.
    After the first trees of one training, which are grown together (their number is `together`),
    upper bounds are valid only if the second tree was shown to follow the first.
    """
    starts = [t.at for t in trees if t.base_score is not None]
    out = []
    for t in trees:
        unsure = not starts or t.at < starts[-1]
        if t.base_score is not None or not (t.at_least != UNKNOWN).any():
            out.append(t)
        elif unsure:
            out.append(_without_counts(t, LATER if starts else UNSURE))
        elif starts[-1] < together and not followed:
            out.append(replace(t, at_most=np.full_like(t.at_most, UNKNOWN), how=NOT_FOLLOWED))
        else:
            meet = (t.at_least == t.at_most) & (t.at_most != UNKNOWN)
            n = np.where(meet, t.at_most, UNKNOWN)
            how = MEETING if meet.any() else LATER
            how += IF_NO_MARGINS if followed else IF_NO_MARGINS + IF_WHOLE
            out.append(replace(t, n=n, how=how))
    return out


def _without_counts(t: TreeExposure, how: str) -> TreeExposure:
    return TreeExposure.of((t.at, t.output), t.leaf, how)


def _exposure_of_classes(
    model: ModelFile,
    t: int,
    sums: LeafStatistics | None,
    margins: tuple[float, float],
    background: Known,
) -> TreeExposure:
    """Return the exposure of tree t of a model on log loss or softmax.

    `margins` are bounds on the log-odds of a row before the tree.
    """
    outputs, leaves = model.boosted.objective.n_outputs, model.boosted.trees[t].leaves
    place, starts = (t, t % outputs), t in background.starts or t < first_round(model)
    if sums is None:
        return TreeExposure.of(place, leaves, NO_SUMS)
    # XGBoost's softmax doubles hessians
    scale = 2.0 if isinstance(model.boosted.objective, Softmax) else 1.0
    p = background.starts.get(t, start_of(model.boosted, t % outputs))
    first = _first_tree(sums, scale, p, model.positive_weight, starts)
    if first is not None and starts and t not in background.starts and model.base_score_given:
        first = first if outputs > 1 else _without_mirrored_labels(first, sums)
    shrunk = first is not None and not sums.unshrunk and not _pure(first, sums)
    if (sums.g is None or shrunk) and starts and model.positive_weight == 1:
        rows = _rows_alone(sums, scale * p * (1 - p))
        if rows is not None:
            how = SHRUNK if shrunk else WITHOUT_ETA
            return TreeExposure.of(place, leaves, how, (rows, None), None, p)
    if first is not None and not shrunk:
        counts = first.n, first.n1 if sums.cut is None else np.where(sums.cut, UNKNOWN, first.n1)
        return TreeExposure.of(place, leaves, FROM_SUMS, counts, None, first.p)
    if model.positive_weight != 1:
        return TreeExposure.of(place, leaves, LATER)
    bounded = outputs == 1 and not _may_start(sums, scale)
    upper = most_rows(sums.h + sums.h_error, margins, background.rows) if bounded else None
    # A tree with a single leaf has no equation that confirms its eta and lambda.
    lone = len(leaves) == 1 or (sums.cut is not None and sums.cut.any())
    g = None if lone or sums.g is None else np.maximum(np.abs(sums.g) - sums.g_error, 0.0)
    bounds = least_rows(np.maximum(sums.h - sums.h_error, 0.0), g, scale), upper
    return TreeExposure.of(place, leaves, LATER, bounds=bounds)


def _without_mirrored_labels(first: FirstTree, sums: LeafStatistics) -> FirstTree:
    """Return the counts of a first tree without labels that follow from p and from 1 - p alike.

    A training that continues a model can be given another base score, and the file states that one.
    Rows have the same hessian at p and at 1 - p, so that a change from one to the other leaves the
    numbers of rows whole, but changes those of labels.
    """
    if abs(first.p - 0.5) < NEAR or counts_at(sums, 1 - first.p) is None:
        return first
    return replace(first, n1=np.full_like(first.n1, UNKNOWN))


def _pure(first: FirstTree, sums: LeafStatistics) -> bool:
    """Return whether a leaf has all labels that G allows, which excludes an L1 penalty.

    An L1 penalty moves G towards 0, so that the true N1 would be below 0 or above N.
    """
    g = np.zeros(0) if sums.g is None else sums.g
    counted = first.n1 != UNKNOWN
    none, every = (first.n1 == 0) & (g > 0), (first.n1 == first.n) & (g < 0)
    return bool((counted & (none | every)).any())


def _may_start(sums: LeafStatistics, scale: float) -> bool:
    """Return whether some hessian of a row gives an integer number of rows in every leaf.

    In this case the tree may be a client's first tree, grown from another base score than the
    model's. It has too few leaves to determine that score, and no bound on its rows is valid.
    """
    h, error = sums.h, sums.h_error / np.maximum(sums.h, 1e-30) + 2 * FLOAT32
    least = int(np.argmin(h))
    largest = h[least] / (scale * LEAST_SHARE * (1 - LEAST_SHARE))
    first = max(np.floor(4 * h[least] / scale * (1 - 1e-5)), 1)
    if h[least] == 0 or largest > MOST_TRIED:
        return bool(h[least] > 0)  # training does not grow a leaf without rows
    row = h[least] / np.arange(first, largest + 2)
    for j in range(len(h)):
        n = h[j] / row
        row = row[np.abs(n - np.rint(n)) <= n * (error[least] + error[j]) + 1e-9]
    return bool(len(row))


def _rows_alone(sums: LeafStatistics, h: float) -> NDArray[np.int64] | None:
    """Return the rows per leaf if each row has hessian `h`, None if they are not integers."""
    n = np.rint(sums.h / h)
    error = sums.h_error / h + FLOAT32 * n + 1e-9
    integral = (np.abs(sums.h / h - n) <= error).all() and np.prod(2 * error) <= LONE_CHANCE
    return n.astype(np.int64) if integral else None


def _first_tree(
    sums: LeafStatistics, scale: float, p: float, weight: float, starts: bool
) -> FirstTree | None:
    """Return the counts of a tree that was grown from one base score, None if no counts agree.

    Parameters
    ----------
    sums : LeafStatistics
        The sums of the leaves.
    scale : float
        Factor of the hessians: 2 for softmax, else 1.
    p : float
        The model's base score, or the declared one.
    weight : float
        Weight of rows of class 1. If it is not 1, no other base score than `p` is tried.
    starts : bool
        Whether the tree is known to start from `p`. If not, or if no counts agree with `p`, any
        other base score is searched for.

    Returns
    -------
    first_tree : FirstTree or None
    """
    if sums.g is None:
        return None
    statistics = replace(sums, scale=scale)
    counts = counts_at(_remove_weight(statistics, p, weight), p) if starts else None
    if counts is not None or weight != 1:
        return counts
    counts = find_first_tree(statistics)
    # Hessians are the same for p and 1 - p. If the labels are integers only for 1 - p although the
    # tree started from p, the rows had weights.
    mirrored = starts and counts is not None and abs(counts.p - (1 - p)) < NEAR < abs(p - 0.5)
    return None if mirrored else counts


def _remove_weight(s: LeafStatistics, p: float, weight: float) -> LeafStatistics:
    """Return the sums of a tree grown from p as if rows of class 1 had weight 1."""
    if weight == 1:
        return s
    assert s.g is not None
    assert s.g_error is not None
    rows = s.h / (s.scale * p * (1 - p))  # N0 + weight N1
    n1 = (rows * p - s.g) / weight
    n = rows - (weight - 1) * n1
    error = (s.h_error / (p * (1 - p)) + s.g_error) * (1 + 1 / weight)
    h = n * s.scale * p * (1 - p)
    return LeafStatistics(n * p - n1, h, error, error, s.scale, s.unshrunk)


def _squared_errors(model: ModelFile, sums: Sequence[LeafStatistics | None]) -> list[TreeExposure]:
    """Return the rows per leaf for squared error, where each row has a hessian of 1 in every tree.

    One leaf whose H is not an integer shows that rows had weights. In this case no tree is counted.
    """
    integral = model.positive_weight == 1 and all(s is None or _are_integers(s) for s in sums)
    out = []
    for t, (tree, s) in enumerate(zip(model.boosted.trees, sums, strict=True)):
        how, n = NO_SUMS if s is None else NOT_WHOLE, None
        if s is not None and integral:
            how, n = SQUARED, np.rint(s.h).astype(np.int64)
        out.append(TreeExposure.of((t, 0), tree.leaves, how, (n, None)))
    return out


def _are_integers(sums: LeafStatistics) -> bool:
    """Return whether all hessian sums are integers up to their errors (0.25 at most)."""
    near = np.abs(np.rint(sums.h) - sums.h) <= sums.h_error + 1e-6
    return bool(near.all() and sums.h_error.max() <= 0.25)
