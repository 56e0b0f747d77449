"""Count the rows of first trees in a model without statistics, and list the required conditions.

The algorithm is in `fedtrees.audit.leaf_values`. This module decides which table sizes, eta and
lambda are tried, and when a solution is unique enough to be reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, product

import numpy as np

from fedtrees.audit.exposure import UNKNOWN, Known, Rows, TreeExposure
from fedtrees.audit.leaf_values import (
    CHANCE,
    LEARNING_RATES,
    MOST_ROWS,
    REG_LAMBDAS,
    Explanation,
    certain_counts,
    explanations,
    first_tree_of_values,
    label_share,
    may_be_mean,
    pairs_of,
)
from fedtrees.audit.model import ModelFile, is_logistic
from fedtrees.audit.newton import Settings
from fedtrees.audit.recover import start_of
from fedtrees.audit.sources import MOST_CLIENTS
from fedtrees.trees.boosted.forest import Forest

#: Condition of all counts from leaf values, which neither the file nor the auditor can confirm.
AS_TRAINED = (
    "no L1 penalty (alpha) and no limit on steps (max_delta_step) moved the leaf values, and they "
    "were not rounded"
)
IF = "no L1 penalty and no sampling of rows"  # the same condition, short enough for a table
FACTOR = "leaf values tell counts only up to a factor, unless lambda is known and above 0"

# Leaf values from a simple p are on a coarse lattice, which also fits other eta, lambda and sizes.
FIXED = (
    "Somebody may have chosen the base score: leaf values then tell counts only together with "
    "--rows, --learning-rate and --reg-lambda."
)


@dataclass(frozen=True, eq=False)
class Told:
    """Counts from leaf values. The fields have the same meaning as in `Audit`."""

    trees: Sequence[TreeExposure]
    settings: Settings | None
    rows: Rows | None = None  # None if nothing is counted
    assumes: tuple[str, ...] = ()
    hint: str = ""


def told_by_values(
    model: ModelFile, trees: Sequence[TreeExposure], settings: Settings | None, known: Known
) -> Told:
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
    known : Known
        Background knowledge of the auditor.

    Returns
    -------
    result : Told
        Without counts if the conditions are not met. `hint` then describes the missing input.
    """
    nothing = Told(trees, settings)
    if not is_logistic(model) or model.positive_weight != 1:
        return nothing
    share = label_share(start_of(model.forest, 0))
    sizes, mean = _tables(share, known.rows)
    if mean is None and not (known.rows and known.settings):
        return replace(nothing, hint=FIXED)
    if not sizes:
        return replace(nothing, hint=_no_such_mean(known.rows, share))
    # With lambda 0, too, all counts can be multiplied by any factor.
    if known.rows is None and not known.reg_lambda:
        first = replace(trees[0], how=FACTOR)
        hint = _if_lambda_was(model.forest, sizes, mean, known)
        return replace(nothing, trees=[first, *trees[1:]], hint=hint)
    explanation = _explained(model.forest, sizes, mean, known)
    return (
        nothing
        if explanation is None
        else _counted(model.forest, nothing, explanation, mean, known)
    )


def _tables(share: Fraction | None, rows: int | None) -> tuple[list[int], Fraction | None]:
    """Return the possible table sizes, and the share of positives if the base score must be it."""
    if share is None or not may_be_mean(share):
        return [rows] if rows and rows <= MOST_ROWS else [], None
    sizes = list(range(share.denominator, MOST_ROWS + 1, share.denominator))
    return sizes if rows is None else [n for n in sizes if n == rows], share


def _explained(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, known: Known
) -> Explanation | None:
    """Return the explanation of the first tree's leaf values, None unless it is unique."""
    declared = known.learning_rate, known.reg_lambda
    rates = LEARNING_RATES if declared[0] is None else (declared[0],)
    choices = tuple(product(rates, REG_LAMBDAS if declared[1] is None else (declared[1],)))
    # If the size, eta and lambda are all declared, there is a single candidate, and no search that
    # could succeed by chance.
    chance = np.inf if known.rows and len(choices) == 1 else CHANCE
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


