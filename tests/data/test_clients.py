"""Rows that belong to clients already, in text, workbooks and Parquet, are not redistributed."""

import shlex
import sys

import numpy as np
import pandas as pd
import pytest

from fedtrees.core.errors import DataError, Problems, UsageError
from fedtrees.data.cells import suspicious_zeros
from fedtrees.data.client_tables import load_clients
from fedtrees.data.column_types import kind_of
from fedtrees.data.partition import BY_CLIENT, Partition
from fedtrees.data.table_files import read_table
from fedtrees.data.user_tables import load_csv
from fedtrees.experiments.federation import load_dataset, spread
from fedtrees.experiments.suite import DataRef

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "ward": [f"w{k % 3}" for k in range(90)],
        "age": RNG.integers(20, 80, 90),
        "bmi": RNG.normal(26, 4, 90).round(2),
        "kind": RNG.choice(["a", "b", "c"], 90),
        "ill": RNG.integers(0, 2, 90),
    }
)
ROWS = FRAME.drop(columns="ward")


def write(frame, path):
    """Write a table without an index, in the format of the file's suffix."""
    writers = {".csv": frame.to_csv, ".xlsx": frame.to_excel, ".parquet": frame.to_parquet}
    writers[path.suffix](path, index=False)
    return path


@pytest.fixture
def files(tmp_path):
    """A file for each of three clients."""
    return [write(ROWS[FRAME.ward == w], tmp_path / f"{w}.csv") for w in ("w0", "w1", "w2")]


def test_one_file_per_client_and_a_client_column_give_the_same_rows(files, tmp_path):
    by_file = load_clients(files, "ill")
    by_column = load_clients([write(FRAME, tmp_path / "all.csv")], "ill", column="ward")
    assert by_file.owner_names == by_column.owner_names == ("w0", "w1", "w2")
    for client in range(3):
        is_in_file, has_name = by_file.owners == client, by_column.owners == client
        assert is_in_file.sum() == has_name.sum() == 30
        assert np.array_equal(by_file.table.X[is_in_file], by_column.table.X[has_name])
    assert "ward" not in by_column.schema.names
    assert by_column.notes[0] == "clients: w0 (30), w1 (30), w2 (30)"


def test_every_client_of_a_federation_gets_only_its_own_rows(files):
    ref = DataRef.parse({"csv": ",".join(map(str, files)), "target": "ill"})
    assert ref.states_clients
    assert ref.files == tuple(map(str, files))
    dataset = load_dataset(ref, None)
    federation = spread(dataset, Partition(BY_CLIENT), ["a", "b", "c"], seed=1)
    for number, name in enumerate("abc"):
        rows_of_client = {row.tobytes() for row in dataset.table.X[dataset.owners == number]}
        assert {row.tobytes() for row in federation.local_data[name].X} <= rows_of_client
        assert 15 <= len(federation.local_data[name]) < 30
    with pytest.raises(UsageError, match="rows of 3 clients, not of 2"):
        spread(dataset, Partition(BY_CLIENT), ["a", "b"], seed=1)
    iid = spread(dataset, Partition("iid"), ["a", "b"], seed=1)
    assert sum(map(len, iid.local_data.values())) == 72


def test_rows_without_a_target_are_left_out_together_with_their_owner(tmp_path):
    path = write(FRAME.assign(ill=FRAME.ill.where(FRAME.index >= 4)), tmp_path / "t.csv")
    dataset = load_clients([path], "ill", column="ward")
    assert np.bincount(dataset.owners).tolist() == [28, 29, 29]


def test_tables_without_clear_clients_are_refused(files, tmp_path):
    other_path = write(ROWS.rename(columns={"bmi": "weight"}), tmp_path / "other.csv")
    with pytest.raises(DataError, match=r"'bmi' is only in w0\.csv; give the files of all clients"):
        load_clients([*files, other_path], "ill")
    path = write(FRAME, tmp_path / "t.csv")
    with pytest.raises(DataError, match="no column 'wart'; did you mean 'ward'"):
        load_clients([path], "ill", column="wart")
    with pytest.raises(UsageError, match="both 'ill'"):
        load_clients([path], "ill", column="ill")
    with pytest.raises(DataError, match="all rows are of 'w0'; a federation needs two"):
        load_clients([write(FRAME[FRAME.ward == "w0"], tmp_path / "u.csv")], "ill", column="ward")
    without_client = FRAME.assign(ward=FRAME.ward.where(FRAME.index != 2))
    with pytest.raises(DataError, match="line 4: no client in column 'ward'"):
        load_clients([write(without_client, tmp_path / "v.csv")], "ill", column="ward")
    unlabelled = FRAME.assign(ill=FRAME.ill.where(FRAME.ward != "w1"))
    with pytest.raises(DataError, match="no row of 'w1' has a target"):
        load_clients([write(unlabelled, tmp_path / "x.csv")], "ill", column="ward")
    with pytest.raises(UsageError, match="id and client_column"):
        DataRef.parse({"csv": "t.csv", "target": "ill", "id": "i", "client_column": "ward"})


