"""Rows and labels per leaf of a first tree, from its leaf values alone.

A value ``v = -eta G / (H + lambda)`` leaves for most N of its leaf no whole number of positives,
and for no N more than one. The leaves add up to the table; positives add up to the base score's
share of it, if that is the label mean. A count is certain if every way to add up agrees on it.

Values are taken for exact: no L1 penalty, no limit on steps, every row of the table in the tree.
Without lambda the table's size does not follow: all counts and lambda times one factor give the
same values. In bagging a client's first tree starts from its own label mean, which is not in the
file; hardly any share of positives but that one leaves every leaf whole rows and positives.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import (
    PER_ROW,
    VALUE_ERROR,
    LeafValues,
    positives_of_value,
    shares_of_values,
    subset_sums,
    union,
)
from fedtrees.audit.exposure import UNKNOWN
from fedtrees.audit.first_trees import CHANCE as FIRST_CHANCE
from fedtrees.audit.first_trees import FirstTree
from fedtrees.trees.boosted.forest import Tree

Ints = NDArray[np.int64]

MOST_ROWS = 20_000  # tables larger than this are not searched: chance solutions are everywhere
MOST_DENOMINATOR = 4096  # of N1/N: with more, some fraction is always within float32 of a score
MOST_BITS = 2 * 10**9  # of sums, times the numbers of all leaves: a second, some 100 MB
# Whole leaves that chance alone would fit, times choices of eta and lambda: above, none is named.
CHANCE = 1e-3
LEARNING_RATES = (0.3, 0.1, 0.05, 0.01, 0.2, 0.5, 1.0, 0.02, 0.03, 0.15, 0.25, 0.4, 0.7, 0.8)
REG_LAMBDAS = (1.0, 0.0, 0.1, 0.5, 2.0, 5.0, 10.0)
ROUND = 1000  # base scores of so few decimals are numbers that people choose
# Of simpler shares leaf values repeat: other rows and larger tables have the same ones.
LEAST_DENOMINATOR = 8
SIZES = (200, 400, 800, 1600)  # rows of a client; the search takes time that grows with the cube


@dataclass(frozen=True, eq=False)
class Pairs:
    """Numbers (N, N1): those one leaf allows, or each leaf's (-1: several); int64, shape (k,)."""

    n: Ints
    n1: Ints


def label_share(base_score: float) -> Fraction | None:
    """Return N1/N in lowest terms as a float32 base score tells it.

    None for 0.5, and where N in lowest terms is above `MOST_DENOMINATOR`.
    """
    score = np.float32(base_score)
    if score == np.float32(0.5) or not 0 < score < 1:
        return None
    near = Fraction(float(score)).limit_denominator(MOST_DENOMINATOR)
    # the simplest of the fractions that round to this float32
    simple = next(f for f in _convergents(Fraction(float(score))) if np.float32(float(f)) == score
                  or f == near)  # fmt: skip
    # the mean may have been taken in float32; one step beside is still that fraction
    if abs(np.float32(float(simple)) - score) > np.spacing(score):
        return None
    return simple if simple.denominator <= MOST_DENOMINATOR else None


def may_be_mean(share: Fraction) -> bool:
    """Tell whether a base score is a label mean and nothing that somebody chose."""
    return share.denominator >= LEAST_DENOMINATOR and ROUND % share.denominator != 0


def _convergents(x: Fraction) -> Iterator[Fraction]:
    """Yield the continued-fraction convergents of x, ever closer; the last one is x."""
    before, now = (0, 1), (1, 0)
    while True:
        whole = x.numerator // x.denominator
        before, now = now, (whole * now[0] + before[0], whole * now[1] + before[1])
        yield Fraction(*now)
        if x == whole:
            return
        x = 1 / (x - whole)


