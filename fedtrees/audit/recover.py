"""Rows and labels per leaf of boosted XGBoost models, from the sums of their leaves.

First trees are counted (`fedtrees.audit.first_trees`), later ones bounded, trees of squared error
counted by their hessians, which are 1.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import FLOAT32
from fedtrees.audit.exposure import UNKNOWN, Known, TreeExposure, least_rows, most_rows
from fedtrees.audit.first_trees import (
    LEAST_SHARE,
    FirstTree,
    LeafStatistics,
    counts_at,
    find_first_tree,
)
from fedtrees.audit.model import ModelFile, Statistics, parameter
from fedtrees.audit.newton import Settings, leaf_sums
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import SQUARED_ERROR, Softmax, sigmoid

FROM_SUMS = "H and G of the leaf: one base score, whole numbers of rows and of labels"
NOT_ITS_START = "H of the leaf; whether it started from the file's base score nothing shows"
LATER = "rows enter with different predictions: bounds only"
MEETING = "bounds, which meet in some leaves"
IF_WHOLE = ", if no tree was taken out of the file"  # several clients: nothing shows it
NOT_FOLLOWED = "the second tree does not follow from the leaves of the first: lower bounds only"
NOT_WHOLE = "sums of hessians are no whole numbers: rows had weights"
NO_SUMS = "the file holds no sums of hessians, and none follow from it"
WITHOUT_ETA = "H of the leaf; labels do not follow without eta and lambda"
SHRUNK = "H of the leaf; labels do not follow, an L1 penalty may have moved G by a whole number"
SQUARED = "H of the leaf is its number of rows (squared error)"
UNSURE = "no first tree of whole counts: rows may have had weights, and bounds would not hold"

NEAR = 1e-5  # relative difference of numbers that are taken for one
MOST_TRIED = 10**6  # rows of a smallest leaf
MOST_LOOSE = 1e-4  # relative error of H of a root at which nothing is said to follow from it
# Largest probability at which the hessians of a first tree are whole rows by chance.
LONE_CHANCE = 1e-3


def sums_of(tree: Tree, statistics: Statistics, settings: Settings | None) -> LeafStatistics | None:
    """Return the sums of the leaves: the file's, or solved for from weights and gains."""
    if settings is None:
        if statistics.cover is None:
            return None
        h = statistics.cover[tree.leaves]
        return LeafStatistics(None, h, None, FLOAT32 * h)
    found = leaf_sums(tree, statistics, settings)
    if found is None:
        return None
    h, h_error = found
    step = -tree.value[tree.leaves].astype(np.float64) / settings.learning_rate
    size = np.abs(step)
    g = step * (h + settings.reg_lambda)
    g_error = np.abs(step) * h_error + 2 * FLOAT32 * np.abs(g)
    return LeafStatistics(g, h, g_error, h_error, unshrunk=settings.unshrunk, step=size)


def start_of(forest: Forest, k: int) -> float:
    """Return the probability of class k (of class 1, of two) before the first tree."""
    start = forest.base_margin[:, None]
    return float(np.asarray(forest.objective.predict(start)).reshape(-1)[k])


def recover_boosted(
    model: ModelFile, sums: Sequence[LeafStatistics | None], known: Known
) -> list[TreeExposure]:
    """Return the exposure of every tree of a boosted XGBoost model."""
    if model.forest.objective.name == SQUARED_ERROR.name:
        return _squared_errors(model, sums)
    forest, outputs = model.forest, model.forest.objective.n_outputs
    sums = _beside_a_limit(sums)
    low, high = float(forest.base_margin.min()), float(forest.base_margin.max())
    followed = False
    out: list[TreeExposure] = []
    for t, (tree, s) in enumerate(zip(forest.trees, sums, strict=True)):
        values = tree.value[tree.leaves]
        out.append(_classified(model, t, s, (low, high), known))
        if t == 0 and outputs == 1 and len(forest.trees) > 1:
            start = _start_followed(out[0], float(forest.base_margin[0]), values, sums[1])
            followed = start is not None
            alone = bool((out[0].n_pos == UNKNOWN).all()) or _share_a_factor(out[0].n)
            moved = followed and np.abs(values).max() > NEAR  # else any start leads on
            told = 0 in known.starts or len(forest.trees) <= first_round(model)
            if alone and not moved and not told:
                # the base score is that of the last training: another one may be as good
                out[0] = _without_counts(out[0], NOT_ITS_START)
            # the model's base score may be that of a training that went on later
            low, high = (low, high) if start is None else (min(low, start), max(high, start))
        # valid whichever of the earlier trees a row had met: none of them is counted on
        low, high = low + min(0.0, float(values.min())), high + max(0.0, float(values.max()))
    return _settled(_agreeing(out, outputs), followed, first_round(model))


