"""Rows at hand are read as the model means them, whatever each file alone would suggest."""

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
def ward(tmp_path_factory):
    """A model without categories by name, and its rows with a column of text."""
    folder = tmp_path_factory.mktemp("ward")
    rng = np.random.default_rng(4)
    code, age = rng.integers(0, 3, 200), rng.integers(20, 80, 200)
    ill = (rng.random(200) < np.where(code == 2, 0.8, 0.2)).astype(int)
    data = xgb.DMatrix(np.column_stack([code, age]), ill, feature_names=["ward", "age"])
    xgb.train(trained.PARAMS, data, 3).save_model(folder / "m.json")
    names = np.array(["east", "north", "south"])[code]
    return folder, pd.DataFrame({"age": age, "ward": names, "ill": ill})


def read(folder, *frames, **columns):
    paths = []
    for k, frame in enumerate(frames):
        paths.append(str(folder / f"{k}.csv"))
        frame.to_csv(paths[-1], index=False)
    model = read_model(folder / "m.json")
    order = ("ward=east|north|south",)
    return read_rows(model, paths, Columns(**({"target": "ill", "categorical": order} | columns)))


def categorical_model(folder, categories, values):
    """Train a model on a category column; return its rows as a frame with these values."""
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
def test_categories_have_the_codes_that_the_model_states(tmp_path, categorical):
    """Not those of the alphabet: high, low, mid."""
    sizes = ["low", "mid", "high"]
    code, frame = categorical_model(tmp_path, sizes, sizes)
    (table,), _ = read(tmp_path, frame, categorical=categorical)
    assert np.array_equal(table.table.X[:, 0], code)
    assert table.schema.features[0].categories == ("low", "mid", "high")
    served = xgb.Booster(model_file=tmp_path / "m.json")
    expected = served.predict(
        xgb.DMatrix(np.column_stack([code, frame.age]), feature_names=["size", "age"])
    )
    found = read_model(tmp_path / "m.json").forest.predict(table.table.X)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@WITH_NAMES
def test_numbers_that_are_categories_are_not_taken_for_codes(tmp_path):
    code, frame = categorical_model(tmp_path, [10, 20, 50], [10, 20, 50])
    (table,), _ = read(tmp_path, frame, categorical=())
    assert np.array_equal(table.table.X[:, 0], code)


@WITH_NAMES
def test_a_category_that_the_model_does_not_state_is_refused(tmp_path):
    _, frame = categorical_model(tmp_path, ["low", "mid"], ["low", "medium"])
    with pytest.raises(DataError, match=r"line 2: .*'medium'|'medium'.*are 'low', 'mid'"):
        read(tmp_path, frame, categorical=())
    with pytest.raises(DataError, match="leave the order out"):
        read(tmp_path, frame, categorical=("size=mid|low",))


def without_names(path):
    model = json.loads(path.read_text())
    model["learner"]["gradient_booster"]["model"].pop("cats", None)
    path.write_text(json.dumps(model))


def test_codes_that_the_model_does_not_state_are_refused_unless_declared(tmp_path):
    code, frame = categorical_model(tmp_path, ["low", "mid", "high"], ["low", "mid", "high"])
    without_names(tmp_path / "m.json")
    with pytest.raises(DataError, match="does not state the categories of the codes"):
        read(tmp_path, frame, categorical=("size",))
    (table,), _ = read(tmp_path, frame, categorical=("size=low|mid|high",))
    assert np.array_equal(table.table.X[:, 0], code)
    with pytest.raises(DataError, match=r"--categorical 'size=10\|20\|50"):
        read(tmp_path, frame.assign(size=np.array([10, 20, 50])[code]), categorical=())
    (table,), _ = read(tmp_path, frame.assign(size=code), categorical=())
    assert np.array_equal(table.table.X[:, 0], code)


