"""Derive rows and labels per leaf of a tree that every row entered with the same prediction p.

This is the first tree of a model or, in bagging, the first tree of every client. Its leaves satisfy
``H = N s p(1-p)`` and ``G = N p - N1`` with integers N (rows) and N1 (rows of class 1) and the
scale s of the hessians (Di Gennaro et al. 2025, Eqs. 4-9). Sums of other trees hardly ever satisfy
these equations. The statistics of a tree therefore show whether it is a first tree, and they
determine its p.

The module also reads rows and labels per leaf from files that contain counts: those of LightGBM and
of random forests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.masked_hessians import FLOAT32
from fedtrees.attacks.observations.boosting import leaves_below
from fedtrees.model_audit.exposure import UNKNOWN, TreeExposure
from fedtrees.model_audit.model import ModelFile, parameter
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.forest.random_forest import ClassTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Relative error of a sum over rows whose gradients are float32, and of its float32 storage.
ROUNDING = 2.0**-23
CHANCE = 1e-6  # largest accepted probability that unrelated statistics agree by coincidence
CLEAR = 0.25  # a count with a larger error (in rows) is not rounded to an integer
LEAST_SHARE = 0.0025  # the search covers base scores between this and 1 - this
# Largest number of integers N1 that are tried for one N. H is flat in p near 1/2, so that it admits
# a wide interval of p there.
MOST_CLASS_COUNTS = 4000
MOST_SCORES = 20_000  # largest number of base scores tried for one tree, in about a second


@dataclass(frozen=True, eq=False)
class LeafStatistics:
    """Sums of gradients and hessians over the rows of each leaf, and their errors, shape (J,).

    The hessian of a row is ``scale * p (1 - p)``. The scale is 1, or 2 for XGBoost's softmax. If
    `unshrunk` is False, an L1 penalty may have moved G towards 0.
    """

    g: Floats | None  # None if eta is unknown, like g_error
    h: Floats
    g_error: Floats | None
    h_error: Floats
    scale: float = 1.0
    unshrunk: bool = True
    step: Floats | None = None  # absolute Newton steps of the leaves, None if eta is unknown
    cut: NDArray[np.bool_] | None = None  # leaves whose step a limit may have truncated


@dataclass(frozen=True, eq=False)
class FirstTree:
    """Counts that agree with the statistics of a tree, int64, shape (J,)."""

    p: float  # base score: the prediction of every row before the tree
    n: Ints  # number of rows, `UNKNOWN` if the errors of the sums allow several numbers
    n1: Ints  # number of rows of the tree's class, also `UNKNOWN` in this case
    chance: float  # bound on the probability that unrelated statistics agree equally well


def counts_at(statistics: LeafStatistics, p: float, tries: float = 1.0) -> FirstTree | None:
    """Return the counts of a tree that was grown from base score p.

    Parameters
    ----------
    statistics : LeafStatistics
        Sums of the leaves, with G.
    p : float
        Base score.
    tries : float
        Number of base scores that were tried. Each of them increases the probability that one
        agrees by chance.

    Returns
    -------
    first_tree : FirstTree or None
        None if no counts agree with the statistics, or if they agree by chance with probability
        `CHANCE` or more.
    """
    s, h = statistics, statistics.scale * p * (1 - p)
    assert s.g is not None
    assert s.g_error is not None
    n = np.maximum(np.rint(s.h / h), 0).astype(np.int64)
    n1 = np.clip(np.rint(n * p - s.g), 0, n).astype(np.int64)
    n_error = s.h_error / h + 2 * ROUNDING * n + 1e-9
    n1_error = s.g_error + p * n_error + ROUNDING * n
    # Only leaves with small errors are tested, because an integer always lies within a large error.
    off = np.abs(s.h / h - n), np.abs(n * p - s.g - n1)
    clear = np.maximum(n_error, n1_error) < CLEAR
    if not clear.any() or ((off[0] > n_error) | (off[1] > n1_error) | (n < 1))[clear].any():
        return None
    chance = tries * float(np.prod(2 * n_error[clear]) * np.prod(2 * n1_error[clear]))
    n, n1 = np.where(clear, n, UNKNOWN), np.where(clear, n1, UNKNOWN)
    return FirstTree(p, n, n1, chance) if chance < CHANCE else None


def find_first_tree(statistics: LeafStatistics) -> FirstTree | None:
    """Return the counts of a tree with unknown base score, None unless exactly one solution fits.

    The function tries 1, 2, 3, ... rows in the smallest leaf. Each choice gives the hessian of a
    row and the rows of all leaves, which must be integers. G of the root then gives p. If more than
    `MOST_SCORES` base scores remain, the function returns None. This happens if all leaves have
    about the same H.
    """
    s = statistics
    if len(s.h) < 2 or not (s.h > 0).all():
        return None
    rows, tries = _whole_rows(s)
    scores = list(islice(_base_scores(s, rows), MOST_SCORES + 1))
    fitting: list[FirstTree] = []
    for p in scores if len(scores) <= MOST_SCORES else ():
        fit = counts_at(s, p, tries)
        if fit is not None and not any(
            np.array_equal(fit.n, f.n) and np.array_equal(fit.n1, f.n1) for f in fitting
        ):
            fitting.append(fit)
    return fitting[0] if len(fitting) == 1 else None


def _whole_rows(s: LeafStatistics) -> tuple[Floats, float]:
    """Return the possible numbers of rows of the root, and how many choices were tried.

    In each returned choice, the rows of every leaf are integers. The smallest leaf is tried with
    the numbers of rows that some base score allows and for which the error of each leaf's rows is
    at most `CLEAR`.
    """
    least, low = int(np.argmin(s.h)), s.scale * LEAST_SHARE * (1 - LEAST_SHARE)
    ratio, relative = s.h / s.h[least], s.h_error / s.h
    error = ratio * (relative[least] + relative + 2 * ROUNDING)  # for each row of the smallest leaf
    first = max(int(np.floor(s.h[least] / (0.25 * s.scale) * (1 - 1e-5))), 1)
    largest = int(min(s.h[least] / low + 1, CLEAR / error.max()))
    tried = np.arange(first, largest + 1, dtype=np.float64)
    rows, fits = np.zeros(len(tried)), tried
    for j in np.argsort(s.h):  # each leaf eliminates some of the choices
        n = np.rint(ratio[j] * fits)
        integral = np.abs(ratio[j] * fits - n) <= error[j] * fits + 1e-9
        rows, fits = (rows + n)[integral], fits[integral]
    return rows, float(len(tried))


def _base_scores(s: LeafStatistics, rows: Floats) -> Iterator[float]:
    """Yield each p for which the hessian of a row and N1 of the root agree with the number of rows.

    ``scale p (1-p)`` equals the root's H divided by its rows within the error, and N1 is an
    integer.
    """
    assert s.g is not None
    g, variance = float(s.g.sum()), s.h.sum() / rows / s.scale
    error = variance * (float(s.h_error.sum() / s.h.sum()) + 2 * ROUNDING)
    # p (1 - p) = v has the solutions 1/2 - sqrt(1/4 - v) and 1/2 + sqrt(1/4 - v). The error of v
    # turns each of them into an interval.
    inner, outer = (np.sqrt(np.maximum(0.25 - variance + x, 0.0)) for x in (-error, error))
    low = np.stack([0.5 - outer, 0.5 + inner], axis=1)
    high = np.stack([0.5 - inner, 0.5 + outer], axis=1)
    first = np.ceil(rows[:, None] * low - g - 1e-3)
    last = np.floor(rows[:, None] * high - g + 1e-3)
    usable = (first <= last) & (last - first <= MOST_CLASS_COUNTS)
    for k, side in np.argwhere(usable):
        for n1 in np.arange(first[k, side], last[k, side] + 1):
            p = float((n1 + g) / rows[k])
            if 0 < p < 1:
                yield p


# LightGBM's distributed learners in which no machine has all rows of a leaf.
DISTRIBUTED = ("data", "voting")
# Largest error of gains, relative to their terms. The file rounds gains to six digits.
GAINS_AGREE = 1e-5
ESTIMATED = "leaf_count, which training on several machines estimates from leaf_weight"
COUNTED = "the file counts them"
ONCE = (
    "the file counts them once; labels where all have one, for rows were drawn twice or had weights"
)
DRAWN = "the file counts draws, and a row may be drawn twice: bounds, which meet in some leaves"
CONTRADICTED = "leaf_count does not add up to internal_count: one was changed, or estimated"


def recover_forest(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a random forest whose file contains counts."""
    out = []
    trees: Sequence[Tree | ClassTree] = model.forest.trees
    for t, (tree, statistics) in enumerate(zip(trees, model.statistics, strict=True)):
        place, drawn = (t, 0), None if statistics.drawn is None else statistics.drawn[tree.leaves]
        if statistics.rows is None and drawn is not None:
            out.append(TreeExposure.of(place, tree.leaves, DRAWN, *_of_draws(drawn)))
            continue
        n, n_pos = (
            x if x is None else x[tree.leaves] for x in (statistics.rows, statistics.positives)
        )
        how = COUNTED if drawn is None else ONCE
        if statistics.rows is None:
            how = "the leaves contain class shares without counts"
            how = how if model.released is None else "counts are noisy"
        out.append(TreeExposure.of(place, tree.leaves, how, (n, n_pos)))
    return out


