"""Random forests: brute force, scikit-learn, and independence of the owners of the rows."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from several_owners import grow_class_tree, grow_random_forest_over
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.gini import feature_orders
from fedtrees.trees.forest.grower import draw_columns, draw_rows, grow_random_forest
from fedtrees.trees.forest.growth import grow_whole_tree
from fedtrees.trees.forest.params import ForestParams, feature_count
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, keep_best_splits

PARTS = ("feature", "threshold", "left", "right", "default_left", "counts", "probability")
EVERYTHING = ForestParams(trees=1, bootstrap=False, max_features=None)


def same_forest(a, b):
    return len(a) == len(b) and all(
        np.array_equal(getattr(s, part), getattr(t, part))
        for s, t in zip(a.trees, b.trees, strict=True)
        for part in PARTS
    )


@st.composite
def tables(draw, max_rows=60):
    """Rows with ties and missing values, labels of 2 to 4 classes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d, k = draw(st.integers(1, max_rows)), draw(st.integers(1, 5)), draw(st.integers(2, 4))
    X = rng.integers(0, draw(st.sampled_from([2, 5, 1000])), (n, d)).astype(np.float32)
    X[rng.random(X.shape) < draw(st.sampled_from([0.0, 0.3]))] = np.nan
    return X, rng.integers(0, k, n), k


def purity(*groups):
    return sum(float((g.astype(float) ** 2).sum() / g.sum()) for g in groups)


def best_purity(X, y, weight, n_classes, min_leaf):
    """Try every border of every feature, with missing values on either side."""
    best = -np.inf
    for values in X.T:
        is_missing = np.isnan(values)
        for border in [*np.unique(values[~is_missing]), np.inf]:
            for missing_left in (False, True):
                is_left = np.where(is_missing, missing_left, values < border)
                groups = [
                    np.bincount(y[is_in_group], weights=weight[is_in_group], minlength=n_classes)
                    for is_in_group in (is_left, ~is_left)
                ]
                if min(group.sum() for group in groups) >= min_leaf:
                    best = max(best, purity(*groups))
    return best


@given(tables(), st.integers(1, 5), st.integers(0, 5))
def test_every_split_is_the_best_possible_one(table, min_leaf, seed):
    X, y, n_classes = table
    weight = draw_rows(len(X), ForestParams(), np.random.default_rng(seed))
    params = replace(EVERYTHING, min_samples_leaf=min_leaf)
    cuts, features = quantile_cuts(X), np.arange(X.shape[1])
    tree = grow_whole_tree(bin_rows(X, cuts), y, weight, cuts, n_classes, params, features, seed)
    rows = [np.flatnonzero(weight)]  # of each node
    for node in range(len(tree)):
        rows_of_node = rows[node]
        counts = np.bincount(y[rows_of_node], weights=weight[rows_of_node], minlength=n_classes)
        assert np.array_equal(tree.counts[node], counts)
        best = best_purity(
            X[rows_of_node], y[rows_of_node], weight[rows_of_node], n_classes, min_leaf
        )
        if tree.feature[node] < 0:
            assert counts.max() == counts.sum() or best == -np.inf
            continue
        values = X[rows_of_node, tree.feature[node]]
        is_left = np.where(np.isnan(values), tree.default_left[node], values < tree.threshold[node])
        rows += [rows_of_node[is_left], rows_of_node[~is_left]]
        groups = tree.counts[tree.left[node]], tree.counts[tree.right[node]]
        assert min(group.sum() for group in groups) >= min_leaf
        assert purity(*groups) == pytest.approx(best, rel=1e-12)


def trees_of_sklearn(model):
    """Return the trees of a fitted scikit-learn forest, with class counts."""
    trees = []
    for tree in (estimator.tree_ for estimator in model.estimators_):
        counts = np.rint(tree.value[:, 0] * tree.weighted_n_node_samples[:, None]).astype(np.int64)
        left, right = tree.children_left, tree.children_right
        inner = left >= 0
        feature = np.where(inner, tree.feature, -1)
        trees.append(
            ClassTree(feature, tree.threshold, left, right, ~inner, tree.value[:, 0], counts)
        )
    return RandomForest(tuple(trees))


