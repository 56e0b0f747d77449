"""Recommendation: tested everywhere, nothing past the blind baseline, and the least cost."""

import math

import pytest
from synthetic_run import Table

from fedtrees.report.leakage import LeakageResult
from fedtrees.report.recipe import helps, recommend
from fedtrees.report.trials import trials_of

CALM = (-0.01, 0.0, 0.01)
TESTED = ("a", "b")


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def add_recipe(
    table,
    protocol,
    auc,
    ra=CALM,
    counts=CALM,
    defense="none",
    data=("d",),
    threats=("t", "u"),
    **options,
):
    """Add a recipe with its utility, and equal advantages by rows and by counts everywhere."""
    claimed = options.pop("claimed", "approximate-dp[epsilon=4,delta=1e-05]")
    baseline_columns = (
        {"population": 0.6, "beyond": options["beyond"]} if "beyond" in options else {}
    )
    for name in data:
        for seed, (row_advantage, count_advantage) in enumerate(zip(ra, counts, strict=True)):
            place = {"dataset": name, "protocol": protocol}
            table.train(defense, seed, auc + 0.01 * seed, claimed=claimed, **place)
            for threat in threats:
                for attack in options.get("applies", TESTED):
                    table.add("adversary", defense, seed, "applies", 1.0, attack=attack,
                              threat=threat, **place)  # fmt: skip
                for attack, metric, value in (
                    ("a", "ra", row_advantage),
                    ("b", "leaf_mass_exact", count_advantage),
                ):
                    table.add(
                        "attack",
                        defense,
                        seed,
                        metric,
                        0.5,
                        attack=attack,
                        blind=0.4,
                        advantage=value,
                        threat=threat,
                        **place,
                        **baseline_columns,
                    )
    return table


def undefended(table, **options):
    return add_recipe(table, "plain", 0.9, (0.5,) * 3, (0.6,) * 3, claimed="none", **options)


def recommendation_of(table):
    return recommend(trials_of(table.rows()))


def reasons(table):
    return {c.name: c.reason for c in recommendation_of(table).recipes}


def test_what_a_population_guess_also_reads_is_no_leak_of_persons(table):
    undefended(table)
    add_recipe(table, "useful", 0.8, ra=(0.4, 0.41, 0.42), beyond=-0.2)
    add_recipe(table, "leaky", 0.85, ra=(0.4, 0.41, 0.42), beyond=0.2)
    assert recommendation_of(table).choice.name == "useful"
    assert reasons(table)["leaky"].startswith("leaking: ra 0.500 against 0.600")


def test_a_recipe_against_which_attacks_fail_ranks_behind_one_that_resists_them(table):
    undefended(table)
    add_recipe(table, "failing", 0.85, ra=(-0.5, -0.51, -0.52))
    add_recipe(table, "resisting", 0.8)
    assert [c.name for c in recommendation_of(table).recipes] == ["resisting", "failing"]
    first, second = recommendation_of(table).recipes
    assert first.shown
    assert not second.shown
    assert len(second.failed) == 2  # against both adversaries


def test_of_equal_measured_leaks_a_failed_attack_counts_as_without_the_defense(table):
    undefended(table)  # 0.5 by ra
    counts = {"counts": (0.3, 0.31, 0.32)}
    add_recipe(table, "failing", 0.85, ra=(-0.5, -0.51, -0.52), **counts)
    add_recipe(table, "resisting", 0.8, **counts)
    add_recipe(table, "leaking", 0.85, ra=(0.2, 0.21, 0.22), **counts)
    ranked = recommendation_of(table).recipes
    assert [c.name for c in ranked] == ["resisting", "failing", "leaking"]
    assert [c.remaining_leak("guess") for c in ranked] == pytest.approx([0.0, 0.5, 0.21])
    assert [c.measured("guess") for c in ranked] == pytest.approx([0.0, 0.0, 0.21])


def test_where_attacks_fail_without_a_defense_too_the_cell_ranks_no_recipe(table):
    add_recipe(table, "plain", 0.9, (-0.5,) * 3, (0.6,) * 3, claimed="none")
    add_recipe(table, "failing", 0.85, ra=(-0.5,) * 3)
    assert recommendation_of(table).recipes[0].remaining_leak("guess") == 0.0


def test_a_failed_attack_does_not_show_that_a_defense_helps():
    def cell(state, *advantages):
        n_seeds = len(advantages)
        return LeakageResult(
            "ra",
            state,
            (0.5,) * n_seeds,
            (0.4,) * n_seeds,
            (math.nan,) * n_seeds,
            advantages,
            (0.0,) * n_seeds,
            tuple(range(n_seeds)),
        )

    before = cell("leaking", 0.5, 0.51, 0.52)
    assert helps([before], [cell("leaking", 0.1, 0.11, 0.12)])
    assert helps([before], [cell("unsettled", -0.02, 0.01, 0.08)])
    assert not helps([before], [cell("unsettled", -0.5, -0.51, -0.52)])


