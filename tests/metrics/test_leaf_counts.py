import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.claims import LeafCounts
from fedtrees.core.errors import DataError
from fedtrees.metrics.leaf_counts import (
    LeafCountScores,
    blind_leaf_counts,
    score_leaf_counts,
    share_right,
    true_leaf_counts,
)

LEAVES = np.array([2, 3, 4])


def counts(tree, leaf, n0, n1):
    return LeafCounts(tree, np.array(leaf), np.column_stack([n0, n1]))


TRUTH = counts(0, [2, 3, 4], [5, 0, 2], [1, 4, 0])


def test_counts_of_routed_rows_by_hand():
    found = true_leaf_counts(0, np.array([2, 4, 2, 2]), np.array([0, 1, 1, 0]), LEAVES)
    assert found.leaf.tolist() == [2, 3, 4]
    assert found.counts.tolist() == [[2, 1], [0, 0], [0, 1]]
    with pytest.raises(DataError, match="not among its leaves"):
        true_leaf_counts(0, np.array([1]), np.array([0]), LEAVES)


def test_the_truth_in_any_order_is_exact():
    turned = counts(0, [4, 2, 3], [2, 5, 0], [0, 1, 4])
    assert score_leaf_counts([turned], [TRUTH]) == LeafCountScores(1, 1, 0, 0, leaves=3)


def test_scores_by_hand():
    guess = counts(0, [2, 3], [5, 1], [1, 3])  # leaf 2 exact, leaf 3 wrong, leaf 4 not told
    scores = score_leaf_counts([guess], [TRUTH])
    assert scores.leaf_counts_exact == pytest.approx(1 / 3)
    assert scores.leaf_mass_exact == pytest.approx(6 / 12)
    assert scores.count_error == pytest.approx((0 + 0 + 2) / 3)
    assert scores.count1_error == pytest.approx((0 + 1 + 0) / 3)


def test_an_empty_leaf_must_be_told_to_count_as_known():
    truth = counts(0, [1, 2], [3, 0], [0, 0])
    assert score_leaf_counts([counts(0, [1], [3], [0])], [truth]).leaf_counts_exact == 0.5
    assert score_leaf_counts([truth], [truth]).leaf_counts_exact == 1


def test_trees_are_pooled_and_matched_by_number():
    other = counts(7, [1], [4], [4])
    scores = score_leaf_counts([other, TRUTH], [TRUTH, other])
    assert (scores.leaf_counts_exact, scores.leaves) == (1, 4)
    assert score_leaf_counts([TRUTH], [TRUTH, other]).leaf_counts_exact == 0.75
    assert score_leaf_counts([], [TRUTH]).leaf_counts_exact == 0


def test_two_guesses_for_a_tree_and_no_truth_are_refused():
    with pytest.raises(DataError, match="two guesses"):
        score_leaf_counts([TRUTH, TRUTH], [TRUTH])
    with pytest.raises(DataError, match="no true leaf counts"):
        score_leaf_counts([TRUTH], [])


def test_blind_counts_are_own_counts_scaled():
    nodes, y = np.array([2, 2, 3, 4]), np.array([0, 1, 1, 0])
    found = blind_leaf_counts(true_leaf_counts(0, nodes, y, LEAVES), 10)
    assert found.counts.tolist() == [[2, 2], [0, 2], [2, 0]]
    none = blind_leaf_counts(true_leaf_counts(0, nodes[:0], y[:0], LEAVES), 12)
    assert none.counts.tolist() == [[2, 2]] * 3


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 2**30))
def test_order_of_true_rows_does_not_matter_and_own_rows_as_victims_are_exact(n, seed):
    rng = np.random.default_rng(seed)
    nodes, y = rng.choice(LEAVES, n), rng.integers(0, 2, n)
    turn = rng.permutation(n)
    truth = true_leaf_counts(0, nodes, y, LEAVES)
    again = true_leaf_counts(0, nodes[turn], y[turn], LEAVES)
    assert np.array_equal(truth.counts, again.counts)
    blind = blind_leaf_counts(truth, n)
    assert score_leaf_counts([blind], [truth]).leaf_mass_exact == 1


def test_only_what_is_mentioned_can_be_wrong():
    some = LeafCounts(0, TRUTH.leaf[:1], TRUTH.counts[:1])
    assert share_right([some], [TRUTH]) == 1
    off = LeafCounts(0, TRUTH.leaf, TRUTH.counts + np.outer(np.arange(len(TRUTH.leaf)), [1, 0]))
    assert share_right([off], [TRUTH]) == pytest.approx(1 / len(TRUTH.leaf))
    with pytest.raises(DataError, match="no leaf counts"):
        share_right([], [TRUTH])
    with pytest.raises(DataError, match="tree 0 has not"):
        share_right([counts(0, [99], [1], [1])], [TRUTH])
