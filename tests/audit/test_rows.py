"""Rows of user files are read with the columns, codes and labels of the model."""

import json
import os
import threading
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import trained_models as trained
import xgboost as xgb
from sklearn.datasets import load_wine

from fedtrees.attacks.timberstrike import Options
from fedtrees.core.errors import DataError
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.attack import attack
from fedtrees.model_audit.rows import Columns, check_sizes, read_rows


@pytest.fixture(scope="module")
def ward_model_and_frame(tmp_path_factory):
    """Return a model without names of categories, and its rows with a column of text."""
    folder = tmp_path_factory.mktemp("ward")
    rng = np.random.default_rng(4)
    code, age = rng.integers(0, 3, 200), rng.integers(20, 80, 200)
    ill = (rng.random(200) < np.where(code == 2, 0.8, 0.2)).astype(int)
    data = xgb.DMatrix(np.column_stack([code, age]), ill, feature_names=["ward", "age"])
    xgb.train(trained.PARAMS, data, 3).save_model(folder / "m.json")
    names = np.array(["east", "north", "south"])[code]
    return folder, pd.DataFrame({"age": age, "ward": names, "ill": ill})


def read_frames(folder, *frames, **columns):
    paths = []
    for k, frame in enumerate(frames):
        paths.append(str(folder / f"{k}.csv"))
        frame.to_csv(paths[-1], index=False)
    model = read_model(folder / "m.json")
    order = ("ward=east|north|south",)
    return read_rows(model, paths, Columns(**({"target": "ill", "categorical": order} | columns)))


def categorical_model(folder, categories, values):
    """Train a model on a categorical column; return the codes, and its rows as a frame with
    these values.
    """
    rng = np.random.default_rng(2)
    code, age = rng.integers(0, len(categories), 200), rng.normal(50, 9, 200)
    ill = (rng.random(200) < np.where(code == 1, 0.9, 0.1)).astype(int)
    size = pd.Categorical.from_codes(code, categories=categories)
    X = pd.DataFrame({"size": size, "age": age})
    xgb.train(trained.PARAMS, xgb.DMatrix(X, ill, enable_categorical=True), 2).save_model(
        folder / "m.json"
    )
    return code, pd.DataFrame({"size": np.array(values)[code], "age": age, "ill": ill})


WITH_NAMES = pytest.mark.skipif(
    tuple(map(int, xgb.__version__.split(".")[:2])) < (3, 1), reason="needs category names"
)


@WITH_NAMES
@pytest.mark.parametrize("categorical", [(), ("size",), ("size=low|mid|high",)])
def test_categories_have_the_codes_of_the_model(tmp_path, categorical):
    """The alphabetic order of the categories (high, low, mid) is not used."""
    sizes = ["low", "mid", "high"]
    code, frame = categorical_model(tmp_path, sizes, sizes)
    (table,), _ = read_frames(tmp_path, frame, categorical=categorical)
    assert np.array_equal(table.table.X[:, 0], code)
    assert table.schema.features[0].categories == ("low", "mid", "high")
    booster = xgb.Booster(model_file=tmp_path / "m.json")
    expected = booster.predict(
        xgb.DMatrix(np.column_stack([code, frame.age]), feature_names=["size", "age"])
    )
    predicted = read_model(tmp_path / "m.json").forest.predict(table.table.X)
    np.testing.assert_allclose(predicted, expected, atol=1e-6)


@WITH_NAMES
def test_numbers_that_are_categories_are_not_taken_for_codes(tmp_path):
    code, frame = categorical_model(tmp_path, [10, 20, 50], [10, 20, 50])
    (table,), _ = read_frames(tmp_path, frame, categorical=())
    assert np.array_equal(table.table.X[:, 0], code)


@WITH_NAMES
def test_a_category_that_the_model_does_not_contain_is_refused(tmp_path):
    _, frame = categorical_model(tmp_path, ["low", "mid"], ["low", "medium"])
    with pytest.raises(DataError, match=r"line 2: .*'medium'|'medium'.*are 'low', 'mid'"):
        read_frames(tmp_path, frame, categorical=())
    with pytest.raises(DataError, match="leave the order out"):
        read_frames(tmp_path, frame, categorical=("size=mid|low",))


def without_names(path):
    model = json.loads(path.read_text())
    model["learner"]["gradient_booster"]["model"].pop("cats", None)
    path.write_text(json.dumps(model))


