"""Recover rows and labels per leaf, tree by tree, from whatever a file carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.evidence import FLOAT32
from fedtrees.audit.exposure import (
    UNKNOWN,
    TreeExposure,
    least_rows,
    most_rows,
    unknown_counts,
)
from fedtrees.audit.first_trees import (
    LEAST_SHARE,
    LeafStatistics,
    counts_at,
    find_first_tree,
)
from fedtrees.audit.model import ModelFile, Statistics, parameter
from fedtrees.audit.newton import Settings, leaf_sums
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import SQUARED_ERROR, Softmax, sigmoid
from fedtrees.trees.forest.random_forest import RandomForest

Floats = NDArray[np.float64]

FROM_SUMS = "H and G of the leaf: one base score, whole numbers of rows and of labels"
LATER = "rows enter with different predictions: bounds only"
MEETING = "bounds, which meet in some leaves"
IF_WHOLE = ", if no tree was taken out of the file"  # several clients: nothing shows it
NOT_FOLLOWED = "the second tree does not follow from the leaves of the first: lower bounds only"
NOT_WHOLE = "sums of hessians are no whole numbers: rows had weights"
ESTIMATED = "leaf_count, which training on several machines estimates from leaf_weight"
CONTRADICTED = "leaf_count does not add up to internal_count: one was changed, or estimated"
UNSURE = "no first tree of whole counts: rows may have had weights, and bounds would not hold"


# LightGBM's ways to train on several machines, none of which sees all rows of a leaf.
DISTRIBUTED = ("data", "voting")
MOST_TRIED = 10**6  # rows of a smallest leaf
MOST_LOOSE = 1e-4  # relative error of H of a root at which nothing is said to follow from it
# Largest probability at which the hessians of a first tree are whole rows by chance.
LONE_CHANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the leaves of one tree and their errors; g is None where eta is unknown."""

    h: Floats
    h_error: Floats
    g: Floats | None
    g_error: Floats | None


def sums_of(tree: Tree, statistics: Statistics, settings: Settings | None) -> Sums | None:
    """Return the sums of the leaves: the file's, or solved for from weights and gains."""
    if settings is None:
        if statistics.cover is None:
            return None
        h = statistics.cover[tree.leaves]
        return Sums(h, FLOAT32 * h, None, None)
    found = leaf_sums(tree, statistics, settings)
    if found is None:
        return None
    h, h_error = found
    step = -tree.value[tree.leaves].astype(np.float64) / settings.learning_rate
    g = step * (h + settings.reg_lambda)
    return Sums(h, h_error, g, np.abs(step) * h_error + 2 * FLOAT32 * np.abs(g))


def hessian_scale(model: ModelFile) -> float:
    """Return s of ``h = s p (1 - p)``: XGBoost's softmax doubles it."""
    assert isinstance(model.forest, Forest)
    return 2.0 if isinstance(model.forest.objective, Softmax) else 1.0


def start_of(forest: Forest, k: int) -> float:
    """Return the probability of class k (of class 1, of two) before the first tree."""
    start = forest.base_margin[:, None]
    return float(np.asarray(forest.objective.predict(start)).reshape(-1)[k])


def recover_boosted(
    model: ModelFile, sums: Sequence[Sums | None], total: int | None
) -> list[TreeExposure]:
    """Return the exposure of every tree of a boosted XGBoost model.

    Parameters
    ----------
    model : ModelFile
        On log loss, softmax or squared error.
    sums : sequence of Sums or None, length T
    total : int or None
        Rows of the training table, where declared.
    """
    assert isinstance(model.forest, Forest)
    if model.forest.objective.name == SQUARED_ERROR.name:
        return _squared_errors(model, sums)
    forest, outputs = model.forest, model.forest.objective.n_outputs
    low, high = float(forest.base_margin.min()), float(forest.base_margin.max())
    followed = False
    out: list[TreeExposure] = []
    for t, (tree, s) in enumerate(zip(forest.trees, sums, strict=True)):
        values = tree.value[tree.leaves]
        out.append(_classified(model, t, s, (low, high), total))
        if t == 0 and outputs == 1 and len(forest.trees) > 1:
            start = _start_followed(out[0], float(forest.base_margin[0]), values, sums[1])
            followed = start is not None
            low = high = low if start is None else start
        # valid whichever of the earlier trees a row had met: none of them is counted on
        low, high = low + min(0.0, float(values.min())), high + max(0.0, float(values.max()))
    return _settled(_agreeing(out, outputs), followed)


def _start_followed(
    first: TreeExposure, margin: float, values: NDArray[np.float32], second: Sums | None
) -> float | None:
    """Return the log-odds from which the first tree leads to the second, None where none does.

    The counts of the first tree and its values tell every row's prediction before the second, and
    so H of its root. Another H shows that the second was grown on other rows (a sample, another
    client's), or that trees between the two were taken out of the file.
    """
    if first.base_score is None or second is None or (first.n == UNKNOWN).any():
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
            out[k : k + outputs] = [
                t if t.base_score is None else _without_counts(t, UNSURE) for t in together
            ]
    return out


