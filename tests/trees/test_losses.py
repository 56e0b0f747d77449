from __future__ import annotations

import json

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st

from fedtrees.core.errors import DataError, UsageError
from fedtrees.trees.boosted.histogram import from_fixed, to_fixed, weighted
from fedtrees.trees.boosted.losses import LOGISTIC, Softmax, logistic_gradients, sigmoid


@given(st.lists(st.integers(-(2**53), 2**53), max_size=20))
def test_fixed_point_round_trip_is_exact(units):
    units = np.array(units, dtype=np.int64)
    np.testing.assert_array_equal(to_fixed(from_fixed(units)), units)


@given(st.lists(st.floats(2**-7, 1, width=32), max_size=20))
def test_float32_numbers_from_2_to_minus_7_are_represented_exactly(values):
    values = np.array(values, dtype=np.float32)
    np.testing.assert_array_equal(from_fixed(to_fixed(values)), values)


@given(st.floats(-1, 1, width=32))
def test_smaller_values_are_off_by_half_a_unit_at_most(value):
    assert abs(from_fixed(to_fixed(np.array([value])))[0] - value) <= 2.0**-31


@pytest.mark.parametrize("value", [np.nan, np.inf, -(2.0**33)])
def test_values_that_fixed_point_cannot_represent_are_refused(value):
    with pytest.raises(DataError, match="fixed point"):
        to_fixed(np.array([0.0, value]))


def test_gradients_are_derivatives_of_the_log_loss():
    margin, step = np.linspace(-4, 4, 33), 1e-4
    for label in (0, 1):

        def loss(m, label=label):
            return np.logaddexp(0, m) - label * m

        gh = logistic_gradients(margin.astype(np.float32), np.full(33, label))
        slope = (loss(margin + step) - loss(margin - step)) / (2 * step)
        bend = (loss(margin + step) - 2 * loss(margin) + loss(margin - step)) / step**2
        np.testing.assert_allclose(gh[:, 0], slope, atol=1e-6)
        np.testing.assert_allclose(gh[:, 1], bend, atol=1e-6)


def test_gradients_survive_saturation():
    gh = logistic_gradients(np.array([-1e4, 1e4], dtype=np.float32), np.array([1, 0]))
    np.testing.assert_array_equal(gh[:, 0], [-1, 1])
    assert (gh[:, 1] > 0).all()


def test_the_sigmoid_equals_xgboosts_bit_for_bit():
    """A booster without splits returns the sigmoid of the base margin of each row."""
    margin = np.random.default_rng(0).normal(0, 6, 20_000).astype(np.float32)
    data = xgb.DMatrix(np.zeros((len(margin), 1)), label=np.arange(len(margin)) % 2)
    data.set_base_margin(margin)
    settings = {"objective": "binary:logistic", "eta": 0.0, "nthread": 1}
    reference = xgb.train(settings, data, 1).predict(data)
    np.testing.assert_array_equal(sigmoid(margin), reference)


def test_base_margin_inverts_the_sigmoid():
    for score in (0.001, 0.5, 0.9):
        assert sigmoid(LOGISTIC.base_margin(score))[0] == pytest.approx(score, rel=1e-6)
    with pytest.raises(UsageError, match="strictly between 0 and 1"):
        LOGISTIC.base_margin(1.0)


def test_a_weight_of_three_is_three_rows_to_the_last_unit():
    gradients = np.random.default_rng(0).normal(0, 1e-3, (1, 200, 2)).astype(np.float32)
    units = to_fixed(gradients, (30, 30))
    three = to_fixed(weighted(gradients, np.full(200, 3.0), (30, 30)), (30, 30))
    np.testing.assert_array_equal(three, 3 * units)


@pytest.mark.parametrize("counts", [(10, 20, 30), (1, 1, 4000)])
def test_the_start_of_classes_equals_xgboosts(counts):
    y = np.repeat(np.arange(3), counts)
    booster = xgb.train(
        {"objective": "multi:softprob", "num_class": 3}, xgb.DMatrix(np.zeros((len(y), 1)), y), 1
    )
    stored_score = json.loads(booster.save_config())["learner"]["learner_model_param"]["base_score"]
    start = Softmax(3).start(np.array([len(y), *counts], dtype=np.float64))
    np.testing.assert_allclose(start, np.array(json.loads(stored_score), np.float32), atol=1e-6)
