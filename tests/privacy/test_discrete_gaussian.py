"""Discrete Gaussian noise: its exact distribution, over all that random bits can be."""

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


class Waiting(Exception):
    """The outcomes that are given are used up; one of these follows, each with its chance."""


class Given(Randomness):
    """Randomness that fall as they are told to."""

    def __init__(self, outcomes):
        self.outcomes = list(outcomes)

    def next(self, chances):
        if not self.outcomes:
            raise Waiting(chances)
        return self.outcomes.pop(0)

    def below(self, stop):
        return 0 if stop == 1 else self.next(dict.fromkeys(range(stop), Fraction(1, stop)))


class GivenEvents(Given):
    def happens(self, p, q):
        chance = math.exp(-p / q)
        return p == 0 or self.next({True: chance, False: 1 - chance})


def chances(draw, randomness, least):
    """Return the chance of every result, and of all paths rarer than `least`."""
    found, left, rest = {}, [((), 1)], 0
    while left:
        outcomes, chance = left.pop()
        if chance < least:
            rest += chance
            continue
        try:
            k = draw(randomness(outcomes))
        except Waiting as more:
            left += [((*outcomes, o), chance * c) for o, c in more.args[0].items()]
        else:
            found[k] = found.get(k, 0) + chance
    assert sum(found.values()) + rest == pytest.approx(1, abs=1e-12)
    return found, float(rest)


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 3), (1, 1), (3, 2), (2, 1)])
def test_events_have_the_chance_of_a_power_of_e(p, q):
    found, rest = chances(lambda randomness: randomness.happens(p, q), Given, 1e-4)
    assert rest < 0.03
    assert float(found[True]) <= math.exp(-p / q) <= float(found[True]) + rest


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(2), Fraction(5, 2)])
def test_the_sampler_has_the_exact_distribution(variance):
    found, rest = chances(lambda randomness: one_draw(variance, randomness), GivenEvents, 1e-4)
    assert rest < 0.25
    expected = dict(zip(K.tolist(), pmf(math.sqrt(variance)), strict=True))
    for k, chance in found.items():  # what is not yet decided may end anywhere
        assert chance <= expected[k] * (1 + 1e-9) <= (chance + rest) * (1 + 1e-9)
        assert found[-k] == pytest.approx(chance)


@pytest.mark.parametrize("scale", [0.4, 2.7, 2.0**35 + 0.5])
def test_draws_are_of_that_distribution(scale):
    draws = discrete_gaussian(scale, 4000, np.random.default_rng(4))
    if scale > 100:
        assert stats.kstest(draws / scale, "norm").pvalue > 1e-3
        assert (draws % 2).mean() == pytest.approx(0.5, abs=0.03)
        return
    often = pmf(scale) * len(draws) > 5
    seen = np.array([(draws == k).sum() for k in K[often]])
    expected = len(draws) * pmf(scale)[often]
    beyond = len(draws) - np.array([seen.sum(), expected.sum()])
    table = [*seen, beyond[0]], [*expected, beyond[1]]
    assert stats.chisquare(*table).pvalue > 1e-3


def test_shares_add_up_to_the_noise():
    one, k = pmf(8.0, np.arange(-120, 121)), np.arange(-360, 361)
    total = np.convolve(np.convolve(one, one), one)
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
def test_scales_that_cannot_be_are_refused(draw, message):
    with pytest.raises(UsageError, match=message):
        draw(np.random.default_rng(0))
