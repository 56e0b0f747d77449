"""Categorical features: the trees equal XGBoost's, including sets of categories."""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb
import xgboost_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from several_owners import grow_forest_over, rows_of

from fedtrees.core.errors import DataError, UsageError
from fedtrees.data.catalogue import load
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import OwnerRows, grow_forest
from fedtrees.trees.boosted.histogram import to_fixed
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.boosted.splitting import SplitFinder
from fedtrees.trees.partition import Decisions, RowPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data_dir import data_dir

CLIENTS = pytest.mark.parametrize("clients", [1, 5])
SIZES = {
    1: 3,
    2: 5,
    5: 12,
    6: 100,
}  # columns by their numbers of categories; the others are numbers
TYPES = ["c" if f in SIZES else "q" for f in range(7)]
IS_CATEGORY = np.array(TYPES) == "c"


def table(n, seed=0, missing=0.1):
    """Mixed columns, rarer categories the higher their code, and a signal in all of them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, len(TYPES)))
    signal = X[:, 0] + 0.5 * X[:, 3]
    for f, size in SIZES.items():
        X[:, f] = np.minimum(rng.geometric(min(0.6, 3 / size), n) - 1, size - 1)
        signal += rng.normal(size=size)[X[:, f].astype(int)]
    X[rng.random(X.shape) < missing] = np.nan
    return X.astype(np.float32), signal, rng


def target(objective, signal, rng):
    if objective is LOGISTIC:
        return (rng.random(len(signal)) < 1 / (1 + np.exp(-signal))).astype(int)
    noisy = signal + rng.normal(size=len(signal))
    return noisy.astype(np.float32) if objective is SQUARED_ERROR else np.digitize(noisy, [-1, 1])


def matrix(X, types=TYPES):
    return xgb.DMatrix(X, feature_types=list(types), enable_categorical=True)


def train(X, y, params, objective=LOGISTIC, types=TYPES, weight=None):
    data = xgb.QuantileDMatrix(
        X,
        y,
        weight=weight,
        feature_types=list(types),
        enable_categorical=True,
        max_bin=params.max_bin,
        nthread=1,
    )
    chosen = reference.settings(params, objective) | {
        "max_cat_to_onehot": params.max_cat_to_onehot,
        "max_cat_threshold": params.max_cat_threshold,
    }
    cuts = Cuts.from_xgboost(*data.get_quantile_cut(), np.array(list(types)) == "c")
    return reference.Reference(xgb.train(chosen, data, params.trees), cuts)


def difference(tree, reference, rtol=2e-6, atol=2e-7):
    """Return the first difference between two trees that may split by categories, or None."""
    left = np.array(reference["left_children"])
    if not np.array_equal(left, tree.left):
        return f"shape: {left} and {tree.left}"
    inner, by_category = left >= 0, np.array(reference["split_type"], dtype=bool)
    conditions = np.array(reference["split_conditions"], dtype=np.float32)
    default_left = np.array(reference["default_left"], dtype=bool)
    for name, actual, expected, is_compared in (
        ("feature", tree.feature, np.array(reference["split_indices"]), inner),
        ("kind", np.isnan(tree.threshold), by_category, inner),
        ("threshold", tree.threshold, conditions, inner & ~by_category),
        ("default_left", tree.default_left, default_left, inner),
    ):
        if not np.array_equal(actual[is_compared], expected[is_compared]):
            return f"{name}: {expected[is_compared]} and {actual[is_compared]}"
    for position, node in enumerate(reference["categories_nodes"]):
        begin, size = (
            reference["categories_segments"][position],
            reference["categories_sizes"][position],
        )
        expected = reference["categories"][begin : begin + size]
        actual = np.flatnonzero(tree.categories[node]).tolist()
        if actual != expected:
            return f"categories of node {node}: {expected} and {actual}"
    if not np.allclose(tree.value[~inner], conditions[~inner], rtol=rtol, atol=atol):
        return f"leaf values: {conditions[~inner]} and {tree.value[~inner]}"
    return None


def differences(forest, reference_model, atol=2e-7):
    pairs = enumerate(zip(forest.trees, reference_model.trees, strict=True))
    texts = {number: difference(own_tree, tree, atol=atol) for number, (own_tree, tree) in pairs}
    return {number: text for number, text in texts.items() if text}


def assert_same(X, y, params, objective=LOGISTIC, *, clients=1, types=TYPES, atol=2e-7):
    reference_model = train(X, y, params, objective, types)
    owner_of_row = np.random.default_rng(5).integers(0, clients, len(X))
    rows = [np.flatnonzero(owner_of_row == number) for number in range(clients)]
    owners = [
        OwnerRows(bin_rows(X[owner_rows], reference_model.cuts), y[owner_rows])
        for owner_rows in rows
    ]
    forest = grow_forest_over(owners, reference_model.cuts, params, objective)
    assert differences(forest, reference_model, atol) == {}
    margins = reference_model.booster.predict(matrix(X, types), output_margin=True)
    np.testing.assert_allclose(forest.margin(X), margins, atol=1e-4, rtol=1e-6)
    return forest, reference_model


@pytest.mark.long
@CLIENTS
@pytest.mark.parametrize("missing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("objective", [LOGISTIC, SQUARED_ERROR], ids=["binary", "regression"])
def test_mixed_columns(objective, missing, clients):
    X, signal, rng = table(4000, missing=missing)
    y = target(objective, signal, rng)
    forest, _ = assert_same(X, y, TreeParams(trees=20, max_depth=5), objective, clients=clients)
    used = np.concatenate([t.feature[np.isnan(t.threshold)] for t in forest.trees])
    assert set(used.tolist()) == set(SIZES)  # one-hot and partitions, many categories and few
    assert any((~np.isnan(t.threshold) & (t.feature >= 0)).any() for t in forest.trees)


@pytest.mark.long
def test_adult():
    """Adult has 48,842 rows, 8 categorical columns of 2 to 41 categories, and missing values."""
    data = load("adult", data_dir())
    types = np.where(data.schema.categorical, "c", "q")
    params = TreeParams(trees=20, max_depth=6)
    X, y = data.table.X, data.table.y
    forest, reference_model = assert_same(X, y, params, clients=5, types=types)
    declared = [len(feature.categories) for feature in data.schema.features]
    assert reference_model.cuts.n_bins[types == "c"].tolist() == [
        n_categories for n_categories in declared if n_categories
    ]
    assert any(tree.categories is not None for tree in forest.trees)


@CLIENTS
def test_multiclass(clients):
    """Leaves may differ by 5e-6: softmax gradients differ by float32 rounding, numbers or not."""
    X, signal, rng = table(3000)
    y = target(Softmax(3), signal, rng)
    assert_same(X, y, TreeParams(trees=8, max_depth=4), Softmax(3), clients=clients, atol=5e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"max_cat_to_onehot": 2},
        {"max_cat_to_onehot": 13},
        {"max_cat_to_onehot": 1000},
        {"max_cat_threshold": 5},
        {"max_cat_threshold": 2},
        {"max_cat_threshold": 1000},
        {"min_child_weight": 0.0},
        {"min_child_weight": 20.0},
        {"reg_alpha": 0.5, "gamma": 1.0},
        {"grow_policy": "lossguide", "max_leaves": 12},
    ],
    ids=str,
)
def test_parameters(change):
    X, signal, rng = table(2000, seed=3)
    params = TreeParams(**{"trees": 10, "max_depth": 5, **change})
    assert_same(X, target(LOGISTIC, signal, rng), params)


@pytest.mark.parametrize("types", ["qc", "cq", "cc"])
def test_equal_gains_go_to_the_first_column(types):
    """For two equal columns, the first is chosen; a set of one of two categories is a threshold."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, 300)
    X = np.stack([codes, codes], axis=1).astype(np.float32)
    y = (rng.random(300) < 0.2 + 0.5 * codes).astype(int)
    for one_hot_limit in (2, 4):
        params = TreeParams(trees=3, max_depth=2, max_cat_to_onehot=one_hot_limit)
        forest, _ = assert_same(X, y, params, types=types)
        assert forest.trees[0].feature[0] == 0


