"""Rows and labels per leaf of a client's first tree, from its leaf values alone.

In bagging it starts from the client's own label mean, which is not in the file. Hardly any share of
positives but that one leaves every leaf whole rows and positives that add up to it.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

import numpy as np

from fedtrees.attacks.evidence import PER_ROW, VALUE_ERROR, LeafValues, shares_of_values
from fedtrees.audit.exposure import UNKNOWN
from fedtrees.audit.first_trees import CHANCE, FirstTree
from fedtrees.audit.leaf_values import certain_counts, may_be_mean, pairs_of, sizes_that_fit
from fedtrees.trees.boosted.forest import Tree

SIZES = (200, 400, 800, 1600)  # rows of a client; the search takes time that grows with the cube
INTERCEPT = "mean"  # how XGBoost 3 takes a base score from labels


def first_tree_of_values(
    tree: Tree, eta: float, reg_lambda: float, expected: float
) -> FirstTree | None:
    """Return the counts of a tree that starts from the label mean of its own rows.

    Parameters
    ----------
    tree : Tree
    eta, reg_lambda : float
        Of a training on all rows without an L1 penalty. With lambda 0 nothing follows: any multiple
        of a table has the same leaf values.
    expected : float
        A guess at the label mean, where the search begins.

    Returns
    -------
    FirstTree or None
        None unless one share of positives and one size of the table alone explain every leaf, every
        leaf's rows are certain, and values of no meaning are explained with less than `CHANCE`.
    """
    if reg_lambda == 0 or len(tree.leaves) < 2:
        return None
    for most in SIZES:
        leaves = LeafValues.of(tree, eta, reg_lambda, 0.0, most)
        chance = _chance(leaves)
        if chance > CHANCE:
            return None  # more rows, more chance
        shares = shares_of_values(leaves, expected, INTERCEPT)
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
