"""What is recommended: tested everywhere, nothing past blind, the least cost; else a reason."""

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


def tried(
    table,
    protocol,
    auc,
    ra=CALM,
    counts=CALM,
    defense="none",
    data=("d",),
    threats=("t", "u"),
    **to,
):
    """Add a recipe: its utility, and advantages by rows and by counts, the same everywhere."""
    claimed = to.pop("claimed", "approximate-dp[epsilon=4,delta=1e-05]")
    line = {"population": 0.6, "beyond": to["beyond"]} if "beyond" in to else {}
    for name in data:
        for seed, (mine, other) in enumerate(zip(ra, counts, strict=True)):
            at = {"dataset": name, "protocol": protocol}
            table.train(defense, seed, auc + 0.01 * seed, claimed=claimed, **at)
            for threat in threats:
                for attack in to.get("applies", TESTED):
                    table.add("adversary", defense, seed, "applies", 1.0, attack=attack,
                              threat=threat, **at)  # fmt: skip
                for attack, metric, value in (("a", "ra", mine), ("b", "leaf_mass_exact", other)):
                    table.add("attack", defense, seed, metric, 0.5, attack=attack, blind=0.4,
                              advantage=value, threat=threat, **at, **line)  # fmt: skip
    return table


def undefended(table, **options):
    return tried(table, "plain", 0.9, (0.5,) * 3, (0.6,) * 3, claimed="none", **options)


def found(table):
    return recommend(trials_of(table.rows()))


def reasons(table):
    return {c.name: c.reason for c in found(table).recipes}


def test_what_the_population_tells_is_no_leak_of_its_persons(table):
    undefended(table)
    tried(table, "useful", 0.8, ra=(0.4, 0.41, 0.42), beyond=-0.2)
    tried(table, "leaky", 0.85, ra=(0.4, 0.41, 0.42), beyond=0.2)
    assert found(table).choice.name == "useful"
    assert reasons(table)["leaky"].startswith("leaking: ra 0.500 against 0.600")


def test_a_recipe_against_which_attacks_fail_ranks_behind_one_that_resists_them(table):
    undefended(table)
    tried(table, "failing", 0.85, ra=(-0.5, -0.51, -0.52))
    tried(table, "resisting", 0.8)
    assert [c.name for c in found(table).recipes] == ["resisting", "failing"]
    first, second = found(table).recipes
    assert first.shown
    assert not second.shown
    assert len(second.failed) == 2  # against both adversaries


def test_of_equal_measured_leaks_a_failed_attack_counts_as_without_the_defense(table):
    undefended(table)  # 0.5 by ra
    counts = {"counts": (0.3, 0.31, 0.32)}
    tried(table, "failing", 0.85, ra=(-0.5, -0.51, -0.52), **counts)
    tried(table, "resisting", 0.8, **counts)
    tried(table, "leaking", 0.85, ra=(0.2, 0.21, 0.22), **counts)
    ranked = found(table).recipes
    assert [c.name for c in ranked] == ["resisting", "failing", "leaking"]
    assert [c.remaining_leak("guess") for c in ranked] == pytest.approx([0.0, 0.5, 0.21])
    assert [c.measured("guess") for c in ranked] == pytest.approx([0.0, 0.0, 0.21])


def test_where_attacks_fail_without_a_defense_too_the_cell_ranks_no_recipe(table):
    tried(table, "plain", 0.9, (-0.5,) * 3, (0.6,) * 3, claimed="none")
    tried(table, "failing", 0.85, ra=(-0.5,) * 3)
    assert found(table).recipes[0].remaining_leak("guess") == 0.0


def test_a_failed_attack_does_not_show_that_a_defense_helps():
    def cell(state, *advantages):
        n = len(advantages)
        return LeakageResult(
            "ra",
            state,
            (0.5,) * n,
            (0.4,) * n,
            (math.nan,) * n,
            advantages,
            (0.0,) * n,
            tuple(range(n)),
        )

    before = cell("leaking", 0.5, 0.51, 0.52)
    assert helps([before], [cell("leaking", 0.1, 0.11, 0.12)])
    assert helps([before], [cell("unsettled", -0.02, 0.01, 0.08)])
    assert not helps([before], [cell("unsettled", -0.5, -0.51, -0.52)])


def test_of_two_recipes_that_hold_the_one_of_more_utility_is_taken(table):
    undefended(table)
    tried(table, "dear", 0.8)
    tried(table, "cheap", 0.85)
    choice = found(table).choice
    assert choice.name == "cheap"
    assert choice.shown
    assert choice.utility_change.change.mean == pytest.approx(-0.05)
    assert choice.utility_change.change.low == pytest.approx(
        -0.05
    )  # paired: the seeds' own spread is gone
    assert [c.name for c in found(table).recipes] == ["cheap", "dear"]