def same_splits(tree, reference, node=0, reference_node=0):
    """Walk down both trees and return the number of equal splits; all must be equally good.

    Below a tie that was broken in another way, nothing is compared.
    """
    if tree.feature[node] < 0 or reference.feature[reference_node] < 0:
        assert tree.feature[node] < 0 > reference.feature[reference_node]
        return 0
    children = tree.left[node], tree.right[node]
    reference_children = reference.left[reference_node], reference.right[reference_node]
    assert purity(*tree.counts[list(children)]) == pytest.approx(
        purity(*reference.counts[list(reference_children)])
    )
    differs = any(
        (tree.counts[child] != reference.counts[reference_child]).any()
        for child, reference_child in zip(children, reference_children, strict=True)
    )
    if differs or tree.feature[node] != reference.feature[reference_node]:
        return 0
    return 1 + sum(
        same_splits(tree, reference, child, reference_child)
        for child, reference_child in zip(children, reference_children, strict=True)
    )


@pytest.mark.parametrize(("load_table", "minimum_equal"), [(load_breast_cancer, 5), (load_wine, 3)])
def test_a_tree_that_tries_every_split_equals_scikit_learns(load_table, minimum_equal):
    X, y = load_table(return_X_y=True)
    # With fewer rows than bins, every value has its own bin.
    X, y = X[:250].astype(np.float32), y[:250]
    params = replace(EVERYTHING, max_depth=4, min_samples_leaf=3)
    forest = grow_random_forest(X, y, quantile_cuts(X), params)
    options = {"max_features": None, "bootstrap": False, "max_depth": 4, "min_samples_leaf": 3}
    sklearn_forest = trees_of_sklearn(
        RandomForestClassifier(1, random_state=0, **options).fit(X, y)
    )
    assert same_splits(forest.trees[0], sklearn_forest.trees[0]) >= minimum_equal


@given(tables(), st.sampled_from([1, 2, 5, 20]), st.integers(0, 9))
def test_growing_over_owners_level_by_level_equals_central_growth(table, n_owners, seed):
    X, y, n_classes = table
    rng = np.random.default_rng(seed)
    bins = bin_rows(X, cuts := quantile_cuts(X, 16))
    params = ForestParams(
        max_depth=rng.choice([None, 3]),
        max_features=[1, "sqrt", None][seed % 3],
        min_samples_leaf=int(rng.integers(1, 4)),
    )
    weight = draw_rows(len(X), params, rng)
    features, key = np.flatnonzero(rng.random(X.shape[1]) < 0.8), int(rng.integers(2**32))
    features = features if len(features) else np.array([0])
    owners = np.array_split(rng.permutation(len(X)), n_owners)
    central = grow_whole_tree(bins, y, weight, cuts, n_classes, params, features, key)
    parts = [(bins.take(owner_rows), y[owner_rows]) for owner_rows in owners]
    summed = grow_class_tree(
        parts, [weight[owner_rows] for owner_rows in owners], cuts, n_classes, params, features, key
    )
    assert all(np.array_equal(getattr(central, field), getattr(summed, field)) for field in PARTS)


@pytest.mark.long(but=("digits",))
@pytest.mark.parametrize("load_table", [load_breast_cancer, load_digits])
@pytest.mark.parametrize("n_owners", [1, 2, 5, 20])
def test_without_row_draws_the_forest_ignores_who_owns_which_row(load_table, n_owners):
    X, y = load_table(return_X_y=True)
    X[::13, 2] = np.nan
    bins = bin_rows(X, cuts := quantile_cuts(X))
    params = ForestParams(trees=3, bootstrap=False)
    owners = np.array_split(np.random.default_rng(1).permutation(len(X)), n_owners)
    parts = [(bins.take(owner_rows), y[owner_rows]) for owner_rows in owners]
    federated = grow_random_forest_over(parts, cuts, params, y.max() + 1, seed=4)
    assert same_forest(federated, grow_random_forest(X, y, cuts, params, seed=4))


@pytest.mark.parametrize(
    "options", [{}, {"max_samples": 0.5}, {"max_samples": 0.5, "bootstrap": False}]
)
@pytest.mark.parametrize("n_owners", [2, 5, 20])
def test_with_row_draws_the_forest_is_the_central_one_on_the_pooled_draws(n_owners, options):
    X, y = load_breast_cancer(return_X_y=True)
    bins = bin_rows(X, cuts := quantile_cuts(X))
    params = ForestParams(trees=3, **options)
    owners = np.array_split(np.random.default_rng(1).permutation(len(X)), n_owners)
    federated = grow_random_forest_over(
        [(bins.take(rows), y[rows]) for rows in owners], cuts, params, seed=4
    )
    for tree_number, tree in enumerate(federated.trees):
        pooled = np.zeros(len(X), dtype=np.int64)
        for number, owner_rows in enumerate(owners):  # Every owner samples with its own generator.
            randomness = Streams(4).child(f"client-{number}")
            pooled[owner_rows] = draw_rows(
                len(owner_rows), params, randomness.rng("rows", tree_number)
            )
        drawn_columns = draw_columns(
            X.shape[1], params, Streams(4).child("server").rng("columns", tree_number)
        )
        central = grow_whole_tree(bins, y, pooled, cuts, 2, params, *drawn_columns)
        assert all(np.array_equal(getattr(tree, field), getattr(central, field)) for field in PARTS)


