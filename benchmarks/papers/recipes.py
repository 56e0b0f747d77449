"""Compute the recommended recipe: `python -m fedtrees.benchmarks.papers recipes`.

The command runs the suite `recipes`, stores one line per result in ``recipes.csv`` of its folder
and prints the text for README.md and docs/how-to/choose.md. After a run, copy the file next to
this module and call `write_generated`. The tests compute both texts from the stored file again, so
that no figure of a recipe is written by hand. The table of epsilons in docs/explanation/epsilon.md
is computed from one training (`epsilon_table`).

If one attack has changed, ``--attack NAME`` runs the same trainings against this attack only, and
``--protocol NAME`` only those of a protocol. The new file then contains the new results, and all
other results of the stored file.
"""

import csv
import io
import json
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any

from scipy.special import expit

from fedtrees.benchmarks.papers.study import SUITE_OPTIONS, Study, run_suite, train_federation
from fedtrees.benchmarks.papers.tables import markdown
from fedtrees.core.errors import DataError, listed, many
from fedtrees.core.guarantee import ApproximateDP, AtLeast, PureDP
from fedtrees.core.registry import register
from fedtrees.core.results import measure
from fedtrees.core.specs import parse_list
from fedtrees.experiments.suite import Suite
from fedtrees.privacy.accounting import epsilon_by_adversary, for_each_party
from fedtrees.protocols.training import Training
from fedtrees.report import wording
from fedtrees.report.cost import TOLERANCE, Utility, UtilityChange
from fedtrees.report.findings import RunAnalysis, analyze_run
from fedtrees.report.leakage import STORED_STATES, LeakageResult, is_safe, state_of
from fedtrees.report.recipe import (
    RECOMMENDED,
    Recipe,
    RecipeResult,
    Recommendation,
    recommend,
    runs_in,
    systems,
)
from fedtrees.report.results import UNDEFENDED, load_rows
from fedtrees.report.statistics import mean_of, t_estimate
from fedtrees.report.trials import trials_of
from fedtrees.report.verdict import verdict
from fedtrees.report.wording import ProtocolRecipe, split_recipe

STORED = "recipes.csv"
#: Clients of every federation of the suite. With two the remaining scores differ.
CLIENTS = 3
#: Table for which the guarantee of a recipe is written.
DEFAULT_TABLE = "breast-cancer"
#: Markers around the generated parts of a page.
BEGIN, END = "<!-- recipes -->\n", "<!-- end -->"
BEGIN_VERDICT = "<!-- verdict -->\n"
BEGIN_SYSTEMS = "<!-- systems -->\n"
BEGIN_EPSILONS = "<!-- epsilons -->\n"
#: Folder of the stored default run, whose verdict the documentation quotes.
DEFAULT_RUN = "leaderboard/default-bench"
_BETWEEN = " \N{MIDDLE DOT} "  # table and adversary in the name of a place
#: Measures whose largest remaining score the documentation shows, with their names there.
SHOWN = {
    "ra": "cells guessed right (reconstruction accuracy)",
    "exact_rows": "rows reconstructed in every column",
    "members_auc": "members distinguished from other persons (AUC)",
    "members_1pct": "members recognised at 1% false alarms",
    "leaf_mass_exact": "rows in leaves whose class counts are exact",
    "leaf_counts_exact": "leaves whose class counts are exact",
}
#: Measures that README.md shows.
IN_README = ("ra", "members_auc", "members_1pct", "leaf_mass_exact")
EPSILONS = ("value", "valid against", "epsilon, one row replaced",
            "epsilon, one row added or removed")  # fmt: skip
PRICES = ("no.", "recipe", "change in AUC", "table of this price", "reading of the price", "result")
LEFT = ("no.", "measure", "score", "blind baseline", "population baseline", "score by seed",
        "table", "adversary", "attack")  # fmt: skip
_PLACE = ("recipe", "place", "untested", "bytes", "utility", "change")
_LISTS = ("scores", "blinds", "populations", "advantages", "errors", "seeds")
_CELL = ("metric", "state", "rows", *_LISTS, "attacks", "no_claim")

Trials = Mapping[str, Sequence[RecipeResult]]


