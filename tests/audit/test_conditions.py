"""Sentences about rows state the conditions that a model file cannot show."""

import json

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import trained_models as trained
import xgboost as xgb
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

from fedtrees import load_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.audit import ONCE, SAMPLED
from fedtrees.model_audit.rows import Columns, read_rows
from fedtrees.model_audit.scrub import scrub
from fedtrees.model_audit.tables import check_labels, leaves_table
from fedtrees.model_audit.verdict import advice, leftovers, to_json, verdict
from fedtrees.trees.files.forests import from_sklearn, save_random_forest

NAMES_CATEGORIES = tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 1)


def small_table():
    X, y = trained.table()
    return X[:190, :6], y[:190]


@pytest.mark.parametrize("how", ["weights of 2", "a custom objective"])
def test_doubled_counts_are_conditional_and_their_common_factor_is_named(tmp_path, how):
    def doubled(margin, data):
        return 2 * (margin - data.get_label()), np.full(len(margin), 2.0)

    (X, y), custom = small_table(), how == "a custom objective"
    params = {"objective": "reg:squarederror", "max_depth": 3, "nthread": 1}
    data = xgb.DMatrix(X, y, weight=None if custom else np.full(190, 2.0))
    booster = xgb.train(params, data, 3, obj=doubled if custom else None)
    booster.save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert report.rows.n == 380
    lines = verdict(report)
    assert lines[0].startswith(f"If {ONCE}, the file reveals exactly")
    assert "In that case it was trained on at least 380 rows" in lines[0]
    assert any(line.startswith("All counts are multiples of 2") for line in lines)
    assert to_json(report)["assumes"] == [ONCE]


def test_trees_of_samples_are_recognised(tmp_path):
    """As in XGBRFClassifier, the trees of one round have different total numbers of rows."""
    X, y = small_table()
    params = trained.PARAMS | {"eta": 1.0, "num_parallel_tree": 6, "subsample": 0.8}
    xgb.train(params, xgb.DMatrix(X, y), 1).save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert len({tree.rows for tree in report.trees}) > 1
    assert report.assumes == (SAMPLED,)
    text = " ".join(verdict(report))
    assert "how many of the rows on which each tree was grown are in" in text
    assert "other rows of the table may belong to the same leaves" in text


def count_wrong_single_leaves(report, reached):
    """Return how many leaves are wrongly called single, and how many wrongly isolated."""
    n_wrong = {"single": 0, "isolated": 0}
    for tree in report.trees:
        for kind in n_wrong:
            for leaf in tree.leaf[getattr(tree, kind)].tolist():
                n_wrong[kind] += (
                    reached[:, tree.index] == report.model.number_of(tree.at, leaf)
                ).sum() != 1
    return n_wrong


@pytest.mark.parametrize("maker", ["forest", "bagging", "goss"])
def test_a_leaf_of_one_sampled_row_is_not_called_one_person(tmp_path, maker):
    X, y = small_table()
    path = tmp_path / "m"
    if maker == "forest":
        fitted = RandomForestClassifier(4, random_state=0, n_jobs=1).fit(X, y)
        save_random_forest(from_sklearn(fitted), path)
        reached = load_model(path).apply(X)
    else:
        params = {"objective": "binary", "min_data_in_leaf": 1, "num_leaves": 40, "verbose": -1}
        params |= {"learning_rate": 0.5, "num_threads": 1, "min_sum_hessian_in_leaf": 0}
        sampled = {"bagging_freq": 1, "bagging_fraction": 0.5}
        params |= sampled if maker == "bagging" else {"data_sample_strategy": "goss"}
        booster = lgb.train(params, lgb.Dataset(X, y), 5)
        booster.save_model(path)
        reached = booster.predict(X, pred_leaf=True).reshape(len(X), -1)
    report = audit(read_model(path))
    n_wrong = count_wrong_single_leaves(report, reached)
    assert n_wrong["single"] > 0
    assert n_wrong["isolated"] == 0
    text = " ".join(verdict(report))
    assert "exactly one of the rows on which the tree was grown" in text
    assert "exactly one row" not in text


