"""`python -m fedtrees.benchmarks.papers.recipes --data-dir FOLDER`: run, store, print the table.

What is stored beside this module is what `fedtrees.report.recipe.recommend` is given; the
documentation quotes it, and tests compute the recommendation from it anew.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtrees.bench.suite import Suite
from fedtrees.benchmarks.papers.study import markdown, options_of, run_suite
from fedtrees.core.counts import listed, many
from fedtrees.report.findings import trials_of
from fedtrees.report.intervals import t_estimate
from fedtrees.report.price import Price, Utility
from fedtrees.report.recipe import Candidate, Recommendation, Trial, recommend
from fedtrees.report.rows import UNDEFENDED, load_rows
from fedtrees.report.said import Elsewhere, change
from fedtrees.report.states import Cell, is_safe

STORED = "recipes.csv"
HEADER = ("recipe", "change in AUC", "rows: RA", "counts: rows in leaves", "reading")
ROWS, COUNTS = "ra", "leaf_mass_exact"
_PLACE = ("recipe", "place", "untested", "bytes", "utility", "change")
_LISTS = ("scores", "blinds", "populations", "advantages", "errors", "seeds")
_CELL = ("metric", "state", "rows", *_LISTS, "attacks")

Trials = Mapping[str, Sequence[Trial]]


def written(trials: Trials) -> str:
    """Return trials as CSV, a line per cell; what is of several seeds stands with spaces."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_PLACE, *_CELL))
    for recipe, tried in trials.items():
        for t in tried:
            changes = _texts(x for pair in t.price.by_seed.items() for x in pair)
            place = (recipe, t.place, t.untested, f"{t.bytes:.0f}", t.price.utility.metric, changes)
            for c in t.cells:
                lists = [_texts(getattr(c, name)) for name in _LISTS]
                attacks = " ".join(c.attacks)
                writer.writerow((*place, c.metric, c.state, f"{c.rows:g}", *lists, attacks))
    return out.getvalue()


def _texts(values: Any) -> str:
    return " ".join(f"{value:.6g}" for value in values)


def read(text: str) -> dict[str, list[Trial]]:
    """Return the trials of such a CSV."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        found.setdefault(line["recipe"], {}).setdefault(line["place"], []).append(line)
    return {
        _recipe(recipe): [_trial(place, lines) for place, lines in places.items()]
        for recipe, places in found.items()
    }


def _recipe(text: str) -> str:
    protocol, _, defense = text.rpartition(" with ")
    return Elsewhere(protocol, defense) if protocol else text


def _trial(place: str, lines: Sequence[Mapping[str, str]]) -> Trial:
    first = lines[0]
    numbers = [float(v) for v in first["change"].split()]
    changes = {int(s): v for s, v in zip(numbers[::2], numbers[1::2], strict=True)}
    price = Price(Utility(first["utility"]), t_estimate(changes.values()), changes)
    cells = tuple(map(_cell, lines))
    return Trial(place, cells, price, first["untested"], float(first["bytes"]))


def _cell(line: Mapping[str, str]) -> Cell:
    """Return the cell of one line. Its state is never safer than its scores allow."""
    lists: dict[str, Any] = {n: tuple(float(v) for v in line[n].split()) for n in _LISTS}
    lists["seeds"] = tuple(map(int, lists["seeds"]))
    state: Any = line["state"]
    attacks = tuple(line["attacks"].split())
    cell = Cell(line["metric"], state, **lists, attacks=attacks, rows=float(line["rows"]))
    return replace(cell, state="unsettled") if state == "shut" and not is_safe(cell) else cell


def stored() -> dict[str, list[Trial]]:
    """Return the trials that the documentation quotes."""
    return read((resources.files(__package__) / STORED).read_text(encoding="utf-8"))


def named(found: Recommendation) -> str:
    """Return the recipe to take; where none holds, the one that leaves least."""
    best = found.choice or found.least
    return best.name if best else ""


def scope(trials: Trials) -> str:
    """Write what the figures are of."""
    places = list(dict.fromkeys(t.place for tried in trials.values() for t in tried))
    parts = [place.split(" · ") for place in places]
    tables, threats = (listed([*dict.fromkeys(part[i] for part in parts)]) for i in (0, 1))
    seeds = max(len(t.price.by_seed) for tried in trials.values() for t in tried)
    return f"Tables: {tables}. Adversaries: {threats}. {many(seeds, 'seed')}."


def quoted(trials: Trials) -> str:
    """Return what the documentation says of a run: what it is of, what is named, the table."""
    found = recommend(trials)
    verdict = "It names" if found.choice else "None holds; least is left by"
    return f"{scope(trials)} {verdict} `{named(found)}`.\n\n{table(trials)}\n"


def table(trials: Trials) -> str:
    """Return a line per recipe: its cost, what rows and counts leave, what speaks against it.

    Recipes that some table or adversary was not tried with are named below.
    """
    found, left = recommend(trials), list[str]()
    lines = [_line(UNDEFENDED, trials[UNDEFENDED], None, "")]
    for c in found.candidates:
        if c.untested:
            left.append(f"`{c.name}`")
            continue
        reading = c.reason or ("holds" if c.shown else "may hold")
        lines.append(_line(c.name, trials[c.name], c, reading))
    below = f"\n\nNot run everywhere: {listed(left)}." if left else ""
    return markdown(HEADER, lines) + below


def _line(name: str, tried: Sequence[Trial], c: Candidate | None, reading: str) -> list[str]:
    paid = change(c.price.change).replace("\N{MINUS SIGN}", "-") if c else ""
    return [f"`{name}`", paid, _worst(tried, ROWS), _worst(tried, COUNTS), reading]


def _worst(tried: Sequence[Trial], metric: str) -> str:
    """Write the largest score beyond its line, with where and by what."""
    both = [(t.place, c) for t in tried for c in t.cells if c.metric == metric and c.scores]
    if not both:
        return "-"
    place, cell = max(both, key=lambda x: x[1].advantage.mean)
    by = cell.attacks[0].partition("[")[0] if cell.attacks else "-"
    return f"{100 * cell.score:.0f}% against {100 * cell.line:.0f}% ({place}, {by})"


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
