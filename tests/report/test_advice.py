"""Advice: the recipe that meets a wish, on known numbers."""

import re
from types import SimpleNamespace

import pandas as pd
import pytest
from synthetic_run import Table

from fedtrees.api.recommend import (
    Recommendation,
    Search,
    candidates,
    narrowed,
    parse_share,
    search,
)
from fedtrees.cli.main import main
from fedtrees.core.errors import UsageError
from fedtrees.experiments.options import BenchOptions
from fedtrees.experiments.suite import Suite
from fedtrees.report.advice import Advice, describe_partition
from fedtrees.report.limits import Wish, tried
from fedtrees.report.recipe import settings
from fedtrees.report.results import load_rows
from fedtrees.report.wording import ProtocolRecipe

WISH = Wish(exact_rows=0.01, membership=0.05, auc=0.75)
NAME = "q with split-only"


def advice(
    folder,
    exact=(0.0, 0.0, 0.0),
    members=(0.01, 0.02, 0.01),
    auc=0.9,
    n_rows=2000,
    left_out=(),
    blind=0.01,
    members_auc=0.52,
    local=(),
    test_rows=(),
    wish=WISH,
    **trained,
):
    """Return the advice for a run of one defense and the undefended baseline."""
    table = Table(folder)
    for seed, (rows, members_found) in enumerate(zip(exact, members, strict=True)):
        for defense, exact_rows_share, members_undefended, utility in (
            ("none", 0.4, 0.3, 0.95), ("split-only", rows, members_found, auc),
        ):  # fmt: skip
            table.train(
                defense, seed, utility + 0.001 * seed, **(trained if defense != "none" else {})
            )
            for metric, number in zip(("auc", "rarest"), test_rows, strict=False):
                # The numbers of test rows: of all classes, and of the rarest one.
                if metric == "auc":
                    table.lines[-1]["n"] = number
                else:
                    table.add("train", defense, seed, metric, number)
            table.applies(defense, seed, "timberstrike", "membership", *left_out)
            table.add("attack", defense, seed, "members_auc", members_auc, attack="membership",
                      threat="t", blind=0.5, advantage=2 * members_auc - 1)  # fmt: skip
            scored = {"exact_rows": ("timberstrike", exact_rows_share, 0.0),
                      "members_1pct": ("membership", members_undefended, blind)}  # fmt: skip
            for metric, (attack, value, blind) in scored.items():
                columns = {"blind": blind, "advantage": (value - blind) / (1 - blind), "n": n_rows}
                table.add(
                    "attack", defense, seed, metric, value, attack=attack, threat="t", **columns
                )
            table.add("attack", defense, seed, "note", 1.0, part="stopped_early", threat="t",
                      attack="timberstrike")  # fmt: skip
    for seed, local_auc in enumerate(local):
        table.add("reference", "", seed, "auc", local_auc, protocol="local-only")
    rows = table.rows()
    return Advice.of_rows(rows, wish, tried(rows, wish))


def recipe_of(result, name=NAME):
    """Return the compared recipe with a name."""
    return next(t for t in result.tried if t.name == name)


def test_a_recipe_that_meets_the_wish_is_recommended_with_its_figures_and_price(tmp_path):
    result = advice(tmp_path)
    assert result.choice.name == NAME
    assert result.nearest is None
    assert result.verdict[0].startswith(f"Take `{NAME}`, AUC 0.901")
    assert result.verdict[2].startswith(
        "Without a defense: the party 't' can reconstruct 800 of 2,000 rows"
    )
    assert not any(line.startswith("It leaves") for line in result.verdict)
    assert result.choice.candidate.utility_change.change.mean == pytest.approx(-0.05)
    page = result.page()
    heads = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert heads == ["What to do now", "Purpose", "Data", "Adversaries", "Risks without a measure",
                     "Measures", "Residual risk", "Not tested", "Terms"]  # fmt: skip
    assert f"Take `{NAME}`, AUC 0.901" in page
    risks, after_risks = page.partition("## Risks without a measure")[2].split("## Measures")
    assert "reconstruct 800 of 2,000 rows in every column" in risks
    assert "The searches of timberstrike stopped" in after_risks
    assert "reconstruct" not in after_risks.partition("## Residual risk")[2]


