"""Multiclass, regression, weights, samples, L1 and best-first growth give XGBoost's trees."""

from __future__ import annotations

import numpy as np
import pytest
import xgboost as xgb
import xgboost_reference as reference
from several_owners import grow_forest_over
from sklearn.datasets import load_diabetes, load_digits, load_wine

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import OwnerRows, grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax, objective_of
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

CLIENTS = pytest.mark.parametrize("clients", [1, 5])


def missing(X, share=0.1):
    X = np.asarray(X, dtype=np.float32).copy()
    X[np.random.default_rng(1).random(X.shape) < share] = np.nan
    return X


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return X.astype(np.float32), y


def spread(X, y, cuts, clients, weight=None):
    owner = np.random.default_rng(5).integers(0, clients, len(X))
    rows = [np.flatnonzero(owner == k) for k in range(clients)]
    return [
        OwnerRows(bin_rows(X[r], cuts), y[r], None if weight is None else weight[r]) for r in rows
    ]


def assert_same(X, y, params, objective, *, clients=1, weight=None, atol=2e-5):
    reference_model = reference.train(X, y, params, objective, weight)
    owners = spread(X, y, reference_model.cuts, clients, weight)
    forest = grow_forest_over(owners, reference_model.cuts, params, objective)
    assert reference.differences(forest, reference_model) == {}
    np.testing.assert_allclose(forest.margin(X), reference_model.margin(X), atol=atol, rtol=1e-6)
    np.testing.assert_allclose(
        forest.predict(X), reference_model.booster.predict(xgb.DMatrix(X)), atol=1e-5, rtol=1e-5
    )
    assert max(len(tree.leaves) for tree in forest.trees) > 1
    return forest


@CLIENTS
def test_multiclass(wine, digits, clients):
    forest = assert_same(*wine, TreeParams(trees=20, max_depth=4), Softmax(3), clients=clients)
    assert len(forest.trees) == 60
    X, y = digits
    params = TreeParams(trees=3, max_depth=5)
    assert_same(missing(X), y, params, Softmax(10), clients=clients)


def test_two_classes_may_be_multiclass(cancer):
    assert_same(*cancer, TreeParams(trees=5, max_depth=3), Softmax(2))


@CLIENTS
def test_regression(diabetes, clients):
    X, y = diabetes
    params = TreeParams(trees=40, max_depth=5)
    assert_same(X, y, params, SQUARED_ERROR, clients=clients, atol=2e-3)
    assert_same(missing(X), y, params, SQUARED_ERROR, clients=clients, atol=2e-3)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_regression_targets_of_any_size(diabetes, scale):
    """The units of the sums follow the size of the targets, without access to single targets."""
    X, y = diabetes
    params = TreeParams(trees=10, max_depth=4)
    reference_model = reference.train(X, (y * scale).astype(np.float32), params, SQUARED_ERROR)
    forest = grow_forest(X, y * scale, reference_model.cuts, params, SQUARED_ERROR)
    np.testing.assert_allclose(forest.margin(X), reference_model.margin(X), rtol=2e-6)


@pytest.mark.long
@CLIENTS
@pytest.mark.parametrize("mean", [1.0, 1e-5])
def test_weights(cancer_missing, wine, diabetes, clients, mean):
    rng = np.random.default_rng(8)
    for (X, y), objective in (
        (cancer_missing, LOGISTIC),
        (wine, Softmax(3)),
        (diabetes, SQUARED_ERROR),
    ):
        weight = rng.uniform(0.1, 2.0, len(y)).astype(np.float32)
        weight[rng.random(len(y)) < 0.1] = 0
        weight *= np.float32(mean)
        params = TreeParams(
            trees=12, max_depth=4, min_child_weight=mean, reg_lambda=mean, learning_rate=0.2
        )
        assert_same(X, y, params, objective, clients=clients, weight=weight, atol=2e-3)


def test_integer_weights_count_rows_repeatedly(cancer):
    X, y = cancer
    times = np.random.default_rng(2).integers(0, 4, len(y))
    params, cuts = TreeParams(trees=10, max_depth=4), quantile_cuts(X)
    weighted = grow_forest(X, y, cuts, params, weight=times)
    repeated = grow_forest(np.repeat(X, times, axis=0), np.repeat(y, times), cuts, params)
    np.testing.assert_array_equal(weighted.margin(X), repeated.margin(X))


@pytest.mark.long
@CLIENTS
@pytest.mark.parametrize(
    "change",
    [
        {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 30},
        {"grow_policy": "lossguide", "max_leaves": 11, "max_depth": 4},
        {"grow_policy": "lossguide", "max_depth": 3},
        {"max_leaves": 6},
        {"reg_alpha": 0.7},
        {"reg_alpha": 5.0, "reg_lambda": 0.0},
        {"reg_alpha": 0.3, "gamma": 0.4, "grow_policy": "lossguide", "max_leaves": 8},
    ],
    ids=str,
)
def test_growth_and_penalties(cancer_missing, digits, change, clients):
    params = TreeParams(**{"trees": 15, "max_depth": 5, **change})
    forest = assert_same(*cancer_missing, params, LOGISTIC, clients=clients)
    if params.max_leaves:
        assert max(len(tree.leaves) for tree in forest.trees) == params.max_leaves
    X, y = digits
    two_trees = TreeParams(**{"trees": 2, "max_depth": 5, **change})
    assert_same(X, y, two_trees, Softmax(10), clients=clients)


