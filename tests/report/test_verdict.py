"""The verdict fits on one screen, and every figure in it follows from the rows of the run."""

import io
import math
import re
from dataclasses import replace

import pytest
from synthetic_run import SETTINGS, Table, rows, write_run

from fedtrees.core.reasons import Reason
from fedtrees.report import page
from fedtrees.report.cost import UtilityChange, utility_changes, utility_of
from fedtrees.report.coverage import Gap
from fedtrees.report.findings import RunAnalysis, analyze_run
from fedtrees.report.recipe import recommended
from fedtrees.report.results import Setting, load_rows
from fedtrees.report.verdict import (
    SCREEN_LINES,
    Line,
    describe_utility_change,
    explain_refusal,
    verdict,
)
from fedtrees.report.verdict import table as text_table

TWO = ("a", "b")


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def add_defense(table, defense, auc, advantages, metric="ra", applies=TWO, **columns):
    """Add a defense on three seeds: its utility, and the advantages of the attacks."""
    for seed, advantage in enumerate(advantages):
        table.train(defense, seed, auc + 0.001 * seed, claimed="structural", spent="structural")
        table.applies(defense, seed, *applies)
        for attack in TWO:
            advantage_of_attack = advantage if attack == "a" else advantage / 2
            table.attack(
                defense,
                seed,
                attack,
                advantage_of_attack,
                metric,
                value=0.4 + 0.6 * advantage_of_attack,
                **columns,
            )


def verdict_texts(table, margin=0.05):
    """Return the texts and the commands of the verdict by label."""
    result = verdict(RunAnalysis(table.folder, table.rows(), margin=margin))
    assert result.height <= SCREEN_LINES
    commands = {f"{line.label} COMMAND": line.command for line in result.lines if line.command}
    return {line.label: line.text for line in result.lines} | commands


def test_a_leak_is_described_with_its_baseline_and_the_strongest_attack(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    text = verdict_texts(table)
    assert text["LEAK FOUND"] == (
        "The party 't' can guess 59% of the values right; guessing without any message guesses "
        "40%. Strongest attack: a."
    )
    assert text["BEST DEFENSE"] == (
        "No defense was tested, because none was requested or none fits."
    )


def test_a_defense_that_resists_every_attack_is_preferred_to_one_that_only_helps(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    text = verdict_texts(table)
    assert text["BEST DEFENSE COMMAND"] == "split-only"
    assert text["BEST DEFENSE"] == ("Every attack is shown to stay within 0.05 of its baseline:")
    assert text["EFFECT"] == (
        "The party 't' can then guess 40% instead of 59% of the values right (best guess: 40%)."
    )
    assert text["PRICE"] == "None: AUC is identical in every seed."
    add_defense(table, "min-bin", 0.9, (0.2, 0.2, 0.2), applies=(*TWO, "c"))
    assert verdict_texts(table)["BEST DEFENSE COMMAND"] == "split-only"


def test_a_defense_that_lacks_the_result_of_an_attack_is_not_said_to_resist(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.0, 0.0, 0.0), applies=(*TWO, "c"))
    text = verdict_texts(table)
    assert text["BEST DEFENSE"] == (
        "The best one that ran. Not every attack ran, so that more may leak:"
    )
    assert text["BEST DEFENSE COMMAND"] == "split-only"


def test_a_leak_that_remains_is_described(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.15, 0.16, 0.17))
    text = verdict_texts(table)
    assert text["BEST DEFENSE"] == ("No tested defense removes this leak. This one reduces it:")
    assert text["BEST DEFENSE COMMAND"] == "split-only"
    assert text["EFFECT"].endswith(" The leak remains.")
    assert "can still guess 50% of the values right" in text["STILL LEAKS"]