def _beside_a_limit(
    sums: Sequence[LeafStatistics | None],
) -> list[LeafStatistics | None]:
    """Return sums without the gradients of leaves that a limit on steps may have cut off.

    ``max_delta_step`` is not in the file. It leaves steps of one size, the largest of the model,
    which is a number that people choose; G does not follow from such a step.
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


def _share_a_factor(n: NDArray[np.int64]) -> bool:
    """Tell whether all counts are known, and multiples of one number."""
    return bool((n != UNKNOWN).all() and np.gcd.reduce(n) > 1)


def first_round(model: ModelFile) -> int:
    """Return how many trees of a training begin with the model's base score."""
    parallel = parameter(model.parameters, "num_parallel_tree") or 1
    outputs, trees = model.forest.objective.n_outputs, len(model.forest.trees)
    return outputs * int(min(max(parallel, 1), trees // outputs))


def _start_followed(
    first: TreeExposure, margin: float, values: NDArray[np.float32], second: LeafStatistics | None
) -> float | None:
    """Return the log-odds from which the first tree leads to the second, None where none does.

    The first tree's counts and values give every row's prediction before the second, and so H of
    the second root. Another H shows other rows (a sample, another client's) or a missing tree.
    """
    if first.base_score is None or second is None or first.rows is None:
        return None
    found, error = float(second.h.sum()), float(second.h_error.sum())
    for start in (margin, float(np.log(first.base_score / (1 - first.base_score)))):
        p = sigmoid((np.float32(start) + values).astype(np.float32)).astype(np.float64)
        h = float(first.n @ (p * (1 - p)))
        if abs(h - found) <= error + 8 * FLOAT32 * h and error <= MOST_LOOSE * h:
            return start
    return None


def _agreeing(trees: list[TreeExposure], outputs: int) -> list[TreeExposure]:
    """Drop the counts of a class whose round has trees that hold no whole counts.

    The trees of a round, one per class, are of the same rows; with weights some of them can pass.
    """
    out = list(trees)
    for k in range(0, len(trees) if outputs > 1 else 0, outputs):
        together = trees[k : k + outputs]
        if any(t.base_score is None and len(t.leaf) > 1 for t in together):
            for t in together:
                out[t.at] = t if t.base_score is None else _without_counts(t, UNSURE)
    return out


def _settled(trees: list[TreeExposure], followed: bool, together: int) -> list[TreeExposure]:
    """Drop bounds that nothing vouches for, and count leaves in which they meet.

    Bounds hold for rows of weight 1, which a first tree of whole counts shows. They do not hold for
    a client's first tree, which starts from another base score than the model's. After the first
    trees of one training, which are grown `together`, upper bounds hold only if the second tree
    followed the first.
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
            out.append(replace(t, n=n, how=how if followed else how + IF_WHOLE))
    return out


def _without_counts(t: TreeExposure, how: str) -> TreeExposure:
    return TreeExposure.of((t.at, t.output), t.leaf, how)


def _classified(
    model: ModelFile,
    t: int,
    sums: LeafStatistics | None,
    margins: tuple[float, float],
    known: Known,
) -> TreeExposure:
    """Return the exposure of tree t of a model on log loss or softmax."""
    outputs, leaves = model.forest.objective.n_outputs, model.forest.trees[t].leaves
    place, starts = (t, t % outputs), t in known.starts or t < first_round(model)
    if sums is None:
        return TreeExposure.of(place, leaves, NO_SUMS)
    # XGBoost's softmax doubles hessians
    scale = 2.0 if isinstance(model.forest.objective, Softmax) else 1.0
    p = known.starts.get(t, start_of(model.forest, t % outputs))
    first = _first_tree(sums, scale, p, model.positive_weight, starts)
    if first is not None and starts and t not in known.starts and model.base_score_given:
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
    most = most_rows(sums.h + sums.h_error, margins, known.rows) if bounded else None
    # no equation of a lone leaf shows that eta and lambda are its own
    lone = len(leaves) == 1 or (sums.cut is not None and sums.cut.any())
    g = None if lone or sums.g is None else np.maximum(np.abs(sums.g) - sums.g_error, 0.0)
    bounds = least_rows(np.maximum(sums.h - sums.h_error, 0.0), g, scale), most
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
    """Tell whether a leaf has all labels that G allows: a penalty would have hidden some more.

    An L1 penalty moves G towards 0, so the true N1 would lie beyond 0 or N.
    """
    g = np.zeros(0) if sums.g is None else sums.g
    known = first.n1 != UNKNOWN
    none, every = (first.n1 == 0) & (g > 0), (first.n1 == first.n) & (g < 0)
    return bool((known & (none | every)).any())


def _may_start(sums: LeafStatistics, scale: float) -> bool:
    """Tell whether some hessian of a row leaves whole rows in every leaf.

    Then the tree may be a client's first one, grown from a base score that is not the model's: too
    few leaves to tell which, and no bound on rows holds.
    """
    h, error = sums.h, sums.h_error / np.maximum(sums.h, 1e-30) + 2 * FLOAT32
    least = int(np.argmin(h))
    most = h[least] / (scale * LEAST_SHARE * (1 - LEAST_SHARE))
    first = max(np.floor(4 * h[least] / scale * (1 - 1e-5)), 1)
    if h[least] == 0 or most > MOST_TRIED:
        return bool(h[least] > 0)  # no tree grows a leaf without rows
    row = h[least] / np.arange(first, most + 2)
    for j in range(len(h)):
        n = h[j] / row
        row = row[np.abs(n - np.rint(n)) <= n * (error[least] + error[j]) + 1e-9]
    return bool(len(row))


def _rows_alone(sums: LeafStatistics, h: float) -> NDArray[np.int64] | None:
    """Return rows per leaf from hessians alone, each row's being h; None where they are broken."""
    n = np.rint(sums.h / h)
    error = sums.h_error / h + FLOAT32 * n + 1e-9
    whole = (np.abs(sums.h / h - n) <= error).all() and np.prod(2 * error) <= LONE_CHANCE
    return n.astype(np.int64) if whole else None


def _first_tree(
    sums: LeafStatistics, scale: float, p: float, weight: float, starts: bool
) -> FirstTree | None:
    """Return the counts of a tree grown from p, if it `starts` there, or from any base score.

    With a weight of class 1 other than 1 no other base score is searched for.
    """
    if sums.g is None:
        return None
    statistics = replace(sums, scale=scale)
    found = counts_at(_unweighted(statistics, p, weight), p) if starts else None
    if found is not None or weight != 1:
        return found
    found = find_first_tree(statistics)
    # of p and 1 - p the hessians are the same: where labels are broken at p, rows had weights
    mirrored = starts and found is not None and abs(found.p - (1 - p)) < NEAR < abs(p - 0.5)
    return None if mirrored else found


def _unweighted(s: LeafStatistics, p: float, weight: float) -> LeafStatistics:
    """Return the sums of a tree grown from p as if rows of class 1 had counted 1, not `weight`."""
    if weight == 1:
        return s
    rows = s.h / (s.scale * p * (1 - p))  # N0 + weight N1
    n1 = (rows * p - s.g) / weight
    n = rows - (weight - 1) * n1
    error = (s.h_error / (p * (1 - p)) + s.g_error) * (1 + 1 / weight)
    h = n * s.scale * p * (1 - p)
    return LeafStatistics(n * p - n1, h, error, error, s.scale, s.unshrunk)


def _squared_errors(model: ModelFile, sums: Sequence[LeafStatistics | None]) -> list[TreeExposure]:
    """Return rows per leaf: every row brings a hessian of 1, in every tree.

    One leaf that holds no whole number shows that rows had weights; then no tree is counted.
    """
    whole = model.positive_weight == 1 and all(s is None or _whole(s) for s in sums)
    out = []
    for t, (tree, s) in enumerate(zip(model.forest.trees, sums, strict=True)):
        how, n = NO_SUMS if s is None else NOT_WHOLE, None
        if s is not None and whole:
            how, n = SQUARED, np.rint(s.h).astype(np.int64)
        out.append(TreeExposure.of((t, 0), tree.leaves, how, (n, None)))
    return out


def _whole(sums: LeafStatistics) -> bool:
    near = np.abs(np.rint(sums.h) - sums.h) <= sums.h_error + 1e-6
    return bool(near.all() and sums.h_error.max() <= 0.25)
