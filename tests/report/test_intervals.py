"""Means over seeds and their intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synthetic_run import Table

from fedtrees.core.results import measure
from fedtrees.report.statistics import Estimate, t_estimate


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_the_interval_is_that_of_students_t_distribution(values):
    estimate = t_estimate(values)
    assert estimate == t_estimate(reversed(values))
    assert estimate.n == len(values)
    scale = np.std(values, ddof=1) / math.sqrt(len(values))
    if scale > 1e-9:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), scale)
        assert (estimate.low, estimate.high) == pytest.approx(
            (low, high), rel=1e-9, abs=1e-9 * scale
        )


def test_few_or_undefined_values():
    assert math.isnan(t_estimate([0.5]).low)
    assert t_estimate([0.5, math.inf, math.nan]).n == 1
    assert not t_estimate([math.nan]).known
    assert t_estimate([1.0, 1.0]) == Estimate(1.0, 1.0, 1.0, 2)


def test_intervals_are_deterministic_and_cover_the_mean():
    values = np.random.default_rng(0).normal(size=(150, 30))
    estimates = [t_estimate(sample) for sample in values]
    assert estimates[0] == t_estimate(values[0])
    coverage = np.mean([estimate.low <= 0 <= estimate.high for estimate in estimates])
    assert 0.91 < coverage < 0.99


def test_estimates_with_missing_numbers_are_equal_and_have_one_hash():
    one_seed = t_estimate([0.5])
    equal = Estimate(0.5, float("nan"), float("nan"), 1)  # another NaN object
    assert one_seed == equal
    assert len({one_seed, equal}) == 1
    assert one_seed != Estimate(0.5, 0.4, 0.6, 1)
    assert Estimate() == t_estimate([])


def test_intervals_of_bounded_scores_end_at_their_bounds():
    unbounded, auc = t_estimate([0.99, 0.999]), t_estimate([0.99, 0.999], bounds=(0.0, 1.0))
    assert unbounded.high > 1
    assert (auc.mean, auc.low, auc.high) == (unbounded.mean, unbounded.low, 1.0)
    assert auc.half == pytest.approx(unbounded.half)
    assert measure("auc").bounds == measure("exact_rows").bounds == (0.0, 1.0)
    assert measure("rmse").bounds == (0.0, math.inf)
    assert measure("r2").bounds == (-math.inf, 1.0)
    assert measure("a measure of a plug-in").bounds == (-math.inf, math.inf)


def test_no_interval_of_an_auc_or_an_advantage_exceeds_one(tmp_path):
    table = Table(tmp_path)
    for seed, auc in enumerate((0.99, 1.0, 0.999)):
        table.train("none", seed, auc)
        table.attack("none", seed, "a", 2 * auc - 1, value=auc)
    (point,) = table.frontier().points
    assert point.utility.high == point.advantage.high == point.score.high == 1.0
