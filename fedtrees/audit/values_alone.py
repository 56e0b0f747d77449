"""First trees of a model that carries leaf values alone, and what their counts rest on."""

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

#: What leaf values cannot show, whatever else is known.
AS_TRAINED = (
    "no L1 penalty (alpha) and no limit on steps (max_delta_step) moved the leaf values, and they "
    "were not rounded"
)
IF = "no L1 penalty and no sampling of rows"  # the same in a table's width
FACTOR = "leaf values tell counts only up to a factor, unless lambda is known and above 0"

# Leaf values from a simple p lie on a coarse lattice, which other eta, lambda and sizes fit.
FIXED = (
    "Somebody may have chosen the base score: leaf values then tell counts only together with "
    "--rows, --learning-rate and --reg-lambda."
)


@dataclass(frozen=True, eq=False)
class Told:
    """What leaf values alone tell; the names are those of `Audit`."""

    trees: Sequence[TreeExposure]
    settings: Settings | None
    rows: Rows | None = None  # where they are counted
    assumes: tuple[str, ...] = ()
    hint: str = ""


def told_by_values(
    model: ModelFile, trees: Sequence[TreeExposure], settings: Settings | None, known: Known
) -> Told:
    """Return what follows of the first trees of a model on the log loss of two classes.

    From a base score that is a label mean, counts follow if the table's size is known, or if lambda
    is and one size alone explains every leaf. From another, size, eta and lambda must be known.
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
    if known.rows is None and not known.reg_lambda:  # 0 leaves the factor open, too
        first = replace(trees[0], how=FACTOR)
        hint = _if_lambda_was(model.forest, sizes, mean, known)
        return replace(nothing, trees=[first, *trees[1:]], hint=hint)
    found = _explained(model.forest, sizes, mean, known)
    return nothing if found is None else _counted(model.forest, nothing, found, mean, known)


def _tables(share: Fraction | None, rows: int | None) -> tuple[list[int], Fraction | None]:
    """Return the sizes there may be, and the share of positives if the base score must be it."""
    if share is None or not may_be_mean(share):
        return [rows] if rows and rows <= MOST_ROWS else [], None
    sizes = list(range(share.denominator, MOST_ROWS + 1, share.denominator))
    return sizes if rows is None else [n for n in sizes if n == rows], share


def _explained(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, known: Known
) -> Explanation | None:
    """Return the one explanation of the first tree's leaf values; None if there are others."""
    given = known.learning_rate, known.reg_lambda
    rates = LEARNING_RATES if given[0] is None else (given[0],)
    choices = tuple(product(rates, REG_LAMBDAS if given[1] is None else (given[1],)))
    # of a known size nothing is left to chance but eta and lambda
    chance = np.inf if known.rows and len(choices) == 1 else CHANCE
    tree = forest.trees[0]
    values = tree.value[tree.leaves]
    ph = row_gradient(forest)
    found = next(explanations(values, ph, sizes, choices, mean, chance), None)
    if found is None:
        return None
    # a choice that chance would make explain large tables may be the true one all the same
    near = [size for size in sizes if size <= 2 * found.rows]
    others = explanations(values, ph, near, choices, mean, np.inf)
    larger = explanations(values, ph, sizes, choices, mean, chance)
    return found if {*islice(others, 2), *islice(larger, 2)} == {found} else None


def _counted(
    forest: Forest, nothing: Told, found: Explanation, mean: Fraction | None, known: Known
) -> Told:
    """Return what the explanation counts, of the first tree and of every other client's."""
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
    if rows is None or share is None or rows % share.denominator == 0:
        return ""  # a table too large to be searched
    return (
        f"The base score is that of a multiple of {share.denominator} rows, and {rows} were "
        "declared: the first tree was grown on others, or on some of them."
    )


def _if_lambda_was(
    forest: Forest, sizes: Sequence[int], mean: Fraction | None, known: Known
) -> str:
    """Say what the table would be with some usual lambda, XGBoost's default first."""
    if known.reg_lambda == 0:
        return "With lambda 0 all counts times one factor give the same leaf values; give --rows."
    for reg_lambda in REG_LAMBDAS:
        found = _explained(forest, sizes, mean, replace(known, reg_lambda=reg_lambda))
        if reg_lambda > 0 and found is not None:
            default = ", XGBoost's default" if reg_lambda == REG_LAMBDAS[0] else ""
            return (
                "Leaf values alone do not tell lambda: all counts and lambda times one factor give "
                f"the same values. If lambda was {reg_lambda:g}{default}, eta "
                f"{found.learning_rate:g} and a table of {found.rows} rows explain every leaf of "
                f"the first tree: --reg-lambda {reg_lambda:g} has its leaves counted."
            )
    return ""


def _other_clients(
    forest: Forest, trees: Sequence[TreeExposure], settings: Settings
) -> Sequence[TreeExposure]:
    """Return the trees with counts of those after the first that are a client's first."""
    first = trees[0]
    if first.base_score is None or first.rows is None:
        return trees
    out = [first]
    eta, reg_lambda = settings.learning_rate, settings.reg_lambda
    how = f"the value of the leaf, if eta {eta:g}, lambda {reg_lambda:g}, {IF}"
    for tree, exposure in zip(forest.trees[1:MOST_CLIENTS], trees[1:], strict=False):
        start = first_tree_of_values(tree, eta, reg_lambda, first.base_score)
        if start is None:
            break
        place, counts = (exposure.at, exposure.output), (start.n, start.n1)
        out.append(TreeExposure.of(place, exposure.leaf, how, counts, None, start.p))
    return [*out, *trees[len(out) :]]


def row_gradient(forest: Forest) -> tuple[float, float]:
    """Return gradient (of label 0) and hessian of every row before the first tree."""
    start = forest.base_margin[:, None]
    g, h = forest.objective.gradients(start, np.zeros(1))[0, 0]
    return float(g), float(h)
