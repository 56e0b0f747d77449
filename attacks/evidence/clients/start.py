"""A client's base score from the sums of its first trees.

A shared model has the base score of the client whose trees arrived first. Every other client grew
its first trees from a local base score (Di Gennaro et al. 2025 use the model's for all). With N
rows of probability p the root has H = N p (1-p), and every leaf contains integer numbers of rows
and of positives, so that few N fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import (
    Logistic,
    Objective,
    estimated_score,
    logistic_gradients,
    start_margin,
)

Floats = NDArray[np.float64]

# Largest distance of a count from an integer that float32 sums explain.
LARGEST_OFF = 0.05
SHARES_OFF = 1e-4  # largest distance of the sum of all classes' shares from 1
# With both classes the hessian sum is a (N - a) / N >= 1/2; with less, the label mean is 0 or 1.
ONE_CLASS = 0.25


@dataclass(frozen=True, eq=False)
class Start:
    """Initial state of a client's boosting.

    Attributes
    ----------
    score : float32 array, shape (K,)
        Base score in XGBoost's units.
    rows : int
        Number of the client's rows.
    off : float
        Largest distance of a count from an integer, in rows.
    """

    score: NDArray[np.float32]
    rows: int
    off: float


def own_start(
    trees: Sequence[Tree],
    objective: Objective,
    most_rows: int,
    intercept: str = "mean",
    sampled: bool = False,
    shrunk: bool = False,
) -> Start | None:
    """Return the initial state from a client's first trees, None if no number of rows fits.

    Parameters
    ----------
    trees : sequence of Tree
        One tree per output, with sums.
    objective : Objective
        Loss of the training.
    most_rows : int
        Upper bound on the client's rows.
    intercept : {"mean", "newton"}, default "mean"
        How the client estimates its base score.
    sampled : bool, default False
        Whether the trees are grown on a sample of the rows. The label mean of the sample is then
        not that of the client, and the score is the probability that the sums imply, for two
        classes only.
    shrunk : bool, default False
        Whether an L1 penalty is used. Gradient sums of leaves of value 0 are then unknown.
    """
    if any(tree.g is None or tree.h is None for tree in trees):
        return None
    sums = [(t.g[t.leaves], t.h[t.leaves]) for t in trees if t.g is not None and t.h is not None]
    is_known = [(t.value[t.leaves] != 0) | (not shrunk) for t in trees]
    sampled = sampled or not all(k.all() for k in is_known)  # the mean is not in the sums
    one_class = len(trees) == 1 and intercept == "mean" and sums[0][1].sum() < ONE_CLASS
    if one_class and not sampled:
        return _one_class(float(sums[0][1].sum()), objective, most_rows)
    twice = 1.0 if isinstance(objective, Logistic) else 2.0  # XGBoost's softmax doubles h
    n = np.arange(1, most_rows + 1, dtype=np.float64)
    below, above = (
        np.array(side)
        for side in zip(
            *(_fit(n, g, h / twice, k) for (g, h), k in zip(sums, is_known, strict=True)),
            strict=True,
        )
    )
    best, off, share = 0, np.inf, np.zeros(len(trees))
    for likely in (None, *range(len(trees))):  # one class may have more than half of the rows
        fit = below.copy()
        if likely is not None:
            fit[likely] = above[likely]
        worst = fit[:, 1].max(axis=0)
        if len(trees) > 1:
            worst = np.where(np.abs(fit[:, 0].sum(axis=0) - 1) < SHARES_OFF, worst, np.inf)
        k = int(np.argmin(worst))
        if worst[k] < off:
            best, off, share = k, float(worst[k]), fit[:, 0, k]
    if not off <= LARGEST_OFF:
        return None
    rows = int(n[best])
    if sampled:
        start = Start(share.astype(np.float32), rows, off)
        return start if isinstance(objective, Logistic) else None
    positives = np.rint(rows * share - np.array([g.sum() for g, _ in sums]))
    classes = [rows - positives[0], positives[0]] if len(trees) == 1 else positives
    score = estimated_score(objective, np.array([rows, *classes]), intercept)
    return Start(score, rows, off)


def _one_class(total: float, objective: Objective, most_rows: int) -> Start | None:
    """Return the initial state of a client whose rows all have one class."""
    candidates = []
    for score in (np.zeros(1, np.float32), np.ones(1, np.float32)):
        gh = logistic_gradients(start_margin(objective, score), np.round(score).astype(np.int64))
        rows = total / float(gh[0, 1])
        candidates.append(Start(score, int(np.rint(rows)), abs(rows - np.rint(rows))))
    possible = [s for s in candidates if 1 <= s.rows <= most_rows and s.off <= LARGEST_OFF]
    return min(possible, key=lambda s: s.off, default=None)


def _fit(n: Floats, g: Floats, h: Floats, is_known: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return for each N both probabilities that fit H, and the distance of counts from integers.

    Counts of leaves whose gradient sums are not ``is_known``, bool (J,), are left out. The result
    is two float64 arrays of shape (2, len(n)), for the smaller and for the larger probability.
    """
    total = h.sum()
    # solve N p (1-p) = H for p, which has two solutions
    root = np.sqrt(np.maximum(1.0 - 4.0 * total / n, 0.0))
    per_leaf = n[:, None] * (h / total)
    sides = []
    for p in ((1.0 - root) / 2.0, (1.0 + root) / 2.0):
        positives = (per_leaf * p[:, None] - g)[:, is_known]
        parts = [per_leaf, positives, per_leaf[:, is_known] - positives]
        if is_known.all():
            parts.append((n * p - g.sum())[:, None])
        counts = np.concatenate(parts, axis=1)
        off = np.abs(counts - np.rint(counts)).max(axis=1)
        possible = (n >= 4.0 * total - 1e-6) & (counts.min(axis=1) > -0.5)
        sides.append(np.stack([p, np.where(possible, off, np.inf)]))
    return sides[0], sides[1]
