"""From a messy table to a verdict: every number in it follows from the rows of the run."""

import codecs
import hashlib
import html
import json
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from result_rows import read_rows

from fedtrees.api import Run
from fedtrees.cli.main import main
from fedtrees.experiments.suite import Grid, Suite
from fedtrees.report.findings import analyze_run
from fedtrees.report.page import without_folders

N, HELD_OUT = 100, 20
PRIVATE = 'ward "7" of \\ Olten'  # a folder

# A small substitute for the default suite, which takes minutes; the user gives no options.
SUITE = """
name = "quick"
description = "Few trees."
seeds = [0, 1]

[[grid]]
data = ["breast-cancer"]
clients = [3]
protocols = ["fedtree-hist[trees=1,max_depth=3]"]
defenses = ["secure-sum", "min-bin[k=5]"]
threats = ["client", "server"]
attacks = ["histogram-peeling", "sketch-reading"]
"""


def hostile_table():
    """UTF-8's BOM before Latin-1, semicolons, decimal commas, ids, dates, gaps, a fifth text."""
    rng = np.random.default_rng(5)
    lines = ["Fall-Nr.;Tag;Alter;Größe;Lohn;Labor;raucht;Ort;Notiz;krank"]
    for i in range(N):
        ill = rng.random() < 0.4
        lines.append(
            ";".join([
                f"{2024000000 + i}",
                f"{1 + i % 28:02d}.{1 + i % 12:02d}.2021",
                "" if rng.random() < 0.1 else f"{rng.integers(20, 80) + 10 * ill}",
                f"1,{rng.integers(50, 95)}",
                f"{rng.integers(20, 60)}.{rng.integers(0, 999):03d},50",
                "<5" if rng.random() < 0.2 else f"{rng.integers(0, 29) + 5 * ill},{i % 10}",
                rng.choice(["Ja", "nein"]),
                rng.choice(["Zürich", "Bern", "Genf"]),
                f"kam am {i}ten um {rng.integers(0, 24)} Uhr",
                "ja" if ill else "nein",
            ])
        )  # fmt: skip
    return codecs.BOM_UTF8 + "\r\n".join(lines).encode("latin-1")


class Records:
    """Results of a run as text, evaluated without the report's code."""

    def __init__(self, folder):
        self.rows = read_rows(folder)

    def worst(self, threat, defense, metric):
        """Return mean score and mean blind score of the worst attack on each seed."""
        seeds = defaultdict(list)
        for row in self.rows:
            spec = (
                f"{row['defense']}[{row['defense_params']}]"
                if row["defense_params"]
                else row["defense"]
            )
            is_wanted = (row["stage"], row["threat"], spec, row["metric"]) == (
                "attack", threat, defense, metric
            )  # fmt: skip
            if is_wanted and row["status"] == "ok" and row["advantage"]:
                seeds[row["seed"]].append(
                    (float(row["advantage"]), float(row["value"]), float(row["blind"]))
                )
        worst_per_seed = [max(results) for results in seeds.values()]
        return mean(result[1] for result in worst_per_seed), mean(
            result[2] for result in worst_per_seed
        )

    def auc(self, defense):
        return {
            row["seed"]: float(row["value"])
            for row in self.rows
            if (row["stage"], row["metric"]) == ("train", "auc")
            and row["defense"] == defense.partition("[")[0]
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / PRIVATE).mkdir()
    (folder / PRIVATE / "t.csv").write_bytes(hostile_table())
    (folder / "small.toml").write_text(SUITE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "10000")
        patch.setattr("fedtrees.experiments.suite.DEFAULT_SUITE", str(folder / "small.toml"))
        patch.setattr(
            "fedtrees.experiments.session.default_workers", lambda: 1
        )  # A second process would use another default suite.
        with pytest.raises(SystemExit) as exit_info:
            main(["bench", "--csv", str(folder / PRIVATE / "t.csv"), "--target", "krank"])
        assert exit_info.value.code == 0
        (run_folder,) = (folder / "runs").iterdir()
        yield folder / "runs" / run_folder


@pytest.fixture(scope="module")
def analysis(run):
    return analyze_run(run)


@pytest.fixture(scope="module")
def verdict(run):
    return Run(run).verdict


def words_of(line):
    return re.sub(r"\s+", " ", str(line))


