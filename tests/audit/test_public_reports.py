"""Situations from public bug reports about other software, reproduced here with small inputs.

The page docs/reference/reports.md lists the reports and the outcomes. A test compares its table
with the names of these tests.
"""

import json
import re
from pathlib import Path

import lightgbm as lgb
import numpy as np
import openpyxl
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.ensemble import RandomForestClassifier

from fedtrees import FederatedGBDTClassifier, load_model
from fedtrees.core.errors import DataError
from fedtrees.data.client_tables import load_joined
from fedtrees.data.csv_file import Reading
from fedtrees.data.user_tables import load_csv
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.rows import Columns, read_rows
from fedtrees.model_audit.verdict import to_json, verdict
from fedtrees.trees.files.forests import from_sklearn, save_random_forest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "reports.md"
N = 300
NONE = (0.0, 1e-6)  # No difference except rounding.


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] + rng.normal(0, 0.5, N) > 0).astype(int)


@pytest.fixture
def with_missing_values(table):
    X = table[0].copy()
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    return X


def prediction_difference(path, X, expected):
    return float(np.abs(np.asarray(load_model(path).predict(X)) - expected).max())


def assert_refused_by_both(path, message):
    for read in (load_model, read_model):
        with pytest.raises(DataError, match=message):
            read(path)


def train_xgboost(path, X, y, weight=None, rounds=2, **params):
    params = {"objective": "binary:logistic", "max_depth": 2, "nthread": 1, **params}
    booster = xgb.train(params, xgb.DMatrix(X, y, weight=weight), rounds)
    booster.save_model(path)
    return booster


def train_lightgbm(path, X, y, rounds=8, **params):
    params = {"objective": "binary", "verbose": -1, "num_threads": 1, **params}
    booster = lgb.train(params, lgb.Dataset(X, y), rounds)
    booster.save_model(path)
    return booster


def write_csv(path, values, head="a,b,y"):
    """Write a CSV file of rows with these cells in the first column."""
    lines = [f"{value},{(7 * i % 60) / 8},{i % 2}" for i, value in enumerate(values)]
    path.write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    return path


def write_german_csv(path, values):
    """Write a CSV file with semicolons and decimal commas."""
    lines = [f"{value};{i},{i % 10};{i % 2}" for i, value in enumerate(values)]
    path.write_text("\n".join(["a;b;y", *lines, ""]), encoding="utf-8")
    return path


def test_xgboost_6859_a_json_file_scores_as_the_model_in_memory(
    table, with_missing_values, tmp_path
):
    model = xgb.XGBClassifier(n_estimators=20, max_depth=4, n_jobs=1).fit(
        with_missing_values, table[1]
    )
    model.save_model(tmp_path / "m.json")
    expected = model.predict_proba(with_missing_values)[:, 1]
    assert prediction_difference(tmp_path / "m.json", with_missing_values, expected) <= 1e-6


def test_xgboost_5276_a_base_score_of_zero(table, tmp_path):
    X, y = table
    train_xgboost(tmp_path / "m.json", X, y, base_score=0.5)
    model = json.loads((tmp_path / "m.json").read_text())
    for score in ("-0E0", "0E0", "1E0"):
        model["learner"]["learner_model_param"]["base_score"] = score
        (tmp_path / "m.json").write_text(json.dumps(model))
        expected = xgb.Booster(model_file=tmp_path / "m.json").predict(xgb.DMatrix(X))
        assert prediction_difference(tmp_path / "m.json", X, expected) <= 1e-6
    model["learner"]["learner_model_param"]["base_score"] = "1.5E0"
    (tmp_path / "m.json").write_text(json.dumps(model))
    assert_refused_by_both(tmp_path / "m.json", "is no probability")


@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_xgboost_5529_a_base_score_whose_bytes_look_like_json(table, tmp_path, ending):
    X, y = table
    path = tmp_path / f"m.{ending}"
    booster = train_xgboost(path, X, y, objective="reg:squarederror", base_score=4.786924)
    assert prediction_difference(path, X, booster.predict(xgb.DMatrix(X))) <= 1e-6


def test_shap_4184_a_base_score_that_is_a_list(table, tmp_path):
    X, y = table
    booster = train_xgboost(tmp_path / "m.json", X, y)
    model = json.loads((tmp_path / "m.json").read_text())
    score = model["learner"]["learner_model_param"]["base_score"].strip("[]")
    expected = booster.predict(xgb.DMatrix(X))
    for text in (score, f"[{score}]"):
        model["learner"]["learner_model_param"]["base_score"] = text
        (tmp_path / "m.json").write_text(json.dumps(model))
        assert prediction_difference(tmp_path / "m.json", X, expected) <= 1e-6


