"""A value is read as it was written, or the column is reported, in every notation of a table."""

import numpy as np
import pandas as pd
import pytest

from fedtrees.core.errors import DataError, Problems
from fedtrees.core.files import unique_labels
from fedtrees.data.client_tables import load_clients, load_joined
from fedtrees.data.csv_file import Reading
from fedtrees.data.csv_table import class_target, coded, numeric, read_plain
from fedtrees.data.table_files import read_table
from fedtrees.data.user_tables import load_csv

N = 60
ILL = ["yes" if i % 3 else "no" for i in range(N)]
AGES = [20 + 7 * i % 50 + i / 10 for i in range(N)]


@pytest.fixture
def written(tmp_path):
    """Write a frame, or the cells of its columns, to a file of the given name."""

    def write(columns, name="table.csv", **options):
        frame = pd.DataFrame(columns)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".parquet"):
            frame.to_parquet(path)
        elif name.endswith(".xlsx"):
            frame.to_excel(path, index=False)
        else:
            path.write_text(frame.to_csv(index=False, **options), "utf-8")
        return path

    return write


def problem_of(path, target="ill", **options):
    """Return the only problem of a table."""
    with pytest.raises(Problems) as error:
        load_csv(path, target, **options)
    (problem,) = error.value.problems
    return problem


def column(path, name, **options):
    """Return one feature of a table."""
    data = load_csv(path, "ill", **options)
    return data.table.X[:, data.schema.names.index(name)]


def notes_of(path, label, **options):
    """Return the notes of a table that start with a label."""
    notes = load_csv(path, "ill", **options).notes
    return [n.removeprefix(f"{label}: ") for n in notes if n.startswith(f"{label}: ")]


# --- decimal marks


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_three_decimals_are_no_thousands_if_a_value_starts_with_a_zero(written, separator):
    ratios = [(i * 17 % 1000 + 1) / 1000 for i in range(N)]
    path = written({"ratio": ratios, "ill": ILL}, sep=separator, float_format="%.3f")
    np.testing.assert_array_equal(column(path, "ratio"), np.float32(ratios))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_three_decimals_without_other_evidence_lead_to_a_question(written, separator):
    doses = [1 + number * 37 % 900 / 1000 for number in range(N)]
    table = {"dose": doses, "ill": ILL}
    path = written(table, sep=separator, float_format="%.3f")
    problem = problem_of(path)
    assert (problem.option, problem.value) == ("decimal", ".")
    assert "'1.000' may mean 1.000 (decimal point) or 1000 (decimal comma)" in problem.text
    np.testing.assert_array_equal(column(path, "dose", decimal="."), np.float32(doses))
    thousands = np.float32([round(1000 * dose) for dose in doses])
    with_comma = column(path, "dose", decimal=",", keep=["dose"])
    np.testing.assert_array_equal(with_comma, thousands)


def test_commas_between_columns_show_that_points_are_decimal(written):
    doses = [1 + i * 37 % 900 / 1000 for i in range(N)]
    path = written({"dose": doses, "ill": ILL}, float_format="%.3f")
    np.testing.assert_array_equal(column(path, "dose"), np.float32(doses))


def test_two_groups_or_the_other_mark_prove_thousands_separators(written):
    incomes = [
        f"{1 + number % 3}.{number * 7 % 1000:03d}.{number * 11 % 1000:03d}" for number in range(N)
    ]
    costs = [f"{1 + number % 3}.{number * 7 % 1000:03d},{number % 100:02d}" for number in range(N)]
    path = written({"income": incomes, "cost": costs, "ill": ILL}, sep=";")
    expected = [float(cell.replace(".", "").replace(",", ".")) for cell in costs]
    np.testing.assert_array_equal(column(path, "cost", keep=["income"]), np.float32(expected))
    integers = [int(cell.replace(".", "")) for cell in incomes]
    np.testing.assert_array_equal(column(path, "income", keep=["income"]), np.float32(integers))


