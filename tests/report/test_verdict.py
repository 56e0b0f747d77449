"""Who is called down to blind: a margin, enough seeds, every attack, every score."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Table

from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import parse
from fedtrees.metrics.aggregate import mean_interval, t_upper
from fedtrees.report import verdict
from fedtrees.report.headline import answers
from fedtrees.report.tables import leaderboard

CALM = (-0.01, 0.0, 0.01)


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def run(table, defended=CALM, attacks=("a", "b"), ran=("a", "b"), seeds=(0, 1, 2), **claims):
    """An undefended run that leaks, and a defense with these worst advantages."""
    for seed, value in zip(seeds, defended, strict=True):
        for defense, worst in (("none", 0.5), ("shield", value)):
            stated = claims if defense == "shield" else {}
            table.train(defense, seed, 0.9 - 0.1 * (defense == "shield"), **stated)
            table.applies(defense, seed, *attacks)
            for name in ran:
                table.attack(defense, seed, name, worst if name == ran[0] else worst - 0.2)
    return table


def said(table, margin=verdict.MARGIN):
    frontier = table.frontier()
    board = leaderboard(table.rows(), frontier)
    (answer,) = answers([(frontier, board)], margin=margin)
    return answer


def test_a_defense_is_named_where_the_whole_interval_is_below_the_margin(table):
    line = said(run(table)).bottom_line
    assert line == (
        "Within 0.05 of blind by every score, over 3 seeds, against all 2 applicable attacks: "
        "shield."
    )


def test_the_margin_is_the_reader_s(table):
    run(table, (0.07, 0.08, 0.09))
    assert "shown to be within 0.05 of blind by every score" in said(table).bottom_line
    assert said(table, 0.2).bottom_line.startswith("Within 0.2 of blind")
    for wrong in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="margin"):
            verdict.check_margin(wrong)


def test_a_wide_interval_is_not_shown_to_be_safe(table):
    line = said(run(table, (-0.3, 0.0, 0.3))).bottom_line
    assert line.startswith("No defense is shown to be within 0.05")
    assert "Not past blind, but not shown to be within 0.05 of it: shield (" in line
    assert "up to +0.745" in line


def test_two_seeds_show_nothing(table):
    line = said(run(table, (0.0, 0.0), seeds=(0, 1))).bottom_line
    assert line.startswith("No winner is named")
    assert "takes 3 seeds or more, and this run has 2" in line


def test_an_attack_left_out_leaves_the_winner_unnamed_and_the_point_hollow(table):
    run(table, attacks=("a", "b", "c"), ran=("a",))
    point = table.frontier().point("shield")
    assert point.hollow
    assert table.frontier().front == ()
    missing = "1 of 3 applicable attacks ran (left out: b, c)"
    assert str(point.coverage) == missing
    answer = said(table)
    assert answer.bottom_line == f"No winner is named: {missing}."
    assert answer.leak.endswith(f"{missing}.")


def test_an_attack_left_out_on_one_seed_is_left_out(table):
    run(table)
    table.applies("shield", 1, "c")
    assert str(table.frontier().point("shield").coverage) == (
        "2 of 3 applicable attacks ran (left out: c)"
    )
    assert "Not judged: " not in said(table).bottom_line  # nobody else is judged, either
    assert "shield" not in said(table).bottom_line.partition("Within")[2]


def test_a_failed_attack_leaves_the_winner_unnamed(table):
    run(table)
    table.applies("shield", 0, "c")
    table.trouble("shield", 0, "c", "timeout")
    line = said(table).bottom_line
    assert "2 of 3 applicable attacks ran (not finished: c (timeout, 1 seed))" in line
    assert "Within" not in line


def test_an_attack_that_finds_nothing_to_read_is_not_missing(table):
    run(table)
    for seed in (0, 1, 2):
        table.add("exposure", "shield", seed, "applies", 0.0, attack="c", threat="t", reason="no")
        table.trouble("shield", seed, "c", "skipped")
    assert said(table).bottom_line.endswith("against all 2 applicable attacks: shield.")


def test_a_run_that_does_not_say_what_applies_names_nobody(table):
    line = said(run(table, attacks=())).bottom_line
    assert line == "No winner is named: which attacks apply is not recorded."


@pytest.mark.parametrize("metric", ["exact_rows", "leaf_counts_exact", "returned_right"])
def test_a_leak_by_any_headline_score_counts(table, metric):
    run(table)
    for seed in (0, 1, 2):
        table.attack("shield", seed, "b", 0.4, metric=metric)
    line = said(table).bottom_line
    assert line == "No defense is shown to be within 0.05 of blind by every score."


def test_a_claim_that_did_not_hold_stands_in_the_same_sentence(table):
    spent = {"claimed": "pure-dp[epsilon=4]", "spent": "pure-dp[epsilon=inf]"}
    answer = said(run(table, **spent))
    assert answer.bottom_line.endswith("attacks: shield (claim void: spent without bound).")
    assert answer.changes[0].endswith("claim void: spent without bound.")


def test_a_defense_that_never_acted_is_told_so(table):
    assert parse("acted-on-nothing")
    answer = said(run(table, claimed="structural", spent="acted-on-nothing"))
    assert answer.bottom_line.endswith("attacks: shield (it acted on nothing).")


def test_an_attack_that_stopped_early_is_told_beside_the_value(table):
    run(table)
    for seed in (0, 1, 2):
        for defense in ("none", "shield"):
            table.add("attack", defense, seed, "note:stopped_early", 1.0, attack="b", threat="t")
    answer = said(table)
    assert "against all 2 applicable attacks (b stopped early): shield" in answer.bottom_line
    assert answer.leak.endswith("B stopped early.")


def test_a_defense_no_better_than_training_alone_is_told_so(table):
    run(table)
    for seed in (0, 1, 2):
        table.add("reference", "", seed, "auc", 0.85, protocol="local-only")
    assert "attacks, and no better than training alone: shield." in said(table).bottom_line


VALUES = st.lists(st.floats(-1, 1), min_size=3, max_size=8)


@given(VALUES, st.floats(1, 10))
def test_noise_never_makes_a_defense_look_safer(values, factor):
    """Spreading seeds around the same mean raises the end of the interval."""
    mean = float(np.mean(values))
    spread = [mean + factor * (v - mean) for v in values]
    assert t_upper(spread) >= t_upper(values) - 1e-9


@given(VALUES)
def test_the_interval_of_the_decision_is_student_s_and_wider_than_the_bootstrap(values):
    from scipy import stats

    n, mean = len(values), np.mean(values)
    scale = np.std(values, ddof=1) / np.sqrt(n)
    expected = mean + stats.t.ppf(0.975, n - 1) * scale
    assert t_upper(values) == pytest.approx(expected, abs=1e-12)
    assert t_upper(values) >= mean_interval(values).high - 1e-9


def test_fewer_than_two_values_bound_nothing():
    assert t_upper([0.0]) == t_upper([]) == float("inf")
