import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.data import prepare

SCHEMA = Schema((Feature("age"), Feature("bmi")), "ill")
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]])
Y = np.array([0, 1, 1])


def test_missing_features_stay_missing_and_types_are_fixed():
    holed = X.copy()
    holed[1, 1] = np.nan
    table = prepare("t", SCHEMA, holed, Y).table
    assert table.X.dtype == np.float32
    assert table.y.dtype == np.int64
    assert np.array_equal(np.isnan(table.X), np.isnan(holed))
    assert not table.X.flags.writeable


@pytest.mark.parametrize(
    ("cell", "words"),
    [(np.inf, ["'bmi'", "inf", "row 1"]), (2e38, ["'bmi'", "2e+38", "1.7e38"])],
)
def test_numbers_beyond_float32_are_named(cell, words):
    bad = X.copy()
    bad[1, 1] = cell
    with pytest.raises(DataError) as error:
        prepare("t", SCHEMA, bad, Y)
    assert all(word in str(error.value) for word in words)
    assert error.value.exit_code == 5


def test_text_in_a_numeric_column_names_column_value_and_row():
    bad = X.astype(object)
    bad[2, 0] = "forty"
    with pytest.raises(DataError, match=r"'age' contains 'forty' at row 2.*categorical"):
        prepare("t", SCHEMA, bad, Y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, np.nan, 1.0], r"missing or infinite at row 1"),
        ([1, 1, 1], r"one class only \(1\)"),
        ([0, 1, 2], r"3 classes and the schema 2; name the positive class"),
        ([1, 2, 2], r"codes \[1.0, 2.0\]; use 0 and 1"),
        (["a", "b", "a"], r"contains text"),
        ([0, 1], r"3 rows but labels of shape \(2,\)"),
    ],
)
def test_unusable_targets_are_explained(y, message):
    with pytest.raises(DataError, match=message):
        prepare("t", SCHEMA, X, np.array(y))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 1], r"codes \[0.0, 1.0\]; use all of 0 to 2"),
        ([0, 1, 3], r"codes \[0.0, 1.0, 3.0\]; use all of 0 to 2"),
        ([0, 0.5, 2], r"use all of 0 to 2"),
        ([2, 2, 2], r"one class only \(2\); all 3 must occur"),
    ],
)
def test_every_class_of_the_schema_must_occur(y, message):
    three = Schema(SCHEMA.features, "ill", ("a", "b", "c"))
    assert prepare("t", three, X, np.array([2, 0, 1])).table.y.tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=message):
        prepare("t", three, X, np.array(y))


def test_a_schema_without_classes_has_a_numeric_target():
    number = Schema(SCHEMA.features, "days", ())
    data = prepare("t", number, X, np.array([1, 2, 4]))
    assert data.task == "number"
    assert data.table.y.dtype == np.float64
    assert data.digest != prepare("t", number, X, np.array([1, 2, 4.5])).digest
    with pytest.raises(DataError, match="'days' is 4 in every row"):
        prepare("t", number, X, np.full(3, 4))
    with pytest.raises(DataError, match="missing or infinite at row 2"):
        prepare("t", number, X, np.array([1, 2, np.nan]))


def test_cut_points_are_part_of_a_schema_and_checked():
    schema_with_cuts = Schema((Feature("age", cuts=(-1.0, 2.0, 9.0)), Feature("bmi")), "ill")
    assert prepare("t", schema_with_cuts, X, Y).digest != prepare("t", SCHEMA, X, Y).digest
    assert schema_with_cuts.to_json()["features"][0]["cuts"] == [-1.0, 2.0, 9.0]
    assert "cuts" not in SCHEMA.to_json()["features"][0]
    for invalid_cuts in ((1.0,), (1.0, 1.0), (0.0, np.inf), (0.0, 1.0, 1.0 + 1e-9)):
        with pytest.raises(DataError, match="'age': cut points"):
            Feature("age", cuts=invalid_cuts)


def test_an_empty_table_is_refused():
    with pytest.raises(DataError, match="empty"):
        prepare("t", SCHEMA, np.empty((0, 2)), np.empty(0))


def test_constant_and_all_missing_columns_are_allowed_and_noted():
    odd = np.column_stack([np.full(3, 7.0), np.full(3, np.nan)])
    notes = prepare("t", SCHEMA, odd, Y).notes
    assert notes == ("column 'age' is constant (7)", "column 'bmi' is missing in every row")


def test_digest_follows_content_and_names_and_nothing_else():
    base = prepare("t", SCHEMA, X, Y)
    assert len(base.digest) == 64
    assert prepare("other name", SCHEMA, X.copy(), Y.copy()).digest == base.digest
    renamed = Schema((Feature("age"), Feature("BMI")), "ill")
    changed = X.copy()
    changed[0, 0] += 1
    variants = [
        prepare("t", renamed, X, Y),
        prepare("t", SCHEMA, changed, Y),
        prepare("t", SCHEMA, X, 1 - Y),
        prepare("t", SCHEMA, X, Y, test_rows=np.array([1])),
        prepare("t", SCHEMA, X, Y, top=("age",)),
    ]
    assert len({base.digest, *(dataset.digest for dataset in variants)}) == 6


@pytest.mark.parametrize("rows", [[0, 0], [3], [-1], [0, 1, 2]])
def test_fixed_test_rows_must_be_distinct_existing_and_not_all(rows):
    with pytest.raises(DataError):
        prepare("t", SCHEMA, X, Y, test_rows=np.array(rows))


def test_an_unknown_top_feature_gets_a_suggestion():
    with pytest.raises(DataError, match="did you mean 'age'"):
        prepare("t", SCHEMA, X, Y, top=("agee",))


@pytest.mark.parametrize(
    ("rows", "empty", "line"),
    [([[1, 0], [1, 1]], False, 1), ([[0, 1], [0, 0]], False, 1), ([[1, 0], [2, 0]], True, 1)],
)
def test_rows_of_a_one_hot_group_have_one_1(rows, empty, line):
    schema = Schema((Feature("a"), Feature("b")), "y", groups=(OneHot(("a", "b"), empty),))
    with pytest.raises(DataError, match=rf"at row {line}; in a one-hot group exactly one"):
        prepare("t", schema, np.array(rows), np.array([0, 1]))
    assert prepare("t", schema, np.eye(2), np.array([0, 1])).schema.groups
