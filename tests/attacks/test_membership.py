"""Membership inference: members are told from others where they are, and from nothing nowhere."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from present import here

from fedtrees.attacks.membership.attack import MembershipInference, model_in
from fedtrees.attacks.membership.base import together
from fedtrees.attacks.membership.learners import trainer_of
from fedtrees.attacks.membership.margins import is_plain, margins
from fedtrees.attacks.membership.references import (
    boosted_trainer,
    forest_logits,
    halves,
    lira,
    references,
    rmia,
)
from fedtrees.attacks.membership.structure import shared_thresholds
from fedtrees.conformance.samples import sample_table
from fedtrees.core.claims import Guess, Membership, Records
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.streams import Streams
from fedtrees.experiments.evaluate import make_defense, score_guess, with_background
from fedtrees.metrics.membership import MembershipMetric, at_few, auc, blind_scores
from fedtrees.metrics.metric import Case
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

FORESTS = ("forest-hist[trees=10,max_depth=8]", "local-forests[trees=10,max_depth=8]",
           "dp-forest[epsilon=10000,trees=40,depth=6]")  # fmt: skip


@cache
def world(defense="none", who="server"):
    """Train on half of a table of 240 rows; return the view with candidates, and the case."""
    table, schema = sample_table()
    mine, others = table.take(np.arange(120)), table.take(np.arange(120, 240))
    held = over_clients([mine.take(np.arange(k, 120, 2)) for k in range(2)])
    protocol = FedTreeHist(trees=4, max_depth=3, max_bin=256)
    run = train(protocol, held, schema, defense=make_defense(parse_one(defense)), seed=1)
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(held, roles, (who,), schema, Streams(0), who, others=others)
    return with_background("membership", view_of(run, (who,), held), case), case


def scored(view):
    guess = MembershipInference(models=4).run(view, np.random.default_rng(0))
    return {claim.test: claim.score for claim in guess.claims}


def test_candidates_are_the_victims_among_others_in_no_order():
    view, case = world()
    member = case.candidates.member
    assert (member.sum(), (~member).sum()) == (120, 120)
    assert 0 < member[:60].sum() < 60
    mine = {row.tobytes() for row in case.victims_rows.X}
    assert [row.tobytes() in mine for row in view.candidates.X] == member.tolist()


def test_candidates_are_told_to_who_claims_membership_and_nothing_else():
    view, case = world()
    bare = replace(view, candidates=None)
    assert with_background("joint", bare, case).candidates is None
    assert with_background("membership", bare, case).candidates is not None
    rows = Guess((Records(case.candidates.table),))
    with pytest.raises(ProtocolError, match="Membership only"):
        list(score_guess("membership", rows, case, None))
    assert MembershipInference().run(bare, np.random.default_rng(0)).claims == ()


def test_a_sketch_holds_all_members_and_hardly_anybody_else():
    view, case = world()
    found, member = scored(view), case.candidates.member
    assert (found["sketch"][member] >= 1).all()
    assert (found["sketch"][~member] < 1).all()
    assert at_few(found["together"], member, 0.01).tpr == 1


@pytest.mark.long
@pytest.mark.parametrize("defense", ["none", "secure-sum", "secure-sum+public-cuts"])
def test_sums_on_a_members_path_have_room_for_it(defense):
    view, case = world(defense)
    short, member = scored(view)["path"], case.candidates.member
    assert (short[member] == 0).all()
    assert auc(short, member) > 0.6


@pytest.mark.long
def test_public_cut_points_are_nobodys_values():
    view, case = world("none", "public")
    assert auc(scored(view)["thresholds"], case.candidates.member) > 0.5
    view, _ = world("public-cuts", "public")
    assert "thresholds" not in scored(view)


@pytest.mark.parametrize(
    "protocol",
    here("protocol", [*FORESTS[:2], "flower-bagging[trees=4]", "flower-cyclic[trees=6]"]),
)
def test_clients_ask_the_model_that_they_are_told(protocol):
    """The same as is released, which they need not get."""
    table, schema = sample_table()
    held = over_clients([table.take(np.arange(k, 90, 3)) for k in range(3)])
    run = train(register.make("protocol", parse_grid(protocol)[0]), held, schema, seed=1)
    attack, view = MembershipInference(), view_of(run, ("client-0",), held)
    assert attack.inapplicable(view) is None
    found = attack.model(view).predict(table.X)
    assert found == pytest.approx(run.model.predict(table.X))
    assert attack.inapplicable(view.blinded()).code == "no-trees"


def test_of_two_references_one_has_a_row_and_classes_are_even():
    y = np.arange(21) % 3
    found = [*halves(y, 2, np.random.default_rng(0))]
    for one, other in (found[:2], found[2:]):
        assert (one ^ other).all()
        assert abs(int(one.sum()) - int(other.sum())) <= 1
        assert np.ptp(np.bincount(y[one])) <= 2
    assert (found[0] != found[2]).any()


@pytest.mark.long
def test_compiled_references_are_boosted_as_the_engine_boosts():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 4)).astype(np.float32), rng.integers(0, 2, 150)
    X[rng.random(X.shape) < 0.1] = np.nan
    used, cuts = rng.random(150) < 0.5, quantile_cuts(X, 32)
    params = TreeParams(trees=8, max_depth=4, max_bin=32, gamma=0.1)
    assert is_plain(params, LOGISTIC, cuts)
    assert not is_plain(replace(params, subsample=0.5), LOGISTIC, cuts)
    bins = bin_rows(X, cuts)
    grown = grow_forest(bins.take(used), y[used], cuts, params).predict(X)
    margin = margins(bins, y, used, params)
    assert np.abs(1 / (1 + np.exp(-margin)) - grown).max() < 1e-4


def memorised(seed, told):
    """Boost random labels to the last row; return scores of rows that were told and were not."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(160, 4)).astype(np.float32), rng.integers(0, 2, 160)
    member = rng.permutation(160) < 80
    params = TreeParams(trees=15, max_depth=8, min_child_weight=0.0, max_bin=256)
    used = member if told else np.zeros(160, bool)
    rest = Table(rng.normal(size=(80, 4)).astype(np.float32), rng.integers(0, 2, 80))
    mine = Table(X, y).take(used) if told else rest
    cuts = quantile_cuts(mine.X, 256)
    model = grow_forest(mine.X, mine.y, cuts, params, LOGISTIC)
    refs = references(Table(X, y), None, boosted_trainer(params, LOGISTIC, None), 8, rng)
    logit = forest_logits(model, Table(X, y))
    return {"lira": lira(logit, refs), "rmia": rmia(logit, refs)}, member


