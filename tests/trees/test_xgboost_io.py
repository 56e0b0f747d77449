from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import xgboost as xgb
import xgboost_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.errors import DataError
from fedtrees.trees.builder import TreeBuilder
from fedtrees.trees.forest import Forest
from fedtrees.trees.grower import grow_forest
from fedtrees.trees.params import TreeParams
from fedtrees.trees.sketch import quantile_cuts
from fedtrees.trees.xgboost_io import from_xgboost_json, to_xgboost_json

PARAMS = TreeParams(trees=12, max_depth=4)


@pytest.fixture(scope="module")
def theirs(cancer_missing):
    return reference.train(*cancer_missing, PARAMS)


def loaded(model):
    booster = xgb.Booster()
    booster.load_model(bytearray(json.dumps(model).encode()))
    return booster


@st.composite
def forests(draw):
    """Random trees over 3 features, single leaves included."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    trees = []
    for _ in range(draw(st.integers(1, 4))):
        builder, level = TreeBuilder(), np.array([0])
        for _ in range(draw(st.integers(1, 4))):
            k = len(level)
            left = builder.expand(
                level,
                rng.integers(-1, 3, k),
                rng.normal(size=k),
                rng.random(k) < 0.5,
                rng.random(k),
            )
            level = np.concatenate([left[left >= 0], left[left >= 0] + 1])
        leaves = builder.build().leaves
        builder.set_values(leaves, rng.normal(size=len(leaves)))
        builder.set_sums(np.arange(len(builder)), rng.random((len(builder), 2)))
        trees.append(builder.build())
    return Forest(tuple(trees), np.float32(rng.normal()))


@settings(max_examples=40)
@given(forests())
def test_written_forests_read_back_equal_and_predict_the_same(forest):
    model = json.loads(json.dumps(to_xgboost_json(forest, 3, ["a", "b", "c"])))
    again = from_xgboost_json(model)
    assert again.base_margin == pytest.approx(forest.base_margin, rel=1e-6, abs=1e-6)
    assert len(again) == len(forest)
    for a, b in zip(forest.trees, again.trees, strict=True):
        for name in ("feature", "left", "right", "default_left", "threshold", "value", "gain"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        np.testing.assert_array_equal(a.h.astype(np.float32), b.h)
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    X[::7, 1] = np.nan
    data = xgb.DMatrix(X, feature_names=["a", "b", "c"])
    # XGBoost starts from the base score, a probability: half a float32 digit of it.
    np.testing.assert_allclose(
        loaded(model).predict(data, output_margin=True), forest.margin(X), atol=4e-6, rtol=0
    )


def test_written_models_predict_as_ours(cancer_missing):
    X, y = cancer_missing
    forest = grow_forest(X, y, quantile_cuts(X), PARAMS)
    booster = loaded(to_xgboost_json(forest, X.shape[1], params=PARAMS))
    np.testing.assert_allclose(
        booster.predict(xgb.DMatrix(X)), forest.predict_proba(X), atol=1e-6, rtol=0
    )
    leaves = booster.predict(xgb.DMatrix(X), pred_leaf=True)
    np.testing.assert_array_equal(leaves, forest.apply(X))


def test_statistics_are_written_as_xgboost_writes_them(cancer_missing, theirs):
    X, y = cancer_missing
    forest = grow_forest(X, y, theirs.cuts, PARAMS)
    ours = to_xgboost_json(forest, X.shape[1], params=PARAMS)["learner"]["gradient_booster"]
    for a, b in zip(ours["model"]["trees"], theirs.trees, strict=True):
        for name in ("parents", "left_children", "right_children", "split_indices"):
            assert a[name] == b[name], name
        for name in ("base_weights", "sum_hessian", "loss_changes"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_model_of_xgboost_is_read(cancer_missing, theirs, tmp_path):
    X, y = cancer_missing
    path = tmp_path / "model.json"
    theirs.booster.save_model(path)
    trained = grow_forest(X, y, theirs.cuts, PARAMS)
    raw = bytes(theirs.booster.save_raw("json"))
    for model in (path, str(path), raw, theirs.model):
        forest = from_xgboost_json(model, learning_rate=0.3, reg_lambda=1.0)
        np.testing.assert_allclose(forest.margin(X), theirs.margin(X), atol=2e-6, rtol=0)
        for read, grown in zip(forest.trees, trained.trees, strict=True):
            np.testing.assert_allclose(read.h, grown.h, rtol=1e-5)
            np.testing.assert_allclose(read.g, grown.g, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(read.gain, grown.gain, rtol=1e-3, atol=2e-5)
    assert from_xgboost_json(raw).trees[0].g is None


@pytest.mark.parametrize("text", ["6.2741655E-1", "[6.2741655E-1]", "0.62741655"])
def test_base_scores_of_all_versions(theirs, text):
    model = theirs.model
    model["learner"]["learner_model_param"]["base_score"] = text
    assert from_xgboost_json(model).base_margin == pytest.approx(0.521149, abs=1e-5)


def test_other_models_are_refused(cancer):
    X, y = cancer
    data = xgb.DMatrix(X, y)
    for settings_, message in (
        ({"objective": "reg:squarederror"}, "reg:squarederror"),
        ({"objective": "multi:softprob", "num_class": 2}, "multi:softprob"),
        ({"objective": "binary:logistic", "booster": "dart"}, "dart"),
        ({"objective": "binary:logistic", "booster": "gblinear"}, "gblinear"),
    ):
        raw = bytes(xgb.train({**settings_, "nthread": 1}, data, 1).save_raw("json"))
        with pytest.raises(DataError, match=message):
            from_xgboost_json(raw)


def test_broken_models_are_refused(theirs, tmp_path):
    raw = bytes(theirs.booster.save_raw("json"))
    with pytest.raises(DataError, match="not JSON"):
        from_xgboost_json(raw[: len(raw) // 2])
    with pytest.raises(DataError, match="not JSON"):
        from_xgboost_json(bytes(theirs.booster.save_raw("ubj")))
    with pytest.raises(DataError, match="cannot read"):
        from_xgboost_json(tmp_path / "absent.json")
    with pytest.raises(DataError, match="learner"):
        from_xgboost_json({"version": [3, 0, 0]})


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("left_children", lambda a: a[:-1]),
        ("left_children", lambda a: [5, *a[1:]]),
        ("right_children", lambda a: [-1, *a[1:]]),
        ("left_children", lambda a: [0, *a[1:]]),
        ("split_conditions", lambda a: ["x", *a[1:]]),
        ("split_type", lambda a: [1, *a[1:]]),
        ("sum_hessian", None),
    ],
)
def test_damaged_trees_are_refused(theirs, key, change):
    model = copy.deepcopy(theirs.model)
    tree = model["learner"]["gradient_booster"]["model"]["trees"][3]
    if change is None:
        del tree[key]
    else:
        tree[key] = change(tree[key])
    with pytest.raises(DataError):
        from_xgboost_json(model)


def test_names_and_width_must_fit(cancer):
    X, y = cancer
    forest = grow_forest(X, y, quantile_cuts(X), TreeParams(trees=3))
    with pytest.raises(DataError, match="2 feature names"):
        to_xgboost_json(forest, X.shape[1], ["a", "b"])
    with pytest.raises(DataError, match="given 1"):
        to_xgboost_json(forest, 1)
    with pytest.raises(DataError, match="without trees"):
        to_xgboost_json(forest.first(0), X.shape[1])