def test_sites_and_audits_ask_the_same_questions_as_training(written):
    path = written({"dose": ["1.250", "2.375"], "ill": ["yes", "no"]}, sep=";")
    with pytest.raises(Problems, match="--decimal"):
        numeric(read_table(path), "dose")
    assert numeric(read_table(path, Reading(decimal=".")), "dose").tolist() == [1.25, 2.375]
    tabs = written({"dose": ["1.250", "2.375"], "ill": ["yes", "no"]}, sep="\t")
    columns = {"dose": (), "ill": ("no", "yes")}
    assert read_plain(tabs, Reading(), columns, "ill") is None
    other_path = written({"dose": ["1.250", "2.5"], "ill": ["yes", "no"]}, sep="\t")
    X, y = read_plain(other_path, Reading(), columns, "ill")
    assert (X[:, 0].tolist(), y.tolist()) == ([1.25, 2.5], [1, 0])


def test_each_file_of_several_has_its_own_decimal_mark(written):
    bmi = np.array([20 + i / 8 for i in range(N)])
    paths = [
        written({"bmi": bmi, "ill": ILL}, "north.csv", sep=";", decimal=","),
        written({"bmi": bmi + 1, "ill": ILL}, "south.csv", sep=";"),
    ]
    data = load_clients(paths, "ill")
    np.testing.assert_array_equal(data.table.X[:N] + 1, data.table.X[N:])
    assert "of the files, only north have decimal commas" in data.notes[1]


def test_clients_whose_values_differ_by_a_factor_of_1000_are_reported(written):
    bmi = np.array([20 + i / 8 for i in range(N)])
    paths = [
        written({"bmi": bmi, "ill": ILL}, "north.csv"),
        written({"bmi": 1000 * bmi, "ill": ILL}, "south.csv"),
    ]
    (note,) = [n for n in load_clients(paths, "ill").notes if n.startswith("bmi: ")]
    assert "the values of 'south' (median 23687.5) and of 'north' (23.6875) differ" in note
    assert "factor of 1,000" in note


# --- labels, categories and clients by value


def test_labels_0_and_1_are_the_labels_0_0_and_1_0(written):
    labels = [i % 2 for i in range(N)]
    paths = [
        written({"age": AGES, "ill": labels}, "x.csv"),
        written({"age": AGES, "ill": np.float64(labels)}, "y.csv"),
    ]
    data = load_clients(paths, "ill")
    assert data.schema.classes == ("0", "1")
    assert data.table.y.tolist() == 2 * labels


def test_categories_and_declared_categories_are_compared_by_value(written):
    grades = [f"{1 + i % 3}.0" if i % 2 else f"{1 + i % 3}" for i in range(N)]
    path = written({"grade": grades, "age": AGES, "ill": ILL})
    data = load_csv(path, "ill", categorical=["grade"])
    assert data.schema.features[0].categories == ("1", "2", "3")
    assert data.table.X[:, 0].tolist() == [i % 3 for i in range(N)]
    assert load_csv(path, "ill").schema.features[0].categories == ("1", "2", "3")
    codes, names = coded(read_table(path), "grade", ("3", "2", "1"))
    assert (codes[:3].tolist(), names) == ([2, 1, 0], ("3", "2", "1"))


def test_names_of_clients_are_compared_by_value(written):
    wards = [f"{1 + i % 2}.0" if i % 3 else f"{1 + i % 2}" for i in range(N)]
    path = written({"ward": wards, "age": AGES, "ill": ILL})
    data = load_clients([path], "ill", column="ward")
    assert data.owner_names == ("1", "2")
    assert data.owners.tolist() == [i % 2 for i in range(N)]


def test_leading_zeros_keep_codes_apart(written):
    wards = [("007", "7")[i % 2] for i in range(N)]
    path = written({"ward": wards, "age": AGES, "ill": ILL})
    assert load_clients([path], "ill", column="ward").owner_names == ("007", "7")


def test_unicode_forms_of_a_client_are_one_client(written):
    wards = [("K\u00f6ln", "Ko\u0308ln", "Bonn")[i % 3] for i in range(N)]
    path = written({"wa\u0308rd": wards, "age": AGES, "ill": ILL})
    data = load_clients([path], "ill", column="w\u00e4rd")
    assert data.owner_names == ("K\u00f6ln", "Bonn")
    assert "cells in another Unicode form than NFC were converted to it: w\u00e4rd" in data.notes[1]


def test_labels_that_differ_in_case_or_invisible_characters_are_reported(written):
    labels = ["malignant", " Malignant", "benign", "benign\u200b"]
    path = written({"age": AGES, "ill": [labels[i % 4] for i in range(N)]})
    notes = notes_of(path, "ill")
    assert notes == [
        "'Malignant' and 'malignant' differ only in upper and lower case",
        "'benign' and 'benign\\u200b' differ only in characters: nothing against U+200B",
    ]


