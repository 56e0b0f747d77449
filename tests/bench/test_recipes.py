"""The documentation quotes the recipes that are computed from the stored results."""

import math
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from fedtrees.benchmarks.papers import recipes
from fedtrees.core.errors import DataError
from fedtrees.core.transcript import BudgetEvent
from fedtrees.experiments.suite import Suite
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.gaussian_dp import mu_of
from fedtrees.report.cost import Utility, UtilityChange
from fedtrees.report.leakage import LeakageResult
from fedtrees.report.limits import Wish, tried
from fedtrees.report.recipe import RecipeResult, recommend, recommended
from fedtrees.report.results import UNDEFENDED, load_rows
from fedtrees.report.statistics import Estimate
from fedtrees.report.verdict import describe_utility_change as verdict_price
from fedtrees.report.wording import can, settled, split_recipe

ROOT = Path(__file__).parents[2]
TRIALS = recipes.stored()
PLACES = {t.place for t in TRIALS[UNDEFENDED]}
# options that are valid for every table
EVERYWHERE = [n for n in TRIALS if n != UNDEFENDED and {t.place for t in TRIALS[n]} == PLACES]


def test_stored_trials_are_read_back_unchanged():
    read_again = recipes.read(recipes.write_trials(TRIALS))
    assert recipes.write_trials(read_again) == recipes.write_trials(TRIALS)
    assert [recipe.name for recipe in recommend(read_again).recipes] == [
        recipe.name for recipe in recommend(TRIALS).recipes
    ]
    assert recipes.name_of_recipe(recommend(read_again)) == recipes.name_of_recipe(
        recommend(TRIALS)
    )


PAGES = {"README.md": recipes.readme, "docs/how-to/choose.md": recipes.quote_recipes}
BETWEEN = re.compile(r"<!-- recipes -->\n(.*?)<!-- end -->", flags=re.S)
GENERATED = re.compile(r"<!-- (?:recipes|verdict) -->\n(.*?)<!-- end -->", flags=re.S)


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_part_of_a_page_is_computed_from_the_stored_run(name):
    (quoted,) = BETWEEN.findall((ROOT / name).read_text())
    assert quoted == PAGES[name](TRIALS)


def test_the_table_of_epsilons_is_computed_from_a_training_of_the_recommended_recipe():
    page = (ROOT / "docs" / "explanation" / "epsilon.md").read_text()
    _, _, after_marker = page.partition(recipes.BEGIN_EPSILONS)
    table = recipes.epsilon_table(recipes.name_of_recipe(recommend(TRIALS)))
    assert after_marker.partition(recipes.END)[0] == table


def test_the_table_of_software_is_computed_from_the_registry():
    page = (ROOT / "docs" / "how-to" / "choose.md").read_text()
    _, _, after_marker = page.partition(recipes.BEGIN_SYSTEMS)
    table = recipes.systems_table(recipes.name_of_recipe(recommend(TRIALS)))
    assert after_marker.partition(recipes.END)[0] == table


def test_a_run_with_more_columns_spends_less_than_the_claim():
    """The figures are those of docs/explanation/epsilon.md."""
    leaves = BudgetEvent("", "gaussian", 0.0, 1.0, "LeafSums", l2=mu_of(1.0, 1e-5))
    spent = []
    for columns in (1, 8, 30, 100):
        release = ("", "geometric", 1, 2.0 * columns, "GridCounts")
        counts = BudgetEvent(*release, count=2 * columns, shares=3, calibrated=2)
        spent.append(round(compose_releases([leaves, counts], 1e-5), 2))
    assert spent == [1.94, 1.39, 1.12, 1.04]


@pytest.fixture(scope="module")
def default_verdict():
    """Return the verdict of the stored default run."""
    return recipes.default_verdict()


@pytest.mark.parametrize("name", ["README.md", "docs/tutorials/first-bench.md"])
def test_the_verdict_in_a_page_is_that_of_the_stored_default_run(default_verdict, name):
    _, _, after_marker = (ROOT / name).read_text().partition(recipes.BEGIN_VERDICT)
    assert after_marker.partition(recipes.END)[0] == default_verdict