@pytest.mark.parametrize("value", [7, 11, 12, 99, 100, 1000, 2.7, -1, -0.5, 2.0**24, 1e20])
def test_unseen_values_follow_xgboost(value):
    """Unless its integer part is a code in the set, an unseen value goes left."""
    X, signal, rng = table(3000)
    X[X[:, 5] == 7, 5] = 6  # a code that no row has
    y = target(LOGISTIC, signal, rng)
    forest, reference_model = assert_same(X, y, TreeParams(trees=10, max_depth=5))
    X[:, IS_CATEGORY] = value
    margins = reference_model.booster.predict(matrix(X), output_margin=True)
    np.testing.assert_allclose(forest.margin(X), margins, atol=1e-5)


def test_declared_categories_that_no_row_has():
    """XGBoost counts categories up to the largest code. An extra row of weight 0 makes it agree."""
    X, signal, rng = table(2000)
    y = target(LOGISTIC, signal, rng)
    declared = np.array([0, 3, 8, 0, 0, 20, 130])
    params = TreeParams(trees=10, max_depth=5)
    largest = np.where(declared > 0, declared - 1, np.nan).astype(np.float32)
    weight = np.append(np.ones(len(X)), 0)
    with_extra_row = train(np.vstack([X, largest]), np.append(y, 0), params, weight=weight)
    assert with_extra_row.cuts.n_bins[IS_CATEGORY].tolist() == declared[IS_CATEGORY].tolist()
    assert differences(grow_forest(X, y, with_extra_row.cuts, params), with_extra_row) == {}
    without_extra_row = train(X, y, params)
    forest = grow_forest(X, y, without_extra_row.cuts.with_categories(declared), params)
    assert 0 in differences(forest, without_extra_row)