def test_ids_that_look_equal_are_shown_with_their_difference(written):
    bank = written({"id": ["a b", "c"], "income": [1.5, 2.5], "y": ["0", "1"]}, "bank.csv")
    shop = written({"id": ["a\u00a0b", "c"], "age": [20, 30]}, "shop.csv")
    with pytest.raises(DataError, match=r"differ in white space \(1 such id\)"):
        load_joined([bank, shop], "y", id="id")


# --- yes and no


def test_yes_and_no_are_compared_without_case(written):
    labels = ["yes", "Yes", "NO", "no", "no"]
    path = written({"age": AGES, "ill": [labels[i % 5] for i in range(N)]})
    data = load_csv(path, "ill")
    assert data.schema.classes == ("no", "Yes")
    assert data.table.y.tolist() == [int(i % 5 < 2) for i in range(N)]


def test_spellings_of_truth_are_two_categories_and_reported(written):
    smokes = ["TRUE", "False", "t", "0", "1", "no"]
    path = written({"smokes": [smokes[i % 6] for i in range(N)], "age": AGES, "ill": ILL})
    assert column(path, "smokes").tolist() == [[1, 0, 1, 0, 1, 0][i % 6] for i in range(N)]
    (note,) = notes_of(path, "smokes")
    assert note.startswith("one spelling of yes and no: '0' as 'False', '1' as 'TRUE', 'no' as")


@pytest.mark.parametrize(("no", "yes"), [("nein", "ja"), ("non", "oui"), ("-", "+")])
def test_training_and_audit_code_yes_and_no_alike(written, no, yes):
    path = written({"smokes": [(yes, no)[i % 2] for i in range(N)], "ill": ILL})
    trained = load_csv(path, "ill")
    codes, names = coded(read_table(path), "smokes")
    assert trained.schema.features[0].categories == names == (no, yes)
    assert trained.table.X[:, 0].tolist() == codes.tolist() == [1 - i % 2 for i in range(N)]


# --- marks of missing cells


def test_a_missing_mark_that_may_be_a_class_leads_to_a_question(written):
    severities = [("None", "Mild", "Severe")[number % 3] for number in range(N)]
    path = written({"age": AGES, "severity": severities})
    problem = problem_of(path, "severity")
    assert "'None' may be a class or mark a missing label" in problem.text
    assert (problem.option, problem.value) == ("missing", "nan")
    with_marks_as_class = load_csv(path, "severity", missing=["nan"])
    assert with_marks_as_class.schema.classes == ("Mild", "None", "Severe")
    assert len(load_csv(path, "severity", missing=["none"]).table) == N * 2 / 3


def test_a_missing_mark_that_columns_of_numbers_contain_is_no_class(written):
    sizes = [("NA", "small", "large")[number % 3] for number in range(N)]
    ages = ["NA" if number % 5 == 0 else age for number, age in enumerate(AGES)]
    data = load_csv(written({"age": ages, "size": sizes}), "size")
    assert data.schema.classes == ("large", "small")
    assert data.notes[1].endswith("; 20 rows without it are left out")


def test_a_missing_mark_is_a_value_if_the_column_would_be_constant_without_it(written):
    path = written({"rh": ["+-"[number % 2] for number in range(N)], "age": AGES, "ill": ILL})
    data = load_csv(path, "ill")
    assert data.schema.features[0].categories == ("-", "+")
    assert not np.isnan(data.table.X).any()
    assert notes_of(path, "rh")[0].startswith("'-' is read as a value, because the column would")


def test_marks_of_missing_cells_are_listed_and_can_be_chosen(written):
    countries = [("NA", "CH", "DE")[i % 3] for i in range(N)]
    path = written({"country": countries, "age": AGES, "ill": ILL})
    assert notes_of(path, "missing") == [
        "country (33%, 'NA'); empty cells and the marks shown; --missing for other marks"
    ]
    for missing in (["?"], [""]):
        data = load_csv(path, "ill", missing=missing)
        assert data.schema.features[0].categories == ("CH", "DE", "NA")
    days = [("-99", "1.5", "2.5")[i % 3] for i in range(N)]
    path = written({"days": days, "age": AGES, "ill": ILL})
    assert np.isnan(column(path, "days", missing=["-99"])).sum() == N / 3