def test_the_residual_risk_names_its_recipe_and_its_claimed_epsilon(tmp_path):
    claim = "approximate-dp[epsilon=4,delta=1e-05]"
    recommended = advice(tmp_path / "kept", claimed=claim, spent=claim).sections["Residual risk"]
    assert recommended[0] == f"Of `{NAME}`, the recommended recipe:"
    assert recommended[-1].startswith("Guarantee: this recipe claims epsilon 4 at delta 1e-05")
    unbounded = "approximate-dp[epsilon=inf,delta=1e-05]"
    nearest = advice(tmp_path / "void", auc=0.7, claimed=claim, spent=unbounded)
    first, *_, guarantee = nearest.sections["Residual risk"]
    assert first == f"Of `{NAME}`, the nearest recipe, which is not shown to meet your limits:"
    assert guarantee.startswith("Guarantee: none.")


def test_a_leak_within_the_wish_is_stated(tmp_path):
    result = advice(tmp_path, exact=(0.004, 0.004, 0.004))
    assert result.choice.name == NAME
    assert result.verdict[3].startswith("It leaves: the party 't' can reconstruct 8 of 2,000 rows")


@pytest.mark.parametrize(
    ("options", "violates", "reason"),
    [
        # Beyond the wish on the mean; only at the end of its interval; because few rows show
        # little.
        ({"exact": (0.02, 0.03, 0.02)}, True, r"reconstruct 47 of 2,000 rows.*your limit: 1\.0%"),
        ({"exact": (0.002, 0.002, 0.02)}, False, r"up to 3\.4% by the interval; your limit: 1\.0%"),
        ({"n_rows": 20}, False, r"up to 6\.0% by the interval; your limit: 1\.0%"),
        ({"members": (0.01, 0.2, 0.01)}, True, r"recognise 147 of 2,000 .*limit: 5\.0%"),
        ({"auc": 0.7}, True, r"AUC 0\.701 on 3 seeds; your limit: at least 0\.75"),
        ({"exact": (0.0,), "members": (0.01,)}, False, "1 seed ran; 3 are needed"),
        # A failed attack recognises no member, where a blind guess recognises 6%.
        ({"members": (0.0, 0.0, 0.0), "blind": 0.06}, False, "the attack scored worse than a"),
        ({"left_out": ("joint",)}, True, "untested: the party 't': 2 of 3 applicable.*joint"),
    ],
)  # fmt: skip
def test_a_recipe_that_is_not_shown_to_meet_the_wish_is_never_recommended(
    tmp_path, options, violates, reason
):
    result = advice(tmp_path, **options)
    recipe = next(candidate for candidate in result.tried if candidate.name == NAME)
    assert result.choice is None
    assert bool(recipe.broken) is violates
    assert f"- `{NAME}`: {recipe.unmet}." in result.verdict
    assert re.search(reason, recipe.unmet), recipe.unmet
    assert (result.nearest is None) == bool(options.get("left_out"))
    tested = [t for t in result.tried if not t.candidate.untested]
    excluded = len(tested) == len([t for t in tested if t.broken])
    assert ("excluded by your limits." in result.result) is (bool(tested) and excluded)
    assert result.result in result.page()


def test_an_adversary_whose_attacks_did_not_all_run_is_not_described_as_safe(tmp_path):
    (risks,) = advice(tmp_path, left_out=("joint",)).sections["Risks without a measure"]
    assert "no leak is shown" not in risks
    assert "not tested completely: 2 of 3 applicable attacks ran" in risks


def test_an_unreachable_limit_is_named_with_its_baselines(tmp_path):
    lines = advice(tmp_path, blind=0.06).verdict
    assert any(
        "No defense can meet your limit of 5.0%" in line
        and "a guess by the same adversary, without any message, already reaches 6.0% (120 of "
        "2,000 members)"
        in line
        # The guess of 6%, and the margin of 5% of the remaining 94%, rounded up.
        and line.endswith("a defense can meet is about 11% (--max-membership).")
        for line in lines
    )