def pairs_of(
    values: NDArray[np.float32], ph: tuple[float, float], settings: tuple[float, float], most: int
) -> list[Pairs]:
    """Return what each leaf may hold, up to `most` rows.

    `values` are the leaves', eta included; `ph` is the probability and hessian of every row before
    the tree; `settings` are eta and lambda.
    """
    n = np.arange(1, most + 1, dtype=np.int64)
    out = []
    for value in values:
        exact, error = positives_of_value(value, n, ph, settings)
        n1 = np.rint(exact).astype(np.int64)
        fits = (np.abs(exact - n1) <= error) & (n1 >= 0) & (n1 <= n) & (error < 0.5)
        out.append(Pairs(n[fits], n1[fits]))
    return out


def sizes_that_fit(
    pairs: Sequence[Pairs], sizes: Iterable[int], share: Fraction | None = None
) -> Iterator[int]:
    """Yield those table sizes that some choice of pairs adds up to, and those too large to tell.

    Positives must add up to the share of the table, if one is given.
    """
    sizes = list(sizes)
    reached = subset_sums([leaf.n.tolist() for leaf in pairs], max(sizes, default=0))[-1]
    for size in sizes:
        if not reached >> size & 1:
            continue
        try:
            if share is not None and _possible(pairs, size, share * size) is None:
                continue
        except _TooManySumsError:
            pass
        yield size


def certain_counts(
    pairs: Sequence[Pairs], rows: int, share: Fraction | None = None
) -> Pairs | None:
    """Return the counts on which every choice of pairs that adds up to `rows` agrees.

    None where no choice adds up, or telling takes more than `MOST_BITS`. `share` is that of
    `sizes_that_fit`.
    """
    try:
        possible = _possible(pairs, rows, None if share is None else share * rows)
    except _TooManySumsError:
        return None
    if possible is None:
        return None
    n = [int(leaf.n[0]) if len(set(leaf.n.tolist())) == 1 else -1 for leaf in possible]
    n1 = [int(leaf.n1[0]) if len(leaf.n) == 1 else -1 for leaf in possible]
    return Pairs(np.array(n, dtype=np.int64), np.array(n1, dtype=np.int64))


class _TooManySumsError(Exception):
    """Telling what adds up takes more than `MOST_BITS`."""


def _possible(pairs: Sequence[Pairs], rows: int, positives: Fraction | None) -> list[Pairs] | None:
    """Return the pairs of each leaf with which the others can add up to rows and positives."""
    kept = _adding_up(pairs, [leaf.n for leaf in pairs], rows)
    if positives is None or kept is None:
        return kept
    if positives.denominator != 1:
        return None
    row = rows + 1  # a pair is the whole number n * row + n1
    both = [leaf.n * row + leaf.n1 for leaf in kept]
    return _adding_up(kept, both, rows * row + int(positives))


def _adding_up(pairs: Sequence[Pairs], numbers: Sequence[Ints], total: int) -> list[Pairs] | None:
    """Return the pairs whose number is part of a sum, one of each leaf, that is the total."""
    if any(len(leaf) == 0 for leaf in numbers):
        return None
    more = [(leaf - leaf.min()).tolist() for leaf in numbers]  # than the least of the leaf
    total -= sum(int(leaf.min()) for leaf in numbers)
    if total < 0:
        return None
    if total * sum(len(leaf) for leaf in more) > MOST_BITS:
        raise _TooManySumsError
    before = subset_sums(more, total)
    after = 1 << total  # sums of the leaves so far from which the later ones reach the total
    out = []
    for leaf, listed, sums in zip(pairs[::-1], more[::-1], before[-2::-1], strict=True):
        fits = np.array([sums << k & after != 0 for k in listed], dtype=np.bool_)
        if not fits.any():
            return None
        out.append(Pairs(leaf.n[fits], leaf.n1[fits]))
        after = union(after >> k for k, fit in zip(listed, fits, strict=True) if fit)
    return out[::-1]