@pytest.mark.long
def test_every_cell_equals_the_records(run, analysis):
    records, checked = Records(run), set()
    (setting,) = analysis.settings
    for adversary in setting.tested:
        for defense in setting.defenses:
            for metric in adversary.metrics:
                cell = adversary.result(defense.spec, metric)
                if cell.scores:
                    score, blind = records.worst(adversary.threat, defense.spec, metric)
                    assert cell.score == pytest.approx(score, abs=1e-9), (defense.spec, metric)
                    assert mean(cell.blinds) == pytest.approx(blind, abs=1e-9)
                    checked.add((defense.spec, metric))
    assert {defense_spec for defense_spec, _ in checked} == {"none", "secure-sum", "min-bin[k=5]"}
    assert {metric_name for _, metric_name in checked} >= {"exact_rows", "ra", "column_values"}


@pytest.mark.long
def test_prices_equal_the_records(run, analysis):
    records = Records(run)
    (setting,) = analysis.settings
    base = records.auc("none")
    for defense in setting.defenses:
        defended_auc = records.auc(defense.spec)
        difference = mean(defended_auc[seed] - base[seed] for seed in base)
        assert defense.utility_change.change.mean == pytest.approx(difference, abs=1e-9)
        assert len(defense.utility_change.by_seed) == 2


@pytest.mark.long
def test_the_verdict_names_the_leak_according_to_the_records(run, verdict):
    leak = re.search(r"LEAK FOUND (.*) BEST DEFENSE", words_of(verdict))[1]
    match = re.search(r"reconstruct (\S+) of 80 rows in every column.*: histogram-peeling", leak)
    assert float(match[1]) / 80 == pytest.approx(
        Records(run).worst("server", "none", "exact_rows")[0], abs=0.0007
    )
    untested = re.search(r"NOT TESTED (.*)", words_of(verdict))[1]
    assert "released model" in untested
    assert "defenses fit this protocol" in untested


@pytest.mark.long
def test_the_report_contains_the_name_of_the_table_but_not_its_folder(run):
    page = html.unescape((run / "report.html").read_text(encoding="utf-8"))
    (table,) = run.parents[1].glob("*/t.csv")
    assert 'csv = "t.csv"' in page
    assert f"t.csv: sha256 {hashlib.sha256(table.read_bytes()).hexdigest()}" in page
    for path in filter(Path.is_file, run.rglob("*")):
        contains_folder = "Olten" in path.read_text(encoding="utf-8")
        assert contains_folder == (path.name in ("suite.toml", "environment.json")), path
        assert str(run.parents[1]) not in path.read_text("utf-8") or contains_folder
    assert run.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("csv", "ids", "shown"),
    [
        ("/data/ward, 7/a.csv", "", "a.csv"),
        ('/data/ward/b.csv,x "y"\\/\x7f.csv,z.csv', "id", "b.csv,\x7f.csv,z.csv"),
    ],
)
def test_a_suite_is_shown_without_folders(csv, ids, shown):
    data = {"csv": csv, "target": "krank", "name": "t"} | ({"id": ids} if ids else {})
    grid = Grid.parse({"data": [data, "wine"]})
    text = without_folders(Suite("x", 'csv = "b.csv"', grids=(grid,)).to_toml())
    assert "ward" not in text
    parsed = tomllib.loads(text)
    assert parsed["grid"][0]["data"] == [{**data, "csv": shown}, "wine"]
    assert parsed["description"] == 'csv = "b.csv"'
    assert without_folders("= 3").startswith("(not shown")


@pytest.mark.long
def test_terminal_report_and_json_agree(run, analysis, verdict, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    for arguments in (["show", str(run)], ["show", str(run), "--format", "json"]):
        with pytest.raises(SystemExit):
            main(arguments)
    terminal_text, _, json_text = capsys.readouterr().out.partition("\n{\n")
    page = re.sub(r"<[^>]*>", "", (run / "report.html").read_text(encoding="utf-8"))
    page = words_of(html.unescape(page))
    json_verdict = json.loads("{\n" + json_text)["verdict"]
    (leak,) = (line for line in json_verdict["lines"] if line["label"] == "LEAK FOUND")
    assert leak["text"].split(" in every column")[0].split("reconstruct ")[1] in page
    for line in json_verdict["lines"]:
        assert words_of(line["text"]) in words_of(terminal_text)
        assert line["command"] in terminal_text  # not wrapped