def _of_draws(
    drawn: NDArray[np.int64],
) -> tuple[
    tuple[NDArray[np.int64], NDArray[np.int64] | None],
    tuple[NDArray[np.int64], NDArray[np.int64]],
]:
    """Return the counts and the bounds that follow from the draws of each class, shape (J, K).

    A leaf has at least one row of each class that was drawn, and at most as many rows as draws. The
    result has the form of the last arguments of `TreeExposure.of`.
    """
    least, draws = (drawn > 0).sum(axis=1), drawn.sum(axis=1)
    n = np.where(least == draws, draws, UNKNOWN)
    n_pos = np.where(least == draws, drawn[:, 1], UNKNOWN) if drawn.shape[1] == 2 else None
    return (n, n_pos), (least, draws)


def samples_rows(model: ModelFile) -> bool:
    """Return whether LightGBM may have grown trees on samples of the rows.

    The result is also True if the file does not contain the parameters that exclude sampling.
    """
    parameters = model.parameters
    shares = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    bags = parameter(parameters, "bagging_freq") != 0 and any(
        parameter(parameters, s) != 1 for s in shares
    )
    return (
        bags
        or parameters.get("boosting") != "gbdt"
        or parameters.get("data_sample_strategy") != "bagging"
    )


def recover_lightgbm(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a LightGBM model.

    If ``leaf_count`` may be an estimate or was changed, only a first tree is counted whose
    ``leaf_weight`` and ``leaf_value`` give the same rows.
    """
    outputs, doubt = model.boosted.objective.n_outputs, None
    if model.parameters.get("tree_learner", "serial") in DISTRIBUTED:
        doubt = ESTIMATED
    elif not model.consistent:
        doubt = CONTRADICTED
    out = []
    for t, (tree, statistics) in enumerate(zip(model.boosted.trees, model.statistics, strict=True)):
        how, n, n_pos, start = doubt or "leaf_count", None, None, None
        if statistics.rows is None:
            how = "the file contains no leaf_count"
        elif t == 0 and (first := _first_tree(model, statistics.rows[tree.leaves])) is not None:
            how = "leaf_count; labels from leaf_weight and leaf_value"
            n, n_pos, start = statistics.rows[tree.leaves], first.n1, first.p
        elif not doubt:
            n = statistics.rows[tree.leaves]
        place = t, t % outputs
        out.append(TreeExposure.of(place, tree.leaves, how, (n, n_pos), None, start))
    return out


def _first_tree(model: ModelFile, n: NDArray[np.int64]) -> FirstTree | None:
    """Return the counts of the first tree on log loss, None unless its sums give the rows `n`.

    An L1 penalty moves G, so that labels cannot be computed and the result is None.
    """
    tree, h, eta = model.boosted.trees[0], model.statistics[0].cover, model.learning_rate
    unmoved = parameter({"lambda_l1": "0", **model.parameters}, "lambda_l1") == 0
    usable = (
        unmoved and model.boosted.objective.name == LOGISTIC.name and model.positive_weight == 1
    )
    if not usable or h is None or not eta or model.reg_lambda is None or not n.any():
        return None
    leaf_h, value = h[tree.leaves], tree.value[tree.leaves].astype(np.float64)
    fitting = []
    for start, p in _starts(leaf_h, int(n.sum())):
        g = -(value - start) / eta * (leaf_h + model.reg_lambda)
        if not np.isfinite(g).all():
            continue
        error = np.abs(g) * 4 * FLOAT32 + (leaf_h + model.reg_lambda) / eta * FLOAT32
        # The recomputed rows must equal `leaf_count`. Otherwise a statistic was changed.
        fit = counts_at(LeafStatistics(g, leaf_h, error, 4 * FLOAT32 * leaf_h), p)
        if fit is not None and np.array_equal(fit.n, n) and _gains_agree(model, g, leaf_h):
            fitting.append(fit)
    same = fitting and all(np.array_equal(fitting[0].n1, fit.n1) for fit in fitting)
    return fitting[0] if same else None


def _gains_agree(model: ModelFile, g: NDArray[np.float64], h: NDArray[np.float64]) -> bool:
    """Return whether the gains of the first tree follow from the sums of its leaves.

    The result is True if the tree has no gains. LightGBM's `refit` on other labels changes leaf
    values partially and leaves the gains unchanged.
    """
    tree, lam = model.boosted.trees[0], model.reg_lambda
    assert lam is not None
    if tree.gain is None or not tree.gain.any():
        return True
    below = leaves_below(tree)
    # The gain of a split is the sum of G^2 / (H + lambda) of its children minus that of the node.
    part = (below @ g) ** 2 / np.maximum(below @ h + lam, 1e-30)
    (inner,) = np.nonzero(tree.feature >= 0)
    parts = np.stack([part[tree.left[inner]], part[tree.right[inner]], part[inner]])
    least = parameter({"min_gain_to_split": "0", **model.parameters}, "min_gain_to_split") or 0.0
    off = np.abs(parts[0] + parts[1] - parts[2] - least - tree.gain[inner])
    return bool((off <= GAINS_AGREE * (parts.sum(axis=0) + least)).all())


def _starts(h: NDArray[np.float64], rows: int) -> Iterator[tuple[float, float]]:
    """Yield the log-odds that LightGBM may have added to the first leaves, and p before the tree.

    LightGBM starts from the label mean, or from 0 without ``boost_from_average``.
    """
    # All rows have the hessian p (1 - p), whose solutions are 1/2 - spread and 1/2 + spread.
    spread = np.sqrt(max(0.25 - h.sum() / rows, 0.0))
    for near in (0.5 - spread, 0.5 + spread):
        p = float(np.rint(rows * near) / rows)  # a label mean is an integer divided by the rows
        if 0 < p < 1:
            yield float(np.log(p / (1 - p))), p
    yield 0.0, 0.5
