"""Lower bounds on epsilon, compared with closed forms and with mechanisms of known epsilon."""

import math

import numpy as np
import pytest
from scipy import stats

from fedtrees.core.errors import UsageError
from fedtrees.privacy_audit.bounds import bound_of_guesses, most_of_guesses


def test_the_bound_depends_on_the_number_of_correct_guesses():
    is_included = np.arange(100) % 2 == 0
    p = 0.0125 ** (1 / 100)
    assert bound_of_guesses(np.where(is_included, 1.0, -1.0), is_included) == pytest.approx(
        math.log(p / (1 - p))
    )
    assert bound_of_guesses(np.where(is_included, 1.0, -1.0), ~is_included) == 0
    assert bound_of_guesses(np.zeros(100), is_included) == 0
    with_delta = bound_of_guesses(np.where(is_included, 1.0, -1.0), is_included, delta=1e-5)
    assert 0 < with_delta < math.log(p / (1 - p))
    assert most_of_guesses(100) == pytest.approx(math.log(p / (1 - p)))
    assert most_of_guesses(100, delta=1e-5) == with_delta


def test_bounds_are_valid_with_their_confidence():
    rng, bounds = np.random.default_rng(1), []
    for _ in range(200):
        is_included = rng.random(300) < 0.5
        is_correct = rng.random(300) < 1 / (1 + math.exp(-1.0))
        bounds.append(bound_of_guesses(np.where(is_included == is_correct, 1.0, -1.0), is_included))
    assert stats.binomtest(sum(bound > 1 for bound in bounds), 200, 0.05, "greater").pvalue > 0.01
    assert 0.5 < np.median(bounds) < 1


def test_an_invalid_confidence_is_refused():
    with pytest.raises(UsageError, match="confidence must be a number between 0 and 1; got 1"):
        bound_of_guesses(np.ones(3), np.ones(3, bool), confidence=1)


def test_bounds_for_gaussian_noise_stay_below_the_true_epsilon():
    """Noise of 1/0.536 times the sum of a row has an epsilon of 2.15 at delta 1e-5 (Dong, Roth
    and Su 2022).
    """
    rng, mu, bounds = np.random.default_rng(2), 0.536, []
    for _ in range(5):
        is_included = rng.random(40_000) < 0.5
        scores = rng.normal(mu * (is_included - 0.5))
        bounds.append(bound_of_guesses(scores, is_included, delta=1e-5))
    assert 1.12 < np.mean(bounds) < max(bounds) < 2.15