@pytest.mark.parametrize("ending", ["parquet", "xlsx"])
def test_text_of_typed_formats_is_a_value(written, ending):
    table = {
        "rh": ["+-"[i % 2] for i in range(N)],
        "country": [("NA", "CH", None)[i % 3] for i in range(N)],
        "ill": [("None", "Mild", "Severe")[i % 3] for i in range(N)],
    }
    data = load_csv(written(table, f"table.{ending}"), "ill")
    assert data.schema.classes == ("Mild", "None", "Severe")
    assert data.schema.features[0].categories == ("-", "+")
    assert data.schema.features[1].categories == ("CH", "NA")
    assert np.isnan(data.table.X[:, 1]).sum() == N / 3


def test_a_declared_category_of_a_site_is_no_missing_cell(written):
    path = written({"rh": ["NA", "b", ""], "ill": ["None", "x", "None"]})
    columns = {"rh": ("NA", "b"), "ill": ("None", "x")}
    X, y = read_plain(path, Reading(), columns, "ill")
    table = read_table(path, values=columns)
    codes = coded(table, "rh", columns["rh"])[0]
    np.testing.assert_array_equal(X[:, 0], codes)
    assert codes[:2].tolist() == [0, 1]
    assert y.tolist() == class_target(table, "ill", columns["ill"])[0].tolist() == [0, 1, 0]


# --- columns that are easily overlooked


def test_a_second_column_of_the_target_is_refused(written):
    path = written({"age": AGES, "ill": ILL, "copy": ILL})
    path.write_text(path.read_text().replace("copy", "ill", 1))
    assert "several columns are called 'ill'" in problem_of(path).text


def test_the_index_of_a_parquet_file_is_a_column(written):
    frame = pd.DataFrame({"age": AGES, "bmi": AGES[::-1], "ill": ILL}).set_index("age")
    assert load_csv(written(frame, "table.parquet"), "ill").schema.names == ("age", "bmi")


def test_a_workbook_with_several_sheets_needs_the_name_of_one(tmp_path):
    path = tmp_path / "years.xlsx"
    with pd.ExcelWriter(path) as book:
        for year in (2023, 2024):
            frame = pd.DataFrame({"age": np.add(AGES, year), "ill": ILL})
            frame.to_excel(book, sheet_name=f"year {year}", index=False)
        pd.DataFrame().to_excel(book, sheet_name="empty", index=False)
    problem = problem_of(path)
    assert "2 sheets ('year 2023', 'year 2024')" in problem.text
    assert (problem.option, problem.value) == ("sheet", "year 2023")
    for sheet in ("year 2024", "2"):
        assert column(path, "age", sheet=sheet)[0] == 2044
    assert problem_of(path, sheet="2025").option == "sheet"


# --- numbers with units


@pytest.mark.parametrize(
    ("format_text", "note"),
    [
        ("${:,.2f}", "'$1,020.00' is read as 1020.00"),
        ("{:.2f} €", "'1020.00 €' is read as 1020.00"),
        ("CHF {:.1f}", "'CHF 1020.0' is read as 1020.0"),
        ("{:.2f}%", "'1020.00%' is read as 1020.00"),
    ],
)
def test_units_are_left_out_and_reported(written, format_text, note):
    incomes = [1000 + age for age in AGES]
    path = written({"income": [format_text.format(value) for value in incomes], "ill": ILL})
    np.testing.assert_array_equal(column(path, "income"), np.float32(incomes))
    assert notes_of(path, "income") == [note]


def test_negative_numbers_in_parentheses_and_with_a_minus_sign(written):
    changes = [age - 40 for age in AGES]
    brackets = [f"({-c:.1f})" if c < 0 else f"{c:.1f}" for c in changes]
    signs = [f"{c:.1f}".replace("-", "\u2212") for c in changes]
    path = written({"account": brackets, "change": signs, "ill": ILL})
    for name in ("account", "change"):
        np.testing.assert_allclose(column(path, name), np.float32(changes), rtol=1e-6)
    assert notes_of(path, "account") == ["'(20.0)' is read as -20.0"]


