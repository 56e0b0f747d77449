from __future__ import annotations

import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeBuilder


@pytest.fixture
def forest():
    """x0 < 1.5 (missing left), then on the right x1 < -1 (missing right); plus a constant tree."""
    builder = TreeBuilder()
    builder.expand([0], [0], [1.5], [True])
    builder.expand([2], [1], [-1.0], [False])
    builder.set_values([1, 3, 4], [0.25, -0.5, 1.0])
    constant = TreeBuilder()
    constant.set_values([0], [2.0])
    return Forest((builder.build(), constant.build()), np.float32(0.5))


def test_rows_follow_thresholds_and_directions(forest):
    X = [[1.4, 0], [1.5, -1.1], [1.5, -1.0], [np.nan, -5], [9, np.nan]]
    np.testing.assert_array_equal(forest.apply(X), [[1, 0], [3, 0], [4, 0], [1, 0], [4, 0]])
    np.testing.assert_array_equal(forest.margin(X), [2.75, 2.0, 3.5, 2.75, 3.5])
    np.testing.assert_allclose(
        forest.predict(X), 1 / (1 + np.exp(-forest.margin(X).astype(float))), rtol=1e-6
    )
    assert forest.predict(X).dtype == np.float64


def test_comparison_is_in_float32(forest):
    assert forest.apply([[1.5 - 1e-12, 0]])[0, 0] == 4  # rounds to 1.5, which is not below


def test_prefix_of_a_forest(forest):
    np.testing.assert_array_equal(forest.first(1).margin([[0, 0]]), [0.75])
    np.testing.assert_array_equal(forest.first(0).margin([[0, 0], [1, 1]]), [0.5, 0.5])


def test_no_rows(forest):
    assert forest.apply(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("X", [np.zeros((3, 1)), np.zeros(3)])
def test_tables_without_the_features_are_refused(forest, X):
    with pytest.raises(DataError, match="at least 2 features"):
        forest.margin(X)
