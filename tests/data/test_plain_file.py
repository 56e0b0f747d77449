"""The block-wise reader gives the result of the complete reader, or leaves the file to it."""

import numpy as np
import pytest

from fedtrees.data import csv_table
from fedtrees.data.csv_file import Reading
from fedtrees.data.csv_table import class_target, coded, numeric, read_plain
from fedtrees.data.table_files import read_table

COLUMNS = {"a": (), "b": (), "kind": ("p", "q r"), "y": ("no", "yes")}
ROWS = [
    "id,b,a,kind,y",
    *(f"r{i},{i / 7},{-i}e-3,{('p', 'q r')[i % 2]},{('no', 'yes')[i % 3 == 0]}" for i in range(50)),
]


def read_completely(path, separator=""):
    table = read_table(path, Reading(separator=separator), ("y",))
    X = np.column_stack([numeric(table, "a"), numeric(table, "b"),
                         coded(table, "kind", COLUMNS["kind"])[0]])  # fmt: skip
    return X.astype(np.float32), class_target(table, "y", COLUMNS["y"])[0]


def changed(old, new, row=7):
    """Return the rows with one cell changed."""
    return [*ROWS[:row], ROWS[row].replace(old, new, 1), *ROWS[row + 1 :]]


PLAIN = {
    "as it is": ROWS,
    "missing": changed("-6e-3", ""),
    "missing in words": changed("-6e-3", "N/A"),
    "missing category": changed(",p,", ",?,"),
    "spaces": [row.replace(",", " , ") for row in ROWS],
    "quoted": changed("-6e-3", '"-6e-3"'),
    "tabs": [row.replace(",", "\t") for row in ROWS],
    "empty lines": [*ROWS[:5], "", *ROWS[5:], ""],
    "a mark": ["\ufeff" + ROWS[0], *ROWS[1:]],
}
OTHER = {
    "too short": [*ROWS, "r50,1,2,p"],
    "too long": [*ROWS, "r50,1,2,p,no,6"],
    "all too long": [ROWS[0], *(row + ",1" for row in ROWS[1:])],
    "another decimal": changed("-6e-3", '"1,5"'),
    "thousands": changed("-6e-3", '"1,234.5"'),
    "semicolons": [row.replace(",", ";") for row in ROWS],
    "infinite": changed("-6e-3", "inf"),
    "underscores": changed("-6e-3", "1_0"),
    "a word": changed("-6e-3", "much"),
    "another category": changed(",p,", ",z,"),
    "no label": changed(",yes", ","),
    "another header": ["id,b,A,kind,y", *ROWS[1:]],
    "two of a name": ["b,b,a,kind,y", *ROWS[1:]],
    "no rows": ROWS[:1],
}


@pytest.mark.parametrize("rows", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("block", [7, 1000])
def test_a_plain_table(rows, block, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table, "_BLOCK", block)
    (tmp_path / "t.csv").write_text("\n".join(rows), "utf-8")
    X, y = read_plain(tmp_path / "t.csv", Reading(), COLUMNS, "y")
    expected = read_completely(tmp_path / "t.csv")
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, expected[0])
    np.testing.assert_array_equal(y, expected[1])


@pytest.mark.parametrize("rows", OTHER.values(), ids=OTHER)
def test_a_file_that_is_not_plain_is_left_to_the_complete_reader(rows, tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(rows), "utf-8")
    assert read_plain(tmp_path / "t.csv", Reading(), COLUMNS, "y") is None


def test_lines_that_end_as_on_old_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table, "_BLOCK", 1)
    (tmp_path / "t.csv").write_bytes("\r".join(ROWS).encode())
    assert read_plain(tmp_path / "t.csv", Reading(), COLUMNS, "y") is None


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert read_plain(tmp_path / "t.csv", Reading(), COLUMNS, "y") is None
    assert read_plain(tmp_path / "none.csv", Reading(), COLUMNS, "y") is None
