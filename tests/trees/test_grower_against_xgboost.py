"""With the same cuts and base score, trees equal XGBoost's, however the rows are distributed."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost_reference as reference
from several_owners import grow_forest_over

from fedtrees.core.errors import DataError
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import OwnerRows, grow_forest
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

SHALLOW = TreeParams(trees=50, max_depth=4)


def assert_same_as_xgboost(X, y, params):
    reference_model = reference.train(X, y, params)
    forest = grow_forest(X, y, reference_model.cuts, params)
    assert reference.differences(forest, reference_model) == {}
    # Hundreds of float32 additions of leaf values that may differ in the last digit.
    np.testing.assert_allclose(forest.margin(X), reference_model.margin(X), atol=2e-5, rtol=0)
    assert len(forest.trees[0].leaves) > 1
    return forest


def test_breast_cancer(cancer):
    assert_same_as_xgboost(*cancer, SHALLOW)


def test_missing_values(cancer_missing):
    forest = assert_same_as_xgboost(*cancer_missing, SHALLOW)
    directions = np.concatenate([t.default_left[t.feature >= 0] for t in forest.trees])
    assert 0 < directions.mean() < 1  # both directions were learned


def test_large_table(large):
    assert_same_as_xgboost(*large, TreeParams(trees=6, max_depth=6))


def test_integer_features_with_ties(ties):
    assert_same_as_xgboost(*ties, TreeParams(trees=30, max_depth=6))


def test_duplicated_columns_use_the_first(cancer):
    X, y = cancer
    forest = assert_same_as_xgboost(np.hstack([X, X]), y, SHALLOW)
    assert max(t.feature.max() for t in forest.trees) < X.shape[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 0.5},
        {"gamma": 5.0},
        {"min_child_weight": 0.0},
        {"min_child_weight": 20.0},
        {"reg_lambda": 0.0},
        {"learning_rate": 0.07},
        {"max_bin": 7},
        {"max_depth": 9},
        {"base_score": 0.25},
    ],
    ids=str,
)
def test_hyperparameters(cancer_missing, change):
    X, y = cancer_missing
    assert_same_as_xgboost(X, y, TreeParams(**{"trees": 30, "max_depth": 4, **change}))


def test_columns_without_information(cancer_missing):
    X, y = cancer_missing
    X = X[:, :6].copy()
    X[:, 1] = np.nan
    X[:, 3] = 7.0
    X[::2, 4] = np.nan
    X[1::2, 4] = 2.0  # constant or missing: only the missingness can be split on
    assert_same_as_xgboost(X, y, TreeParams(trees=10, max_depth=4))


def test_a_split_may_separate_only_missing_values():
    rng = np.random.default_rng(4)
    y = (rng.random(2000) < 0.5).astype(np.int64)
    X = np.where(rng.random(2000) < np.where(y == 1, 0.8, 0.1), np.nan, 3.0)[:, None]
    forest = assert_same_as_xgboost(X, y, TreeParams(trees=3, max_depth=2))
    assert forest.trees[0].feature[0] == 0


def test_known_difference_without_any_regularisation(cancer_missing):
    """With lambda 0 and min_child_weight 0 the trees are the same, some leaf values are not.

    A leaf of confident rows may hold a hessian sum of 1e-5: 10,000 units of 2^-30, so that its
    value is known to 4 or 5 digits. Pinned here: such leaves exist, and are off by at most 5e-5 of
    themselves.
    """
    X, y = cancer_missing
    params = TreeParams(trees=50, max_depth=4, reg_lambda=0.0, min_child_weight=0.0)
    reference_model = reference.train(X, y, params)
    forest = grow_forest(X, y, reference_model.cuts, params)
    assert reference.differences(forest, reference_model, rtol=5e-5) == {}
    assert reference.differences(forest, reference_model)
    np.testing.assert_allclose(forest.margin(X), reference_model.margin(X), atol=5e-5, rtol=0)


@pytest.mark.parametrize("reg_lambda", [0.0, 0.3, 1.0])
def test_gains_are_rounded_as_xgboost_rounds_them(cancer_missing, reg_lambda):
    """Most gains agree bit for bit; with a division in float64, only about half of them would."""
    X, y = cancer_missing
    params = TreeParams(trees=30, max_depth=4, reg_lambda=reg_lambda)
    reference_model = reference.train(X, y, params)
    forest = grow_forest(X, y, reference_model.cuts, params)
    our_gains = np.concatenate([tree.gain for tree in forest.trees])
    reference_gains = np.concatenate(
        [np.float32(tree["loss_changes"]) for tree in reference_model.trees]
    )
    inner = np.concatenate([tree.feature >= 0 for tree in forest.trees])
    assert (our_gains[inner] == reference_gains[inner]).mean() > 0.85


@pytest.mark.parametrize("clients", [1, 2, 5, 20])
def test_rows_over_clients_change_no_bit(cancer_missing, clients):
    X, y = cancer_missing
    cuts, params = quantile_cuts(X), TreeParams(trees=15, max_depth=5)
    central = grow_forest(X, y, cuts, params)
    owner = np.random.default_rng(5).integers(0, clients, len(X))
    parts = [OwnerRows(bin_rows(X[owner == k], cuts), y[owner == k]) for k in range(clients)]
    federated = grow_forest_over(parts, cuts, params)
    for a, b in zip(central.trees, federated.trees, strict=True):
        for name in ("feature", "threshold", "left", "default_left", "value", "g", "h", "gain"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def test_a_client_without_rows_changes_no_tree(ties):
    X, y = ties
    cuts, params = quantile_cuts(X), TreeParams(trees=3)
    empty_client = OwnerRows(bin_rows(X[:0], cuts), y[:0])
    central = grow_forest(X, y, cuts, params)
    federated = grow_forest_over([empty_client, OwnerRows(bin_rows(X, cuts), y)], cuts, params)
    np.testing.assert_array_equal(central.margin(X), federated.margin(X))


def test_merged_cuts_predict_as_well_as_xgboost(large):
    X, y = large
    params = TreeParams(trees=10, max_depth=6, max_bin=64)
    n_training = len(X) // 2
    reference_model = reference.train(X[:n_training], y[:n_training], params)
    our_model = grow_forest(
        X[:n_training], y[:n_training], quantile_cuts(X[:n_training], 64), params
    )
    losses = [
        np.mean(np.logaddexp(0, np.where(y[n_training:] == 1, -margin, margin).astype(float)))
        for margin in (reference_model.margin(X[n_training:]), our_model.margin(X[n_training:]))
    ]
    # The standard error of the mean log loss on 25,000 rows is about 0.003.
    assert abs(losses[0] - losses[1]) < 0.003


def test_training_margins_are_the_forests_margins(cancer_missing):
    """Every tree fits the gradients of the forest before it: its root sums prove which."""
    X, y = cancer_missing
    forest = grow_forest(X, y, quantile_cuts(X), TreeParams(trees=8))
    for k in range(8):
        p = forest.first(k).predict(X)
        assert forest.trees[k].g[0] == pytest.approx((p - y).sum(), abs=1e-4)
        assert forest.trees[k].h[0] == pytest.approx((p * (1 - p)).sum(), abs=1e-4)


def test_one_row_gives_a_single_leaf():
    X, params = np.array([[1.0, np.nan]]), TreeParams(trees=2, base_score=0.5, min_child_weight=0)
    forest = grow_forest(X, np.array([1]), quantile_cuts(X), params)
    assert [len(t) for t in forest.trees] == [1, 1]
    assert forest.trees[0].value[0] == np.float32(np.float32(0.5 / 1.25) * np.float32(0.3))


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((0, 1)), np.zeros(0, int), "no rows"),
        (np.zeros((2, 1)), np.array([0, 2]), "labels 0 and 1"),
        (np.zeros((2, 1)), np.array([0, 1, 1]), "labels of shape"),
        (np.zeros((2, 1)), np.array([1, 1]), "all training labels are 1"),
        (np.array([[0.0], [np.inf]]), np.array([0, 1]), "infinite"),
        (np.zeros((2, 3)), np.array([0, 1]), "shape"),
    ],
    ids=["empty", "label 2", "lengths", "one class", "infinite", "width"],
)
def test_unusable_tables_are_explained(X, y, message):
    with pytest.raises(DataError, match=message):
        grow_forest(X, y, quantile_cuts(np.array([[0.0], [1.0]])), TreeParams(trees=1))
