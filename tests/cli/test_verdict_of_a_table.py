"""A messy table in, a verdict out: every number said is one of the run."""

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

#: Stands in for the default suite, which takes minutes: the command is the user's, without options.
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
        """Mean score and blind score over seeds of the attack that is worst on each seed."""
        seeds = defaultdict(list)
        for r in self.rows:
            spec = f"{r['defense']}[{r['defense_params']}]" if r["defense_params"] else r["defense"]
            wanted = (r["stage"], r["threat"], spec, r["metric"]) == (
                "attack", threat, defense, metric
            )  # fmt: skip
            if wanted and r["status"] == "ok" and r["advantage"]:
                seeds[r["seed"]].append(
                    (float(r["advantage"]), float(r["value"]), float(r["blind"]))
                )
        best = [max(found) for found in seeds.values()]
        return mean(b[1] for b in best), mean(b[2] for b in best)

    def auc(self, defense):
        return {
            r["seed"]: float(r["value"])
            for r in self.rows
            if (r["stage"], r["metric"]) == ("train", "auc")
            and r["defense"] == defense.partition("[")[0]
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
        )  # it starts no others
        with pytest.raises(SystemExit) as ended:
            main(["bench", "--csv", str(folder / PRIVATE / "t.csv"), "--target", "krank"])
        assert ended.value.code == 0
        (out,) = (folder / "runs").iterdir()
        yield folder / "runs" / out


@pytest.fixture(scope="module")
def said(run):
    return analyze_run(run)


@pytest.fixture(scope="module")
def verdict(run):
    return Run(run).verdict


def words_of(line):
    return re.sub(r"\s+", " ", str(line))


@pytest.mark.long
def test_every_cell_is_what_the_records_say(run, said):
    records, checked = Records(run), set()
    (found,) = said.settings
    for adversary in found.tested:
        for defense in found.defenses:
            for metric in adversary.metrics:
                cell = adversary.result(defense.spec, metric)
                if cell.scores:
                    score, blind = records.worst(adversary.threat, defense.spec, metric)
                    assert cell.score == pytest.approx(score, abs=1e-9), (defense.spec, metric)
                    assert mean(cell.blinds) == pytest.approx(blind, abs=1e-9)
                    checked.add((defense.spec, metric))
    assert {d for d, _ in checked} == {"none", "secure-sum", "min-bin[k=5]"}
    assert {m for _, m in checked} >= {"exact_rows", "ra", "column_values"}


@pytest.mark.long
def test_prices_are_what_the_records_say(run, said):
    records = Records(run)
    (found,) = said.settings
    base = records.auc("none")
    for defense in found.defenses:
        mine = records.auc(defense.spec)
        gap = mean(mine[s] - base[s] for s in base)
        assert defense.utility_change.change.mean == pytest.approx(gap, abs=1e-9)
        assert len(defense.utility_change.by_seed) == 2


@pytest.mark.long
def test_the_verdict_names_the_leak_by_the_records(run, verdict):
    leak = re.search(r"LEAK FOUND (.*) BEST DEFENSE", words_of(verdict))[1]
    found = re.search(r"reconstruct (\S+) of 80 rows in every column.*: histogram-peeling", leak)
    assert float(found[1]) / 80 == pytest.approx(
        Records(run).worst("server", "none", "exact_rows")[0], abs=0.0007
    )
    untested = re.search(r"NOT TESTED (.*)", words_of(verdict))[1]
    assert "released model" in untested
    assert "defenses fit this protocol" in untested


@pytest.mark.long
def test_the_report_names_the_table_and_not_where_it_lies(run):
    page = html.unescape((run / "report.html").read_text(encoding="utf-8"))
    (table,) = run.parents[1].glob("*/t.csv")
    assert 'csv = "t.csv"' in page
    assert f"t.csv: sha256 {hashlib.sha256(table.read_bytes()).hexdigest()}" in page
    for path in filter(Path.is_file, run.rglob("*")):
        named = "Olten" in path.read_text(encoding="utf-8")
        assert named == (path.name in ("suite.toml", "environment.json")), path
        assert str(run.parents[1]) not in path.read_text("utf-8") or named
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
    read = tomllib.loads(text)
    assert read["grid"][0]["data"] == [{**data, "csv": shown}, "wine"]
    assert read["description"] == 'csv = "b.csv"'
    assert without_folders("= 3").startswith("(not shown")


@pytest.mark.long
def test_terminal_report_and_json_say_the_same(run, said, verdict, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    for arguments in (["show", str(run)], ["show", str(run), "--format", "json"]):
        with pytest.raises(SystemExit):
            main(arguments)
    shown, _, listed = capsys.readouterr().out.partition("\n{\n")
    page = re.sub(r"<[^>]*>", "", (run / "report.html").read_text(encoding="utf-8"))
    page = words_of(html.unescape(page))
    told = json.loads("{\n" + listed)["verdict"]
    (leak,) = (line for line in told["lines"] if line["label"] == "LEAK FOUND")
    assert leak["text"].split(" in every column")[0].split("reconstruct ")[1] in page
    for line in told["lines"]:
        assert words_of(line["text"]) in words_of(shown)
        assert line["command"] in shown  # not wrapped