def test_a_leaf_with_one_row_of_the_table_is_called_one_person(tmp_path):
    X, y = small_table()
    params = {"objective": "binary", "min_data_in_leaf": 1, "num_leaves": 40, "verbose": -1}
    params |= {"num_threads": 1, "min_sum_hessian_in_leaf": 0}
    booster = lgb.train(params, lgb.Dataset(X, y), 3)
    booster.save_model(tmp_path / "m.txt")
    report = audit(read_model(tmp_path / "m.txt"))
    assert report.summary.isolated == report.summary.single > 0
    assert count_wrong_single_leaves(report, booster.predict(X, pred_leaf=True))["isolated"] == 0
    assert "exactly one row for certain" in " ".join(verdict(report))


def train_dart(path, **params):
    X, y = small_table()
    settings = trained.PARAMS | {"booster": "dart", "rate_drop": 0.5, "seed": 1} | params
    booster = xgb.train(settings, xgb.DMatrix(X, y), 8)
    booster.save_model(path)
    return booster


def convert_to_format_of_xgboost_3_3(path):
    """Move the weights of a DART model to the place of its trees, as in files of XGBoost 3.3."""
    model = json.loads(path.read_text())
    booster = model["learner"]["gradient_booster"]
    if booster["name"] == "dart":
        trees = booster["gbtree"]["model"] | {"weight_drop": booster["weight_drop"]}
        model["learner"]["gradient_booster"] = {"name": "gbtree", "model": trees}
    path.write_text(json.dumps(model))


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("params", [{}, {"objective": "multi:softprob", "num_class": 2}])
def test_a_dart_model_predicts_with_the_weights_of_its_trees(tmp_path, newer, params):
    booster, X = train_dart(tmp_path / "m.json", **params), small_table()[0]
    if newer:
        convert_to_format_of_xgboost_3_3(tmp_path / "m.json")
    forest = load_model(tmp_path / "m.json")
    expected = booster.predict(xgb.DMatrix(X), output_margin=True)
    np.testing.assert_allclose(forest.margin(X), expected, atol=1e-5)