@pytest.mark.parametrize("objective", ["reg:tweedie", "count:poisson", "reg:gamma"])
def test_shap_3579_exponential_objectives(table, tmp_path, objective):
    X, y = table
    train_xgboost(tmp_path / "m.json", X, y + 0.1, objective=objective)
    assert_refused_by_both(
        tmp_path / "m.json", f"m.json: model is for '{objective}'; read are binary"
    )


def test_xgboost_12277_leaves_of_several_outputs(table, tmp_path):
    X, y = table
    train_xgboost(
        tmp_path / "m.json",
        X,
        y + (X[:, 2] > 1),
        objective="multi:softprob",
        num_class=3,
        multi_strategy="multi_output_tree",
    )
    assert_refused_by_both(tmp_path / "m.json", "leaves of 3 outputs")


def test_jpmml_xgboost_70_several_targets(table, tmp_path):
    X, _ = table
    xgb.XGBRegressor(n_estimators=2, n_jobs=1).fit(X, X[:, :2]).save_model(tmp_path / "m.json")
    assert_refused_by_both(tmp_path / "m.json", "model has 2 targets; only one is read")


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic"])
def test_tidypredict_183_dart_with_dropped_trees(table, tmp_path, objective):
    X, y = table
    booster = train_xgboost(
        tmp_path / "m.json",
        X,
        y,
        rounds=8,
        objective=objective,
        booster="dart",
        rate_drop=0.3,
        seed=123,
    )
    assert prediction_difference(tmp_path / "m.json", X, booster.predict(xgb.DMatrix(X))) <= 1e-6


def test_m2cgen_132_dart_of_lightgbm(table, tmp_path):
    X, y = table
    booster = train_lightgbm(tmp_path / "m.txt", X, y, boosting="dart", drop_rate=0.5)
    assert prediction_difference(tmp_path / "m.txt", X, booster.predict(X)) <= 1e-6


def test_xgboost_8728_an_old_binary_model_that_is_called_ubj(tmp_path):
    (tmp_path / "m.ubj").write_bytes(b"binf" + bytes(100))
    assert_refused_by_both(
        tmp_path / "m.ubj", "m.ubj is in XGBoost's old binary format; save it as"
    )


def test_xgboost_8357_columns_in_another_order(table, tmp_path):
    X, y = table
    frame = pd.DataFrame(X, columns=["x", "a  b", " lead", "y "])
    xgb.XGBClassifier(n_estimators=2, n_jobs=1).fit(frame, y).save_model(tmp_path / "m.json")
    reordered = frame[["y ", "x", " lead", "a  b"]].assign(label=y)
    reordered.to_csv(tmp_path / "t.csv", index=False)
    model = read_model(tmp_path / "m.json")
    (file_rows,), _ = read_rows(model, [str(tmp_path / "t.csv")], Columns(target="label"))
    assert np.array_equal(file_rows.table.X, X)
    estimator = FederatedGBDTClassifier(n_estimators=1, random_state=0).fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(reordered.drop(columns="label"))


def test_xgboost_11160_categories_of_another_frame_have_other_codes(tmp_path):
    rng = np.random.default_rng(2)
    region = rng.choice(["north", "south", "west"], N)
    y = (region == "south").astype(int)
    frame = pd.DataFrame({"region": pd.Categorical(region, ["west", "south", "north"])})
    estimator = FederatedGBDTClassifier(n_estimators=2, random_state=0).fit(frame, y)
    other_frame = pd.DataFrame({"region": region[region != "west"]}).astype("category")
    expected = estimator.predict_proba(frame)[region != "west"]
    # Codes follow the names and not the frame.
    assert np.array_equal(estimator.predict_proba(other_frame), expected)
    estimator.save_model(tmp_path / "m.json")
    other_frame.assign(label=y[region != "west"]).to_csv(tmp_path / "t.csv", index=False)
    model = read_model(tmp_path / "m.json")
    (file_rows,), _ = read_rows(model, [str(tmp_path / "t.csv")], Columns(target="label"))
    # Of the model's codes, "north" has 2 and "south" 1.
    assert set(file_rows.table.X[:, 0].tolist()) == {1.0, 2.0}


