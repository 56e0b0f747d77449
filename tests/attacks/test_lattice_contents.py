"""The rows of a leaf are determined from its sums, or not returned at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedtrees.attacks.exact_decoding.integer_sums import UNIT, rounding_of, units_of
from fedtrees.attacks.exact_decoding.leaf_subset_sum import Choices, find_contents, multinomial_ways
from fedtrees.trees.boosted.histogram import to_fixed
from fedtrees.trees.boosted.losses import logistic_gradients


def choices_of(limits, share, units):
    """Return the possible numbers of rows per margin with their costs."""
    start, costs_of_rows, rows = [0], [], []
    for limit, chance in zip(limits, share, strict=True):
        ways, costs = multinomial_ways(int(limit), np.array([chance]), 1 - chance, 1000)
        start.append(start[-1] + len(costs))
        costs_of_rows.append(costs)
        rows.append(ways[:, 0])
    n_rows = np.concatenate(rows)
    owner = np.repeat(np.arange(len(limits)), np.diff(start))
    return Choices(
        np.array(start),
        np.concatenate(costs_of_rows),
        n_rows * units[owner, 1],
        n_rows * units[owner, 0],
        n_rows,
    )


def random_leaf(rng, n_margins=16, n_rows=7):
    """Return margins, the number of rows with each margin, and the sums of a leaf that contains
    some of these rows.
    """
    margin = rng.normal(size=n_margins).astype(np.float32)
    limits = rng.integers(1, 4, n_margins)
    count = rng.multivariate_hypergeometric(limits, n_rows)
    y = (rng.random(n_rows) < 0.4).astype(np.int64)
    sums = to_fixed(logistic_gradients(np.repeat(margin, count), y)).sum(axis=0)
    return limits, count, int(y.sum()), margin, (int(sums[0]), int(sums[1]))


@pytest.mark.parametrize("seed", range(8))
def test_the_sums_of_a_leaf_determine_its_rows(seed):
    limits, count, positives, margin, sums = random_leaf(np.random.default_rng(seed))
    share = np.full(len(limits), count.sum() / limits.sum())
    choices = choices_of(limits, share, units_of(margin, 0))
    contents = find_contents(choices, sums, rounding_of(margin), 14)
    start = choices.start[:-1]
    np.testing.assert_array_equal(choices.rows[start + contents.way], count)
    assert contents.positives == positives
    assert contents.doubt < 0.01
    assert contents.cost == pytest.approx(choices.cost[start + contents.way].sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("error", [(0, 1), (0, UNIT // 1000), (UNIT // 100, 0)])
def test_wrong_sums_are_not_explained_or_doubted(seed, error):
    limits, count, _, margin, sums = random_leaf(np.random.default_rng(seed))
    share = np.full(len(limits), count.sum() / limits.sum())
    choices = choices_of(limits, share, units_of(margin, 0))
    wrong_sums = sums[0] + error[0], sums[1] + error[1]
    contents = find_contents(choices, wrong_sums, rounding_of(margin), 13)
    assert contents is None or contents.doubt > 1e-3


def test_ambiguous_sums_are_not_explained():
    """Rows with p and with 1 - p have the same h, and pairs of them have integer sums of p."""
    margin = np.array([0.5, -0.5, 0.5], dtype=np.float32)
    units = units_of(margin, 0)
    choices = choices_of([1, 1, 1], [0.5] * 3, units)
    assert find_contents(choices, (int(units[0, 0]), int(units[0, 1])), 64, 10) is None
    sums = int(units[[0, 2], 0].sum()), int(units[[0, 2], 1].sum())
    assert find_contents(choices, sums, 0, 10) is not None


def test_explanations_among_too_many_candidates_are_doubted():
    """Sums of few bits are met by accident."""
    rng = np.random.default_rng(0)
    units = rng.integers(0, 60, (40, 2))
    choices = choices_of(np.full(40, 3), np.full(40, 0.5), units)
    contents = find_contents(choices, (1700 - 20 * UNIT, 1700), 0, 12)
    assert contents is None or contents.doubt > 1


def test_the_doubt_is_the_expected_number_of_accidental_explanations():
    """The chance of an accident is the rate at which slightly wrong sums are explained."""
    rng = np.random.default_rng(3)
    margin = rng.normal(size=12).astype(np.float32)
    units = units_of(margin, 0)
    choices = choices_of(np.ones(12, dtype=int), np.full(12, 0.5), units)
    contents = find_contents(choices, (int(units[:6, 0].sum()), int(units[:6, 1].sum())), 0, 14)
    assert contents.cost == pytest.approx(12 * np.log(2))
    assert contents.doubt == pytest.approx(contents.chance * (2**12 - 1))
    # The 4096 sums of h lie in a range of about 2^31 units, and G leaves one in at most 2^30 steps.
    assert 2.0**-62 < contents.chance < 2.0**-40


def test_multinomial_ways_returns_the_most_probable_ways():
    chances, remaining_chance = np.array([0.2, 0.1]), 0.7
    rows, cost = multinomial_ways(5, chances, remaining_chance, 10**6)
    assert np.exp(-cost).sum() == pytest.approx(1)
    assert {tuple(row) for row in rows} == {
        (a, b) for a, b in itertools.product(range(6), repeat=2) if a + b <= 5
    }
    i = int(np.flatnonzero((rows == [2, 1]).all(axis=1))[0])
    assert np.exp(-cost[i]) == pytest.approx(30 * 0.2**2 * 0.1 * 0.7**2)
    most_probable, costs = multinomial_ways(5, chances, remaining_chance, 6)
    assert len(most_probable) == 6
    assert costs.max() <= np.sort(cost)[8]
