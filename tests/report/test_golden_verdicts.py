"""Verdicts of six commands fit on a screen, and every number follows from the records.

The records are read here without the code of the report; only the phrases of the measures are taken
from it.
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
pytestmark = pytest.mark.slow  # three minutes of one core
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
        """Return, by defense, mean score, baselines and n of the worst attack of each seed."""
        seeds = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            place = (row["stage"], row["threat"], row["metric"], row["part"])
            if place == ("attack", threat, metric, "") and row["advantage"]:
                columns = ("advantage", "value", "blind", "population", "n")
                seeds[spec(row)][row["seed"]].append(
                    [float(row[column] or "nan") for column in columns]
                )
        worst = {
            defense: [max(rows)[1:] for rows in rows_by_seed.values()]
            for defense, rows_by_seed in seeds.items()
        }
        return {
            defense: [mean(values) for values in zip(*rows, strict=True)]
            for defense, rows in worst.items()
        }

    def advantages(self, threat, metric):
        """Return the worst undefended advantage of each seed over the better baseline."""
        seeds = defaultdict(list)
        for row in self.rows:
            place = (row["stage"], row["threat"], row["metric"], row["part"], spec(row))
            if place == ("attack", threat, metric, "", "none") and row["advantage"]:
                lines = [float(row[column]) for column in ("blind", "population") if row[column]]
                value, baseline = float(row["value"]), max(lines)
                seeds[row["seed"]].append((value - baseline) / (1 - baseline))
        return [max(values) for values in seeds.values()]

    def changes(self, metric, defense):
        """Return the differences in utility to the undefended run of the same seed."""
        values_by_defense = defaultdict(dict)
        for row in self.rows:
            if (row["stage"], row["metric"]) == ("train", metric) and row["value"]:
                values_by_defense[spec(row)][row["seed"]] = float(row["value"])
        return [
            values_by_defense[defense][seed] - values_by_defense["none"][seed]
            for seed in values_by_defense[defense]
            if seed in values_by_defense["none"]
        ]


def spec(row):
    names, parameters = row["defense"].split("+"), row["defense_params"].split(";")
    parameters += [""] * (len(names) - len(parameters))
    return "+".join(
        f"{name}[{parameters_of_part}]" if parameters_of_part else name
        for name, parameters_of_part in zip(names, parameters, strict=True)
    )


def near(text, values):
    """Return whether a number, rounded as in the text, equals one of `values`."""
    rounding_error = 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9
    return any(
        abs(number(text) - value) <= rounding_error for value in values if not math.isnan(value)
    )


def representations(score, total):
    """Return the ways to write a score: as a count, in percent, and as a share."""
    return [score * total, 100 * score, score]


def threats(records):
    return sorted({r["threat"] for r in records.rows if r["stage"] == "attack"})


def check_reading(records, sentence, defense="none"):
    """Check every ``can PHRASE (blind LINE)`` against the records; return their number."""
    n_checked = 0
    for key, measure in measures().items():
        if not measure.phrase:
            continue
        head, _, tail = map(re.escape, measure.phrase.partition("{}"))
        score_pattern = rf"{head}({PLAIN})%?(?: of (?:the )?({PLAIN})?[^(.]*?)?{tail}"
        people = rf"(?:, population (none|{PLAIN})%?)?(?:; by seed [^)]*)?"
        line = rf"\(blind (none|{PLAIN})%?{people}\)"
        other_rows = rf"(?:, and guessing from other rows of the population (none|{PLAIN})%?)?"
        seeds = r"(?: \(by seed [^)]*\))?"
        baseline = rf"{seeds}; guessing without any message \w+ (none|{PLAIN})%?{other_rows}"
        hits = [
            *re.finditer(f"{score_pattern} {line}", sentence),
            *re.finditer(score_pattern + baseline, sentence),
        ]
        for match in hits:
            candidates = [by_defense[defense] for threat in threats(records)
                     if defense in (by_defense := records.worst(threat, key))]  # fmt: skip
            assert any(agrees(match, candidate, measure.counted_by) for candidate in candidates), (
                match[0],
                candidates,
            )
            n_checked += 1
    return n_checked


def agrees(match, candidate, is_counted):
    """Return whether score, total and baseline of a sentence are those of a candidate."""
    score, blind, population, total = candidate
    total = total if is_counted else math.nan
    return (
        near(match[1], representations(score, total))
        and (not match[2] or near(match[2], [total]))
        and (match[3] == "none" or near(match[3], representations(blind, total)))
        and (match[4] in (None, "none") or near(match[4], representations(population, total)))
    )


def check_price(records, sentence, defense):
    """Check a mean change with its t interval."""
    if sentence.startswith("None: "):
        metric = {"AUC": "auc", "R²": "r2", "R2": "r2", "log-loss": "log_loss"}[sentence.split()[1]]
        assert not any(records.changes(metric, defense))
        return
    value = r"([+−]?[\d.]+\d)"
    match = re.match(
        rf"(\S+) changes by {value}(?: \(95% interval {value} to {value}\))?", sentence
    )
    metric = {"AUC": "auc", "R²": "r2", "R2": "r2"}.get(match[1], "log_loss")
    sign = -1 if metric == "log_loss" else 1
    changes = [sign * change for change in records.changes(metric, defense)]
    half_width = student.ppf(0.975, len(changes) - 1) * stdev(changes) / math.sqrt(len(changes))
    for text, value in zip(match.groups()[1:], (0, -half_width, half_width), strict=True):
        if text:
            assert near(text, [mean(changes) + value]), (sentence, changes)


def check_near_blind(records):
    """Check that upper ends of 95% intervals are below the margin; return by how many measures."""
    stayed = set()
    for key, measure in measures().items():
        for threat in threats(records) if measure.phrase else ():
            by_seed, margin = records.advantages(threat, key), 0.05 * measures()[key].margin
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
        "--data", "digits[rows=400]", "-p", "dp-gbdt[epsilon=0.01,trees=4,max_depth=3]",
        "-d", "none", "-a", "joint,lattice,membership,timberstrike", "--threat", "public",
        "--seeds", "10",
    ),
    "rare": ("--csv", "rare.csv", "--target", "outcome", "--positive", "yes"),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def verdict_case(request, tmp_path_factory):
    """Run one of the six commands; return its name, its folder, and its verdict."""
    folder, options = tmp_path_factory.mktemp(request.param), CASES[request.param]
    (folder / "small.toml").write_text(SUITE, encoding="utf-8")
    rows = [
        f"{20 + number % 41},{(number * 37) % 90},{'yes' if number in (7, 31) else 'no'}"
        for number in range(60)
    ]
    (folder / "rare.csv").write_text("\n".join(("age,marker,outcome", *rows)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtrees.experiments.suite.DEFAULT_SUITE", str(folder / "small.toml"))
        patch.chdir(folder)
        patch.setattr(defaults, "SIZE", {"trees": 2, "max_depth": 2})
        with pytest.raises(SystemExit) as exit_info:
            main(["bench", *options, "-j", "1", "--output", str(folder / "run")])
        assert exit_info.value.code in (0, 3)
    result = verdict(analyze_run(folder / "run"))
    assert str(result) == str(Run(folder / "run").verdict)
    return request.param, folder / "run", result


def test_a_verdict_fits_on_a_screen_and_every_number_follows_from_the_records(verdict_case):
    case, folder, result = verdict_case
    records = Records(folder, result.setting.split(" · ")[2].partition("[")[0])
    entries = {line.label: line for line in reversed(result.lines)}
    assert result.height <= SCREEN_LINES
    assert {*entries} <= {
        *LEAK_LABELS.values(), "NO UTILITY", "BEST DEFENSE", "EFFECT", "PRICE", "STILL LEAKS",
        "NOT EXCLUDED",
        "OTHER LEAKS", "STRICTER", "NOTE", "NO GUARANTEE", "REFUTED", "NOT TESTED", "ALSO",
        "EPSILON", "MODEL", "NEXT STEP",
    }  # fmt: skip
    recommended = entries["BEST DEFENSE"].command if "BEST DEFENSE" in entries else ""
    for line in result.lines:
        label, text = line.label, line.text
        if label == "ALSO":
            check_reading(Records(folder, text.split(":")[0]), text)
        elif label in {*LEAK_LABELS.values(), "STILL LEAKS", "NOT EXCLUDED", "OTHER LEAKS"}:
            n_checked = check_reading(
                records, text, recommended if label in ("STILL LEAKS", "NOT EXCLUDED") else "none"
            )
            assert n_checked or not NUMBER.search(text) or label == "NO LEAK FOUND"
        elif match := re.search(rf"(\S+) leaves ({PLAIN})%? of ({PLAIN})%? \(", text):
            worst_results = [
                records.worst(threat, metric)
                for threat in threats(records)
                for metric in measures()
            ]
            assert any(
                near(match[2], representations(by_defense[match[1]][0], by_defense[match[1]][3]))
                and near(match[3], representations(by_defense["none"][0], by_defense["none"][3]))
                for by_defense in worst_results if {"none", match[1]} <= {*by_defense}
            ), text  # fmt: skip
        elif label == "MODEL":
            head, value = text.split(maxsplit=2)[:2]
            key = next(k for k, m in measures().items() if m.head == head and m.klass == "utility")
            place = ("train", key, "none")
            values = [
                float(r["value"])
                for r in records.rows
                if (r["stage"], r["metric"], spec(r)) == place
            ]
            assert near(value, [mean(values)]), text
        elif label == "PRICE":
            check_price(records, text, recommended)
        elif label == "EFFECT":
            scores = re.search(rf"({PLAIN})%? instead of ({PLAIN})%?", text)
            unchanged = re.search(rf" can still [a-z ]+({PLAIN})", text)
            undefended_score, defended_scores = "nan", []
            if scores or unchanged:
                undefended_score = scores[2] if scores else unchanged[1]
                defended_scores = [scores[1] if scores else unchanged[1]]
            worst_results = [
                records.worst(threat, metric)
                for threat in threats(records)
                for metric in measures()
            ]
            assert any(
                near(
                    undefended_score, representations(by_defense["none"][0], by_defense["none"][3])
                )
                and all(
                    recommended in by_defense
                    and near(
                        score_text,
                        representations(by_defense[recommended][0], by_defense[recommended][3]),
                    )
                    for score_text in defended_scores
                )
                for by_defense in worst_results
                if "none" in by_defense
            ), text
    if "NO LEAK FOUND" in entries:
        text = entries["NO LEAK FOUND"].text
        assert f"over {len(records.seeds)} seeds" in text
        n_near_blind = check_near_blind(records)
        assert re.search(rf"By all {n_near_blind} measures?,", text)
    else:
        assert case != "nothing"
    readers = (
        adversary for setting in analyze_run(folder).settings for adversary in setting.tested
    )
    for cell in (
        c
        for adversary in readers
        for metric in adversary.all_metrics
        for c in adversary.by_defense(metric).values()
    ):
        assert cell.state != "safe" or cell.advantage.mean >= -cell.limit, cell
    if case in ("default", "split-only"):
        assert entries["LEAK FOUND"].text.startswith("Your server can reconstruct")
    if case == "rare":
        assert "Prices are therefore in log-loss" in entries["NOTE"].text
