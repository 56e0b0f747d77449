"""Guessed labels are compared with the true ones, whatever the clusters are called."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.attacks.blind_labels import ClusterOwnColumns
from fedtrees.blind_baselines.conditional import METHODS
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data.partition import columns_of
from fedtrees.experiments.evaluate import score_guess
from fedtrees.metrics.labels import LabelScores, TrueLabels
from fedtrees.metrics.metric import Case


def scores(cluster, y, classes, probability=None, ids=None):
    ids = np.arange(len(y)) if ids is None else ids
    claim = Labels(np.asarray(ids), np.asarray(cluster), probability)
    truth = TrueLabels(np.arange(len(y)), np.asarray(y), classes)
    return {s.name: s.value for s in LabelScores().score([claim], truth)}


def case(classes=2, n_rows=60, seed=0, principals=("passive-0",)):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n_rows)
    X = rng.normal(size=(n_rows, 4))
    X[:, 2:] += 5 * y[:, None]
    schema = Schema(
        tuple(Feature(f"x{number}") for number in range(4)), "y", tuple(map(str, range(classes)))
    )
    table = Table(X, y)
    local_data = {
        "active": columns_of(table, np.array([0]), True),
        "passive-0": columns_of(table, np.array([2, 3]), False),
        "passive-1": columns_of(table, np.array([1]), False),
    }
    roles = {"active": "active", "passive-0": "passive", "passive-1": "passive"}
    return Case(local_data, roles, principals, schema, Streams(seed), "passive"), y


@settings(max_examples=15, deadline=None)
@given(n_rows=st.integers(2, 40), n_classes=st.integers(2, 5), seed=st.integers(0, 2**30))
def test_names_of_clusters_and_order_of_rows_change_no_score(n_rows, n_classes, seed):
    rng = np.random.default_rng(seed)
    y, cluster = rng.integers(0, n_classes, n_rows), rng.integers(0, n_classes + 1, n_rows)
    names = rng.permutation(n_classes + 1) * 7 - 3
    permutation = rng.permutation(n_rows)
    original = scores(cluster, y, n_classes)
    renamed = scores(names[cluster][permutation], y, n_classes, ids=permutation)
    assert renamed == pytest.approx(original)


@settings(max_examples=10, deadline=None)
@given(n_rows=st.integers(2, 40), n_classes=st.integers(2, 5), seed=st.integers(0, 2**30))
def test_the_truth_with_any_cluster_names_scores_perfectly(n_rows, n_classes, seed):
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 1], rng.integers(0, n_classes, n_rows)])
    scores_of_truth = scores((rng.permutation(n_classes) + 3)[y], y, n_classes)
    assert [
        scores_of_truth[name] for name in ("v_measure", "ami", "label_accuracy")
    ] == pytest.approx([1, 1, 1])
    assert {measure.best for measure in LabelScores.measures} == {1.0}


def test_accuracy_is_that_of_the_best_matching_by_hand():
    y = [0, 0, 0, 1, 1, 2]
    assert scores([9, 9, 4, 4, 4, 4], y, 3)["label_accuracy"] == pytest.approx(4 / 6)
    assert scores([0] * 6, y, 3)["label_accuracy"] == pytest.approx(3 / 6)
    assert scores([0] * 6, y, 3)["v_measure"] == 0


def test_rows_without_a_claim_are_clusters_of_their_own():
    y = [0, 0, 1, 1]
    partial_scores = scores([0, 1], y, 2, ids=[0, 2])
    scores_with_singletons = scores([0, 2, 1, 3], y, 2)
    assert partial_scores == scores_with_singletons
    assert partial_scores["label_accuracy"] == 0.5
    scores_of_nothing = scores(np.zeros(0, int), y, 2, ids=np.zeros(0, int))
    assert scores_of_nothing == scores([5, 6, 7, 8], y, 2)


def test_auc_needs_probabilities_of_all_rows_and_two_classes():
    y = np.array([0, 1, 0, 1])
    sure = np.column_stack([1 - y, y]).astype(float)
    assert scores(y, y, 2, sure)["label_auc"] == 1
    assert scores(y, y, 2, sure[:, ::-1])["label_auc"] == 0
    turn = np.array([3, 1, 0, 2])
    assert scores(y[turn], y, 2, sure[turn], ids=turn)["label_auc"] == 1
    assert scores(y, y, 2)["label_auc"] is None
    assert scores(y[:3], y, 2, sure[:3], ids=np.arange(3))["label_auc"] is None
    assert scores([0, 0], [0, 0], 2, np.full((2, 2), 0.5))["label_auc"] is None


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_blind_baseline_clusters_the_columns_of_the_adversary(classes):
    label_case, y = case(classes)
    (claim,) = ClusterOwnColumns().run(label_case.blind_view(), label_case.blind_rng()).claims
    assert claim.ids.tolist() == list(range(60))
    assert len(np.unique(claim.cluster)) == classes
    metric = LabelScores()
    truth = metric.truth(label_case)
    np.testing.assert_array_equal(truth.y, y)
    blind = metric.blind(label_case, truth)
    assert list(blind)[:3] == ["one-cluster", "cl", "k-means"]
    assert {name.removesuffix("-z") for name in [*blind][2:]} == {*METHODS}
    best = metric.best_of({name: metric.score(claims, truth) for name, claims in blind.items()})
    assert best["label_accuracy"].value > 0.9  # These columns determine the label.
    baseline = metric.line(label_case, truth, {})
    assert baseline == {name: score.value for name, score in best.items()}
    joint_case, _ = case(classes, principals=("passive-0", "passive-1"))
    assert metric.blind(joint_case, truth)["cl"][0].ids.tolist() == list(range(60))


@pytest.mark.long
def test_the_baseline_includes_other_clusterings_than_cl():
    """One row in ten has class 1 and larger values in six columns; a coin column misleads cl."""
    rng = np.random.default_rng(0)
    y = (np.arange(400) % 10 == 0).astype(np.int64)
    X = np.column_stack([rng.normal(2.0 * y[:, None], 0.5, (400, 6)), rng.integers(0, 2, 400)])
    ids, passive_columns, no_columns = np.arange(400), np.arange(7), np.zeros(0, dtype=int)
    local_data = {
        "active": LocalData(ids, no_columns, np.zeros((400, 0)), y),
        "passive-0": LocalData(ids, passive_columns, X),
    }
    schema = Schema(tuple(Feature(f"x{number}") for number in range(7)), "y")
    roles = {"active": "active", "passive-0": "passive"}
    label_case = Case(local_data, roles, ("passive-0",), schema, Streams(0))
    metric = LabelScores()
    truth = metric.truth(label_case)
    v_measures = {
        name: {score.name: score.value for score in metric.score(claims, truth)}["v_measure"]
        for name, claims in metric.blind(label_case, truth).items()
    }
    assert v_measures["cl"] < 0.01
    assert metric.line(label_case, truth, {})["v_measure"] == max(v_measures.values()) > 0.9


def test_missing_values_and_empty_columns_are_accepted():
    label_case, _ = case()
    passive_data = label_case.local_data["passive-0"]
    X = np.column_stack([passive_data.X, np.full(60, np.nan), np.ones(60)])
    X[::7, 0] = np.nan
    label_case.local_data["passive-0"] = LocalData(passive_data.ids, np.array([2, 3, 0, 1]), X)
    (claim,) = ClusterOwnColumns().run(label_case.blind_view(), label_case.blind_rng()).claims
    assert len(np.unique(claim.cluster)) == 2
    label_case.local_data["passive-0"] = LocalData(
        passive_data.ids, passive_data.columns, np.full((60, 2), np.nan)
    )
    assert ClusterOwnColumns().run(label_case.blind_view(), label_case.blind_rng()).claims == ()


@pytest.mark.parametrize("principals", [("active",), ("server",)])
def test_a_party_with_labels_or_without_rows_has_no_labels_to_guess(principals):
    label_case, _ = case(principals=principals)
    assert LabelScores().truth(label_case) is None
    assert "have no rows without labels" in str(
        ClusterOwnColumns().inapplicable(label_case.blind_view())
    )
    assert ClusterOwnColumns().run(label_case.blind_view(), label_case.blind_rng()).claims == ()


def test_a_single_cluster_is_a_blind_guess_too():
    """If 9 in 10 rows have one class, a constant guess is right for 9 in 10."""
    metric, y = LabelScores(), np.array([1] * 6 + [0] * 54)
    truth = TrueLabels(np.arange(60), y, 2)
    label_case, _ = case()
    blind = metric.blind(label_case, truth)
    (scores,) = ({score.name: score.value for score in metric.score(blind["one-cluster"], truth)},)
    assert scores["label_accuracy"] == 0.9
    assert (scores["v_measure"], scores["label_auc"]) == (0, 0.5)


def test_rows_without_a_label_at_any_other_party_are_not_scored():
    label_case, _ = case()
    active_data = label_case.local_data["active"]
    label_case.local_data["active"] = LocalData(
        active_data.ids + 1000, active_data.columns, active_data.X, active_data.y
    )
    assert LabelScores().truth(label_case) is None


def test_labels_that_cannot_be_compared_are_refused():
    label_case, _ = case()
    claim = Labels(np.arange(3), np.zeros(3, int))
    for claims, error_message in (
        ((claim, claim), "claimed more than once"),
        ((Labels(np.array([1, 77]), np.zeros(2, int)),), r"unknown ids \[77\]"),
    ):
        with pytest.raises(ProtocolError, match=f"attack 'odd': labels.*{error_message}"):
            list(score_guess("odd", Guess(claims), label_case, None))
    for arguments in (
        (np.arange(3), np.zeros(2, int)),
        (np.arange(3), np.zeros(3, int), np.zeros((2, 2))),
        (np.zeros((3, 1)), np.zeros((3, 1))),
    ):
        with pytest.raises(ProtocolError, match="give one of shape"):
            Labels(*arguments)
