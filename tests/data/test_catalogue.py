import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from data_dir import data_dir

from fedtrees.core.errors import DataError, UsageError
from fedtrees.data import load, names
from fedtrees.data.catalogue import BUNDLED
from fedtrees.data.downloads import SOURCES

SHAPES = {
    "breast-cancer": (569, 30, 212),
    "wine": (178, 13, 71),
    "digits": (1797, 64, 896),
    "diabetes": (442, 10, 221),
    "pima": (768, 8, 268),
    "stroke": (7241, 10, 2382),
    "stroke-raw": (5108, 10, 249),
    "adult": (48842, 14, 11687),
    "phishing": (11055, 30, 6157),
    "obesity": (2111, 16, 972),
    "compas-binary": (7206, 14, None),
    "adult-binary": (48842, 19, 11687),
    "default-credit-binary": (29986, 21, 6636),
    "german-credit": (1000, 20, 300),
    "vehicle": (846, 18, None),
    "wine-quality": (1599, 11, None),
    "housing": (506, 13, None),
    "iris": (150, 4, None),
    "iris-2": (150, 4, 50),
    "wine-3": (178, 13, None),
    "digits-10": (1797, 64, None),
    "diabetes-regression": (442, 10, None),
    "obesity-7": (2111, 16, None),
}
SMALL = [
    "pima", "stroke", "stroke-raw", "obesity", "obesity-7", "phishing", "compas-binary",
    "german-credit", "vehicle", "wine-quality", "housing",
]  # fmt: skip
#: Digests of the binary tables: results measured on them stay comparable.
DIGESTS = {
    "breast-cancer": "7856c6ce2313a42afcb134bb5e42359a5054ce1dcab80b8a953a0860f6e6d58a",
    "wine": "c22f3abd382b533c7e545bb7b11fed0a9f9c314ffd684b9abdcd1154653721cd",
    "digits": "8346fe32c6f548e5df257f8eb9f071f6eceea881194950b1d6fc84f89618116b",
    "diabetes": "d57c54d4a0bf24ae0d0a23f62254d4dfcd126cff108a641899b802cff8587e9d",
}


LARGE = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("adult", "adult-binary", "default-credit-binary")
]


@pytest.mark.parametrize("name", [*BUNDLED, *SMALL, *LARGE])
def test_shape_positives_and_codes(name):
    data = load(name, None if name in BUNDLED else data_dir())
    n, d, positives = SHAPES[name]
    assert data.table.X.shape == (n, d)
    assert positives is None or data.table.y.sum() == positives
    for k, feature in enumerate(data.schema.features):
        column = data.table.X[:, k]
        column = column[~np.isnan(column)]
        if feature.kind == "categorical":
            assert np.isin(column, np.arange(len(feature.categories))).all(), feature.name
        if feature.low is not None:
            assert column.min() >= feature.low, feature.name
        if feature.high is not None:
            assert column.max() <= feature.high, feature.name


@pytest.mark.parametrize("name", DIGESTS)
def test_binary_tables_never_change(name):
    assert load(name).digest == DIGESTS[name]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("iris", [50, 50, 50]),
        ("wine-3", [59, 71, 48]),
        ("digits-10", [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]),
        ("obesity-7", [272, 287, 290, 290, 351, 297, 324]),
    ],
)
def test_tables_with_all_their_classes(name, rows):
    data = load(name, None if name in BUNDLED else data_dir())
    assert data.task == "classes"
    assert len(data.schema.classes) == len(rows)
    assert np.bincount(data.table.y).tolist() == rows


def test_binary_tables_are_derived_from_the_classes():
    assert np.array_equal(load("wine").table.y, load("wine-3").table.y == 1)
    assert np.array_equal(load("digits").table.y, load("digits-10").table.y >= 5)
    progression = load("diabetes-regression")
    assert progression.task == "number"
    assert progression.table.y.dtype == np.float64
    is_above_median = progression.table.y > np.median(progression.table.y)
    assert np.array_equal(load("diabetes").table.y, is_above_median)
    assert np.array_equal(load("diabetes").table.X, progression.table.X)


def test_binary_obesity_is_derived_from_its_classes():
    is_obese = load("obesity-7", data_dir()).table.y >= 4
    assert np.array_equal(load("obesity", data_dir()).table.y, is_obese)


def test_every_listed_name_is_covered_here():
    assert set(names()) == set(SHAPES)


def test_stroke_is_the_published_recipe():
    data = load("stroke", data_dir())
    train = np.setdiff1d(np.arange(len(data.table)), data.test_rows)
    assert len(train) == 6219
    assert len(data.test_rows) == 1022
    assert round(data.table.y[train].mean(), 3) == 0.375
    assert "2133 of 6219 training rows" in data.notes[0]
    raw = load("stroke-raw", data_dir())
    real = {row.tobytes() for row in raw.table.X}
    assert all(row.tobytes() in real for row in data.table.X[data.test_rows])
    synthetic = [i for i in train if data.table.X[i].tobytes() not in real]
    assert 2000 < len(synthetic) <= 2133
    assert (data.table.y[synthetic] == 1).all()


def test_pima_is_not_preprocessed():
    data = load("pima", data_dir())
    assert data.table.X[0].tolist() == pytest.approx([6, 148, 72, 35, 0, 33.6, 0.627, 50])
    assert (data.table.X[:, data.schema.names.index("Insulin")] == 0).sum() == 374
    assert data.top == ("Glucose", "BMI", "DiabetesPedigreeFunction", "Age")


def test_adult_question_marks_are_missing_in_a_copy_of_its_head(tmp_path):
    from fedtrees.data.catalogue import adult

    head = (data_dir() / "adult.csv").read_text().splitlines()[:200]
    (tmp_path / "adult.csv").write_text("\n".join(head) + "\n")
    data = adult(tmp_path / "adult.csv")
    work = data.table.X[:, data.schema.names.index("workclass")]
    assert [line.split(",")[1] == "?" for line in head[1:]] == np.isnan(work).tolist()
    assert np.isnan(work).any()


def test_loading_twice_gives_one_digest():
    assert load("breast-cancer").digest == load().digest


def test_unknown_names_get_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'breast-cancer'"):
        load("brest-cancer")


def test_the_error_about_a_missing_file_names_the_file_the_folder_and_the_command(
    tmp_path, monkeypatch
):
    with pytest.raises(DataError) as error:
        load("pima", tmp_path)
    for word in ("pima.csv", str(tmp_path), "fedtrees data fetch pima", "--data-dir"):
        assert word in str(error.value)
    monkeypatch.delenv("FEDTREES_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    with pytest.raises(DataError, match=r"not found in .*home.fedtrees; get it with"):
        load("pima")
    monkeypatch.setenv("FEDTREES_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"not found in"):
        load("pima")


def test_the_error_about_a_changed_file_contains_both_digests(tmp_path):
    (tmp_path / "pima.csv").write_text("a,b\n1,2\n")
    digest = hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    with pytest.raises(DataError, match=f"is {digest}, expected {SOURCES['pima'].sha256}"):
        load("pima", tmp_path)


def test_importing_the_package_loads_no_heavy_library():
    code = (
        "import sys, fedtrees.data;"
        "print([m for m in ('pandas', 'sklearn', 'imblearn', 'scipy') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert process.stdout.strip() == "[]"


def test_binary_tables_declare_the_columns_of_one_category():
    groups = load("compas-binary", data_dir()).schema.groups
    assert [(len(group.columns), group.empty) for group in groups] == [(5, False), (4, False)]