@pytest.mark.long
def test_memorised_rows_are_found_and_strangers_are_not():
    for ratio in ("lira", "rmia"):
        found, member = memorised(0, told=True)
        assert auc(found[ratio], member) > 0.8  # positive control
    strangers = [memorised(seed, told=False) for seed in range(3)]
    for ratio in ("lira", "rmia"):
        mean = np.mean([auc(found[ratio], member) for found, member in strangers])
        assert abs(mean - 0.5) < 4 * 0.046 / np.sqrt(3)  # sd of an AUC of 80 and 80: .046


def test_chance_at_a_drawn_threshold_is_more_than_the_false_positive_rate():
    rng, member = np.random.default_rng(0), np.arange(180) < 80
    got = [at_few(rng.random(180), member, 0.01) for _ in range(400)]
    assert got[0].null == pytest.approx(2 / 101)
    sd = np.std([g.tpr for g in got]) / 20
    assert abs(np.mean([g.tpr for g in got]) - got[0].null) < 5 * sd
    assert np.mean([g.chance <= 0.05 for g in got]) < 0.09
    assert at_few(np.zeros(180), member, 0.01).tpr == 0  # ties are not above


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(1)
    score, member = rng.integers(0, 5, 40), np.arange(40) < 15
    a, b = score[member][:, None], score[~member]
    assert auc(score.astype(float), member) == pytest.approx(((a > b) + 0.5 * (a == b)).mean())


def test_rows_that_differ_by_themselves_are_the_blind_baseline():
    _, case = world()
    truth = case.candidates
    assert abs(auc(blind_scores(truth.table, truth.member), truth.member) - 0.5) < 0.15
    moved = replace(truth.table, X=truth.table.X + 9 * truth.member[:, None].astype(np.float32))
    line = MembershipMetric().line(case, replace(truth, table=moved), {})
    assert line["members_auc"] > 0.95
    assert line["members_1pct"] > 0.5


def test_all_tests_are_scored_beside_the_attacks_own():
    _, case = world()
    member = case.candidates.member
    claims = [Membership("together", member.astype(float)), Membership("noise", np.zeros(240))]
    found = {s.name: s.value for s in MembershipMetric().score(claims, case.candidates)}
    assert (found["members_1pct"], found["members_01pct"], found["members_auc"]) == (1, 1, 1)
    assert found["members_1pct_of noise"] == 0
    assert found["members_auc_of noise"] == 0.5
    assert MembershipMetric().refuses([Membership("a", np.zeros(3))], case)


