"""Splits by categories in XGBoost's model files, both ways."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import xgboost as xgb
from test_categorical import IS_CATEGORY, TYPES, matrix, table, target, train

from fedtrees.core.errors import DataError
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.files.xgboost import from_xgboost_json, to_xgboost_json


@pytest.fixture(scope="module")
def trained():
    X, signal, rng = table(1500)
    y = target(LOGISTIC, signal, rng)
    params = TreeParams(trees=6, max_depth=4)
    return X, y, params, train(X, y, params)


def unusual(X):
    """Rows with codes beyond those known, fractions and negative values in categorical columns."""
    X = X.copy()
    rng = np.random.default_rng(9)
    X[:, IS_CATEGORY] = rng.choice(
        [-1, 0.5, 2.7, 7, 99, 100, 1e6, np.nan], (len(X), IS_CATEGORY.sum())
    )
    return X


@pytest.mark.parametrize("objective", [LOGISTIC, SQUARED_ERROR, Softmax(3)], ids=lambda o: o.name)
@pytest.mark.parametrize("kind", ["json", "ubj"])
def test_a_model_of_xgboost_predicts_the_same_when_imported(objective, kind):
    X, signal, rng = table(1500)
    reference_model = train(
        X, target(objective, signal, rng), TreeParams(trees=5, max_depth=4), objective
    )
    forest = from_xgboost_json(bytes(reference_model.booster.save_raw(kind)))
    assert any(t.categories is not None for t in forest.trees)
    for rows in (X, unusual(X)):
        margins = reference_model.booster.predict(matrix(rows), output_margin=True)
        np.testing.assert_allclose(forest.margin(rows), margins, atol=1e-5)


@pytest.mark.parametrize("names", [(), tuple("abcdefg")])
def test_an_exported_model_predicts_the_same_in_xgboost(trained, names):
    X, y, params, reference_model = trained
    forest = grow_forest(X, y, reference_model.cuts, params)
    exported = to_xgboost_json(forest, len(TYPES), names, params)
    booster = xgb.Booster()
    booster.load_model(bytearray(json.dumps(exported).encode()))
    for rows in (X, unusual(X)):
        data = xgb.DMatrix(
            rows, feature_types=TYPES, feature_names=list(names) or None, enable_categorical=True
        )
        margins = booster.predict(data, output_margin=True)
        np.testing.assert_allclose(forest.margin(rows), margins, atol=1e-5)
    imported = from_xgboost_json(bytes(booster.save_raw("json")))
    np.testing.assert_array_equal(imported.margin(X), forest.margin(X))


def test_the_exported_arrays_equal_xgboosts(trained):
    X, y, params, reference_model = trained
    exported = to_xgboost_json(
        grow_forest(X, y, reference_model.cuts, params), len(TYPES), (), params
    )
    for exported_tree, tree in zip(
        exported["learner"]["gradient_booster"]["model"]["trees"],
        reference_model.trees,
        strict=True,
    ):
        for name in tree:
            if name.startswith(("categories", "split_type")):
                assert exported_tree[name] == tree[name], name
        assert {type(value) for value in exported_tree["categories"]} <= {int}
        inner = np.array(tree["left_children"]) >= 0
        np.testing.assert_array_equal(
            np.float32(exported_tree["split_conditions"])[inner],
            np.float32(tree["split_conditions"])[inner],
        )


@pytest.mark.parametrize(
    ("name", "change", "error_message"),
    [
        ("categories_nodes", lambda a: a[:-1], "do not match"),
        ("categories_nodes", lambda a: [*a[:-1], a[-1] + 10**6], "do not match"),
        ("categories_sizes", lambda a: [a[0] + 1, *a[1:]], "do not match"),
        ("categories_segments", lambda a: [1, *a[1:]], "do not match"),
        ("categories", lambda a: [-1, *a[1:]], "no codes from 0"),
        ("categories", lambda a: [70000, *a[1:]], "no codes from 0 to 65534"),
        ("categories", lambda a: a[:-1], "no codes from 0"),
        ("categories", lambda a: ["x", *a[1:]], "no list of numbers"),
        ("split_type", lambda a: a[:-1], "differ in length"),
        ("split_type", lambda a: [0] * len(a), None),
    ],
)
def test_damaged_sets_are_refused(trained, name, change, error_message):
    model = copy.deepcopy(trained[3].model)
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    tree[name] = change(tree[name])
    if error_message is None:  # Without splits by category, the sets are not read.
        assert from_xgboost_json(model).trees[0].categories is None
        return
    with pytest.raises(DataError, match=error_message):
        from_xgboost_json(model)


def test_sets_of_pruned_nodes_are_not_read(trained):
    """Old versions keep the set of a node that pruning made a leaf, and list its children."""
    X, _, _, reference_model = trained
    model = copy.deepcopy(reference_model.model)
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    above_leaves = [
        node_id
        for node_id in tree["categories_nodes"]
        if left[left[node_id]] < 0 and left[right[node_id]] < 0
    ]
    complete = from_xgboost_json(model)
    node = above_leaves[0]
    for child in (left[node], right[node]):
        tree["split_indices"][child] = 2147483647
    tree["left_children"][node] = tree["right_children"][node] = -1
    tree["split_conditions"][node] = 0.25
    pruned = from_xgboost_json(model).trees[0]
    assert len(pruned) == len(complete.trees[0]) - 2
    assert pruned.feature[node] == -1
    assert not pruned.categories[node].any()
    leaf, leaf_before = from_xgboost_json(model).apply(X)[:, 0], complete.apply(X)[:, 0]
    is_below = (leaf_before == left[node]) | (leaf_before == right[node])
    assert is_below.any()
    assert (
        pruned.value[leaf]
        == np.where(is_below, np.float32(0.25), complete.trees[0].value[leaf_before])
    ).all()


def test_a_set_absent_from_the_model_is_refused(trained):
    model = copy.deepcopy(trained[3].model)
    del model["learner"]["gradient_booster"]["model"]["trees"][0]["categories"]
    with pytest.raises(DataError, match="not a complete XGBoost model"):
        from_xgboost_json(model)