def test_a_guess_that_exceeds_a_limit_on_one_seed_by_less_than_its_error_excludes_nothing(tmp_path):
    # The standard error of a share of 5% of 2,000 members is 0.5%.
    one = {"exact": (0.0,), "members": (0.01,)}
    assert not advice(tmp_path / "near", blind=0.054, **one).limits_below_guesses
    assert [*advice(tmp_path / "far", blind=0.056, **one).limits_below_guesses] == ["members_1pct"]


def test_limits_that_no_tested_recipe_meets_are_named_with_the_best_recipe(tmp_path):
    lines = advice(tmp_path, exact=(0.02, 0.03, 0.02), auc=0.7).verdict
    assert lines[0].startswith("Both tested recipes are excluded by your limits. Nearest: ")
    assert lines[1] == (
        "No tested recipe meets your limit of 1.0% for exact rows: the smallest value is 2.3% "
        f"on 3 seeds (`{NAME}`)."
    )
    # The undefended model has an AUC of 0.951, so that a recipe meets the limit of 0.75.
    assert lines[2].startswith("Your limits: ")


def test_a_limit_below_a_guess_does_not_decide_which_recipe_is_nearest(tmp_path):
    # Both recipes exceed the limit of 5% by as much as a guess that reaches 6% does.
    result = advice(tmp_path, exact=(0.02, 0.03, 0.02), members=(0.06, 0.06, 0.06), blind=0.06)
    recipe = next(t for t in result.tried if t.name == NAME)
    assert recipe.read == pytest.approx(0.07 / 3 / 0.01)
    assert "reconstruct 47 of 2,000 rows" in recipe.unmet


def test_one_seed_near_a_limit_does_not_exclude_a_recipe(tmp_path):
    one = {"exact": (0.0,), "members": (0.01,), "test_rows": (154, 54)}
    # The standard error of an AUC of 0.75 from 54 and 100 rows is 0.043.
    near = recipe_of(advice(tmp_path / "near", auc=0.746, **one))
    assert near.broken == ""
    assert near.unmet == (
        "AUC 0.746 on 1 seed; your limit: at least 0.75. The difference is within the standard "
        "error of ±0.043, so that 3 seeds are needed"
    )
    far = recipe_of(advice(tmp_path / "far", auc=0.70, **one))
    assert far.broken == "AUC 0.700 on 1 seed; your limit: at least 0.75"
    # The standard error of a share of 5% of 2,000 members is 0.5%.
    few = {"exact": (0.0,), "blind": 0.01}
    assert not recipe_of(advice(tmp_path / "few", members=(0.054,), **few)).broken
    assert recipe_of(advice(tmp_path / "many", members=(0.056,), **few)).broken
    # Three seeds are compared by their mean.
    assert recipe_of(advice(tmp_path / "three", auc=0.745, test_rows=(154, 54))).broken


def test_a_recipe_that_leaks_by_the_auc_of_membership_does_not_meet_the_limits(tmp_path):
    result = advice(tmp_path, members_auc=0.588)
    assert result.choice is None
    assert recipe_of(result).objections[0].kind == "members_auc"
    assert "AUC of 0.588 (blind 0.500) on 3 seeds; your limit: 0.55" in recipe_of(result).broken
    accepted = Wish(exact_rows=0.01, membership=0.05, auc=0.75, membership_auc=0.6)
    assert advice(tmp_path / "accepted", members_auc=0.588, wish=accepted).choice.name == NAME


def test_a_limit_beyond_a_guess_can_be_met_where_guesses_exceed_the_limit(tmp_path):
    wish = Wish(exact_rows=0.05, membership=0.2, above_guess=True)
    result = advice(tmp_path, blind=0.06, exact=(0.04, 0.04, 0.04), members=(0.06,) * 3, wish=wish)
    assert result.choice.name == NAME
    assert not result.limits_below_guesses
    assert "reconstructed exactly, beyond those that a guess reconstructs" in str(wish)