def test_what_is_sure_comes_first():
    score = together({"sketch": np.array([0.9, 1.0]), "rmia": np.array([9.0, -9.0])})
    assert score[1] > score[0]


def test_who_alone_holds_a_threshold_was_trained_on_and_own_rows_explain_theirs():
    X = np.array([[1.0], [2.0], [2.0], [3.0], [4.0]], dtype=np.float32)
    params = TreeParams(trees=1, max_depth=1, min_child_weight=0.0)
    y = np.array([0, 0, 1, 1, 1])
    tree = grow_forest(X, y, quantile_cuts(X, 8), params, LOGISTIC).trees[0]
    stump = replace(tree, threshold=np.where(tree.feature == 0, np.float32(2), tree.threshold))
    told = shared_thresholds(X, [stump])
    assert told == pytest.approx([0, np.log(2), np.log(2), 0, 0])
    alone = replace(tree, threshold=np.where(tree.feature == 0, np.float32(3), tree.threshold))
    assert shared_thresholds(X, [alone])[3] == pytest.approx(np.log(5))
    assert not shared_thresholds(X, [alone], Table(X[3:4], np.array([1]))).any()


@pytest.mark.parametrize("spec", FORESTS)
def test_members_of_random_forests_are_told_from_others(spec):
    found, told, seeds = [], [], range(3)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, y = rng.uniform(0, 8, (240, 4)).astype(np.float32), rng.integers(0, 2, 240)
        schema = Schema(tuple(Feature(n, low=0, high=8) for n in "abcd"), "y")
        held = over_clients([Table(X, y).take(np.arange(k, 120, 2)) for k in range(2)])
        run = train(register.make("protocol", parse_grid(spec)[0]), held, schema, seed=seed)
        roles = {**run.transcript.roles, "public": "public"}
        others = Table(X, y).take(np.arange(120, 240))
        case = Case(held, roles, ("public",), schema, Streams(0), "public", others=others)
        view = with_background("membership", view_of(run, ("public",), held), case)
        assert MembershipInference().inapplicable(view) is None
        scores = scored(view)
        found.append([auc(scores[t], case.candidates.member) for t in ("together", "rmia")])
        trainer = trainer_of(view, model_in(view))
        refs = references(view.candidates, None, trainer, 4, np.random.default_rng(0))
        told.append(refs.logit[refs.member].mean() - refs.logit[~refs.member].mean())
    assert (np.mean(found, axis=0) > 0.65).all()
    assert np.mean(told) > 0.2  # references, too, are surer of what they were trained on


def test_a_classifier_of_rows_takes_empty_columns_and_few_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    X[:, 0] = np.nan
    member = np.arange(40) % 2 == 0
    X[member, 1] += 9
    scores = blind_scores(Table(X, np.zeros(40, dtype=np.int64)), member)
    assert auc(scores, member) > 0.99
    few = blind_scores(Table(X[:3], np.zeros(3, dtype=np.int64)), member[:3])
    assert np.isfinite(few).all()


@pytest.mark.parametrize("spec", here("protocol", ["xgboost-vertical[trees=10,max_depth=5]"]))
def test_who_holds_columns_knows_whose_rows_they_are_and_a_stranger_asks_about_whole_rows(spec):
    table, schema = sample_table()
    mine, others = table.take(np.arange(90)), table.take(np.arange(90, 180))
    columns = np.array_split(np.arange(len(schema.features)), 2)
    held = {
        name: LocalData(np.arange(90), own, mine.X[:, own], mine.y if name == "active" else None)
        for name, own in zip(("active", "passive-1"), columns, strict=True)
    }
    run = train(register.make("protocol", parse_grid(spec)[0]), held, schema, seed=1)
    for who in held:
        reason = MembershipInference().inapplicable(view_of(run, (who,), held))
        assert reason.code == "rows-known-by-id"
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(held, roles, ("public",), schema, Streams(0), "public", others=others)
    view = with_background("membership", view_of(run, ("public",), held), case)
    whole = {(*row, y) for row, y in zip(mine.X.tolist(), mine.y.tolist(), strict=True)}
    told = zip(view.candidates.X.tolist(), view.candidates.y.tolist(), strict=True)
    assert [(*row, y) in whole for row, y in told] == case.candidates.member.tolist()
    assert auc(scored(view)["together"], case.candidates.member) > 0.65