def test_draws_have_the_requested_size_and_kind():
    rng = np.random.default_rng(0)
    draws = draw_rows(1000, ForestParams(), rng)
    assert draws.sum() == 1000
    assert 0.6 < np.mean(draws > 0) < 0.66  # 1 - 1/e
    assert draw_rows(1000, ForestParams(max_samples=0.3), rng).sum() == 300
    without_replacement = draw_rows(1000, ForestParams(max_samples=0.3, bootstrap=False), rng)
    assert without_replacement.sum() == 300
    assert without_replacement.max() == 1
    assert draw_rows(0, ForestParams(), rng).shape == (0,)


def test_features_are_drawn_evenly_and_differently_at_every_node():
    orders = feature_orders(np.arange(21_000), np.arange(7))
    assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(7), (21_000, 1)))
    expected = len(orders) / 7
    # Chi-square with 6 degrees of freedom exceeds 27.9 once in 10^4.
    for place in range(7):
        observed = np.bincount(orders[:, place], minlength=7)
        assert ((observed - expected) ** 2 / expected).sum() < 27.9
    pairs = np.bincount(orders[:-1, 0] * 7 + orders[1:, 0], minlength=49)  # neighbouring keys
    assert ((pairs - len(orders) / 49) ** 2 / (len(orders) / 49)).sum() < 95.0  # 48 df, 10^-4


def test_constant_features_do_not_use_up_a_node():
    rng = np.random.default_rng(0)
    X = np.zeros((200, 30), dtype=np.float32)
    X[:, 17] = rng.normal(size=200)
    y = (X[:, 17] > 0).astype(int)
    for owners in ([slice(None)], [slice(0, 90), slice(90, 200)]):
        bins = bin_rows(X, cuts := quantile_cuts(X))
        params = ForestParams(trees=5, max_features=1)
        forest = grow_random_forest_over([(bins.take(o), y[o]) for o in owners], cuts, params)
        assert all(t.feature[0] == 17 and len(t) == 3 for t in forest.trees)


def test_a_tree_uses_only_the_features_drawn_for_it():
    X, y = load_breast_cancer(return_X_y=True)
    params = ForestParams(trees=8, tree_features=3)
    forest = grow_random_forest(X, y, quantile_cuts(X), params)
    used = [set(t.feature[t.feature >= 0].tolist()) for t in forest.trees]
    assert all(len(u) <= 3 for u in used)
    assert len(set.union(*used)) > 8


def test_growth_respects_its_limits():
    X, y = load_digits(return_X_y=True)
    cuts = quantile_cuts(X)
    params = ForestParams(trees=3, max_depth=4, min_samples_split=30, min_samples_leaf=9)
    for tree in grow_random_forest(X, y, cuts, params).trees:
        depth = np.zeros(len(tree), dtype=int)
        for node in np.flatnonzero(tree.feature >= 0):
            depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
            assert tree.counts[node].sum() >= 30
        assert depth.max() == 4
        assert tree.counts.sum(axis=1).min() >= 9
    unlimited = grow_random_forest(X, y, cuts, ForestParams(trees=2))
    for tree in unlimited.trees:
        assert (tree.counts[tree.leaves].max(axis=1) == tree.counts[tree.leaves].sum(axis=1)).all()


def test_max_leaf_nodes_gives_the_tree_of_best_first_growth():
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    params = replace(EVERYTHING, max_leaf_nodes=6, min_samples_leaf=3)
    forest = grow_random_forest(X, y, quantile_cuts(X), params)
    sklearn_tree = DecisionTreeClassifier(max_leaf_nodes=6, min_samples_leaf=3, random_state=0).fit(
        X, y
    )
    assert len(forest.trees[0].leaves) == 6
    assert np.array_equal(forest.probabilities(X), sklearn_tree.predict_proba(X))
    full_tree = grow_random_forest(X, y, quantile_cuts(X), EVERYTHING).trees[0]
    for limit in (2, 4, len(full_tree.leaves), 1000):
        pruned = keep_best_splits(full_tree, limit)
        assert len(pruned.leaves) == min(limit, len(full_tree.leaves))
        inner = pruned.feature >= 0
        assert np.array_equal(
            pruned.counts[inner],
            pruned.counts[pruned.left[inner]] + pruned.counts[pruned.right[inner]],
        )


