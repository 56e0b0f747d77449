"""Any CSV file: how it is written is found out, what its columns are is inferred and said."""

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
    """Return a CSV text of N rows; `row` says what stands in each."""
    return "".join(f"{line}\n" for line in [header, *map(row, range(N))])


def kinds(path):
    return {column.name: column.kind for column in columns_of(read_csv(path))}


def said(data, label):
    (found,) = [note for note in data.notes if note.startswith(f"{label}: ")]
    return found.removeprefix(f"{label}: ")


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
    other = "\ufeff" + GOOD.replace("Bern", '"Bern"').replace("\n", "\r\n") + "\r\n"
    assert load_csv(write(other), "ill").digest == plain.digest


def plain_text():
    return table(
        "age,bmi,town,ill",
        lambda i: f"{AGES[i]},{BMI[i]:.2f},{['Zürich', 'Genève', 'Bern'][i % 3]},{ILL[i]}",
    )


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_separator_encoding_and_decimal_comma_do_not_matter(separator, encoding, write):
    plain = load_csv(write(plain_text()), "ill")
    other = plain_text().replace(",", separator).replace(".", ",")
    data = load_csv(write(other.encode(encoding)), "ill")
    assert data.digest == plain.digest
    assert said(data, "decimal comma") == "bmi"


def test_a_hint_of_spreadsheets_an_index_and_row_names_are_no_columns_of_data(write):
    plain = load_csv(write(plain_text()), "ill").digest
    lines = plain_text().splitlines()
    hinted = "sep=,\n" + "\n".join(lines)
    index = "\n".join(["," + lines[0], *(f"{i},{line}" for i, line in enumerate(lines[1:]))])
    named = "\n".join([lines[0], *(f"{i},{line}" for i, line in enumerate(lines[1:]))])
    ended = "\n".join([lines[0], *(f"{line}," for line in lines[1:])])
    for text in (hinted, index, named, ended):
        assert load_csv(write(text), "ill").digest == plain


def test_a_file_without_header_is_named_by_its_places(write):
    lines = plain_text().splitlines()[1:]
    data = load_csv(write("\n".join(lines)), "column4")
    assert data.schema.names == ("column1", "column2", "column3")
    assert len(data.table) == N
    assert "no header line" in said(data, "table")
    years = table("2019,2020,up", lambda i: f"{AGES[i]},{BMI[i]},{ILL[i]}")
    assert read_csv(write(years)).names == ("2019", "2020", "up")


def test_few_ragged_lines_are_left_out_and_duplicate_names_numbered(write):
    lines = table("a,a,y", lambda i: f"{AGES[i]},{BMI[i]:.2f},{ILL[i]}").splitlines()
    lines[5] += ",more"
    data = load_csv(write("\n".join(lines)), "y")
    assert data.schema.names == ("a", "a.2")
    assert len(data.table) == N - 1
    assert "1 line of another width left out (line 6)" in said(data, "table")


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


def test_one_decision_per_file_reads_columns_that_do_not_show_their_decimal_mark(write):
    def row(i):
        return f"{20 + i}.{i * 7 % 1000:03d};{BMI[i]:.1f};{ILL[i]}"

    text = table("income;bmi;y", row)
    assert load_csv(write(text), "y").table.X[1, 0] == np.float32(21.007)
    comma = table("income;bmi;y", lambda i: f"{20 + i}.{i * 7 % 1000:03d};{i},5;{ILL[i]}")
    with pytest.raises(Problems, match=r"'20\.000' may mean 20\.000 \(decimal point\) or 20000"):
        load_csv(write(comma), "y", keep=["income"])
    read = load_csv(write(comma), "y", keep=["income"], decimal=",")
    assert read.table.X[1].tolist() == [21007, 1.5]


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


# --- what its columns are

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