def test_the_recipe_is_compared_with_parties_that_train_without_the_others(tmp_path):
    result = advice(tmp_path, auc=0.80, local=(0.82, 0.82, 0.82))
    sentence = (
        "A party that trains without the others reaches AUC 0.820 on average; with this recipe the "
        "federation reaches 0.801, so that joining costs accuracy (3 seeds)."
    )
    assert result.verdict[1] == sentence
    assert sentence in result.page()
    # The sentence is in the headline part of the page.
    assert sentence in result.html().partition("<section")[0]
    assert result.next_steps[0].startswith("Do not join yet")
    auc = Recommendation(tmp_path, result).to_json()["auc"]
    assert auc["sentence"] == sentence
    assert auc["joining_costs"]
    assert (auc["local"], auc["recipe"], auc["undefended"]) == pytest.approx((0.82, 0.801, 0.951))


def test_limits_that_no_recipe_met_are_not_named_while_more_seeds_can_change_this(tmp_path):
    lines = advice(tmp_path, exact=(0.0,), members=(0.01,), auc=0.746, test_rows=(154, 54)).verdict
    assert (
        "None of 2 tested recipes is shown to meet your limits: one is excluded, and one"
        in lines[0]
    )
    assert not any(line.startswith("No tested recipe") for line in lines)


def test_recipes_that_are_excluded_by_the_same_limit_are_listed_below_one_heading(tmp_path):
    lines = advice(tmp_path, exact=(0.02, 0.03, 0.02)).verdict
    heading = "Excluded by your limit for exact rows (at most 1.0%):"
    names = [line.split("`")[1] for line in lines[lines.index(heading) + 1 :]]
    assert sorted(names) == ["q", NAME]


@pytest.mark.parametrize(
    ("partition", "simulated"),
    [("iid[clients=3]", "random parts of one table"), ("label-skew[alpha=0.5,clients=3]", "skew")],
)
def test_simulated_parties_are_called_simulated(partition, simulated):
    parties, sentence = describe_partition(partition)
    assert parties == "3 simulated parties"
    assert simulated in sentence


def test_a_limit_below_a_guess_ends_the_search_with_a_command_that_can_succeed(
    monkeypatch, tmp_path
):
    result = advice(tmp_path / "rows", blind=0.06)
    rows = load_rows(tmp_path / "rows")

    class Bench:
        suite, notes, workers, runner = None, (), 1, None

        def __init__(self, suite, folder):
            self.folder = tmp_path / "rows"

        def open(self, resume):
            pass

        def remaining(self):
            return ()

        def run(self, log, first, engine):
            first()
            raise AssertionError("the search went on")

    monkeypatch.setattr(Search, "_bench", lambda self, suite, folder: Bench(suite, folder))
    monkeypatch.setattr("fedtrees.api.recommend.Processes", lambda *_, **__: None)
    monkeypatch.setattr("fedtrees.api.recommend.load_rows", lambda folder: rows)
    options = BenchOptions(data="iris[rows=60]", output=str(tmp_path / "run"))
    monkeypatch.setattr("fedtrees.api.recommend.read_suite_of_run", lambda _: candidates(options))
    (tmp_path / "run").mkdir()
    found = search(options, "1%", "5%", 0.55, 0.75, 10, "", "", lambda total: None)
    assert found.advice.result == (
        "The search stopped, because no defense can meet your limits on this table."
    )
    assert found.advice.end.command == (
        f"fedtrees recommend --data 'iris[rows=60]' --output {tmp_path / 'run'} --resume "
        "--max-exact-rows 1% --max-membership 11%"
    )
    assert f"`{found.advice.end.command}`" in (tmp_path / "run" / "advice.md").read_text()
    assert result.choice is not None


def test_if_the_time_runs_out_before_any_result_the_page_is_written_with_an_estimate(
    monkeypatch, tmp_path, capsys
):
    def run_round(self, bench, resume, until, name):
        print(name)
        needed = self._estimate_minutes(100, 90, 60.0)
        rows = pd.DataFrame({"attack": [], "stage": []})
        return rows, f"the time ran out before 90 of 100 cells were computed; {needed}"

    bench = SimpleNamespace(notes=(), workers=1)
    monkeypatch.setattr(Search, "_bench", lambda self, suite, folder: bench)
    monkeypatch.setattr(Search, "_round", run_round)
    options = BenchOptions(data="iris[rows=60]", output=str(tmp_path))
    monkeypatch.setattr("fedtrees.api.recommend.read_suite_of_run", lambda _: candidates(options))
    search(options, "guess+1%", "5%", 0.55, 0.75, 1, "", "", lambda total: None)
    assert "none of the others meets your limits" not in capsys.readouterr().out
    page = (tmp_path / "advice.md").read_text()
    assert "No recipe was tested completely, because the time ran out." in page
    assert "at the measured speed, they need about 9 more minutes." in page
    # The first round may take half of the time.
    assert f"--output {tmp_path} --resume --minutes 20`" in page


