"""Cuts of one table equal XGBoost's, value for value."""

import numpy as np
import pytest
import xgboost as xgb

from fedtrees.core.errors import DataError, UsageError
from fedtrees.trees.binning import Cuts
from fedtrees.trees.cut_points import xgboost_cuts


def columns(n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.stack(
        [
            rng.normal(size=n),
            np.round(rng.lognormal(size=n), 2),  # many ties
            np.round(rng.normal(size=n) * 60),
            np.zeros(n),
            rng.exponential(size=n),
        ],
        axis=1,
    ).astype(np.float32)
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def assert_equal_cuts(cuts, reference):
    np.testing.assert_array_equal(cuts.offsets, reference.offsets)
    np.testing.assert_array_equal(cuts.values, reference.values)
    np.testing.assert_array_equal(cuts.minimum, reference.minimum)


@pytest.mark.parametrize(
    ("rows", "max_bin"),
    [
        (1, 256),
        (7, 2),
        (34, 2),
        (50, 3),
        (250, 16),
        (500, 32),
        (1000, 64),
        (2000, 256),
        (4000, 256),
    ],
)
def test_cuts_equal_xgboosts(rows, max_bin):
    X = columns(rows, seed=rows)
    reference = Cuts.from_xgboost(*xgb.QuantileDMatrix(X, max_bin=max_bin).get_quantile_cut())
    assert_equal_cuts(xgboost_cuts(X, max_bin), reference)


def test_cuts_of_many_rows_with_few_values_equal_xgboosts():
    X = np.random.default_rng(1).integers(0, 2000, size=(20000, 2)).astype(np.float32)
    reference = Cuts.from_xgboost(*xgb.QuantileDMatrix(X).get_quantile_cut())
    assert_equal_cuts(xgboost_cuts(X), reference)


def test_cuts_of_many_rows_with_many_values_have_the_same_rank_error():
    values = np.random.default_rng(2).normal(size=(30000, 1)).astype(np.float32)
    ranks = [
        np.searchsorted(np.sort(values[:, 0]), cuts.values[:-1]) / 30000
        for cuts in (
            xgboost_cuts(values, 32),
            Cuts.from_xgboost(*xgb.QuantileDMatrix(values, max_bin=32).get_quantile_cut()),
        )
    ]
    our_error, reference_error = (np.abs(rank - np.arange(1, 32) / 32).max() for rank in ranks)
    assert our_error <= max(reference_error, 1 / 256)


def test_a_column_without_values_has_one_bin():
    X = columns(30)
    X[:, [0, 3]] = np.nan
    assert xgboost_cuts(X).n_bins[[0, 3]].tolist() == [1, 1]
    assert xgboost_cuts(X[:0]).n_bins.tolist() == [1] * 5


def test_tables_that_cannot_be_cut_are_refused():
    with pytest.raises(UsageError, match="max_bin=1"):
        xgboost_cuts(np.zeros((3, 1), np.float32), 1)
    with pytest.raises(DataError, match="infinite"):
        xgboost_cuts(np.full((3, 1), np.inf, np.float32))
