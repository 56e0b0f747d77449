"""A client's base score from the leaf values of its first tree only.

A client with N rows, N1 of them positive, starts from the float32 of N1 / N. A leaf of n rows and
n1 positives then has the value ``-eta (n p - n1) / (n h + lambda)``. With a wrong p, some leaf has
no integer n and n1, or those of all leaves do not add up to N and N1. The defense `split-only`
reveals nothing more than these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import kernel
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import sigmoid

Floats = NDArray[np.float64]
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
        parts = (self.positives, self.rows, self.p, self.h, self.step)
        return Shares(*(part[some] for part in parts), self.intercept)


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
