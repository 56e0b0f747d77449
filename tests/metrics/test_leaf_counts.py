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


def test_counts_of_routed_rows_on_an_example():
    counted = true_leaf_counts(0, np.array([2, 4, 2, 2]), np.array([0, 1, 1, 0]), LEAVES)
    assert counted.leaf.tolist() == [2, 3, 4]
    assert counted.counts.tolist() == [[2, 1], [0, 0], [0, 1]]
    with pytest.raises(DataError, match="not among its leaves"):
        true_leaf_counts(0, np.array([1]), np.array([0]), LEAVES)


def test_the_truth_in_any_order_is_exact():
    turned = counts(0, [4, 2, 3], [2, 5, 0], [0, 1, 4])
    assert score_leaf_counts([turned], [TRUTH]) == LeafCountScores(1, 1, 0, 0, leaves=3)


def test_scores_on_an_example():
    # Leaf 2 is exact, leaf 3 is wrong, and leaf 4 has no claim.
    guess = counts(0, [2, 3], [5, 1], [1, 3])
    scores = score_leaf_counts([guess], [TRUTH])
    assert scores.leaf_counts_exact == pytest.approx(1 / 3)
    assert scores.leaf_mass_exact == pytest.approx(6 / 12)
    assert scores.count_error == pytest.approx((0 + 0 + 2) / 3)
    assert scores.count1_error == pytest.approx((0 + 1 + 0) / 3)


def test_an_empty_leaf_must_be_claimed_to_be_exact():
    truth = counts(0, [1, 2], [3, 0], [0, 0])
    assert score_leaf_counts([counts(0, [1], [3], [0])], [truth]).leaf_counts_exact == 0.5
    assert score_leaf_counts([truth], [truth]).leaf_counts_exact == 1


def test_trees_are_pooled_and_matched_by_number():
    counts_of_tree_7 = counts(7, [1], [4], [4])
    scores = score_leaf_counts([counts_of_tree_7, TRUTH], [TRUTH, counts_of_tree_7])
    assert (scores.leaf_counts_exact, scores.leaves) == (1, 4)
    assert score_leaf_counts([TRUTH], [TRUTH, counts_of_tree_7]).leaf_counts_exact == 0.75
    assert score_leaf_counts([], [TRUTH]).leaf_counts_exact == 0


def test_two_guesses_for_a_tree_and_no_truth_are_refused():
    with pytest.raises(DataError, match="two guesses"):
        score_leaf_counts([TRUTH, TRUTH], [TRUTH])
    with pytest.raises(DataError, match="no true leaf counts"):
        score_leaf_counts([TRUTH], [])


def test_blind_counts_are_scaled_own_counts():
    nodes, y = np.array([2, 2, 3, 4]), np.array([0, 1, 1, 0])
    blind = blind_leaf_counts(true_leaf_counts(0, nodes, y, LEAVES), 10)
    assert blind.counts.tolist() == [[2, 2], [0, 2], [2, 0]]
    blind_without_rows = blind_leaf_counts(true_leaf_counts(0, nodes[:0], y[:0], LEAVES), 12)
    assert blind_without_rows.counts.tolist() == [[2, 2]] * 3


@settings(max_examples=40, deadline=None)
@given(n_rows=st.integers(1, 60), seed=st.integers(0, 2**30))
def test_the_order_of_rows_does_not_matter_and_blind_counts_from_the_victims_rows_are_exact(
    n_rows, seed
):
    rng = np.random.default_rng(seed)
    nodes, y = rng.choice(LEAVES, n_rows), rng.integers(0, 2, n_rows)
    permutation = rng.permutation(n_rows)
    truth = true_leaf_counts(0, nodes, y, LEAVES)
    permuted = true_leaf_counts(0, nodes[permutation], y[permutation], LEAVES)
    assert np.array_equal(truth.counts, permuted.counts)
    blind = blind_leaf_counts(truth, n_rows)
    assert score_leaf_counts([blind], [truth]).leaf_mass_exact == 1


def test_share_right_ignores_leaves_without_a_claim():
    one_leaf = LeafCounts(0, TRUTH.leaf[:1], TRUTH.counts[:1])
    assert share_right([one_leaf], [TRUTH]) == 1
    wrong_counts = LeafCounts(
        0, TRUTH.leaf, TRUTH.counts + np.outer(np.arange(len(TRUTH.leaf)), [1, 0])
    )
    assert share_right([wrong_counts], [TRUTH]) == pytest.approx(1 / len(TRUTH.leaf))
    with pytest.raises(DataError, match="no leaf counts"):
        share_right([], [TRUTH])
    with pytest.raises(DataError, match="tree 0 has not"):
        share_right([counts(0, [99], [1], [1])], [TRUTH])
