"""What a leaf holds: found from its sums, or not at all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedtrees.attacks.exact_decoding.integer_sums import UNIT, rounding_of, units_of
from fedtrees.attacks.exact_decoding.leaf_subset_sum import Choices, find_contents, multinomial_ways
from fedtrees.trees.boosted.histogram import to_fixed
from fedtrees.trees.boosted.losses import logistic_gradients


def choices_of(cap, share, ph):
    start, cost, rows = [0], [], []
    for c, q in zip(cap, share, strict=True):
        ways, costs = multinomial_ways(int(c), np.array([q]), 1 - q, 1000)
        start.append(start[-1] + len(costs))
        cost.append(costs)
        rows.append(ways[:, 0])
    n = np.concatenate(rows)
    owner = np.repeat(np.arange(len(cap)), np.diff(start))
    return Choices(np.array(start), np.concatenate(cost), n * ph[owner, 1], n * ph[owner, 0], n)


def leaf(rng, k=16, held=7):
    """Margins, how many rows each has, and the sums of a leaf that holds some of them."""
    margin = rng.normal(size=k).astype(np.float32)
    cap = rng.integers(1, 4, k)
    count = rng.multivariate_hypergeometric(cap, held)
    y = (rng.random(held) < 0.4).astype(np.int64)
    sums = to_fixed(logistic_gradients(np.repeat(margin, count), y)).sum(axis=0)
    return cap, count, int(y.sum()), margin, (int(sums[0]), int(sums[1]))


@pytest.mark.parametrize("seed", range(8))
def test_contents_of_a_leaf_are_found_from_its_sums(seed):
    cap, count, positives, margin, sums = leaf(np.random.default_rng(seed))
    share = np.full(len(cap), count.sum() / cap.sum())
    choices = choices_of(cap, share, units_of(margin, 0))
    found = find_contents(choices, sums, rounding_of(margin), 14)
    start = choices.start[:-1]
    np.testing.assert_array_equal(choices.rows[start + found.way], count)
    assert found.positives == positives
    assert found.doubt < 0.01
    assert found.cost == pytest.approx(choices.cost[start + found.way].sum())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("off", [(0, 1), (0, UNIT // 1000), (UNIT // 100, 0)])
def test_sums_of_no_rows_are_not_explained(seed, off):
    cap, count, _, margin, sums = leaf(np.random.default_rng(seed))
    share = np.full(len(cap), count.sum() / cap.sum())
    choices = choices_of(cap, share, units_of(margin, 0))
    wrong = sums[0] + off[0], sums[1] + off[1]
    found = find_contents(choices, wrong, rounding_of(margin), 13)
    assert found is None or found.doubt > 1e-3


def test_two_explanations_are_none():
    """Rows of p and of 1 - p bring the same h, and pairs of them whole numbers of p."""
    margin = np.array([0.5, -0.5, 0.5], dtype=np.float32)
    ph = units_of(margin, 0)
    choices = choices_of([1, 1, 1], [0.5] * 3, ph)
    assert find_contents(choices, (int(ph[0, 0]), int(ph[0, 1])), 64, 10) is None
    sums = int(ph[[0, 2], 0].sum()), int(ph[[0, 2], 1].sum())
    assert find_contents(choices, sums, 0, 10) is not None


def test_hits_among_too_many_are_doubted():
    """Sums of few bits are met by accident."""
    rng = np.random.default_rng(0)
    ph = rng.integers(0, 60, (40, 2))
    choices = choices_of(np.full(40, 3), np.full(40, 0.5), ph)
    found = find_contents(choices, (1700 - 20 * UNIT, 1700), 0, 12)
    assert found is None or found.doubt > 1


def test_the_odds_count_what_else_would_fit():
    """The chance of an accident is how often wrong sums near by are met."""
    rng = np.random.default_rng(3)
    margin = rng.normal(size=12).astype(np.float32)
    ph = units_of(margin, 0)
    choices = choices_of(np.ones(12, dtype=int), np.full(12, 0.5), ph)
    found = find_contents(choices, (int(ph[:6, 0].sum()), int(ph[:6, 1].sum())), 0, 14)
    assert found.cost == pytest.approx(12 * np.log(2))
    assert found.doubt == pytest.approx(found.chance * (2**12 - 1))
    # the 4096 sums of h lie in a range of some 2^31 units, and G leaves one in 2^30 or fewer steps
    assert 2.0**-62 < found.chance < 2.0**-40


def test_ways_are_multinomial_and_the_likeliest():
    q, rest = np.array([0.2, 0.1]), 0.7
    rows, cost = multinomial_ways(5, q, rest, 10**6)
    assert np.exp(-cost).sum() == pytest.approx(1)
    assert {tuple(r) for r in rows} == {
        (a, b) for a, b in itertools.product(range(6), repeat=2) if a + b <= 5
    }
    i = int(np.flatnonzero((rows == [2, 1]).all(axis=1))[0])
    assert np.exp(-cost[i]) == pytest.approx(30 * 0.2**2 * 0.1 * 0.7**2)
    few, costs = multinomial_ways(5, q, rest, 6)
    assert len(few) == 6
    assert costs.max() <= np.sort(cost)[8]
