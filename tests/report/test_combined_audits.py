"""Audits of several seeds and defenses, combined into statements with 95% confidence."""

import math

import numpy as np
import pandas as pd
import pytest

from fedtrees.core.guarantee import AtLeast, PureDP
from fedtrees.privacy_audit.bounds import bound_of_counts, bound_of_guesses, count_guesses
from fedtrees.report.guarantees import DefenseGuarantees, combine_audits

N_CANARIES = 60


def audit_rows(rng, epsilon, claimed, n_seeds):
    """Return rows of audits of a mechanism whose guesses are right as often as epsilon permits."""
    rows = []
    for seed in range(n_seeds):
        present = rng.random(N_CANARIES) < 0.5
        is_right = rng.random(N_CANARIES) < 1 / (1 + math.exp(-epsilon))
        counts = count_guesses(np.where(present == is_right, 1.0, -1.0), present)
        measured = AtLeast(
            bound_of_counts(counts, N_CANARIES),
            canaries=N_CANARIES,
            guesses=tuple(f"{right}of{guesses}" for right, guesses in counts),
        )
        claim = (PureDP(epsilon=claimed),)
        # The measured guarantee of a seed is repeated in its attack rows.
        rows += [{"seed": seed, "claimed": claim, "spent": claim, "measured": (measured,)}] * 2
    return pd.DataFrame(rows)


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_a_kept_claim_is_refuted_in_at_most_5_percent_of_the_reports_of_ten_seeds(epsilon):
    rng = np.random.default_rng(0)
    refuted = [
        DefenseGuarantees.of_rows(audit_rows(rng, epsilon, epsilon, 10)).refuted for _ in range(400)
    ]
    assert np.mean(refuted) <= 0.05


def test_a_claim_that_is_exceeded_by_half_is_refuted_by_the_pooled_seeds():
    rng = np.random.default_rng(0)
    refuted = [DefenseGuarantees.of_rows(audit_rows(rng, 1.5, 1.0, 10)).refuted for _ in range(100)]
    assert np.mean(refuted) > 0.8


def test_pooled_seeds_give_the_bound_of_one_audit_of_all_canaries():
    bounds = [AtLeast(0.5, canaries=10, guesses=("8of10", "4of4", "2of2", "1of1"))] * 3
    (combined,) = combine_audits([(b,) for b in bounds])
    counts = [(24, 30), (12, 12), (6, 6), (3, 3)]
    assert combined.epsilon == bound_of_counts(counts, 30)
    assert combined.canaries == 30
    (of_two_defenses,) = combine_audits([(b,) for b in bounds], 2)
    assert of_two_defenses.epsilon == bound_of_counts(counts, 30, confidence=0.975)


def test_bounds_without_numbers_of_guesses_are_combined_by_rank():
    bounds = [(AtLeast(float(epsilon)),) for epsilon in range(10)]
    assert combine_audits(bounds) == (AtLeast(7.0),)
    assert combine_audits(bounds[:1]) == bounds[0]
    assert combine_audits([]) is None


def test_counts_give_the_same_bound_as_guesses():
    present = np.arange(100) % 2 == 0
    scores = np.where(np.arange(100) % 5 > 0, 1.0, -1.0) * np.where(present, 1, -1)
    assert bound_of_counts(count_guesses(scores, present), 100) == bound_of_guesses(scores, present)
