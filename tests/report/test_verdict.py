"""The verdict: at most 120 words, every figure in it from a row, whatever the run holds."""

import io
import math
import re
from dataclasses import replace

import pytest
from synthetic_run import SETTINGS, Table, rows, write_run

from fedtrees.core.reasons import Reason
from fedtrees.report import page
from fedtrees.report.findings import findings
from fedtrees.report.gaps import Gap
from fedtrees.report.rows import Setting, load_rows
from fedtrees.report.verdict_table import table as text_table
from fedtrees.report.verdict_text import MOST_WORDS, verdict

TWO = ("a", "b")


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def tried(table, defense, auc, advantages, metric="ra", applies=TWO, **more):
    """Add a defense on three seeds: its utility, and what attack a reads."""
    for seed, advantage in enumerate(advantages):
        table.train(defense, seed, auc + 0.001 * seed, claimed="structural", spent="structural")
        table.applies(defense, seed, *applies)
        for attack in TWO:
            mine = advantage if attack == "a" else advantage / 2
            table.attack(defense, seed, attack, mine, metric, value=0.4 + 0.6 * mine, **more)


def said(table, margin=0.05):
    found = findings(table.rows(), table.folder, margin)
    lines = verdict(found)
    assert lines.words <= MOST_WORDS
    return {line.key: line.text for line in lines.lines}


