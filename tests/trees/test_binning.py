from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.cut_points import quantile_cuts

FLOATS = st.floats(-1e6, 1e6, width=32) | st.integers(-3, 3).map(float) | st.just(np.nan)
TABLES = hnp.arrays(np.float32, st.tuples(st.integers(1, 60), st.integers(1, 4)), elements=FLOATS)


@given(TABLES, st.integers(2, 20))
def test_a_bin_contains_the_values_between_its_borders(X, max_bin):
    cuts = quantile_cuts(X, max_bin)
    bins = bin_rows(X, cuts)
    for feature in range(X.shape[1]):
        borders = np.concatenate([cuts.minimum[feature : feature + 1], cuts.of(feature)])
        for value, code in zip(X[:, feature], bins.codes[:, feature], strict=True):
            if np.isnan(value):
                assert code == bins.missing
            else:
                assert borders[code] <= value < borders[code + 1]


@given(TABLES, st.integers(2, 20))
def test_bins_equal_those_of_searchsorted(X, max_bin):
    cuts = quantile_cuts(X[::2], max_bin)  # The other rows may lie outside the cuts.
    bins = bin_rows(X, cuts)
    for feature in range(X.shape[1]):
        inner = np.searchsorted(cuts.of(feature), X[:, feature], side="right")
        code = np.where(
            np.isnan(X[:, feature]), bins.missing, np.minimum(inner, cuts.n_bins[feature] - 1)
        )
        np.testing.assert_array_equal(bins.codes[:, feature], code)


@pytest.mark.parametrize(
    ("n_bins", "with_missing", "kind", "missing"),
    [
        (255, True, np.uint8, 255),
        (256, False, np.uint8, 256),
        (256, True, np.uint16, 256),
        (300, False, np.uint16, 300),
        (3, True, np.uint8, 3),
    ],
)
def test_smallest_integers_that_fit(n_bins, with_missing, kind, missing):
    X = np.arange(1000, dtype=np.float32)[:, None]
    cuts = quantile_cuts(X, n_bins)
    if with_missing:
        X = np.vstack([X, [[np.nan]]])
    bins = bin_rows(X, cuts)
    assert bins.codes.dtype == kind
    assert bins.missing == missing
    assert len(np.unique(bins.codes)) == n_bins + with_missing


def test_values_outside_the_cuts_go_to_the_outermost_bins():
    cuts = quantile_cuts(np.array([[1.0], [2.0], [3.0]]))
    np.testing.assert_array_equal(bin_rows([[-1e9], [1e9]], cuts).codes[:, 0], [0, 2])


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39])
def test_infinite_values_are_refused(value):
    cuts = quantile_cuts(np.zeros((1, 2)))
    with pytest.raises(DataError, match="infinite"):
        bin_rows(np.array([[np.nan, value]]), cuts)


def test_xgboost_layout_is_read():
    cuts = Cuts.from_xgboost(
        np.array([0, 3, 5], np.uint64), np.array([-9, 1, 2, -5, 4], np.float32)
    )
    np.testing.assert_array_equal(cuts.minimum, [-9, -5])
    np.testing.assert_array_equal(cuts.of(0), [1, 2])
    np.testing.assert_array_equal(cuts.of(1), [4])
    np.testing.assert_array_equal(cuts.thresholds([0, 0, 1], [-1, 1, 0]), [-9, 2, 4])


def test_columns_of_vertical_parties_are_selected():
    cuts = quantile_cuts(np.arange(24.0).reshape(8, 3))
    part = cuts.select([2, 0])
    np.testing.assert_array_equal(part.of(0), cuts.of(2))
    np.testing.assert_array_equal(part.of(1), cuts.of(0))
    np.testing.assert_array_equal(part.minimum, cuts.minimum[[2, 0]])
    np.testing.assert_array_equal(Cuts.hidden(cuts.n_bins).offsets, cuts.offsets)


@pytest.mark.parametrize(
    ("values", "offsets", "minimum"),
    [
        ([1.0, 1.0], [0, 2], [0.0]),
        ([2.0, 1.0], [0, 2], [0.0]),
        ([1.0, np.nan], [0, 2], [0.0]),
        ([1.0], [0, 0, 1], [0.0, 0.0]),
        ([1.0], [0, 2], [0.0]),
        ([1.0], [0, 1], [0.0, 0.0]),
    ],
    ids=["equal", "falling", "nan", "no bin", "span", "minimum"],
)
def test_cuts_that_are_none_are_refused(values, offsets, minimum):
    with pytest.raises(DataError):
        Cuts(np.array(values), np.array(offsets), np.array(minimum))


def test_cuts_fall_freely_between_features():
    assert Cuts.join([[5.0, 6.0], [1.0]], [0.0, 0.0]).n_bins.tolist() == [2, 1]
