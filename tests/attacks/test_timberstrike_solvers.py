"""The assignment solvers, each compared with its documented guarantee."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.attacks.reconstruction.maxent import draw_leaves, max_entropy
from fedtrees.attacks.reconstruction.prior import ReachableLeaves
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.attacks.timberstrike.assignment_solvers import redraw_leaves, search_leaves


def problem(n=60, leaves=4, seed=0):
    """Return rows that can reach two to four leaves, and the sums of a true assignment."""
    rng = np.random.default_rng(seed)
    sets = [np.sort(rng.choice(leaves, rng.integers(2, leaves + 1), False)) for _ in range(n)]
    width = np.array([len(leaves_of_row) for leaves_of_row in sets])
    reach = ReachableLeaves(
        np.concatenate([[0], np.cumsum(width)]).astype(np.int64),
        np.concatenate(sets).astype(np.int32),
        np.log(rng.random(width.sum()) + 0.1),
    )
    p = rng.random(n)
    g = p - (rng.random(n) < p)
    x = np.repeat(np.column_stack([g, p * (1 - p)]), width, axis=0)
    truth = np.array([rng.choice(leaves_of_row) for leaves_of_row in sets], dtype=np.int32)
    target = np.zeros((leaves, 2))
    np.add.at(target, truth, x[reach.offsets[:-1]])
    return reach, x, target, truth


@pytest.mark.parametrize("seed", range(5))
def test_max_entropy_meets_the_leaf_sums(seed):
    reach, x, target, _ = problem(seed=seed)
    P = max_entropy(reach, np.ones(60), x, target, np.zeros_like(target))
    sums = np.zeros_like(target)
    np.add.at(sums, reach.leaf, P[:, None] * x)
    # The ridge of exact sums leaves an error of about its size times the multiplier.
    np.testing.assert_allclose(sums, target, atol=0.05)
    np.testing.assert_allclose(np.add.reduceat(P, reach.offsets[:-1]), 1)


def test_max_entropy_returns_the_prior_when_the_prior_meets_the_sums():
    reach, x, target, _ = problem()
    prior = np.exp(reach.log_prior)
    prior /= np.repeat(np.add.reduceat(prior, reach.offsets[:-1]), np.diff(reach.offsets))
    target[:] = 0
    np.add.at(target, reach.leaf, prior[:, None] * x)
    P = max_entropy(reach, np.ones(60), x, target, np.zeros_like(target))
    np.testing.assert_allclose(P, prior, atol=1e-3)


def test_max_entropy_counts_a_weighted_row_as_that_many_rows():
    reach, x, target, _ = problem(n=20)
    double = ReachableLeaves(
        np.concatenate([reach.offsets, reach.offsets[1:] + reach.offsets[-1]]),
        np.tile(reach.leaf, 2),
        np.tile(reach.log_prior, 2),
    )
    ridge = np.zeros_like(target)
    once = max_entropy(reach, np.full(20, 2.0), x, target, ridge)
    twice = max_entropy(double, np.ones(40), np.tile(x, (2, 1)), target, ridge)
    np.testing.assert_allclose(np.tile(once, 2), twice, atol=1e-6)


def test_noise_variance_as_ridge_pulls_towards_the_prior():
    reach, x, target, _ = problem()
    exact = max_entropy(reach, np.ones(60), x, target, np.zeros_like(target))
    noisy = max_entropy(reach, np.ones(60), x, target, np.full_like(target, 1e6))
    prior = np.exp(reach.log_prior)
    prior /= np.repeat(np.add.reduceat(prior, reach.offsets[:-1]), np.diff(reach.offsets))
    np.testing.assert_allclose(noisy, prior, atol=1e-4)
    assert np.abs(exact - prior).max() > 0.05


def residual(reach, x, target, chosen):
    remaining = -target.copy()
    np.add.at(remaining, chosen, x[reach.offsets[:-1]])
    return np.abs(remaining).sum()


def test_local_search_reports_and_lowers_the_residual():
    reach, x, target, _ = problem()
    uniform = np.repeat(1 / np.diff(reach.offsets), np.diff(reach.offsets))
    start = draw_leaves(reach, uniform, np.arange(60), np.random.default_rng(0).random(60))
    chosen, reported_residual = search_leaves(reach, x, target, start, 1)
    assert reported_residual == pytest.approx(residual(reach, x, target, chosen))
    assert reported_residual < 0.1 * residual(reach, x, target, start)


def test_redrawing_removes_sampling_noise_and_keeps_to_reachable_leaves():
    reach, x, target, _ = problem()
    P = max_entropy(reach, np.ones(60), x, target, np.zeros_like(target))
    start = draw_leaves(reach, P, np.arange(60), np.random.default_rng(0).random(60))
    zero = np.zeros_like(target)
    chosen, reported_residual = redraw_leaves(reach, x, target, zero, start, 1)
    assert reported_residual == pytest.approx(residual(reach, x, target, chosen))
    assert reported_residual < 0.5 * residual(reach, x, target, start)
    for i, j in enumerate(chosen):
        assert j in reach.leaf[reach.offsets[i] : reach.offsets[i + 1]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_the_largest_remainder_method_keeps_the_total_and_stays_within_one(weights, total):
    parts = largest_remainder(np.array(weights), total)
    assert parts.sum() == total
    assert parts.min() >= 0
    w = np.maximum(weights, 0)
    if w.sum() > 1e-6:
        assert np.abs(parts - w * total / w.sum()).max() < 1 + 1e-9
