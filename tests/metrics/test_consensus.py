"""Consensus of samples: the value that a cell takes, and the rows that are matched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import SCHEMA, random_table

from fedtrees.blind_baselines.consensus import best_value, matched_consensus
from fedtrees.core.schema import Table
from fedtrees.metrics.records import score_records


def voted(values, width, missing=0, discrete=False):
    values = np.array(values, dtype=np.float64)
    return best_value(values, len(values), missing, width, discrete)


def test_a_value_is_the_centre_of_the_best_window_of_twice_the_width():
    # four values lie within 1 of 3.95; no vote agrees with more than two others
    assert voted([9, 3, 4.9, 3.2, 4.7, 0], 1.0) == pytest.approx(3.95)
    assert voted([9, 3, 4.9, 3.2, 4.7, 0], 1.0, discrete=True) in (3, 3.2, 4.7, 4.9)


def test_discrete_columns_take_a_vote_that_most_agree_with():
    assert voted([2, 3, 3, 3, 7], 0.0) == 3
    assert (
        voted([1, 2, 3, 9], 1.0, discrete=True) == 2
    )  # agrees with three, its neighbours with two
    assert voted([2, 2, 3, 3], 0.6, discrete=True) == 2
    assert voted([2, 2, 3, 3], 0.6) == 2.5  # of a continuous column


def test_a_cell_is_missing_where_more_votes_are_than_agree_on_a_value():
    assert np.isnan(voted([1, 1, 5], 0.5, missing=3))
    assert voted([1, 1, 1.5, 5], 0.5, missing=3) == 1.25
    assert np.isnan(voted([], 0.5, missing=4))
    assert np.isnan(voted([1, 2, 3], 0.0, missing=2))  # of categories, too


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.integers(-50, 50), min_size=1, max_size=30),
    scale=st.sampled_from([1.0, 0.1, 1 / 3]),
    width=st.floats(0, 20),
)
def test_no_other_value_agrees_with_more_votes(values, scale, width):
    values = np.array(values) * scale
    winner = voted(values, width)
    n_votes = (np.abs(values - winner) <= width + 1e-9).sum()
    counts = [
        (value, ((values >= value) & (values <= value + 2 * width * (1 - 1e-6))).sum())
        for value in values
    ]
    assert n_votes >= max(count for _, count in counts)
    discrete_winner = voted(values, width, discrete=True)
    agreements = [(np.abs(values - value) <= width).sum() for value in values]
    assert (np.abs(values - discrete_winner) <= width).sum() == max(agreements)


def test_the_consensus_of_equal_samples_is_the_sample_in_any_order():
    rng = np.random.default_rng(0)
    base = random_table(40, rng)
    samples = [base.take(rng.permutation(40)) for _ in range(5)]
    consensus = matched_consensus(samples, np.zeros(4), block=40)
    assert sorted(map(bytes, consensus.X)) == sorted(map(bytes, base.X))


def test_rows_on_which_most_samples_agree_are_restored():
    rng = np.random.default_rng(0)
    base = random_table(40, rng)
    samples = []
    for _ in range(9):
        X = base.X.copy()
        X[rng.random(40) < 0.2, 2] += 50
        samples.append(Table(X, base.y).take(rng.permutation(40)))
    samples[-1] = base
    consensus = matched_consensus(samples, np.zeros(4), block=40)
    assert score_records(consensus, base, SCHEMA).exact_rows > 0.95


def test_rows_are_matched_within_their_group_and_block():
    """The samples agree up to the order of two rows, so only the matching makes a difference."""
    X = np.array([[0.0], [10], [20], [30]], dtype=np.float32)
    in_order = Table(X, np.zeros(4, np.int64))
    swapped = in_order.take(np.array([2, 1, 0, 3]))
    samples, width = [swapped, in_order, in_order], np.array([0.5])

    def first_column(**options):
        return matched_consensus([*samples[1:], swapped], width, **options).X[:, 0].tolist()

    # The rows are matched to the last sample, with which all agree.
    assert first_column(block=4) == [20, 10, 0, 30]
    assert first_column(block=4, start=in_order) == [0, 10, 20, 30]
    groups_of_two = np.array([5, 5, 7, 7])
    assert first_column(block=4, groups=groups_of_two) == first_column(block=2) == [0, 10, 20, 30]


def test_the_consensus_of_whole_numbers_with_a_frequent_value_is_whole():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.poisson(1.5, 600), rng.normal(size=600)]).astype(np.float32)
    samples = [Table(X[number::20], np.zeros(30, np.int64)) for number in range(20)]
    consensus = matched_consensus(samples, np.array([0.4, 0.3]))
    assert np.isin(consensus.X[:, 0], np.unique(X[:, 0])).all()
    assert not np.isin(consensus.X[:, 1], X[:, 1]).any()