def test_rows_move_to_the_leaves_that_the_tree_predicts():
    """The hessian sums of the leaves, computed from the moved rows, equal the predicted counts."""
    X, signal, rng = table(2000)
    y = target(LOGISTIC, signal, rng)
    cuts = train(X, y, TreeParams(trees=1)).cuts
    params = TreeParams(trees=1, max_depth=6, base_score=0.5)
    forest = grow_forest(X, y, cuts, params)
    tree, leaf = forest.trees[0], forest.apply(X)[:, 0]
    assert len(tree.leaves) > 20
    rows_per_leaf = np.bincount(leaf, minlength=len(tree))
    np.testing.assert_array_equal(tree.h[tree.leaves], 0.25 * rows_per_leaf[tree.leaves])


gradients = st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 20)), min_size=4, max_size=7)


@pytest.mark.long
@given(gradients)
@settings(max_examples=200, deadline=None)
def test_no_set_of_categories_gains_more(pairs):
    """Fisher's theorem: without penalties, sorted prefixes contain the best of all partitions."""
    sums = np.array(pairs, dtype=float)
    n_categories = len(sums)
    cuts = Cuts.join([np.arange(1, n_categories + 1)], [0], np.array([True]))
    params = TreeParams(reg_lambda=0.0, min_child_weight=0.0)
    hist = to_fixed(sums)[None]
    splits = SplitFinder(cuts, params).best(hist, hist.sum(axis=1))

    def gain(part):
        inside = np.zeros(n_categories, dtype=bool)
        inside[list(part)] = True
        sides = sums[inside].sum(axis=0), sums[~inside].sum(axis=0), sums.sum(axis=0)
        left, right, parent = (g * g / h for g, h in sides)
        return left + right - parent

    best = max(
        gain(part)
        for size in range(1, n_categories)
        for part in combinations(range(n_categories), size)
    )
    if splits.feature[0] < 0:
        assert best < 1e-3  # of gains up to 10^4, in float32
        return
    assert gain(np.flatnonzero(splits.categories[0])) == pytest.approx(best, rel=1e-4, abs=1e-3)
    np.testing.assert_array_equal(
        splits.right_sums[0], hist[0][splits.categories[0, :n_categories]].sum(axis=0)
    )


@pytest.mark.parametrize("one_hot_limit", [2, 10])
def test_gains_beyond_float32_are_refused(one_hot_limit):
    """XGBoost refuses infinite gains, too; no warning is raised."""
    cuts = Cuts.join([np.arange(1, 5)], [0], np.array([True]))
    hist = np.array([[[2**62, 1], [-(2**62), 1], [0, 5], [0, 5]]], dtype=np.int64)
    params = TreeParams(reg_lambda=0.0, min_child_weight=0.0, max_cat_to_onehot=one_hot_limit)
    splits = SplitFinder(cuts, params, (-20, 60)).best(hist, hist.sum(axis=1))
    assert splits.feature.tolist() == [-1]
    assert not splits.categories.any()


