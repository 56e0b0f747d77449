"""Tables of users: the format of a CSV file and the kinds of its columns are inferred and noted."""

import csv
import datetime
import io
import sys

import numpy as np
import pytest

from fedtrees import FederatedGBDTRegressor
from fedtrees.core.errors import DataError, Problems, UsageError
from fedtrees.data import load_csv
from fedtrees.data.cells import dates, number
from fedtrees.data.column_types import columns_of
from fedtrees.data.csv_file import read_csv

GOOD = "age,town,ill\n30,Bern,yes\n41.5,?,no\n,Aarau,yes\n"
N = 60
AGES = [20 + 7 * i % 50 for i in range(N)]
BMI = [20 + i % 13 + i / 100 for i in range(N)]
ILL = ["yes" if age > 40 else "no" for age in AGES]


@pytest.fixture
def write(tmp_path):
    def writer(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


def table(header, row):
    """Return a CSV text of N rows; `row` returns the text of each."""
    return "".join(f"{line}\n" for line in [header, *map(row, range(N))])


def kinds(path):
    return {column.name: column.kind for column in columns_of(read_csv(path))}


def note_of(data, label):
    (text,) = [note for note in data.notes if note.startswith(f"{label}: ")]
    return text.removeprefix(f"{label}: ")


# --- how it is written


def test_categories_are_coded_alphabetically_and_holes_stay_holes(write):
    data = load_csv(write(GOOD), "ill")
    assert data.name == "table"
    assert data.schema.features[1].categories == ("Aarau", "Bern")
    assert data.schema.classes == ("no", "yes")
    expected = np.array([[30, 1], [41.5, np.nan], [np.nan, 0]], dtype=np.float32)
    assert np.array_equal(data.table.X, expected, equal_nan=True)
    assert data.table.y.tolist() == [1, 0, 1]


def test_line_ends_quotes_and_byte_order_mark_do_not_matter(write):
    plain = load_csv(write(GOOD), "ill")
    other_text = "\ufeff" + GOOD.replace("Bern", '"Bern"').replace("\n", "\r\n") + "\r\n"
    assert load_csv(write(other_text), "ill").digest == plain.digest


def plain_text():
    return table(
        "age,bmi,town,ill",
        lambda i: f"{AGES[i]},{BMI[i]:.2f},{['Zürich', 'Genève', 'Bern'][i % 3]},{ILL[i]}",
    )


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_separator_encoding_and_decimal_comma_do_not_matter(separator, encoding, write):
    plain = load_csv(write(plain_text()), "ill")
    other_text = plain_text().replace(",", separator).replace(".", ",")
    data = load_csv(write(other_text.encode(encoding)), "ill")
    assert data.digest == plain.digest
    assert note_of(data, "decimal comma") == "bmi"


def test_a_separator_hint_an_index_and_row_names_are_no_columns(write):
    plain = load_csv(write(plain_text()), "ill").digest
    lines = plain_text().splitlines()
    with_hint = "sep=,\n" + "\n".join(lines)
    with_index = "\n".join(
        ["," + lines[0], *(f"{number},{line}" for number, line in enumerate(lines[1:]))]
    )
    with_row_names = "\n".join(
        [lines[0], *(f"{number},{line}" for number, line in enumerate(lines[1:]))]
    )
    with_trailing_comma = "\n".join([lines[0], *(f"{line}," for line in lines[1:])])
    for text in (with_hint, with_index, with_row_names, with_trailing_comma):
        assert load_csv(write(text), "ill").digest == plain


def test_a_file_without_header_is_named_by_its_places(write):
    lines = plain_text().splitlines()[1:]
    data = load_csv(write("\n".join(lines)), "column4")
    assert data.schema.names == ("column1", "column2", "column3")
    assert len(data.table) == N
    assert "no header line" in note_of(data, "table")
    years = table("2019,2020,up", lambda i: f"{AGES[i]},{BMI[i]},{ILL[i]}")
    assert read_csv(write(years)).names == ("2019", "2020", "up")


def test_few_ragged_lines_are_left_out_and_duplicate_names_numbered(write):
    lines = table("a,a,y", lambda i: f"{AGES[i]},{BMI[i]:.2f},{ILL[i]}").splitlines()
    lines[5] += ",more"
    data = load_csv(write("\n".join(lines)), "y")
    assert data.schema.names == ("a", "a.2")
    assert len(data.table) == N - 1
    assert "1 line of another width left out (line 6)" in note_of(data, "table")


@pytest.mark.parametrize(
    ("cell", "decimal", "value"),
    [
        ("1,234", ".", 1234), ("1,234", ",", 1.234), ("1.234.567,5", ",", 1234567.5),
        ("-1'234.5", ".", -1234.5), ("1 234,5", ",", 1234.5), ("1e-3", ".", 0.001),
        ("12,34", ".", None), ("1,23,456", ".", None), ("1.5", ",", None), ("inf", ".", None),
        ("1_000", ".", None), ("1e999", ".", None), (".5", ".", 0.5), (",5", ",", 0.5),
    ],
)  # fmt: skip
def test_numbers_are_read_as_they_are_written(cell, decimal, value):
    assert number(cell, decimal) == value


def test_the_decimal_mark_of_one_column_is_used_for_the_complete_file(write):
    def row(number):
        return f"{20 + number}.{number * 7 % 1000:03d};{BMI[number]:.1f};{ILL[number]}"

    text = table("income;bmi;y", row)
    assert load_csv(write(text), "y").table.X[1, 0] == np.float32(21.007)
    comma = table(
        "income;bmi;y",
        lambda number: f"{20 + number}.{number * 7 % 1000:03d};{number},5;{ILL[number]}",
    )
    with pytest.raises(Problems, match=r"'20\.000' may mean 20\.000 \(decimal point\) or 20000"):
        load_csv(write(comma), "y", keep=["income"])
    dataset = load_csv(write(comma), "y", keep=["income"], decimal=",")
    assert dataset.table.X[1].tolist() == [21007, 1.5]


@pytest.mark.parametrize(
    "forms",
    [["%Y-%m-%d"], ["%d.%m.%Y"], ["%m/%d/%Y"], ["%d/%m/%Y"], ["%Y%m%d"], ["%d %b %Y", "%Y-%m-%d"],
     ["%Y-%m-%dT%H:%M:%SZ"]],
)  # fmt: skip
def test_dates_are_days(forms):
    days = [datetime.date(1999, 1, 1) + datetime.timedelta(37 * k) for k in range(80)]
    cells = [day.strftime(forms[k % len(forms)]) for k, day in enumerate(days)]
    epoch = datetime.date(1970, 1, 1)
    assert dates(cells) == {c: (d - epoch).days for c, d in zip(cells, days, strict=True)}
    assert dates([*cells, "soon"]) is None
    assert dates([*cells * 10, "now"]) is None


# --- kinds of columns

HOSTILE = table(
    "Fall-Nr.;Tag;Alter;Größe;Lohn;Labor;raucht;Ort;Notiz;leer;krank",
    lambda i: ";".join([
        f"{2024000000 + i}", f"{1 + i % 28:02d}.{1 + i % 12:02d}.2021",
        f"{AGES[i] if i % 9 else ''}", f"1,{50 + i % 40}", f"{20 + i}.{i * 37 % 1000:03d},50",
        "<5" if i % 5 == 0 else f"{i % 29},{i % 10}", ["Ja", "ja", "nein"][i % 3],
        ["Zürich", "Bern", "Genf"][i % 3], f'"kam am {i}ten\num {i} Uhr"', "",
        "ja" if i % 4 else "nein",
    ]),
)  # fmt: skip


def test_a_messy_table_needs_no_option(write):
    data = load_csv(write(HOSTILE.replace("\n", "\r\n").encode("latin-1")), "krank")
    assert data.schema.names == ("Alter", "Größe", "Lohn", "Labor", "raucht", "Ort")
    assert data.schema.classes == ("nein", "ja")
    assert data.schema.features[4].categories == ("nein", "Ja")
    X = data.table.X
    assert X[1].tolist() == [27, np.float32(1.51), 21037.5, np.float32(1.1), 1, 0]
    assert np.isnan(X[:, 3]).sum() == N / 5
    assert np.isnan(X[0, 0])
    note_of_cells = "12 cells that are no numbers ('<5'; first at line 3) are read as missing"
    assert note_of_cells in note_of(data, "Labor")
    left_out = note_of(data, "left out")
    for name in ("Fall-Nr. (near-unique", "Tag (dates)", "Notiz (free text)", "leer (no values)"):
        assert name in left_out
    assert left_out.endswith("--keep Fall-Nr.,Tag,Notiz")
    assert "the whole table" in note_of(data, "public")


def test_dates_are_converted_to_days():
    days = dates(["25.01.3021", "01.01.1970", "31.12.1969 12:00", "01.01.0001"])
    assert [*days.values()] == [383894, 0, -0.5, -719162]


@pytest.mark.parametrize("token", ["inf", "1e999", "12x", "-Infinity"])
def test_a_token_that_is_no_number_is_named_with_its_line(write, token):
    def with_token(name, values):
        texts = [token if number == 3 else str(value) for number, value in enumerate(values)]
        rows = (f"{number % 7}.5,{number % 5},{text}\n" for number, text in enumerate(texts))
        return write(f"a,b,{name}\n" + "".join(rows), f"{name}.csv")

    note_of_cell = f"1 cell that is no number ({token!r}; line 5)"
    data = load_csv(with_token("age", AGES), "b", task="classes")
    assert data.notes.count(f"age: {note_of_cell} is read as missing") == 1
    assert np.isnan(data.table.X[3, 1])
    data = load_csv(with_token("age", AGES), "age")  # the target
    assert data.notes.count(f"age: {note_of_cell} is read as missing") == 1
    assert len(data.table) == N - 1
    codes = load_csv(with_token("code", [number % 4 for number in range(N)]), "b", task="classes")
    assert codes.notes.count(f"code: codes, and {note_of_cell}") == 1
    short_table = load_csv(write(f"x,b\n1.5,0\n{token},1\n2.5,0\n"), "b")
    note_of_cell = note_of_cell.replace("line 5", "line 3")
    reason = f"x: read as categories, because of {note_of_cell}"
    assert sum(note.startswith(reason) for note in short_table.notes) == 1


def test_the_work_for_a_column_does_not_grow_with_the_number_of_columns(write):
    steps, rows = [], 40
    for n_columns in (200, 800):
        names = ",".join(
            "x" * (column % 3) for column in range(n_columns)
        )  # doubled and lacking ones
        lines = (
            ",".join(str(int(column % rows == row)) for column in range(n_columns))
            for row in range(rows)
        )
        path = write(
            f"{names},y\n" + "".join(f"{line},{row % 2}\n" for row, line in enumerate(lines))
        )
        steps.append(0)

        def count(frame, event, _):
            steps[-1] += event in ("call", "line")
            return count

        previous_trace = sys.gettrace()
        sys.settrace(count)
        try:
            data = load_csv(path, "y")
        finally:
            sys.settrace(previous_trace)
        assert len(data.schema.groups) == n_columns // rows
    # Four times as many columns take four times as many steps. A quadratic reader would take 16
    # times.
    assert steps[1] < 6 * steps[0]


def test_columns_that_are_left_out_can_be_kept_and_others_dropped(write):
    path = write(HOSTILE)
    data = load_csv(path, "krank", keep=["Tag", "Notiz"], drop=["Ort", "Lohn"])
    assert data.schema.names == ("Tag", "Alter", "Größe", "Labor", "raucht", "Notiz")
    assert data.table.X[0, 0] == (datetime.date(2021, 1, 1) - datetime.date(1970, 1, 1)).days
    assert len(data.schema.features[-1].categories) == N
    assert "Lohn, Ort (as declared)" in note_of(data, "left out")


def test_ids_are_recognised_by_name_by_length_and_by_uniqueness(write):
    def row(i):
        salary = 20000 + 997 * (i * i % 101)
        return f"{i * 13},{10**11 + i * i},{i * 7 % N},u{i:x},{salary},{ILL[i]}"

    kinds_of_columns = kinds(write(table("patient_id,phone,nth,name,salary,y", row)))
    assert list(kinds_of_columns.values()) == ["id", "id", "id", "id", "number", "yes/no"]


def test_blocks_of_a_file_are_joined_in_the_order_of_its_records(write, monkeypatch):
    rows = [
        [f" {number} ", f"a\nb{number}", "", f"x y{number}"][: 3 if number == 17 else 4]
        for number in range(40)
    ]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["n", "two lines", "none", "spaced"], *rows])
    path = write(buffer.getvalue())
    complete_rows = [row for row in rows if len(row) == 4]
    for block in (1, 7, 10_000):
        monkeypatch.setattr("fedtrees.data.csv_file._BLOCK", block)
        table_read = read_csv(path)
        cells = [table_read.column(name) for name in table_read.names]
        assert list(zip(*cells, strict=True)) == [
            tuple(cell.strip() for cell in row) for row in complete_rows
        ]
        assert list(table_read.lines) == [2 * number + 3 for number in range(40) if number != 17]
        assert table_read.notes == ("1 line of another width left out (line 37)",)


