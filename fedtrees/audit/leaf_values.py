"""Derive rows and labels per leaf of a first tree from its leaf values without other statistics.

For most numbers of rows N, a leaf value ``v = -eta G / (H + lambda)`` allows no integer number of
positives, and for no N more than one. The rows of the leaves add up to the table. The positives add
up to the base score's share of the table if the base score is the label mean. A count is certain if
all combinations that add up agree on it.

The values are taken as exact: no L1 penalty, no limit on steps, and every row of the table in the
tree. Without lambda, the size of the table cannot be determined, because multiplying all counts and
lambda by the same factor gives the same values. In bagging, the first tree of a client starts from
its local label mean, which is not in the file. Hardly any other share of positives gives integer
rows and positives in every leaf.
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

MOST_ROWS = 20_000  # largest size of a table. Larger tables have solutions by chance
# Largest denominator of N1/N. With a larger one, some fraction always rounds to a given float32.
MOST_DENOMINATOR = 4096
# Largest size of the table of sums in bits, times the numbers of all leaves. The limit corresponds
# to about a second and 100 MB.
MOST_BITS = 2 * 10**9
# Largest accepted probability that values without meaning are explained by some of the tried eta
# and lambda.
CHANCE = 1e-3
LEARNING_RATES = (0.3, 0.1, 0.05, 0.01, 0.2, 0.5, 1.0, 0.02, 0.03, 0.15, 0.25, 0.4, 0.7, 0.8)
REG_LAMBDAS = (1.0, 0.0, 0.1, 0.5, 2.0, 5.0, 10.0)
ROUND = 1000  # a base score that is a multiple of 1/1000 can be a number that a user chose
# With simpler shares, other rows and larger tables have the same leaf values.
LEAST_DENOMINATOR = 8
# Largest numbers of rows of a client, tried one after the other. The search takes cubic time.
SIZES = (200, 400, 800, 1600)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs (N, N1), int64, shape (k,).

    They are either all pairs that one leaf allows, or one pair for each leaf, with -1 for a number
    that is not certain.
    """

    n: Ints
    n1: Ints


def label_share(base_score: float) -> Fraction | None:
    """Return N1/N in lowest terms if a float32 base score is such a fraction.

    The result is None for 0.5, and if the denominator exceeds `MOST_DENOMINATOR`.
    """
    score = np.float32(base_score)
    if score == np.float32(0.5) or not 0 < score < 1:
        return None
    near = Fraction(float(score)).limit_denominator(MOST_DENOMINATOR)
    # Take the simplest fraction that rounds to this float32.
    simple = next(f for f in _convergents(Fraction(float(score))) if np.float32(float(f)) == score
                  or f == near)  # fmt: skip
    # A mean that was computed in float32 may deviate by one unit in the last place.
    if abs(np.float32(float(simple)) - score) > np.spacing(score):
        return None
    return simple if simple.denominator <= MOST_DENOMINATOR else None


def may_be_mean(share: Fraction) -> bool:
    """Return whether a share is likely a label mean, because no user would choose it."""
    return share.denominator >= LEAST_DENOMINATOR and ROUND % share.denominator != 0


def _convergents(x: Fraction) -> Iterator[Fraction]:
    """Yield the continued-fraction convergents of x in increasing precision. The last one is x."""
    before, now = (0, 1), (1, 0)
    while True:
        integer = x.numerator // x.denominator
        before, now = now, (integer * now[0] + before[0], integer * now[1] + before[1])
        yield Fraction(*now)
        if x == integer:
            return
        x = 1 / (x - integer)