def test_a_reduction_by_a_defense_that_is_not_eligible_is_not_denied(table):
    for metric in ("ra", "members_1pct"):
        add_defense(table, "none", 0.9, (0.3, 0.31, 0.32), metric=metric)
    add_defense(table, "split-only", 0.9, (0.1, 0.11, 0.12))
    add_defense(table, "split-only", 0.9, (0.3, 0.31, 0.32), metric="members_1pct")
    text = verdict_texts(table)
    assert text["BEST DEFENSE COMMAND"] == "split-only"
    assert text["BEST DEFENSE"].startswith("No tested defense reduces this leak.")
    assert " can still " in text["EFFECT"]
    assert " instead of " not in text["EFFECT"]
    add_defense(table, "laplace-hist[epsilon=1]", 0.5, (0.1, 0.11, 0.12), metric="members_1pct")
    text = verdict_texts(table)
    assert text["BEST DEFENSE COMMAND"] == "split-only"
    assert text["BEST DEFENSE"].startswith("No tested defense is shown to reduce this leak, to")


def test_a_leak_whose_removal_is_not_settled_is_not_described_as_removed(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32), metric="members_1pct")
    add_defense(table, "split-only", 0.9, (0.2, 0.2, 0.2))
    add_defense(table, "split-only", 0.9, (-0.02, 0.02, 0.15), metric="members_1pct")
    text = verdict_texts(table)
    assert text["BEST DEFENSE"].startswith("Whether it removes this leak is not settled")
    assert text["EFFECT"].endswith("This result is not settled.")
    (setting,) = RunAnalysis(table.folder, table.rows(), margin=0.05).settings
    assert page.headline(setting).endswith("and leaks remain.")


def test_a_tile_shows_the_leading_result_of_any_metric(table):
    """Membership is not one of the metrics that have a fixed place."""
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32), metric="members_1pct")
    (setting,) = RunAnalysis(table.folder, table.rows(), margin=0.05).settings
    (adversary,) = setting.tested
    assert [result.metric for result in page.leading_results(adversary)] == ["members_1pct"]