def test_few_integers_are_categories_in_numeric_order(write):
    column_list = columns_of(
        read_csv(
            write(
                table(
                    "grade,score,y",
                    lambda number: f"{[10, 9, -1][number % 3]},{number % 3 / 2},{ILL[number]}",
                )
            )
        )
    )
    assert [column.kind for column in column_list] == ["category", "number", "yes/no"]
    assert column_list[0].order == ("-1", "9", "10")


def test_integers_that_are_equal_in_float32_are_codes_or_refused(write):
    large_number = 98765432109876540
    data = load_csv(
        write(
            table(
                "code,age,y",
                lambda number: f"{large_number + number % 7},{AGES[number]},{ILL[number]}",
            )
        ),
        "y",
    )
    assert data.schema.features[0].categories == tuple(
        str(large_number + code) for code in range(7)
    )
    path = write(
        table(
            "amount,age,y",
            lambda number: f"{2**25 + number * number % 97},{AGES[number]},{ILL[number]}",
        )
    )
    with pytest.raises(Problems, match=r"'amount' has \d+ whole numbers that are equal to another"):
        load_csv(path, "y")
    assert len(load_csv(path, "y", categorical=["amount"]).schema.features) == 2


def test_ranges_are_declared_and_never_computed(write):
    features = load_csv(write(GOOD), "ill", ranges={"age": (0, 120)}).schema.features
    assert (features[0].low, features[0].high) == (0, 120)
    without_ranges = load_csv(write(GOOD), "ill").schema.features
    assert (without_ranges[0].low, without_ranges[0].high) == (None, None)