def test_a_search_that_ends_early_states_the_reason(monkeypatch):
    recipe = SimpleNamespace(
        name=NAME, candidate=SimpleNamespace(untested=()), excess=0.9, broken="", auc={}
    )
    bench = SimpleNamespace(suite=None, notes=(), workers=1)
    monkeypatch.setattr(Search, "_bench", lambda self, suite, folder: bench)
    monkeypatch.setattr(Search, "_round", lambda *_: (pd.DataFrame({"attack": []}), ""))
    monkeypatch.setattr("fedtrees.api.recommend.tried", lambda rows, wish: (recipe,))
    # Two more seeds take 2,000 seconds, and 600 seconds are left.
    monkeypatch.setattr("fedtrees.api.recommend._seconds", lambda rows, names: 1000.0)
    monkeypatch.setattr("fedtrees.api.recommend.Advice.of_rows", lambda rows, wish, *more: more)
    _, (*_, stopped) = Search(BenchOptions(data="iris[rows=60]"), WISH, 600, lambda _: None).run()
    assert stopped == (
        "The search ended after 0.0 of 10 minutes with 1 seed of 1 recipe that can still meet your "
        "limits, because no further complete round of seeds fits the remaining time."
    )


def test_the_recipes_of_the_documentation_are_among_the_candidates():
    suite = candidates(BenchOptions(data="breast-cancer"))
    assert suite.seeds == (0,)
    pairs = {
        (str(protocol), str(defense))
        for grid in suite.grids
        for protocol in grid.protocols
        for defense in grid.defenses
    }
    boosted = "fedtree-hist[trees=10,max_depth=4]"
    named = ("dp-gbdt[epsilon=4,trees=50,noise=distributed]", "dp-grid-cuts[epsilon=1]")
    assert {named, (boosted, "none"), (boosted, "split-only")} <= pairs
    with pytest.raises(UsageError, match="advice is for a table; give --csv FILE"):
        candidates(BenchOptions())
    with pytest.raises(UsageError, match="one table and one way to spread it"):
        candidates(BenchOptions(data=("breast-cancer", "wine")))


@pytest.mark.parametrize(
    ("layout", "system", "protocols", "defenses"),
    [
        ("", "flower", {"flower-bagging", "flower-cyclic"}, {"split-only", "leaf-rounding"}),
        ("", "nvflare", {"flower-bagging", "flower-cyclic", "nvflare-hist"}, {"mask-sum-hessian"}),
        ("vertical", "xgboost", {"xgboost-vertical"}, {"lp-1st"}),
        ("", "secretflow", {"secureboost"}, {"lp-1st", "reduced-leakage"}),
    ],
)  # fmt: skip
def test_a_deployed_system_restricts_the_search_to_what_it_supports(
    layout, system, protocols, defenses
):
    grids = candidates(BenchOptions(data="iris[rows=60]"), layout, system).grids
    assert {p.name for g in grids for p in g.protocols} == protocols
    assert {p.name for g in grids for d in g.defenses for p in d.parts} == defenses
    if layout == "vertical":
        assert {"passive", "active"} <= {threat for g in grids for threat in g.threats}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deployed": "xgboos"}, "unknown system 'xgboos'; did you mean 'xgboost'"),
        ({"layout": "vertica"}, "unknown layout 'vertica'; did you mean 'vertical'"),
        ({"deployed": "nvflare", "protocol": "secureboost"}, "secureboost is not of --deployed nv"),
        ({"layout": "vertical", "protocol": "dp-gbdt[epsilon=1]"}, "is not of --layout vertical"),
        (
            {"deployed": "flower", "defense": "secure-sum"},
            "flower has no secure-sum without",
        ),
    ],
)
def test_options_that_do_not_fit_a_layout_or_a_system_are_refused(options, message):
    restrictions = {key: options.pop(key) for key in ("layout", "deployed") if key in options}
    with pytest.raises(UsageError, match=message):
        candidates(BenchOptions(data="iris[rows=60]", **options), **restrictions)


