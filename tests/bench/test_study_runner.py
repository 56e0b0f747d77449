"""The runner of studies: `python -m fedtrees.benchmarks.papers NAME`."""

import csv

import pandas as pd
import pytest

from fedtrees.benchmarks.papers.__main__ import find_study, main, study_names
from fedtrees.benchmarks.papers.comparisons import (
    Comparison,
    compare_suite,
    published_lines,
    read_comparisons,
    write_comparisons,
)
from fedtrees.benchmarks.papers.study import _matching_grids
from fedtrees.benchmarks.papers.tables import LABELS, suite_tables, table_sections
from fedtrees.core.errors import UsageError
from fedtrees.experiments.suite import Suite, bundled_suites

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
    (of_table8,) = (line for line in lines if line.startswith("timberstrike_table8: "))
    assert "Minutes on two cores: 12 (one seed, 18 trainings" in of_table8
    assert {line["study"] for line in published_lines("durations.csv")} <= {*study_names()}
    measured = [line for line in lines if "not measured" not in line]
    assert len(measured) >= 29


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
    monkeypatch.setattr("fedtrees.benchmarks.papers.tables.table_sections", lambda name: [section])
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


def comparison(**values):
    """Return a comparison of an RA of 60 percent."""
    setting = {"paper": "timberstrike", "item": "Table 6", "setting": "flower-bagging, depth 3"}
    return Comparison(**(setting | {"score": "RA", "published": 60.0} | values))


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({}, "not run"),
        ({"measured": 62.0}, "reproduced"),
        ({"measured": 57.0}, "reproduced"),
        ({"measured": 64.5}, "better"),
        ({"measured": 55.5}, "differs by -4.5"),
        ({"measured": 55.5, "strongest": 61.0}, "better"),
        ({"measured": 55.5, "strongest": 59.0}, "differs by -4.5"),
        ({"measured": 55.5, "deviation": 3.0, "seeds": 4}, "reproduced"),
        ({"measured": 55.5, "deviation": 2.9, "seeds": 4}, "differs by -4.5"),
        ({"measured": 55.5, "published_deviation": 4.0}, "reproduced"),
        ({"score": "error", "published": 0.1, "measured": 0.06}, "better"),
        ({"score": "error", "published": 0.1, "measured": 0.14}, "differs by +0.04"),
        ({"score": "AUC", "published": 0.8, "measured": 0.9}, "differs by +0.1"),
        ({"score": "relative error", "published": 4e-4, "measured": 5e-15}, "better"),
        # A relative error varies by powers of ten, so that its deviation excuses nothing.
        (
            {
                "score": "relative error",
                "published": 1e-9,
                "measured": 0.2,
                "deviation": 0.4,
                "seeds": 3,
            },
            "differs by +0.2",
        ),
        ({"score": "queries", "published": 30.0, "measured": 31.0}, "differs by +1"),
        ({"score": "error", "published": float("nan"), "measured": 0.2}, "better"),
    ],
)
def test_the_status_follows_from_margin_standard_error_and_direction(values, status):
    assert comparison(**values).status == status


def test_comparisons_survive_their_file_and_name_their_command(tmp_path):
    originals = [comparison(measured=62.0, seeds=2, deviation=1.5, blind=50.0), comparison()]
    write_comparisons("timberstrike_table6", originals, tmp_path / "comparison.csv")
    read_back = read_comparisons(tmp_path / "comparison.csv")
    assert [str(c) for c in read_back] == [str(c) for c in originals]
    with (tmp_path / "comparison.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first["command"] == "python -m fedtrees.benchmarks.papers timberstrike_table6"
    assert (first["status"], second["status"]) == ("reproduced", "not run")


def test_a_comparison_takes_a_metric_for_each_score_and_patterns_of_settings():
    frame = results(
        ("attack", "regression-inversion", 0, "relative_error", 1e-15, 0.9),
        ("attack", "regression-inversion", 0, "cpu_seconds", 0.25, None),
        ("attack", "threshold-queries[m=401]", 0, "cpu_seconds", 0.5, None),
    )
    shape = {"dataset": "wine-quality[rows=10]", "protocol_params": "bits=192"}
    compared = {c.score: c.measured for c in compare_suite("regression", frame.assign(**shape))
                if c.seeds}  # fmt: skip
    assert compared == {"relative error": 1e-15, "seconds": 0.25}
    trees = {"dataset": "iris", "protocol_params": "trees=5,max_depth=3"}
    queried = [c for c in compare_suite("secureboost_queries", frame.assign(**trees)) if c.seeds]
    assert {(c.item, c.measured) for c in queried} == {("Table 5", 0.5), ("Table 6", 0.5)}
    assert all(c.setting.startswith("iris, ") for c in queried)


def test_results_of_other_protocols_depths_and_budgets_are_not_compared():
    cells = (("attack", "timberstrike-published", 0, "ra_union", 0.5, 0.25),)
    frame = results(*cells).assign(attack="timberstrike-published", protocol="fedtree-hist")

    def measured(study, **columns):
        rows = frame.assign(**columns)
        return {c.setting for c in compare_suite(study, rows) if c.seeds and c.score == "RA"}

    depth = {"protocol_params": "trees=100,max_depth=6,max_bin=32"}
    assert measured("timberstrike_table6", **depth) == {"fedtree-hist, depth 6"}
    assert measured("timberstrike_table6", **depth, protocol="flower-cyclic") == {
        "flower-cyclic, depth 6"
    }
    assert measured("timberstrike_table8", **depth) == set()
    for epsilon in (25, 50, 200):
        noisy = depth | {"defense_spec": f"laplace-gradient[epsilon={epsilon}]"}
        expected = {f"fedtree-hist, depth 6, epsilon {epsilon}"}
        assert measured("timberstrike_table8", **noisy) == expected
    for bands, expected in (
        ("feature-bands", {"fedtree-hist, depth 6, 30 clients"}),
        ("iid", set()),
    ):
        partition = {"partition": f"{bands}[clients=30,feature=age]"}
        assert measured("timberstrike_figure10", **depth, **partition) == expected


def test_a_suite_runs_the_chosen_data_sets_and_protocols():
    suite = Suite.load("lattice")
    grids = _matching_grids(suite, "pima*max_depth=3*")
    assert [[d.name for d in g.data] for g in grids] == [["pima"]]
    assert [len(g.data) for g in _matching_grids(suite, "*")] == [len(g.data) for g in suite.grids]
    with pytest.raises(UsageError, match="no data set and protocol of lattice match 'x'"):
        _matching_grids(suite, "x")