# --- targets


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["low", "mid", "high", "mid", "low", "high"], "classes", ("high", "low", "mid")),
        (["0", "1", "1", "0", "1", "0"], "binary", ("0", "1")),
        (["ja", "nein", "ja", "nein", "ja", "ja"], "binary", ("nein", "ja")),
        (["1", "2", "3", "1", "2", "3"], "classes", ("1", "2", "3")),
        (["2,5", "-1", "1e3", "4", "5", "6"], "number", ()),
    ],
)
def test_the_task_follows_from_the_target(values, task, classes, write):
    data = load_csv(
        write("a;y\n" + "\n".join(f"{number};{value}" for number, value in enumerate(values))), "y"
    )
    assert (data.task, data.schema.classes) == (task, classes)


def test_a_positive_class_makes_many_classes_binary(write):
    path = write("a,y\n1,low\n2,mid\n3,high\n4,mid\n")
    data = load_csv(path, "y", positive="mid")
    assert data.table.y.tolist() == [0, 1, 0, 1]
    assert data.schema.classes == ("not mid", "mid")
    with pytest.raises(DataError, match="did you mean 'mid'"):
        load_csv(path, "y", positive="midd")


def test_rows_without_target_are_left_out_and_counted(write):
    data = load_csv(write("a,y\n1,2.5\n2,-1\n3,?\n4,8\n5,none\n"), "y", task="number")
    assert data.table.y.tolist() == [2.5, -1, 8]
    assert data.table.X[:, 0].tolist() == [1, 2, 4]
    assert note_of(data, "target") == "y, a number to predict; 2 rows without it are left out"


