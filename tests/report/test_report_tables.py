"""The tables behind the report: paired changes, guarantees, cost, gaps, headlines."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedtrees.core.guarantee import parse
from fedtrees.report import guarantees, wording
from fedtrees.report.coverage import Gaps
from fedtrees.report.figures import model
from fedtrees.report.findings import RunAnalysis, frontiers
from fedtrees.report.results import Panel, Setting
from fedtrees.report.statistics import Estimate, t_estimate

STROKE = Setting("stroke", "iid[clients=5]", "fedtree[trees=20,depth=6]")


def test_paired_noise_cancels():
    shared = np.array([0.1, -0.2, 0.05])
    gaps = t_estimate((0.7 + shared) - (0.8 + shared))
    assert gaps.low == pytest.approx(gaps.high) == pytest.approx(-0.1)


def test_an_interval_does_not_depend_on_the_order_of_seeds():
    assert t_estimate([3.0, 1.0, 2.0]) == t_estimate([2.0, 3.0, 1.0])
    assert t_estimate([1.0, math.nan, 3.0]).n == 2


def test_a_point_names_the_attack_that_reached_the_worst_case(rows):
    data = next(f for f in frontiers(rows) if f.panel == Panel(STROKE, "client"))
    point = data.point("none")
    assert point.attacks == (("timberstrike", 3),)
    score, blind = point.score.mean, point.blind.mean
    assert point.advantage.mean == pytest.approx((score - blind) / (1 - blind))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "unknown"),
        ("none", "none"),
        ("structural", "structural"),
        ("computational", "computational"),
        ("pure-dp[epsilon=4]", "proved"),
        ("label-dp[epsilon=1]", "proved"),
        ("mutual-information[xi=0.1]", "proved"),
        ("structural+pure-dp[epsilon=4,unit=histogram]", "proved"),
        ("pure-dp[epsilon=4,unit=cuts]", "structural"),
        ("pure-dp[epsilon=4,unit=cuts]+pure-dp[epsilon=4]", "proved"),
        ("something-else", "unknown"),
    ],
)
def test_claims_have_kinds(text, kind):
    assert guarantees.kind(parse(text)) == kind


@pytest.mark.parametrize(
    ("claimed", "spent", "measured", "words"),
    [
        ("structural", "structural", "", ""),
        ("pure-dp[epsilon=4]", "pure-dp[epsilon=4]", "", ""),
        ("pure-dp[epsilon=4]", "pure-dp[epsilon=12800]", "", "(3,200 times): weaker"),
        ("pure-dp[epsilon=4]", "pure-dp[epsilon=4]", "pure-dp[epsilon=5]", "audit contradicts"),
        ("pure-dp[epsilon=4]", "pure-dp[epsilon=4]", "pure-dp[epsilon=3]", ""),
        ("pure-dp[epsilon=4,unit=histogram]", "pure-dp[epsilon=9,unit=row]", "", "per row"),
        (
            "pure-dp[epsilon=4]",
            "pure-dp[epsilon=9]",
            "at-least[epsilon=3]",
            "weaker than the claim",
        ),
        (
            "pure-dp[epsilon=4,unit=histogram]",
            "pure-dp[epsilon=90]",
            "at-least[epsilon=7]",
            "the audit shows epsilon=7 per record, not 4 per histogram",
        ),
        (
            "pure-dp[epsilon=4]",
            "pure-dp[epsilon=4]",
            "at-least[epsilon=1,most=3]",
            "no more than epsilon=3 could have been measured",
        ),
        ("pure-dp[epsilon=4]", "pure-dp[epsilon=4]", "at-least[epsilon=1,most=5]", ""),
        ("label-dp[epsilon=1]", "label-dp[epsilon=1]", "at-least[epsilon=2]", "audit contradicts"),
        ("pure-dp[epsilon=4]", "none", "", "spent no claim"),
        (
            "pure-dp[epsilon=4,unit=histogram]",
            "pure-dp[epsilon=inf,unprotected=cuts+base-score]",
            "",
            "is not kept; not protected: cuts+base-score",
        ),
        ("pure-dp[epsilon=4]", "", "", "not accounted"),
        (
            "pure-dp[epsilon=1,unit=cuts]+pure-dp[epsilon=4]",
            "pure-dp[epsilon=1,unit=cuts]+pure-dp[epsilon=inf,unprotected=base-score]",
            "",
            "is not kept; not protected: base-score",
        ),
    ],
)
def test_guarantees_are_compared_only_if_they_have_the_same_meaning(
    claimed, spent, measured, words
):
    verdict = guarantees.compare(*map(parse, (claimed, spent, measured)))
    assert (words in verdict) if words else verdict == ""


def test_a_claim_with_infinite_spending_is_void():
    assert guarantees.standing(parse("pure-dp[epsilon=4]"), parse("pure-dp[epsilon=inf]")) == "void"
    assert guarantees.standing(parse("pure-dp[epsilon=4]"), parse("pure-dp[epsilon=9]")) == "proved"
    assert guarantees.standing(parse("structural"), parse("structural")) == "structural"
    cuts = "pure-dp[epsilon=1,unit=cuts]"
    two_guarantees = [parse(f"{cuts}+pure-dp[epsilon={epsilon}]") for epsilon in (4, "inf")]
    assert guarantees.standing(*two_guarantees) == "void"
    assert set(model.SHAPES) == set(guarantees.KINDS)


def test_a_claim_that_an_audit_refutes_is_void():
    spent, cuts = parse("pure-dp[epsilon=4]"), parse("pure-dp[epsilon=1,unit=cuts]")
    for measured, kind in (("[epsilon=4.1]", "void"), ("[epsilon=3.9]", "proved"), ("", "proved")):
        audited = parse(f"at-least{measured}" if measured else "")
        assert guarantees.standing(spent, spent, audited) == kind
    # This audit is per row, and the claim is for cuts.
    assert not guarantees.refuted(cuts, cuts, parse("at-least[epsilon=2]"))
    assert guarantees.refuted(cuts, cuts, parse("at-least[epsilon=2,unit=cuts]"))


def test_measured_epsilons_are_shown_with_the_largest_measurable_one():
    first, second = (parse(f"at-least[epsilon={e},delta=1e-05,most=4.2]") for e in (1.8, 0.3))
    assert guarantees.span([first]) == "epsilon >= 1.8, delta=1e-05 (at most 4.2 could be shown)"
    assert guarantees.span([first, second]).startswith("epsilon >= 0.3..1.8, ")
    assert guarantees.span([parse("at-least[epsilon=0]")]) == "epsilon >= 0"


def test_every_defense_has_its_guarantees(rows):
    guarantees_by_defense = RunAnalysis(Path(), rows).by_setting[STROKE].guarantees
    assert guarantees_by_defense["split-only+laplace-hist[epsilon=4]"].measured == (
        parse("pure-dp[epsilon=1]"),
    )
    assert guarantees_by_defense["laplace-hist[epsilon=4]"].spent == (
        parse("pure-dp[epsilon=12800,unit=row]"),
    )
    assert guarantees_by_defense["none"].verdict == ""


def test_cost_is_counted_once_per_seed(rows):
    costs = RunAnalysis(Path(), rows).by_setting[STROKE].costs
    undefended, paillier = costs["none"], costs["paillier[bits=2048]"]
    assert undefended.up.mean == pytest.approx(1_400_000)
    assert paillier.bytes / undefended.bytes == pytest.approx(64)


def test_gaps_gather_seeds_and_put_failures_first(rows):
    settings = sorted(set(rows["setting"].dropna()))
    gaps = Gaps.of(
        rows,
        [setting for setting in settings if setting.protocol.startswith(("fedtree", "bagging"))],
    )
    statuses = [gap.status for gap in gaps.entries]
    order = ["failed", "timeout", "not asked for", "skipped", "does not fit"]
    assert statuses == sorted(statuses, key=order.index)
    (skip,) = (gap for gap in gaps.entries if gap.kind == "defense" and gap.status == "skipped")
    assert (skip.names, skip.seeds) == (("paillier[bits=2048]",), (0, 1, 2))
    assert str(skip.why) == "paillier guards Histogram; bagging sends whole trees"
    bad = rows[(rows["status"] != "ok") & rows["stage"].isin(["train", "attack"])]
    n_described = sum(
        len(gap.names) * max(len(gap.against), 1) * len(gap.seeds) for gap in gaps.entries
    )
    assert n_described == len(bad)


def test_settings_that_were_not_requested_differ_from_those_that_do_not_fit(rows):
    setting = Setting("breast-cancer", "iid[clients=3]", "fedtree-hist[trees=1]")
    gaps = Gaps.of(rows, [setting]).entries
    status = {name: gap.status for gap in gaps if gap.kind == "defense" for name in gap.names}
    for name in ("split-only", "secure-sum", "dp-grid-cuts", "laplace-hist", "min-bin"):
        assert status[name] == "not asked for"
    for name in ("id-lmid", "grafting-ldp", "query-limit", "min-leaf"):
        assert status[name] == "does not fit"
    assert {n for gap in gaps if gap.kind == "threat" for n in gap.names} == {
        "client", "public", "server"
    }  # fmt: skip


def test_numbers_have_true_minus_signs_and_no_negative_zero():
    assert wording.number(-0.25, 2, signed=True) == "−0.25"
    assert wording.number(-0.0001, 2, signed=True) == "0.00"
    assert wording.number(math.nan) == "–"
    assert wording.mean_and_interval(Estimate(0.5, 0.4, 0.6, 3), 1) == "0.5 [0.4, 0.6]"
    assert wording.bytes_text(999_600) == "1 MB"


def test_undefended_is_black_and_every_family_has_its_own_colour(rows):
    colours = model.palette(
        point.family for frontier in frontiers(rows) for point in frontier.points
    )
    assert colours["none"][0] == model.INK
    assert len({colour for colour, _ in colours.values()}) == len(colours)


def test_guarantees_of_several_seeds_read_as_a_range():
    seeds = [
        "pure-dp[epsilon=inf,histograms=1518.75,unprotected=cuts]",
        "pure-dp[epsilon=inf,histograms=956.25,unprotected=cuts]",
    ]
    merged = "pure-dp[epsilon=inf,histograms=956.25..1518.75,unprotected=cuts]"
    assert guarantees.span(list(map(parse, seeds))) == merged
    structural, private = parse("structural"), parse("pure-dp[epsilon=1]")
    assert guarantees.span([structural, structural]) == "structural"
    assert guarantees.span([structural, private]) == "structural | pure-dp[epsilon=1]"
    assert guarantees.span([]) == ""