def pairs_of(
    values: NDArray[np.float32], ph: tuple[float, float], settings: tuple[float, float], most: int
) -> list[Pairs]:
    """Return the pairs (N, N1) that each leaf allows.

    Parameters
    ----------
    values : float32 array, shape (J,)
        Leaf values, already multiplied by eta.
    ph : (float, float)
        Probability and hessian of every row before the tree.
    settings : (float, float)
        Eta and lambda.
    most : int
        Largest number of rows that is tried.

    Returns
    -------
    pairs : list of Pairs
        One entry per leaf.
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
    """Yield the table sizes to which some choice of pairs adds up.

    Parameters
    ----------
    pairs : sequence of Pairs
        The pairs that each leaf allows.
    sizes : iterable of int
        The table sizes to test. Sizes that would need more than `MOST_BITS` are also yielded.
    share : Fraction, optional
        Share of the table to which the positives must add up.

    Yields
    ------
    size : int
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
    """Return the counts on which all choices of pairs agree that add up to the table.

    Parameters
    ----------
    pairs : sequence of Pairs
        The pairs that each leaf allows.
    rows : int
        Number of rows of the table.
    share : Fraction, optional
        Share of the table to which the positives must add up.

    Returns
    -------
    counts : Pairs or None
        One pair per leaf. None if no choice adds up, or if the computation would need more than
        `MOST_BITS`.
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
    """The sums of the pairs would need more than `MOST_BITS`."""


def _possible(pairs: Sequence[Pairs], rows: int, positives: Fraction | None) -> list[Pairs] | None:
    """Return the pairs of each leaf that can be completed to the given rows and positives."""
    of_size = _adding_up(pairs, [leaf.n for leaf in pairs], rows)
    if positives is None or of_size is None:
        return of_size
    if positives.denominator != 1:
        return None
    # Both conditions are tested by one sum: n1 and its sum are at most `rows`, so that the pair
    # (n, n1) is uniquely coded by the integer n * (rows + 1) + n1.
    row = rows + 1
    both = [leaf.n * row + leaf.n1 for leaf in of_size]
    return _adding_up(of_size, both, rows * row + int(positives))


def _adding_up(pairs: Sequence[Pairs], numbers: Sequence[Ints], total: int) -> list[Pairs] | None:
    """Return the pairs whose number is part of a sum, one of each leaf, that equals the total."""
    if any(len(leaf) == 0 for leaf in numbers):
        return None
    # Subtracting the smallest number of each leaf keeps the bit sets of the sums short.
    more = [(leaf - leaf.min()).tolist() for leaf in numbers]
    total -= sum(int(leaf.min()) for leaf in numbers)
    if total < 0:
        return None
    if total * sum(len(leaf) for leaf in more) > MOST_BITS:
        raise _TooManySumsError
    before = subset_sums(more, total)
    after = 1 << total  # bit set of the partial sums from which later leaves reach the total
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
    """Values of eta, lambda and the table size that explain all leaf values."""

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
    """Yield every eta, lambda and table size that explain all leaf values.

    Parameters
    ----------
    values : float32 array, shape (J,)
        Leaf values.
    ph : (float, float)
        Probability and hessian of every row before the tree.
    sizes : sequence of int
        Table sizes to try.
    choices : sequence of (float, float)
        Pairs of eta and lambda to try.
    share : Fraction, optional
        Share of the table to which the positives must add up.
    chance : float
        Largest accepted probability of explaining values without meaning. Larger tables exceed it,
        and are therefore not tried.

    Yields
    ------
    explanation : Explanation
    """
    for choice in choices:
        allowed = chances(values, ph, choice, max(sizes, default=1)) * len(choices) <= chance
        largest = int(allowed.sum())  # the probability increases with the size of the table
        pairs = pairs_of(values, ph, choice, largest)
        for size in sizes_that_fit(pairs, [size for size in sizes if size <= largest], share):
            yield Explanation(*choice, size)


def chances(
    values: NDArray[np.float32], ph: tuple[float, float], settings: tuple[float, float], most: int
) -> NDArray[np.float64]:
    """Return the probability that values without meaning allow a pair of integers in every leaf.

    Parameters
    ----------
    values : float32 array, shape (J,)
        Leaf values.
    ph : (float, float)
        Probability and hessian of every row before the tree.
    settings : (float, float)
        Eta and lambda.
    most : int
        Largest number of rows of a leaf.

    Returns
    -------
    chance : float64 array, shape (most,)
        For leaves of up to 1, 2, 3, ... rows.
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
    """Return the counts of a tree that starts from the label mean of its training rows.

    Parameters
    ----------
    tree : Tree
        A tree that was grown on all rows of one client, without an L1 penalty.
    eta, reg_lambda : float
        Settings of the training. With lambda 0 the result is None, because any multiple of a table
        has the same leaf values.
    expected : float
        Label mean at which the search begins.

    Returns
    -------
    first_tree : FirstTree or None
        None unless exactly one share of positives and one table size explain every leaf, the rows
        of every leaf are certain, and values without meaning would be explained with a probability
        below `FIRST_CHANCE`.
    """
    if reg_lambda == 0 or len(tree.leaves) < 2:
        return None
    for largest in SIZES:
        leaves = LeafValues.of(tree, eta, reg_lambda, 0.0, largest)
        chance = _chance(leaves)
        if chance > FIRST_CHANCE:
            return None  # with more rows the probability is even larger
        # XGBoost 3 takes the label mean as the base score.
        shares = shares_of_values(leaves, expected, "mean")
        if shares is None:
            continue
        denominator = int(shares.rows[0])
        share = Fraction(int(shares.positives[0]), denominator)
        if len(shares.rows) > 1 or not may_be_mean(share):
            return None
        p = float(shares.p[0])
        values = tree.value[tree.leaves]
        pairs = pairs_of(values, (p, float(shares.h[0])), (eta, reg_lambda), largest)
        tables = range(denominator, largest + 1, denominator)
        sizes = list(islice(sizes_that_fit(pairs, tables, share), 2))
        if len(sizes) != 1:
            return None
        counts = certain_counts(pairs, sizes[0], share)
        if counts is None or (counts.n == UNKNOWN).any():
            return None
        return FirstTree(p, counts.n, counts.n1, chance)
    return None


def _chance(leaves: LeafValues) -> float:
    """Return a bound on the expected number of shares that explain leaf values without meaning.

    There are fewer than ``most_rows ** 2`` shares. A share gives a leaf an integer number of
    positives with a probability that is at most the sum of the value's errors over the possible
    numbers of rows.
    """
    most_rows = leaves.most_rows
    rows = np.arange(1, most_rows + 1)
    pull = np.abs(leaves.slope)[:, None] * (rows * 0.25 + leaves.reg_lambda)
    error = VALUE_ERROR * pull + PER_ROW * rows + 1e-9
    return float(most_rows**2 * np.prod(np.minimum(2 * error.sum(axis=1), 1.0)))
