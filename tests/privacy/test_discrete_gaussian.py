"""Discrete Gaussian noise has its exact distribution, by enumeration of all random bits."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedtrees.core.errors import UsageError
from fedtrees.privacy.mechanisms import (
    Randomness,
    discrete_gaussian,
    discrete_gaussian_share,
    one_draw,
)

K = np.arange(-60, 61)


def pmf(scale, k=K):
    weight = np.exp(-(k.astype(float) ** 2) / (2 * scale**2))
    return weight / weight.sum()


class OutcomesExhausted(Exception):
    """The scripted outcomes are used up. The argument contains the next outcomes with their
    probabilities.
    """


class ScriptedRandomness(Randomness):
    """Randomness that returns scripted outcomes."""

    def __init__(self, outcomes):
        self.outcomes = list(outcomes)

    def next(self, chances):
        if not self.outcomes:
            raise OutcomesExhausted(chances)
        return self.outcomes.pop(0)

    def below(self, stop):
        return 0 if stop == 1 else self.next(dict.fromkeys(range(stop), Fraction(1, stop)))


class ScriptedEvents(ScriptedRandomness):
    def happens(self, p, q):
        chance = math.exp(-p / q)
        return p == 0 or self.next({True: chance, False: 1 - chance})


def result_probabilities(draw, randomness, smallest):
    """Return the probability of every result, and the total probability of paths below `least`."""
    probabilities, open_paths, undecided = {}, [((), 1)], 0
    while open_paths:
        outcomes, chance = open_paths.pop()
        if chance < smallest:
            undecided += chance
            continue
        try:
            result = draw(randomness(outcomes))
        except OutcomesExhausted as exhausted:
            open_paths += [
                ((*outcomes, outcome), chance * outcome_chance)
                for outcome, outcome_chance in exhausted.args[0].items()
            ]
        else:
            probabilities[result] = probabilities.get(result, 0) + chance
    assert sum(probabilities.values()) + undecided == pytest.approx(1, abs=1e-12)
    return probabilities, float(undecided)


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 3), (1, 1), (3, 2), (2, 1)])
def test_events_have_the_probability_of_a_power_of_e(p, q):
    probabilities, undecided = result_probabilities(
        lambda randomness: randomness.happens(p, q), ScriptedRandomness, 1e-4
    )
    assert undecided < 0.03
    assert float(probabilities[True]) <= math.exp(-p / q) <= float(probabilities[True]) + undecided


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(2), Fraction(5, 2)])
def test_the_sampler_has_the_exact_distribution(variance):
    probabilities, undecided = result_probabilities(
        lambda randomness: one_draw(variance, randomness), ScriptedEvents, 1e-4
    )
    assert undecided < 0.25
    expected = dict(zip(K.tolist(), pmf(math.sqrt(variance)), strict=True))
    for result, chance in probabilities.items():  # Undecided paths may end in any result.
        assert chance <= expected[result] * (1 + 1e-9) <= (chance + undecided) * (1 + 1e-9)
        assert probabilities[-result] == pytest.approx(chance)


@pytest.mark.parametrize("scale", [0.4, 2.7, 2.0**35 + 0.5])
def test_draws_have_the_exact_distribution(scale):
    draws = discrete_gaussian(scale, 4000, np.random.default_rng(4))
    if scale > 100:
        assert stats.kstest(draws / scale, "norm").pvalue > 1e-3
        assert (draws % 2).mean() == pytest.approx(0.5, abs=0.03)
        return
    is_frequent = pmf(scale) * len(draws) > 5
    observed = np.array([(draws == k).sum() for k in K[is_frequent]])
    expected = len(draws) * pmf(scale)[is_frequent]
    beyond = len(draws) - np.array([observed.sum(), expected.sum()])
    table = [*observed, beyond[0]], [*expected, beyond[1]]
    assert stats.chisquare(*table).pvalue > 1e-3


def test_shares_add_up_to_the_noise():
    one_share, k = pmf(8.0, np.arange(-120, 121)), np.arange(-360, 361)
    total = np.convolve(np.convolve(one_share, one_share), one_share)
    assert np.allclose(total, pmf(8.0 * math.sqrt(3), k), rtol=0, atol=1e-15)
    draws = discrete_gaussian_share(8.0 * math.sqrt(3), 4000, np.random.default_rng(2), 3)
    assert draws.std() == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda rng: discrete_gaussian(0.0, 1, rng), r"in \(0, 2\^46\] grid steps; got 0"),
        (lambda rng: discrete_gaussian(math.inf, 1, rng), "got inf"),
        (lambda rng: discrete_gaussian_share(15.0, 1, rng, 4), "has scale 7.5 grid steps; below 8"),
    ],
)
def test_invalid_scales_are_refused(draw, message):
    with pytest.raises(UsageError, match=message):
        draw(np.random.default_rng(0))
