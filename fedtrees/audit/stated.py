"""Read rows and labels per leaf from files that contain counts: LightGBM's and random forests."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import FLOAT32
from fedtrees.attacks.evidence.clients.hessians import leaves_below
from fedtrees.audit.exposure import UNKNOWN, TreeExposure
from fedtrees.audit.first_trees import FirstTree, LeafStatistics, counts_at
from fedtrees.audit.model import ModelFile, parameter
from fedtrees.trees.boosted.losses import LOGISTIC

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
    for t, (tree, statistics) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        place, drawn = (t, 0), None if statistics.drawn is None else statistics.drawn[tree.leaves]
        if statistics.rows is None and drawn is not None:
            out.append(TreeExposure.of(place, tree.leaves, DRAWN, *_of_draws(drawn)))
            continue
        counts = tuple(
            x if x is None else x[tree.leaves] for x in (statistics.rows, statistics.positives)
        )
        how = COUNTED if drawn is None else ONCE
        if statistics.rows is None:
            how = "leaves hold shares of classes without counts"
            how = how if model.released is None else "counts are noisy"
        out.append(TreeExposure.of(place, tree.leaves, how, counts))
    return out


def _of_draws(
    drawn: NDArray[np.int64],
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64] | None], tuple[NDArray[np.int64], ...]]:
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
    outputs, doubt = model.forest.objective.n_outputs, None
    if model.parameters.get("tree_learner", "serial") in DISTRIBUTED:
        doubt = ESTIMATED
    elif not model.consistent:
        doubt = CONTRADICTED
    out = []
    for t, (tree, statistics) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        how, n, n_pos, start = doubt or "leaf_count", None, None, None
        if statistics.rows is None:
            how = "the file holds no leaf_count"
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
    tree, h, eta = model.forest.trees[0], model.statistics[0].cover, model.learning_rate
    unmoved = parameter({"lambda_l1": "0", **model.parameters}, "lambda_l1") == 0
    usable = unmoved and model.forest.objective.name == LOGISTIC.name and model.positive_weight == 1
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
    tree, lam = model.forest.trees[0], model.reg_lambda
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
