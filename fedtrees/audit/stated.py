"""Rows and labels per leaf of models whose files count them: LightGBM's and random forests."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import FLOAT32
from fedtrees.attacks.evidence.clients.hessians import leaves_below
from fedtrees.audit.exposure import UNKNOWN, TreeExposure
from fedtrees.audit.first_trees import FirstTree, LeafStatistics, counts_at
from fedtrees.audit.model import ModelFile, parameter
from fedtrees.trees.boosted.losses import LOGISTIC

# LightGBM's ways to train on several machines, none of which sees all rows of a leaf.
DISTRIBUTED = ("data", "voting")
# Of gains, which the file rounds to six digits, relative to the terms that they are made of.
GAINS_AGREE = 1e-5
ESTIMATED = "leaf_count, which training on several machines estimates from leaf_weight"
COUNTED = "the file counts them"
ONCE = (
    "the file counts them once; labels where all have one, for rows were drawn twice or had weights"
)
DRAWN = "the file counts draws, and a row may be drawn twice: bounds, which meet in some leaves"
CONTRADICTED = "leaf_count does not add up to internal_count: one was changed, or estimated"


def recover_forest(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a random forest that keeps its counts."""
    out = []
    for t, (tree, known) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        place, drawn = (t, 0), None if known.drawn is None else known.drawn[tree.leaves]
        if known.rows is None and drawn is not None:
            out.append(TreeExposure.of(place, tree.leaves, DRAWN, *_of_draws(drawn)))
            continue
        counts = tuple(x if x is None else x[tree.leaves] for x in (known.rows, known.positives))
        how = COUNTED if drawn is None else ONCE
        if known.rows is None:
            how = "leaves hold shares of classes without counts"
            how = how if model.released is None else "counts are noisy"
        out.append(TreeExposure.of(place, tree.leaves, how, counts))
    return out


def _of_draws(
    drawn: NDArray[np.int64],
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64] | None], tuple[NDArray[np.int64], ...]]:
    """Return what follows of leaves from their draws of each class, shape (J, K).

    One row at least of each class that was drawn, and no more rows than draws: counts and bounds,
    as `TreeExposure.of` takes them.
    """
    least, most = (drawn > 0).sum(axis=1), drawn.sum(axis=1)
    n = np.where(least == most, most, UNKNOWN)
    n_pos = np.where(least == most, drawn[:, 1], UNKNOWN) if drawn.shape[1] == 2 else None
    return (n, n_pos), (least, most)


def samples_rows(model: ModelFile) -> bool:
    """Tell whether LightGBM grew trees on samples of the rows, as far as the file says."""
    said = model.parameters
    shares = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    bags = parameter(said, "bagging_freq") != 0 and any(parameter(said, s) != 1 for s in shares)
    return bags or said.get("boosting") != "gbdt" or said.get("data_sample_strategy") != "bagging"


def recover_lightgbm(model: ModelFile) -> list[TreeExposure]:
    """Return the exposure of every tree of a LightGBM model.

    Where ``leaf_count`` is in doubt, only a first tree is counted whose ``leaf_weight`` and
    ``leaf_value`` give the same rows.
    """
    outputs, doubt = model.forest.objective.n_outputs, None
    if model.parameters.get("tree_learner", "serial") in DISTRIBUTED:
        doubt = ESTIMATED
    elif not model.consistent:
        doubt = CONTRADICTED
    out = []
    for t, (tree, known) in enumerate(zip(model.forest.trees, model.statistics, strict=True)):
        how, n, n_pos, start = doubt or "leaf_count", None, None, None
        if known.rows is None:
            how = "the file holds no leaf_count"
        elif t == 0 and (first := _first_tree(model, known.rows[tree.leaves])) is not None:
            how = "leaf_count; labels from leaf_weight and leaf_value"
            n, n_pos, start = known.rows[tree.leaves], first.n1, first.p
        elif not doubt:
            n = known.rows[tree.leaves]
        place = t, t % outputs
        out.append(TreeExposure.of(place, tree.leaves, how, (n, n_pos), None, start))
    return out


def _first_tree(model: ModelFile, n: NDArray[np.int64]) -> FirstTree | None:
    """Return the counts of the first tree on log loss, if its sums give these rows.

    An L1 penalty moves G, and labels with it; then there are none.
    """
    tree, h, eta = model.forest.trees[0], model.statistics[0].cover, model.learning_rate
    unmoved = parameter({"lambda_l1": "0", **model.parameters}, "lambda_l1") == 0
    usable = unmoved and model.forest.objective.name == LOGISTIC.name and model.positive_weight == 1
    if not usable or h is None or not eta or model.reg_lambda is None or not n.any():
        return None
    leaf_h, value = h[tree.leaves], tree.value[tree.leaves].astype(np.float64)
    found = []
    for start, p in _starts(leaf_h, int(n.sum())):
        g = -(value - start) / eta * (leaf_h + model.reg_lambda)
        if not np.isfinite(g).all():
            continue
        error = np.abs(g) * 4 * FLOAT32 + (leaf_h + model.reg_lambda) / eta * FLOAT32
        fit = counts_at(LeafStatistics(g, leaf_h, error, 4 * FLOAT32 * leaf_h), p)
        if fit is not None and np.array_equal(fit.n, n) and _gains_agree(model, g, leaf_h):
            found.append(fit)
    same = found and all(np.array_equal(found[0].n1, fit.n1) for fit in found)
    return found[0] if same else None


def _gains_agree(model: ModelFile, g: NDArray[np.float64], h: NDArray[np.float64]) -> bool:
    """Tell whether the first tree's gains are those of the sums of its leaves, where it has gains.

    `refit` on other labels moves leaf values a part of the way and leaves gains as they were.
    """
    tree, lam = model.forest.trees[0], model.reg_lambda
    assert lam is not None
    if tree.gain is None or not tree.gain.any():
        return True
    below = leaves_below(tree)
    part = (below @ g) ** 2 / np.maximum(below @ h + lam, 1e-30)
    (inner,) = np.nonzero(tree.feature >= 0)
    parts = np.stack([part[tree.left[inner]], part[tree.right[inner]], part[inner]])
    least = parameter({"min_gain_to_split": "0", **model.parameters}, "min_gain_to_split") or 0.0
    off = np.abs(parts[0] + parts[1] - parts[2] - least - tree.gain[inner])
    return bool((off <= GAINS_AGREE * (parts.sum(axis=0) + least)).all())


def _starts(h: NDArray[np.float64], rows: int) -> Iterator[tuple[float, float]]:
    """Yield the log-odds that LightGBM may have added to the first leaves, and p before the tree.

    It starts from the label mean, or from 0 without ``boost_from_average``.
    """
    spread = np.sqrt(max(0.25 - h.sum() / rows, 0.0))
    for near in (0.5 - spread, 0.5 + spread):
        p = float(np.rint(rows * near) / rows)  # the mean of whole labels
        if 0 < p < 1:
            yield float(np.log(p / (1 - p))), p
    yield 0.0, 0.5