@pytest.mark.long
def test_missing_values_learn_their_direction():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    is_missing = rng.random(400) < 0.3
    for label in (0, 1):
        Z, z = X.copy(), y.copy()
        Z[is_missing], z[is_missing] = np.nan, label
        forest = grow_random_forest(Z, z, quantile_cuts(Z), ForestParams(trees=5))
        assert ((forest.predict(Z) > 0.5) == z).all()


def test_two_classes_predict_one_number_and_more_a_table():
    X, y = load_wine(return_X_y=True)
    cuts, params = quantile_cuts(X), ForestParams(trees=4)
    three = grow_random_forest(X, y, cuts, params)
    two = grow_random_forest(X, y % 2, cuts, params)
    assert three.predict(X).shape == (178, 3)
    assert np.allclose(three.predict(X).sum(axis=1), 1)
    assert np.array_equal(two.predict(X), two.probabilities(X)[:, 1])
    assert np.array_equal(two.first(1).predict(X), two.trees[0].probability[two.apply(X)[:, 0], 1])


def test_a_forest_survives_being_taken_apart():
    X, y = load_wine(return_X_y=True)
    forest = grow_random_forest(X, y, quantile_cuts(X), ForestParams(trees=4))
    arrays = forest.to_arrays()
    assert same_forest(RandomForest.from_arrays(arrays), forest)
    with pytest.raises(DataError, match="no forest"):
        RandomForest.from_arrays({k: v for k, v in arrays.items() if k != "left"})


def test_a_released_tree_contains_only_the_values_of_its_leaves():
    X, y = load_wine(return_X_y=True)
    tree = grow_random_forest(X, y, quantile_cuts(X), ForestParams(trees=1)).trees[0]
    leaves = tree.leaves
    with_counts = tree.released(tree.probability[leaves], tree.counts[leaves])
    assert np.array_equal(with_counts.counts, tree.counts)
    without_counts = tree.released(tree.probability[leaves], None)
    assert without_counts.counts is None
    assert np.isnan(np.delete(without_counts.probability, leaves, axis=0)).all()
    assert np.array_equal(without_counts.probability[leaves], tree.probability[leaves])


@pytest.mark.parametrize(
    ("rule", "count"),
    [("sqrt", 5), ("log2", 4), (3, 3), (99, 28), (0.1, 2), (0.001, 1), (None, 28), (1.0, 28)],
)
def test_max_features_counts_as_scikit_learn_does(rule, count):
    X, y = np.random.default_rng(0).normal(size=(9, 28)), np.arange(9) % 2
    assert feature_count(rule, 28) == count
    if rule != 99:
        rival = DecisionTreeClassifier(max_features=rule).fit(X, y)
        assert rival.max_features_ == count


@pytest.mark.parametrize(
    "invalid",
    [
        {"trees": 0},
        {"max_depth": 0},
        {"min_samples_split": 1},
        {"min_samples_leaf": 0.5},
        {"max_features": "squrt"},
        {"max_features": 0},
        {"max_features": 1.5},
        {"tree_features": True},
        {"bootstrap": 1},
        {"max_samples": 0},
        {"max_samples": 50},
        {"max_leaf_nodes": 1},
        {"max_bin": 1},
    ],
)
def test_parameters_out_of_range_name_the_value(invalid):
    ((name, value),) = invalid.items()
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        ForestParams(**invalid)


def test_bad_rows_and_labels_are_refused():
    X, y = load_wine(return_X_y=True)
    cuts, params = quantile_cuts(X), ForestParams(trees=1)
    for labels, text in ((y + 0.5, "codes"), (y - 1, "codes"), (y[:-1], "do not fit"), (y > 5, "")):
        if text:
            with pytest.raises(DataError, match=text):
                grow_random_forest(X, labels, cuts, params)
        else:  # one class only: a single leaf
            assert len(grow_random_forest(X, labels, cuts, params).trees[0]) == 1
    with pytest.raises(DataError, match="codes"):
        grow_random_forest(X, y, cuts, params, n_classes=2)
    with pytest.raises(DataError, match="no rows"):
        grow_random_forest(X[:0], y[:0], cuts, params)
    with pytest.raises(DataError, match="at least"):
        grow_random_forest(X, y, cuts, params).predict(X[:, :1])


def test_the_documentation_runs():
    text = (Path(__file__).resolve().parents[2] / "docs" / "explanation/forests.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert len(blocks) == 1
    namespace = {}
    for block in blocks:
        exec(block, namespace)
