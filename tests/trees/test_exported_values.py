"""Exported models accept the values of the user's table, whatever codes were used in training."""

import json

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

from fedtrees import FederatedForestClassifier, FederatedGBDTClassifier
from fedtrees.core.errors import DataError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature
from fedtrees.core.specs import parse_grid
from fedtrees.data import Partition
from fedtrees.data.user_tables import load_csv
from fedtrees.experiments.federation import spread
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.attack import evidence_of
from fedtrees.model_audit.rows import Columns, read_rows
from fedtrees.protocols.training import train
from fedtrees.trees.files.categories import (
    check_features,
    read_categories,
    sets_to_thresholds,
    with_table_values,
)
from fedtrees.trees.files.forests import load_columns, load_random_forest

VERSION = tuple(map(int, xgb.__version__.split(".")[:2]))

#: Values of one column of every kind, in an order that is not that of the alphabet where it can be.
KINDS = {
    "numbers": lambda rng, n: np.round(rng.normal(size=n), 3),
    "few whole numbers": lambda rng, n: rng.choice([-10, 5, 20, 30, 100], n),
    "booleans": lambda rng, n: rng.random(n) < 0.4,
    "yes and no": lambda rng, n: rng.choice(["ja", "nein"], n),
    "text": lambda rng, n: rng.choice(["low", "mid", "high", "very high"], n),
    "text beyond ASCII": lambda rng, n: rng.choice(["Köln", "München", "Aarau"], n),
}


def frame_of(kind, rng, holes, n=240):
    """Return a table whose label depends on the column of that kind."""
    values = pd.Series(KINDS[kind](rng, n))
    signal = values.rank(method="dense") % 2 if kind != "numbers" else (values > 0).astype(float)
    label = np.where(rng.random(n) < 0.9, signal > signal.min(), rng.random(n) < 0.5)
    values = values.astype(object).where(rng.random(n) > holes, None) if holes else values
    return pd.DataFrame({"x": values, "z": rng.normal(size=n), "ill": label.astype(int)})


def trained_on(path, frame, spec):
    """Train on a CSV file of the frame; return the model's predictions of the rows as coded."""
    frame.to_csv(path, index=False)
    dataset = load_csv(path, "ill")
    protocol = register.make("protocol", parse_grid(spec)[0])
    federation = spread(dataset, Partition("iid", {}), protocol.holder_names(2), 0, "horizontal")
    training = train(protocol, federation.local_data, dataset.schema)
    protocol.save(training, path.with_suffix(".json"))
    return training.model.predict(dataset.table.X)


def raw_rows(path):
    """Return the rows as pandas and XGBoost read them, text as categories."""
    frame = pd.read_csv(path).drop(columns="ill")
    text = [name for name in frame if pd.api.types.is_string_dtype(frame[name])]
    return xgb.DMatrix(frame.astype(dict.fromkeys(text, "category")), enable_categorical=True)


