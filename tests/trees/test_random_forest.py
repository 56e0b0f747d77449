"""Random forests: brute force, scikit-learn, and the same forest whoever holds the rows."""

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
    for x in X.T:
        absent = np.isnan(x)
        for border in [*np.unique(x[~absent]), np.inf]:
            for side in (False, True):
                left = np.where(absent, side, x < border)
                groups = [
                    np.bincount(y[m], weights=weight[m], minlength=n_classes) for m in (left, ~left)
                ]
                if min(g.sum() for g in groups) >= min_leaf:
                    best = max(best, purity(*groups))
    return best


@given(tables(), st.integers(1, 5), st.integers(0, 5))
def test_every_split_is_the_best_there_is(table, min_leaf, seed):
    X, y, k = table
    weight = draw_rows(len(X), ForestParams(), np.random.default_rng(seed))
    params = replace(EVERYTHING, min_samples_leaf=min_leaf)
    cuts, features = quantile_cuts(X), np.arange(X.shape[1])
    tree = grow_whole_tree(bin_rows(X, cuts), y, weight, cuts, k, params, features, seed)
    rows = [np.flatnonzero(weight)]  # of each node
    for node in range(len(tree)):
        here = rows[node]
        counts = np.bincount(y[here], weights=weight[here], minlength=k)
        assert np.array_equal(tree.counts[node], counts)
        best = best_purity(X[here], y[here], weight[here], k, min_leaf)
        if tree.feature[node] < 0:
            assert counts.max() == counts.sum() or best == -np.inf
            continue
        x = X[here, tree.feature[node]]
        left = np.where(np.isnan(x), tree.default_left[node], x < tree.threshold[node])
        rows += [here[left], here[~left]]
        groups = tree.counts[tree.left[node]], tree.counts[tree.right[node]]
        assert min(g.sum() for g in groups) >= min_leaf
        assert purity(*groups) == pytest.approx(best, rel=1e-12)


def scikit_learns(model):
    """Return the trees of a fitted scikit-learn forest, with class counts."""
    trees = []
    for t in (e.tree_ for e in model.estimators_):
        counts = np.rint(t.value[:, 0] * t.weighted_n_node_samples[:, None]).astype(np.int64)
        left, right = t.children_left, t.children_right
        inner = left >= 0
        feature = np.where(inner, t.feature, -1)
        trees.append(ClassTree(feature, t.threshold, left, right, ~inner, t.value[:, 0], counts))
    return RandomForest(tuple(trees))


def same_splits(ours, theirs, a=0, b=0):
    """Walk down both trees and return how many splits are the same; all must be equally good.

    Below a tie that was broken otherwise there is nothing to compare.
    """
    if ours.feature[a] < 0 or theirs.feature[b] < 0:
        assert ours.feature[a] < 0 > theirs.feature[b]
        return 0
    mine = ours.left[a], ours.right[a]
    other = theirs.left[b], theirs.right[b]
    assert purity(*ours.counts[list(mine)]) == pytest.approx(purity(*theirs.counts[list(other)]))
    differs = any(
        (ours.counts[c] != theirs.counts[d]).any() for c, d in zip(mine, other, strict=True)
    )
    if differs or ours.feature[a] != theirs.feature[b]:
        return 0
    return 1 + sum(same_splits(ours, theirs, c, d) for c, d in zip(mine, other, strict=True))


@pytest.mark.parametrize(("load", "least"), [(load_breast_cancer, 5), (load_wine, 3)])
def test_a_tree_that_tries_everything_is_scikit_learns(load, least):
    X, y = load(return_X_y=True)
    X, y = X[:250].astype(np.float32), y[:250]  # fewer rows than bins: every value has its own
    params = replace(EVERYTHING, max_depth=4, min_samples_leaf=3)
    ours = grow_random_forest(X, y, quantile_cuts(X), params)
    options = {"max_features": None, "bootstrap": False, "max_depth": 4, "min_samples_leaf": 3}
    rival = scikit_learns(RandomForestClassifier(1, random_state=0, **options).fit(X, y))
    assert same_splits(ours.trees[0], rival.trees[0]) >= least


@given(tables(), st.sampled_from([1, 2, 5, 20]), st.integers(0, 9))
def test_growing_level_by_level_over_owners_is_growing_at_once(table, count, seed):
    X, y, k = table
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
    owners = np.array_split(rng.permutation(len(X)), count)
    whole = grow_whole_tree(bins, y, weight, cuts, k, params, features, key)
    parts = [(bins.take(o), y[o]) for o in owners]
    summed = grow_class_tree(parts, [weight[o] for o in owners], cuts, k, params, features, key)
    assert all(np.array_equal(getattr(whole, p), getattr(summed, p)) for p in PARTS)


@pytest.mark.long(but=("digits",))
@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_without_row_draws_the_forest_ignores_who_owns_which_row(load, count):
    X, y = load(return_X_y=True)
    X[::13, 2] = np.nan
    bins = bin_rows(X, cuts := quantile_cuts(X))
    params = ForestParams(trees=3, bootstrap=False)
    owners = np.array_split(np.random.default_rng(1).permutation(len(X)), count)
    parts = [(bins.take(o), y[o]) for o in owners]
    over = grow_random_forest_over(parts, cuts, params, y.max() + 1, seed=4)
    assert same_forest(over, grow_random_forest(X, y, cuts, params, seed=4))


