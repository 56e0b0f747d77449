"""The runner of studies: `python -m fedtrees.benchmarks.papers NAME`."""

import csv

import pandas as pd
import pytest

from fedtrees.benchmarks.papers.__main__ import find_study, main, study_names
from fedtrees.benchmarks.papers.study import COMPARISONS, write_comparisons
from fedtrees.benchmarks.papers.suite_tables import LABELS, suite_tables, table_sections
from fedtrees.benchmarks.papers.tables import Comparison
from fedtrees.core.errors import UsageError
from fedtrees.experiments.suite import bundled_suites

CELL = {
    "dataset": "wine",
    "partition": "iid[clients=3]",
    "protocol": "nvflare-hist",
    "protocol_params": "trees=2,max_depth=2",
    "defense_spec": "none",
    "threat": "client",
    "attack_params": "",
    "status": "ok",
    "part": "",
}


def results(*cells):
    """Return rows of (stage, attack, seed, metric, value, blind)."""
    names = ("stage", "attack_spec", "seed", "metric", "value", "blind")
    return pd.DataFrame([CELL | dict(zip(names, cell, strict=True)) for cell in cells])


def test_the_list_names_every_study_with_one_sentence(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == study_names()
    assert {"joint", "timberstrike_table6", "timberstrike_late", "recipes"} <= {*study_names()}
    assert all(line.partition(": ")[2] for line in lines)


def test_an_unknown_study_is_refused_with_a_suggestion(capsys):
    assert main(["jiont"]) == 2
    assert "did you mean 'joint'?" in capsys.readouterr().err
    with pytest.raises(UsageError):
        find_study("smoke")  # a suite without tables


@pytest.mark.parametrize("name", [n for n in bundled_suites() if table_sections(n)])
def test_every_column_of_every_suite_can_be_formatted(name):
    rows = results(("attack", "joint", 0, "cpu_seconds", 1.0, None))
    extra = {"published": lambda _: ""}
    assert {"table", "published"} <= {*(LABELS | extra)}
    for table in suite_tables(name, rows[rows["stage"] == "attack"], extra):
        assert len(table.header) == len(set(table.header)) or "blind" in table.header


def test_a_score_is_paired_with_the_first_attack_by_seed(monkeypatch):
    section = {"columns": ["attack", "RA", "over blind", "over first attack", "AUC"]}
    monkeypatch.setattr(
        "fedtrees.benchmarks.papers.suite_tables.table_sections", lambda name: [section]
    )
    rows = results(
        ("train", None, 0, "auc", 0.75, None),
        ("attack", "timberstrike", 0, "ra", 0.5, 0.25),
        ("attack", "timberstrike", 1, "ra", 0.75, 0.25),
        ("attack", "joint", 1, "ra", 0.875, 0.125),
    )
    (table,) = suite_tables("any", rows)
    assert table.lines == [
        ["`timberstrike`", "62.5 ± 17.7", "+37.5 ± 17.7", "-", "0.750"],
        ["`joint`", "87.5", "+75.0", "+12.5", "0.750"],
    ]


def test_comparisons_are_written_with_their_command_and_status(tmp_path):
    near, far, missing = (
        Comparison("Table 6", "bagging", "RA, percent", 60.0, ours, 50.0, 3.0)
        for ours in (62.0, 64.5, float("nan"))
    )
    write_comparisons("timberstrike_table6", (near, far, missing), tmp_path / COMPARISONS)
    with (tmp_path / COMPARISONS).open() as file:
        lines = list(csv.DictReader(file))
    assert [line["status"] for line in lines] == ["reproduced", "differs by +4.5", "not run here"]
    assert lines[0]["command"] == "python -m fedtrees.benchmarks.papers timberstrike_table6"
    assert (lines[0]["published"], lines[0]["blind"]) == ("60.0", "50.0")
