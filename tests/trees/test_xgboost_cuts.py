"""Cuts of one table, value for value those of XGBoost."""

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


def assert_equal_cuts(ours, theirs):
    np.testing.assert_array_equal(ours.offsets, theirs.offsets)
    np.testing.assert_array_equal(ours.values, theirs.values)
    np.testing.assert_array_equal(ours.minimum, theirs.minimum)


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
def test_they_are_xgboosts(rows, max_bin):
    X = columns(rows, seed=rows)
    theirs = Cuts.from_xgboost(*xgb.QuantileDMatrix(X, max_bin=max_bin).get_quantile_cut())
    assert_equal_cuts(xgboost_cuts(X, max_bin), theirs)


def test_with_many_rows_of_few_values_they_still_are():
    X = np.random.default_rng(1).integers(0, 2000, size=(20000, 2)).astype(np.float32)
    theirs = Cuts.from_xgboost(*xgb.QuantileDMatrix(X).get_quantile_cut())
    assert_equal_cuts(xgboost_cuts(X), theirs)


def test_with_many_rows_of_many_values_ranks_are_met_as_well():
    x = np.random.default_rng(2).normal(size=(30000, 1)).astype(np.float32)
    ranks = [
        np.searchsorted(np.sort(x[:, 0]), cuts.values[:-1]) / 30000
        for cuts in (
            xgboost_cuts(x, 32),
            Cuts.from_xgboost(*xgb.QuantileDMatrix(x, max_bin=32).get_quantile_cut()),
        )
    ]
    ours, theirs = (np.abs(r - np.arange(1, 32) / 32).max() for r in ranks)
    assert ours <= max(theirs, 1 / 256)


def test_a_column_without_values_has_one_bin():
    X = columns(30)
    X[:, [0, 3]] = np.nan
    assert xgboost_cuts(X).n_bins[[0, 3]].tolist() == [1, 1]
    assert xgboost_cuts(X[:0]).n_bins.tolist() == [1] * 5


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(UsageError, match="max_bin=1"):
        xgboost_cuts(np.zeros((3, 1), np.float32), 1)
    with pytest.raises(DataError, match="infinite"):
        xgboost_cuts(np.full((3, 1), np.inf, np.float32))