def _counted(
    forest: Forest, nothing: Told, found: Explanation, mean: Fraction | None, known: Known
) -> Told:
    """Return the counts of the first tree and of the first tree of every other client."""
    eta, reg_lambda, rows = found.learning_rate, found.reg_lambda, found.rows
    tree, ph = forest.trees[0], row_gradient(forest)
    pairs = pairs_of(tree.value[tree.leaves], ph, (eta, reg_lambda), rows)
    counts = certain_counts(pairs, rows, mean)
    if counts is None or (counts.n == UNKNOWN).all():
        return nothing
    first = nothing.trees[0]
    value = f"the value of the leaf, if eta {eta:g}, lambda {reg_lambda:g}, N {rows}, {IF}"
    place = first.at, first.output
    first = TreeExposure.of(place, first.leaf, value, (counts.n, counts.n1), None, ph[0])
    n_pos = int(counts.n1.sum()) if (counts.n1 != UNKNOWN).all() else None
    explains = (
        "the only size at which the base score and every leaf value are explained and not by "
        "chance; it may be the first of several clients'"
    )
    share, how = label_share(start_of(forest, 0)), "declared" if known.rows else explains
    declared = known.rows is not None
    size = Rows(rows, n_pos, share, how, whole=declared, declared=declared)
    settings = Settings(eta, reg_lambda, "given" if known.settings else "inferred")
    trees = _other_clients(forest, [first, *nothing.trees[1:]], settings)
    return Told(trees, settings, size, _assumes(found, mean, known))


def _assumes(found: Explanation, mean: Fraction | None, known: Known) -> tuple[str, ...]:
    """Return the conditions under which the counts are correct, as sentences."""
    every = "no row was left out of the first tree by sampling (subsample), and every row weighed 1"
    if known.rows:
        every = (
            f"the first tree was grown on all of the {known.rows} rows that were declared: not on "
            "a sample of them (subsample) or one client's alone, and every row weighed 1"
        )
    out = [every, AS_TRAINED]
    if mean is not None:
        out.append("the base score is the share of positives of the rows the tree was grown on")
    rate = "as given" if known.learning_rate else "as no other usual one explains every leaf"
    penalty = "as given" if known.reg_lambda is not None else "for the same reason"
    out.append(f"eta was {found.learning_rate:g}, {rate}")
    out.append(f"lambda was {found.reg_lambda:g}, {penalty}")
    return tuple(out)


def _no_such_mean(rows: int | None, share: Fraction | None) -> str:
    """Return why the base score does not fit the declared size, or an empty string."""
    if rows is None or share is None or rows % share.denominator == 0:
        return ""  # the table is too large to be searched
    return (
        f"The base score is that of a multiple of {share.denominator} rows, and {rows} were "
        "declared: the first tree was grown on others, or on some of them."
    )


def _if_lambda_was(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, known: Known
) -> str:
    """Return a sentence on the table size under a usual lambda, XGBoost's default first."""
    if known.reg_lambda == 0:
        return "With lambda 0 all counts times one factor give the same leaf values; give --rows."
    for reg_lambda in REG_LAMBDAS:
        fit = _explained(forest, sizes, mean, replace(known, reg_lambda=reg_lambda))
        if reg_lambda > 0 and fit is not None:
            default = ", XGBoost's default" if reg_lambda == REG_LAMBDAS[0] else ""
            return (
                "Leaf values alone do not tell lambda: all counts and lambda times one factor give "
                f"the same values. If lambda was {reg_lambda:g}{default}, eta "
                f"{fit.learning_rate:g} and a table of {fit.rows} rows explain every leaf of "
                f"the first tree: --reg-lambda {reg_lambda:g} has its leaves counted."
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
