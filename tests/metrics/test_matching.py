import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fedtrees.blind_baselines import matching
from fedtrees.blind_baselines.matching import (
    assign,
    assign_most_exact,
    graded_costs,
    mismatch_counts,
)
from fedtrees.core.errors import DataError


def total(cost, pair):
    rows = np.flatnonzero(pair >= 0)
    return int(cost[rows, pair[rows]].sum())


def assert_optimal(cost):
    pair = assign(cost)
    used = pair[pair >= 0]
    assert len(used) == min(cost.shape) == len(set(used.tolist()))
    assert total(cost, pair) == cost[linear_sum_assignment(cost)].sum()


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 70),
    m=st.integers(1, 140),
    levels=st.sampled_from([1, 2, 3, 12, 60, 256]),
    seed=st.integers(0, 2**30),
)
def test_total_cost_equals_scipy_on_random_costs(n, m, levels, seed):
    rng = np.random.default_rng(seed)
    assert_optimal(rng.integers(0, levels, (n, m)).astype(np.uint8))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 120), kinds=st.integers(1, 12), seed=st.integers(0, 2**30))
def test_total_cost_equals_scipy_on_rows_with_many_copies(n, kinds, seed):
    rng = np.random.default_rng(seed)
    prototypes = rng.integers(0, 3, (kinds, 6)).astype(float)
    A, B = prototypes[rng.integers(0, kinds, n)], rng.integers(0, 3, (n, 6)).astype(float)
    assert_optimal(mismatch_counts(A, B, np.zeros(6)))


def test_total_cost_equals_scipy_at_500_rows_and_on_hard_structure():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(500, 9)), rng.normal(size=(500, 9))
    assert_optimal(mismatch_counts(A, B, np.full(9, 0.319)))
    product = np.minimum(np.outer(np.arange(60), np.arange(60)) // 14, 255)
    assert_optimal(product.astype(np.uint8))  # costs i * j drive duals far apart


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 60), levels=st.integers(1, 6), seed=st.integers(0, 2**30))
def test_ties_go_to_the_matching_with_most_exact_pairs(n, levels, seed):
    cost = np.random.default_rng(seed).integers(0, levels, (n, n)).astype(np.uint8)
    pair = assign_most_exact(cost)
    rows, columns = linear_sum_assignment(cost - (cost == 0) / (2 * n))
    assert total(cost, pair) == cost[rows, columns].sum()
    assert (cost[np.arange(n), pair] == 0).sum() == (cost[rows, columns] == 0).sum()


@settings(max_examples=60, deadline=None)
@given(n_true=st.integers(1, 50), n_guessed=st.integers(1, 50), seed=st.integers(0, 2**30))
def test_matching_with_most_exact_pairs_costs_no_more(n_true, n_guessed, seed):
    cost = np.random.default_rng(seed).integers(0, 5, (n_true, n_guessed)).astype(np.uint8)
    pair, plain = assign_most_exact(cost), assign(cost)
    assert (pair >= 0).sum() == min(n_true, n_guessed)
    assert total(cost, pair) == total(cost, plain)
    matched, matched_before = np.flatnonzero(pair >= 0), np.flatnonzero(plain >= 0)
    assert (cost[matched, pair[matched]] == 0).sum() >= (
        cost[matched_before, plain[matched_before]] == 0
    ).sum()


def test_an_empty_side_matches_nothing():
    assert assign(np.empty((3, 0), np.uint8)).tolist() == [-1, -1, -1]
    assert assign(np.empty((0, 3), np.uint8)).tolist() == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**30))
def test_mismatches_equal_the_definition(seed):
    rng = np.random.default_rng(seed)
    A = rng.integers(0, 4, (7, 5)).astype(float)
    B = rng.integers(0, 4, (9, 5)).astype(float)
    A[rng.random(A.shape) < 0.2] = np.nan
    B[rng.random(B.shape) < 0.2] = np.nan
    tolerance = np.array([0, 0.5, 1, 1.5, 2.5])
    brute = np.zeros((7, 9), int)
    for i, true_row in enumerate(A):
        for j, guessed_row in enumerate(B):
            for true_value, guessed_value, t in zip(true_row, guessed_row, tolerance, strict=True):
                both_missing = np.isnan(true_value) and np.isnan(guessed_value)
                brute[i, j] += not (both_missing or abs(true_value - guessed_value) <= t)
    assert np.array_equal(mismatch_counts(A, B, tolerance), brute)


def test_graded_costs_equal_the_definition():
    A = np.array([[0.0, 1.0, np.nan]])
    B = np.array([[0.3, 2.0, np.nan], [5.0, 1.0, 1.0]])
    cost = graded_costs(A, B, np.array([1.0, 0.0, 1.0]), np.array([10, 7, 4]))
    assert cost.tolist() == [[3 + 7 + 0, 10 + 0 + 4]]


def test_inputs_that_cannot_be_matched_are_refused(monkeypatch):
    with pytest.raises(DataError, match="3 columns with rows of 2"):
        mismatch_counts(np.zeros((1, 3)), np.zeros((1, 2)), np.zeros(3))
    with pytest.raises(DataError, match="256 columns"):
        mismatch_counts(np.zeros((1, 256)), np.zeros((1, 256)), np.zeros(256))
    with pytest.raises(DataError, match="sum to 300"):
        graded_costs(np.zeros((1, 2)), np.zeros((1, 2)), np.ones(2), np.array([150, 150]))
    monkeypatch.setattr(matching, "MAX_CELLS", 10)
    with pytest.raises(DataError, match="score a sample"):
        mismatch_counts(np.zeros((4, 1)), np.zeros((4, 1)), np.zeros(1))
