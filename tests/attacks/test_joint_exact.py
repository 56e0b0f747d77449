"""Exact sums: what a leaf holds, and whole trees without a mistake."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from timberstrike_world import structured, world

from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.joint.exact import UNIT, solve_leaf
from fedtrees.attacks.joint.reconstruct import reconstruct
from fedtrees.trees.fixed_point import to_fixed
from fedtrees.trees.losses import logistic_gradients


def leaf(rng, k=16, held=7):
    """Margins, how many rows each has, and a leaf that holds some of them."""
    margin = rng.normal(size=k).astype(np.float32)
    cap = rng.integers(1, 4, k)
    count = rng.multivariate_hypergeometric(cap, held)
    y = rng.random(held) < 0.4
    gradients = to_fixed(logistic_gradients(np.repeat(margin, count), y.astype(np.int64)))
    zero = to_fixed(logistic_gradients(margin, np.zeros(k, dtype=np.int64)))
    return cap, count, int(y.sum()), (zero[:, 0], zero[:, 1]), gradients.sum(axis=0)


@pytest.mark.parametrize("seed", range(8))
def test_contents_of_a_leaf_are_found_from_its_sums(seed):
    cap, count, positives, ph, sums = leaf(np.random.default_rng(seed))
    share = np.full(len(cap), count.sum() / cap.sum())
    found = solve_leaf(cap, share, ph, (int(sums[0]), int(sums[1])), 1 << 13)
    np.testing.assert_array_equal(found.count, count)
    assert found.positives == positives


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_no_rows_are_not_explained(seed):
    cap, count, _, ph, sums = leaf(np.random.default_rng(seed))
    share = np.full(len(cap), count.sum() / cap.sum())
    wrong = int(sums[0]), int(sums[1]) + UNIT // 1000
    assert solve_leaf(cap, share, ph, wrong, 1 << 13) is None


def test_too_many_ways_are_no_answer():
    """Equal gradients cannot tell rows apart, and lists that would meet anywhere prove nothing."""
    cap = np.full(40, 3)
    rng = np.random.default_rng(0)
    ph = rng.integers(0, 60, 40), rng.integers(0, 60, 40)  # sums of few bits
    assert solve_leaf(cap, np.full(40, 0.5), ph, (1700 - 20 * UNIT, 1700), 1 << 12) is None


@pytest.fixture(scope="module")
def solved():
    X, y = structured(240)
    w = world(X, y, 60, trees=8, max_depth=4)
    options = Joint(chains=1, moves=200, samples=2, exact=True)
    guess = reconstruct(w.evidence(), w.own, w.schema, options, np.random.default_rng(0))
    return w, guess


def test_counts_of_solved_trees_are_true(solved):
    w, guess = solved
    assert guess.notes["trees_solved"] >= 3
    assert len(guess.leaf_counts) == guess.notes["trees_solved"]
    nodes = w.forest.apply(w.victims.X)
    for counts in guess.leaf_counts:
        here = nodes[:, counts.tree]
        for c, n in ((0, counts.n0), (1, counts.n1)):
            true = [((here == j) & (w.victims.y == c)).sum() for j in counts.leaf]
            np.testing.assert_array_equal(n, true)


def test_rows_keep_to_the_solved_trees(solved):
    """Whole paths through them are those of the victims, row for row."""
    w, guess = solved
    q = len(guess.leaf_counts)
    mine, true = (w.forest.apply(X)[:, :q] for X in (guess.records.X, w.victims.X))
    margins = [Counter(_margins(w, nodes)) for nodes in (mine, true)]
    assert (margins[0] & margins[1]).total() > 0.95 * len(true)


def _margins(w, nodes):
    """Rows of equal margin are alike to the sums; only their margins can be compared."""
    margin = np.full(len(nodes), w.forest.base_margin[0], dtype=np.float32)
    for t in range(nodes.shape[1]):
        margin += w.forest.trees[t].value[nodes[:, t]]
    return margin.tolist()


def test_values_alone_or_noise_are_not_solved():
    X, y = structured(120)
    w = world(X, y, 30, trees=3)
    options = Joint(chains=1, moves=10, samples=1, exact=True)
    guess = reconstruct(w.evidence("values"), w.own, w.schema, options, np.random.default_rng(0))
    assert guess.notes["trees_solved"] == 1
