"""A messy table in, a verdict out: every number of the sentences is one of the run."""

import codecs
import csv
import hashlib
import html
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from fedtrees.bench.suite import Grid, Suite
from fedtrees.cli.main import main
from fedtrees.report.numbers import without_folders

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
    """What stands in rows.csv, read without the report's code."""

    def __init__(self, folder):
        with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
            self.rows = list(csv.DictReader(file))

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
        patch.setattr("fedtrees.bench.suite.DEFAULT_SUITE", str(folder / "small.toml"))
        with pytest.raises(SystemExit) as ended:
            main(["bench", "--csv", str(folder / PRIVATE / "t.csv"), "--target", "krank"])
        assert ended.value.code == 0
        (out,) = (folder / "runs").iterdir()
        yield folder / "runs" / out


@pytest.fixture(scope="module")
def said(run):
    return bench_verdict(run)


def bench_verdict(run):
    from fedtrees.cli.results import study_of

    return study_of(run, None, None).verdict


def amount(text, n):
    """Read back ``69``, ``fewer than 0.1`` or ``67%`` as a share and its rounding."""
    if text.endswith("%"):
        digits = len(text.rstrip("%").partition(".")[2])
        return float(text[:-1].replace("−", "-")) / 100, 0.5 * 10.0 ** (-2 - digits)
    if text.startswith("fewer"):
        return 0.05 / n, 0.05 / n
    digits = len(text.partition(".")[2])
    return float(text) / n, 0.5 * 10.0**-digits / n


TOLD = r"(?:, who knows other rows: (?P<told>\S+))?\)"  # of who holds no rows
CAN = {
    "exact_rows": r"rebuild (?P<mine>\S+) of (?P<n>\d+) rows in every column "
    r"\((?:against|{0}:) (?P<b>.+?)" + TOLD,
    "ra": r"guess (?P<mine>\S+%) of the values right \((?:against|{0}:) (?P<b>\S+%)" + TOLD,
    "column_values": r"read (?P<mine>\S+%) of the values of every column, though not whose they "
    r"are \((?:against|{0}:) (?P<b>\S+%)" + TOLD,
}  # fmt: skip
LEFT = r"([a-z-]+\[k=5\]|secure-sum) \((.+?) left, AUC (unchanged|(?:low|high)er by \S+?)[,)]"


def test_what_an_adversary_can_do_is_what_the_records_say(run, said):
    records, checked = Records(run), []
    (advice,) = said.settings
    assert {s.panel.threat for s in advice.sides} == {"client", "server"}
    for side in advice.sides:
        victims = N - HELD_OUT if side.panel.threat == "server" else None
        text = " ".join(side.sentences[:2])
        for metric, pattern in CAN.items():
            for found in re.finditer(pattern.format("one who never looked"), text):
                n = int(found["n"]) if "n" in found.groupdict() else 1
                if victims and "n" in found.groupdict():
                    assert n == victims
                mine, blind = records.worst(side.panel.threat, "none", metric)
                for told, true in ((found["mine"], mine), (found["b"], blind)):
                    value, rounding = amount(told, n)
                    assert value == pytest.approx(true, abs=rounding + 1e-9), (metric, told)
                checked.append((side.panel.threat, metric))
    assert ("server", "exact_rows") in checked
    assert ("server", "column_values") in checked


def test_what_a_defense_leaves_and_costs_is_what_the_records_say(run, said):
    records, checked = Records(run), set()
    base = records.auc("none")
    for side in said.settings[0].sides:
        words = " ".join(side.sentences)
        for name, left, cost in re.findall(LEFT, words):
            value, rounding = amount(left, N - HELD_OUT)
            true = records.worst(side.panel.threat, name, side.lead)[0]
            assert value == pytest.approx(true, abs=rounding + 1e-9)
            mine = records.auc(name)
            gap = mean(mine[s] - base[s] for s in base)
            sign = {"lower": -1.0, "higher": 1.0, "unchanged": 0.0}[cost.partition(" ")[0]]
            told = sign * float(cost.rpartition(" ")[2]) if sign else 0.0
            assert told == pytest.approx(gap, abs=5.01e-4)
            checked.add((side.panel.threat, name))
    assert {name for threat, name in checked if threat == "server"} == {
        "secure-sum",
        "min-bin[k=5]",
    }


def test_the_verdict_says_what_it_rests_on_and_what_was_not_tried(said):
    (advice,) = said.settings
    server = next(s for s in advice.sides if s.panel.threat == "server")
    assert server.sentences[-1].startswith("2 of 5 applicable attacks ran (left out: joint")
    assert "the threat public" in advice.steps[-1]
    assert advice.steps[-1].startswith("Not tried: the attacks ")
    assert said.note.startswith("Means over 2 seeds")


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


def test_terminal_report_and_json_print_the_same_sentences(run, said, capsys, monkeypatch):
    import json

    monkeypatch.setenv("COLUMNS", "10000")
    for arguments in (["show", str(run)], ["show", str(run), "--format", "json"]):
        with pytest.raises(SystemExit):
            main(arguments)
    shown, _, listed = capsys.readouterr().out.partition("\n{\n")
    page = re.sub(r"<[^>]*>", "", (run / "report.html").read_text(encoding="utf-8"))
    page = html.unescape(page)
    for advice in said.settings:
        for text in (*(s for side in advice.sides for s in side.sentences), *advice.steps):
            assert text in shown
            assert text in page
    assert json.loads("{\n" + listed)["verdict"] == list(said.lines())
    assert shown.rstrip().endswith(said.note)