def test_xgboost_3399_names_that_are_not_ascii(table, tmp_path):
    X, y = table
    frame = pd.DataFrame(X, columns=["xé", "größe", "年齢", "возраст"])
    estimator = FederatedGBDTClassifier(n_estimators=2, random_state=0).fit(frame, y)
    estimator.save_model(tmp_path / "m.json")
    xgboost_predictions = xgb.Booster(model_file=tmp_path / "m.json").predict(xgb.DMatrix(frame))
    np.testing.assert_allclose(xgboost_predictions, estimator.predict_proba(frame)[:, 1], atol=1e-6)
    assert read_model(tmp_path / "m.json").feature_names == tuple(frame.columns)


def test_lightgbm_2478_names_that_are_not_ascii(table, tmp_path):
    X, y = table
    frame = pd.DataFrame(X, columns=["возраст", "größe", "年齢", "a b"])
    booster = train_lightgbm(tmp_path / "m.txt", frame, y)
    model = read_model(tmp_path / "m.txt")
    assert model.feature_names == ("возраст", "größe", "年齢", "a_b")
    frame.assign(label=y).to_csv(tmp_path / "t.csv", index=False)
    (read,), _ = read_rows(model, [str(tmp_path / "t.csv")], Columns(target="label"))
    assert np.array_equal(read.table.X, X)
    assert prediction_difference(tmp_path / "m.txt", X, booster.predict(X)) <= 1e-6


@pytest.mark.parametrize("holes_in_training", [False, True])
def test_lightgbm_6139_missing_values_that_the_training_did_not_have(
    table, with_missing_values, tmp_path, holes_in_training
):
    X, y = table
    booster = train_lightgbm(tmp_path / "m.txt", with_missing_values if holes_in_training else X, y)
    assert (
        prediction_difference(
            tmp_path / "m.txt", with_missing_values, booster.predict(with_missing_values)
        )
        <= 1e-6
    )


def test_lightgbm_2274_zeros_as_missing_values(table, tmp_path):
    X, y = table
    zeros = np.where(np.random.default_rng(3).random(X.shape) < 0.3, 0, X)
    train_lightgbm(tmp_path / "m.txt", zeros, y, zero_as_missing=True)
    assert_refused_by_both(tmp_path / "m.txt", "takes zeros as missing .*zero_as_missing=false")


def test_lightgbm_6687_early_stopping(table, tmp_path):
    X, y = table
    stop = [lgb.early_stopping(5, verbose=False)]
    model = lgb.LGBMClassifier(n_estimators=200, learning_rate=0.5, verbose=-1, n_jobs=1)
    model.fit(X[:150], y[:150], eval_set=[(X[150:], y[150:])], callbacks=stop)
    model.booster_.save_model(tmp_path / "m.txt")
    assert len(load_model(tmp_path / "m.txt").trees) == model.best_iteration_ < 200
    assert prediction_difference(tmp_path / "m.txt", X, model.predict_proba(X)[:, 1]) <= 1e-6


def test_lightgbm_5902_sets_of_categories(table, tmp_path):
    X, _ = table
    size = pd.Categorical(np.random.default_rng(4).choice(["low", "mid", "high"], N))
    frame = pd.DataFrame({"x": X[:, 0], "size": size})
    train_lightgbm(tmp_path / "m.txt", frame, (size == "mid").astype(int), cat_smooth=0)
    assert_refused_by_both(tmp_path / "m.txt", "m.txt: model has categorical splits")


def test_slim_trees_18_linear_leaves(table, tmp_path):
    X, _ = table
    train_lightgbm(tmp_path / "m.txt", X, X[:, 0] * 2, objective="regression", linear_tree=True)
    assert_refused_by_both(tmp_path / "m.txt", "linear trees .*only constant leaves")


def test_lightgbm_1544_a_model_without_the_number_of_categorical_splits(table, tmp_path):
    X, y = table
    booster = train_lightgbm(tmp_path / "m.txt", X, y)
    text = (tmp_path / "m.txt").read_text()
    (tmp_path / "m.txt").write_text(re.sub(r"^num_cat=0\n", "", text, flags=re.M))
    assert prediction_difference(tmp_path / "m.txt", X, booster.predict(X)) <= 1e-6


