"""Reading a run folder: accepted contents, and the messages for refused ones."""

import csv

import pytest
from synthetic_run import COLUMNS, write_run

import fedtrees
from fedtrees.core.errors import StoreError
from fedtrees.core.specs import written
from fedtrees.report.results import Setting, load_rows, read_json, rename_former_values


@pytest.mark.parametrize(
    ("name", "params", "text"),
    [
        ("none", "", "none"),
        ("laplace-hist", "epsilon=4", "laplace-hist[epsilon=4]"),
        ("split-only+laplace-hist", ";epsilon=4", "split-only+laplace-hist[epsilon=4]"),
        ("a+b+c", "x=1;;z=2,w=3", "a[x=1]+b+c[z=2,w=3]"),
        ("a+b", "x=1", "a[x=1]+b"),
    ],
)
def test_a_spec_is_written_as_in_a_suite(name, params, text):
    assert written(name, params) == text


def test_rows_carry_their_setting_and_names(rows):
    settings = set(rows.loc[rows["stage"] == "train", "setting"])
    assert Setting("stroke", "iid[clients=5]", "fedtree[trees=20,depth=6]") in settings
    assert "split-only+laplace-hist[epsilon=4]" in set(rows["defense_spec"])


def test_names_of_earlier_releases_are_read_as_the_present_ones(tmp_path):
    before = {"stage": "exposure", "attack": "told-bins", "reason_code": "no-bins-told"}
    after = ["adversary", "bucket-reading", "no-buckets-received"]
    rows = load_rows(write_run(tmp_path, list(_one_row(**before))))
    assert rows[[*before]].to_numpy().tolist() == [after]
    assert list(rename_former_values(before | {"metric": "auc"}).values()) == [*after, "auc"]


def test_text_that_looks_like_a_missing_value_stays_text(tmp_path):
    table = list(_one_row(dataset="NA", reason="None"))
    rows = load_rows(write_run(tmp_path, table))
    assert rows["dataset"].tolist() == ["NA"]
    assert rows["reason"].tolist() == ["None"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"rows\.csv.*cannot be read"):
        load_rows(tmp_path)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(StoreError, match="empty"):
        load_rows(tmp_path)


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999])
def test_a_file_cut_anywhere_is_refused(tmp_path, keep):
    folder = write_run(tmp_path, list(_one_row(reason='a "quoted" reason, with commas')) * 40)
    path = folder / "rows.csv"
    text = path.read_bytes()
    path.write_bytes(text[: int(len(text) * keep)])
    with pytest.raises(StoreError, match="cut off at line"):
        load_rows(folder)


def test_every_cut_inside_the_last_row_is_refused(tmp_path):
    folder = write_run(tmp_path, list(_one_row()))
    path = folder / "rows.csv"
    text = path.read_bytes()
    for end in range(text.index(b"\n") + 2, len(text)):
        path.write_bytes(text[:end])
        with pytest.raises(StoreError, match="cut off"):
            load_rows(folder)


def test_another_release_is_refused_by_name(tmp_path):
    folder = write_run(tmp_path, list(_one_row(version="99.1.0")))
    with pytest.raises(StoreError, match=rf"99\.1\.0 and this is {fedtrees.__version__}"):
        load_rows(folder)


def test_a_missing_column_is_named(tmp_path):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerow([c for c in COLUMNS if c != "advantage"])
    with pytest.raises(StoreError, match="advantage"):
        load_rows(tmp_path)


def test_text_in_a_number_column_is_refused_with_its_value(tmp_path):
    folder = write_run(tmp_path, list(_one_row(value="high")))
    with pytest.raises(StoreError, match=r"record 1: value is 'high'"):
        load_rows(folder)


def test_broken_json_is_a_store_error(tmp_path):
    (tmp_path / "disclosure.json").write_text("[{")
    with pytest.raises(StoreError, match=r"disclosure\.json is not JSON \(line 1\)"):
        read_json(tmp_path, "disclosure.json")
    assert read_json(tmp_path, "environment.json") is None


def _one_row(**columns):
    row = dict.fromkeys(COLUMNS, "")
    row |= {"version": fedtrees.__version__, "status": "ok", "stage": "train", "metric": "auc",
            "value": 0.5, "seed": 0, "defense": "none", "protocol": "p"}  # fmt: skip
    yield row | columns