def test_columns_left_out_are_not_split():
    """A sampled or restricted feature is tried only if all of its bins are allowed."""
    X, signal, rng = table(1000, missing=0.0)
    y = target(LOGISTIC, signal, rng)
    cuts = train(X, y, TreeParams(trees=1)).cuts
    hist = np.zeros((1, cuts.total_bins, 2), dtype=np.int64)
    codes = bin_rows(X, cuts).codes.astype(int) + cuts.offsets[:-1]
    for f in range(cuts.n_features):
        np.add.at(
            hist[0], codes[:, f], to_fixed(np.stack([0.5 - y, np.full(len(y), 0.25)], axis=1))
        )
    totals = hist[:, cuts.offsets[0] : cuts.offsets[1]].sum(axis=1)
    free = SplitFinder(cuts, TreeParams()).best(hist, totals)
    best = int(free.feature[0])
    assert IS_CATEGORY[best]
    mask = np.ones((1, cuts.total_bins), dtype=bool)
    np.testing.assert_array_equal(
        SplitFinder(cuts, TreeParams()).best(hist, totals, mask).categories, free.categories
    )
    mask[0, cuts.offsets[best]] = False
    assert SplitFinder(cuts, TreeParams()).best(hist, totals, mask).feature[0] not in (best, -1)
    only = grow_forest(X, y, cuts, TreeParams(trees=6, max_depth=3, colsample_bytree=0.15))
    for tree in only.trees:
        assert len(set(tree.feature[tree.feature >= 0].tolist())) <= 1


def test_a_feature_of_one_category_separates_missing_values():
    X = np.array([[0, 0, 0, np.nan, np.nan, np.nan]] * 4, dtype=np.float32).reshape(-1, 1)
    y = np.isnan(X[:, 0]).astype(int)
    forest, _ = assert_same(X, y, TreeParams(trees=1, max_depth=1), types="c")
    assert forest.trees[0].categories[0].tolist() == [True]
    assert forest.trees[0].default_left[0]


@pytest.mark.parametrize("value", [3, -1, 0.5, 2.5])
def test_rows_of_unknown_categories_are_not_binned(value):
    cuts = Cuts.join([np.arange(1, 4), [0.0, 1.0]], [0, -1], np.array([True, False]))
    bin_rows(np.array([[2, 9.5], [np.nan, -3]]), cuts)
    with pytest.raises(DataError, match=r"feature 0 has 3 categories and a value .*codes 0 to 2"):
        bin_rows(np.array([[value, 0]]), cuts)


def test_cuts_of_categories():
    plain = Cuts.join([[0.5, 2.0], [1.0], [4.0]], [0, 0, 3])
    cuts = plain.with_categories([0, 3, 0])
    assert cuts.of(1).tolist() == [1, 2, 3]
    assert cuts.categorical.tolist() == [False, True, False]
    assert cuts.of(0).tolist() == [0.5, 2.0]
    assert cuts.minimum.tolist() == [0, 0, 3]
    assert cuts.select([2, 1]).categorical.tolist() == [False, True]
    assert cuts.select([0, 2]).categorical is None
    assert plain.with_categories([0, 0, 0]) is plain
    with pytest.raises(DataError, match="categorical feature 0 needs one bin per code"):
        Cuts(plain.values, plain.offsets, plain.minimum, np.array([True, False, False]))
    with pytest.raises(DataError, match="mask of shape"):
        Cuts(plain.values, plain.offsets, plain.minimum, np.array([True]))


@pytest.mark.parametrize("name", ["max_cat_to_onehot", "max_cat_threshold"])
def test_parameters_out_of_range(name):
    with pytest.raises(UsageError, match=f"{name}=1"):
        TreeParams(**{name: 1})


def test_directions_of_nodes_by_category_and_by_threshold():
    """Two nodes of one level are split in different ways."""
    cuts = Cuts.join([np.arange(1, 5), [0.5, 1.5, 2.5]], [0, 0], np.array([True, False]))
    X = np.array([[0, 0], [1, 1], [2, 2], [3, 0], [np.nan, np.nan], [1, 2]])
    bins, rows = bin_rows(X, cuts), RowPartition(6)
    root_decision = decisions([0], [0], [-1], [np.nan], [True], [1], [[False, True, False, True]])
    rows.split(bins, root_decision)
    assert rows_of(rows, 1).tolist() == [0, 2, 4]
    assert rows_of(rows, 2).tolist() == [1, 3, 5]
    level_decisions = Decisions.join(
        [
            decisions([1], [1], [0], [0.5], [False], [3], [[False] * 4]),
            decisions([2], [0], [-1], [np.nan], [False], [5], [[False, True, False, False]]),
        ]
    )
    rows.split(bins, level_decisions)
    assert [rows_of(rows, node).tolist() for node in (3, 4, 5, 6)] == [[0], [2, 4], [3], [1, 5]]


def decisions(nodes, feature, bin, threshold, default_left, left, categories):
    integer_arrays = (np.array(a, dtype=np.int32) for a in (nodes, feature, bin))
    threshold = np.array(threshold, dtype=np.float32)
    left, categories = np.array(left, dtype=np.int32), np.array(categories)
    return Decisions(*integer_arrays, threshold, np.array(default_left), left, categories)