def write_trials(trials: Trials) -> str:
    """Return trials as CSV with one line per cell, and values of several seeds in one field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_PLACE, *_CELL))
    for recipe, tried in trials.items():
        for t in tried:
            changes = _texts(x for pair in t.utility_change.by_seed.items() for x in pair)
            place = (
                recipe,
                t.place,
                t.untested,
                f"{t.bytes:.0f}",
                t.utility_change.utility.metric,
                changes,
            )
            for c in t.results:
                lists = [_texts(getattr(c, name)) for name in _LISTS]
                attacks, silent = " ".join(c.attacks), " ".join(name for name, _ in c.no_claim)
                state = STORED_STATES.get(c.state, c.state)
                writer.writerow((*place, c.metric, state, f"{c.rows:g}", *lists, attacks, silent))
    return out.getvalue()


def _texts(values: Any) -> str:
    """Format numbers, separated by spaces."""
    return " ".join(f"{value:.6g}" for value in values)


def read(text: str) -> dict[str, list[RecipeResult]]:
    """Return the trials of such a CSV."""
    lines_of_recipe: dict[str, dict[str, list[dict[str, str]]]] = {}
    for line in csv.DictReader(io.StringIO(text)):
        lines_of_recipe.setdefault(line["recipe"], {}).setdefault(line["place"], []).append(line)
    return {
        _recipe(recipe): [_trial(place, lines) for place, lines in places.items()]
        for recipe, places in lines_of_recipe.items()
    }


def _recipe(text: str) -> str:
    """Parse the name of a recipe."""
    protocol, _, defense = text.rpartition(" with ")
    return ProtocolRecipe(protocol, defense) if protocol else text


def _trial(place: str, lines: Sequence[Mapping[str, str]]) -> RecipeResult:
    """Return the trial of the lines of one place."""
    first = lines[0]
    numbers = [float(v) for v in first["change"].split()]
    changes = {int(s): v for s, v in zip(numbers[::2], numbers[1::2], strict=True)}
    price = UtilityChange(Utility(first["utility"]), t_estimate(changes.values()), changes)
    cells = tuple(map(_cell, lines))
    return RecipeResult(place, cells, price, first["untested"], float(first["bytes"]))


def _cell(line: Mapping[str, str]) -> LeakageResult:
    """Return the cell of one line. Its state is never safer than its scores allow."""
    lists: dict[str, Any] = {n: tuple(float(v) for v in line[n].split()) for n in _LISTS}
    lists["seeds"] = tuple(map(int, lists["seeds"]))
    stored = line["state"]
    state: Any = next((s for s, word in STORED_STATES.items() if word == stored), stored)
    attacks = tuple(line["attacks"].split())
    silent = tuple((name, "") for name in line["no_claim"].split())
    rows = float(line["rows"])
    cell = LeakageResult(
        line["metric"], state, **lists, attacks=attacks, rows=rows, no_claim=silent
    )
    return replace(cell, state="unsettled") if state == "safe" and not is_safe(cell) else cell


def stored() -> dict[str, list[RecipeResult]]:
    """Return the trials that the documentation quotes."""
    return read((resources.files(__package__) / STORED).read_text(encoding="utf-8"))


def name_of_recipe(recommendation: Recommendation) -> str:
    """Return the name of the recommended recipe, or "" if no recipe was run everywhere."""
    best = recommendation.choice or recommendation.least
    return best.name if best else ""


def places(trials: Trials) -> tuple[list[str], list[str], int]:
    """Return the tables and the adversaries of a run, and its number of seeds."""
    names = list(dict.fromkeys(t.place for tried in trials.values() for t in tried))
    parts = [place.split(_BETWEEN) for place in names]
    tables, adversaries = ([*dict.fromkeys(part[i] for part in parts)] for i in (0, 1))
    seeds = max(len(t.utility_change.by_seed) for tried in trials.values() for t in tried)
    return tables, adversaries, seeds


def scope(trials: Trials) -> str:
    """Write which tables, adversaries and seeds the figures are computed from."""
    tables, adversaries, seeds = places(trials)
    return (
        f"Computed from {many(len(tables), 'table')} ({listed(tables)}) that "
        f"{many(CLIENTS, 'client')} share, {many(len(adversaries), 'adversary', 'adversaries')} "
        f"({listed(adversaries)}) and {many(seeds, 'seed')}."
    )


def quote_recipes(trials: Trials) -> str:
    """Return the generated part of `docs/how-to/choose.md`."""
    recommendation = recommend(trials)
    best = recommendation.choice or recommendation.least
    if best is None:
        return f"{scope(trials)} No recipe was run everywhere.\n\n{prices(trials)}\n"
    verdict = (
        f"The recommended recipe is `{best.name}`."
        if recommendation.choice
        else f"No recipe in the list resists every attack. Of all of them, `{best.name}` leaves "
        "the smallest advantage to the attacks."
    )
    parts = [
        f"{scope(trials)} {verdict} {reading(best)}",
        f"```console\n$ fedtrees bench {command(best)}\n```",
        summary(trials, best), "Prices of all recipes:", prices(trials),
        "For each recipe and measure, the result with the largest advantage over the better of its "
        "baselines. Number 0 is the run without a defense.",
        remaining(trials),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def readme(trials: Trials) -> str:
    """Return the generated part of ``README.md``."""
    recommendation = recommend(trials)
    best = recommendation.choice or recommendation.least
    if best is None:
        return f"{scope(trials)} No recipe was run everywhere.\n"
    link = "[how it is computed](docs/how-to/choose.md#the-recommended-recipe)"
    if recommendation.choice:
        tested = [c for c in recommendation.recipes if not c.untested]
        without_leak = [c for c in tested if not c.leaking_results]
        answer = (
            f"For horizontal federations we recommend `{command(best)}` ({link}). Of the "
            f"{many(len(tested), 'recipe')} that we tested, it is the cheapest of the "
            f"{len(without_leak)} in which no attack was clearly better than its baselines."
        )
    else:
        answer = (
            "For horizontal federations, no setting that we tested resists every attack. "
            f"`{command(best)}` leaves the smallest advantage ({link})."
        )
    return (
        f"{answer} {scope(trials)} {reading(best)}\n\n"
        f"{summary(trials, best, IN_README)}\n{guarantee(best.name)}"
    )


@lru_cache
def _train(recipe: str) -> Training | None:
    """Train a recipe on the default table with seed 0. None for a recipe without a protocol."""
    protocol, defense = wording.split_recipe(_recipe(recipe))
    if not protocol:
        return None
    spec = parse_list([protocol])[0]
    training, *_ = train_federation(DEFAULT_TABLE, spec, CLIENTS, 0, None, defense=defense)
    return training


def _claim_of(training: Training | None) -> ApproximateDP | None:
    """Return the claim of a training with its cut points. None if it has no finite epsilon."""
    claim = training.protocol.claim_with(training.defense) if training else None
    return claim if isinstance(claim, ApproximateDP) and isfinite(claim.epsilon) else None


def guarantee(recipe: str) -> str:
    """Write the claimed epsilon of a recipe for one replaced row, as a list entry.

    The number of rows is public, so that one replaced row is the suitable neighbouring relation.
    Empty for a recipe without an epsilon.
    """
    claim = _claim_of(_train(recipe))
    if claim is None:
        return ""
    page = "docs/explanation/epsilon.md#the-epsilons-of-the-recommended-recipe"
    return (
        f"- **Guarantee.** Epsilon {claim.replaced:.3g} at delta {claim.delta:g} for one row "
        f"replaced by another one, against outsiders and {many(claim.colluders, 'client')}, also "
        "together with the server. This change is the suitable one, because the number of rows is "
        "public. It means: a suspicion of 50% that a certain record was used, and not another one, "
        f"becomes at most {100 * expit(claim.replaced):.1f}%, except with a probability of about "
        "delta. It assumes that the server can read only the sum over the clients, and that at "
        "most one client reveals or omits its noise. The claim includes the cut points, and is "
        "valid for every table. "
        f"[All epsilons of the recipe]({page}) explains the other values, for example "
        f"{claim.epsilon:g} for one row added or removed.\n"
    )


def epsilon_table(recipe: str) -> str:
    """Return a table with every epsilon of a recipe and the adversary that it is valid for.

    Parameters
    ----------
    recipe : str
        Name of the recipe.
    """
    training = _train(recipe)
    claim = _claim_of(training)
    if training is None or claim is None:
        return "The recommended recipe claims no epsilon.\n"
    leaves = training.protocol.claim()
    assert isinstance(leaves, ApproximateDP)
    cuts = next(c for c in training.defense.claims() if isinstance(c, PureDP))
    insiders = f"outsiders and {many(claim.colluders, 'client')}"
    run = f"one training on {DEFAULT_TABLE}"
    claims = [
        ("claimed, complete recipe", claim.replaced, claim.epsilon),
        ("claimed, sums of the leaves only", leaves.replaced, leaves.epsilon),
        ("claimed, cut points only (delta 0)", 2 * cuts.epsilon, cuts.epsilon),
    ]
    lines = [[name, insiders, f"{r:.3g}", f"{epsilon:.3g}"] for name, r, epsilon in claims]
    events = training.transcript.events
    leaf_sums = [event for event in events if event.party not in training.columns]
    counts = [event for event in events if event.party in training.columns]
    lines += [
        [f"spent, {run}", against.adversary, f"{against.replaced:.3g}", f"{against.epsilon:.3g}"]
        for against in epsilon_by_adversary(for_each_party(leaf_sums, counts), claim.delta)
    ]
    audit = _largest_audit(recipe)
    if audit is not None:
        bound = f"at least {audit.epsilon:.2g} (an audit can show at most {audit.most:.2g})"
        lines.append(["measured, largest of 3 audits", "test records", "not audited", bound])
    return markdown(EPSILONS, lines) + "\n"


def _largest_audit(recipe: str) -> AtLeast | None:
    """Return the largest lower bound that an audit of the default run shows for a recipe."""
    protocol, defense = wording.split_recipe(_recipe(recipe))
    with resources.as_file(resources.files("fedtrees.benchmarks") / DEFAULT_RUN) as folder:
        rows = load_rows(folder)
    named = (rows["protocol"] == parse_list([protocol])[0].name) & (
        rows["defense"] == parse_list([defense])[0].name
    )
    audits = [
        bound
        for guarantees in rows[named]["measured"].unique()
        for bound in guarantees or ()
        if isinstance(bound, AtLeast)
    ]
    return max(audits, key=lambda audit: audit.epsilon, default=None)


def reading(best: Recipe) -> str:
    """Write how certain a recipe is."""
    if best.leaking_results:
        return open_results(best)
    if not best.holds:
        return f"It is not tested completely ({best.reason})."
    if best.shown:
        return "Every measure is shown to be within the margin of its baselines."
    return f"It may hold: {unsettled_results(best)}"


def unsettled_results(best: Recipe) -> str:
    """Write how many results of a recipe are not settled, and why, as a clause with a full stop."""
    cells = [c for t in best.trials for c in t.results]
    unsettled = [c for c in cells if c.state in ("unsettled", "unknown")]
    below = [c for c in unsettled if c.below_baseline]
    silent = [c for c in unsettled if c.no_claim and not c.below_baseline]
    reasons = [
        f"in {len(group)} {reason}"
        for group, reason in (
            (below, "the strongest attack scored worse than its baseline"),
            (silent, "an attack returned no claim"),
            (unsettled[len(below) + len(silent) :], "the interval is too wide"),
        )
        if group
    ]
    return f"{len(unsettled)} of {len(cells)} results are not settled ({listed(reasons)})."


def open_results(best: Recipe) -> str:
    """Write how many results of a recipe are open, and by which measures, the gravest first."""
    measures = dict.fromkeys(measure(cell.metric).name for _, cell in best.leaking_results)
    number_of_results = sum(len(t.results) for t in best.trials)
    return (
        f"{many(len(best.leaking_results), 'result')} of {number_of_results} "
        f"{'is' if len(best.leaking_results) == 1 else 'are'} leaking: an attack is "
        f"clearly better than its baseline: {listed(list(measures))}."
    )


def command(best: Recipe) -> str:
    """Write the options of `fedtrees bench` that run a recipe."""
    protocol, defense = wording.split_recipe(best.name)
    return f'-p "{protocol}" -d "{defense}"' if protocol else f'-d "{defense}"'


def summary(trials: Trials, best: Recipe, keys: Collection[str] = tuple(SHOWN)) -> str:
    """Write price and remaining scores of a recipe, one list entry each.

    Parameters
    ----------
    trials : mapping of str to sequence of RecipeResult
        Trials of all recipes.
    best : Recipe
        The recipe.
    keys : collection of str
        Measures whose largest remaining score is written.
    """
    lines = [f"**Price.** {price_text(trials, best)}"]
    for key in keys:
        if text := _at_worst(best.trials, key):
            lines.append(f"**{wording.capital(SHOWN[key])}.** {text}")
    return "\n".join(f"- {line}" for line in lines)


def price_text(trials: Trials, best: Recipe) -> str:
    """Write the price on the table where it is highest, and on the remaining tables."""
    tables, *_ = places(trials)
    where, price = _table_of(best.costliest), best.utility_change
    text = (
        f"{measure(price.utility.metric).head} changes by {_change(price)} on {where}, the table "
        f"with the largest loss of {many(len(tables), 'table')}: {wording.settled(price)}. "
        "Intervals are 95% intervals of the mean over seeds."
    )
    price_of_table = {_table_of(t): t.utility_change for t in best.trials if _table_of(t) != where}
    changes = [f"{_change(p)} on {table}" for table, p in price_of_table.items()]
    return f"{text} On the other tables: {listed(changes)}." if changes else text


def _reading_of_price(price: UtilityChange) -> str:
    """Write whether a price is a clear loss, no loss, or not settled."""
    reading = wording.settled(price)
    if reading.startswith("not settled"):
        return f"not settled: a loss above {TOLERANCE:g} is possible"
    return reading


def _change(price: UtilityChange) -> str:
    """Format a change in utility with its interval. Minus signs are hyphens."""
    return wording.change(price.change).replace("\N{MINUS SIGN}", "-")


def _worst_of(tried: Sequence[RecipeResult], metric: str) -> tuple[str, LeakageResult] | None:
    """Return place and cell with the largest advantage, None if nothing was scored."""
    both = [(t.place, c) for t in tried for c in t.results if c.metric == metric and c.scores]
    return max(both, key=lambda pair: pair[1].advantage.mean, default=None)


def _at_worst(tried: Sequence[RecipeResult], metric: str) -> str:
    """Write the worst cell of a measure with both baselines, "" if nothing was scored.

    If another cell exceeds its blind baseline by more but stays below that of the population, it is
    written as well.
    """
    worst = _worst_of(tried, metric)
    if worst is None:
        return ""
    place, cell = worst
    table, adversary = _parts_of(place)
    by_seed = wording.by_seed(cell) or _range_of_seeds(cell)
    mean = f"{table}, mean of {many(len(cell.scores), 'seed')}"
    mean += f"; {by_seed}" if by_seed else ""
    if cell.advantage.mean > 0:
        phrase = measure(metric).phrase.format(_amount(cell))
        achieved = (
            f"The largest mean advantage over the baselines is that of the adversary `{adversary}`,"
            f" which can {phrase} ({mean})."
        )
    else:
        achieved = (
            "No attack exceeds its baselines in the mean. The closest is the adversary "
            f"`{adversary}` with {_amount(cell)} ({mean})."
        )
    text = f"{achieved} {_baselines(cell)}"
    people = [
        (t.place, c, mean_of(c.blinds))
        for t in tried
        for c in t.results
        if c.metric == metric and c.scores and c.has_population and c is not cell
    ]
    people = [p for p in people if p[1].score > p[2] < mean_of(p[1].populations)]
    if not people:
        return text
    place, cell, blind = max(people, key=lambda p: p[1].score - p[2])
    table, adversary = _parts_of(place)
    population = wording.value(cell, mean_of(cell.populations))
    text += (
        f" The largest difference to the blind baseline alone is that of `{adversary}` on {table}: "
        f"{_amount(cell)} against {wording.value(cell, blind)}. A guess from rows of other persons "
        f"reaches {population}"
    )
    if wording.value(cell, cell.score) == population:
        return f"{text} as well, so that the messages only describe the population."
    if cell.score < mean_of(cell.populations):
        return f"{text}, so that the messages only describe the population."
    return f"{text}."


def _range_of_seeds(cell: LeakageResult) -> str:
    """Write the smallest and the largest score of the seeds, "" if they look the same."""
    low, high = (wording.value(cell, choose(cell.scores)) for choose in (min, max))
    return "" if low == high else f"{low} to {high} on single seeds"


def _amount(cell: LeakageResult) -> str:
    """Format the score of a cell with its total."""
    return wording.amount(cell, cell.score)


def _baselines(cell: LeakageResult) -> str:
    """Write the baselines of a cell as a sentence."""
    blind = wording.value(cell, mean_of(cell.blinds) if cell.has_population else cell.baseline)
    sentence = f"A guess without any message reaches {blind} (blind baseline)"
    if not cell.has_population:
        return f"{sentence}."
    population = wording.value(cell, mean_of(cell.populations))
    return f"{sentence}, and a guess from rows of other persons {population} (population baseline)."


def _parts_of(place: str) -> tuple[str, str]:
    """Return table and adversary of a place."""
    table, adversary = place.split(_BETWEEN)[:2]
    return table, adversary


def _table_of(trial: RecipeResult) -> str:
    """Return the table of a trial."""
    return trial.place.split(_BETWEEN)[0]


def prices(trials: Trials) -> str:
    """Return a table with a row per recipe: its price, the table of this price, and the result.

    Recipes that were not run with some table or adversary are listed below.
    """
    recommendation, left = recommend(trials), list[str]()
    lines: list[list[str]] = []
    for c in recommendation.recipes:
        if c.untested:
            left.append(f"`{c.name}`")
            continue
        result = c.reason or ("shown to resist" if c.shown else "may hold")
        number = str(len(lines) + 1)
        lines.append(
            [
                number,
                f"`{c.name}`",
                _change(c.utility_change),
                _table_of(c.costliest),
                _reading_of_price(c.utility_change),
                result,
            ]
        )
    below = f"\n\nNot run everywhere: {listed(left)}." if left else ""
    return markdown(PRICES, lines) + below


def remaining(trials: Trials) -> str:
    """Return a table with a row per recipe and measure: the worst cell, with both baselines."""
    recommendation = recommend(trials)
    names = [UNDEFENDED, *(c.name for c in recommendation.recipes if not c.untested)]
    rows = [_row_of(str(i), trials[name], key) for i, name in enumerate(names) for key in SHOWN]
    return markdown(LEFT, [row for row in rows if row])


def _row_of(number: str, tried: Sequence[RecipeResult], metric: str) -> list[str]:
    """Return the row of a recipe and a measure, empty if nothing was scored."""
    worst = _worst_of(tried, metric)
    if worst is None:
        return []
    place, cell = worst
    table, adversary = _parts_of(place)
    people = wording.value(cell, mean_of(cell.populations)) if cell.has_population else "none"
    by_seeds = ", ".join(wording.value(cell, score) for score in cell.scores)
    attack = cell.attacks[0].partition("[")[0] if cell.attacks else "none"
    return [
        number, SHOWN[metric], _amount(cell),
        wording.value(cell, mean_of(cell.blinds)), people, by_seeds, table, adversary, attack,
    ]  # fmt: skip


def systems_table(recipe: str) -> str:
    """Return a table with the software that runs each protocol, and the recommended recipe.

    Only protocols are listed that at least one system runs. The settings come from the registry
    (`fedtrees.report.recipe.systems`), as for ``fedtrees recommend --deployed``.
    """
    names = systems()
    protocol, defense = split_recipe(_recipe(recipe))
    spec, parts = parse_list([protocol])[0], parse_list(defense.split("+"))
    lines = [
        ["the recommended recipe", *("yes" if runs_in(n, spec, parts) else "no" for n in names)]
    ]
    for name in register.names("protocol"):
        deployments: Collection[str] = register.get("protocol", name).info.deployments  # type: ignore[attr-defined]
        if deployments:
            lines.append([f"`{name}`", *("yes" if n in deployments else "no" for n in names)])
    return markdown(("protocol", *(f"`--deployed {n}`" for n in names)), lines) + "\n"


def write_generated(trials: Trials, root: Path) -> None:
    """Write the recommended recipe wherever it is named, and the verdict of the default run.

    These are the parts between the markers in ``README.md``, `docs/how-to/choose.md`,
    `docs/tutorials/first-bench.md` and `docs/explanation/epsilon.md`, and the file from which
    verdicts and `fedtrees recommend` read the recipe (`fedtrees.report.recipe.recommended`).
    """
    best = recommend(trials)
    protocol, defense = split_recipe(name_of_recipe(best))
    stored = {"protocol": protocol, "defense": defense}
    path = root / "fedtrees" / "report" / RECOMMENDED
    path.write_text(json.dumps(stored) + "\n", encoding="utf-8")
    screen = default_verdict()
    for name, begin, text in (
        ("README.md", BEGIN, readme(trials)),
        ("docs/how-to/choose.md", BEGIN, quote_recipes(trials)),
        ("README.md", BEGIN_VERDICT, screen),
        ("docs/tutorials/first-bench.md", BEGIN_VERDICT, screen),
        ("docs/how-to/choose.md", BEGIN_SYSTEMS, systems_table(name_of_recipe(best))),
        ("docs/explanation/epsilon.md", BEGIN_EPSILONS, epsilon_table(name_of_recipe(best))),
    ):
        page = root / name
        content = replace_section(page.read_text(encoding="utf-8"), begin, text)
        page.write_text(content, encoding="utf-8")


def default_findings() -> RunAnalysis:
    """Return the findings of the stored default run."""
    with resources.as_file(resources.files("fedtrees.benchmarks") / DEFAULT_RUN) as folder:
        return analyze_run(folder)


def default_verdict() -> str:
    """Return the verdict of the default run as the terminal prints it, as a block of text."""
    return f"```text\n{verdict(default_findings())}\n```\n"


def replace_section(page: str, begin: str, text: str) -> str:
    """Return a page with this text between a marker and the next `END`.

    Parameters
    ----------
    page : str
        Text of the page.
    begin : str
        Marker.
    text : str
        New text.
    """
    before, marker, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    return f"{before}{marker}{text}{end}{after}"


def replace_results(before: Trials, after: Trials, attack: str) -> dict[str, list[RecipeResult]]:
    """Return the earlier trials with the results of one attack replaced by those of a later run.

    Parameters
    ----------
    before : mapping of str to sequence of RecipeResult
        Trials of every attack.
    after : mapping of str to sequence of RecipeResult
        Trials with this attack only, of some of these recipes, and of all their tables, adversaries
        and seeds. The results of the remaining recipes stay.
    attack : str
        Name of the attack.

    Raises
    ------
    DataError
        If a trial is missing in the later run, if its trainings have another utility, or if another
        attack determines an earlier result of a measure of this attack. In these cases, all
        attacks have to run again.
    """
    return {
        recipe: [
            _replace_results_of(trial, recipe, after[recipe], attack) if recipe in after else trial
            for trial in trials
        ]
        for recipe, trials in before.items()
    }


def _replace_results_of(
    trial: RecipeResult, recipe: str, after: Sequence[RecipeResult], attack: str
) -> RecipeResult:
    """Return a trial with the results of one attack replaced (`replace_results`)."""
    where = f"{recipe} on {trial.place}"
    later = next((t for t in after if t.place == trial.place), None)
    if later is None:
        raise DataError(f"{where} has no later result of {attack}; run all attacks")
    changes = [t.utility_change.by_seed for t in (trial, later)]
    if not _are_equal(*changes):
        raise DataError(f"{where} is trained differently than before; run all attacks")
    results = []
    for result in trial.results:
        new = later.result(result.metric)
        other_attacks = {name for name in result.attacks if name.partition("[")[0] != attack}
        if new is not None and other_attacks:
            raise DataError(
                f"{where} has {result.metric} by {listed(sorted(other_attacks))}; run all attacks"
            )
        if new is not None and new.seeds != result.seeds:
            raise DataError(f"{where} has {result.metric} of other seeds; run all attacks")
        if new is not None and new.scores:
            # The later run names the other attacks as missing. They are in the stored run.
            new = replace(new, state=state_of(new, complete=not trial.untested))
        results.append(result if new is None else new)
    return replace(trial, results=tuple(results))


def _are_equal(a: Mapping[int, float], b: Mapping[int, float]) -> bool:
    """Return whether two changes by seed are equal to the precision of the stored file."""
    return a.keys() == b.keys() and all(f"{a[seed]:.6g}" == f"{b[seed]:.6g}" for seed in a)


def run(options: Namespace) -> Iterator[str]:
    """Complete the run of the suite, store the trials in its folder and yield the texts."""
    suite = Suite.load("recipes")
    if options.attack:
        attacks = tuple(parse_list([options.attack]))
        grids = [
            replace(grid, attacks=attacks)
            for grid in suite.grids
            if options.protocol in ("", *(protocol.name for protocol in grid.protocols))
        ]
        suite = suite.of(grids, suite.seeds)
    folder = run_suite(suite, options)
    trials = trials_of(load_rows(folder))
    if options.attack:
        trials = replace_results(stored(), trials, options.attack)
    (folder / STORED).write_text(write_trials(trials), encoding="utf-8")
    yield readme(trials)
    yield quote_recipes(trials)


STUDIES = {
    "recipes": Study(
        "The recommended recipe, with its price and scores.",
        run,
        {
            **SUITE_OPTIONS,
            "--attack": {"help": "run this attack only, and keep other results"},
            "--protocol": {"default": "", "help": "with --attack: run this protocol only"},
        },
    )
}