@pytest.mark.parametrize("holes", [0, 0.2])
@pytest.mark.parametrize("by_sets", ["", ",enable_categorical=true"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_model_predicts_the_same_from_the_raw_table(tmp_path, kind, by_sets, holes):
    frame = frame_of(kind, np.random.default_rng(5), holes)
    path = tmp_path / "t.csv"
    spec = f"fedtree-hist[trees=4,max_depth=3{by_sets}]"
    if by_sets and kind == "few whole numbers":
        with pytest.raises(DataError, match="train without enable_categorical"):
            trained_on(path, frame, spec)
        return
    expected = trained_on(path, frame, spec)
    assert np.ptp(expected) > 0.3
    model = read_model(path.with_suffix(".json"))
    (table,), _ = read_rows(model, [str(path)], Columns(target="ill"))
    np.testing.assert_allclose(model.forest.predict(table.table.X), expected, atol=1e-6)
    booster = xgb.Booster(model_file=path.with_suffix(".json"))
    # booleans with holes are text to pandas, and XGBoost before 3.4 cuts names beyond ASCII
    unlike = kind == "booleans" and holes
    garbled = kind == "text beyond ASCII" and (3, 1) <= VERSION < (3, 4)
    if unlike or garbled:
        with pytest.raises((ValueError, xgb.core.XGBoostError)):
            booster.predict(raw_rows(path))
        return
    np.testing.assert_allclose(booster.predict(raw_rows(path)), expected, atol=1e-6)


def test_integers_are_split_by_sets_of_the_numbers(tmp_path):
    rng = np.random.default_rng(1)
    grade = rng.choice([10, 20, 30, 40], 240)
    frame = pd.DataFrame({"x": grade, "z": rng.normal(size=240), "ill": (grade // 10) % 2})
    path = tmp_path / "t.csv"
    expected = trained_on(path, frame, "fedtree-hist[trees=2,max_depth=2,enable_categorical=true]")
    booster = xgb.Booster(model_file=path.with_suffix(".json"))
    as_category = xgb.DMatrix(frame[["x", "z"]].astype({"x": "category"}), enable_categorical=True)
    np.testing.assert_allclose(booster.predict(raw_rows(path)), expected, atol=1e-6)
    if VERSION >= (3, 1):
        np.testing.assert_allclose(booster.predict(as_category), expected, atol=1e-6)


@pytest.mark.skipif(VERSION < (3, 1), reason="XGBoost before 3.1 does not read category names")
@pytest.mark.parametrize("uses_sets", [False, True])
def test_an_ordered_category_is_recognised_by_name_in_another_order(tmp_path, uses_sets):
    rng = np.random.default_rng(0)
    size = pd.Categorical(rng.choice(["low", "mid", "high"], 200), ["low", "mid", "high"], True)
    X = pd.DataFrame({"size": size, "z": rng.normal(size=200)})
    y = (size == "mid").astype(int)
    model = FederatedGBDTClassifier(
        n_estimators=3, n_clients=2, random_state=0, enable_categorical=uses_sets
    ).fit(X, y)
    model.save_model(tmp_path / "m.json")
    booster = xgb.Booster(model_file=tmp_path / "m.json")
    with_other_order = X.assign(size=X["size"].astype(str).astype("category"))  # high, low, mid
    expected = model.predict_proba(X)[:, 1]
    for rows in (X, with_other_order):
        predictions = booster.predict(xgb.DMatrix(rows, enable_categorical=True))
        np.testing.assert_allclose(predictions, expected, atol=1e-6)
    unknown = X.assign(size=X["size"].cat.rename_categories({"low": "xl"}))
    unknown = xgb.DMatrix(unknown, enable_categorical=True)
    with pytest.raises(xgb.core.XGBoostError, match="not in the training set"):
        booster.predict(unknown)


def test_names_of_categories_are_those_that_xgboost_writes(tmp_path):
    X = pd.DataFrame({"a": pd.Categorical(["u", "v"] * 20), "n": pd.Categorical([7, 3] * 20)})
    y = np.arange(40) % 2
    FederatedGBDTClassifier(n_estimators=1, n_clients=2).fit(X, y).save_model(tmp_path / "m.json")
    exported = json.loads((tmp_path / "m.json").read_text())["learner"]
    booster = xgb.train({}, xgb.DMatrix(X, y, enable_categorical=True), 1)
    reference = json.loads(booster.save_raw("json"))["learner"]
    assert exported["feature_types"] == reference["feature_types"] == ["c", "c"]
    if VERSION >= (3, 1):
        cats = reference["gradient_booster"]["model"]["cats"]
        assert exported["gradient_booster"]["model"]["cats"] == cats
        assert read_categories({"cats": cats}, VERSION) == {0: ("u", "v"), 1: (3, 7)}


def test_names_that_older_versions_cut_by_characters_are_put_together_again():
    text = "KölnUlm".encode()[:7]  # offsets count characters, and as many bytes are kept
    column = {"offsets": [0, 4, 7], "values": np.frombuffer(text, dtype=np.int8).tolist()}
    cats = {"cats": {"enc": [column]}}
    assert read_categories(cats, [3, 2, 0]) == {0: ("Köln", "Ul")}
    assert read_categories(cats, [3, 4, 0])[0][0] != "Köln"


@pytest.mark.parametrize("name", ["größe", "年齢", 'a "quoted" \\ name', "two\nlines"])
def test_column_names_beyond_ascii_are_those_of_the_table(tmp_path, name):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({name: rng.normal(size=60), "b": rng.normal(size=60)})
    y = (X[name] > 0).astype(int)
    model = FederatedGBDTClassifier(n_estimators=2, n_clients=2, random_state=0).fit(X, y)
    model.save_model(tmp_path / "m.json")
    booster = xgb.Booster(model_file=tmp_path / "m.json")
    assert booster.feature_names == [name, "b"]
    expected = model.predict_proba(X)[:, 1]
    np.testing.assert_allclose(booster.predict(xgb.DMatrix(X)), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["weight [kg]", "age < 50", "bell \x07"])
def test_a_file_without_column_names_is_announced(tmp_path, name):
    X = pd.DataFrame({name: np.arange(40.0), "b": np.arange(40.0) % 7})
    model = FederatedGBDTClassifier(n_estimators=1, n_clients=2).fit(X, np.arange(40) % 2)
    with pytest.warns(UserWarning, match="contains no column names"):
        model.save_model(tmp_path / "m.json")
    assert xgb.Booster(model_file=tmp_path / "m.json").feature_names is None


@pytest.mark.parametrize(
    ("names", "by_sets"),
    [
        (("01", "1"), False),
        (("16777216", "16777217"), False),
        (("0.5", "1.5"), True),
        (("-1", "1"), True),
    ],
)
def test_numbers_that_no_model_file_can_distinguish_are_refused_before_training(names, by_sets):
    feature = Feature("x", "categorical", categories=names)
    with pytest.raises(DataError, match="'x'"):
        check_features([feature], by_sets)


def test_a_split_that_separates_missing_values_from_all_codes_is_kept():
    from fedtrees.trees.boosted.forest import Forest
    from fedtrees.trees.boosted.grower import TreeBuilder

    features = [
        Feature("n", "categorical", categories=("10", "20")),
        Feature("t", "categorical", categories=("b", "a")),
    ]
    for column in range(2):
        builder = TreeBuilder()
        (left,) = builder.expand([0], [column], [2.0], [False])
        builder.set_values([left, left + 1], [1.0, -1.0])
        forest = Forest((builder.build(),), np.zeros(1, np.float32))
        rewritten, names = with_table_values(forest, features)
        values = np.array([[10.0, 0], [20, 1], [np.nan, np.nan]], dtype=np.float32)
        assert rewritten.margin(values).tolist() == [1.0, 1.0, -1.0]
        assert names == {1: ["a", "b"]}


@pytest.mark.parametrize("spec", ["forest-hist[trees=3]", "dp-forest[trees=3,depth=2]"])
def test_a_random_forest_takes_the_numbers_of_the_table_and_names_its_categories(tmp_path, spec):
    rng = np.random.default_rng(3)
    n = 240
    grade, smoker = rng.choice([10, 20, 30, 50], n), rng.choice(["nein", "ja"], n)
    label = ((grade > 20) ^ (rng.random(n) < 0.1)).astype(int)
    frame = pd.DataFrame({"grade": grade, "smoker": smoker, "ill": label})
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    dataset = load_csv(path, "ill")
    protocol = register.make("protocol", parse_grid(spec)[0])
    federation = spread(dataset, Partition("iid", {}), protocol.holder_names(2), 0, "horizontal")
    training = train(protocol, federation.local_data, dataset.schema)
    protocol.save(training, tmp_path / "m.npz")
    rows = np.column_stack([grade, smoker == "ja"]).astype(np.float32)  # "nein" has code 0
    model = read_model(tmp_path / "m.npz")
    expected = training.model.predict(dataset.table.X)
    np.testing.assert_allclose(model.forest.predict(rows), expected, atol=1e-9)
    assert model.feature_names == ("grade", "smoker")
    assert model.categories == {1: ("nein", "ja")}
    (table,), _ = read_rows(model, [str(path)], Columns(target="ill"))
    assert np.array_equal(table.table.X, rows)


def test_text_in_alphabetical_order_can_still_be_attacked(tmp_path):
    """Sets of the last categories are thresholds on their codes."""
    frame = frame_of("text", np.random.default_rng(5), 0)
    path = tmp_path / "t.csv"
    trained_on(path, frame, "fedtree-hist[trees=4,max_depth=3]")
    model = read_model(path.with_suffix(".json"))
    assert any(model.categorical)
    ordered = sets_to_thresholds(model.forest, model.categories)
    codes = np.column_stack([np.arange(60) % 4, np.linspace(-2, 2, 60)]).astype(np.float32)
    assert not any(np.isnan(tree.threshold).any() for tree in ordered.trees)
    assert np.array_equal(ordered.margin(codes), model.forest.margin(codes))
    assert not isinstance(evidence_of(audit(model)), Reason)
    assert sets_to_thresholds(model.forest, {}) is None
    assert sets_to_thresholds(model.forest, {0: [*model.categories[0], "zz"]}) is None


def test_a_saved_forest_of_an_estimator_takes_the_numbers_of_the_table(tmp_path):
    rng = np.random.default_rng(5)
    grade = rng.choice([10, 20, 30, 50], 300)
    X = pd.DataFrame({"grade": pd.Categorical(grade), "x": rng.normal(size=300)})
    y = (grade >= 30) ^ (rng.random(300) < 0.1)
    forest = FederatedForestClassifier(n_estimators=5, max_features=None, random_state=0).fit(X, y)
    forest.save_model(tmp_path / "m.npz")
    raw = np.column_stack([grade, X["x"]]).astype(np.float32)
    saved = load_random_forest(tmp_path / "m.npz")
    shares = np.asarray(saved.predict(raw))
    np.testing.assert_allclose(shares, forest.predict_proba(X)[:, 1], atol=1e-6)
    assert load_columns(tmp_path / "m.npz") == (("grade", "x"), {})


def test_a_saved_forest_of_an_estimator_names_categories_or_is_refused(tmp_path):
    rng = np.random.default_rng(6)
    code = rng.integers(0, 3, 200)
    names = ["low", "mid", "high"]  # the order of the codes is not alphabetical
    X = pd.DataFrame({"size": pd.Categorical.from_codes(code, names, ordered=True)})
    forest = FederatedForestClassifier(n_estimators=2, max_features=None, random_state=0)
    forest.fit(X, code > 1).save_model(tmp_path / "m.npz")
    assert load_columns(tmp_path / "m.npz") == (("size",), {0: tuple(names)})
    X = pd.DataFrame({"size": pd.Categorical(code * 10, categories=[20, 0, 10], ordered=True)})
    forest.fit(X, code > 1)
    with pytest.raises(DataError, match="'size' are no increasing float32 numbers"):
        forest.save_model(tmp_path / "m.npz")