def _settled(trees: list[TreeExposure], followed: bool) -> list[TreeExposure]:
    """Drop bounds that nothing vouches for, and count leaves in which they meet.

    Bounds hold for rows of weight 1, which a first tree of whole counts shows, and for trees that
    start from the model's base score, which a client's first tree does not. Where there is one
    first tree, upper bounds need a second one that is seen to have followed it.
    """
    starts = [t.index for t in trees if t.base_score is not None]
    out = []
    for t in trees:
        unsure = not starts or t.index < starts[-1]
        if t.base_score is not None or not (t.at_least != UNKNOWN).any():
            out.append(t)
        elif unsure:
            nothing = unknown_counts(len(t.leaf))
            out.append(
                replace(t, at_least=nothing, at_most=nothing, how=LATER if starts else UNSURE)
            )
        elif len(starts) == 1 and not followed:
            out.append(replace(t, at_most=unknown_counts(len(t.leaf)), how=NOT_FOLLOWED))
        else:
            meet = (t.at_least == t.at_most) & (t.at_most != UNKNOWN)
            n = np.where(meet, t.at_most, UNKNOWN)
            how = MEETING if meet.any() else LATER
            out.append(replace(t, n=n, how=how if followed else how + IF_WHOLE))
    return out


def _nothing(t: int, output: int, tree: Tree, how: str) -> TreeExposure:
    nothing = unknown_counts(len(tree.leaves))
    return TreeExposure(t, output, tree.leaves, nothing, nothing, nothing, nothing, how)


def _without_counts(t: TreeExposure, how: str) -> TreeExposure:
    nothing = unknown_counts(len(t.leaf))
    return TreeExposure(t.index, t.output, t.leaf, nothing, nothing, nothing, nothing, how)


def _classified(
    model: ModelFile,
    t: int,
    sums: Sums | None,
    margins: tuple[float, float],
    total: int | None,
) -> TreeExposure:
    assert isinstance(model.forest, Forest)
    forest, tree = model.forest, model.forest.trees[t]
    outputs = forest.objective.n_outputs
    nothing = unknown_counts(len(tree.leaves))
    if sums is None:
        how = "the file holds no sums of hessians, and none follow from it"
        return _nothing(t, t % outputs, tree, how)
    scale = hessian_scale(model)
    counts = _counts(model, t, sums, scale)
    if counts is not None:
        n, n_pos, p, how = counts
        return TreeExposure(t, t % outputs, tree.leaves, n, n_pos, n, n, how, p)
    bounded = outputs == 1 and not _may_start(sums, scale)
    most = most_rows(sums.h, margins, total) if bounded else nothing
    least = least_rows(sums.h, sums.g, scale)
    if model.positive_weight != 1:
        least, most = nothing, nothing
    return TreeExposure(t, t % outputs, tree.leaves, nothing, nothing, least, most, LATER)


def _may_start(sums: Sums, scale: float) -> bool:
    """Tell whether some hessian of a row leaves whole rows in every leaf.

    Then the tree may be a client's first one, grown from a base score that is not the model's: too
    few leaves to tell which, and no bound on rows holds.
    """
    h, error = sums.h, sums.h_error / np.maximum(sums.h, 1e-30) + 2 * FLOAT32
    least = int(np.argmin(h))
    most = h[least] / (scale * LEAST_SHARE * (1 - LEAST_SHARE))
    first = max(np.floor(4 * h[least] / scale * (1 - 1e-5)), 1)
    if h[least] == 0 or most > MOST_TRIED:
        return h[least] > 0  # no tree grows a leaf without rows
    row = h[least] / np.arange(first, most + 2)
    for j in range(len(h)):
        n = h[j] / row
        row = row[np.abs(n - np.rint(n)) <= n * (error[least] + error[j]) + 1e-9]
    return len(row) > 0


def _counts(
    model: ModelFile, t: int, sums: Sums, scale: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], float, str] | None:
    """Return rows, positives, base score and how they follow, None where they do not."""
    assert isinstance(model.forest, Forest)
    outputs = model.forest.objective.n_outputs
    p = start_of(model.forest, t % outputs)
    if sums.g is None or sums.g_error is None:
        n = np.rint(sums.h / (scale * p * (1 - p)))
        error = sums.h_error / (scale * p * (1 - p)) + FLOAT32 * n + 1e-9
        whole = np.abs(sums.h / (scale * p * (1 - p)) - n) <= error
        if t >= outputs or not whole.all() or np.prod(2 * error) > LONE_CHANCE:
            return None
        how = "H of the leaf; labels do not follow without eta and lambda"
        return n.astype(np.int64), unknown_counts(len(n)), p, how
    weight = model.positive_weight
    statistics = _unweighted(LeafStatistics(sums.g, sums.h, sums.g_error, sums.h_error, scale),
                             p, weight)  # fmt: skip
    found = counts_at(statistics, p) if t < outputs else None
    if found is None and weight == 1:
        found = find_first_tree(statistics)
    return None if found is None else (found.n, found.n1, found.p, FROM_SUMS)