def test_a_protocol_without_a_claim_is_no_recipe_by_itself(table):
    undefended(table)
    assert not found(table).recipes
    tried(table, "plain", 0.88, defense="shield", claimed="structural")
    assert found(table).choice.name == "plain with shield"


@pytest.mark.long
@pytest.mark.parametrize("open_by", ["ra", "counts"])
def test_rows_and_counts_both_rule_a_recipe_out(table, open_by):
    undefended(table)
    tried(table, "leaks", 0.89, **{open_by: (0.2, 0.21, 0.22)})
    tried(table, "holds", 0.8)
    assert found(table).choice.name == "holds"
    metric = {"ra": "ra", "counts": "leaf_mass_exact"}[open_by]
    assert reasons(table)["leaks"].startswith(f"leaking: {metric} 0.500 against 0.400 (d · ")
    assert reasons(table)["holds"] == ""


@pytest.mark.long
def test_what_is_read_by_one_adversary_on_one_table_rules_it_out(table):
    both = {"data": ("d", "e")}
    undefended(table, **both)
    tried(table, "leaks", 0.89, data=("d",))
    tried(table, "leaks", 0.89, data=("e",), threats=("t",))
    tried(table, "leaks", 0.89, (0.2, 0.21, 0.22), data=("e",), threats=("u",))
    tried(table, "holds", 0.8, **both)
    assert found(table).choice.name == "holds"
    assert "(e · u)" in reasons(table)["leaks"]


def test_an_attack_that_applies_and_did_not_run_rules_it_out(table):
    undefended(table)
    tried(table, "hollow", 0.89, applies=(*TESTED, "c"))
    assert found(table).choice is None
    assert "2 of 3 applicable attacks ran (left out: c)" in reasons(table)["hollow"]


@pytest.mark.parametrize("status", ["failed", "timeout"])
def test_an_attack_that_did_not_finish_on_one_seed_rules_it_out(table, status):
    undefended(table)
    tried(table, "hollow", 0.89)
    table.add(
        "attack", "none", 1, attack="a", status=status, reason="r", threat="t", protocol="hollow"
    )
    assert "not finished: a" in reasons(table)["hollow"]


def test_an_adversary_that_was_not_tried_rules_it_out(table):
    undefended(table)
    tried(table, "half", 0.89, threats=("t",))
    assert reasons(table)["half"] == "untested: d · u: not run"


def test_a_table_that_was_not_tried_rules_it_out(table):
    undefended(table, data=("d", "e"))
    tried(table, "half", 0.89)
    assert "e · t: not run" in reasons(table)["half"]


def test_where_no_attack_applies_a_recipe_is_untested(table):
    undefended(table)
    tried(table, "blank", 0.89, threats=("t",))
    for seed in range(3):
        for attack in TESTED:
            where = {"attack": attack, "threat": "u", "protocol": "blank"}
            table.add("adversary", "none", seed, "applies", 0.0, reason="sealed", **where)
            table.add("attack", "none", seed, status="skipped", reason="sealed", **where)
    assert reasons(table)["blank"] == "untested: d · u: 0 of 0 applicable attacks ran"


def test_counts_that_nobody_scored_are_untested(table):
    undefended(table)
    for seed in range(3):
        at = {"protocol": "rows-only"}
        table.train("none", seed, 0.89, claimed="structural", **at)
        for threat in ("t", "u"):
            where = {"attack": "a", "threat": threat, **at}
            table.add("adversary", "none", seed, "applies", 1.0, **where)
            table.add("attack", "none", seed, "ra", 0.5, blind=0.5, advantage=0.0, **where)
    assert "no leaf_mass_exact was measured" in reasons(table)["rows-only"]


def test_what_is_shown_goes_before_what_may_be(table):
    undefended(table)
    tried(table, "unclear", 0.89, (-0.3, 0.0, 0.3))
    assert not found(table).choice.shown
    tried(table, "clear", 0.8)
    assert found(table).choice.name == "clear"


def test_where_none_holds_the_one_that_leaves_least_is_named(table):
    undefended(table)
    tried(table, "much", 0.89, (0.3, 0.31, 0.32))
    tried(table, "little", 0.7, (0.1, 0.11, 0.12))
    assert found(table).choice is None
    assert found(table).least.name == "little"
