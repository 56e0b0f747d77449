"""Verdicts of six commands: they fit on a screen, and every number follows from the records.

The records are read here without the report's code; of the product only the verb phrases of
measures are taken.
"""

import math
import re
from collections import defaultdict
from statistics import mean, stdev

import pytest
from result_rows import read_rows
from scipy.stats import t as student

from fedtrees.api import Run
from fedtrees.cli.main import main
from fedtrees.core.results import measures
from fedtrees.experiments import defaults
from fedtrees.report.findings import analyze_run
from fedtrees.report.verdict import LEAK_LABELS, SCREEN_LINES, verdict

SUITE = """
name = "quick"
seeds = [0, 1, 2]
[[grid]]
data = ["breast-cancer[rows=60]"]
protocols = ["fedtree-hist[trees=2,max_depth=2]"]
defenses = ["secure-sum", "min-bin[k=5]"]
threats = ["server", "public"]
attacks = ["histogram-peeling", "sketch-reading", "union", "label-mixture"]
"""
pytestmark = pytest.mark.slow  # a minute of one core
PLAIN = r"−?\d[\d,]*(?:\.\d+)?"
NUMBER = re.compile(rf"(?<![\w.\-−=]){PLAIN}(?=%|[^\w]|$)")


def number(text):
    return float(text.replace("−", "-").replace("+", "").replace(",", ""))


class Records:
    """Results of one setting as text."""

    def __init__(self, folder, protocol):
        rows = read_rows(folder)
        self.rows = [r for r in rows if r["status"] == "ok" and r["protocol"] == protocol]
        self.seeds = {r["seed"] for r in self.rows if r["seed"]}

    def worst(self, threat, metric):
        """By defense: means over seeds of the worst attack's score, blind, population, and n."""
        seeds = defaultdict(lambda: defaultdict(list))
        for r in self.rows:
            place = (r["stage"], r["threat"], r["metric"], r["part"])
            if place == ("attack", threat, metric, "") and r["advantage"]:
                told = ("advantage", "value", "blind", "population", "n")
                seeds[spec(r)][r["seed"]].append([float(r[k] or "nan") for k in told])
        worst = {d: [max(rows)[1:] for rows in mine.values()] for d, mine in seeds.items()}
        return {d: [mean(v) for v in zip(*rows, strict=True)] for d, rows in worst.items()}

    def advantages(self, threat, metric):
        """Of the worst attack on each seed, undefended, over the better of the two lines."""
        seeds = defaultdict(list)
        for r in self.rows:
            place = (r["stage"], r["threat"], r["metric"], r["part"], spec(r))
            if place == ("attack", threat, metric, "", "none") and r["advantage"]:
                lines = [float(r[k]) for k in ("blind", "population") if r[k]]
                value, line = float(r["value"]), max(lines)
                seeds[r["seed"]].append((value - line) / (1 - line))
        return [max(found) for found in seeds.values()]

    def changes(self, metric, defense):
        """Differences in utility to the undefended run of the same seed."""
        of = defaultdict(dict)
        for r in self.rows:
            if (r["stage"], r["metric"]) == ("train", metric) and r["value"]:
                of[spec(r)][r["seed"]] = float(r["value"])
        return [of[defense][s] - of["none"][s] for s in of[defense] if s in of["none"]]


def spec(row):
    names, inside = row["defense"].split("+"), row["defense_params"].split(";")
    inside += [""] * (len(names) - len(inside))
    return "+".join(f"{n}[{p}]" if p else n for n, p in zip(names, inside, strict=True))


def near(text, values):
    """Tell whether a number, as rounded as it is written, is one of some."""
    half = 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9
    return any(abs(number(text) - v) <= half for v in values if not math.isnan(v))


def scores_of(found, n):
    """Return a score as it may be written: counted, as a share in percent, or as it is."""
    return [found * n, 100 * found, found]


def threats(records):
    return sorted({r["threat"] for r in records.rows if r["stage"] == "attack"})