# --- errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"a,b,y\n", "a header but no rows"),
        (b"a,b,y\n1,2,0\n1,2\n", "line 3: 2 cells, the header has 3 .* may be truncated"),
        (b"a,b,y\n1,2,0\n1,3,0\n", r"one class only \('0'\)"),
        (b"a,b,y\n1,2,0\n1,\x00,1\n", "NUL bytes"),
        (b'a,b,y\n1,2,0\n1,"3,1\n', "a quote that is opened must be closed"),
        (b"y\n0\n1\n", "no feature columns"),
        (b"a,y\n,0\n,1\n", r"no feature columns .*: a \(no values\)"),
        (b"a,y\n1,\n2,\n", "target 'y' has no values"),
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


def test_all_problems_are_reported_at_once_with_their_remedies(write):
    path = write(plain_text())
    with pytest.raises(Problems) as error:
        load_csv(path, "il", categorical=["twn"], drop=["bmi", "aeg"], keep=["bmi"])
    remedies = {problem.option: problem.value for problem in error.value.problems}
    assert remedies == {"target": "ill", "categorical": "town", "drop": "age"}
    assert len(error.value.problems) == 4
    assert "no column 'il'; did you mean 'ill'" in str(error.value)


@pytest.mark.parametrize(
    ("content", "task", "message"),
    [
        ("a,y\n1,2\n2,two\n3,x\n", "number", "line 3: column 'y' contains 'two', not a number"),
        ("a,y\n1,2\n2,2\n", "number", "'y' is 2 in every row"),
        ("a,y\n1,u\n2,u\n", "classes", "one class only"),
        ("a,y\n1,u\n2,v\n3,w\n", "binary", "3 classes .*name the positive class"),
    ],
)
def test_targets_that_do_not_suit_the_task_are_explained(write, content, task, message):
    with pytest.raises(DataError, match=message):
        load_csv(write(content), "y", task=task)


