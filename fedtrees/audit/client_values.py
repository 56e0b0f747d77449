"""Rows and labels of a client's first tree when nothing but its leaf values is in the file.

In a bagging model each client's first tree starts from that client's own label mean, which is not
in the file. The leaf values alone tell it: hardly any share of positives but the true one leaves
every leaf a whole number of rows and of positives that add up to that share of a table.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice

import numpy as np

from fedtrees.audit.evidence import PER_ROW, VALUE_ERROR, LeafValues, shares_of_values
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
        Of the training, which is taken for one on all rows without an L1 penalty. Where lambda is 0
        any multiple of a table has the same leaf values, and nothing follows.
    expected : float
        A guess at the label mean, where the search begins.

    Returns
    -------
    FirstTree or None
        None unless exactly one share of positives and one size of the table explain every leaf,
        all rows are counted, and chance would explain values of no meaning with less than `CHANCE`.
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

    There are fewer than ``most_rows ** 2`` shares, of which each leaves a leaf a whole number of
    positives for one of ``most_rows`` numbers of rows as often as the errors of the value allow.
    """
    most = leaves.most_rows
    rows = np.arange(1, most + 1)
    pull = np.abs(leaves.slope)[:, None] * (rows * 0.25 + leaves.reg_lambda)
    error = VALUE_ERROR * pull + PER_ROW * rows + 1e-9
    return float(most**2 * np.prod(np.minimum(2 * error.sum(axis=1), 1.0)))
