"""Means over seeds and their intervals."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.report.statistics import Estimate, estimate


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_the_interval_holds_the_mean_and_stays_within_the_values(values):
    found = estimate(values)
    slack = 1e-6
    assert min(values) - slack <= found.low <= found.mean <= found.high <= max(values) + slack
    assert found.n == len(values)


def test_few_or_undefined_values():
    assert math.isnan(estimate([0.5]).low)
    assert estimate([0.5, math.inf, math.nan]).n == 1
    assert not estimate([math.nan]).known
    assert estimate([1.0, 1.0]) == Estimate(1.0, 1.0, 1.0, 2)


def test_intervals_repeat_and_cover():
    values = np.random.default_rng(0).normal(size=(150, 30))
    found = [estimate(v) for v in values]
    assert found[0] == estimate(values[0])
    inside = np.mean([f.low <= 0 <= f.high for f in found])
    assert 0.87 < inside < 0.99