def test_no_count_of_a_dart_model_is_certain(tmp_path):
    train_dart(tmp_path / "m.json")
    convert_to_format_of_xgboost_3_3(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert report.summary.counted == 0
    assert report.rows.n is None
    assert report.sources.kind == "one"
    assert not any((tree.at_least > 0).any() for tree in report.trees)
    assert "DART" in verdict(report)[0]
    with pytest.raises(UsageError, match="DART"):
        scrub(read_model(tmp_path / "m.json"), tmp_path / "s.json")


def test_a_dart_model_without_a_weight_for_every_tree_is_refused(tmp_path):
    train_dart(tmp_path / "m.json")
    convert_to_format_of_xgboost_3_3(tmp_path / "m.json")
    model = json.loads((tmp_path / "m.json").read_text())
    model["learner"]["gradient_booster"]["model"]["weight_drop"].pop()
    (tmp_path / "m.json").write_text(json.dumps(model))
    with pytest.raises(DataError, match="weight_drop of shape"):
        load_model(tmp_path / "m.json")


@pytest.fixture(scope="module")
def early_stopped_model(tmp_path_factory):
    """Return an early stopped model, whose file has more rounds than the model predicts with."""
    X, y = small_table()
    rng = np.random.default_rng(0)
    model = xgb.XGBClassifier(
        n_estimators=40, early_stopping_rounds=5, max_depth=3, n_jobs=1, learning_rate=1.0
    )
    noisy = np.where(rng.random(len(y) - 140) < 0.3, 1 - y[140:], y[140:])
    model.fit(X[:140], y[:140], eval_set=[(X[140:], noisy)], verbose=False)
    path = tmp_path_factory.mktemp("stopped") / "m.json"
    # XGBoost's scikit-learn interface writes this attribute to its files.
    model.get_booster().set_attr(scikit_learn='{"_estimator_type": "classifier"}')
    model.get_booster().save_model(path)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return path, model, X


def test_an_early_stopped_model_predicts_with_its_best_iteration(early_stopped_model, tmp_path):
    path, model, X = early_stopped_model
    assert load_model(path).rounds == model.best_iteration + 1
    np.testing.assert_allclose(load_model(path).predict(X), model.predict_proba(X)[:, 1], atol=1e-6)
    model_to_audit = read_model(path)
    assert model_to_audit.forest.rounds == model.get_booster().num_boosted_rounds()
    assert model_to_audit.served.rounds == model.best_iteration + 1
    assert "(best_iteration)" in " ".join(verdict(audit(model_to_audit)))
    scrub(model_to_audit, tmp_path / "s.json")
    assert load_model(tmp_path / "s.json").rounds == model.best_iteration + 1


def test_a_booster_predicts_with_all_rounds(early_stopped_model, tmp_path):
    path, model, X = early_stopped_model
    file = json.loads(path.read_text())
    del file["learner"]["attributes"]["scikit_learn"]
    (tmp_path / "m.json").write_text(json.dumps(file))
    expected = xgb.Booster(model_file=tmp_path / "m.json").predict(xgb.DMatrix(X))
    np.testing.assert_allclose(load_model(tmp_path / "m.json").predict(X), expected, atol=1e-6)
    assert load_model(tmp_path / "m.json").rounds > model.best_iteration + 1


def test_a_best_iteration_outside_the_rounds_is_refused(early_stopped_model, tmp_path):
    file = json.loads(early_stopped_model[0].read_text())
    file["learner"]["attributes"]["best_iteration"] = "500"
    (tmp_path / "m.json").write_text(json.dumps(file))
    with pytest.raises(DataError, match="best_iteration '500' is none of its"):
        load_model(tmp_path / "m.json")


def audit_with_table(folder, frame, **columns):
    frame.to_csv(folder / "t.csv", index=False)
    model = read_model(folder / "m.json")
    (table,), _ = read_rows(model, [str(folder / "t.csv")], Columns(target="label", **columns))
    return audit(model), table


@pytest.mark.parametrize("scrubbed", [False, True])
def test_swapped_labels_are_refused_with_the_correct_coding(tmp_path, scrubbed):
    X, y = small_table()
    xgb.train(trained.PARAMS, xgb.DMatrix(X, y), 3).save_model(tmp_path / "m.json")
    if scrubbed:  # The base score still equals the share of class 1.
        scrub(read_model(tmp_path / "m.json"), tmp_path / "s.json")
        (tmp_path / "s.json").replace(tmp_path / "m.json")
    frame = pd.DataFrame(X).assign(label=np.where(y == 1, "benign", "malignant"))
    report, table = audit_with_table(tmp_path, frame)
    with pytest.raises(DataError, match="give --positive 'benign'"):
        check_labels(report, [table])
    check_labels(report, [audit_with_table(tmp_path, frame, positive="benign")[1]])
    # Other rows show no contradiction.
    check_labels(report, [audit_with_table(tmp_path, frame[:150])[1]])


def test_several_classes_in_another_order_are_refused(tmp_path):
    X, y = load_iris(return_X_y=True)
    X, y = X[:130], y[:130]  # The classes have 50, 50 and 30 rows.
    params = {"objective": "multi:softprob", "num_class": 3, "max_depth": 2, "nthread": 1}
    xgb.train(params, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert all(tree.exact.all() for tree in report.trees[:3])
    frame = pd.DataFrame(X).assign(label=np.array(["c", "b", "a"])[y])
    with pytest.raises(DataError, match="coded in another order"):
        check_labels(report, [audit_with_table(tmp_path, frame)[1]])
    report, table = audit_with_table(tmp_path, frame.assign(label=y))
    check_labels(report, [table])


@pytest.mark.skipif(not NAMES_CATEGORIES, reason="XGBoost before 3.1 writes no names")
def test_names_of_categories_are_reported_and_keep_a_copy_from_being_called_safe(tmp_path):
    """Two persons live on the island, and one leaf contains only them."""
    rng = np.random.default_rng(0)
    city = np.array(["Berlin", "Hooge", "Ulm"])[rng.integers(0, 2, 300) * 2]
    city[:2] = "Hooge"
    y = np.where(city == "Hooge", 1, rng.random(300) < np.where(city == "Ulm", 0.3, 0.1))
    X = pd.DataFrame({"city": pd.Categorical(city)})
    params = trained.PARAMS | {"max_cat_to_onehot": 5, "min_child_weight": 0, "max_depth": 2}
    data = xgb.DMatrix(X, y.astype(int), enable_categorical=True)
    xgb.train(params, data, 2).save_model(tmp_path / "m.json")
    model = read_model(tmp_path / "m.json")
    report = audit(model, Known())
    lines = verdict(report)
    assert any(
        "names 3 categories of 1 column (city: Berlin, Hooge, Ulm)" in line for line in lines
    )
    assert any("have city Hooge (2 at most)" in line for line in lines)
    assert any(field.name == "cats" and field.state == "present" for field in report.fields)
    scrubbing = scrub(model, tmp_path / "s.json")
    copy = read_model(tmp_path / "s.json")
    assert copy.categories == model.categories
    assert any("is not safe to share" in line for line in leftovers(report, audit(copy), scrubbing))
    assert "if no category" in advice(report, scrubbed=True)[0]


def test_a_model_with_thresholds_of_another_party_shows_its_leaf_counts(tmp_path):
    """A secure vertical training writes NaN for the thresholds on columns of other parties."""
    model_file = trained.central(tmp_path / "whole.json", 3)
    complete_report = audit(read_model(model_file.path))

    def hide(tree):
        is_inner = np.array(tree["left_children"]) >= 0
        is_foreign = is_inner & (np.array(tree["split_indices"]) % 2 == 0)
        tree["split_conditions"] = np.where(is_foreign, np.nan, tree["split_conditions"]).tolist()

    path = trained.edit_trees(model_file.path, tmp_path / "m.json", hide)
    report = audit(read_model(path))
    assert report.trees[0].exact.all()
    for one_tree, complete_tree in zip(report.trees, complete_report.trees, strict=True):
        for name in ("n", "n_pos", "at_least"):
            assert np.array_equal(getattr(one_tree, name), getattr(complete_tree, name))
    assert "thresholds are not in this file" in " ".join(verdict(report))
    assert any("a hidden threshold" in line[-1] for line in leaves_table(report).lines)
    with pytest.raises(DataError, match="secure vertical"):
        load_model(path)
    with pytest.raises(UsageError, match="another party"):
        scrub(read_model(path), tmp_path / "s.json")
    rows = pd.DataFrame(model_file.X).assign(label=model_file.y)
    rows.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="audit it without tables"):
        read_rows(read_model(path), [str(tmp_path / "t.csv")], Columns(target="label"))


def test_names_of_categories_in_a_lightgbm_file_are_reported_and_code_the_rows(tmp_path):
    rng = np.random.default_rng(0)
    size = pd.Categorical(rng.choice(["low", "mid", "high"], 200), ["low", "mid", "high"])
    X = pd.DataFrame({"v": rng.normal(size=200), "size": size})
    params = {"objective": "binary", "verbose": -1, "num_threads": 1, "num_leaves": 3}
    booster = lgb.train(params, lgb.Dataset(X, (X.v > 0).astype(int)), 2)
    booster.save_model(tmp_path / "m.json")
    report, table = audit_with_table(tmp_path, X.assign(label=(X.v > 0).astype(int)))
    assert np.array_equal(table.table.X[:, 1], size.codes)
    assert any("(size: low, mid, high)" in line for line in verdict(report))
    assert any(field.name == "pandas_categorical" for field in report.fields)


def test_booleans_of_a_table_are_converted_to_numbers(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"smoker": rng.random(80) < 0.5, "age": rng.normal(size=80)})
    y = (X.smoker ^ (X.age > 1)).astype(int)
    xgb.train(trained.PARAMS, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    _, table = audit_with_table(tmp_path, X.assign(label=y))
    assert np.array_equal(table.table.X[:, 0], X.smoker)
