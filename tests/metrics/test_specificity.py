import numpy as np
import pytest
from small_tables import SCHEMA, random_table

from fedtrees.core.errors import DataError
from fedtrees.metrics.records import nearest_row, specificity


def draw(seed, guess=60, truth=60, reserve=200):
    rng = np.random.default_rng(seed)
    return *(random_table(n, rng) for n in (guess, truth, reserve)), rng


def test_an_uninformed_guess_has_a_standard_normal_z_and_a_uniform_rank():
    results = [
        specificity(guess, truth, reserve, SCHEMA, rng, samples=60)
        for guess, truth, reserve, rng in map(draw, range(60))
    ]
    z_scores = np.array([result.z for result in results])
    assert abs(z_scores.mean()) < 4 / 60**0.5
    assert 0.7 < z_scores.std() < 1.4
    assert 0.35 < np.mean([result.rank for result in results]) < 0.65


def test_the_rows_of_the_victims_are_specific():
    _, truth, reserve, rng = draw(0)
    result = specificity(truth, truth, reserve, SCHEMA, rng)
    assert result.victims == 1
    assert result.z > 8
    assert result.tail < 1e-12
    assert result.rank == pytest.approx(1 / 101)
    assert nearest_row(truth, truth, reserve, SCHEMA, rng) > 0.85


def test_a_small_reserve_leads_to_smaller_samples():
    guess, truth, reserve, rng = draw(0, reserve=40)
    result = specificity(guess, truth, reserve, SCHEMA, rng, samples=10)
    assert result.rows == 20
    assert specificity(truth, truth, reserve, SCHEMA, rng, samples=10).victims == 1


def test_equal_fresh_scores_leave_z_undefined():
    guess, truth, reserve, rng = draw(0)
    flat = reserve.take(np.zeros(100, dtype=int))
    assert specificity(guess, truth, flat, SCHEMA, rng, samples=5).z is None


def test_nearest_row_is_one_half_by_chance_and_follows_the_definition():
    shares = [nearest_row(g, t, r, SCHEMA, rng) for g, t, r, rng in map(draw, range(40))]
    assert abs(np.mean(shares) - 0.5) < 0.05
    guess, truth, _, rng = draw(1)
    assert nearest_row(guess, truth, truth, SCHEMA, rng) == 0.5


def test_missing_parts_are_refused():
    guess, truth, _, rng = draw(0)
    no_rows = truth.take(np.arange(0))
    with pytest.raises(DataError, match="2 reserve rows"):
        specificity(guess, truth, no_rows, SCHEMA, rng)
    with pytest.raises(DataError, match="needs guessed, true and reserve rows"):
        nearest_row(guess, truth, no_rows, SCHEMA, rng)
