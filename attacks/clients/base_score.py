"""A client's base score, from the sums or from the leaf values of its first trees.

A shared model has the base score of the client whose trees arrived first. Every other client grew
its first trees from a local base score (Di Gennaro et al. 2025 use the model's for all). With N
rows of probability p the root has H = N p (1-p), and every leaf contains integer numbers of rows
and of positives, so that few N fit (`own_start`).

If only leaf values are seen, a client with N rows, N1 of them positive, starts from the float32 of
N1 / N. A leaf of n rows and n1 positives has the value ``-eta (n p - n1) / (n h + lambda)``. With a
wrong p, some leaf has no integer n and n1, or those of all leaves do not add up to N and N1
(`shares_of_values`). The defense `split-only` reveals nothing more than these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import (
    Logistic,
    Objective,
    estimated_score,
    logistic_gradients,
    sigmoid,
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


Ints = NDArray[np.int64]

# A value is the product of float32 eta and a float32 weight, rounded: half a step each.
VALUE_ERROR = 1.1 * 2.0**-23
PER_ROW = 2.0**-29  # error of fixed-point sums, as of XGBoost on a GPU and of ours
# Distances from the expected share of positives that are searched: near ones first, then all.
DISTANCES = (0.05, 0.15, 1.0)
MOST_SHARES = 3_000_000  # shares within one distance; more take minutes


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of positives, and the gradients of rows that start from them.

    Attributes
    ----------
    positives, rows : int64 array, shape (m,)
        Numerators and denominators in lowest terms. A table may have any multiple of both.
    p, h, step : float64 array, shape (m,)
        Gradient of a row of class 0, its hessian, and gradient of class 0 less that of class 1.
    intercept : {"mean", "newton"}
        How the client estimates its base score.
    """

    positives: Ints
    rows: Ints
    p: Floats
    h: Floats
    step: Floats
    intercept: str = "mean"

    @staticmethod
    def near(expected: float, distance: float, most_rows: int, intercept: str) -> Shares:
        """Return all shares within a distance of the expected one.

        Parameters
        ----------
        expected : float
            Expected share of positives.
        distance : float
            Largest difference.
        most_rows : int
            Largest denominator.
        intercept : {"mean", "newton"}
            How the client estimates its base score.
        """
        rows = np.arange(2, most_rows + 1, dtype=np.int64)
        low = np.maximum(np.ceil((expected - distance) * rows), 1).astype(np.int64)
        high = np.minimum(np.floor((expected + distance) * rows), rows - 1).astype(np.int64)
        count = np.maximum(high - low + 1, 0)
        d = np.repeat(rows, count)
        a = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
        # equal shares are tested once, in lowest terms
        lowest = np.gcd(a, d) == 1
        a, d = a[lowest], d[lowest]
        return Shares(a, d, *_gradients(_scores(a / d, intercept)), intercept)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Base scores in XGBoost's units, float32, shape (m,)."""
        return _scores(self.positives / self.rows, self.intercept)

    def take(self, some: NDArray[np.bool_]) -> Shares:
        """Return the shares selected by a mask."""
        return Shares(
            self.positives[some],
            self.rows[some],
            self.p[some],
            self.h[some],
            self.step[some],
            self.intercept,
        )


def _scores(mean: Floats, intercept: str) -> NDArray[np.float32]:
    """Return the base scores of label means, as `estimated_score` does."""
    if intercept == "newton":
        return sigmoid((4 * (mean - 0.5)).astype(np.float32))
    return mean.astype(np.float32)