def _unweighted(s: LeafStatistics, p: float, weight: float) -> LeafStatistics:
    """Return the sums of a tree grown from p as if rows of class 1 had counted 1, not `weight`."""
    if weight == 1:
        return s
    rows = s.h / (s.scale * p * (1 - p))  # N0 + weight N1
    n1 = (rows * p - s.g) / weight
    n = rows - (weight - 1) * n1
    error = (s.h_error / (p * (1 - p)) + s.g_error) * (1 + 1 / weight)
    return LeafStatistics(n * p - n1, n * s.scale * p * (1 - p), error, error, s.scale)


def _squared_errors(model: ModelFile, sums: Sequence[Sums | None]) -> list[TreeExposure]:
    """Return rows per leaf: every row brings a hessian of 1, in every tree.

    One leaf that holds no whole number shows that rows had weights; then no tree is counted.
    """
    assert isinstance(model.forest, Forest)
    whole = model.positive_weight == 1 and all(s is None or _whole(s) for s in sums)
    out = []
    for t, (tree, s) in enumerate(zip(model.forest.trees, sums, strict=True)):
        if s is None or not whole:
            missing = "the file holds no sums of hessians, and none follow from it"
            out.append(_nothing(t, 0, tree, missing if s is None else NOT_WHOLE))
            continue
        n, nothing = np.rint(s.h).astype(np.int64), unknown_counts(len(s.h))
        how = "H of the leaf is its number of rows (squared error)"
        out.append(TreeExposure(t, 0, tree.leaves, n, nothing, n, n, how))
    return out


def _whole(sums: Sums) -> bool:
    near = np.abs(np.rint(sums.h) - sums.h) <= sums.h_error + 1e-6
    return bool(near.all() and sums.h_error.max() <= 0.25)


def recover_lightgbm(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a LightGBM model: it counts the rows of each leaf."""
    assert isinstance(model.forest, Forest)
    outputs, doubt = model.forest.objective.n_outputs, None
    if model.parameters.get("tree_learner", "serial") in DISTRIBUTED:
        doubt = ESTIMATED
    elif not model.consistent:
        doubt = CONTRADICTED
    out = []
    for t, (tree, known) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        nothing = unknown_counts(len(tree.leaves))
        if known.rows is None:
            how = "the file holds no leaf_count"
            out.append(_nothing(t, t % outputs, tree, how))
            continue
        n = known.rows[tree.leaves]
        n_pos, p = _lightgbm_labels(model, t, n)
        if p is None and doubt is not None:  # else leaf_weight and leaf_value bear it out
            out.append(_nothing(t, t % outputs, tree, doubt))
            continue
        how = "leaf_count" if p is None else "leaf_count; labels from leaf_weight and leaf_value"
        labels = nothing if n_pos is None else n_pos
        out.append(TreeExposure(t, t % outputs, tree.leaves, n, labels, n, n, how, p))
    return out


def _lightgbm_labels(
    model: ModelFile, t: int, n: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, float | None]:
    """Return positives per leaf of the first tree on log loss, and its base score.

    LightGBM adds the log-odds of the label mean, from which it starts, to the leaves of that tree.
    """
    assert isinstance(model.forest, Forest)
    h, eta, lam = model.statistics[t].cover, model.learning_rate, model.reg_lambda
    tree = model.forest.trees[t]
    usable = model.forest.objective.name == "binary:logistic" and model.positive_weight == 1
    usable &= parameter({"lambda_l1": "0", **model.parameters}, "lambda_l1") == 0  # moves G
    if t or not usable or h is None or not eta or lam is None or len(tree.leaves) < 2:
        return None, None
    leaf_h, rows = h[tree.leaves], int(n.sum())
    spread = np.sqrt(max(0.25 - leaf_h.sum() / rows, 0.0))
    found = []
    for near in (0.5 - spread, 0.5 + spread):
        p = float(np.rint(rows * near) / rows)  # the mean of whole labels
        for start, q in ((np.log(p / (1 - p)) if 0 < p < 1 else np.nan, p), (0.0, 0.5)):
            step = (tree.value[tree.leaves].astype(np.float64) - start) / eta
            g = -step * (leaf_h + lam)
            error = 4 * FLOAT32 * leaf_h
            g_error = np.abs(g) * 4 * FLOAT32 + (leaf_h + lam) / eta * FLOAT32
            if not np.isfinite(g).all():
                continue
            fit = counts_at(LeafStatistics(g, leaf_h, g_error, error), q)
            if fit is not None and np.array_equal(fit.n, n):
                found.append(fit)
    same = found and all(np.array_equal(found[0].n1, f.n1) for f in found)
    return (found[0].n1, found[0].p) if same else (None, None)


def recover_forest(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a random forest that keeps its counts."""
    assert isinstance(model.forest, RandomForest)
    out = []
    for t, (tree, known) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        nothing = unknown_counts(len(tree.leaves))
        n = nothing if known.rows is None else known.rows[tree.leaves]
        n_pos = nothing if known.positives is None else known.positives[tree.leaves]
        how = (
            "the file counts them (a row drawn twice counts twice)"
            if known.rows is not None
            else "leaves hold shares of classes without counts"
        )
        out.append(TreeExposure(t, 0, tree.leaves, n, n_pos, n, n, how))
    return out
