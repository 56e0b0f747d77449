"""A client's own base score from the leaf values of its first tree alone.

A client of N rows, N1 of them positive, starts from the float32 of N1 / N. A leaf of n rows and n1
positives then has the value ``-eta (n p - n1) / (n h + lambda)``. With a wrong p, some leaf has no
whole n and n1, or those of all leaves do not add up to N and N1. This is all that `split-only`
leaves to see.
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
    """Shares of positives, and the gradients of rows that start from them."""

    # int64 (m,): numerators and denominators in lowest terms; a table may have any multiple of both
    positives: Ints
    rows: Ints
    # float64 (m,): gradient of a row of class 0, its hessian, and gradient of class 0 less that of
    # class 1
    p: Floats
    h: Floats
    step: Floats
    intercept: str = "mean"  # {"mean", "newton"}: how the client estimates its base score

    @staticmethod
    def near(expected: float, distance: float, most_rows: int, intercept: str) -> Shares:
        """Return all shares within a distance of the expected one, of at most so many rows."""
        rows = np.arange(2, most_rows + 1, dtype=np.int64)
        low = np.maximum(np.ceil((expected - distance) * rows), 1).astype(np.int64)
        high = np.minimum(np.floor((expected + distance) * rows), rows - 1).astype(np.int64)
        count = np.maximum(high - low + 1, 0)
        d = np.repeat(rows, count)
        a = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
        lowest = np.gcd(a, d) == 1
        a, d = a[lowest], d[lowest]
        return Shares(a, d, *_gradients(_scores(a / d, intercept)), intercept)

    @property
    def scores(self) -> NDArray[np.float32]:
        """Base scores in XGBoost's units, float32, shape (m,)."""
        return _scores(self.positives / self.rows, self.intercept)

    def take(self, some: NDArray[np.bool_]) -> Shares:
        """Return some of the shares."""
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
    """Leaf values of a first tree, and what it was grown with.

    `slope`: float64 array, shape (J,). ``v / eta``, eta in float32.
    `reg_lambda, least_h`: L2 penalty, and the smallest hessian sum that a leaf may have.
    """

    slope: Floats
    reg_lambda: float
    least_h: float
    most_rows: int

    @staticmethod
    def of(tree: Tree, eta: float, reg_lambda: float, least_h: float, most_rows: int) -> LeafValues:
        """Return the leaf values of a tree, small ones first: they exclude most."""
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

    `expected`: A guess at the share. The search starts there and ends once a share explains all
    leaves.
    `intercept`: {"mean", "newton"}. How the client estimates its base score.

    Returns: The nearest shares that do; None where none does.
    """
    for distance in DISTANCES:
        if distance * leaves.most_rows**2 > MOST_SHARES:
            return None
        shares = Shares.near(expected, distance, leaves.most_rows, intercept)
        held = np.zeros(len(shares.p), dtype=np.bool_)
        _explained(
            shares.p, shares.h, shares.step, shares.rows, leaves.slope,
            (leaves.reg_lambda, leaves.least_h, VALUE_ERROR, PER_ROW), leaves.most_rows, held,
        )  # fmt: skip
        for k in np.flatnonzero(held):
            held[k] = next(_sizes(leaves, shares, int(k)), None) is not None
        if held.any():
            return shares.take(held)
    return None


def _sizes(leaves: LeafValues, shares: Shares, k: int) -> Iterator[int]:
    """Yield the table sizes that the leaves can add up to, positives in the share ``k``."""
    a, d, most = int(shares.positives[k]), int(shares.rows[k]), leaves.most_rows
    row = most + 1  # a pair is the whole number n * row + n1
    pairs = leaves.pairs(shares, k)
    rows = subset_sums([{n for n, _ in leaf} for leaf in pairs], most)[-1]
    if not any(rows >> size & 1 for size in range(d, most + 1, d)):
        return
    sums = subset_sums([{n * row + n1 for n, n1 in leaf} for leaf in pairs], row * row - 1)[-1]
    for m in range(1, most // d + 1):
        if sums >> (m * d * row + m * a) & 1:
            yield m * d


def subset_sums(parts: Sequence[Iterable[int]], most: int) -> list[int]:
    """Return the sums of one number of each of the first k parts, for k = 0, 1, ...

    A set of sums is a whole number: bit s is set if s is a sum. Adding a number to all sums is a
    shift; sums above `most` are dropped.
    """
    within = (1 << (most + 1)) - 1
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
def _explained(
    p: Floats,
    h: Floats,
    step: Floats,
    rows: Ints,
    slope: Floats,
    known: tuple[float, float, float, float],
    most_rows: int,
    out: NDArray[np.bool_],
) -> None:
    """Tell for which starts every leaf has whole numbers of rows and of positives."""
    reg_lambda, least_h, value_error, per_row = known
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
            found = 0
            for n in range(first, last + 1):
                x = n * a + b
                n1 = np.rint(x)
                near = abs(x - n1) <= c * n + d
                found += int(near and n1 >= 0 and n1 <= n)
            if found == 0:
                out[k] = False
                break