def check_reading(records, sentence, defense="none"):
    """Check every ``can PHRASE (blind LINE)`` against the records; return how many there were."""
    seen = 0
    for key, measure in measures().items():
        if not measure.phrase:
            continue
        head, _, tail = map(re.escape, measure.phrase.partition("{}"))
        whole = rf"{head}({PLAIN})%?(?: of (?:the )?({PLAIN})?[^(.]*?)?{tail}"
        people = rf"(?:, population (none|{PLAIN})%?)?(?:; by seed [^)]*)?"
        line = rf"\(blind (none|{PLAIN})%?{people}\)"
        other_rows = rf"(?:, and guessing from other rows of the population (none|{PLAIN})%?)?"
        seeds = r"(?: \(by seed [^)]*\))?"
        baseline = rf"{seeds}; guessing without any message \w+ (none|{PLAIN})%?{other_rows}"
        hits = [*re.finditer(f"{whole} {line}", sentence), *re.finditer(whole + baseline, sentence)]
        for hit in hits:
            found = [v[defense] for t in threats(records)
                     if defense in (v := records.worst(t, key))]  # fmt: skip
            assert any(agrees(hit, of, measure.counted_by) for of in found), (hit[0], found)
            seen += 1
    return seen


def agrees(hit, of, counted):
    """Tell whether score, total and line of a sentence are these."""
    score, blind, population, n = of
    n = n if counted else math.nan
    return (
        near(hit[1], scores_of(score, n))
        and (not hit[2] or near(hit[2], [n]))
        and (hit[3] == "none" or near(hit[3], scores_of(blind, n)))
        and (hit[4] in (None, "none") or near(hit[4], scores_of(population, n)))
    )


def check_price(records, sentence, defense):
    """Check a mean change with its t interval."""
    if sentence.startswith("None: "):
        metric = {"AUC": "auc", "R²": "r2", "R2": "r2", "log-loss": "log_loss"}[sentence.split()[1]]
        assert not any(records.changes(metric, defense))
        return
    value = r"([+−]?[\d.]+\d)"
    found = re.match(
        rf"(\S+) changes by {value}(?: \(95% interval {value} to {value}\))?", sentence
    )
    metric = {"AUC": "auc", "R²": "r2", "R2": "r2"}.get(found[1], "log_loss")
    sign = -1 if metric == "log_loss" else 1
    changes = [sign * c for c in records.changes(metric, defense)]
    half = student.ppf(0.975, len(changes) - 1) * stdev(changes) / math.sqrt(len(changes))
    for text, value in zip(found.groups()[1:], (0, -half, half), strict=True):
        if text:
            assert near(text, [mean(changes) + value]), (sentence, changes)


def check_near_blind(records, margin=0.05):
    """Check that upper ends of 95% intervals are below the margin; return by how many measures."""
    stayed = set()
    for key, measure in measures().items():
        for threat in threats(records) if measure.phrase else ():
            by_seed = records.advantages(threat, key)
            if by_seed:
                half = student.ppf(0.975, len(by_seed) - 1) * stdev(by_seed) / len(by_seed) ** 0.5
                assert mean(by_seed) >= -margin, key
                assert mean(by_seed) + half < margin, key
                stayed.add(key)
    return len({k for k in stayed if not stayed & {*measures()[k].covered_by}})