@pytest.mark.long
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (1e16, None),
        (1e-3, None),
        (1e18, r"target 'y' is 3.9e\+19 at line 41; .*divide the target"),
        (1e-6, "target 'y' lies between 0 and 3.9e-05, too close .*multiply the target"),
    ],
)
def test_targets_that_trees_cannot_learn_in_single_precision_are_refused(write, scale, message):
    rows = [f"{number / 7},{number * scale:g}" for number in range(40)]
    path = write("a,y\n" + "\n".join(rows))
    if message:
        with pytest.raises(DataError, match=message):
            load_csv(path, "y")
    else:
        dataset = load_csv(path, "y")
        model = FederatedGBDTRegressor(n_estimators=10, n_clients=2)
        assert (
            model.fit(dataset.table.X, dataset.table.y).score(dataset.table.X, dataset.table.y)
            > 0.9
        )


def test_one_target_of_1e30_is_named_with_its_line(write):
    rows = [f"{i / 7},{i / 3:.4f}" for i in range(40)]
    rows[7] = "1.5,1e30"
    with pytest.raises(DataError, match=r"target 'y' is 1e\+30 at line 9; correct the value"):
        load_csv(write("a,y\n" + "\n".join(rows)), "y")


def test_unknown_tasks_and_a_positive_class_for_another_task_are_refused(write):
    path = write("a,y\n1,low\n2,mid\n")
    with pytest.raises(UsageError, match="did you mean 'classes'"):
        load_csv(path, "y", task="class")
    with pytest.raises(UsageError, match="is for a binary task, not for classes"):
        load_csv(path, "y", task="classes", positive="mid")


# --- columns that are one category


@pytest.mark.parametrize("words", [("0", "1"), ("no", "yes"), ("False", "True")])
def test_columns_of_which_one_is_1_in_every_row_are_one_category(write, words):
    def row(i):
        hot = [words[(i // 2) % 3 == k] for k in range(3)]
        return ",".join([str(i % 2), *hot, words[i % 5 > 1], ILL[i]])

    data = load_csv(write(table("a,red,green,blue,b,ill", row)), "ill")
    assert [g.columns for g in data.schema.groups] == [("red", "green", "blue")]
    assert not data.schema.groups[0].empty
    assert note_of(data, "one category in several columns") == "red, green, blue"


def test_columns_that_overlap_or_omit_a_row_are_no_one_hot_group(write):
    def row(i):
        return f"{int(i % 3 == 0)},{int(i % 3 == 1)},{int(i % 3 == 2 and i > 9)},{ILL[i]}"

    assert load_csv(write(table("a,b,c,ill", row)), "ill").schema.groups == ()
    short_text = "a,b,ill\n" + "0,1,yes\n1,0,no\n" * 5
    assert load_csv(write(short_text), "ill").schema.groups == ()
