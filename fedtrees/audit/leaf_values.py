"""What a first tree tells when nothing but its leaf values is in the file.

A value v = -eta G / (H + lambda) leaves, for each number of rows N of its leaf, at most one whole
number of positives, and for most N none. Where the number of rows of the table is known too, the
leaves must add up to it; a count is certain if every way to add up agrees on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.timberstrike.values import positives_of_value

Ints = NDArray[np.int64]

MOST_ROWS = 20_000  # tables larger than this are not searched: chance solutions are everywhere
MOST_DENOMINATOR = 4096  # of N1/N: with more, some fraction is always within float32 of a score
# Whole leaves that chance alone would fit, times choices of eta and lambda: above, none is named.
CHANCE = 1e-3
LEARNING_RATES = (0.3, 0.1, 0.05, 0.01, 0.2, 0.5, 1.0, 0.02, 0.03, 0.15, 0.25, 0.4, 0.7, 0.8)
REG_LAMBDAS = (1.0, 0.0, 0.1, 0.5, 2.0, 5.0, 10.0)
CHOICES = tuple(product(LEARNING_RATES, REG_LAMBDAS))
ROUND = 1000  # base scores of so few decimals are numbers that people choose
# Of simpler shares leaf values repeat: other rows and larger tables have the same ones.
LEAST_DENOMINATOR = 8


@dataclass(frozen=True, eq=False)
class Pairs:
    """Numbers (N, N1) that the value of one leaf allows: int64, shape (k,) each."""

    n: Ints
    n1: Ints


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """Counts that follow from leaf values, -1 where more than one is possible.

    Attributes
    ----------
    n, n1 : int64 array, shape (J,)
    rows : int
        Rows of the table.
    """

    n: Ints
    n1: Ints
    rows: int


def table_sizes(share: float, most: int = MOST_ROWS) -> tuple[Fraction, list[int]] | None:
    """Return N1/N in lowest terms and every N up to `most` it allows, from a float32 base score.

    Returns
    -------
    tuple or None
        None where the score is no mean of labels that float32 tells apart: 0.5, or more than
        `MOST_DENOMINATOR` rows in lowest terms.
    """
    score = np.float32(share)
    if score == np.float32(0.5) or not 0 < score < 1:
        return None
    near = Fraction(float(score)).limit_denominator(MOST_DENOMINATOR)
    # the simplest of the fractions that round to this float32
    simple = next(f for f in _convergents(Fraction(float(score))) if np.float32(float(f)) == score
                  or f == near)  # fmt: skip
    # the mean may have been taken in float32; one step beside is still that fraction
    if abs(np.float32(float(simple)) - score) > np.spacing(score):
        return None
    d = simple.denominator
    return (simple, list(range(d, most + 1, d))) if d <= MOST_DENOMINATOR else None


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
    values: NDArray[np.float32],
    ph: tuple[float, float],
    settings: tuple[float, float],
    most: int,
) -> list[Pairs]:
    """Return what each leaf may hold, up to `most` rows.

    Parameters
    ----------
    values : float32 array, shape (J,)
        Of the leaves, learning rate included.
    ph : pair of float
        Probability and hessian of every row before the tree.
    settings : pair of float
        eta and lambda.
    """
    n = np.arange(1, most + 1, dtype=np.int64)
    out = []
    for value in values:
        exact, error = positives_of_value(value, n, ph, settings)
        n1 = np.rint(exact).astype(np.int64)
        fits = (np.abs(exact - n1) <= error) & (n1 >= 0) & (n1 <= n) & (error < 0.5)
        out.append(Pairs(n[fits], n1[fits]))
    return out


def sizes_that_fit(pairs: Sequence[Pairs], sizes: Iterable[int]) -> list[int]:
    """Return those table sizes that some choice of pairs adds up to."""
    reached = _prefixes(pairs, max(sizes, default=0))[-1]
    return [size for size in sizes if reached >> size & 1]


def certain_counts(pairs: Sequence[Pairs], rows: int) -> ValueCounts:
    """Return the counts that every choice of pairs adding up to `rows` agrees on.

    Sets of sums are the bits of whole numbers, so that adding a leaf's N to all of them is a shift.
    """
    before = _prefixes(pairs, rows)
    after = 1 << rows  # sums of the leaves so far from which the later ones reach `rows`
    n = np.full(len(pairs), -1, dtype=np.int64)
    n1 = n.copy()
    for j in range(len(pairs) - 1, -1, -1):
        possible = [k for k, size in enumerate(pairs[j].n.tolist())
                    if before[j] << size & after]  # fmt: skip
        if len({int(pairs[j].n[k]) for k in possible}) == 1:
            n[j] = pairs[j].n[possible[0]]
            if len(possible) == 1:
                n1[j] = pairs[j].n1[possible[0]]
        after = _union(after >> size for size in {int(pairs[j].n[k]) for k in possible})
    return ValueCounts(n, n1, rows)


def _prefixes(pairs: Sequence[Pairs], most: int) -> list[int]:
    """Return, per number of leaves from 0, the sums they can have, as bits up to `most`."""
    within = (1 << (most + 1)) - 1
    sums = [1]
    for leaf in pairs:
        sums.append(_union((sums[-1] << size) & within for size in set(leaf.n.tolist())))
    return sums


def _union(sets: Iterable[int]) -> int:
    out = 0
    for s in sets:
        out |= s
    return out


def explanation(
    values: NDArray[np.float32],
    ph: tuple[float, float],
    sizes: Sequence[int],
    choices: Sequence[tuple[float, float]] = CHOICES,
    chance: float = CHANCE,
) -> tuple[tuple[float, float], int] | None:
    """Return the eta, the lambda and the smallest table that explain all leaves.

    Parameters
    ----------
    values : float32 array, shape (J,)
    ph : pair of float
        As for `pairs_of`.
    sizes : sequence of int
        Tables there may be, smallest first.
    choices : sequence of pairs of float
        eta and lambda there may be.
    chance : float
        Largest probability at which they may explain values of no meaning.

    Returns
    -------
    tuple, or None
        None unless exactly one choice explains the leaves with the smallest table.
    """
    found = []
    for choice in choices:
        allowed = chances(values, ph, choice, max(sizes, default=1)) * len(choices) <= chance
        most = int(allowed.sum())  # chances rise with the size of the table
        pairs = pairs_of(values, ph, choice, most)
        fits = sizes_that_fit(pairs, [size for size in sizes if size <= most])
        found += [(fits[0], choice)] if fits else []
    least = min((size for size, _ in found), default=0)
    best = [choice for size, choice in found if size == least]
    return (best[0], least) if len(best) == 1 else None


def chances(
    values: NDArray[np.float32], ph: tuple[float, float], settings: tuple[float, float], most: int
) -> NDArray[np.float64]:
    """Return the probability that values of no meaning leave every leaf a pair of numbers.

    Returns
    -------
    float64 array, shape (most,)
        For leaves of up to 1, 2, 3, ... rows.
    """
    n = np.arange(1, most + 1, dtype=np.int64)
    chance = np.ones(most)
    for value in values:
        error = positives_of_value(value, n, ph, settings)[1]
        chance *= np.minimum(np.cumsum(np.minimum(2 * error, 1.0)), 1.0)
    return chance