@pytest.mark.parametrize("name", PAGES)
def test_no_figure_of_the_recipe_is_written_outside_of_the_generated_part(name):
    """The generated part contains its price, its scores with a baseline, and its parameters."""
    text_outside = GENERATED.sub("", (ROOT / name).read_text())
    recommendation = recommend(TRIALS)
    recipe = recommendation.choice or recommendation.least
    numbers = [
        f"{recipe.utility_change.change.mean:+.3f}",
        f"{recipe.utility_change.change.low:+.3f}",
    ]
    assert not [
        number
        for number in (*numbers, split_recipe(recipe.name)[0], "(blind baseline")
        if number in text_outside
    ]


@pytest.mark.parametrize("name", PAGES)
def test_pages_name_the_table_of_the_price_and_its_reading(name):
    recommendation = recommend(TRIALS)
    recipe = recommendation.choice or recommendation.least
    (quoted,) = BETWEEN.findall((ROOT / name).read_text())
    table = recipe.costliest.place.split(" \N{MIDDLE DOT} ")[0]
    (line,) = [
        text_line for text_line in quoted.splitlines() if text_line.startswith("- **Price.**")
    ]
    assert f"{recipe.utility_change.change.mean:+.3f}" in line
    assert f"on {table}, the table with the largest loss of" in line
    assert settled(recipe.utility_change) in line


def test_a_price_whose_interval_is_below_zero_is_a_clear_loss():
    price = UtilityChange(Utility("auc"), Estimate(-0.032, -0.062, -0.001), {0: -0.05, 1: -0.014})
    assert settled(price) == "a clear loss"
    assert "a clear loss" in verdict_price(price)
    assert "not settled" not in verdict_price(price)


def cell(scores, populations=(), blinds=None, metric="leaf_mass_exact"):
    """Return a cell with these scores, by seed."""
    n = len(scores)
    lines = {"blinds": blinds or (0.0,) * n, "populations": populations or (math.nan,) * n}
    seeds = tuple(range(n))
    return LeakageResult(metric, "leaking", tuple(scores), **lines, advantages=tuple(scores),
                errors=(0.0,) * n, seeds=seeds, attacks=("joint",))  # fmt: skip


def test_a_mean_that_one_seed_makes_is_written_with_every_seed():
    text = can(cell((0, 0.7, 0, 0, 0)))
    assert "14%" in text
    assert "by seed 0%, 70%, 0%, 0%, 0%" in text
    assert "by seed" not in can(cell((0.13, 0.14, 0.15)))


def test_both_baselines_are_named_where_both_exist():
    text = can(cell((0.71, 0.71), (0.77, 0.77), (0.48, 0.48), "ra"))
    assert "(blind 48%, population 77%)" in text
    assert "population" not in can(cell((0.71, 0.71), (), (0.48, 0.48), "ra"))


def test_exact_leaves_are_weighted_by_rows_and_the_sentence_says_so():
    assert can(cell((0.14, 0.14))).startswith(
        "count every class exactly in leaves that contain 14% of the rows"
    )


def test_only_recipes_that_were_tested_everywhere_are_recommended():
    recommendation = recommend(TRIALS)
    name = recipes.name_of_recipe(recommendation)
    places = {trial.place for trials in TRIALS.values() for trial in trials}
    assert {trial.place for trial in TRIALS[name]} == places
    assert not any(trial.untested for trial in TRIALS[name])
    assert {trial.place for trial in TRIALS[UNDEFENDED]} == places


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_recipe_that_resisted_everything_would_be_recommended(name):
    """Every advantage of this recipe is removed, and all other recipes are unchanged."""
    resistant_trials = [
        replace(trial, results=tuple(replace(result, state="safe") for result in trial.results))
        for trial in TRIALS[name]
    ]
    (recipe,) = (
        result
        for result in recommend({**TRIALS, name: resistant_trials}).recipes
        if result.name == name
    )
    assert recipe.holds
    assert recipe.shown


def test_no_stored_cell_is_safe_whose_attacks_scored_below_their_baseline():
    cells = [c for tried in TRIALS.values() for t in tried for c in t.results]
    safe = [c for c in cells if c.state == "safe"]
    assert safe
    for cell in safe:
        mean = sum(cell.advantages) / len(cell.advantages)
        assert mean >= -cell.limit, (cell.metric, mean)