def test_nvflare_4484_bagging_that_appends_one_tree_of_several(table, tmp_path):
    X, y = table
    classes = y + (X[:, 2] > 1)
    models = []
    for client in range(4):
        booster = train_xgboost(
            tmp_path / "m.json",
            X[client::4],
            classes[client::4],
            rounds=1,
            objective="multi:softprob",
            num_class=3,
        )
        models.append(json.loads(bytes(booster.save_raw("json"))))
    merged = models[0]["learner"]["gradient_booster"]["model"]
    for model in models[1:]:
        tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
        merged["trees"].append(tree | {"id": len(merged["trees"])})
    total = len(merged["trees"])
    merged["gbtree_model_param"]["num_trees"] = str(total)
    merged["tree_info"] = [0, 1, 2, 0, 0, 0]
    merged["iteration_indptr"] = [0, *range(3, total + 1)]
    (tmp_path / "m.json").write_text(json.dumps(models[0]))
    xgboost_predictions = xgb.Booster(model_file=tmp_path / "m.json").predict(xgb.DMatrix(X))
    assert prediction_difference(tmp_path / "m.json", X, xgboost_predictions) <= 1e-6
    report = audit(read_model(tmp_path / "m.json"))
    counted_trees = [tree_report for tree_report in report.trees if tree_report.rows is not None]
    assert [tree_report.rows for tree_report in counted_trees if tree_report.index >= 3] == [
        75,
        75,
        75,
    ]
    # These trees belong to two clients.
    merged["trees"], merged["tree_info"] = merged["trees"][:2], [0, 0]
    merged["gbtree_model_param"]["num_trees"], merged["iteration_indptr"] = "2", [0, 1, 2]
    (tmp_path / "m.json").write_text(json.dumps(models[0]))
    assert_refused_by_both(tmp_path / "m.json", "3 classes and 2 trees")


def test_xgboost_7635_trees_that_are_refreshed_on_other_rows(table, tmp_path):
    X, y = table
    first = train_xgboost(tmp_path / "m.json", X, y)
    params = {"objective": "binary:logistic", "max_depth": 2, "process_type": "update",
              "updater": "refresh", "refresh_leaf": True, "nthread": 1}  # fmt: skip
    refreshed = xgb.train(params, xgb.DMatrix(X[:100], y[:100]), 2, xgb_model=first)
    refreshed.save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    # The counts are those of the last 100 rows and never of all 300.
    assert {tree.rows for tree in report.trees} <= {None, 100}
    assert verdict(report)[0].startswith("If every training row was used once")


@pytest.mark.parametrize(("weight", "positive"), [(10, 1), (1, 3), (2, 3), (0.1, 1)])
def test_xgboost_2797_weights_and_scale_pos_weight(table, tmp_path, weight, positive):
    X, y = table
    train_xgboost(tmp_path / "m.json", X, y, weight=np.full(N, weight), scale_pos_weight=positive)
    report = audit(read_model(tmp_path / "m.json"))
    lines = " ".join(verdict(report))
    if weight == 10:
        assert lines.startswith("If every training row was used once, with weight 1")
    if positive != 1:  # The base score is no share of rows, which the file shows.
        assert "base score" not in lines
        assert report.rows.share is None


@pytest.mark.parametrize("options", [{}, {"weights": True}, {"class_weight": "balanced"}])
def test_scikit_learn_31529_forests_that_draw_rows_by_their_weights(table, tmp_path, options):
    X, y = table
    options = dict(options)
    weight = np.where(np.arange(N) < 5, 100.0, 1.0) if options.pop("weights", None) else None
    forest = RandomForestClassifier(5, max_depth=3, random_state=0, **options)
    forest.fit(X, y, sample_weight=weight)
    save_random_forest(from_sklearn(forest), tmp_path / "m.npz")
    assert prediction_difference(tmp_path / "m.npz", X, forest.predict_proba(X)[:, 1]) <= 1e-6
    report = audit(read_model(tmp_path / "m.npz"))
    assert "on which each tree was grown" in verdict(report)[0]
    leaves = load_model(tmp_path / "m.npz").apply(X)
    for tree, sklearn_tree, leaf_of_row in zip(
        to_json(report)["trees"], forest.estimators_, leaves.T, strict=True
    ):
        sklearn_leaf_of = dict(
            zip(leaf_of_row.tolist(), sklearn_tree.apply(X).tolist(), strict=True)
        )
        for leaf in tree["leaves"]:
            if leaf["n"] is not None and leaf["id"] in sklearn_leaf_of:
                assert leaf["n"] == sklearn_tree.tree_.n_node_samples[sklearn_leaf_of[leaf["id"]]]