def test_several_units_in_a_column_are_refused(written):
    shares = [f"{a}%" if i % 2 else f"{a / 100}" for i, a in enumerate(AGES)]
    path = written({"share": shares, "age": AGES, "ill": ILL})
    problem = problem_of(path)
    assert (problem.option, problem.value) == ("drop", "share")
    assert "numbers with several units (none, '%')" in problem.text
    assert load_csv(path, "ill", drop=["share"]).schema.names == ("age",)


def test_two_decimal_marks_in_a_column_are_refused_or_the_few_cells_reported(written):
    table = {"age": range(N), "ill": ILL}
    path = written({"x": [f"{i}.5" if i % 2 else f"{i},5" for i in range(N)], **table}, sep=";")
    problem = problem_of(path)
    assert (problem.option, problem.value) == ("drop", "x")
    assert "decimal points and with decimal commas" in problem.text
    path = written({"x": ["9,99" if i == 5 else f"{i}.5" for i in range(N)], **table}, sep=";")
    assert notes_of(path, "x") == ["1 cell that is no number ('9,99'; line 7) is read as missing"]


# --- dates and identifiers


def test_dates_with_time_zones_are_moments(written):
    days = [f"2021-01-{1 + number % 28:02d}T0{number % 10}:30:00" for number in range(N)]
    with_zone = [f"{day}{('Z', '+02:00', '-0530')[number % 3]}" for number, day in enumerate(days)]
    path = written({"at": with_zone, "age": AGES, "ill": ILL})
    days_read = column(path, "at", keep=["at"])
    expected = [pd.Timestamp(cell).timestamp() / 86400 for cell in with_zone]
    np.testing.assert_array_equal(days_read, np.float32(expected))
    mixed = [*with_zone[:-1], days[-1]]
    path = written({"at": mixed, "age": AGES, "ill": ILL})
    assert "at (near-unique names)" in notes_of(path, "left out")[0]


def test_notes_state_the_assumptions_about_dates(written):
    days = [f"{1 + number % 12:02d}/{1 + number % 11:02d}/21" for number in range(N)]
    path = written({"day": days, "age": AGES, "ill": ILL})
    assert notes_of(path, "day", keep=["day"]) == [
        "days since 1970-01-01; the first number is read as the day, and the second one "
        "as the month; "
        "years of two digits are read as 1969 to 2068"
    ]


def test_codes_with_leading_zeros_are_no_numbers(written):
    codes = [f"{(1069, 80331, 4109)[i % 3]:05d}" for i in range(N)]
    path = written({"postal": codes, "age": AGES, "ill": ILL})
    data = load_csv(path, "ill")
    assert data.schema.features[0].categories == ("01069", "04109", "80331")
    assert notes_of(path, "postal") == ["codes with leading zeros, not numbers"]
    path = written({"case": [f"{i:04d}" for i in range(N)], "age": AGES, "ill": ILL})
    assert "case (near-unique names)" in notes_of(path, "left out")[0]


def test_identifiers_beyond_2_53_are_not_rounded(written):
    first = 2**53
    path = written({"key": [str(first + i % 3) for i in range(N)], "age": AGES, "ill": ILL})
    data = load_csv(path, "ill")
    assert data.schema.features[0].categories == tuple(str(first + k) for k in range(3))
    assert data.table.X[:, 0].tolist() == [i % 3 for i in range(N)]


# --- names of columns and files


def test_a_name_with_a_comma_is_quoted_in_an_option(written):
    path = written({"Age, years": AGES, "bmi": AGES[::-1], "ill": ILL})
    problem = problem_of(path, drop=["Age", "years"])
    assert (problem.option, problem.value) == ("drop", '"Age, years"')
    assert "the name 'Age, years' has a comma" in problem.text


def test_two_files_of_one_name_are_called_by_their_folders(written):
    tables = [{"age": np.add(AGES, k), "ill": ILL} for k in (1, 2)]
    paths = [written(table, f"s{k}/train.csv") for k, table in enumerate(tables, 1)]
    assert unique_labels(paths) == ["s1/train", "s2/train"]
    data = load_clients(paths, "ill")
    assert data.owner_names == ("s1/train", "s2/train")
    assert data.name == "s1/train+s2/train"


def test_equal_rows_at_two_clients_are_refused(written):
    paths = [written({"age": AGES, "ill": ILL}, name) for name in ("a.csv", "b.csv")]
    for two_files in (paths, paths[:1] * 2):
        with pytest.raises(DataError, match="have the same rows; test rows of one client"):
            load_clients(two_files, "ill")