def test_a_recipe_with_a_failed_attack_is_not_shown_to_resist():
    name = recipes.name_of_recipe(recommend(TRIALS))
    resistant_trials = [
        replace(trial, results=tuple(replace(result, state="safe") for result in trial.results))
        for trial in TRIALS[name]
    ]
    cell = resistant_trials[0].results[0]
    n_seeds = len(cell.seeds)
    failed = replace(cell, state="safe", advantages=(-1.0,) * n_seeds)
    resistant_trials[0] = replace(
        resistant_trials[0], results=(failed, *resistant_trials[0].results[1:])
    )
    read_again = recipes.read(
        recipes.write_trials({UNDEFENDED: TRIALS[UNDEFENDED], name: resistant_trials})
    )
    (recipe,) = recommend(read_again).recipes
    assert recipe.holds
    assert not recipe.shown
    assert recipe.remaining_leak("person") == 1.0


def test_rounding_is_not_named():
    assert "rounding" not in recipes.name_of_recipe(recommend(TRIALS))


def test_the_default_suite_runs_the_computed_recipe():
    protocol, defense = split_recipe(recipes.name_of_recipe(recommend(TRIALS)))
    grids = Suite.load("quick").grids
    assert any(protocol in map(str, g.protocols) and defense in map(str, g.defenses) for g in grids)
    (first,) = {(g.data, g.clients, g.threats) for g in grids}  # comparable with the undefended run
    assert first[0]


def test_verdicts_and_advice_read_the_computed_recipe():
    assert recommended() == recipes.name_of_recipe(recommend(TRIALS))


def test_the_default_verdict_and_advice_name_the_computed_recipe():
    """Another test compares the pages with the same name."""
    findings = recipes.default_findings()
    assert findings.settings[0].recommended_recipe.name == recommended()
    with resources.as_file(resources.files("fedtrees.benchmarks") / recipes.DEFAULT_RUN) as folder:
        candidates = tried(load_rows(folder), Wish())
    assert candidates[0].name == recommended()


def trial_of(*results, second_seed=-0.2):
    """Return a trial with these results, and with a change in utility of two seeds."""
    change = UtilityChange(Utility("auc"), Estimate(-0.15, -0.2, -0.1), {0: -0.1, 1: second_seed})
    return RecipeResult("pima \N{MIDDLE DOT} server", results, change, bytes=9.0)


def by_membership(*scores):
    """Return a result of the attack `membership`."""
    return replace(cell(scores, metric="members_1pct"), attacks=("membership[models=8]",))


def test_results_of_one_attack_are_replaced_and_all_other_results_stay():
    rows, before, after = cell((0.5, 0.6)), by_membership(0.2, 0.1), by_membership(0.9, 0.8)
    trials = {"a": [trial_of(rows, before)], "b": [trial_of(rows, before)]}
    replaced = recipes.replace_results(trials, {"a": [trial_of(after)]}, "membership")
    assert replaced == {"a": [trial_of(rows, after)], "b": trials["b"]}


def test_a_replaced_result_is_safe_if_all_other_attacks_are_in_the_stored_run():
    before = by_membership(0.0, 0.01, 0.0)
    after = replace(before, state="unsettled", advantages=(0.0, 0.0, 0.0))
    for untested, state in (("", "safe"), ("joint failed", "unsettled")):
        trials = {"a": [replace(trial_of(before), untested=untested)]}
        (trial,) = recipes.replace_results(trials, {"a": [trial_of(after)]}, "membership")["a"]
        assert trial.results[0].state == state


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"a": []}, "has no later result of membership"),
        ({"a": [trial_of(by_membership(0.9, 0.8), second_seed=-0.3)]}, "is trained differently"),
        ({"a": [trial_of(by_membership(0.9, 0.8), cell((0.5, 0.6)))]}, "leaf_mass_exact by joint"),
    ],
)
def test_results_of_one_attack_are_replaced_only_if_nothing_else_differs(later, message):
    before = {"a": [trial_of(cell((0.5, 0.6)), by_membership(0.2, 0.1))]}
    with pytest.raises(DataError, match=message):
        recipes.replace_results(before, later, "membership")
