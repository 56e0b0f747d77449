from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import saved_models
import xgboost as xgb
import xgboost_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.errors import DataError
from fedtrees.model_audit import read_model
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.grower import TreeBuilder
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.files import model_file
from fedtrees.trees.files.models import load_model
from fedtrees.trees.files.xgboost import from_xgboost_json, save_xgboost, to_xgboost_json

PARAMS = TreeParams(trees=12, max_depth=4)


@pytest.fixture(scope="module")
def reference_model(cancer_missing):
    return reference.train(*cancer_missing, PARAMS)


def loaded(model):
    booster = xgb.Booster()
    booster.load_model(bytearray(json.dumps(model).encode()))
    return booster


EXTREME = (0.0, 1e-45, -1e-45, 1e-38, 3e38, np.inf, -np.inf)  # thresholds a LightGBM model may have
OBJECTIVES = (LOGISTIC, SQUARED_ERROR, Softmax(2), Softmax(3))


@st.composite
def forests(draw):
    """Draw random trees over 3 features, including single leaves, for every objective."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    objective = draw(st.sampled_from(OBJECTIVES))
    trees = []
    for _ in range(draw(st.integers(1, 3)) * objective.n_outputs):
        builder, level = TreeBuilder(), np.array([0])
        for _ in range(draw(st.integers(1, 4))):
            n_nodes = len(level)
            left = builder.expand(
                level,
                rng.integers(-1, 3, n_nodes),
                np.where(
                    rng.random(n_nodes) < 0.8,
                    rng.normal(size=n_nodes),
                    rng.choice(EXTREME, n_nodes),
                ),
                rng.random(n_nodes) < 0.5,
                rng.random(n_nodes),
            )
            level = np.concatenate([left[left >= 0], left[left >= 0] + 1])
        leaves = builder.build().leaves
        builder.set_values(leaves, rng.normal(size=len(leaves)))
        builder.set_sums(np.arange(len(builder)), rng.random((len(builder), 2)))
        trees.append(builder.build())
    start = rng.uniform(-4, 4, objective.n_outputs) * draw(st.sampled_from([0, 1e-3, 1]))
    return Forest(tuple(trees), start.astype(np.float32), objective)


@pytest.mark.long
@settings(max_examples=40)
@given(forests())
def test_written_forests_read_back_equal_and_predict_the_same(forest):
    model = json.loads(json.dumps(to_xgboost_json(forest, 3, ["a", "b", "c"])))
    imported = from_xgboost_json(model)
    assert imported.objective == forest.objective
    if forest.objective == LOGISTIC:  # the base score is a probability: half a float32 digit of it
        np.testing.assert_allclose(imported.base_margin, forest.base_margin, rtol=1e-6, atol=4e-6)
    else:
        np.testing.assert_array_equal(imported.base_margin, forest.base_margin)
    assert_same_trees(imported, forest)
    X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    X[::7, 1] = np.nan
    X[::5] = 0
    data = xgb.DMatrix(X, feature_names=["a", "b", "c"])
    booster = loaded(model)
    # XGBoost adds up to 4 trees in float32 in an order of its own.
    np.testing.assert_allclose(
        booster.predict(data, output_margin=True), forest.margin(X), atol=8e-6, rtol=0
    )
    np.testing.assert_allclose(booster.predict(data), forest.predict(X), atol=8e-6, rtol=0)
    assert booster.num_boosted_rounds() == forest.rounds
    assert_same_trees(from_xgboost_json(bytes(booster.save_raw("json"))), forest)
    assert_same_trees(from_xgboost_json(bytes(booster.save_raw("ubj"))), forest)


def assert_same_trees(imported, forest):
    assert len(imported) == len(forest)
    for tree, imported_tree in zip(forest.trees, imported.trees, strict=True):
        for name in ("feature", "left", "right", "default_left", "threshold", "value", "gain"):
            np.testing.assert_array_equal(
                getattr(tree, name), getattr(imported_tree, name), err_msg=name
            )
        np.testing.assert_array_equal(tree.h.astype(np.float32), imported_tree.h.astype(np.float32))


@pytest.mark.parametrize("score", [1e-6, 0.1, 0.42500001192092896, 1 / 3, 0.9999999])
def test_base_scores_are_written_in_nine_digits_or_fewer(score):
    # XGBoost before 3.1 starts from 0.5 if there are more, without a word.
    leaf = TreeBuilder().build()
    for objective in (LOGISTIC, SQUARED_ERROR):
        forest = Forest((leaf,), objective.base_margin(score), objective)
        text = to_xgboost_json(forest, 1)["learner"]["learner_model_param"]["base_score"]
        assert len(text.split("E")[0].replace(".", "").lstrip("-")) <= 9
        assert objective.base_margin(float(text)) == forest.base_margin


def test_only_unequal_class_margins_need_a_new_xgboost():
    leaf = TreeBuilder().build()
    for margins, version, score in (
        ([0.5, 0.5, 0.5], [2, 1, 0], "5E-1"),
        ([0.5, 0.25, -1.0], [3, 1, 0], "[5E-1,2.5E-1,-1E0]"),
    ):
        model = to_xgboost_json(Forest((leaf,) * 3, np.array(margins), Softmax(3)), 1)
        assert model["version"] == version
        assert model["learner"]["learner_model_param"]["base_score"] == score


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{o.name}-{o.n_outputs}")
def test_written_files_serve_in_scikit_learn_models(objective, tmp_path):
    k = objective.n_outputs
    builder = TreeBuilder()
    builder.set_values(builder.expand([0], [1], [0.5], [True]), [1.0])
    forest = Forest((builder.build(),) * k, np.linspace(0.2, 1, k), objective)
    path = tmp_path / "model.json"
    save_xgboost(forest, path, 2, ["a", "b"])
    assert_same_trees_without_sums(load_model(path), forest)
    X = np.array([[0, 0], [0, 1], [0, np.nan]], dtype=np.float32)
    if objective == SQUARED_ERROR:
        model = xgb.XGBRegressor()
        model.load_model(path)
        np.testing.assert_allclose(model.predict(X), forest.predict(X), atol=1e-6)
        return
    classifier = xgb.XGBClassifier()
    classifier.load_model(path)
    p = forest.predict(X)
    p = np.stack([1 - p, p], axis=1) if k == 1 else p
    np.testing.assert_allclose(classifier.predict_proba(X), p, atol=1e-6)
    if k != 2:  # XGBClassifier.predict takes a softmax of two classes for two labels
        np.testing.assert_array_equal(classifier.predict(X), p.argmax(axis=1))


def assert_same_trees_without_sums(imported, forest):
    for tree, imported_tree in zip(forest.trees, imported.trees, strict=True):
        for name in ("feature", "left", "right", "default_left", "threshold", "value"):
            np.testing.assert_array_equal(
                getattr(tree, name), getattr(imported_tree, name), err_msg=name
            )


def test_files_that_cannot_be_written_are_named(tmp_path):
    forest = Forest((TreeBuilder().build(),), np.float32(0))
    with pytest.raises(DataError, match="cannot write"):
        save_xgboost(forest, tmp_path / "absent" / "model.json", 1)
    with pytest.raises(DataError, match="not finite"):
        to_xgboost_json(Forest(forest.trees, np.float32(np.inf), SQUARED_ERROR), 1)
    with pytest.raises(DataError, match="no log-odds"):
        to_xgboost_json(Forest(forest.trees, np.float32(-200)), 1)
    with pytest.raises(DataError, match="no log-odds"):
        to_xgboost_json(Forest(forest.trees, np.float32(16.3)), 1)


def test_exported_models_predict_as_ours(cancer_missing):
    X, y = cancer_missing
    forest = grow_forest(X, y, quantile_cuts(X), PARAMS)
    booster = loaded(to_xgboost_json(forest, X.shape[1], params=PARAMS))
    np.testing.assert_allclose(
        booster.predict(xgb.DMatrix(X)), forest.predict(X), atol=1e-6, rtol=0
    )
    leaves = booster.predict(xgb.DMatrix(X), pred_leaf=True)
    np.testing.assert_array_equal(leaves, forest.apply(X))


def test_statistics_are_exported_as_xgboost_writes_them(cancer_missing, reference_model):
    X, y = cancer_missing
    forest = grow_forest(X, y, reference_model.cuts, PARAMS)
    exported = to_xgboost_json(forest, X.shape[1], params=PARAMS)["learner"]["gradient_booster"]
    for exported_tree, reference_tree in zip(
        exported["model"]["trees"], reference_model.trees, strict=True
    ):
        for name in ("parents", "left_children", "right_children", "split_indices"):
            assert exported_tree[name] == reference_tree[name], name
        for name in ("base_weights", "sum_hessian", "loss_changes"):
            np.testing.assert_allclose(
                exported_tree[name], reference_tree[name], rtol=1e-4, atol=2e-5, err_msg=name
            )


def test_a_model_of_xgboost_is_imported(cancer_missing, reference_model, tmp_path):
    X, y = cancer_missing
    path = tmp_path / "model.json"
    reference_model.booster.save_model(path)
    trained = grow_forest(X, y, reference_model.cuts, PARAMS)
    raw = bytes(reference_model.booster.save_raw("json"))
    for model in (path, str(path), raw, reference_model.model):
        forest = from_xgboost_json(model, learning_rate=0.3, reg_lambda=1.0)
        np.testing.assert_allclose(forest.margin(X), reference_model.margin(X), atol=2e-6, rtol=0)
        for imported, own_tree in zip(forest.trees, trained.trees, strict=True):
            np.testing.assert_allclose(imported.h, own_tree.h, rtol=1e-5)
            np.testing.assert_allclose(imported.g, own_tree.g, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(imported.gain, own_tree.gain, rtol=1e-3, atol=2e-5)
    assert from_xgboost_json(raw).trees[0].g is None


@pytest.mark.parametrize("text", ["6.2741655E-1", "[6.2741655E-1]", "0.62741655", 0.62741655])
def test_base_scores_of_all_versions_are_read(reference_model, text):
    model = reference_model.model
    model["learner"]["learner_model_param"]["base_score"] = text
    assert from_xgboost_json(model).base_margin == pytest.approx(0.521149, abs=1e-5)


@pytest.mark.parametrize("name", saved_models.names("xgboost"))
def test_models_of_all_versions_predict_as_they_did(name):
    forest = load_model(saved_models.FOLDER / name)
    # expected.json has seven digits; XGBoost's float32 sums differ in the last.
    np.testing.assert_allclose(
        forest.margin(saved_models.ROWS), saved_models.MARGINS[name], rtol=3e-7, atol=3e-7
    )
    assert all(t.h is not None and t.h[0] > 0 for t in forest.trees)


@pytest.mark.parametrize("version", ["1.7.6", "2.1.4", "3.0.5", "3.1.1", "3.2.0"])
def test_ubj_and_json_are_the_same_model(version):
    stem = f"xgboost-{version}-multiclass"
    of_ubj = from_xgboost_json(saved_models.FOLDER / f"{stem}.ubj")
    of_json = from_xgboost_json(saved_models.FOLDER / f"{stem}.json")
    assert_same_trees(of_ubj, of_json)
    np.testing.assert_array_equal(of_ubj.base_margin, of_json.base_margin)


def test_gradient_sums_of_parallel_trees_use_their_share_of_the_learning_rate():
    # lambda 1, eta 0.3 in three parallel trees: the leaves of an inner node must sum up to it.
    path = saved_models.FOLDER / "xgboost-3.2.0-parallel.json"
    for tree in from_xgboost_json(path, learning_rate=0.3, reg_lambda=1.0).trees:
        for node in np.flatnonzero(tree.feature >= 0):
            parts = tree.g[tree.left[node]] + tree.g[tree.right[node]]
            assert parts == pytest.approx(tree.g[node], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("changed_settings", "message"),
    [
        ({"booster": "gblinear"}, "'gblinear'"),
        ({"objective": "reg:gamma"}, "reg:gamma.*reg:squarederror"),
        ({"objective": "rank:pairwise"}, "rank:pairwise"),
    ],
)
def test_other_boosters_and_objectives_are_refused(cancer, changed_settings, message):
    X, y = cancer
    changed_settings = {"objective": "binary:logistic", "nthread": 1, **changed_settings}
    raw = xgb.train(changed_settings, xgb.DMatrix(X, y + 1 if "gamma" in message else y), 1)
    with pytest.raises(DataError, match=message):
        from_xgboost_json(bytes(raw.save_raw("json")))


def test_leaves_of_several_outputs_are_refused():
    rng = np.random.default_rng(0)
    X, Y = rng.integers(0, 4, (60, 2)).astype(np.float32), rng.normal(size=(60, 2))
    vector = {"multi_strategy": "multi_output_tree", "nthread": 1}
    several = xgb.train({**vector, "objective": "reg:squarederror"}, xgb.DMatrix(X, Y), 1)
    with pytest.raises(DataError, match=r"^model has 2 targets"):
        from_xgboost_json(bytes(several.save_raw("json")))
    softprob = {**vector, "objective": "multi:softprob", "num_class": 4}
    classes = xgb.train(softprob, xgb.DMatrix(X, X[:, 0]), 1)
    with pytest.raises(DataError, match="one_output_per_tree"):
        from_xgboost_json(bytes(classes.save_raw("json")))


def test_broken_models_are_refused(reference_model, tmp_path, monkeypatch):
    raw = bytes(reference_model.booster.save_raw("json"))
    for data, message in (
        (raw[: len(raw) // 2], "not JSON"),
        (b"\xff" + raw, "not JSON"),
        (b'{"learner": ' + b"[" * 100_000, "not JSON"),
        (b"[]", "learner"),
        (b'{"learner": 3}', "learner"),
        (b'{"learner": {}}', "not a complete"),
    ):
        with pytest.raises(DataError, match=message):
            from_xgboost_json(data)
    with pytest.raises(DataError, match="cannot read"):
        from_xgboost_json(tmp_path / "absent.json")
    with pytest.raises(DataError, match="cannot read"):
        from_xgboost_json(tmp_path)
    with pytest.raises(DataError, match="learner"):
        from_xgboost_json({"version": [3, 0, 0]})
    reference_model.booster.save_model(tmp_path / "model.json")
    monkeypatch.setattr(model_file, "MAX_MODEL_BYTES", len(raw) - 1)
    with pytest.raises(DataError, match=f"larger than {len(raw) - 1} bytes"):
        from_xgboost_json(tmp_path / "model.json")


@pytest.mark.parametrize("seed", range(5))
def test_truncated_ubj_is_refused(seed):
    raw = (saved_models.FOLDER / "xgboost-3.2.0-multiclass.ubj").read_bytes()
    for cut in np.random.default_rng(seed).integers(2, len(raw) - 1, 40):
        with pytest.raises(DataError):
            from_xgboost_json(raw[:cut])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_class", "1000000000", "1000000000 classes and 6 trees"),
        ("num_class", "1", "1 classes"),
        ("num_class", "4", "base score"),
        ("num_class", "many", "not a complete"),
        ("num_target", "2", "2 targets"),
        ("num_feature", "1", "the model has 1"),
        ("base_score", "[1,2]", "base score"),
        ("base_score", "[1,NaN,2]", "base score"),
        ("base_score", "1E99", "base score"),
        ("base_score", "half", "not a complete"),
        ("base_score", [[0.5]], "base score"),
    ],
)
def test_damaged_counts_and_scores_are_refused(key, value, message):
    model = json.loads((saved_models.FOLDER / "xgboost-3.2.0-multiclass.json").read_text())
    model["learner"]["learner_model_param"][key] = value
    with pytest.raises(DataError, match=message):
        from_xgboost_json(model)


@pytest.mark.parametrize("info", [[0, 1, 2], [0, 1, 2, 0, 1, 3], [0.5] * 6, 7, [0, 1, 2, 0, 1, 1]])
def test_trees_must_divide_into_the_outputs(info):
    model = json.loads((saved_models.FOLDER / "xgboost-3.2.0-multiclass.json").read_text())
    model["learner"]["gradient_booster"]["model"]["tree_info"] = info
    with pytest.raises(DataError, match="6 trees"):
        from_xgboost_json(model)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("left_children", lambda a: a[:-1]),
        ("left_children", lambda a: [5, *a[1:]]),
        ("right_children", lambda a: [-1, *a[1:]]),
        ("left_children", lambda a: [0, *a[1:]]),
        ("left_children", lambda a: [10**30, *a[1:]]),
        ("left_children", lambda a: [10**9, *a[1:]]),
        ("left_children", lambda a: [1.5, *a[1:]]),
        ("left_children", lambda a: []),
        ("left_children", lambda a: [a]),
        ("default_left", lambda a: [2, *a[1:]]),
        ("split_indices", lambda a: [10**6, *a[1:]]),
        ("split_indices", lambda a: [-1, *a[1:]]),
        ("split_indices", lambda a: [2**31 - 1, *a[1:]]),
        ("split_conditions", lambda a: ["x", *a[1:]]),
        ("split_conditions", lambda a: [float("nan"), *a[1:]]),
        ("split_conditions", lambda a: [*a[:-1], 1e300]),
        ("split_type", lambda a: [1, *a[1:]]),
        ("sum_hessian", None),
    ],
)
def test_damaged_trees_are_refused(reference_model, key, change):
    model = copy.deepcopy(reference_model.model)
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


def test_a_truncated_model_is_refused_by_file_rule_and_remedy(reference_model, tmp_path):
    file = tmp_path / "cut.json"
    raw = bytes(reference_model.booster.save_raw("json"))
    complete_model = json.loads(raw)
    cases = [(raw[: len(raw) // 2], "is not JSON"), (b"{}", "no 'learner' object")]
    for name in ("objective", "gradient_booster", "learner_model_param"):
        learner = {key: value for key, value in complete_model["learner"].items() if key != name}
        rule = f"lacks the entry '{name}', which every model of XGBoost contains"
        cases.append((json.dumps({**complete_model, "learner": learner}).encode(), rule))
    cases.append((reference_model.booster.save_config().encode(), "lacks the entry 'model'"))
    ubj = bytes(reference_model.booster.save_raw("ubj"))
    cases.append((ubj[: len(ubj) // 2], "the UBJSON ends at byte"))
    for data, rule in cases:
        file.write_bytes(data)
        for read_function in (load_model, read_model):
            with pytest.raises(DataError) as error_info:
                read_function(file)
            text = str(error_info.value)
            assert text.startswith(f"{file}: ")
            assert rule in text
            assert "save the model again by save_model('model.json')" in text
            assert "KeyError" not in text
