import numpy as np
import pytest

from fedtrees.core.errors import DataError, UsageError
from fedtrees.data import load_csv

GOOD = "age,town,ill\n30,Bern,yes\n41.5,?,no\n,Aarau,yes\n"


@pytest.fixture
def write(tmp_path):
    def writer(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


def test_categories_are_coded_alphabetically_and_holes_stay_holes(write):
    data = load_csv(write(GOOD), "ill", categorical=["town"])
    assert data.name == "table"
    assert data.schema.features[1].categories == ("Aarau", "Bern")
    assert data.schema.classes == ("no", "yes")
    expected = np.array([[30, 1], [41.5, np.nan], [np.nan, 0]], dtype=np.float32)
    assert np.array_equal(data.table.X, expected, equal_nan=True)
    assert data.table.y.tolist() == [1, 0, 1]


def test_line_ends_quotes_and_byte_order_mark_do_not_matter(write):
    plain = load_csv(write(GOOD), "ill", categorical=["town"])
    other = "\ufeff" + GOOD.replace("Bern", '"Bern"').replace("\n", "\r\n") + "\r\n"
    assert load_csv(write(other), "ill", categorical=["town"]).digest == plain.digest


def test_numeric_categories_are_ordered_by_value(write):
    path = write("code,y\n10,0\n9,1\n-1,0\n")
    data = load_csv(path, "y", categorical=["code"])
    assert data.schema.features[0].categories == ("-1", "9", "10")


def test_text_in_a_numeric_column_names_column_value_and_line(write):
    with pytest.raises(DataError, match=r"line 2: column 'town' holds 'Bern', not a number"):
        load_csv(write(GOOD), "ill")


def test_a_cell_over_two_lines_does_not_shift_the_reported_line(write):
    path = write('a,b,y\n1,"x\nx",0\n2,x,1\nbad,x,1\n')
    with pytest.raises(DataError, match=r"line 5: column 'a' holds 'bad'"):
        load_csv(path, "y", categorical=["b"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"a,b,y\n", "a header but no rows"),
        (b"a,a,y\n1,2,0\n", r"duplicate column names \['a'\]"),
        (b"a,,y\n1,2,0\n", "column 2 has no name"),
        (b"a,b,y\n1,2,0\n1,2\n", "line 3: 2 cells, the header has 3; the file may be truncated"),
        (b"a,b,y\n1,2,0\n1,inf,1\n", "line 3: column 'b' holds 'inf'"),
        (b"a,b,y\n1,2,0\n1,3,\n", "missing at line 3"),
        (b"a,b,y\n1,2,0\n1,3,0\n", r"one class only \('0'\)"),
        (
            b"a,b,y\n1,2,0\n1,3,1\n1,3,2\n",
            r"3 classes \(0, 1, 2\); name the positive class .* all of its classes",
        ),
        (b"a,b,y\n1,2,0\n1,3,\xff\xfe\n", "byte 16 is not UTF-8 text"),
        (b"a,b,y\n1,2,0\n1,\x00,1\n", "NUL bytes"),
        (b'a,b,y\n1,2,0\n1,"3,1\n', "unexpected end of data"),
        (b"y\n0\n1\n", "no feature columns"),
    ],
)
def test_damaged_files_are_explained(write, content, message):
    with pytest.raises(DataError, match=message):
        load_csv(write(content), "y")


def test_missing_file_and_folder_instead_of_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_csv(tmp_path / "absent.csv", "y")
    with pytest.raises(DataError, match="cannot be read"):
        load_csv(tmp_path, "y")


def test_unknown_columns_get_suggestions(write):
    path = write(GOOD)
    with pytest.raises(DataError, match=r"no column 'il'; did you mean 'ill'"):
        load_csv(path, "il")
    with pytest.raises(DataError, match=r"did you mean 'town'"):
        load_csv(path, "ill", categorical=["twon"])


def test_a_positive_class_makes_many_classes_binary(write):
    path = write("a,y\n1,low\n2,mid\n3,high\n4,mid\n")
    data = load_csv(path, "y", positive="mid")
    assert data.table.y.tolist() == [0, 1, 0, 1]
    assert data.schema.classes == ("not mid", "mid")
    with pytest.raises(DataError, match="did you mean 'mid'"):
        load_csv(path, "y", positive="midd")


def test_all_classes_of_a_target_are_taken_where_asked_for(write):
    path = write("a,y\n1,low\n2,mid\n3,high\n4,mid\n")
    data = load_csv(path, "y", task="classes")
    assert data.schema.classes == ("high", "low", "mid")
    assert data.table.y.tolist() == [1, 2, 0, 2]
    assert data.task == "classes"


def test_numbers_to_predict_are_taken_where_asked_for(write):
    data = load_csv(write("a,y\n1,2.5\n2,-1\n3,1e3\n"), "y", task="number")
    assert data.schema.classes == ()
    assert data.table.y.tolist() == [2.5, -1, 1000]
    assert data.table.y.dtype == np.float64
    assert data.task == "number"


@pytest.mark.parametrize(
    ("content", "task", "message"),
    [
        ("a,y\n1,2\n2,\n", "number", "missing at line 3"),
        ("a,y\n1,2\n2,two\n", "number", "line 3: column 'y' holds 'two', not a number"),
        ("a,y\n1,inf\n2,2\n", "number", "line 2: column 'y' holds 'inf'"),
        ("a,y\n1,2\n2,2\n", "number", "'y' is 2 in every row"),
        ("a,y\n1,u\n2,?\n", "classes", "missing at line 3"),
        ("a,y\n1,u\n2,u\n", "classes", "one class only"),
    ],
)
def test_targets_that_do_not_suit_the_task_are_explained(write, content, task, message):
    with pytest.raises(DataError, match=message):
        load_csv(write(content), "y", task=task)


def test_unknown_tasks_and_a_positive_class_beside_another_task(write):
    path = write("a,y\n1,low\n2,mid\n")
    with pytest.raises(UsageError, match="did you mean 'classes'"):
        load_csv(path, "y", task="class")
    with pytest.raises(UsageError, match="is for a binary task, not for classes"):
        load_csv(path, "y", task="classes", positive="mid")


def test_ranges_are_declared_and_never_computed(write):
    features = load_csv(
        write(GOOD), "ill", categorical=["town"], ranges={"age": (0, 120)}
    ).schema.features
    assert (features[0].low, features[0].high) == (0, 120)
    again = load_csv(write(GOOD), "ill", categorical=["town"]).schema.features
    assert (again[0].low, again[0].high) == (None, None)
