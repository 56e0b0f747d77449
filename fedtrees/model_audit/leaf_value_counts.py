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

The second half of the module applies this algorithm to the first trees of a model. It decides which
table sizes, eta and lambda are tried, when a solution is unique enough to be reported, and which
conditions are listed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.base_score import (
    PER_ROW,
    VALUE_ERROR,
    LeafValues,
    shares_of_values,
    subset_sums,
    union,
)
from fedtrees.attacks.counts.leaf_values import positives_of_value
from fedtrees.model_audit.exposure import UNKNOWN, Known, Rows, TreeExposure
from fedtrees.model_audit.first_trees import CHANCE as FIRST_CHANCE
from fedtrees.model_audit.first_trees import FirstTree
from fedtrees.model_audit.leaf_counts import start_of
from fedtrees.model_audit.model import ModelFile, is_logistic
from fedtrees.model_audit.training_settings import Settings
from fedtrees.model_audit.tree_sources import MOST_CLIENTS
from fedtrees.trees.boosted.forest import Forest, Tree

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


def find_pairs(
    values: NDArray[np.float32],
    ph: tuple[float, float],
    settings: tuple[float, float],
    max_rows: int,
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
    max_rows : int
        Largest number of rows that is tried.

    Returns
    -------
    pairs : list of Pairs
        One entry per leaf.
    """
    n = np.arange(1, max_rows + 1, dtype=np.int64)
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
        pairs = find_pairs(values, ph, choice, largest)
        for size in sizes_that_fit(pairs, [size for size in sizes if size <= largest], share):
            yield Explanation(*choice, size)


def chances(
    values: NDArray[np.float32],
    ph: tuple[float, float],
    settings: tuple[float, float],
    max_rows: int,
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
    max_rows : int
        Largest number of rows of a leaf.

    Returns
    -------
    chance : float64 array, shape (most,)
        For leaves of up to 1, 2, 3, ... rows.
    """
    n = np.arange(1, max_rows + 1, dtype=np.int64)
    chance = np.ones(max_rows)
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
        pairs = find_pairs(values, (p, float(shares.h[0])), (eta, reg_lambda), largest)
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


#: Condition of all counts from leaf values, which neither the file nor the auditor can confirm.
AS_TRAINED = (
    "no L1 penalty (alpha) and no limit on steps (max_delta_step) moved the leaf values, and they "
    "were not rounded"
)
IF = "no L1 penalty and no sampling of rows"  # the same condition, short enough for a table
FACTOR = "leaf values determine counts only up to a factor, unless lambda is known and positive"

# Leaf values from a simple p are on a coarse lattice, which also fits other eta, lambda and sizes.
FIXED = (
    "The base score may be a chosen number. Leaf values then determine counts only together with "
    "--rows, --learning-rate and --reg-lambda."
)


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """Counts from leaf values. The fields have the same meaning as in `Audit`."""

    trees: Sequence[TreeExposure]
    settings: Settings | None
    rows: Rows | None = None  # None if nothing is counted
    assumes: tuple[str, ...] = ()
    hint: str = ""


def count_from_values(
    model: ModelFile, trees: Sequence[TreeExposure], settings: Settings | None, background: Known
) -> ValueCounts:
    """Count the rows of the first trees of a model on the log loss of two classes.

    If the base score is a label mean, counts require the size of the table, or a lambda above 0 for
    which exactly one size explains every leaf. With any other base score, they require the size,
    eta and lambda.

    Parameters
    ----------
    model : ModelFile
        The model.
    trees : sequence of TreeExposure
        Exposure of its trees without the counts of this function.
    settings : Settings or None
        Eta and lambda, if they are known.
    background : Known
        Background knowledge of the auditor.

    Returns
    -------
    result : ValueCounts
        Without counts if the conditions are not met. `hint` then describes the missing input.
    """
    without_counts = ValueCounts(trees, settings)
    if not is_logistic(model) or model.positive_weight != 1:
        return without_counts
    share = label_share(start_of(model.boosted, 0))
    sizes, mean = _tables(share, background.rows)
    if mean is None and not (background.rows and background.settings):
        return replace(without_counts, hint=FIXED)
    if not sizes:
        return replace(without_counts, hint=_no_such_mean(background.rows, share))
    # With lambda 0, too, all counts can be multiplied by any factor.
    if background.rows is None and not background.reg_lambda:
        first = replace(trees[0], how=FACTOR)
        hint = _if_lambda_was(model.boosted, sizes, mean, background)
        return replace(without_counts, trees=[first, *trees[1:]], hint=hint)
    explanation = _find_explanation(model.boosted, sizes, mean, background)
    return (
        without_counts
        if explanation is None
        else _count_leaves(model.boosted, without_counts, explanation, mean, background)
    )


def _tables(share: Fraction | None, rows: int | None) -> tuple[list[int], Fraction | None]:
    """Return the possible table sizes, and the share of positives if the base score must be it."""
    if share is None or not may_be_mean(share):
        return [rows] if rows and rows <= MOST_ROWS else [], None
    sizes = list(range(share.denominator, MOST_ROWS + 1, share.denominator))
    return sizes if rows is None else [n for n in sizes if n == rows], share


def _find_explanation(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, background: Known
) -> Explanation | None:
    """Return the explanation of the first tree's leaf values, None unless it is unique."""
    declared = background.learning_rate, background.reg_lambda
    rates = LEARNING_RATES if declared[0] is None else (declared[0],)
    choices = tuple(product(rates, REG_LAMBDAS if declared[1] is None else (declared[1],)))
    # If the size, eta and lambda are all declared, there is a single candidate, and no search that
    # could succeed by chance.
    chance = np.inf if background.rows and len(choices) == 1 else CHANCE
    tree = forest.trees[0]
    values = tree.value[tree.leaves]
    ph = row_gradient(forest)
    explanation = next(explanations(values, ph, sizes, choices, mean, chance), None)
    if explanation is None:
        return None
    # `chance` excludes some choices for large tables, although they may be the true ones. Up to
    # twice the size, every choice is therefore checked.
    near = [size for size in sizes if size <= 2 * explanation.rows]
    at_near_sizes = explanations(values, ph, near, choices, mean, np.inf)
    larger = explanations(values, ph, sizes, choices, mean, chance)
    return explanation if {*islice(at_near_sizes, 2), *islice(larger, 2)} == {explanation} else None


def _count_leaves(
    forest: Forest,
    without_counts: ValueCounts,
    explanation: Explanation,
    mean: Fraction | None,
    background: Known,
) -> ValueCounts:
    """Return the counts of the first tree and of the first tree of every other client."""
    eta, reg_lambda, rows = explanation.learning_rate, explanation.reg_lambda, explanation.rows
    tree, ph = forest.trees[0], row_gradient(forest)
    pairs = find_pairs(tree.value[tree.leaves], ph, (eta, reg_lambda), rows)
    counts = certain_counts(pairs, rows, mean)
    if counts is None or (counts.n == UNKNOWN).all():
        return without_counts
    first = without_counts.trees[0]
    value = f"the value of the leaf, if eta {eta:g}, lambda {reg_lambda:g}, N {rows}, {IF}"
    place = first.at, first.output
    first = TreeExposure.of(place, first.leaf, value, (counts.n, counts.n1), None, ph[0])
    n_pos = int(counts.n1.sum()) if (counts.n1 != UNKNOWN).all() else None
    explains = (
        "the only size at which the base score and every leaf value are explained and not by "
        "chance; it may be the first of several clients'"
    )
    share, how = label_share(start_of(forest, 0)), "declared" if background.rows else explains
    declared = background.rows is not None
    size = Rows(rows, n_pos, share, how, complete=declared, declared=declared)
    settings = Settings(eta, reg_lambda, "given" if background.settings else "inferred")
    trees = _other_clients(forest, [first, *without_counts.trees[1:]], settings)
    return ValueCounts(trees, settings, size, _assumes(explanation, mean, background))


def _assumes(explanation: Explanation, mean: Fraction | None, background: Known) -> tuple[str, ...]:
    """Return the conditions under which the counts are correct, as sentences."""
    every = "no row was left out of the first tree by sampling (subsample), and every row weighed 1"
    if background.rows:
        every = (
            f"the first tree was grown on all of the {background.rows} rows that were declared: "
            "not on a sample (subsample) and not on one client's rows only, and every "
            "row had weight 1"
        )
    out = [every, AS_TRAINED]
    if mean is not None:
        out.append("the base score is the share of positives of the rows the tree was grown on")
    rate = "as given" if background.learning_rate else "as no other usual one explains every leaf"
    penalty = "as given" if background.reg_lambda is not None else "for the same reason"
    out.append(f"eta was {explanation.learning_rate:g}, {rate}")
    out.append(f"lambda was {explanation.reg_lambda:g}, {penalty}")
    return tuple(out)


def _no_such_mean(rows: int | None, share: Fraction | None) -> str:
    """Return why the base score does not fit the declared size, or an empty string."""
    if rows is None or share is None or rows % share.denominator == 0:
        return ""  # the table is too large to be searched
    return (
        f"The base score is that of a multiple of {share.denominator} rows, and {rows} were "
        "declared: the first tree was trained on other rows, or on a part of them."
    )


def _if_lambda_was(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, background: Known
) -> str:
    """Return a sentence on the table size under a usual lambda, XGBoost's default first."""
    if background.reg_lambda == 0:
        return "With lambda 0 all counts times one factor give the same leaf values; give --rows."
    for reg_lambda in REG_LAMBDAS:
        fit = _find_explanation(forest, sizes, mean, replace(background, reg_lambda=reg_lambda))
        if reg_lambda > 0 and fit is not None:
            default = ", XGBoost's default" if reg_lambda == REG_LAMBDAS[0] else ""
            return (
                "Leaf values do not determine lambda: multiplying all counts and lambda "
                "by one factor gives the same values. If lambda was "
                f"{reg_lambda:g}{default}, eta "
                f"{fit.learning_rate:g} and a table of {fit.rows} rows explain every leaf of "
                f"the first tree: with --reg-lambda {reg_lambda:g}, the audit counts the rows "
                "of its leaves."
            )
    return ""


def _other_clients(
    forest: Forest, trees: Sequence[TreeExposure], settings: Settings
) -> Sequence[TreeExposure]:
    """Add counts to the trees after the first one that are the first trees of other clients."""
    first = trees[0]
    if first.base_score is None or first.rows is None:
        return trees
    out = [first]
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    how = f"the value of the leaf, if eta {eta:g}, lambda {reg_lambda:g}, {IF}"
    # In bagging, the first trees of all clients come first. The search ends at the first tree that
    # does not start from a label mean.
    for tree, exposure in zip(forest.trees[1:MOST_CLIENTS], trees[1:], strict=False):
        start = first_tree_of_values(tree, eta, reg_lambda, first.base_score)
        if start is None:
            break
        place, counts = (exposure.at, exposure.output), (start.n, start.n1)
        out.append(TreeExposure.of(place, exposure.leaf, how, counts, None, start.p))
    return [*out, *trees[len(out) :]]


def row_gradient(forest: Forest) -> tuple[float, float]:
    """Return the gradient of a row with label 0 and the hessian of a row before the first tree."""
    start = forest.base_margin[:, None]
    g, h = forest.objective.gradients(start, np.zeros(1))[0, 0]
    return float(g), float(h)