def _gradients(score: NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """Return p, h and the step between classes, in the arithmetic of the training."""
    one = np.float32(1)
    score = np.clip(score, np.float32(1e-6), one - np.float32(1e-6))
    margin = -np.log((one / score - one).astype(np.float64))
    p = sigmoid(margin.astype(np.float32))
    h = p * (one - p)
    return p.astype(np.float64), h.astype(np.float64), p.astype(np.float64) - (p - one)


@dataclass(frozen=True, eq=False)
class LeafValues:
    """Leaf values of a first tree, and its training parameters.

    Attributes
    ----------
    slope : float64 array, shape (J,)
        ``v / eta``, eta in float32.
    reg_lambda : float
        L2 penalty.
    least_h : float
        Smallest hessian sum of a leaf.
    most_rows : int
        Upper bound on the number of rows.
    """

    slope: Floats
    reg_lambda: float
    least_h: float
    most_rows: int

    @staticmethod
    def of(tree: Tree, eta: float, reg_lambda: float, least_h: float, most_rows: int) -> LeafValues:
        """Return the leaf values of a tree, small ones first because they exclude most.

        Parameters
        ----------
        tree : Tree
            The first tree.
        eta, reg_lambda : float
            Learning rate and L2 penalty.
        least_h : float
            Smallest hessian sum of a child.
        most_rows : int
            Upper bound on the number of rows.
        """
        slope = tree.value[tree.leaves] / np.float64(np.float32(eta))
        ordered = slope[np.argsort(np.abs(slope))]
        least = 0.0 if len(tree) == 1 else least_h * (1 - 1e-5)
        return LeafValues(ordered, reg_lambda, least, most_rows)

    def pairs(self, shares: Shares, k: int) -> list[list[tuple[int, int]]]:
        """Return the pairs (rows, positives) of each leaf if rows start from share ``k``."""
        p, h, step = shares.p[k], shares.h[k], shares.step[k]
        n = np.arange(max(int(np.ceil(self.least_h / h)), 1), self.most_rows + 1, dtype=np.int64)
        out = []
        for slope in self.slope:
            pull = slope * (n * h + self.reg_lambda)
            n1 = np.rint((n * p + pull) / step).astype(np.int64)
            off = np.abs(n * p + pull - n1 * step)
            fits = off <= VALUE_ERROR * np.abs(pull) + PER_ROW * n + 1e-9
            fits &= (n1 >= 0) & (n1 <= n)
            out.append(list(zip(n[fits].tolist(), n1[fits].tolist(), strict=True)))
        return out


def shares_of_values(leaves: LeafValues, expected: float, intercept: str) -> Shares | None:
    """Return the shares of positives that explain all leaves of a first tree.

    Parameters
    ----------
    leaves : LeafValues
        Values of the leaves.
    expected : float
        Expected share. The search starts there and ends when a share explains all leaves.
    intercept : {"mean", "newton"}
        How the client estimates its base score.

    Returns
    -------
    Shares or None
        Shares within the smallest distance that contains any. None if no share explains the leaves,
        or if there are more than `MOST_SHARES`.
    """
    for distance in DISTANCES:
        if distance * leaves.most_rows**2 > MOST_SHARES:
            return None
        shares = Shares.near(expected, distance, leaves.most_rows, intercept)
        is_possible = np.zeros(len(shares.p), dtype=np.bool_)
        _mark_explained(
            shares.p, shares.h, shares.step, shares.rows, leaves.slope,
            (leaves.reg_lambda, leaves.least_h, VALUE_ERROR, PER_ROW), leaves.most_rows,
            is_possible,
        )  # fmt: skip
        for k in np.flatnonzero(is_possible):
            is_possible[k] = next(_sizes(leaves, shares, int(k)), None) is not None
        if is_possible.any():
            return shares.take(is_possible)
    return None


def _sizes(leaves: LeafValues, shares: Shares, k: int) -> Iterator[int]:
    """Yield the table sizes that the leaves can add up to with share number ``k``."""
    a, d, most_rows = int(shares.positives[k]), int(shares.rows[k]), leaves.most_rows
    row = most_rows + 1  # a pair is encoded as the integer n * row + n1
    pairs = leaves.pairs(shares, k)
    rows = subset_sums([{n for n, _ in leaf} for leaf in pairs], most_rows)[-1]
    if not any(rows >> size & 1 for size in range(d, most_rows + 1, d)):
        return
    sums = subset_sums([{n * row + n1 for n, n1 in leaf} for leaf in pairs], row * row - 1)[-1]
    for m in range(1, most_rows // d + 1):
        if sums >> (m * d * row + m * a) & 1:
            yield m * d


def subset_sums(parts: Sequence[Iterable[int]], largest: int) -> list[int]:
    """Return the sums of one number of each of the first k parts, for k = 0, 1, ...

    A set of sums is encoded as an integer, in which bit s is set if s is a sum. Adding a number to
    all sums is a shift. Sums above `largest` are dropped. For example, the parts {1} and {2, 3}
    give the sums {0}, {1} and {3, 4}.
    """
    within = (1 << (largest + 1)) - 1
    sums = [1]
    for part in parts:
        sums.append(union(sums[-1] << number for number in part) & within)
    return sums


def union(sets: Iterable[int]) -> int:
    """Return the union of sets of sums (see `subset_sums`)."""
    out = 0
    for s in sets:
        out |= s
    return out


@kernel
def _mark_explained(
    p: Floats,
    h: Floats,
    step: Floats,
    rows: Ints,
    slope: Floats,
    constants: tuple[float, float, float, float],
    most_rows: int,
    out: NDArray[np.bool_],
) -> None:
    """Mark the shares for which every leaf has an integer number of rows and of positives."""
    reg_lambda, least_h, value_error, per_row = constants
    leaves = slope.shape[0]
    for k in range(p.shape[0]):
        first = max(int(np.ceil(least_h / h[k])), 1)
        last = most_rows // rows[k] * rows[k] - (leaves - 1) * first
        out[k] = True
        for j in range(leaves):
            a = (p[k] + slope[j] * h[k]) / step[k]
            b = slope[j] * reg_lambda / step[k]
            error = value_error * abs(slope[j])
            c, d = error * h[k] + per_row, error * abs(reg_lambda) + 1e-9
            n_solutions = 0
            for n in range(first, last + 1):
                x = n * a + b
                n1 = np.rint(x)
                near = abs(x - n1) <= c * n + d
                n_solutions += int(near and n1 >= 0 and n1 <= n)
            if n_solutions == 0:
                out[k] = False
                break