def test_of_two_resistant_recipes_the_one_with_more_utility_is_chosen(table):
    undefended(table)
    add_recipe(table, "dear", 0.8)
    add_recipe(table, "cheap", 0.85)
    choice = recommendation_of(table).choice
    assert choice.name == "cheap"
    assert choice.shown
    assert choice.utility_change.change.mean == pytest.approx(-0.05)
    assert choice.utility_change.change.low == pytest.approx(
        -0.05
    )  # The differences are paired, so the spread between seeds is removed.
    assert [recipe.name for recipe in recommendation_of(table).recipes] == ["cheap", "dear"]


def test_a_protocol_without_a_claim_is_no_recipe_by_itself(table):
    undefended(table)
    assert not recommendation_of(table).recipes
    add_recipe(table, "plain", 0.88, defense="shield", claimed="structural")
    assert recommendation_of(table).choice.name == "plain with shield"


@pytest.mark.long
@pytest.mark.parametrize("open_by", ["ra", "counts"])
def test_rows_and_counts_both_rule_a_recipe_out(table, open_by):
    undefended(table)
    add_recipe(table, "leaks", 0.89, **{open_by: (0.2, 0.21, 0.22)})
    add_recipe(table, "holds", 0.8)
    assert recommendation_of(table).choice.name == "holds"
    metric = {"ra": "ra", "counts": "leaf_mass_exact"}[open_by]
    assert reasons(table)["leaks"].startswith(f"leaking: {metric} 0.500 against 0.400 (d · ")
    assert reasons(table)["holds"] == ""


@pytest.mark.long
def test_a_leak_to_one_adversary_on_one_table_excludes_a_recipe(table):
    two_tables = {"data": ("d", "e")}
    undefended(table, **two_tables)
    add_recipe(table, "leaks", 0.89, data=("d",))
    add_recipe(table, "leaks", 0.89, data=("e",), threats=("t",))
    add_recipe(table, "leaks", 0.89, (0.2, 0.21, 0.22), data=("e",), threats=("u",))
    add_recipe(table, "holds", 0.8, **two_tables)
    assert recommendation_of(table).choice.name == "holds"
    assert "(e · u)" in reasons(table)["leaks"]


def test_an_attack_that_applies_and_did_not_run_rules_it_out(table):
    undefended(table)
    add_recipe(table, "hollow", 0.89, applies=(*TESTED, "c"))
    assert recommendation_of(table).choice is None
    assert "2 of 3 applicable attacks ran (left out: c)" in reasons(table)["hollow"]


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_an_attack_that_did_not_finish_on_one_seed_rules_it_out(table, status):
    undefended(table)
    add_recipe(table, "hollow", 0.89)
    table.add(
        "attack", "none", 1, attack="a", status=status, reason="r", threat="t", protocol="hollow"
    )
    assert "not finished: a" in reasons(table)["hollow"]


def test_an_adversary_that_was_not_tried_rules_it_out(table):
    undefended(table)
    add_recipe(table, "half", 0.89, threats=("t",))
    assert reasons(table)["half"] == "untested: d · u: not run"


def test_a_table_that_was_not_tried_rules_it_out(table):
    undefended(table, data=("d", "e"))
    add_recipe(table, "half", 0.89)
    assert "e · t: not run" in reasons(table)["half"]


def test_if_no_attack_applies_a_recipe_is_untested(table):
    undefended(table)
    add_recipe(table, "blank", 0.89, threats=("t",))
    for seed in range(3):
        for attack in TESTED:
            place = {"attack": attack, "threat": "u", "protocol": "blank"}
            table.add("adversary", "none", seed, "applies", 0.0, reason="sealed", **place)
            table.add("attack", "none", seed, status="skipped", reason="sealed", **place)
    assert reasons(table)["blank"] == "untested: d · u: 0 of 0 applicable attacks ran"


def test_counts_without_a_score_are_untested(table):
    undefended(table)
    for seed in range(3):
        place = {"protocol": "rows-only"}
        table.train("none", seed, 0.89, claimed="structural", **place)
        for threat in ("t", "u"):
            attack_place = {"attack": "a", "threat": threat, **place}
            table.add("adversary", "none", seed, "applies", 1.0, **attack_place)
            table.add("attack", "none", seed, "ra", 0.5, blind=0.5, advantage=0.0, **attack_place)
    assert "no leaf_mass_exact was measured" in reasons(table)["rows-only"]


def test_a_shown_recipe_precedes_an_unsettled_one(table):
    undefended(table)
    add_recipe(table, "unclear", 0.89, (-0.3, 0.0, 0.3))
    assert not recommendation_of(table).choice.shown
    add_recipe(table, "clear", 0.8)
    assert recommendation_of(table).choice.name == "clear"


def test_if_every_recipe_leaks_the_one_with_the_smallest_leak_is_named(table):
    undefended(table)
    add_recipe(table, "much", 0.89, (0.3, 0.31, 0.32))
    add_recipe(table, "little", 0.7, (0.1, 0.11, 0.12))
    assert recommendation_of(table).choice is None
    assert recommendation_of(table).least.name == "little"