@pytest.mark.parametrize("ending", [".xlsx", ".parquet"])
def test_a_workbook_and_parquet_are_read_as_the_text_they_show(tmp_path, ending):
    dated = FRAME.assign(seen=pd.Timestamp("2024-05-06"), bmi=FRAME.bmi.where(FRAME.index != 5))
    text = read_table(write(dated, tmp_path / "t.csv"))
    table = read_table(write(dated, tmp_path / f"t{ending}"))
    assert table.names == text.names
    assert table.column("seen") == text.column("seen")
    assert [float(c or "nan") for c in table.column("bmi")] == pytest.approx(
        [float(c or "nan") for c in text.column("bmi")], nan_ok=True
    )
    for name in ("ward", "age", "kind", "ill"):
        assert table.column(name) == text.column(name), name
    dataset = load_csv(tmp_path / f"t{ending}", "ill")
    assert np.array_equal(dataset.table.X, load_csv(tmp_path / "t.csv", "ill").table.X, True)


@pytest.mark.parametrize("ending", [".xlsx", ".parquet"])
def test_a_damaged_file_and_a_missing_reader_are_reported(tmp_path, ending, monkeypatch):
    path = tmp_path / f"t{ending}"
    with pytest.raises(DataError, match="no such file"):
        read_table(path)
    path.write_bytes(b"PK\x03\x04 PAR1 nothing")
    with pytest.raises(DataError, match=f"cannot be read as {ending}"):
        read_table(path)
    write(FRAME, path)
    for name in ("openpyxl", "pyarrow", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"pip install 'fedtrees\[tables\]', or save the table"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Surname", "name"), ("birthDate", "birth date"), ("PLZ", "postal code"),
        ("patient_id", "identifier"), ("e-mail", "e-mail"), ("age", ""), ("viable", ""),
        ("radius", ""), ("telephone calls", "telephone"),
    ],
)  # fmt: skip
def test_columns_that_look_personal_are_named(name, kind):
    assert kind_of(name) == kind


def test_personal_columns_are_reported(tmp_path):
    path = write(
        ROWS.assign(surname=[f"n{number % 7}" for number in range(90)]), tmp_path / "t.csv"
    )
    assert any("surname" in note and "personal" in note for note in load_csv(path, "ill").notes)


@pytest.mark.parametrize(
    ("name", "noted"),
    [("hospital", True), ("Hospital ID", True), ("clinicName", True), ("hospital_days", False)],
)
def test_a_feature_that_seems_to_name_the_clients_is_reported(tmp_path, name, noted):
    path = write(
        ROWS.assign(**{name: [("north", "south", "east")[row % 3] for row in range(90)]}),
        tmp_path / "t.csv",
    )
    notes = [note for note in load_csv(path, "ill").notes if "--client-column" in note]
    assert len(notes) == noted
    if noted:
        option = f"--client-column {shlex.quote(name)}, each of the 3 clients gets its rows"
        assert option in notes[0]
        clients = load_clients([path], "ill", column=name)
        assert not any("--client-column" in note for note in clients.notes)


def test_a_misspelled_client_column_is_a_problem_with_a_remedy(tmp_path):
    path = tmp_path / "wards.csv"
    path.write_text("ward,age,ill\n" + "north,30,yes\nsouth,40,no\n" * 10)
    with pytest.raises(Problems, match="no column 'wrad'; did you mean 'ward'") as caught:
        load_clients([path], "ill", column="wrad")
    assert [(p.option, p.value) for p in caught.value.problems] == [("client-column", "ward")]


def test_zeros_far_below_all_other_numbers_probably_mark_missing_values():
    others = np.arange(14.0, 90.0)
    assert suspicious_zeros(np.concatenate([others, np.zeros(30)])) == 30
    assert suspicious_zeros(np.arange(20.0).repeat(3)) == 0  # a column of counts
    assert suspicious_zeros(np.concatenate([others, [0.0]])) == 0  # a single zero
    assert suspicious_zeros(np.concatenate([others, [-5.0, 0.0, 0.0]])) == 0


def test_a_class_of_a_single_row_is_reported(tmp_path):
    path = tmp_path / "patients.csv"
    rows = [f"{30 + row % 20},{row % 3 % 2}" for row in range(60)]
    path.write_text("\n".join(("age,ill", *rows, "44,2")))
    (note,) = [note for note in load_csv(path, "ill").notes if "probably a mistake" in note]
    assert note.startswith("ill: only one row has the value 2")
    path.write_text("\n".join(("age,ill", *rows)))
    assert not any("probably a mistake" in note for note in load_csv(path, "ill").notes)