def test_a_leak_is_said_with_its_line_and_the_strongest_attack(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    text = said(table)
    assert "guess 59% of the values right (blind 40%), by a." in text["LEAK"]
    assert text["USE"] == "No defense was tried: none was asked for, or none fits."


def test_what_holds_is_used_and_what_only_helps_eases(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    assert said(table)["USE"] == "split-only"
    assert said(table)["EFFECT"] == "Cells guessed: 59% → 40%."
    assert said(table)["PRICE"] == "None: AUC identical in every seed."
    tried(table, "min-bin", 0.9, (0.2, 0.2, 0.2), applies=(*TWO, "c"))
    assert said(table)["USE"] == "split-only"


def test_a_defense_of_which_an_attack_is_missing_is_never_used(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (0.0, 0.0, 0.0), applies=(*TWO, "c"))
    text = said(table)
    assert "USE" not in text
    assert text["EASES"] == "split-only"


def test_what_stays_is_said(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (0.15, 0.16, 0.17))
    text = said(table)
    assert text["EASES"] == "split-only"
    assert text["EFFECT"].endswith("(the leak stays).")
    assert "can guess 50% of the values right" in text["REMAINS"]


def test_a_tile_shows_what_leads_whatever_it_is(table):
    """Members have no place of their own among rows, values and counts."""
    tried(table, "none", 0.9, (0.3, 0.31, 0.32), metric="members_1pct")
    (found,) = findings(table.rows(), table.folder, 0.05).settings
    (adversary,) = found.tested
    assert [c.metric for c in page._three(adversary)] == ["members_1pct"]


def test_a_price_on_few_rows_of_a_class_says_so(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed, few in enumerate((30, 9, 12)):
        table.add("train", "none", seed, "rarest", few)
    assert said(table)["NOTE"] == "Prices stand on 9 held-out rows of the rarest class."


def test_enough_rows_of_every_class_need_no_word(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.add("train", "none", seed, "rarest", 10)
    assert "NOTE" not in said(table)


def test_what_others_read_is_said_where_nothing_helps(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        told = {"threat": "u", "advantage": 0.2, "blind": 0.4, "attack": "a"}
        table.add("attack", "none", seed, "ra", 0.52, **told)
    text = said(table)
    assert "guess 59% of the values right" in text["LEAK"]
    assert "guess 52% of the values right" in text["REMAINS"]


def test_what_did_not_run_against_many_is_counted():
    made = Gap(
        "skipped",
        "attack",
        Reason("other", text="no room"),
        Setting("d", "p", "q"),
        "t",
        names=("a",),
    )
    few = replace(made, against=("none", "b"), seeds=(0, 1))
    many = replace(made, against=tuple("bcde"), seeds=(0, 1, 2, 3))
    assert "(q; t; against none, b; seeds 0, 1)" in str(few)
    assert "(q; t; against 4 defenses; 4 seeds)" in str(many)


def test_a_recipe_is_never_used_for_sure_where_the_attack_failed(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (-0.3, -0.3, -0.3))
    text = said(table)
    assert "USE" not in text
    assert text["MAYBE"] == "split-only"
    assert text["EFFECT"].endswith("(the attack did worse than a blind guess; nothing is shown).")
    remains = "Nothing shown (attacks did worse than a blind guess): the party 't'."
    assert text["REMAINS"] == remains


def test_without_a_defense_a_failed_attack_is_not_called_safe(table):
    tried(table, "none", 0.9, (-0.3, -0.3, -0.3))
    assert said(table)["LEAK"].startswith("Nothing is shown: by every measure that is not settled")


def test_what_is_not_settled_under_a_recipe_is_said(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (-0.1, 0.0, 0.2))
    assert said(table)["REMAINS"] == "Not settled: the party 't'."


def test_where_nothing_helps_the_least_is_named(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (0.3, 0.31, 0.32))
    assert said(table)["USE"].startswith("Nothing tried helps: split-only leaves 59%")


def test_a_dear_recipe_may_be_used_and_its_loss_is_said(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.6, (0.0, 0.0, 0.0))
    assert said(table)["MAYBE"] == "split-only"
    assert said(table)["PRICE"].endswith("a clear loss.")
    for line in table.lines:
        if line["defense"] == "split-only" and line["stage"] == "train":
            line["value"] = 0.9 - 0.1 * line["seed"]
    assert said(table)["MAYBE"] == "split-only"


@pytest.mark.parametrize(
    ("advantages", "begins"),
    [
        ((0.0, 0.0, 0.0), "None found"),
        ((0.02, 0.021, 0.022), "A trace"),
        ((-0.1, 0.1, 0.3), "None clear, none ruled out"),
    ],
)
def test_three_ways_of_no_leak(table, advantages, begins):
    tried(table, "none", 0.9, advantages)
    assert said(table)["LEAK"].startswith(begins)


def test_a_doubt_names_what_would_settle_it(table):
    tried(table, "none", 0.9, (-0.1, 0.1, 0.3))
    assert said(table)["LEAK"].endswith("; run 10 seeds.")
    tried(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.applies("none", seed, *TWO, "c")
    assert said(table)["LEAK"].endswith("; 1 attack more to run.")


def test_where_the_attacks_that_apply_failed_that_is_said(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.trouble("none", seed, "a", "failed", "no room")
    assert said(table)["LEAK"] == "Not known: of the attacks that apply none finished (a)."


def test_where_no_attack_applies_nothing_is_known(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.trouble("none", seed, "a", "skipped", "it sees no sums")
    assert said(table)["LEAK"].startswith("Not known: no attack that ran applies")


def test_an_undefined_auc_is_said_and_prices_are_in_log_loss(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.9, (0.0, 0.0, 0.0))
    table.lines = [x for x in table.lines if not (x["metric"] == "auc" and x["seed"] == 2)]
    for defense in ("none", "split-only"):
        for seed in range(3):
            table.add("train", defense, seed, "log_loss", 0.3)
    text = said(table)
    assert text["NOTE"].startswith("AUC is undefined in 1 of 3 seeds")
    assert text["PRICE"] == "None: log-loss identical in every seed."


def test_a_collapsed_model_is_said_first(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    tried(table, "split-only", 0.5, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.add("reference", "", seed, "auc", 0.5, protocol="majority-class")
    found = findings(table.rows(), table.folder)
    assert verdict(found).lines[0].key == "COLLAPSED"
    assert found.settings[0].use is None


def test_a_claim_that_was_not_kept_is_said(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.train("laplace-hist[epsilon=1]", seed, 0.9, claimed="pure-dp[epsilon=1]",
                    spent="pure-dp[epsilon=inf,unprotected=cuts]")  # fmt: skip
        table.attack("laplace-hist[epsilon=1]", seed, "a", 0.1)
    assert "No guarantee as spent: laplace-hist ε=1." in said(table)["NOTE"]


def test_a_claim_that_an_audit_refutes_is_said(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed, shown in enumerate((0.5, 2.5, 0)):
        stated = {"claimed": "pure-dp[epsilon=2]", "spent": "pure-dp[epsilon=2]"}
        measured = f"at-least[epsilon={shown},most=3]"
        table.train("laplace-hist[epsilon=1]", seed, 0.9, **stated, measured=measured)
        table.attack("laplace-hist[epsilon=1]", seed, "a", 0.1)
    assert "More was measured than spent: laplace-hist ε=1." in said(table)["NOTE"]


def test_a_defense_that_does_not_fit_is_named_with_the_reason(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    for seed in range(3):
        table.add("train", "id-lmid", seed, status="skipped", reason="it acts on other messages")
    text = said(table)
    assert text["USE"].startswith("None ran: id-lmid does not fit this protocol (")


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_terminal_and_names_every_defense(tmp_path, width):
    from rich.console import Console

    run = write_run(tmp_path, [*rows(SETTINGS[:1])])
    for found in findings(load_rows(run), run).settings:
        console = Console(width=width, record=True, file=io.StringIO())
        made, below = text_table(found, width)
        console.print(made)
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert len([x for x in lines if "●" in x or "◆" in x or "■" in x]) == len(found.defenses)
        assert "settled" in below


@pytest.mark.long
def test_every_figure_of_a_leak_is_in_the_rows(tmp_path):
    """The percentage is the mean over seeds of the worst attack."""
    run = write_run(tmp_path, [*rows(SETTINGS[:1])])
    frame = load_rows(run)
    found = findings(frame, run)
    lines = {x.key: x.text for x in verdict(found).lines}
    lead = found.settings[0].leak
    mine = frame[(frame["stage"] == "attack") & (frame["status"] == "ok")
                 & (frame["threat"] == lead.adversary.threat) & (frame["defense"] == "none")
                 & (frame["metric"] == lead.cell.metric) & (frame["part"] == "")]  # fmt: skip
    worst = mine.loc[mine.groupby("seed")["advantage"].idxmax(), "value"].mean()
    (first, *_) = re.findall(r"([\d.]+)%", lines["LEAK"])
    assert math.isclose(float(first), 100 * worst, abs_tol=0.51)


def test_whom_no_attack_that_ran_reads_is_not_said_to_stay_near_blind(table):
    tried(table, "none", 0.9, (0.0, 0.0, 0.0))
    for seed in range(3):
        table.add("attack", "none", seed, attack="a", status="skipped", reason="r", threat="public")
    text = said(table)["LEAK"]
    assert "stays within 0.05" in text
    assert "by all 1 measure," in text
    assert text.endswith("No attack that ran reads the view of the party 'public'.")


def test_where_nothing_trains_without_a_defense_the_first_that_does_leads(table):
    for seed in range(3):
        table.add("train", "none", seed, status="skipped", reason="r")
    tried(table, "grid-cuts", 0.9, (0.3, 0.31, 0.32))
    text = said(table)
    assert text["LEAK"].startswith(
        "With grid-cuts, the party 't' can guess 59% of the values right"
    )
    assert text["USE"].startswith("Nothing to compare with")


def test_a_run_that_has_not_ended_says_so(table):
    tried(table, "none", 0.9, (0.3, 0.31, 0.32))
    assert "--resume" not in said(table).get("UNTESTED", "")
    table.rows()
    (table.folder / "disclosure.json").unlink()
    found = findings(load_rows(table.folder), table.folder)
    assert found.settings[0].untested.unfinished
    assert "the rest of this run (--resume)" in str(verdict(found)).lower()


def test_what_is_read_far_more_of_than_what_leads_is_said_beside_it(table):
    tried(table, "none", 0.9, (0.1, 0.11, 0.12), metric="exact_rows", n=100)
    for seed in range(3):
        table.attack("none", seed, "b", 0.9, "members_1pct", value=0.9)
    assert "and recognise" in said(table)["LEAK"]
