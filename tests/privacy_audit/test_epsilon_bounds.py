"""Lower bounds on epsilon: against closed forms, and against mechanisms of known epsilon."""

import math

import numpy as np
import pytest
from scipy import stats

from fedtrees.core.errors import UsageError
from fedtrees.privacy_audit.bounds import bound_of_guesses, most_of_guesses


def test_right_guesses_bound_by_their_number():
    there = np.arange(100) % 2 == 0
    p = 0.0125 ** (1 / 100)
    assert bound_of_guesses(np.where(there, 1.0, -1.0), there) == pytest.approx(
        math.log(p / (1 - p))
    )
    assert bound_of_guesses(np.where(there, 1.0, -1.0), ~there) == 0
    assert bound_of_guesses(np.zeros(100), there) == 0
    with_delta = bound_of_guesses(np.where(there, 1.0, -1.0), there, delta=1e-5)
    assert 0 < with_delta < math.log(p / (1 - p))
    assert most_of_guesses(100) == pytest.approx(math.log(p / (1 - p)))
    assert most_of_guesses(100, delta=1e-5) == with_delta


def test_bounds_hold_as_often_as_they_say():
    rng, found = np.random.default_rng(1), []
    for _ in range(200):
        there = rng.random(300) < 0.5
        right = rng.random(300) < 1 / (1 + math.exp(-1.0))
        found.append(bound_of_guesses(np.where(there == right, 1.0, -1.0), there))
    assert stats.binomtest(sum(b > 1 for b in found), 200, 0.05, "greater").pvalue > 0.01
    assert 0.5 < np.median(found) < 1


def test_a_confidence_that_is_none_is_refused():
    with pytest.raises(UsageError, match="confidence must be a number between 0 and 1; got 1"):
        bound_of_guesses(np.ones(3), np.ones(3, bool), confidence=1)


def test_normal_noise_is_bounded_from_below_and_by_one_share_of_the_guesses():
    """Noise 1/.536 of a row's sum: an epsilon of 2.15 at delta 1e-5 (Dong, Roth and Su 2022)."""
    rng, mu, found = np.random.default_rng(2), 0.536, []
    for _ in range(5):
        there = rng.random(40_000) < 0.5
        scores = rng.normal(mu * (there - 0.5))
        found.append(bound_of_guesses(scores, there, delta=1e-5))
    assert 1.12 < np.mean(found) < max(found) < 2.15