@pytest.mark.parametrize(
    "options", [{}, {"max_samples": 0.5}, {"max_samples": 0.5, "bootstrap": False}]
)
@pytest.mark.parametrize("count", [2, 5, 20])
def test_with_row_draws_it_is_the_central_forest_on_the_pooled_draws(count, options):
    X, y = load_breast_cancer(return_X_y=True)
    bins = bin_rows(X, cuts := quantile_cuts(X))
    params = ForestParams(trees=3, **options)
    owners = np.array_split(np.random.default_rng(1).permutation(len(X)), count)
    over = grow_random_forest_over([(bins.take(o), y[o]) for o in owners], cuts, params, seed=4)
    for t, tree in enumerate(over.trees):
        pooled = np.zeros(len(X), dtype=np.int64)
        for i, own in enumerate(owners):  # every owner tosses coins of its own
            randomness = Streams(4).child(f"client-{i}")
            pooled[own] = draw_rows(len(own), params, randomness.rng("rows", t))
        drawn = draw_columns(X.shape[1], params, Streams(4).child("server").rng("columns", t))
        central = grow_whole_tree(bins, y, pooled, cuts, 2, params, *drawn)
        assert all(np.array_equal(getattr(tree, p), getattr(central, p)) for p in PARTS)


def test_draws_have_the_size_and_kind_asked_for():
    rng = np.random.default_rng(0)
    drawn = draw_rows(1000, ForestParams(), rng)
    assert drawn.sum() == 1000
    assert 0.6 < np.mean(drawn > 0) < 0.66  # 1 - 1/e
    assert draw_rows(1000, ForestParams(max_samples=0.3), rng).sum() == 300
    without = draw_rows(1000, ForestParams(max_samples=0.3, bootstrap=False), rng)
    assert without.sum() == 300
    assert without.max() == 1
    assert draw_rows(0, ForestParams(), rng).shape == (0,)


def test_features_are_drawn_evenly_and_differently_at_every_node():
    orders = feature_orders(np.arange(21_000), np.arange(7))
    assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(7), (21_000, 1)))
    expected = len(orders) / 7
    for place in range(7):  # chi-square with 6 degrees of freedom exceeds 27.9 once in 10^4
        seen = np.bincount(orders[:, place], minlength=7)
        assert ((seen - expected) ** 2 / expected).sum() < 27.9
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


def test_limits_hold():
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
    deep = grow_random_forest(X, y, cuts, ForestParams(trees=2))
    for tree in deep.trees:
        assert (tree.counts[tree.leaves].max(axis=1) == tree.counts[tree.leaves].sum(axis=1)).all()


def test_max_leaf_nodes_keeps_what_best_first_growth_would_grow():
    X, y = load_wine(return_X_y=True)
    X = X.astype(np.float32)
    params = replace(EVERYTHING, max_leaf_nodes=6, min_samples_leaf=3)
    ours = grow_random_forest(X, y, quantile_cuts(X), params)
    rival = DecisionTreeClassifier(max_leaf_nodes=6, min_samples_leaf=3, random_state=0).fit(X, y)
    assert len(ours.trees[0].leaves) == 6
    assert np.array_equal(ours.probabilities(X), rival.predict_proba(X))
    full = grow_random_forest(X, y, quantile_cuts(X), EVERYTHING).trees[0]
    for limit in (2, 4, len(full.leaves), 1000):
        kept = keep_best_splits(full, limit)
        assert len(kept.leaves) == min(limit, len(full.leaves))
        inner = kept.feature >= 0
        assert np.array_equal(
            kept.counts[inner], kept.counts[kept.left[inner]] + kept.counts[kept.right[inner]]
        )


@pytest.mark.long
def test_missing_values_learn_their_direction():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 1)).astype(np.float32)
    y = (X[:, 0] > 0.5).astype(int)
    gone = rng.random(400) < 0.3
    for label in (0, 1):
        Z, z = X.copy(), y.copy()
        Z[gone], z[gone] = np.nan, label
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


def test_a_released_tree_knows_what_its_leaves_tell():
    X, y = load_wine(return_X_y=True)
    tree = grow_random_forest(X, y, quantile_cuts(X), ForestParams(trees=1)).trees[0]
    leaves = tree.leaves
    told = tree.released(tree.probability[leaves], tree.counts[leaves])
    assert np.array_equal(told.counts, tree.counts)
    bare = tree.released(tree.probability[leaves], None)
    assert bare.counts is None
    assert np.isnan(np.delete(bare.probability, leaves, axis=0)).all()
    assert np.array_equal(bare.probability[leaves], tree.probability[leaves])


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
    "wrong",
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
def test_parameters_out_of_range_name_the_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        ForestParams(**wrong)


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
    known = {}
    for block in blocks:
        exec(block, known)
