"""Leaf values determine certain counts, compared with an enumeration of every possibility."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.leaf_value_counts import (
    LEARNING_RATES,
    REG_LAMBDAS,
    Explanation,
    Pairs,
    certain_counts,
    explanations,
    find_pairs,
    first_tree_of_values,
    label_share,
    may_be_mean,
    sizes_that_fit,
)
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import LOGISTIC

pairs = st.lists(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4, unique=True),
    min_size=1,
    max_size=4,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(pairs, st.integers(1, 30), st.none() | st.fractions(0, 1, max_denominator=6))
def test_certain_counts_are_those_of_every_combination(possible_pairs, rows, share):
    """With a share of positives, only combinations with this share are considered."""
    possible_pairs = [[(n, min(n, n1)) for n, n1 in leaf] for leaf in possible_pairs]
    possible_pairs = [list(dict.fromkeys(leaf)) for leaf in possible_pairs]
    leaves = [Pairs(*np.array(leaf, dtype=np.int64).T) for leaf in possible_pairs]
    fitting = [
        combination
        for combination in itertools.product(*possible_pairs)
        if sum(n for n, _ in combination) == rows
        and (share is None or sum(n1 for _, n1 in combination) == share * rows)
    ]
    assert list(sizes_that_fit(leaves, [rows], share)) == ([rows] if fitting else [])
    certain = certain_counts(leaves, rows, share)
    assert (certain is None) == (not fitting)
    if certain is None:
        return
    for j in range(len(possible_pairs)):
        sizes = {combination[j][0] for combination in fitting}
        pairs_of_leaf = {combination[j] for combination in fitting}
        assert certain.n[j] == (sizes.pop() if len(sizes) == 1 else -1)
        assert certain.n1[j] == (pairs_of_leaf.pop()[1] if len(pairs_of_leaf) == 1 else -1)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 700), st.data())
def test_a_base_score_determines_the_share_of_positives_in_lowest_terms(rows, data):
    positives = data.draw(st.integers(1, rows - 1))
    share = Fraction(positives, rows)
    inferred = label_share(np.float32(positives / rows))
    if share == Fraction(1, 2):
        # One half is the default of old versions and not a label mean.
        assert inferred is None
    else:
        assert inferred == share


def test_pima_s_base_score_is_107_of_307():
    assert label_share(np.float32(0.34853423)) == Fraction(107, 307)


def values_of(n, n1, eta, reg_lambda):
    """Return the leaf values of these counts, with p and h of their label mean."""
    p = n1.sum() / n.sum()
    h = p * (1 - p)
    return (eta * (n1 - n * p) / (n * h + reg_lambda)).astype(np.float32), (p, h)


@pytest.mark.parametrize(("eta", "reg_lambda"), [(0.3, 1.0), (0.1, 0.5)])
def test_values_of_a_small_table_determine_the_settings(eta, reg_lambda):
    n, n1 = np.array([31, 44, 12, 60]), np.array([29, 3, 5, 41])
    values, ph = values_of(n, n1, eta, reg_lambda)
    choices = list(itertools.product(LEARNING_RATES, [reg_lambda]))
    possible_settings = explanations(values, ph, [49, 98, 147, 196], choices, Fraction(78, 147))
    assert list(possible_settings) == [Explanation(eta, reg_lambda, 147)]
    counts = certain_counts(find_pairs(values, ph, (eta, reg_lambda), 147), 147)
    assert np.array_equal(counts.n, n)
    assert np.array_equal(counts.n1, n1)


@pytest.mark.parametrize("factor", [2, 5, 10])
def test_counts_and_lambda_times_one_factor_explain_the_same_values(factor):
    """Without lambda, the smallest table is one of several possible tables."""
    n, n1 = np.array([32, 23, 14]), np.array([32, 2, 5])
    values, ph = values_of(factor * n, factor * n1, 0.3, float(factor))
    assert np.array_equal(values, values_of(n, n1, 0.3, 1.0)[0])
    choices = list(itertools.product([0.3], REG_LAMBDAS))
    sizes = [69, 69 * factor]
    possible_settings = explanations(values, ph, sizes, choices, Fraction(13, 23), chance=1.0)
    assert {Explanation(0.3, 1.0, 69), Explanation(0.3, float(factor), 69 * factor)} <= set(
        possible_settings
    )


def test_values_of_a_large_table_determine_no_settings():
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.3, 4).astype(np.float32)
    assert not list(explanations(values, (0.3, 0.21), [15_000], [(0.3, 1.0)]))


def test_round_shares_are_not_taken_for_label_means():
    assert not any(may_be_mean(Fraction(x)) for x in ("0.3", "0.05", "0.125", "1/3", "5/7"))
    assert may_be_mean(Fraction(357, 569))


def chain_tree(n, n1, p, eta, reg_lambda):
    """Return a chain of leaves with the values that XGBoost computes."""
    margin = LOGISTIC.base_margin(p)[:, None]
    (g0, h), (g1, _) = (LOGISTIC.gradients(margin, np.array([y]))[0, 0] for y in (0, 1))
    g = (n - n1) * float(g0) + n1 * float(g1)
    step = (-g / (n * float(h) + reg_lambda)).astype(np.float32)
    node = np.arange(2 * len(n) - 1)
    leaf = (node % 2 == 1) | (node == node[-1])
    value = np.zeros(len(node), dtype=np.float32)
    value[leaf] = np.float32(eta) * step
    left, right = np.where(leaf, -1, node + 1), np.where(leaf, -1, node + 2)
    return Tree(np.where(leaf, -1, 0), np.zeros(len(node)), left, right, leaf, value)


@pytest.mark.long
@pytest.mark.parametrize("fixed", [None, 0.3, 0.5])
def test_counts_of_a_client_from_leaf_values_are_correct(fixed):
    """Leaves are random. Nothing can be inferred from a fixed base score."""
    rng, n_determined = np.random.default_rng(5), 0
    for _ in range(30):
        n = rng.integers(1, 60, rng.integers(2, 8))
        n1 = rng.binomial(n, rng.beta(0.4, 0.4, len(n)))
        if not 0 < n1.sum() < n.sum():
            continue
        p, eta, reg_lambda = fixed or n1.sum() / n.sum(), 0.3, float(rng.choice([0.5, 1, 5]))
        first_tree = first_tree_of_values(
            chain_tree(n, n1, p, eta, reg_lambda), eta, reg_lambda, 0.5
        )
        if first_tree is None:
            continue
        n_determined += 1
        assert first_tree.p == pytest.approx(p, abs=1e-6)
        is_known, labels = first_tree.n != UNKNOWN, first_tree.n1 != UNKNOWN
        assert np.array_equal(first_tree.n[is_known], n[is_known])
        assert np.array_equal(first_tree.n1[labels], n1[labels])
    assert n_determined > 10 if fixed is None else n_determined == 0
