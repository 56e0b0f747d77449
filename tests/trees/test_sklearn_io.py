"""scikit-learn forests read here: the same probabilities, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)

from fedtrees.core.errors import DataError
from fedtrees.trees.files.sklearn import exact_thresholds, from_sklearn
from fedtrees.trees.forest.random_forest import RandomForest

TABLES = {"two": load_breast_cancer, "three": load_wine, "ten": load_digits}


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
@pytest.mark.parametrize("table", TABLES)
def test_probabilities_are_identical(kind, table):
    X, y = TABLES[table](return_X_y=True)
    model = kind(12, random_state=0).fit(X[::2], y[::2])
    forest = from_sklearn(model)
    assert np.array_equal(forest.probabilities(X), model.predict_proba(X))
    again = RandomForest.from_arrays(forest.to_arrays())
    assert np.array_equal(again.probabilities(X), model.predict_proba(X))


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_missing_values_go_where_scikit_learn_sends_them(kind):
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    X[rng.random(X.shape) < 0.3] = np.nan
    X[:, 4] = np.where(rng.random(len(X)) < 0.8 - 0.6 * y, np.nan, 1.0)  # missing or not, no more
    model = kind(20, random_state=0).fit(X[::2], y[::2])
    forest = from_sklearn(model)
    assert np.array_equal(forest.probabilities(X), model.predict_proba(X))
    assert any(t.default_left.any() for t in forest.trees)
    if kind is RandomForestClassifier:  # it splits "any value" from "missing" at infinity
        assert any(np.isinf(t.threshold).any() for t in forest.trees)


def test_leaves_and_counts_are_those_of_the_drawn_rows():
    X, y = load_wine(return_X_y=True)
    model = RandomForestClassifier(5, bootstrap=False, random_state=0, max_depth=3).fit(X, y)
    forest = from_sklearn(model)
    leaves = forest.apply(X)
    for t, tree in enumerate(forest.trees):
        seen = np.zeros((len(tree), 3), dtype=np.int64)
        np.add.at(seen, (leaves[:, t], y), 1)
        assert np.array_equal(seen[tree.leaves], tree.counts[tree.leaves])
        inner = tree.left >= 0
        assert np.array_equal(tree.left[inner], np.arange(1, len(tree), 2))  # pairs, by level


def test_weights_that_are_no_counts_leave_counts_unknown():
    X, y = load_wine(return_X_y=True)
    # Without bootstrap: newer versions turn weights into the odds of being drawn.
    weighted = RandomForestClassifier(3, class_weight="balanced", bootstrap=False, random_state=0)
    model = weighted.fit(X, y)
    forest = from_sklearn(model)
    assert all(t.counts is None for t in forest.trees)
    assert np.array_equal(forest.probabilities(X), model.predict_proba(X))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FLOATS, st.sampled_from([0.0, 1e-9, -1e-9, 0.5, -0.5]))
def test_thresholds_mean_the_same_for_every_float32(x, shift):
    x = np.float32(x)
    t = np.float64(x) + shift * float(np.spacing(np.abs(x)))
    around = [np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))]
    for value in filter(np.isfinite, around):
        assert (value < exact_thresholds(np.array([t]))[0]) == (np.float64(value) <= t)


def test_what_is_no_classification_forest_is_refused():
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(DataError, match="RandomForestClassifier has no trees"):
        from_sklearn(RandomForestClassifier())
    with pytest.raises(DataError, match="RandomForestRegressor"):
        from_sklearn(RandomForestRegressor(2).fit(X, y))
    with pytest.raises(DataError, match="GradientBoostingClassifier"):
        from_sklearn(GradientBoostingClassifier(n_estimators=2).fit(X, y))
    two = RandomForestClassifier(2).fit(X, np.stack([y, 1 - y], axis=1))
    with pytest.raises(DataError, match="several outputs"):
        from_sklearn(two)
