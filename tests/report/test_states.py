"""States of cells: leaking, safe, unsettled, unknown and undefined; no cell is blank."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import Table

from fedtrees.cli.results import fold_no_claims
from fedtrees.core.reasons import NOT_CERTAIN, Reason
from fedtrees.report import page, verdict, wording
from fedtrees.report.coverage import Coverage, Gaps
from fedtrees.report.findings import RunAnalysis
from fedtrees.report.leakage import LeakageResult, is_leaking, is_safe, margin_of, state_of, upper

WHOLE = Coverage(applicable=("a",))


def state(advantages, metric="ra", rows=math.nan, coverage=WHOLE, scores=None, margin=0.05):
    """Return the state of a cell with these advantages and blind scores of 0."""
    n_seeds = len(advantages)
    cell = LeakageResult(
        metric,
        scores=tuple(scores or advantages),
        blinds=(0.0,) * n_seeds,
        populations=(math.nan,) * n_seeds,
        advantages=tuple(advantages),
        errors=(0.0,) * n_seeds,
        seeds=tuple(range(n_seeds)),
        attacks=("a",),
        rows=rows,
        margin=margin,
    )
    return state_of(cell, coverage.complete)


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        ((0.3, 0.31, 0.32), "leaking"),
        # It is above zero on every seed, although the interval is wide.
        ((0.01, 0.3, 0.5), "leaking"),
        ((-0.01, 0.3, 0.5), "unsettled"),
        ((0.0, 0.001, 0.002), "safe"),
        ((0.0, 0.0), "unsettled"),  # two seeds show nothing
        ((0.02, 0.021, 0.022), "safe"),
        ((-0.01, -0.02, -0.03), "safe"),
        ((-0.3, -0.31, -0.32), "unsettled"),  # the attack failed, which shows nothing
    ],
)
def test_a_share_leaks_above_the_margin_and_is_safe_if_its_whole_interval_is_below(
    advantages, expected
):
    assert state(advantages) == expected


def test_the_auc_of_membership_shows_a_leak_that_its_true_positive_rate_leaves_unsettled():
    """The numbers are those of 14 runs on Pima: AUC 0.657 ± 0.024, 4.3 ± 2.4% against 1.3%."""
    spread = [(run_number - 6.5) / 4.03 for run_number in range(14)]  # mean 0, standard deviation 1
    aucs = tuple(2 * (0.657 + 0.024 * deviation) - 1 for deviation in spread)
    rates = tuple(0.043 + 0.024 * deviation - 0.013 for deviation in spread)
    assert state(aucs, "members_auc") == "leaking"
    assert state(rates, "members_1pct", rows=300) != "leaking"


@pytest.mark.parametrize(
    ("auc", "expected"), [(0.545, "safe"), (0.56, "leaking"), (0.44, "unsettled")]
)
def test_the_margin_of_an_auc_is_a_difference_of_two_aucs(auc, expected):
    assert state((2 * auc - 1,) * 3, "members_auc") == expected
    assert margin_of("members_auc") == 0.1
    assert margin_of("members_auc", 0.02) == 0.04
    assert margin_of("members_1pct") == 0.05


def test_of_counted_persons_one_beyond_blind_is_open():
    assert state((0.0101, 0.0102, 0.0103), "exact_rows", rows=100) == "leaking"
    assert state((0.0005, 0.0006, 0.0007), "exact_rows", rows=100) == "safe"
    assert state((0.0101, 0.0102, 0.0103), "exact_rows") != "leaking"  # not counted: the margin


@pytest.mark.parametrize(
    ("n_found", "n_baseline", "expected"), [(22, 21, False), (40, 21, True), (1, 0, True)]
)
def test_a_count_of_one_federation_leaks_if_it_is_two_deviations_above_the_baseline(
    n_found, n_baseline, expected
):
    cell = LeakageResult(
        "exact_rows",
        scores=(n_found / 193,),
        blinds=(n_baseline / 193,),
        populations=(math.nan,),
        advantages=((n_found - n_baseline) / (193 - n_baseline),),
        errors=(0.0,),
        seeds=(0,),
        attacks=("a",),
        rows=193.0,
    )
    assert is_leaking(cell) == expected


def test_zero_of_few_rows_shows_nothing():
    """The exact binomial bound: 0 of 3 times 20 rows leaves 6%."""
    assert state((0.0, 0.0, 0.0), "exact_rows", rows=20) == "unsettled"
    assert state((0.0, 0.0, 0.0), "exact_rows", rows=400) == "safe"
    assert (
        upper(
            LeakageResult(
                "exact_rows",
                scores=(0.0,),
                advantages=(0.0,),
                errors=(0.0,),
                blinds=(0.0,),
                populations=(math.nan,),
                rows=20,
            )
        )
        == math.inf
    )


def test_an_attack_that_is_missing_shuts_nothing():
    assert state((0.0, 0.0, 0.0), coverage=Coverage(("a", "b"), left_out=("b",))) == "unsettled"
    assert state((0.3, 0.3, 0.3), coverage=Coverage(("a", "b"), failed=("b",))) == "leaking"


@given(
    values=st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=8),
    factor=st.floats(1, 20),
)
def test_noise_never_makes_a_defense_look_safer(values, factor):
    mean = math.fsum(values) / len(values)
    wider = [mean + factor * (v - mean) for v in values]
    if state(tuple(wider)) == "safe":
        assert state(tuple(values)) == "safe"
    assert not (state(tuple(values)) == "safe" and is_leaking(_cell(values)))


def _cell(values):
    n = len(values)
    return LeakageResult(
        "ra",
        scores=tuple(values),
        blinds=(0.0,) * n,
        populations=(math.nan,) * n,
        advantages=tuple(values),
        errors=(0.0,) * n,
        seeds=tuple(range(n)),
    )


def test_no_cell_is_safe_if_its_attack_scored_below_the_baseline(rows, run):
    results = [
        adversary.result(defense.spec, metric)
        for setting in RunAnalysis(run, rows).settings
        for adversary in setting.tested
        for metric in adversary.metrics
        for defense in setting.defenses
    ]
    assert all(
        result.advantage.mean >= -result.limit for result in results if result.state == "safe"
    )
    assert {result.state for result in results if result.below_baseline} <= {"unsettled"}


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def states_by_defense(table):
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    (adversary,) = setting.tested
    return {
        defense.spec: adversary.result(defense.spec, "ra").state for defense in setting.defenses
    }


def test_a_cell_without_an_applicable_attack_is_not_applicable_and_a_failed_one_is_unknown(table):
    for seed in range(3):
        for defense in ("none", "split-only", "min-bin"):
            table.train(defense, seed, 0.9)
            table.applies(defense, seed, "a")
        table.attack("none", seed, "a", 0.4)
        table.trouble("split-only", seed, "a", "failed")
        table.trouble("min-bin", seed, "a", "skipped")
    assert states_by_defense(table) == {
        "none": "leaking",
        "min-bin": "not-applicable",
        "split-only": "unknown",
    }


def no_claim(table, defense, attack, metric="ra", why="no-trees", seeds=3):
    """Add an attack that ran on several seeds and returned no claim."""
    for seed in range(seeds):
        table.add("attack", defense, seed, metric, "", attack=attack, threat="t",
                  status="no-claim", state_code="no-claim", reason_code=why)  # fmt: skip


@pytest.mark.parametrize("metric", ["ra", ""])
def test_an_attack_without_a_claim_leaves_the_cell_unsettled_unless_another_opens_it(table, metric):
    for seed in range(3):
        for defense in ("none", "split-only", "min-bin", "masking"):
            table.train(defense, seed, 0.9)
            table.applies(defense, seed, "a", "b")
        for defense, advantage in (("none", 0.4), ("split-only", 0.0), ("masking", 0.0)):
            table.attack(defense, seed, "a", advantage)
        table.attack("none", seed, "b", 0.0)
        table.attack("masking", seed, "b", 0.0)
        table.trouble("min-bin", seed, "a", "skipped")
    no_claim(table, "split-only", "b", metric)
    no_claim(table, "min-bin", "b", metric)
    assert states_by_defense(table) == {
        "none": "leaking", "split-only": "unsettled", "min-bin": "unsettled", "masking": "safe",
    }  # fmt: skip
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    cell = setting.tested[0].result("min-bin", "ra")
    assert cell.weight == 1.0
    assert wording.shown(cell) == "no claim"
    assert wording.word(cell) == f"b returned no claim: {Reason('no-trees')}"
    assert setting.untested.no_claim == (("b", str(Reason("no-trees"))),)
    gap_texts = list(map(str, Gaps.of(table.rows(), [setting.setting]).requested))
    assert any(text.startswith("returned no claim: b (q; t; against ") for text in gap_texts)


def test_an_attack_of_other_claims_leaves_a_cell_as_it_is(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a", "b", "c")
        table.attack("none", seed, "a", 0.0)
        table.attack("none", seed, "c", 0.0, "v_measure")
    no_claim(table, "none", "b", "v_measure")  # names its measure
    no_claim(table, "none", "c", "")  # has scored another measure
    no_claim(table, "none", "z", "ra")  # is for comparison: not among those that apply
    assert states_by_defense(table) == {"none": "safe"}


@pytest.mark.parametrize("code", [*NOT_CERTAIN, "no-trees"])
def test_an_attack_that_returns_only_certain_claims_does_not_count_where_another_one_scored(
    table, code
):
    for seed in range(4):
        for defense in ("none", "split-only", "min-bin"):
            table.train(defense, seed, 0.9)
            table.applies(defense, seed, "a", "b")
            advantage = 0.4 if defense == "none" else 0.0
            # on one seed, "a" scores another measure under min-bin
            metric = "v_measure" if (defense, seed) == ("min-bin", 3) else "ra"
            table.attack(defense, seed, "a", advantage, metric)
    table.attack("none", 0, "b", 0.4)
    for defense in ("split-only", "min-bin"):
        no_claim(table, defense, "b", "ra", code, seeds=4)
    table.attack("min-bin", 3, "z", 0.0)  # exists for comparison: not among those that apply
    states = states_by_defense(table)
    assert states["split-only"] == ("safe" if code in NOT_CERTAIN else "unsettled")
    assert states["min-bin"] == "unsettled"  # on one seed, no attack that counts scored


def test_if_no_attack_claimed_anything_the_cell_is_unsettled(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
    no_claim(table, "none", "a")
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    assert setting.tested[0].result("none", "ra").state == "unsettled"
    assert verdict.leak(setting) == (
        "Attacks returned no claim (a), and no other attack shows a leak."
    )


def test_a_defense_on_which_no_attack_ran_is_unknown(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.attack("none", seed, "a", 0.3, "ra")
        table.train("min-bin", seed, 0.9)
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    assert setting.tested[0].result("none", "ra").state == "leaking"
    assert setting.tested[0].result("min-bin", "ra").state == "unknown"


def test_where_a_blind_guess_is_perfect_nothing_is_defined(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.attack("none", seed, "a", "", value=1.0)
        table.lines[-1]["blind"] = 1.0
    assert states_by_defense(table) == {"none": "undefined"}


def test_an_attack_below_the_population_baseline_is_neither_a_leak_nor_safe(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.attack("none", seed, "a", 0.4, population=0.6, beyond=-0.2)
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    cell = setting.tested[0].result("none", "ra")
    assert cell.state == "unsettled"
    assert cell.below_baseline
    assert cell.baseline == pytest.approx(0.6)
    assert (
        wording.word(cell)
        == "the attack scored worse than a guess from other rows, which shows nothing"
    )


def test_an_attack_below_the_blind_baseline_has_its_own_sentence(table):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        table.attack("none", seed, "a", -0.5, value=0.1)
    analysis = RunAnalysis(table.folder, table.rows())
    (setting,) = analysis.settings
    cell = setting.tested[0].result("none", "ra")
    assert cell.state == "unsettled"
    assert wording.word(cell) == "the attack scored worse than a blind guess, which shows nothing"
    assert setting.leak.kind == "attack-failed"
    explanation = (
        "<b>The party &#39;t&#39;, no defense.</b> By cells guessed the attack scored worse than "
        "its baseline, which shows nothing.</li>"
    )
    assert explanation in page.render_report(analysis)


@given(
    advantages=st.lists(st.floats(-5, 1), min_size=1, max_size=8),
    rows=st.one_of(st.just(math.nan), st.integers(1, 2000).map(float)),
    metric=st.sampled_from(["ra", "exact_rows", "members_1pct", "leaf_mass_exact"]),
    complete=st.booleans(),
    margin=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_a_safe_cell_reaches_its_baseline_and_stays_within_the_margin(
    advantages, rows, metric, complete, margin
):
    n = len(advantages)
    cell = LeakageResult(
        metric,
        scores=tuple(advantages),
        blinds=(0.0,) * n,
        populations=(math.nan,) * n,
        advantages=tuple(advantages),
        errors=(0.0,) * n,
        seeds=tuple(range(n)),
        rows=rows,
        margin=margin,
    )
    mean = math.fsum(advantages) / n
    if state_of(cell, complete) == "safe":
        assert complete
        assert n >= 3
        assert -cell.limit <= mean < cell.limit <= margin
        assert upper(cell) < cell.limit
        assert not is_leaking(cell)
    if mean < -cell.limit:
        assert cell.below_baseline
        assert state_of(cell, complete) == "unsettled"
        assert replace(cell, state="unsettled").weight == 1.0


@given(values=st.lists(st.floats(-0.04, 0.04), min_size=3, max_size=8), fall=st.floats(0.1, 5))
def test_a_worse_attack_never_makes_a_cell_safe(values, fall):
    worse = tuple(v - fall for v in values)
    assert not is_safe(_cell(worse))


@pytest.mark.parametrize("margin", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("metric", ["ra", "members_auc", "members_1pct"])
def test_a_perfect_attack_exceeds_the_limit_at_every_margin(metric, margin):
    assert margin_of(metric, margin) < 1


@pytest.mark.parametrize(
    ("population", "baseline"), [(0.6, "a guess from other rows"), (None, "a blind guess")]
)
def test_a_failed_attack_is_compared_with_the_baseline_that_counts(table, population, baseline):
    for seed in range(3):
        table.train("none", seed, 0.9)
        table.applies("none", seed, "a")
        columns = {} if population is None else {"population": population}
        table.attack("none", seed, "a", -0.5, value=0.1, **columns)
    (setting,) = RunAnalysis(table.folder, table.rows()).settings
    cell = setting.tested[0].result("none", "ra")
    assert wording.better_guess([cell]) == baseline
    assert f"scored worse than {baseline}, " in wording.failed(cell)


def test_attacks_without_a_claim_for_the_same_reason_share_a_line(table):
    for seed in range(3):
        for defense in ("none", "split-only"):
            table.train(defense, seed, 0.9)
            table.applies(defense, seed, "a", "b", "c")
            table.attack(defense, seed, "c", 0.4)
        for threat in ("t", "u"):
            table.add("attack", "none", seed, "ra", "", attack="a", threat=threat,
                      status="no-claim", state_code="no-claim", reason_code="no-trees")  # fmt: skip
        table.trouble("split-only", seed, "b", "failed", "no room")
    no_claim(table, "split-only", "a", "ra", "sums-not-exact")
    gaps = RunAnalysis(table.folder, table.rows()).gaps.requested
    why = Reason("sums-not-exact")
    assert [*fold_no_claims(gaps)] == [
        "failed: b (q; t; against split-only; seeds 0, 1, 2): no room",
        f"returned no claim: a (q; t and u): {Reason('no-trees')}",
        f"returned no claim: a (q; t; against split-only; seeds 0, 1, 2): {why}",
    ]