def test_jpmml_sklearn_166_a_number_that_stands_for_missing_values(table, tmp_path):
    X, y = table
    coded = np.where(np.random.default_rng(5).random(X.shape) < 0.2, -999, X)
    model = xgb.XGBClassifier(n_estimators=3, missing=-999, n_jobs=1).fit(coded, y)
    model.save_model(tmp_path / "m.json")
    frame = pd.DataFrame(coded, columns=list("abcd")).assign(label=y)
    frame.to_csv(tmp_path / "t.csv", index=False)
    files = [str(tmp_path / "t.csv")]
    model_file = read_model(tmp_path / "m.json")
    _, notes = read_rows(model_file, files, Columns(target="label"))
    assert len(notes) == 4
    assert all("-999.0 is read as a number, but looks like a mark" in note for note in notes)
    mark = Reading(missing=("-999.0",))
    (rows,), notes = read_rows(model_file, files, Columns(target="label", reading=mark))
    assert notes == []
    expected = model.predict_proba(coded)[:, 1]
    assert prediction_difference(tmp_path / "m.json", rows.table.X, expected) <= 1e-6
    dataset = load_csv(tmp_path / "t.csv", "label")
    assert sum("--missing=-999.0" in note for note in dataset.notes) == 4


@pytest.mark.parametrize("values", [[-99, 0, 1, 2, 3, 4], [99, 100, 101, 102, 98, 97]])
def test_ordinary_numbers_are_no_marks(tmp_path, values):
    """A single -99, or 99 among its neighbours, is not reported."""
    cells = [values[0], *([v + i / 64 for i, v in enumerate(values[1:])] * 11)]
    notes = load_csv(write_csv(tmp_path / "t.csv", cells), "y").notes
    assert not any("looks like a mark" in note for note in notes)