def test_settings_have_the_values_of_the_recipe():
    protocol_text = "nvflare-hist[trees=7,max_depth=4,learning_rate=0.2]"
    setting = next(line for line in settings(protocol_text, "none") if "nvflare" in line)
    assert setting.startswith("In nvflare: XGBFedController(data_split_mode=0")
    assert "num_rounds=7, max_depth=4, eta=0.2, lambda=1.0" in setting
    assert [*settings(protocol_text, "secure-sum")] == []  # `secure_training=True` encrypts nothing
    assert [*settings("secureboost", "reduced-leakage")] != []
    # The first tree is already the one with reduced leakage.
    assert [*settings("secureboost", "reduced-leakage[trees=2]")] == []
    assert [*settings("dp-gbdt[epsilon=4]", "none")] == []


def test_remaining_recipes_run_on_more_seeds_together_with_the_undefended_run():
    name = ProtocolRecipe("dp-gbdt[epsilon=4,trees=50]", "dp-grid-cuts[epsilon=1]")
    narrowed_suite = narrowed(Suite.load("recipes"), [name], range(3))
    assert narrowed_suite.seeds == (0, 1, 2)
    assert [
        [*map(str, grid.protocols), *map(str, grid.defenses)] for grid in narrowed_suite.grids
    ] == [
        ["fedtree-hist[trees=10,max_depth=4]", "none"],
        ["dp-gbdt[epsilon=4,trees=50]", "dp-grid-cuts[epsilon=1]"],
    ]


def test_a_share_is_written_in_percent_or_not():
    assert (parse_share("x", "1%"), parse_share("x", "0.01"), parse_share("x", "100%")) == (
        0.01,
        0.01,
        1.0,
    )
    for text in ("0", "-1%", "101%", "nan", "much"):
        with pytest.raises(UsageError, match="give a share such as"):
            parse_share("x", text)


def test_membership_is_wished_at_one_rate_of_false_positives(capsys):
    errors = []
    for rate in ("5%@1%FPR", "5%@0.1%FPR"):
        # The error about the missing table comes after the check of the rate.
        with pytest.raises(SystemExit) as exit_info:
            main(["recommend", "--max-membership", rate])
        assert exit_info.value.code
        errors.append(capsys.readouterr().err)
    assert "advice is for a table" in errors[0]
    assert "the rate is 1%FPR" in errors[1]


@pytest.mark.slow
def test_the_command_runs_one_seed_recommends_nothing_and_resumes(tmp_path, capsys):
    arguments = (
        "advise",
        "--data",
        "breast-cancer",
        "-p",
        "fedtree-hist[trees=1,max_depth=2]",
        "-d",
        "split-only",
        "--threat",
        "public",
        "-j",
        "1",
        "--minutes",
        "0",
        "--output",
        str(tmp_path / "run"),
    )
    for more_arguments in ((), ("--resume",)):
        with pytest.raises(SystemExit) as exit_info:
            main([*arguments, *more_arguments])
        assert not exit_info.value.code
        output, errors = capsys.readouterr()
        assert "on 1 seed" in output
        assert "your limits" in output.partition("Nearest: `fedtree-hist")[0]
        assert f"--output {tmp_path / 'run'} --resume" in output
        assert ("every candidate: 0 cells to compute" in errors) == bool(more_arguments)
    page = (tmp_path / "run" / "advice.md").read_text()
    assert "## Residual risk" in page
    assert re.search(r"## Data\n\n[\d,]+ rows with \d+ columns and the target \w+", page)


