from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import saved_models

from fedtrees.core.errors import DataError
from fedtrees.trees.files import model_file
from fedtrees.trees.files.models import load_model


@pytest.mark.parametrize(
    "name",
    ["xgboost-3.2.0-multiclass.json", "xgboost-3.2.0-multiclass.ubj", "lightgbm-4.7.0-binary.txt"],
)
@pytest.mark.parametrize("prefix", [b"", b"\n  "])
def test_the_format_is_recognised_by_content_and_not_by_name(name, prefix, tmp_path):
    path = tmp_path / "model.unknown"
    path.write_bytes(prefix + (saved_models.FOLDER / name).read_bytes())
    margin = load_model(path).margin(saved_models.ROWS)
    np.testing.assert_allclose(margin, saved_models.MARGINS[name], rtol=3e-7, atol=5e-7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: save the model again"),
        (
            b"a,b,c\n1,2,3\n",
            "no known format, it starts with b'a,b,c.*XGBoost's JSON and UBJ models",
        ),
        (pickle.dumps({"learner": 1}), "no known format"),
        (b"\x1f\x8b\x08\x00", "no known format"),
        (b"treebeard", "no known format"),
        (b"binf\x00\x00\x00\x3f", "old binary format"),
        (b"{", "not JSON"),
        (b'{"name": "tree", "version": "v4"}', "no 'learner' object"),
        (b"{L", "UBJSON ends"),
        (b"tree", "end of trees"),
        (b"tree\nversion=v4\n", "end of trees"),
    ],
)
def test_other_files_are_refused(data, message, tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        load_model(path)


def test_absent_and_huge_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="cannot read"):
        load_model(tmp_path / "absent.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(4097)  # sparse
    monkeypatch.setattr(model_file, "MAX_MODEL_BYTES", 4096)
    with pytest.raises(DataError, match="larger than 4096 bytes"):
        load_model(tmp_path / "huge.json")


@pytest.mark.parametrize(
    "name",
    ["xgboost-3.2.0-multiclass.json", "xgboost-3.2.0-multiclass.ubj", "lightgbm-4.7.0-binary.txt"],
)
def test_damaged_bytes_are_refused_or_give_a_forest_that_predicts(name, tmp_path):
    data = (saved_models.FOLDER / name).read_bytes()
    rng = np.random.default_rng(5)
    path = tmp_path / "model"
    refused = 0
    for _ in range(200):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), 3):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            forest = load_model(path)
        except DataError:
            refused += 1
        else:
            assert np.isfinite(forest.predict(saved_models.ROWS)).all()
    assert refused > 20


def test_the_way_there_and_back_in_the_docs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "how-to/models.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert names["difference"] < 1e-6
    assert names["forest"].rounds == 5
