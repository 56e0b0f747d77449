"""Membership inference distinguishes members from nonmembers by real evidence only."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from present import here

from fedtrees.attacks.membership.attack import MembershipInference, model_in
from fedtrees.attacks.membership.base import shared_thresholds, together
from fedtrees.attacks.membership.learners import trainer_of
from fedtrees.attacks.membership.references import (
    boosted_trainer,
    forest_logits,
    halves,
    lira,
    references,
    rmia,
)
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
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts

FORESTS = (
    "forest-hist[trees=10,max_depth=8]",
    "local-forests[trees=10,max_depth=8]",
    "dp-forest[epsilon=10000,trees=40,depth=6]",
)


@cache
def train_with_candidates(defense="none", principal="server", rounded=False):
    """Train on half of a table of 240 rows; return the view with candidates, and the case.

    If values are rounded to integers, then sketches contain all values of many non-members.
    """
    table, schema = sample_table()
    if rounded:
        table = replace(table, X=np.round(table.X))
    members, nonmembers = table.take(np.arange(120)), table.take(np.arange(120, 240))
    local_data = over_clients([members.take(np.arange(k, 120, 2)) for k in range(2)])
    protocol = FedTreeHist(trees=4, max_depth=3, max_bin=256)
    run = train(protocol, local_data, schema, defense=make_defense(parse_one(defense)), seed=1)
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(
        local_data, roles, (principal,), schema, Streams(0), principal, remaining_rows=nonmembers
    )
    return with_background("membership", view_of(run, (principal,), local_data), case), case


def scores_by_test(view):
    """Run membership inference; return the scores of each test by name."""
    guess = MembershipInference(models=4).run(view, np.random.default_rng(0))
    return {claim.test: claim.score for claim in guess.claims}


def test_candidates_are_the_shuffled_victims_and_nonmembers():
    view, case = train_with_candidates()
    member = case.candidates.member
    assert (member.sum(), (~member).sum()) == (120, 120)
    assert 0 < member[:60].sum() < 60
    victims = {row.tobytes() for row in case.victims_rows.X}
    assert [row.tobytes() in victims for row in view.candidates.X] == member.tolist()


def test_only_membership_attacks_receive_candidates():
    view, case = train_with_candidates()
    view_without_candidates = replace(view, candidates=None)
    assert with_background("joint", view_without_candidates, case).candidates is None
    assert with_background("membership", view_without_candidates, case).candidates is not None
    rows = Guess((Records(case.candidates.table),))
    with pytest.raises(ProtocolError, match="Membership only"):
        list(score_guess("membership", rows, case, None))
    assert MembershipInference().run(view_without_candidates, np.random.default_rng(0)).claims == ()


def test_a_sketch_contains_all_members_and_no_nonmember():
    view, case = train_with_candidates()
    scores, member = scores_by_test(view), case.candidates.member
    assert (scores["sketch"][member] >= 1).all()
    assert (scores["sketch"][~member] < 1).all()
    assert at_few(scores["together"], member, 0.01).tpr == 1


@pytest.mark.parametrize("defense", ["none", "hist-rounding[step=0.01]"])
def test_released_sums_identify_members_if_sketches_contain_the_values_of_nonmembers(defense):
    view, case = train_with_candidates(defense, rounded=True)
    scores, member = scores_by_test(view), case.candidates.member
    assert (scores["sketch"][~member] >= 1).mean() > 0.5
    assert at_few(scores["together"], member, 0.01).tpr > 0.9


@pytest.mark.long
def test_public_cut_points_are_not_used_as_values_of_members():
    view, case = train_with_candidates("none", "public")
    assert auc(scores_by_test(view)["thresholds"], case.candidates.member) > 0.5
    view, _ = train_with_candidates("public-cuts", "public")
    assert "thresholds" not in scores_by_test(view)


@pytest.mark.parametrize(
    "protocol",
    here("protocol", [*FORESTS[:2], "flower-bagging[trees=4]", "flower-cyclic[trees=6]"]),
)
def test_clients_use_the_model_that_they_receive(protocol):
    """A client without the released model uses the received model, which predicts the same."""
    table, schema = sample_table()
    local_data = over_clients([table.take(np.arange(k, 90, 3)) for k in range(3)])
    run = train(register.make("protocol", parse_grid(protocol)[0]), local_data, schema, seed=1)
    attack, view = MembershipInference(), view_of(run, ("client-0",), local_data)
    assert attack.inapplicable(view) is None
    predictions = attack.model(view).predict(table.X)
    assert predictions == pytest.approx(run.model.predict(table.X))
    assert attack.inapplicable(view.blinded()).code == "no-model"


def test_each_row_is_in_one_of_two_reference_models_with_balanced_classes():
    y = np.arange(21) % 3
    masks = [*halves(y, 2, np.random.default_rng(0))]
    for first, second in (masks[:2], masks[2:]):
        assert (first ^ second).all()
        assert abs(int(first.sum()) - int(second.sum())) <= 1
        assert np.ptp(np.bincount(y[first])) <= 2
    assert (masks[0] != masks[2]).any()


def memorised_scores(seed, train_on_members):
    """Overfit random labels; return scores of candidate rows, trained on or not, and the mask of
    members.
    """
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(160, 4)).astype(np.float32), rng.integers(0, 2, 160)
    member = rng.permutation(160) < 80
    params = TreeParams(trees=15, max_depth=8, min_child_weight=0.0, max_bin=256)
    used = member if train_on_members else np.zeros(160, bool)
    other_rows = Table(rng.normal(size=(80, 4)).astype(np.float32), rng.integers(0, 2, 80))
    training_rows = Table(X, y).take(used) if train_on_members else other_rows
    cuts = quantile_cuts(training_rows.X, 256)
    model = grow_forest(training_rows.X, training_rows.y, cuts, params, LOGISTIC)
    reference_models = references(
        Table(X, y), None, boosted_trainer(params, LOGISTIC, None), 8, rng
    )
    logit = forest_logits(model, Table(X, y))
    return {"lira": lira(logit, reference_models), "rmia": rmia(logit, reference_models)}, member


@pytest.mark.long
def test_memorised_rows_are_detected_and_unused_rows_are_not():
    for ratio in ("lira", "rmia"):
        scores, member = memorised_scores(0, train_on_members=True)
        assert auc(scores[ratio], member) > 0.8  # positive control
    control_runs = [memorised_scores(seed, train_on_members=False) for seed in range(3)]
    for ratio in ("lira", "rmia"):
        mean = np.mean([auc(scores[ratio], member) for scores, member in control_runs])
        # The standard deviation of an AUC of 80 members and 80 nonmembers is 0.046.
        assert abs(mean - 0.5) < 4 * 0.046 / np.sqrt(3)


def test_a_random_score_exceeds_the_false_positive_rate_at_an_empirical_threshold():
    rng, member = np.random.default_rng(0), np.arange(180) < 80
    results = [at_few(rng.random(180), member, 0.01) for _ in range(400)]
    assert results[0].null == pytest.approx(2 / 101)
    standard_error = np.std([result.tpr for result in results]) / 20
    assert abs(np.mean([result.tpr for result in results]) - results[0].null) < 5 * standard_error
    assert np.mean([result.chance <= 0.05 for result in results]) < 0.09
    # Ties do not exceed the threshold.
    assert at_few(np.zeros(180), member, 0.01).tpr == 0


def test_auc_is_the_share_of_correctly_ordered_pairs():
    rng = np.random.default_rng(1)
    score, member = rng.integers(0, 5, 40), np.arange(40) < 15
    member_scores, other_scores = score[member][:, None], score[~member]
    assert auc(score.astype(float), member) == pytest.approx(
        ((member_scores > other_scores) + 0.5 * (member_scores == other_scores)).mean()
    )


def test_members_that_all_score_above_the_others_have_an_auc_of_exactly_one():
    for n, m in [(456, 113), (304, 113), (7, 3), (97, 1001)]:
        member = np.arange(n + m) < n
        assert auc(np.where(member, 2.0, 1.0) + np.linspace(0, 0.5, n + m), member) == 1.0
        assert auc(np.zeros(n + m), member) == 0.5


def test_the_blind_baseline_separates_members_with_another_distribution():
    _, case = train_with_candidates()
    truth = case.candidates
    assert abs(auc(blind_scores(truth.table, truth.member), truth.member) - 0.5) < 0.15
    shifted_table = replace(
        truth.table, X=truth.table.X + 9 * truth.member[:, None].astype(np.float32)
    )
    blind_line = MembershipMetric().line(case, replace(truth, table=shifted_table), {})
    assert blind_line["members_auc"] > 0.95
    assert blind_line["members_1pct"] > 0.5


def test_every_membership_test_is_scored():
    _, case = train_with_candidates()
    member = case.candidates.member
    claims = [Membership("together", member.astype(float)), Membership("noise", np.zeros(240))]
    scores = {
        metric_score.name: metric_score.value
        for metric_score in MembershipMetric().score(claims, case.candidates)
    }
    assert (scores["members_1pct"], scores["members_01pct"], scores["members_auc"]) == (1, 1, 1)
    assert scores["members_1pct_of noise"] == 0
    assert scores["members_auc_of noise"] == 0.5
    assert MembershipMetric().refuses([Membership("a", np.zeros(3))], case)


def test_certain_members_are_ranked_first():
    score = together({"sketch": np.array([0.9, 1.0]), "rmia": np.array([9.0, -9.0])})
    assert score[1] > score[0]


def test_a_row_with_a_unique_threshold_value_is_a_member_unless_local_rows_explain_it():
    X = np.array([[1.0], [2.0], [2.0], [3.0], [4.0]], dtype=np.float32)
    params = TreeParams(trees=1, max_depth=1, min_child_weight=0.0)
    y = np.array([0, 0, 1, 1, 1])
    tree = grow_forest(X, y, quantile_cuts(X, 8), params, LOGISTIC).trees[0]
    stump = replace(tree, threshold=np.where(tree.feature == 0, np.float32(2), tree.threshold))
    evidence = shared_thresholds(X, [stump])
    assert evidence == pytest.approx([0, np.log(2), np.log(2), 0, 0])
    stump_at_unique_value = replace(
        tree, threshold=np.where(tree.feature == 0, np.float32(3), tree.threshold)
    )
    assert shared_thresholds(X, [stump_at_unique_value])[3] == pytest.approx(np.log(5))
    assert not shared_thresholds(X, [stump_at_unique_value], Table(X[3:4], np.array([1]))).any()


@pytest.mark.parametrize("spec", FORESTS)
def test_members_of_random_forests_are_distinguished_from_nonmembers(spec):
    aucs, logit_gaps, seeds = [], [], range(3)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, y = rng.uniform(0, 8, (240, 4)).astype(np.float32), rng.integers(0, 2, 240)
        schema = Schema(tuple(Feature(name, low=0, high=8) for name in "abcd"), "y")
        local_data = over_clients([Table(X, y).take(np.arange(k, 120, 2)) for k in range(2)])
        run = train(register.make("protocol", parse_grid(spec)[0]), local_data, schema, seed=seed)
        roles = {**run.transcript.roles, "public": "public"}
        nonmembers = Table(X, y).take(np.arange(120, 240))
        case = Case(
            local_data, roles, ("public",), schema, Streams(0), "public", remaining_rows=nonmembers
        )
        view = with_background("membership", view_of(run, ("public",), local_data), case)
        assert MembershipInference().inapplicable(view) is None
        scores = scores_by_test(view)
        aucs.append(
            [auc(scores[test_name], case.candidates.member) for test_name in ("together", "rmia")]
        )
        trainer = trainer_of(view, model_in(view))
        reference_models = references(view.candidates, None, trainer, 4, np.random.default_rng(0))
        logit_gaps.append(
            reference_models.logit[reference_models.member].mean()
            - reference_models.logit[~reference_models.member].mean()
        )
    assert (np.mean(aucs, axis=0) > 0.65).all()
    # Reference models, too, are more confident on their training rows.
    assert np.mean(logit_gaps) > 0.2


def test_the_blind_classifier_accepts_empty_columns_and_few_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)).astype(np.float32)
    X[:, 0] = np.nan
    member = np.arange(40) % 2 == 0
    X[member, 1] += 9
    scores = blind_scores(Table(X, np.zeros(40, dtype=np.int64)), member)
    assert auc(scores, member) > 0.99
    scores_of_three = blind_scores(Table(X[:3], np.zeros(3, dtype=np.int64)), member[:3])
    assert np.isfinite(scores_of_three).all()


@pytest.mark.parametrize("spec", here("protocol", ["xgboost-vertical[trees=10,max_depth=5]"]))
def test_in_vertical_training_only_outsiders_infer_membership_of_complete_rows(spec):
    table, schema = sample_table()
    members, nonmembers = table.take(np.arange(90)), table.take(np.arange(90, 180))
    columns = np.array_split(np.arange(len(schema.features)), 2)
    local_data = {
        name: LocalData(
            np.arange(90),
            party_columns,
            members.X[:, party_columns],
            members.y if name == "active" else None,
        )
        for name, party_columns in zip(("active", "passive-1"), columns, strict=True)
    }
    run = train(register.make("protocol", parse_grid(spec)[0]), local_data, schema, seed=1)
    for principal in local_data:
        reason = MembershipInference().inapplicable(view_of(run, (principal,), local_data))
        assert reason.code == "rows-known-by-id"
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(
        local_data, roles, ("public",), schema, Streams(0), "public", remaining_rows=nonmembers
    )
    view = with_background("membership", view_of(run, ("public",), local_data), case)
    member_rows = {(*row, y) for row, y in zip(members.X.tolist(), members.y.tolist(), strict=True)}
    candidate_rows = zip(view.candidates.X.tolist(), view.candidates.y.tolist(), strict=True)
    assert [
        (*row, y) in member_rows for row, y in candidate_rows
    ] == case.candidates.member.tolist()
    assert auc(scores_by_test(view)["together"], case.candidates.member) > 0.65