def test_a_file_without_some_categories_is_coded_as_the_whole_is(ward):
    folder, frame = ward
    southern = frame[frame.ward == "south"]
    (own, truth), _ = read(folder, southern, frame)
    assert set(own.table.X[:, 0]) == {2.0}
    assert np.array_equal(truth.table.X[frame.ward == "south"], own.table.X)
    assert own.schema == truth.schema


def test_an_attacker_may_hold_rows_of_one_class_or_one_row(ward):
    folder, frame = ward
    for own in (frame[frame.ill == 1].iloc[:30], frame.iloc[:1]):
        (held, truth), _ = read(folder, own, frame)
        assert set(held.table.y) == set(own.ill)
        found = attack(audit(read_model(folder / "m.json")), held, truth, options=Options(chains=1))
        assert found.targets == len(frame) - len(own)
        assert [s.metric for s in found.scores] == ["ra", "exact_rows", "leaf_mass_exact"]


def test_a_class_that_one_file_lacks_keeps_the_codes_of_the_others(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "nthread": 1}
    xgb.train(params, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    frame = pd.DataFrame(X, columns=[f"c{k}" for k in range(13)]).assign(ill=y)
    (own, _), _ = read(tmp_path, frame[frame.ill != 1], frame, categorical=())
    assert set(own.table.y) == {0, 2}


def test_columns_are_matched_by_name_and_missing_ones_named(ward):
    folder, frame = ward
    (table,), notes = read(folder, frame.assign(bed=1)[["bed", "ill", "age", "ward"]])
    assert table.schema.names == ("ward", "age")
    assert notes[0].endswith("left out: bed")
    with pytest.raises(DataError, match=r"no column 'age'.*did you mean 'Age'"):
        read(folder, frame, frame.rename(columns={"age": "Age"}))
    with pytest.raises(DataError, match=r"no column 'age', which m.json was trained on$"):
        read(folder, frame[["ward", "ill"]])


def test_rows_of_a_regression_are_numbers(tmp_path):
    X = trained.table()[0]
    params = trained.PARAMS | {"objective": "reg:squarederror"}
    xgb.train(params, xgb.DMatrix(X[:, :2], X[:, 3]), 2).save_model(tmp_path / "m.json")
    frame = pd.DataFrame(X[:, :2], columns=["a", "b"]).assign(ill=X[:, 3])
    (table,), _ = read(tmp_path, frame, categorical=())
    assert table.table.y == pytest.approx(X[:, 3])
    found = attack(audit(read_model(tmp_path / "m.json")), None, table, options=Options(chains=2))
    assert found.reason is None
    assert (found.trees, found.rebuilt, found.targets + found.known_rows) == (
        2,
        found.targets,
        len(X),
    )


def table_of(path, rows):
    path.write_text("age,ill\n" + "50,1\n" * rows)
    return str(path)


def test_too_many_rows_are_refused_before_they_are_read(tmp_path):
    """Of a pipe that would go on for a million rows, what its buffers hold is taken beside."""
    truth, taken = tmp_path / "truth.csv", []
    os.mkfifo(truth)

    def write():
        out = os.open(truth, os.O_WRONLY)
        try:
            for _ in range(1000):
                os.write(out, b"50,1\n" * 1000)
                taken.append(1000)
        except BrokenPipeError:
            pass
        finally:
            os.close(out)

    writer = threading.Thread(target=write)
    writer.start()
    tracemalloc.start()
    with pytest.raises(DataError, match=r"truth.csv has more than 10000 rows"):
        check_sizes(None, str(truth))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()
    writer.join()
    assert 10_000 <= sum(taken) < 50_000


def test_as_many_rows_are_taken_as_are_scored(tmp_path):
    whole, own = table_of(tmp_path / "whole.csv", 8003), table_of(tmp_path / "own.csv", 3)
    check_sizes(own, whole)
    check_sizes(whole, None)
    with pytest.raises(DataError, match="more than 8003 rows"):
        check_sizes(own, table_of(tmp_path / "longer.csv", 8004))
    with pytest.raises(DataError, match="uses at most 100000 local rows"):
        check_sizes(table_of(tmp_path / "all.csv", 100_001), own)