@dataclass(frozen=True)
class Explanation:
    """eta, lambda and rows of a table from which all leaf values may have come."""

    learning_rate: float
    reg_lambda: float
    rows: int


def explanations(
    values: NDArray[np.float32],
    ph: tuple[float, float],
    sizes: Sequence[int],
    choices: Sequence[tuple[float, float]],
    share: Fraction | None = None,
    chance: float = CHANCE,
) -> Iterator[Explanation]:
    """Yield every choice of eta and lambda, with every table, that explains all leaves.

    `chance` is the largest probability to explain values of no meaning: larger tables, of which
    chance explains more, are left out. The rest is as for `pairs_of` and `sizes_that_fit`.
    """
    for choice in choices:
        allowed = chances(values, ph, choice, max(sizes, default=1)) * len(choices) <= chance
        most = int(allowed.sum())  # chances rise with the size of the table
        pairs = pairs_of(values, ph, choice, most)
        for size in sizes_that_fit(pairs, [size for size in sizes if size <= most], share):
            yield Explanation(*choice, size)


def chances(
    values: NDArray[np.float32], ph: tuple[float, float], settings: tuple[float, float], most: int
) -> NDArray[np.float64]:
    """Return the probability that values of no meaning leave every leaf a pair of numbers.

    float64, shape (most,): for leaves of up to 1, 2, 3, ... rows.
    """
    n = np.arange(1, most + 1, dtype=np.int64)
    chance = np.ones(most)
    for value in values:
        error = positives_of_value(value, n, ph, settings)[1]
        chance *= np.minimum(np.cumsum(np.minimum(2 * error, 1.0)), 1.0)
    return chance


def first_tree_of_values(
    tree: Tree, eta: float, reg_lambda: float, expected: float
) -> FirstTree | None:
    """Return the counts of a tree that starts from the label mean of its own rows.

    eta and lambda are those of a training on all rows without an L1 penalty. With lambda 0 nothing
    follows: any multiple of a table has the same leaf values. The search begins at `expected`.

    None unless one share of positives and one size of the table alone explain every leaf, every
    leaf's rows are certain, and values of no meaning are explained with less than `FIRST_CHANCE`.
    """
    if reg_lambda == 0 or len(tree.leaves) < 2:
        return None
    for most in SIZES:
        leaves = LeafValues.of(tree, eta, reg_lambda, 0.0, most)
        chance = _chance(leaves)
        if chance > FIRST_CHANCE:
            return None  # more rows, more chance
        shares = shares_of_values(leaves, expected, "mean")  # as XGBoost 3 takes base scores
        if shares is None:
            continue
        denominator = int(shares.rows[0])
        share = Fraction(int(shares.positives[0]), denominator)
        if len(shares.rows) > 1 or not may_be_mean(share):
            return None
        p = float(shares.p[0])
        values = tree.value[tree.leaves]
        pairs = pairs_of(values, (p, float(shares.h[0])), (eta, reg_lambda), most)
        tables = range(denominator, most + 1, denominator)
        sizes = list(islice(sizes_that_fit(pairs, tables, share), 2))
        if len(sizes) != 1:
            return None
        counts = certain_counts(pairs, sizes[0], share)
        if counts is None or (counts.n == UNKNOWN).any():
            return None
        return FirstTree(p, counts.n, counts.n1, chance)
    return None


def _chance(leaves: LeafValues) -> float:
    """Return a bound on how many shares would explain leaf values of no meaning.

    There are fewer than ``most_rows ** 2`` shares. How often one leaves a leaf whole positives is
    the sum of the value's errors over the rows it may hold.
    """
    most = leaves.most_rows
    rows = np.arange(1, most + 1)
    pull = np.abs(leaves.slope)[:, None] * (rows * 0.25 + leaves.reg_lambda)
    error = VALUE_ERROR * pull + PER_ROW * rows + 1e-9
    return float(most**2 * np.prod(np.minimum(2 * error.sum(axis=1), 1.0)))