def test_a_hostile_table_needs_no_option(write):
    data = load_csv(write(HOSTILE.replace("\n", "\r\n").encode("latin-1")), "krank")
    assert data.schema.names == ("Alter", "Größe", "Lohn", "Labor", "raucht", "Ort")
    assert data.schema.classes == ("nein", "ja")
    assert data.schema.features[4].categories == ("nein", "Ja")
    X = data.table.X
    assert X[1].tolist() == [27, np.float32(1.51), 21037.5, np.float32(1.1), 1, 0]
    assert np.isnan(X[:, 3]).sum() == N / 5
    assert np.isnan(X[0, 0])
    odd = "12 cells that are no numbers ('<5'; first at line 3) are read as missing"
    assert odd in said(data, "Labor")
    out = said(data, "left out")
    for name in ("Fall-Nr. (near-unique", "Tag (dates)", "Notiz (free text)", "leer (no values)"):
        assert name in out
    assert out.endswith("--keep Fall-Nr.,Tag,Notiz")
    assert "the whole table" in said(data, "declared knowledge")


def test_dates_of_any_year_are_days():
    found = dates(["25.01.3021", "01.01.1970", "31.12.1969 12:00", "01.01.0001"])
    assert [*found.values()] == [383894, 0, -0.5, -719162]


@pytest.mark.parametrize("token", ["inf", "1e999", "12x", "-Infinity"])
def test_a_token_that_is_no_number_is_named_with_its_line(write, token):
    def with_token(name, values):
        texts = [token if i == 3 else str(value) for i, value in enumerate(values)]
        rows = (f"{i % 7}.5,{i % 5},{text}\n" for i, text in enumerate(texts))
        return write(f"a,b,{name}\n" + "".join(rows), f"{name}.csv")

    odd = f"1 cell that is no number ({token!r}; line 5)"
    data = load_csv(with_token("age", AGES), "b", task="classes")
    assert data.notes.count(f"age: {odd} is read as missing") == 1
    assert np.isnan(data.table.X[3, 1])
    data = load_csv(with_token("age", AGES), "age")  # the target
    assert data.notes.count(f"age: {odd} is read as missing") == 1
    assert len(data.table) == N - 1
    codes = load_csv(with_token("code", [i % 4 for i in range(N)]), "b", task="classes")
    assert codes.notes.count(f"code: codes, and {odd}") == 1
    few = load_csv(write(f"x,b\n1.5,0\n{token},1\n2.5,0\n"), "b")
    odd = odd.replace("line 5", "line 3")
    assert few.notes.count(f"x: categories, for {odd}") == 1


def test_what_is_done_for_a_column_is_not_done_once_more_for_every_other(write):
    steps, rows = [], 40
    for d in (200, 800):
        names = ",".join("x" * (k % 3) for k in range(d))  # doubled and lacking ones
        lines = (",".join(str(int(k % rows == i)) for k in range(d)) for i in range(rows))
        path = write(f"{names},y\n" + "".join(f"{line},{i % 2}\n" for i, line in enumerate(lines)))
        steps.append(0)

        def count(frame, event, _):
            steps[-1] += event in ("call", "line")
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            data = load_csv(path, "y")
        finally:
            sys.settrace(before)
        assert len(data.schema.groups) == d // rows
    assert steps[1] < 6 * steps[0]  # 4 times, or 16 times


def test_what_is_left_out_can_be_kept_and_more_dropped(write):
    path = write(HOSTILE)
    data = load_csv(path, "krank", keep=["Tag", "Notiz"], drop=["Ort", "Lohn"])
    assert data.schema.names == ("Tag", "Alter", "Größe", "Labor", "raucht", "Notiz")
    assert data.table.X[0, 0] == (datetime.date(2021, 1, 1) - datetime.date(1970, 1, 1)).days
    assert len(data.schema.features[-1].categories) == N
    assert "Lohn, Ort (as declared)" in said(data, "left out")


def test_ids_are_told_by_name_by_length_and_by_never_repeating(write):
    def row(i):
        salary = 20000 + 997 * (i * i % 101)
        return f"{i * 13},{10**11 + i * i},{i * 7 % N},u{i:x},{salary},{ILL[i]}"

    found = kinds(write(table("patient_id,phone,nth,name,salary,y", row)))
    assert list(found.values()) == ["id", "id", "id", "id", "number", "yes/no"]