def resume(booster, X, y, weight, settings, cuts_of):
    """Grow one more XGBoost tree with these weights, on the same cuts."""
    data = xgb.QuantileDMatrix(X, y, weight=weight, ref=cuts_of, max_bin=256, nthread=1)
    return xgb.train(settings, data, 1, xgb_model=booster)


def test_row_samples_are_xgboost_trees_of_these_rows(cancer_missing):
    """Rows that are not sampled weigh nothing: XGBoost grows trees with the sampled weights."""
    X, y = cancer_missing
    params = TreeParams(trees=6, max_depth=4, subsample=0.6, base_score=0.5)
    matrix = xgb.QuantileDMatrix(X, y, max_bin=256, nthread=1)
    cuts = reference.Cuts.from_xgboost(*matrix.get_quantile_cut())
    streams = Streams(3)
    forest = grow_forest(X, y, cuts, params, streams=streams)
    booster = None
    for round in range(6):
        is_sampled = streams.child("client-0").rng("subsample", round).random(len(y)) < 0.6
        settings = reference.settings(params)
        booster = resume(booster, X, y, is_sampled.astype(np.float32), settings, matrix)
    assert reference.differences(forest, reference.Reference(booster, cuts)) == {}


@pytest.mark.parametrize("share", ["colsample_bytree", "colsample_bylevel", "colsample_bynode"])
def test_column_samples_are_xgboost_trees_of_these_columns(cancer, share):
    """Each split is XGBoost's best among the columns that were drawn for it."""
    X, y = cancer
    cuts = quantile_cuts(X)
    params = TreeParams(trees=8, max_depth=3, **{share: 0.3})
    forest = grow_forest(X, y, cuts, params, streams=Streams(1))
    used_columns = [set(tree.feature[tree.feature >= 0].tolist()) for tree in forest.trees]
    if share == "colsample_bytree":
        assert all(len(columns_of_tree) <= 9 for columns_of_tree in used_columns)
        columns = sorted(used_columns[0])
        selected_model = grow_forest(
            X[:, columns], y, cuts.select(columns), TreeParams(trees=1, max_depth=3)
        )
        np.testing.assert_array_equal(
            selected_model.margin(X[:, columns]), forest.first(1).margin(X)
        )
    assert len(set.union(*used_columns)) > 9
    repeated = grow_forest(X, y, cuts, params, streams=Streams(1))
    np.testing.assert_array_equal(forest.margin(X), repeated.margin(X))
    other_seed = grow_forest(X, y, cuts, params, streams=Streams(2))
    assert (forest.margin(X) != other_seed.margin(X)).any()


def test_samples_do_not_depend_on_the_distribution_of_rows(cancer):
    """The coordinator draws columns, and the owners sample rows."""
    X, y = cancer
    cuts, params = quantile_cuts(X), TreeParams(trees=6, max_depth=4, colsample_bynode=0.4)
    central = grow_forest(X, y, cuts, params)
    federated = grow_forest_over(spread(X, y, cuts, 5), cuts, params)
    np.testing.assert_array_equal(central.margin(X), federated.margin(X))


@pytest.mark.parametrize(
    ("objective", "y", "error_message"),
    [
        (LOGISTIC, [0, 2, 1], "labels 0 and 1; got 0, 1, 2"),
        (LOGISTIC, ["a", "b", "a"], "labels 0 and 1; got a, b"),
        (Softmax(3), [0, 1, 3], "labels 0 to 2"),
        (Softmax(3), [0, 1, 0.5], "labels 0 to 2"),
        (Softmax(3), [0, 1, 1], r"no training row has class \[2\]"),
        (SQUARED_ERROR, [0, np.nan, 1], "finite targets"),
        (SQUARED_ERROR, [0, 1e39, 1], "finite targets"),
    ],
)
def test_invalid_labels_are_refused(objective, y, error_message):
    X = np.arange(3.0)[:, None]
    with pytest.raises(DataError, match=error_message):
        grow_forest(X, np.array(y), quantile_cuts(X), TreeParams(trees=1), objective)


@pytest.mark.parametrize(
    ("weight", "error_message"),
    [([1, -1, 1], "sample weight -1.0 of row 1"), ([1, np.nan, 1], "nan"), ([1, 1], "shape")],
)
def test_invalid_weights_are_refused(weight, error_message):
    X = np.arange(3.0)[:, None]
    with pytest.raises(DataError, match=error_message):
        grow_forest(
            X, np.array([0, 1, 0]), quantile_cuts(X), TreeParams(trees=1), weight=np.array(weight)
        )


def test_the_objective_follows_the_target():
    assert objective_of(None, ()) is SQUARED_ERROR
    assert objective_of(None, ("a", "b")) is LOGISTIC
    assert objective_of(None, "abc") == Softmax(3)
    assert objective_of("multi:softprob", "ab") == Softmax(2)
    with pytest.raises(UsageError, match="did you mean 'multi:softprob'"):
        objective_of("multi:softprop", "abc")
    with pytest.raises(UsageError, match="needs two classes, not 3"):
        objective_of("binary:logistic", "abc")
    with pytest.raises(UsageError, match="the target is a number"):
        objective_of("binary:logistic", ())