def test_an_uncertain_price_on_a_rare_class_is_noted(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed, n_rows in enumerate((30, 9, 12)):
        table.add("train", "none", seed, "rarest", n_rows)
    assert verdict_texts(table)["NOTE"] == "Prices are uncertain: the rarest class has 9 test rows."


def test_enough_rows_of_every_class_need_no_word(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.add("train", "none", seed, "rarest", 10)
    assert "NOTE" not in verdict_texts(table)


def test_leaks_to_other_adversaries_are_stated_if_no_defense_helps(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        columns = {"threat": "u", "advantage": 0.2, "blind": 0.4, "attack": "a"}
        table.add("attack", "none", seed, "ra", 0.52, **columns)
    text = verdict_texts(table)
    assert "guess 59% of the values right" in text["LEAK FOUND"]
    assert "guess 52% of the values right" in text["OTHER LEAKS"]


def test_settings_that_did_not_run_are_counted_if_they_are_many():
    gap = Gap(
        "skipped",
        "attack",
        Reason("other", text="no room"),
        Setting("d", "p", "q"),
        "t",
        names=("a",),
    )
    small_gap = replace(gap, against=("none", "b"), seeds=(0, 1))
    large_gap = replace(gap, against=tuple("bcde"), seeds=(0, 1, 2, 3))
    assert "(q; t; against none, b; seeds 0, 1)" in str(small_gap)
    assert "(q; t; against 4 defenses; 4 seeds)" in str(large_gap)


def test_a_recipe_is_never_used_for_sure_where_the_attack_failed(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (-0.3, -0.3, -0.3))
    text = verdict_texts(table)
    assert text["BEST DEFENSE"] == ("No attack clearly succeeds, but not every leak is excluded:")
    assert text["BEST DEFENSE COMMAND"] == "split-only"
    assert text["EFFECT"].endswith(
        "The attack scored worse than a blind guess, which shows nothing."
    )
    assert text["NOT EXCLUDED"] == (
        "For the party 't', the attacks scored worse than a blind guess, which shows nothing."
    )


def test_without_a_defense_a_failed_attack_is_not_called_safe(table):
    add_defense(table, "none", 0.9, (-0.3, -0.3, -0.3))
    assert verdict_texts(table)["NOT KNOWN"].startswith(
        "By every measure that is not settled, the attacks"
    )


def test_unsettled_results_under_a_recipe_are_stated(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (-0.1, 0.0, 0.2))
    assert verdict_texts(table)["NOT EXCLUDED"] == (
        "For the party 't', the results neither show nor exclude a leak."
    )


def test_where_nothing_helps_the_least_is_named(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.3, 0.31, 0.32))
    assert verdict_texts(table)["BEST DEFENSE"].startswith(
        "No tested defense helps. split-only leaves 59%"
    )


def test_an_expensive_recipe_may_be_recommended_and_its_loss_is_stated(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.6, (0.0, 0.0, 0.0))
    assert verdict_texts(table)["BEST DEFENSE COMMAND"] == "split-only"
    assert verdict_texts(table)["PRICE"].endswith("This is a clear loss.")
    for line in table.lines:
        if line["defense"] == "split-only" and line["stage"] == "train":
            line["value"] = 0.9 - 0.1 * line["seed"]
    assert verdict_texts(table)["BEST DEFENSE COMMAND"] == "split-only"


@pytest.mark.parametrize(
    ("advantages", "label", "sentence"),
    [
        ((0.0, 0.0, 0.0), "NO LEAK FOUND", "By all 1 measure, the party 't' stays within 0.05"),
        ((0.02, 0.021, 0.022), "TRACE FOUND", "below the margin of 0.05"),
        ((-0.1, 0.1, 0.3), "NOT SETTLED", "No clear leak, but none is excluded"),
    ],
)
def test_the_three_cases_without_a_clear_leak_have_different_sentences(
    table, advantages, label, sentence
):
    add_defense(table, "none", 0.9, advantages)
    assert sentence in verdict_texts(table)[label]


def test_an_unsettled_result_names_the_options_that_would_settle_it(table):
    add_defense(table, "none", 0.9, (-0.1, 0.1, 0.3))
    assert verdict_texts(table)["NOT SETTLED"].endswith(" Use --seeds 10.")
    add_defense(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.applies("none", seed, *TWO, "c")
    assert verdict_texts(table)["NOT SETTLED"].endswith(" Run 1 more attack.")


def test_if_the_applicable_attacks_failed_the_verdict_says_so(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.trouble("none", seed, "a", "failed", "no room")
    assert verdict_texts(table)["NOT KNOWN"] == "None of the attacks that apply finished (a)."


def test_if_the_training_failed_the_verdict_states_the_error(table):
    table.add("train", "none", 0, status="failed", reason="ValueError: no room (mine.py, line 3)")
    assert verdict_texts(table)["NOT KNOWN"] == (
        "No attack was run, because the training failed: ValueError: no room (mine.py, line 3)."
    )


def test_where_no_attack_applies_nothing_is_known(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.trouble("none", seed, "a", "skipped", "it sees no sums")
    assert verdict_texts(table)["NOT KNOWN"].startswith("No attack that ran applies")


def test_an_undefined_auc_is_stated_and_prices_are_in_log_loss(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    table.lines = [
        line for line in table.lines if not (line["metric"] == "auc" and line["seed"] == 2)
    ]
    for defense in ("none", "split-only"):
        for seed in range(3):
            table.add("train", defense, seed, "log_loss", 0.3)
    text = verdict_texts(table)
    assert text["NOTE"].startswith("AUC is undefined in 1 of 3 seeds")
    assert text["PRICE"] == "None: log-loss is identical in every seed."


def test_a_collapsed_model_is_stated_first(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.5, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.add("reference", "", seed, "auc", 0.5, protocol="majority-class")
    analysis = RunAnalysis(table.folder, table.rows())
    assert verdict(analysis).lines[0].label == "NO UTILITY"
    assert analysis.settings[0].recommended_recipe is None


def test_a_claim_that_is_not_kept_is_stated(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.train("laplace-hist[epsilon=1]", seed, 0.9, claimed="pure-dp[epsilon=1]",
                    spent="pure-dp[epsilon=inf,unprotected=cuts]")  # fmt: skip
        table.attack("laplace-hist[epsilon=1]", seed, "a", 0.1)
    assert verdict_texts(table)["NO GUARANTEE"] == (
        "No epsilon is kept by laplace-hist: other messages lack noise."
    )


@pytest.mark.parametrize(
    ("epsilons", "is_refuted"), [((2.6, 2.5, 0), True), ((0.5, 2.5, 0), False)]
)
def test_a_claim_that_audits_of_two_of_three_seeds_refute_is_stated(table, epsilons, is_refuted):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed, epsilon in enumerate(epsilons):
        columns = {"claimed": "pure-dp[epsilon=2]", "spent": "pure-dp[epsilon=2]"}
        measured = f"at-least[epsilon={epsilon},most=3]"
        table.train("laplace-hist[epsilon=1]", seed, 0.9, **columns, measured=measured)
        table.attack("laplace-hist[epsilon=1]", seed, "a", 0.1)
    sentence = "An audit measured a larger epsilon than was spent by laplace-hist ε=1."
    assert verdict_texts(table).get("REFUTED", "") == sentence * is_refuted


def test_a_defense_that_does_not_fit_is_named_with_the_reason(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.add("train", "id-lmid", seed, status="skipped", reason="it acts on other messages")
    text = verdict_texts(table)
    assert text["BEST DEFENSE"].startswith("None ran: id-lmid does not fit this protocol (")


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_terminal_and_names_every_defense(tmp_path, width):
    from rich.console import Console

    run = write_run(tmp_path, [*rows(SETTINGS[:1])])
    for setting in analyze_run(run).settings:
        console = Console(width=width, record=True, file=io.StringIO())
        printed_table, legend = text_table(setting, width)
        console.print(printed_table)
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert len([x for x in lines if "●" in x or "◆" in x or "■" in x]) == len(setting.defenses)
        assert "settled" in legend


@pytest.mark.long
def test_every_figure_of_a_leak_is_in_the_rows(tmp_path):
    """The percentage is the mean over seeds of the worst attack."""
    run = write_run(tmp_path, [*rows(SETTINGS[:1])])
    frame = load_rows(run)
    analysis = RunAnalysis(run, frame)
    lines = {line.label: line.text for line in verdict(analysis).lines}
    leading_leak = analysis.settings[0].leak
    rows_of_leak = frame[
        (frame["stage"] == "attack")
        & (frame["status"] == "ok")
        & (frame["threat"] == leading_leak.adversary.threat)
        & (frame["defense"] == "none")
        & (frame["metric"] == leading_leak.result.metric)
        & (frame["part"] == "")
    ]
    worst = rows_of_leak.loc[rows_of_leak.groupby("seed")["advantage"].idxmax(), "value"].mean()
    (first, *_) = re.findall(r"([\d.]+)%", lines["LEAK FOUND"])
    assert math.isclose(float(first), 100 * worst, abs_tol=0.51)


def test_a_party_without_an_attack_that_ran_is_not_said_to_stay_near_blind(table):
    add_defense(table, "none", 0.9, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.add("attack", "none", seed, attack="a", status="skipped", reason="r", threat="public")
    text = verdict_texts(table)["NO LEAK FOUND"]
    assert "By all 1 measure, the party 't' stays within 0.05" in text
    assert text.endswith("No attack that ran applies to the view of the party 'public'.")


def test_where_nothing_trains_without_a_defense_the_first_that_does_leads(table):
    for seed in range(3):
        table.add("train", "none", seed, status="skipped", reason="r")
    add_defense(table, "grid-cuts", 0.9, (0.3, 0.31, 0.32))
    text = verdict_texts(table)
    assert text["LEAK FOUND"].startswith(
        "With grid-cuts, the party 't' can guess 59% of the values right"
    )
    assert text["BEST DEFENSE"].startswith("Nothing to compare with")


def test_an_unfinished_run_is_stated(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    assert "--resume" not in verdict_texts(table).get("NOT TESTED", "")
    table.rows()
    (table.folder / "disclosure.json").unlink()
    analysis = analyze_run(table.folder)
    assert analysis.settings[0].untested.unfinished
    assert "The run is not finished: continue it with --resume." in str(verdict(analysis))


def test_a_much_larger_leak_than_the_leading_one_is_stated_with_it(table):
    add_defense(table, "none", 0.9, (0.1, 0.11, 0.12), metric="exact_rows", n=100)
    for seed in range(3):
        table.attack("none", seed, "b", 0.9, "members_1pct", value=0.9)
    assert "can also recognise" in verdict_texts(table)["LEAK FOUND"]


def test_a_protocol_whose_grid_omits_the_undefended_run_is_a_recipe(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        columns = {"protocol": "private", "protocol_params": ""}
        table.train("grid-cuts", seed, 0.9 + 0.001 * seed, **columns)
        table.applies("grid-cuts", seed, *TWO, **columns)
        for attack in TWO:
            table.attack("grid-cuts", seed, attack, 0.0, value=0.4, **columns)
    text = verdict_texts(table)
    assert text["BEST DEFENSE COMMAND"] == '-p "private" -d "grid-cuts"'
    assert "ALSO" not in text


def test_a_failed_training_is_not_listed_as_a_failed_attack(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    table.add("train", "min-bin", 0, status="failed", reason="no room")
    table.trouble("none", 0, "c", "failed")
    text = verdict_texts(table)["NOT TESTED"]
    assert "The attack c failed." in text
    assert "The training failed with min-bin." in text
    analysis = RunAnalysis(table.folder, table.rows(), margin=0.05)
    assert analysis.settings[0].untested.failed_trainings == (("min-bin", "no room"),)
    assert "<b>Training failed: min-bin.</b> no room.</li>" in page.render_report(analysis)


def test_a_price_without_a_common_seed_does_not_state_that_no_model_was_trained(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.train("split-only", seed + 3, 0.8)
    trains = table.rows()
    change = utility_changes(trains, utility_of(trains), math.nan)["split-only"]
    assert describe_utility_change(change) == (
        "Not known: no seed has a model with this defense and the model to compare it with."
    )
    assert (
        describe_utility_change(UtilityChange(change.utility)) == "Not known: no model was trained."
    )


MEASURES = ("exact_rows", "close_rows", "ra", "leaf_mass_exact", "members_1pct")


@pytest.mark.parametrize(
    ("advantage", "sentence"),
    [
        (0.3, "Without a defense, the party 'client' can "),
        (0.0, "no advantage above the margin is shown for the party 'client'."),
        (math.nan, "the results for the party 'client' neither show nor exclude a leak."),
    ],
)
def test_a_client_without_a_column_in_the_table_has_a_line(table, advantage, sentence):
    for seed in range(3):
        table.train("none", seed, 0.9)
        for metric in MEASURES:
            server_advantage = 0.5 + 0.001 * seed
            table.attack(
                "none", seed, "a", server_advantage, metric, 0.4 + 0.6 * server_advantage, n=100
            )
            table.lines[-1]["threat"] = "server"
        # Another advantage on each seed is not settled.
        client_advantage = advantage if math.isfinite(advantage) else (-0.4, 0.0, 0.4)[seed]
        table.attack("none", seed, "a", client_advantage, "ra", 0.4 + 0.6 * client_advantage, n=100)
        table.lines[-1]["threat"] = "client"
    findings = RunAnalysis(table.folder, table.rows()).settings[0]
    narrow, wide = (text_table(findings, width)[1] for width in (80, 300))
    # A client whose results are settled needs no column, and therefore no line.
    assert (sentence in narrow) == (advantage != 0.0)
    assert "the party 'client'" not in wide


def test_the_quality_of_the_undefended_model_is_next_to_a_guess_and_a_perfect_model(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    assert verdict_texts(table)["MODEL"] == "AUC 0.901 without a defense (perfect: 1)."
    for seed in range(3):
        table.add("reference", "", seed, metric="auc", value=0.5, protocol="majority-class")
    assert (
        verdict_texts(table)["MODEL"] == "AUC 0.901 without a defense (a guess: 0.5, perfect: 1)."
    )


def test_the_next_step_names_the_table_of_the_run(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    analysis = RunAnalysis(table.folder, table.rows())
    assert verdict(analysis).lines[-1].command == "fedtrees recommend --data d"
    spec = '{ name = "d", csv = "my patients.csv", target = "ill", client_column = "site" }'
    (table.folder / "suite.toml").write_text(f"[[grid]]\ndata = [{spec}]\n")
    assert verdict(analysis).lines[-1].text == "Find a defense for your limits:"
    assert verdict(analysis).lines[-1].command == (
        "fedtrees recommend --csv 'my patients.csv' --target ill --client-column site"
    )


def test_the_next_step_of_a_search_is_its_page_and_not_another_search(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    rows = table.rows()
    page = table.folder / "advice.html"
    page.write_text("")
    line = verdict(RunAnalysis(table.folder, rows)).lines[-1]
    assert (line.text, line.command) == ("Read the recommendation for your limits:", str(page))


@pytest.mark.parametrize(("seeds", "command"), [
    (3, "fedtrees bench --data d --seeds 10"), (10, "fedtrees list defenses"),
])  # fmt: skip
def test_the_next_step_of_a_numeric_target_is_not_a_search_by_auc(table, seeds, command):
    for seed in range(seeds):
        table.add("train", "none", seed, metric="r2", value=0.4)
        table.applies("none", seed, "a")
        table.attack("none", seed, "a", 0.3, value=0.58)
    assert verdict(RunAnalysis(table.folder, table.rows())).lines[-1].command == command


def test_remaining_leaks_begin_with_those_that_no_other_entry_contains(table):
    for defense, advantage in (("none", 0.3), ("x", 0.2)):
        advantages = (advantage, advantage + 0.01, advantage - 0.01)
        add_defense(table, defense, 0.9, advantages, "exact_rows")
        for seed in range(3):
            table.attack(defense, seed, "c", 0.9, "members_1pct", value=0.95)
    texts = verdict_texts(table)
    assert "reconstruct" in texts["EFFECT"]
    assert "recognise" in texts["STILL LEAKS"]
    assert "reconstruct" not in texts["STILL LEAKS"]


def test_a_run_of_another_protocol_names_the_recommended_recipe_that_it_omits(table):
    protocol = {"protocol": "fedtree-hist", "protocol_params": ""}
    for seed in range(3):
        table.train("none", seed, 0.9, **protocol)
        table.applies("none", seed, "a", **protocol)
        table.attack("none", seed, "a", 0.3, value=0.58, **protocol)
    sentence = "The recommended recipe (dp-gbdt with dp-grid-cuts) did not run."
    assert sentence in verdict_texts(table)["NOT TESTED"]
    name = recommended()
    parameters = name.protocol.partition("[")[2].rstrip("]")
    for seed in range(3):
        recipe = {"protocol": "dp-gbdt", "protocol_params": parameters}
        table.train(name.defense, seed, 0.9, **recipe)
        table.applies(name.defense, seed, "a", **recipe)
        table.attack(name.defense, seed, "a", 0.0, value=0.4, **recipe)
    assert sentence not in verdict_texts(table)["NOT TESTED"]


def test_a_vertical_run_does_not_name_a_recipe_for_horizontal_federations(table):
    for seed in range(3):
        table.train("none", seed, 0.9, protocol="secureboost", protocol_params="")
        table.attack("none", seed, "a", 0.3, value=0.58, protocol="secureboost", protocol_params="")
    assert "recommended" not in verdict_texts(table)["NOT TESTED"]


def test_a_recipe_of_another_protocol_that_does_not_help_counts_as_tried(table):
    for seed in range(3):
        for protocol, defense in (("fedtree-hist", "none"), ("dp-gbdt", "dp-grid-cuts")):
            columns = {"protocol": protocol, "protocol_params": ""}
            table.train(defense, seed, 0.9, **columns)
            table.applies(defense, seed, "a", **columns)
            table.attack(defense, seed, "a", 0.3 + 0.01 * seed, value=0.58, **columns)
    settings = RunAnalysis(table.folder, table.rows()).settings
    (findings,) = [f for f in settings if f.setting.protocol == "fedtree-hist"]
    text = explain_refusal(findings)
    assert text.startswith("No tested defense helps. dp-gbdt with dp-grid-cuts leaves 58% instead")
    assert page.headline(findings).endswith("; nothing that was tried helps.")


def test_the_epsilon_is_stated_for_one_replaced_row_if_the_number_of_rows_is_public(table):
    add_defense(table, "none", 0.9, (0.3, 0.31, 0.32))
    add_defense(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    claim = "approximate-dp[epsilon=1.98,delta=1e-05,replaced=4.14{},trusted=clients,colluders=1]"
    for line in table.lines:
        if line["defense"] == "split-only":
            line["claimed"] = claim.format(",unprotected=rows")
    text = verdict_texts(table)["EPSILON"]
    adversaries = "against outsiders and 1 client."
    assert text == (
        f"This defense claims epsilon 4.14 at delta 1e-05 for one row replaced, {adversaries}"
    )
    for line in table.lines:
        if line["defense"] == "split-only":
            line["claimed"] = claim.format("")
    assert verdict_texts(table)["EPSILON"] == (
        f"This defense claims epsilon 1.98 at delta 1e-05 for one row added or removed, "
        f"{adversaries}"
    )


def test_a_command_is_indented_as_far_as_it_fits_on_one_line():
    for length, indent in ((40, 4), (76, 4), (78, 2), (80, 0)):
        line = Line("NEXT STEP", "Type:", "x" * length)
        assert line.wrapped(80).splitlines()[1] == " " * indent + "x" * length
        assert line.height == 2


def test_the_report_compares_training_alone_and_states_the_guarantee_of_another_protocol(table):
    for seed in range(3):
        for protocol, defense, auc in (("fedtree-hist", "none", 0.9), ("dp-gbdt", "x", 0.8)):
            columns = {"protocol": protocol, "protocol_params": ""}
            claim = {"claimed": "pure-dp[epsilon=1,unprotected=rows]"} if defense == "x" else {}
            table.train(defense, seed, auc, **columns, **claim)
            table.applies(defense, seed, "a", **columns)
            table.attack(defense, seed, "a", 0.3 if defense == "none" else 0.0, **columns)
        table.add("reference", "none", seed, "auc", 0.85, protocol="local-only",
                  protocol_params="fedtree-hist")  # fmt: skip
    analysis = RunAnalysis(table.folder, table.rows())
    (findings,) = [f for f in analysis.settings if f.setting.protocol == "fedtree-hist"]
    use = findings.recommended_recipe
    assert use.name == "dp-gbdt with x"
    assert page.joining(findings, use).endswith("so that joining costs accuracy (3 seeds).")
    results = page.results_of_recipe(analysis.settings, findings, use)
    assert page.guarantee(results) == (
        "claimed epsilon 2 for one row replaced, against every other party"
    )
    better = "0.850 if a party trains alone, which is better (perfect: 1)."
    assert verdict_texts(table)["MODEL"].endswith(better)
    assert page.more_seeds(findings) == ("More seeds settle more results.", 10)
