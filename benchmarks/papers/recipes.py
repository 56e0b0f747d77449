"""`python -m fedtrees.benchmarks.papers.recipes --data-dir FOLDER`: run, store, print the table.

What is stored beside this module is what `fedtrees.report.recommend` is given; the documentation
quotes it, and tests compute the recommendation from it anew.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.study import markdown, options_of, run_suite
from fedtrees.core.counts import listed, many
from fedtrees.report.intervals import Estimate
from fedtrees.report.recommend import Recommendation, Trial, recommend, trials_of
from fedtrees.report.rows import UNDEFENDED, load_rows
from fedtrees.report.verdict import Leak

STORED = "recipes.csv"
HEADER = ("recipe", "change in AUC", "rows: RA", "counts: rows in leaves", "reading")
ROWS, COUNTS = "ra", "leaf_mass_exact"
_PLACE = ("recipe", "place", "untested", "bytes")
_COST = ("cost", "cost_low", "cost_high", "seeds")
_LEAK = ("metric", "advantage", "beyond", "low", "high", "upper", "score", "blind", "population",
         "attacks")  # fmt: skip
_COLUMNS = (*_PLACE, *_COST, *_LEAK)

Trials = Mapping[str, Sequence[Trial]]


def written(trials: Trials) -> str:
    """Return trials as CSV, a line per score."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for recipe, tried in trials.items():
        for t in tried:
            place = (recipe, t.place, t.untested, f"{t.bytes:.0f}")
            cost = (*map(_text, (t.cost.mean, t.cost.low, t.cost.high)), t.cost.n)
            for leak in t.leaks or (Leak("", Estimate(), Estimate(), math.inf),):
                b, beside = leak.beyond, (leak.score, leak.blind, leak.population)
                numbers = (leak.advantage.mean, b.mean, b.low, b.high, leak.upper,
                           *(e.mean for e in beside))  # fmt: skip
                line = (leak.metric, *map(_text, numbers), " ".join(leak.attacks))
                writer.writerow((*place, *cost, *line))
    return out.getvalue()


def _text(value: float) -> str:
    return f"{value:.5f}"


def read(text: str) -> dict[str, list[Trial]]:
    """Return the trials of such a CSV."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        found.setdefault(line["recipe"], {}).setdefault(line["place"], []).append(line)
    return {
        recipe: [_trial(place, lines) for place, lines in places.items()]
        for recipe, places in found.items()
    }


def _trial(place: str, lines: Sequence[Mapping[str, str]]) -> Trial:
    first = lines[0]
    seeds = int(first["seeds"])
    cost = Estimate(*(float(first[name]) for name in _COST[:3]), seeds)
    leaks = tuple(_leak(line, seeds) for line in lines if line["metric"])
    return Trial(place, leaks, first["untested"], cost, float(first["bytes"]))


def _leak(line: Mapping[str, str], seeds: int) -> Leak:
    beyond = Estimate(*(float(line[name]) for name in ("beyond", "low", "high")), seeds)
    names = ("advantage", "score", "blind", "population")
    advantage, *beside = (_estimate(float(line[name]), seeds) for name in names)
    attacks = tuple(line["attacks"].split())
    return Leak(line["metric"], advantage, beyond, float(line["upper"]), *beside, attacks)


def stored() -> dict[str, list[Trial]]:
    """Return the trials that the documentation quotes."""
    return read((resources.files(__package__) / STORED).read_text(encoding="utf-8"))


def _estimate(mean: float, seeds: int) -> Estimate:
    return Estimate(mean, n=seeds) if math.isfinite(mean) else Estimate()


def named(found: Recommendation) -> str:
    """Return the recipe to take; where none holds, the one that leaves least."""
    best = found.choice or found.least
    return best.name if best else ""


def scope(trials: Trials) -> str:
    """Write what the figures are of."""
    places = list(dict.fromkeys(t.place for tried in trials.values() for t in tried))
    parts = [place.split(" · ") for place in places]
    tables, threats = (listed([*dict.fromkeys(part[i] for part in parts)]) for i in (0, 1))
    seeds = max(t.cost.n for tried in trials.values() for t in tried)
    return f"Tables: {tables}. Adversaries: {threats}. {many(seeds, 'seed')}."


def quoted(trials: Trials) -> str:
    """Return what the documentation says of a run: what it is of, what is named, the table."""
    found = recommend(trials)
    verdict = "It names" if found.choice else "None holds; least is left by"
    return f"{scope(trials)} {verdict} `{named(found)}`.\n\n{table(trials)}\n"


def table(trials: Trials) -> str:
    """Return a line per recipe: its cost, what rows and counts leave, what speaks against it."""
    found = recommend(trials)
    lines = [_line(UNDEFENDED, trials[UNDEFENDED], Estimate(0.0, n=1), "")]
    for c in found.candidates:
        reading = c.reason or ("holds" if c.shown else "may hold")
        lines.append(_line(c.name, trials[c.name], c.cost, reading))
    return markdown(HEADER, lines)


def _line(name: str, tried: Sequence[Trial], cost: Estimate, reading: str) -> list[str]:
    paid = "" if name == UNDEFENDED else "-"
    if cost.known and name != UNDEFENDED:
        paid = f"{cost.mean:+.3f}"
        if math.isfinite(cost.low):
            paid += f" [{cost.low:+.3f}, {cost.high:+.3f}]"
    return [f"`{name}`", paid, _worst(tried, ROWS), _worst(tried, COUNTS), reading]


def _worst(tried: Sequence[Trial], metric: str) -> str:
    """Write the largest score beyond blind, with where and by what."""
    both = [(t.place, leak) for t in tried for leak in t.leaks if leak.metric == metric]
    if not both:
        return "-"
    place, leak = max(both, key=lambda x: x[1].beyond.mean)
    score, line = 100 * leak.score.mean, 100 * leak.line
    return f"{score:.0f}% against {line:.0f}% ({place}, {leak.attacks[0].partition('[')[0]})"


def main() -> Path:
    """Run what is missing of the suite, store the trials in its folder and print the table."""
    options: Any = options_of("recipes", "--out", "--jobs")
    folder = run_suite(Suite.load("recipes"), options.out or "runs/recipes", options)
    trials = trials_of(load_rows(folder))
    (folder / STORED).write_text(written(trials), encoding="utf-8")
    print(quoted(trials))
    return folder


if __name__ == "__main__":
    main()