def test_blocks_of_a_file_are_put_together_as_its_records_stand(write, monkeypatch):
    rows = [[f" {i} ", f"a\nb{i}", "", f"x y{i}"][: 3 if i == 17 else 4] for i in range(40)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["n", "two lines", "none", "spaced"], *rows])
    path = write(buffer.getvalue())
    whole = [row for row in rows if len(row) == 4]
    for block in (1, 7, 10_000):
        monkeypatch.setattr("fedtrees.data.csv_file._BLOCK", block)
        found = read_csv(path)
        cells = [found.column(name) for name in found.names]
        assert list(zip(*cells, strict=True)) == [tuple(c.strip() for c in row) for row in whole]
        assert list(found.lines) == [2 * i + 3 for i in range(40) if i != 17]
        assert found.notes == ("1 line of another width left out (line 37)",)


def test_few_whole_numbers_are_categories_in_their_order(write):
    found = columns_of(
        read_csv(
            write(table("grade,score,y", lambda i: f"{[10, 9, -1][i % 3]},{i % 3 / 2},{ILL[i]}"))
        )
    )
    assert [c.kind for c in found] == ["category", "number", "yes/no"]
    assert found[0].order == ("-1", "9", "10")


def test_whole_numbers_that_float32_cannot_tell_apart(write):
    long = 98765432109876540
    data = load_csv(write(table("code,age,y", lambda i: f"{long + i % 7},{AGES[i]},{ILL[i]}")), "y")
    assert data.schema.features[0].categories == tuple(str(long + k) for k in range(7))
    path = write(table("amount,age,y", lambda i: f"{2**25 + i * i % 97},{AGES[i]},{ILL[i]}"))
    with pytest.raises(Problems, match=r"'amount' has \d+ whole numbers that are equal to another"):
        load_csv(path, "y")
    assert len(load_csv(path, "y", categorical=["amount"]).schema.features) == 2


def test_ranges_are_declared_and_never_computed(write):
    features = load_csv(write(GOOD), "ill", ranges={"age": (0, 120)}).schema.features
    assert (features[0].low, features[0].high) == (0, 120)
    again = load_csv(write(GOOD), "ill").schema.features
    assert (again[0].low, again[0].high) == (None, None)


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
def test_the_task_is_told_by_the_target(values, task, classes, write):
    data = load_csv(write("a;y\n" + "\n".join(f"{i};{v}" for i, v in enumerate(values))), "y")
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
    assert said(data, "target") == "y, a number to predict; 2 rows without it are left out"


# --- what is wrong


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


def test_all_problems_are_told_at_once_with_their_remedies(write):
    path = write(plain_text())
    with pytest.raises(Problems) as error:
        load_csv(path, "il", categorical=["twn"], drop=["bmi", "aeg"], keep=["bmi"])
    found = {p.option: p.value for p in error.value.problems}
    assert found == {"target": "ill", "categorical": "town", "drop": "age"}
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
def test_targets_that_trees_would_not_learn_in_single_precision_are_refused(write, scale, message):
    rows = [f"{i / 7},{i * scale:g}" for i in range(40)]
    path = write("a,y\n" + "\n".join(rows))
    if message:
        with pytest.raises(DataError, match=message):
            load_csv(path, "y")
    else:
        made = load_csv(path, "y")
        model = FederatedGBDTRegressor(n_estimators=10, n_clients=2)
        assert model.fit(made.table.X, made.table.y).score(made.table.X, made.table.y) > 0.9


def test_one_target_of_1e30_is_named_with_its_line(write):
    rows = [f"{i / 7},{i / 3:.4f}" for i in range(40)]
    rows[7] = "1.5,1e30"
    with pytest.raises(DataError, match=r"target 'y' is 1e\+30 at line 9; correct the value"):
        load_csv(write("a,y\n" + "\n".join(rows)), "y")


def test_unknown_tasks_and_a_positive_class_beside_another_task(write):
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
    assert said(data, "one category in several columns") == "red, green, blue"


def test_columns_that_overlap_or_leave_a_row_out_are_no_category(write):
    def row(i):
        return f"{int(i % 3 == 0)},{int(i % 3 == 1)},{int(i % 3 == 2 and i > 9)},{ILL[i]}"

    assert load_csv(write(table("a,b,c,ill", row)), "ill").schema.groups == ()
    few = "a,b,ill\n" + "0,1,yes\n1,0,no\n" * 5
    assert load_csv(write(few), "ill").schema.groups == ()
