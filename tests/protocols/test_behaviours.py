"""Dishonest parties: inferred data, parties that stop them, and runs that stay unchanged."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from present import here

from fedtrees.attacks.malicious.nodes import rows_alike, unmoved_trees
from fedtrees.cli.registry import fill_template
from fedtrees.conformance.checks import check
from fedtrees.conformance.samples import sample_local_data, sample_table
from fedtrees.core.composition import Composition
from fedtrees.core.errors import BeyondParametersError, ProtocolError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.party import acting
from fedtrees.core.reasons import Unfit
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.requests import Once
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Composed, Spec, parse_composed
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.defenses.suppression import MinBin
from fedtrees.experiments.evaluate import evaluate_training, make_defense, run_training
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import DataRef
from fedtrees.messages.horizontal import BaseScore, CutPoints, FeatureSketch, LabelSumsRequest
from fedtrees.metrics.bins import BinCountsMetric
from fedtrees.metrics.metric import Case
from fedtrees.metrics.splits import MovedCutsMetric
from fedtrees.metrics.victims_rows import ReturnedRowsMetric
from fedtrees.protocols.base import Seat
from fedtrees.protocols.compatibility import KnownFacts, check_attacks, check_without_view
from fedtrees.protocols.cut_points import check_sketches
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train
from fedtrees.protocols.tree_limits import TreeLimits, check_splits
from fedtrees.protocols.views import view_of
from fedtrees.trees.partition import Decisions

HIST = FedTreeHist(trees=8, max_depth=2, max_bin=16)
WIDE = FedTreeHist(trees=20, max_depth=2, max_bin=16)


def cheated(behaviour, defense=None, protocol=HIST, adversary="server"):
    """Return the view of a dishonest party, its run, and the case for metrics."""
    local_data, (_, schema) = sample_local_data(protocol), sample_table()
    composition = Composition((defense,) if defense else ())
    options = {"seed": 3, "noise_from": "seed", "behaviours": {adversary: behaviour}}
    run = train(protocol, local_data, schema, defense=composition, **options)
    case = Case(
        local_data,
        run.transcript.roles,
        (adversary,),
        schema,
        Streams(0),
        transcript=run.transcript,
    )
    return view_of(run, (adversary,), local_data), run, case


def read(name, view):
    return register.make("attack", Spec(name)).run(view, np.random.default_rng(0))


def scored(view, case):
    guess = read("isolated-histogram", view)
    metric = BinCountsMetric()
    (score,) = metric.score(guess.claims, metric.truth(case))
    return score, guess.notes["opened"]


def test_a_threat_names_a_behaviour_of_a_role():
    threat = Threat.parse("server:isolating+client[count=2]")
    roles = {"server": "server", "client-0": "client", "client-1": "client", "client-2": "client"}
    assert threat.principals(roles) == ("server", "client-1", "client-2")
    assert threat.behaviours(roles) == {"server": "isolating"}
    assert threat.roles == ("server", "client")
    assert str(threat) == "server:isolating+client[count=2]"


SUMS = ["masking[mode=real]", "masking[mode=ideal]", "paillier[bits=1024]",
        "paillier[mode=ideal]", "secure-sum"]  # fmt: skip


@pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")
def test_splits_sent_to_one_client_reveal_its_bins_unless_sums_are_secure():
    view, run, case = cheated("isolating")
    score, opened = scored(view, case)
    assert (opened, run.refused) == (5, "")
    assert score.value == 1
    (counts,) = [BinCountsMetric().truth(case).counts[c] for c in ("client-2",)]
    assert score.blind >= np.unique(counts, axis=0, return_counts=True)[1].max() / len(counts)
    assert score.blind < 0.3
    for text in here("defense", SUMS):
        (sums,) = make_defense(parse_composed([text])[0]).parts
        view, run, case = cheated("isolating", sums)
        bare_score, opened = scored(view, case)
        assert opened == 0
        assert bare_score.value < 0.35
        if text.startswith("paillier"):  # The honest clients notice the difference.
            assert "not all parties received the same values" in run.refused
        else:
            assert (
                run.model.trees[-1].feature[0] < 0
            )  # The sums stay sealed, so the tree has no split.


@pytest.mark.parametrize(
    ("defense", "minimum_score"),
    [
        (LaplaceHistogram(epsilon=64.0), 0.99),
        (LaplaceHistogram(epsilon=10.0), 0.8),
        (MinBin(), 0.4),
    ],
)
def test_isolated_histograms_are_estimated_despite_noise_and_minimum_bins(defense, minimum_score):
    view, _, case = cheated("isolating", defense)
    score, opened = scored(view, case)
    assert opened == 5
    assert score.value > minimum_score
    # The noise in the histograms of one tree is independent of that of another.
    first_tree = tuple(s for s in view.seen if getattr(s.message, "tree", 0) == 0)
    score_of_first_tree, _ = scored(replace(view, seen=first_tree), case)
    assert (
        score.value >= score_of_first_tree.value - 0.05
    )  # noise of one tree is not that of another


def test_attacks_refuse_views_of_parties_with_another_behaviour():
    view, _, _ = cheated("isolating")

    attacks = [Spec("timberstrike"), Spec("joint", {"steps": 9}), Spec("isolated-histogram")]
    codes = [r.code for r in check_attacks(attacks, KnownFacts(view=view))]
    assert codes == ["other-behaviour", "other-behaviour", "fits"]
    assert (
        check_without_view(attacks[1], KnownFacts(view=view)).code == "other-behaviour"
    )  # the check that a benchmark makes before it has a view


def test_a_behaviour_must_fit_the_role_of_its_party():
    with pytest.raises(Unfit, match="replaces the behaviour of a DecidingServer"):
        cheated("isolating", adversary="client-0")
    with pytest.raises(UsageError, match="unknown behaviour"):
        cheated("isolatign")


def test_an_ideal_sum_refuses_to_open_for_a_single_party():
    local_data, (_, schema) = sample_local_data(HIST), sample_table()
    run = train(HIST, local_data, schema, defense=Composition((SecureSum(),)), seed=3)
    net = run.net
    with acting(net.party("server")), pytest.raises(BeyondParametersError, match="answered once"):
        net.request(
            "client-1", LabelSumsRequest(), reason="one party only"
        )  # a client answers each request once
    allow_second_answer = mock.patch.object(Once, "take")
    with (
        allow_second_answer,
        acting(net.party("server")),
        pytest.raises(ProtocolError, match="only would reveal"),
    ):
        net.request("client-1", LabelSumsRequest(), reason="one party only")


def moved_cuts_scores(behaviour, defense=None):
    """Return the scores of the attack `moved-cuts` by a client with this behaviour, and the run."""
    view, run, case = cheated(behaviour, defense, WIDE, "client-2")
    metric = MovedCutsMetric()
    truth = metric.truth(replace(case, model=run.model))
    scores = metric.score(read("moved-cuts", view).claims, truth) if truth else []
    return {score.key: score for score in scores}, run


def test_a_client_that_lies_beyond_its_rows_is_refused_unless_it_may_be_noise():
    for defense in (None, SecureSum(), MinBin()):
        scores, run = moved_cuts_scores("poisoned-unbounded", defense)
        assert "of tree 0 are beyond what" in run.refused
        assert not scores
    scores, run = moved_cuts_scores("poisoned-unbounded", LaplaceHistogram(epsilon=8.0))
    assert (scores["cuts_won"].value, run.refused) == (1.0, "")
    assert scores["cuts_won"].blind < 0.5
    scores, _ = moved_cuts_scores("poisoned")
    assert scores["cuts_won"].value < 1


def test_a_sketch_draws_cut_points_to_a_window_and_no_more_than_its_rows_can():
    scores, run = moved_cuts_scores("crafted-sketch")
    assert not run.refused
    assert scores["cuts_inside"].blind < 0.15 < 0.25 < scores["cuts_inside"].value < 0.6


def test_a_sketch_of_more_rows_than_its_client_declared_is_refused():
    scores, run = moved_cuts_scores("crafted-sketch-unbounded")
    assert "the sketch of 'client-2' counts" in run.refused
    assert not scores
    weights = np.array([5, -2, 4])
    part = FeatureSketch(np.arange(3.0), weights, np.array([0, 3], np.int32), np.zeros(1))
    net = SimpleNamespace(members=lambda _: ["a"], declared={"a": SimpleNamespace(rows=7)})
    with pytest.raises(BeyondParametersError, match="'a' counts 7 rows of a column; it declared 7"):
        check_sketches(net, [part])  # a weight below 0 would make room for others
    check_sketches(net, [replace(part, weights=abs(weights) - 2)])


def test_halving_splits_reveal_every_row_if_the_tree_may_be_deep_enough():
    for depth, maximum_share in ((14, 1.0), (3, 0.2)):
        protocol = FedTreeHist(trees=2, max_depth=depth, max_bin=16)
        view, run, case = cheated("halving", SecureSum(), protocol)
        metric = ReturnedRowsMetric()
        scores = metric.score(read("halved-rows", view).claims, metric.truth(case))
        values = {score.key: score.value for score in scores}
        assert not run.refused
        assert not values["returned_wrong"]
        assert (
            values["returned_right"] == 1
            if maximum_share == 1
            else values["returned_right"] < maximum_share
        )


def test_identified_rows_are_removed_so_that_more_rows_are_identified():
    view, _, case = cheated("halving", None, FedTreeHist(trees=8, max_depth=5, max_bin=16))
    cuts = next(m for _, m in view.messages(CutPoints)).offsets
    start = next(m for _, m in view.messages(BaseScore))
    trees = [tree.nodes(start, cuts) for tree in unmoved_trees(view, cuts)]
    at_once = sum(dict(rows_alike(trees, cuts)).values())
    metric = ReturnedRowsMetric()
    scores = metric.score(read("halved-rows", view).claims, metric.truth(case))
    values = {score.key: score.value for score in scores}
    assert not values["returned_wrong"]
    assert values["returned_rows"] > 1.1 * at_once


def test_single_rows_are_identified_through_little_noise_and_none_through_much():
    rng, names = np.random.default_rng(0), [f"f{k}" for k in range(6)]
    schema = Schema(tuple(Feature(n, complete=True) for n in names), "y", ("0", "1"))
    X, y = rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 2
    local_data = over_clients([Table(X[client::3], y[client::3]) for client in range(3)])
    protocol, metric = FedTreeHist(trees=4, max_depth=6, max_bin=8), ReturnedRowsMetric()
    for epsilon, minimum_share, maximum_share in ((200.0, 0.2, 1.0), (1.0, 0.0, 0.0)):
        noise = Composition((LaplaceHistogram(epsilon=epsilon),))
        options = {"seed": 3, "noise_from": "seed", "behaviours": {"server": "halving"}}
        run = train(protocol, local_data, schema, defense=noise, **options)
        roles, transcript = run.transcript.roles, run.transcript
        case = Case(local_data, roles, ("server",), schema, Streams(0), transcript=transcript)
        guess = read("halved-rows", view_of(run, ("server",), local_data))
        if not guess.claims:
            assert guess.reason.code == "no-certain-rows"
            assert minimum_share == 0
            continue
        scores = metric.score(guess.claims, metric.truth(case))
        values = {score.key: score.value or 0.0 for score in scores}
        assert values["returned_wrong"] == 0
        assert minimum_share <= values["returned_right"] <= maximum_share


@pytest.mark.parametrize(
    ("changed_fields", "error_message"),
    [
        ({"bin": 3}, "bin 3 of column 0 is no cut"),
        ({"bin": -1}, "bin -1 of column 0 is no cut"),
        ({"left": 3}, "its children begin at 3; next is 1"),
        ({"nodes": 1}, "node 1 was never announced"),
        (
            {"feature": 1, "bin": 3},
            "",
        ),  # allowed: the rows with a missing value may form a child of their own
    ],
)
def test_a_client_refuses_splits_that_the_parameters_exclude(changed_fields, error_message):
    arguments = np.array([4, 4]), np.array([True, False])
    split_fields = {"nodes": 0, "feature": 0, "bin": 1, "left": 1, **changed_fields}
    arrays = {key: np.array([value], dtype=np.int32) for key, value in split_fields.items()}
    split = Decisions(threshold=np.zeros(1, np.float32), default_left=np.ones(1, bool), **arrays)
    tree = TreeLimits(HIST.max_depth, HIST.max_leaves, in_order=True)
    if not error_message:
        check_splits(split, tree, *arguments)
        return
    with pytest.raises(BeyondParametersError, match=error_message):
        check_splits(split, tree, *arguments)


def test_a_client_answers_for_one_child_of_a_split_and_not_below_the_maximum_depth():
    tree = TreeLimits(HIST.max_depth, HIST.max_leaves, in_order=True)
    tree.request(0)
    for node, left in ((0, 1), (1, 3)):
        tree.split(node, left)
    tree.request(2)
    for node_requested, error_message in (
        (2, "or its sibling was requested before"),
        (3, "max_depth=2"),
    ):
        with pytest.raises(BeyondParametersError, match=error_message):
            tree.request(node_requested)
    with pytest.raises(BeyondParametersError, match="node 0 was split before"):
        tree.split(0, 5)


def test_a_client_accepts_cut_points_once_and_at_most_the_agreed_number_of_bins():
    local_data, (_, schema) = sample_local_data(HIST), sample_table()
    client = HIST.create_party(
        Seat("client-0", "client", local_data["client-0"], schema, Composition())
    )
    few, many = (
        CutPoints(np.arange(n * 5, dtype=np.float32), np.arange(0, n * 5 + 1, n, dtype=np.int32),
                  np.full(5, -99, np.float32)) for n in (9, 17)
    )  # fmt: skip
    with pytest.raises(BeyondParametersError, match="17 bins of 'a'; at most 16"):
        client.answer(many)
    client.answer(few)
    with pytest.raises(BeyondParametersError, match="already received cut points"):
        client.answer(few)


def test_a_new_behaviour_is_short_and_keeps_the_rules(tmp_path):
    path = tmp_path / "greedy.py"
    path.write_text(fill_template("behaviour", "greedy", path))
    assert len(path.read_text().splitlines()) < 40
    load_plugin(path)
    findings = check("behaviour", Spec("greedy"), ["fedtree-hist", "secureboost"])
    assert len(findings) > 3
    assert all(f.holds for f in findings), findings
    assert not [f for f in check("behaviour", Spec("greedy"), ["secureboost"])[-1:] if f.holds]


def test_the_behaviours_here_keep_the_rules():
    for name in register.names("behaviour"):
        findings = check("behaviour", Spec(name), ["fedtree-hist", "secureboost"])
        assert all(f.holds for f in findings), findings


def test_a_run_that_an_honest_party_stopped_has_a_detection_but_no_auc(tmp_path):
    path = tmp_path / "prying.py"
    path.write_text(fill_template("behaviour", "prying", path))
    load_plugin(path)
    setting = FederationConfig.of(DataRef("wine"), Spec("iid"), 3, 0, HIST)
    config = Spec("fedtree-hist", {"trees": 2, "max_depth": 3})
    cell = Task.for_training(setting, config, Composed(), (("server", "prying"),))
    federation = federation_of(setting, None)
    run = run_training(cell, federation)
    assert "or its sibling was requested before" in run.refused
    evaluation = evaluate_training(cell, federation, run, 1.0, 1.0)
    values = {row["metric"]: row["value"] for row in evaluation.rows}
    assert values["detection"] == 1
    assert "auc" not in values
    assert (evaluation.common["stage"], evaluation.common["threat"]) == ("cheated", "server:prying")