def test_pandas_59299_groups_of_thousands_without_a_declaration(tmp_path):
    values = [f"{i}.{100 + i},5" if i % 3 == 0 and i else f"{i},25" for i in range(60)]
    dataset = load_csv(write_german_csv(tmp_path / "t.csv", values), "y")
    expected = [float(text.replace(".", "").replace(",", ".")) for text in values]
    assert dataset.table.X[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("cell", ["1,2,3", "1a.2,3", "1.2,3"])
def test_pandas_38420_cells_that_are_nearly_numbers(tmp_path, cell):
    values = [cell if i == 5 else f"{i},2" for i in range(60)]
    dataset = load_csv(write_german_csv(tmp_path / "t.csv", values), "y")
    assert np.isnan(dataset.table.X[5, 0])
    assert dataset.table.X[6, 0] == pytest.approx(6.2)
    assert any(
        f"1 cell that is no number ('{cell}'; line 7) is read as" in note for note in dataset.notes
    )


def test_pandas_25218_one_point_among_decimal_commas(tmp_path):
    values = ["53.2" if i == 7 else f"{i},{i % 10}" for i in range(60)]
    dataset = load_csv(write_german_csv(tmp_path / "t.csv", values), "y")
    assert dataset.table.X[7, 0] == pytest.approx(53.2)
    assert dataset.table.X[8, 0] == pytest.approx(8.8)


def test_pandas_65397_a_separator_of_thousands_without_digits(tmp_path):
    dataset = load_csv(write_csv(tmp_path / "t.csv", [f'"{i} ,"' for i in range(60)]), "y")
    assert [feature.name for feature in dataset.schema.features] == ["b"]
    assert any("left out: a (free text)" in note for note in dataset.notes)


def test_pandas_24681_words_that_look_like_missing_values(tmp_path):
    words = ["null", "n/a", "para", "test", "none"]
    path = write_csv(tmp_path / "t.csv", words * 12)
    dataset = load_csv(path, "y")
    assert any("missing: a (60%, 'n/a', 'none', 'null')" in note for note in dataset.notes)
    with_words_kept = load_csv(path, "y", missing=("",))
    assert set(with_words_kept.schema.features[0].categories) == set(words)


@pytest.mark.parametrize(
    "cell",
    [
        lambda i: "" if i % 7 == 0 else str(1234567890123456789 + 1000 * i),  # pandas#48170
        lambda i: f"{6144039378640938 + 7 * i}.000000",  # pandas#12340
        lambda i: "1352171357E+8" if i == 3 else str(135217135789158401 + i),  # pandas#2697
        lambda i: str(11898508762506083287 + i),  # readr#976
    ],
)
def test_pandas_48170_whole_numbers_that_no_float_contains(tmp_path, cell):
    dataset = load_csv(write_csv(tmp_path / "t.csv", map(cell, range(60))), "y")
    assert [feature.name for feature in dataset.schema.features] == ["b"]
    assert any("left out: a (near-unique long numbers)" in note for note in dataset.notes)


def test_pandas_4793_a_byte_order_mark_before_a_quoted_name(tmp_path):
    path = write_csv(tmp_path / "t.csv", [i / 8 for i in range(60)], '"dose","b","y"')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [f.name for f in load_csv(path, "y").schema.features] == ["dose", "b"]


def test_pandas_14704_a_doubled_name_whose_new_name_exists(tmp_path):
    lines = [f"{i / 8},{i / 16},{i / 32},{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["0,0,0.1,y", *lines, ""]))
    dataset = load_csv(tmp_path / "t.csv", "y", keep=("0",))
    columns = dict(
        zip([feature.name for feature in dataset.schema.features], dataset.table.X[8], strict=True)
    )
    assert columns == {"0": 1.0, "0.2": 0.5, "0.1": 0.25}
    assert any("two columns are called '0': the later one is 0.2" in note for note in dataset.notes)


def test_pandas_45903_booleans_with_empty_cells_in_a_workbook(tmp_path):
    frame = pd.DataFrame(
        {"flag": [True, False, None] * 20, "b": np.arange(60) / 8, "y": [0, 1] * 30}
    )
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    dataset = load_csv(tmp_path / "t.xlsx", "y")
    assert dataset.schema.features[0].categories == ("false", "true")
    assert np.array_equal(dataset.table.X[:3, 0], [1, 0, np.nan], equal_nan=True)


def test_pandas_60088_true_as_boolean_as_text_and_as_one_in_a_workbook(tmp_path):
    flags = [True, "TRUE", 1, 0, False, "False"] * 10
    frame = pd.DataFrame({"flag": flags, "b": np.arange(60) / 8, "y": [0, 1] * 30})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    dataset = load_csv(tmp_path / "t.xlsx", "y")
    assert dataset.table.X[:6, 0].tolist() == [1, 1, 1, 0, 0, 0]
    assert any("flag: one spelling of yes and no" in note for note in dataset.notes)


def test_pandas_46895_codes_with_leading_zeros_in_a_workbook(tmp_path):
    codes = ["02494", "12010", "97007", "14224", "80922", "02205"]
    frame = pd.DataFrame({"zip": codes * 10, "b": np.arange(60) / 8, "y": [0, 1] * 30})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    dataset = load_csv(tmp_path / "t.xlsx", "y")
    assert dataset.schema.features[0].categories == tuple(sorted(codes))


def test_readxl_389_numbers_that_a_format_pads_with_zeros(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["id", "b", "y"])
    for i in range(60):
        sheet.append([i % 6 + 1, i / 8, i % 2])
        sheet.cell(i + 2, 1).number_format = "0000000"
    book.save(tmp_path / "t.xlsx")
    dataset = load_csv(tmp_path / "t.xlsx", "y")
    # The file contains the numbers. The zeros are only part of the format.
    assert dataset.schema.features[0].categories == ("1", "2", "3", "4", "5", "6")


def test_dmlc_core_679_a_table_without_its_label_column(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match="no column 'y'; known: a, b"):
        load_csv(tmp_path / "t.csv", "y")


def test_fate_350_people_who_are_in_one_file_only(tmp_path):
    first = pd.DataFrame({"id": range(60), "a": np.arange(60) / 8, "y": [0, 1] * 30})
    second = pd.DataFrame({"id": range(5, 70), "b": np.arange(65) / 8})
    paths = [tmp_path / "first.csv", tmp_path / "second.csv"]
    first.to_csv(paths[0], index=False)
    second.to_csv(paths[1], index=False)
    with pytest.raises(DataError, match=r"second.csv lacks 5 of the ids of .*first.csv"):
        load_joined(paths, "y", id="id")


def test_the_page_lists_every_report_that_is_tried_here():
    listed = re.findall(r"^\| ([\w.-]+/[\w.-]+)#(\d+) \|", PAGE.read_text("utf-8"), flags=re.M)
    tested_numbers = {
        re.search(r"_(\d+)_", name)[1] for name in globals() if re.match(r"test_.*_\d{2,}_", name)
    }
    assert {number for _, number in listed} == tested_numbers
    assert len(listed) == len(set(listed)) >= 20