@pytest.mark.long
def test_if_every_recipe_is_excluded_the_nearest_one_met_every_attack(tmp_path):
    options = BenchOptions(
        data="breast-cancer[rows=90]", protocol="fedtree-hist[trees=1,max_depth=2]",
        defense="split-only", threat="public", output=str(tmp_path / "run"), jobs=1,
    )  # fmt: skip
    # A blind guess recognises 5% of the members, and no model has such an AUC.
    wish = Wish(membership=0.2, auc=0.9999)
    _, advice = Search(options, wish, 0, lambda total: lambda *_: None).run()
    assert advice.choice is None
    assert advice.nearest.name.endswith("split-only")
    assert not advice.nearest.candidate.untested


@pytest.mark.parametrize(
    ("excess", "seeds_of_rounds"),
    # The first round is interrupted at half of the time. If a recipe is within the limits, it runs
    # on more seeds. Otherwise, the first round goes on, and no recipe runs on more seeds.
    [(0.9, [1, 1, 3, 5, 10]), (2.0, [1, 1, 1])],
)
def test_candidates_that_did_not_run_come_before_more_seeds_of_excluded_ones(
    monkeypatch, excess, seeds_of_rounds
):
    recipe = SimpleNamespace(
        name=NAME,
        candidate=SimpleNamespace(untested=()),
        excess=excess,
        read=excess,
        broken="" if excess <= 1 else "leak",
        auc={},
    )
    rounds = []

    def bench_of(self, suite, folder):
        return SimpleNamespace(suite=suite, notes=(), workers=1)

    def run_round(self, bench, *_):
        rounds.append(len(bench.suite.seeds))
        return pd.DataFrame({"attack": []}), "late" if len(rounds) == 1 else ""

    monkeypatch.setattr(Search, "_bench", bench_of)
    monkeypatch.setattr(Search, "_round", run_round)
    monkeypatch.setattr("fedtrees.api.recommend.tried", lambda rows, wish: (recipe,))
    monkeypatch.setattr("fedtrees.api.recommend._seconds", lambda rows, names: 0.0)
    monkeypatch.setattr("fedtrees.api.recommend.Advice.of_rows", lambda rows, wish, *more: more)
    Search(BenchOptions(data="iris[rows=60]"), WISH, 600, lambda total: None).run()
    assert rounds == seeds_of_rounds


def test_if_the_time_suffices_for_one_candidate_the_one_far_from_all_limits_runs_on(monkeypatch):
    def recipe(name, read, excess):
        return SimpleNamespace(
            name=name, candidate=SimpleNamespace(untested=()), read=read, excess=excess, broken="",
            auc={},
        )  # fmt: skip

    # The first recipe leaks less, but its AUC exceeds the smallest acceptable one by 1% only.
    first, second = recipe("q with a", read=0.7, excess=0.99), recipe("q with b", 0.8, 0.88)
    recipes_of_rounds = []

    def bench_of(self, suite, folder):
        return SimpleNamespace(suite=suite, notes=(), workers=1)

    def narrow(suite, names, seeds):
        recipes_of_rounds.append((len(seeds), list(names)))
        return suite

    monkeypatch.setattr(Search, "_bench", bench_of)
    monkeypatch.setattr(Search, "_round", lambda *_: (pd.DataFrame({"attack": []}), ""))
    monkeypatch.setattr("fedtrees.api.recommend.narrowed", narrow)
    monkeypatch.setattr("fedtrees.api.recommend.tried", lambda rows, wish: (first, second))
    # Two more seeds of both recipes take longer than the remaining time.
    monkeypatch.setattr("fedtrees.api.recommend._seconds", lambda rows, names: 200.0 * len(names))
    monkeypatch.setattr("fedtrees.api.recommend.Advice.of_rows", lambda rows, wish, *more: more)
    Search(BenchOptions(data="iris[rows=60]"), WISH, 1000, lambda total: None).run()
    assert recipes_of_rounds[1] == (3, ["q with b"])


def test_a_numeric_target_is_refused_before_anything_is_trained(tmp_path):
    options = BenchOptions(data="diabetes-regression", output=str(tmp_path / "run"))
    with pytest.raises(UsageError, match="target 'target' is a number"):
        Search(options, Wish(), 0.0, lambda total: None).run()
    assert not (tmp_path / "run").exists()