CASES = {
    "default": (),
    "split-only": ("-d", "split-only"),
    "vertical": ("-d", "id-lmid[xi=0.1]"),
    "numeric": ("--data", "diabetes-regression[rows=60]"),
    "nothing": (
        "--data", "digits[rows=60]", "-p", "dp-gbdt[epsilon=0.01,trees=2,max_depth=2]",
        "-d", "none", "-a", "joint,membership,timberstrike", "--threat", "public",
        "--seeds", "10",
    ),
    "rare": ("--csv", "rare.csv", "--target", "outcome", "--positive", "yes"),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def said(request, tmp_path_factory):
    """One of the six: its name, its folder, and its lines by key."""
    folder, options = tmp_path_factory.mktemp(request.param), CASES[request.param]
    (folder / "small.toml").write_text(SUITE, encoding="utf-8")
    rows = [f"{20 + i % 41},{(i * 37) % 90},{'yes' if i in (7, 31) else 'no'}" for i in range(60)]
    (folder / "rare.csv").write_text("\n".join(("age,marker,outcome", *rows)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtrees.experiments.suite.DEFAULT_SUITE", str(folder / "small.toml"))
        patch.chdir(folder)
        patch.setattr(defaults, "SIZE", {"trees": 2, "max_depth": 2})
        with pytest.raises(SystemExit) as ended:
            main(["bench", *options, "-j", "1", "--output", str(folder / "run")])
        assert ended.value.code in (0, 3)
    result = verdict(analyze_run(folder / "run"))
    assert str(result) == str(Run(folder / "run").verdict)
    return request.param, folder / "run", result


def test_a_verdict_fits_on_a_screen_and_every_number_is_of_the_records(said):
    case, folder, result = said
    records = Records(folder, result.setting.split(" · ")[2].partition("[")[0])
    entries = {line.label: line for line in reversed(result.lines)}
    assert result.height <= SCREEN_LINES
    assert {*entries} <= {
        *LEAK_LABELS.values(), "NO UTILITY", "BEST DEFENSE", "EFFECT", "PRICE", "STILL LEAKS",
        "NOT EXCLUDED",
        "OTHER LEAKS", "STRICTER", "NOTE", "NO GUARANTEE", "REFUTED", "NOT TESTED", "ALSO",
        "EPSILON", "NEXT STEP",
    }  # fmt: skip
    use = entries["BEST DEFENSE"].command if "BEST DEFENSE" in entries else ""
    for line in result.lines:
        label, text = line.label, line.text
        if label == "ALSO":
            check_reading(Records(folder, text.split(":")[0]), text)
        elif label in {*LEAK_LABELS.values(), "STILL LEAKS", "NOT EXCLUDED", "OTHER LEAKS"}:
            seen = check_reading(
                records, text, use if label in ("STILL LEAKS", "NOT EXCLUDED") else "none"
            )
            assert seen or not NUMBER.search(text) or label == "NO LEAK FOUND"
        elif hit := re.search(rf"(\S+) leaves ({PLAIN})%? of ({PLAIN})%? \(", text):
            every = [records.worst(t, m) for t in threats(records) for m in measures()]
            assert any(
                near(hit[2], scores_of(v[hit[1]][0], v[hit[1]][3]))
                and near(hit[3], scores_of(v["none"][0], v["none"][3]))
                for v in every if {"none", hit[1]} <= {*v}
            ), text  # fmt: skip
        elif label == "PRICE":
            check_price(records, text, use)
        elif label == "EFFECT":
            scores = re.search(rf"({PLAIN})%? instead of ({PLAIN})%?", text)
            before, after = (scores[2], [scores[1]]) if scores else ("nan", [])
            every = [records.worst(t, m) for t in threats(records) for m in measures()]
            assert any(
                near(before, scores_of(v["none"][0], v["none"][3]))
                and all(use in v and near(x, scores_of(v[use][0], v[use][3])) for x in after)
                for v in every if "none" in v
            ), text  # fmt: skip
    if "NO LEAK FOUND" in entries:
        text = entries["NO LEAK FOUND"].text
        assert f"over {len(records.seeds)} seeds" in text
        stayed = check_near_blind(records)
        assert re.search(rf"By all {stayed} measures?,", text)
    else:
        assert case != "nothing"
    readers = (a for f in analyze_run(folder).settings for a in f.tested)
    for cell in (c for a in readers for m in a.all_metrics for c in a.by_defense(m).values()):
        assert cell.state != "safe" or cell.advantage.mean >= -cell.limit, cell
    if case in ("default", "split-only"):
        assert entries["LEAK FOUND"].text.startswith("Your server can reconstruct")
    if case == "rare":
        assert "Prices are therefore in log-loss" in entries["NOTE"].text
