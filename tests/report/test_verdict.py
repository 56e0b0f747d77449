"""Who is called down to blind: a margin, enough seeds, every attack, every score."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Table

from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import parse
from fedtrees.metrics.aggregate import mean_interval, t_upper
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.vertical.settings import VerticalProtocol
from fedtrees.report import phrases, sentences, verdict
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


def said(table, margin=verdict.MARGIN, counts=math.nan, untried=()):
    frontier = table.frontier()
    board = leaderboard(table.rows(), frontier)
    about = sentences.About(lambda *_: counts, lambda _: untried, lambda _: {}, margin)
    return sentences.verdict([(frontier, board)], about)


def side(table, **options):
    return said(table, **options).settings[0].sides[0]


def line(table, **options):
    return " ".join(side(table, **options).sentences)


def steps(table, **options):
    return " ".join(said(table, **options).settings[0].steps)


def test_a_leak_is_said_beside_who_never_looked(table):
    run(table)
    assert line(table).startswith(
        "The party 't' can guess 50% of the values right (one who never looked: 40%), by a."
    )


def test_where_no_row_is_rebuilt_that_is_said_first(table):
    run(table)
    for seed in (0, 1, 2):
        table.attack("none", seed, "a", 0.0, metric="exact_rows")
        table.lines[-1] |= {"value": 0.0, "blind": 0.0}
    assert line(table, counts=96.0).startswith(
        "The party 't' cannot rebuild clearly more rows in every column than one who never looked "
        "(0 of 96 rows against 0), but can guess 50% of the values right (against 40%), by a."
    )


def test_a_defense_stops_where_the_whole_interval_is_below_the_margin(table):
    run(table)
    assert "Guessing values is stopped by shield (50% left, AUC lower by 0.100)." in line(table)
    assert "All 2 attacks that apply ran." in line(table)
    assert steps(table) == (
        "Against the party 't' use shield: AUC 0.800 instead of 0.900. With shield, the party 't' "
        "is within 0.05 of one who never looked by every score, over 3 seeds."
    )


def test_the_margin_is_the_reader_s(table):
    run(table, (-0.03, 0.08, 0.09))
    assert "may be stopped" in line(table)
    assert "is stopped by shield" in line(table, margin=0.5)
    for wrong in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="margin"):
            verdict.check_margin(wrong)


def test_what_is_clearly_past_blind_is_not_stopped_however_wide_the_margin(table):
    run(table, (0.07, 0.08, 0.09))
    assert "Still open: nothing that was tried stops the party 't'" in steps(table, margin=0.5)


def test_what_is_past_blind_by_less_than_the_margin_is_said(table):
    run(table, (0.01, 0.02, 0.06))
    said = steps(table)
    assert "cannot rule out an advantage" in said
    assert "clearly past one who never looked, by no more than 0.05" in said


def test_a_wide_interval_is_not_shown_to_be_safe(table):
    run(table, (-0.3, 0.0, 0.3))
    assert "may be stopped (no clear difference from one who never looked) by shield" in line(table)
    assert "can read nothing clear beyond one who never looked" in steps(table)
    assert "3 seeds cannot rule out an advantage of 0.05 or more." in steps(table)


def test_two_seeds_show_nothing(table):
    run(table, (0.0, 0.0), seeds=(0, 1))
    assert "may be stopped" in line(table)
    assert "cannot rule out an advantage of 0.05 or more; to show it takes 3 seeds." in steps(table)


def test_where_no_attack_was_scored_what_was_measured_is_said(table):
    for seed in (0, 1, 2):
        for defense, auc in (("none", 0.9), ("shield", 0.85), ("wall", 0.9)):
            table.train(defense, seed, auc)
            table.trouble(defense, seed, "a", "skipped", "the target is a number")
    (said_of_t,) = (s.sentences[0] for s in said(table).settings[0].sides)
    assert said_of_t.startswith("What the party 't' could read without a defense is not known: ")
    assert said_of_t.endswith(
        "What was measured: AUC 0.900 without a defense; AUC lower by 0.050 with shield; "
        "AUC unchanged with wall."
    )


def test_one_seed_says_so_and_calls_nothing_clear(table):
    run(table, (0.0,), seeds=(0,))
    assert "Guessing values is not seen, in this one seed, with shield" in line(table)
    assert said(table).note.startswith("One seed: ")
    assert "clear difference" not in line(table)


def test_an_attack_left_out_is_named_wherever_something_rests_on_it(table):
    run(table, attacks=("a", "b", "c"), ran=("a",))
    point = table.frontier().point("shield")
    assert point.hollow
    assert table.frontier().front == ()
    missing = "1 of 3 applicable attacks ran (left out: b, c)"
    assert str(point.coverage) == missing
    assert f" {missing}." in line(table)
    assert "none was tested by every attack that applies." in steps(table)
    assert f"Untested, and so not to be recommended: shield (the party 't': {missing})" in steps(
        table
    )
    assert "use shield" not in steps(table)


def test_an_attack_left_out_on_one_seed_is_left_out(table):
    run(table)
    table.applies("shield", 1, "c")
    assert "2 of 3 applicable attacks ran (left out: c)" in line(table)
    assert "within 0.05" not in steps(table)


def test_a_failed_attack_is_not_withstood(table):
    run(table)
    table.applies("shield", 0, "c")
    table.trouble("shield", 0, "c", "timeout")
    missing = "2 of 3 applicable attacks ran (not finished: c (timeout, 1 seed))"
    assert missing in line(table)
    assert missing in steps(table)
    assert "is within 0.05" not in steps(table)


def test_an_attack_that_finds_nothing_to_read_is_not_missing(table):
    run(table)
    for seed in (0, 1, 2):
        table.add("exposure", "shield", seed, "applies", 0.0, attack="c", threat="t", reason="no")
        table.trouble("shield", seed, "c", "skipped")
    assert "by every score" in steps(table)


def test_a_run_that_does_not_say_what_applies_says_so(table):
    run(table, attacks=())
    assert "Which attacks apply is not recorded." in line(table)
    assert "use shield" not in steps(table)


@pytest.mark.parametrize("metric", ["leaf_counts_exact", "returned_right", "close_rows"])
def test_a_leak_by_any_headline_score_is_not_stopped(table, metric):
    run(table)
    for seed in (0, 1, 2):
        table.attack("shield", seed, "b", 0.4, metric=metric)
    assert "nothing that was tried stops the party 't' by every score; least is left by" in steps(
        table
    )


def test_a_claim_that_did_not_hold_stands_in_the_same_sentence(table):
    run(table, claimed="pure-dp[epsilon=4]", spent="pure-dp[epsilon=inf]")
    assert "shield (50% left, AUC lower by 0.100, no guarantee: spent without bound)" in line(table)
    assert "no guarantee: spent without bound, so that it rests on these attacks alone" in steps(
        table
    )


def test_a_defense_that_never_acted_is_told_so_and_is_never_advised(table):
    assert parse("acted-on-nothing")
    run(table, claimed="structural", spent="acted-on-nothing")
    assert "it acted on nothing)" in line(table)
    assert "use shield" not in steps(table)


def test_an_attack_that_stopped_early_is_told(table):
    run(table)
    for seed in (0, 1, 2):
        for defense in ("none", "shield"):
            table.add("attack", defense, seed, "note:stopped_early", 1.0, attack="b", threat="t")
    assert "All 2 attacks that apply ran; b stopped early, at a limit of the search:" in line(table)


def test_a_search_that_was_cut_short_is_told_with_its_limits(table):
    run(table, attacks=("a", "joint"), ran=("a", "joint"))
    for seed in (0, 1, 2):
        place = {"attack": "joint", "attack_params": "steps=9000", "threat": "t"}
        table.add("attack", "none", seed, "note:stopped_early", 1.0, **place)
        table.add("attack", "none", seed, "note:stopped_early", 1.0,
                  **place | {"attack": "draft-dp", "attack_params": ""})  # fmt: skip
    early = table.frontier().point("none").coverage.early
    assert early == ("draft-dp[work=1,limit=60]", "joint[steps=9000]")


def test_a_defense_no_better_than_training_alone_is_told_so(table):
    run(table)
    for seed in (0, 1, 2):
        table.add("reference", "", seed, "auc", 0.85, protocol="local-only")
    assert "AUC 0.800 instead of 0.900, no better than training alone, which gives 0.850." in steps(
        table
    )


def test_of_the_defenses_that_stop_it_the_cheapest_is_advised(table):
    run(table)
    for seed, value in enumerate(CALM):
        table.train("cheap", seed, 0.88)
        table.applies("cheap", seed, "a", "b")
        table.attack("cheap", seed, "a", value)
        table.attack("cheap", seed, "b", value - 0.1)
    assert "use cheap, the cheapest of 2 that stop all of it: AUC 0.880" in steps(table)


def test_what_was_not_tried_is_said_last(table):
    said_last = steps(run(table), untried=("the defense moat",))
    assert said_last.endswith("Not tried: the defense moat.")


@pytest.mark.parametrize(
    ("text", "words", "several"),
    [
        ("server", "your server", False),
        ("client[count=2]", "2 clients together", True),
        ("server+client", "your server and one of the clients", True),
        ("passive[queries=30]", "a party without labels (may ask for 30 predictions)", False),
        ("client[index=0]", "one of the clients (number 0)", False),
        ("passive[labels=1]", "a party without labels (told 1 label)", False),
        ("auditor", "the party 'auditor'", False),
    ],
)
def test_adversaries_are_named_in_words(text, words, several):
    called = {**Protocol.called, **VerticalProtocol.called}
    assert phrases.who(text, called) == (words, several)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([0.0], "AUC unchanged"),
        ([0.0004, -0.0004], "AUC unchanged"),
        ([-0.012], "AUC lower by 0.012"),
        ([0.02, 0.02], "AUC higher by 0.020"),
        ([-0.045, -0.012], "AUC lower by 0.012 to 0.045"),
        ([-0.045, 0.0], "AUC lower by up to 0.045"),
        ([-0.045, 0.02], "AUC from 0.045 lower to 0.020 higher"),
    ],
)
def test_a_change_of_a_score_is_no_score(changes, text):
    assert phrases.changed("AUC", changes) == text


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


def test_of_scores_of_one_kind_the_verdict_quotes_that_of_its_table(table):
    for seed in (0, 1, 2):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        for metric in ("v_measure", "label_accuracy"):
            table.attack("none", seed, "a", 0.5, metric=metric)
            table.lines[-1] |= {"value": 0.6, "blind": 0.2}
    assert table.frontier().metric == "v_measure"
    assert line(table).startswith(
        "The party 't' can sort rows into classes with a V-measure of 0.60 (one who never looked: "
        "0.20), by a."
    )
    assert "right class" not in line(table)