def test_codes_that_the_model_does_not_contain_are_refused_unless_declared(tmp_path):
    code, frame = categorical_model(tmp_path, ["low", "mid", "high"], ["low", "mid", "high"])
    without_names(tmp_path / "m.json")
    with pytest.raises(DataError, match="does not state the categories of the codes"):
        read_frames(tmp_path, frame, categorical=("size",))
    (table,), _ = read_frames(tmp_path, frame, categorical=("size=low|mid|high",))
    assert np.array_equal(table.table.X[:, 0], code)
    with pytest.raises(DataError, match=r"--categorical 'size=10\|20\|50"):
        read_frames(tmp_path, frame.assign(size=np.array([10, 20, 50])[code]), categorical=())
    (table,), _ = read_frames(tmp_path, frame.assign(size=code), categorical=())
    assert np.array_equal(table.table.X[:, 0], code)


def test_a_file_without_some_categories_has_the_same_codes(ward_model_and_frame):
    folder, frame = ward_model_and_frame
    southern = frame[frame.ward == "south"]
    (local_table, truth), _ = read_frames(folder, southern, frame)
    assert set(local_table.table.X[:, 0]) == {2.0}
    assert np.array_equal(truth.table.X[frame.ward == "south"], local_table.table.X)
    assert local_table.schema == truth.schema


def test_the_local_data_may_be_rows_of_one_class_or_one_row(ward_model_and_frame):
    folder, frame = ward_model_and_frame
    for local_frame in (frame[frame.ill == 1].iloc[:30], frame.iloc[:1]):
        (local_table, truth), _ = read_frames(folder, local_frame, frame)
        assert set(local_table.table.y) == set(local_frame.ill)
        result = attack(
            audit(read_model(folder / "m.json")), local_table, truth, options=Options(chains=1)
        )
        assert result.targets == len(frame) - len(local_frame)
        assert [score.metric for score in result.scores] == ["ra", "exact_rows", "leaf_mass_exact"]


def test_a_class_that_one_file_lacks_keeps_the_codes_of_the_others(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
    xgb.train(params, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    frame = pd.DataFrame(X, columns=[f"c{k}" for k in range(13)]).assign(ill=y)
    (local_table, _), _ = read_frames(tmp_path, frame[frame.ill != 1], frame, categorical=())
    assert set(local_table.table.y) == {0, 2}


def test_columns_are_matched_by_name_and_missing_ones_named(ward_model_and_frame):
    folder, frame = ward_model_and_frame
    (table,), notes = read_frames(folder, frame.assign(bed=1)[["bed", "ill", "age", "ward"]])
    assert table.schema.names == ("ward", "age")
    assert notes[0].endswith("left out: bed")
    with pytest.raises(DataError, match=r"no column 'age'.*did you mean 'Age'"):
        read_frames(folder, frame, frame.rename(columns={"age": "Age"}))
    with pytest.raises(DataError, match=r"no column 'age', which m.json was trained on$"):
        read_frames(folder, frame[["ward", "ill"]])


def test_rows_of_a_regression_are_numbers(tmp_path):
    X = trained.table()[0]
    params = trained.PARAMS | {"objective": "reg:squarederror"}
    xgb.train(params, xgb.DMatrix(X[:, :2], X[:, 3]), 2).save_model(tmp_path / "m.json")
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(ill=X[:, 3])
    (table,), _ = read_frames(tmp_path, frame, categorical=())
    assert table.table.y == pytest.approx(X[:, 3])
    result = attack(audit(read_model(tmp_path / "m.json")), None, table, options=Options(chains=2))
    assert result.reason is None
    assert (result.trees, result.rebuilt, result.targets + result.known_rows) == (
        2,
        result.targets,
        len(X),
    )


def table_of(path, rows):
    path.write_text("age,ill\n" + "50,1\n" * rows)
    return str(path)


def test_too_many_rows_are_refused_without_reading_all_of_them(tmp_path):
    """A pipe would deliver a million rows. Only the limit and the contents of buffers are read."""
    truth, rows_written = tmp_path / "truth.csv", []
    os.mkfifo(truth)

    def write():
        pipe = os.open(truth, os.O_WRONLY)
        try:
            for _ in range(1000):
                os.write(pipe, b"50,1\n" * 1000)
                rows_written.append(1000)
        except BrokenPipeError:
            pass
        finally:
            os.close(pipe)

    writer = threading.Thread(target=write)
    writer.start()
    tracemalloc.start()
    with pytest.raises(DataError, match=r"truth.csv has more than 10000 rows"):
        check_sizes(None, str(truth))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()
    writer.join()
    assert 10_000 <= sum(rows_written) < 50_000


def test_row_limits_depend_on_the_use_of_the_file(tmp_path):
    truth, local_file = table_of(tmp_path / "whole.csv", 8003), table_of(tmp_path / "own.csv", 3)
    check_sizes(local_file, truth)
    check_sizes(truth, None)
    with pytest.raises(DataError, match="more than 8003 rows"):
        check_sizes(local_file, table_of(tmp_path / "longer.csv", 8004))
    with pytest.raises(DataError, match="uses at most 100000 local rows"):
        check_sizes(table_of(tmp_path / "all.csv", 100_001), local_file)
