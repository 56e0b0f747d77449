"""The distribution of noise on counts, and its privacy loss, by enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedtrees.privacy.mechanisms import (
    _fraction,
    discrete_gaussian,
    discrete_laplace,
    discrete_laplace_share,
    log_probabilities,
    noise_log_pmf,
    permute_and_flip,
    truncated_laplace,
)

VALUES = np.arange(-400, 401)
SAMPLERS = {"geometric": discrete_laplace, "published": truncated_laplace}


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 3.0])
@pytest.mark.parametrize(("mechanism", "extra"), [("geometric", 0.0), ("published", math.log(2))])
def test_one_row_moves_the_log_probability_by_epsilon_and_no_more(mechanism, extra, epsilon):
    log_pmf = noise_log_pmf(mechanism, epsilon, VALUES)
    assert np.exp(log_pmf).sum() == pytest.approx(1, abs=1e-12 + math.exp(-400 * epsilon))
    assert np.abs(np.diff(log_pmf)).max() == pytest.approx(epsilon + extra, abs=1e-12)


@pytest.mark.parametrize("mechanism", SAMPLERS)
def test_noise_is_drawn_from_its_distribution(mechanism):
    draws = SAMPLERS[mechanism](2.0, 100_000, np.random.default_rng(3))
    results = np.arange(-12, 13)
    expected = np.exp(noise_log_pmf(mechanism, 0.5, results))
    observed = [(draws == result).sum() for result in results]
    other_results = [len(draws) - sum(observed), 1 - expected.sum()]
    p = stats.chisquare(
        [*observed, other_results[0]], len(draws) * np.append(expected, other_results[1])
    ).pvalue
    assert p > 1e-3


def test_shares_of_noise_add_up_to_the_noise():
    clients, scale = 3, 2.0
    p, results = -math.expm1(-1 / scale), np.arange(200)
    one_part = stats.nbinom.pmf(results, 1 / clients, p)
    share = np.convolve(one_part, one_part[::-1])
    total = np.convolve(np.convolve(share, share), share)
    middle = len(total) // 2
    middle_part = total[middle - 20 : middle + 21]
    assert np.allclose(middle_part, np.exp(noise_log_pmf("geometric", 0.5, np.arange(-20, 21))))
    draws = discrete_laplace_share(scale, 50_000, np.random.default_rng(0), clients)
    chance = share[len(share) // 2]
    assert stats.binomtest(int((draws == 0).sum()), len(draws), chance).pvalue > 1e-3


def permute_and_flip_probabilities(counts, epsilon):
    """Return the probability of every class by the algorithm of McKenna and Sheldon as printed."""
    chance = np.zeros(len(counts))
    heads = np.exp(epsilon * (np.array(counts) - max(counts)))
    for order in itertools.permutations(range(len(counts))):
        remaining = 1 / math.factorial(len(counts))
        for class_index in order:
            chance[class_index] += remaining * heads[class_index]
            remaining *= 1 - heads[class_index]
    return chance


def test_labels_are_chosen_by_permuting_and_flipping():
    counts, epsilon = np.array([3, 1, 2]), 0.7
    draws = permute_and_flip(np.tile(counts, (50_000, 1)), epsilon, np.random.default_rng(1))
    expected = permute_and_flip_probabilities(counts, epsilon)
    assert stats.chisquare(np.bincount(draws), 50_000 * expected).pvalue > 1e-3
    assert permute_and_flip(counts, math.inf, np.random.default_rng(1)) == 0


def test_a_label_is_epsilon_private_for_an_added_row():
    largest_loss = 0.0
    for counts in itertools.product(range(4), repeat=3):
        for c in range(3):
            with_added_row = [n + (i == c) for i, n in enumerate(counts)]
            largest_loss = max(
                largest_loss,
                np.abs(
                    np.log(
                        permute_and_flip_probabilities(counts, 0.7)
                        / permute_and_flip_probabilities(with_added_row, 0.7)
                    )
                ).max(),
            )
    assert largest_loss == pytest.approx(0.7)


class IntegerGenerator:
    """A generator that draws uniform integers only."""

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def integers(self, *args, **more):
        return self._rng.integers(*args, **more)


@pytest.mark.parametrize(
    "draw",
    [
        discrete_laplace,
        truncated_laplace,
        discrete_gaussian,
        lambda *args: discrete_laplace_share(*args, 3),
    ],
)
def test_integer_noise_is_made_of_uniform_integers_only(draw):
    assert draw(9.5, (3, 4), IntegerGenerator()).shape == (3, 4)


@pytest.mark.parametrize(("scale", "clients"), [(0.4, 3), (2.0, 2), (7.3, 5), (40.0, 2)])
def test_a_share_follows_the_law_of_its_polya_variates(scale, clients):
    draws = discrete_laplace_share(scale, 60_000, np.random.default_rng(5), clients)
    results = np.arange(-int(2 * scale) - 1, int(2 * scale) + 2)
    expected = np.exp(log_probabilities(scale, 1 / clients)[abs(results)])
    observed = [(draws == result).sum() for result in results]
    table = (
        [*observed, len(draws) - sum(observed)],
        len(draws) * np.append(expected, 1 - expected.sum()),
    )
    assert stats.chisquare(*table).pvalue > 1e-3


@pytest.mark.parametrize(("scale", "clients"), [(1.3, 2), (6.0, 5)])
def test_drawn_shares_add_up_to_the_two_sided_geometric_law(scale, clients):
    rng = np.random.default_rng(6)
    total = sum(discrete_laplace_share(scale, 60_000, rng, clients) for _ in range(clients))
    results = np.arange(-int(3 * scale), int(3 * scale) + 1)
    expected = np.exp(noise_log_pmf("geometric", 1 / scale, results))
    observed = [(total == result).sum() for result in results]
    table = (
        [*observed, len(total) - sum(observed)],
        len(total) * np.append(expected, 1 - expected.sum()),
    )
    assert stats.chisquare(*table).pvalue > 1e-3


def test_a_scale_is_rounded_up_by_less_than_a_millionth():
    for scale in (0.3, 1.0, 60.0, 1e5 / 3, 2.0**40 / 3):
        a, b = _fraction(scale)
        assert scale <= a / b < scale * (1 + 2e-6)
