"""Guessed labels against true ones: what clusters are called changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.attacks.blind_labels import ClusterOwnColumns
from fedtrees.blind_baselines.clusters import METHODS
from fedtrees.core.claims import Guess, Labels
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data.layout import columns_of
from fedtrees.experiments.evaluate import score_guess
from fedtrees.metrics.labels import LabelScores, TrueLabels
from fedtrees.metrics.metric import Case


def scores(cluster, y, classes, probability=None, ids=None):
    ids = np.arange(len(y)) if ids is None else ids
    claim = Labels(np.asarray(ids), np.asarray(cluster), probability)
    truth = TrueLabels(np.arange(len(y)), np.asarray(y), classes)
    return {s.name: s.value for s in LabelScores().score([claim], truth)}


def case(classes=2, n=60, seed=0, principals=("passive-0",)):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    X = rng.normal(size=(n, 4))
    X[:, 2:] += 5 * y[:, None]
    schema = Schema(tuple(Feature(f"x{i}") for i in range(4)), "y", tuple(map(str, range(classes))))
    table = Table(X, y)
    held = {
        "active": columns_of(table, np.array([0]), True),
        "passive-0": columns_of(table, np.array([2, 3]), False),
        "passive-1": columns_of(table, np.array([1]), False),
    }
    roles = {"active": "active", "passive-0": "passive", "passive-1": "passive"}
    return Case(held, roles, principals, schema, Streams(seed), "passive"), y


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 40), k=st.integers(2, 5), seed=st.integers(0, 2**30))
def test_names_of_clusters_and_order_of_rows_change_nothing(n, k, seed):
    rng = np.random.default_rng(seed)
    y, cluster = rng.integers(0, k, n), rng.integers(0, k + 1, n)
    names = rng.permutation(k + 1) * 7 - 3
    turn = rng.permutation(n)
    plain = scores(cluster, y, k)
    renamed = scores(names[cluster][turn], y, k, ids=turn)
    assert renamed == pytest.approx(plain)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(2, 40), k=st.integers(2, 5), seed=st.integers(0, 2**30))
def test_the_truth_under_any_names_is_perfect(n, k, seed):
    rng = np.random.default_rng(seed)
    y = np.concatenate([[0, 1], rng.integers(0, k, n)])
    got = scores((rng.permutation(k) + 3)[y], y, k)
    assert [got[s] for s in ("v_measure", "ami", "label_accuracy")] == pytest.approx([1, 1, 1])
    assert {m.best for m in LabelScores.measures} == {1.0}


def test_accuracy_is_that_of_the_best_matching_by_hand():
    y = [0, 0, 0, 1, 1, 2]
    assert scores([9, 9, 4, 4, 4, 4], y, 3)["label_accuracy"] == pytest.approx(4 / 6)
    assert scores([0] * 6, y, 3)["label_accuracy"] == pytest.approx(3 / 6)
    assert scores([0] * 6, y, 3)["v_measure"] == 0


def test_rows_that_are_left_out_are_clusters_of_their_own():
    y = [0, 0, 1, 1]
    part = scores([0, 1], y, 2, ids=[0, 2])
    alone = scores([0, 2, 1, 3], y, 2)
    assert part == alone
    assert part["label_accuracy"] == 0.5
    nothing = scores(np.zeros(0, int), y, 2, ids=np.zeros(0, int))
    assert nothing == scores([5, 6, 7, 8], y, 2)


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
def test_the_blind_baseline_clusters_what_somebody_holds_of_the_rows(classes):
    found, y = case(classes)
    (claim,) = ClusterOwnColumns().run(found.blind_view(), found.blind_rng()).claims
    assert claim.ids.tolist() == list(range(60))
    assert len(np.unique(claim.cluster)) == classes
    metric = LabelScores()
    truth = metric.truth(found)
    np.testing.assert_array_equal(truth.y, y)
    blind = metric.blind(found, truth)
    assert list(blind)[:3] == ["one-cluster", "cl", "k-means"]
    assert {name.removesuffix("-z") for name in [*blind][2:]} == {*METHODS}
    best = metric.best_of({name: metric.score(claims, truth) for name, claims in blind.items()})
    assert best["label_accuracy"].value > 0.9  # these columns say it
    line = metric.line(found, truth, {})
    assert line == {name: b.value for name, b in best.items()}
    both, _ = case(classes, principals=("passive-0", "passive-1"))
    assert metric.blind(both, truth)["cl"][0].ids.tolist() == list(range(60))


@pytest.mark.long
def test_who_clusters_otherwise_than_by_k_means_is_no_better_than_the_blind_baseline():
    """One row in ten is of class 1 and lies a little higher in six columns; a coin splits all."""
    rng = np.random.default_rng(0)
    y = (np.arange(400) % 10 == 0).astype(np.int64)
    X = np.column_stack([rng.normal(2.0 * y[:, None], 0.5, (400, 6)), rng.integers(0, 2, 400)])
    ids, left, right = np.arange(400), np.arange(7), np.zeros(0, dtype=int)
    held = {
        "active": LocalData(ids, right, np.zeros((400, 0)), y),
        "passive-0": LocalData(ids, left, X),
    }
    schema = Schema(tuple(Feature(f"x{k}") for k in range(7)), "y")
    roles = {"active": "active", "passive-0": "passive"}
    found = Case(held, roles, ("passive-0",), schema, Streams(0))
    metric = LabelScores()
    truth = metric.truth(found)
    one = {
        name: {s.name: s.value for s in metric.score(claims, truth)}["v_measure"]
        for name, claims in metric.blind(found, truth).items()
    }
    assert one["cl"] < 0.01
    assert metric.line(found, truth, {})["v_measure"] == max(one.values()) > 0.9


def test_missing_values_and_empty_columns_do_not_stop_it():
    found, _ = case()
    mine = found.local_data["passive-0"]
    X = np.column_stack([mine.X, np.full(60, np.nan), np.ones(60)])
    X[::7, 0] = np.nan
    found.local_data["passive-0"] = LocalData(mine.ids, np.array([2, 3, 0, 1]), X)
    (claim,) = ClusterOwnColumns().run(found.blind_view(), found.blind_rng()).claims
    assert len(np.unique(claim.cluster)) == 2
    found.local_data["passive-0"] = LocalData(mine.ids, mine.columns, np.full((60, 2), np.nan))
    assert ClusterOwnColumns().run(found.blind_view(), found.blind_rng()).claims == ()


@pytest.mark.parametrize("principals", [("active",), ("server",)])
def test_who_has_the_labels_or_no_rows_has_none_to_guess(principals):
    found, _ = case(principals=principals)
    assert LabelScores().truth(found) is None
    assert "have no rows without labels" in str(
        ClusterOwnColumns().inapplicable(found.blind_view())
    )
    assert ClusterOwnColumns().run(found.blind_view(), found.blind_rng()).claims == ()


def test_one_cluster_is_a_blind_guess_too():
    """With 9 in 10 rows of one class, who says nothing is right of 9 in 10."""
    metric, y = LabelScores(), np.array([1] * 6 + [0] * 54)
    truth = TrueLabels(np.arange(60), y, 2)
    found, _ = case()
    blind = metric.blind(found, truth)
    (scores,) = ({s.name: s.value for s in metric.score(blind["one-cluster"], truth)},)
    assert scores["label_accuracy"] == 0.9
    assert (scores["v_measure"], scores["label_auc"]) == (0, 0.5)


def test_rows_whose_labels_nobody_else_has_cannot_be_scored():
    found, _ = case()
    labelled = found.local_data["active"]
    found.local_data["active"] = LocalData(
        labelled.ids + 1000, labelled.columns, labelled.X, labelled.y
    )
    assert LabelScores().truth(found) is None


def test_labels_that_cannot_be_compared_are_refused_and_named():
    found, _ = case()
    some = Labels(np.arange(3), np.zeros(3, int))
    for claims, said in (
        ((some, some), "claimed more than once"),
        ((Labels(np.array([1, 77]), np.zeros(2, int)),), r"unknown ids \[77\]"),
    ):
        with pytest.raises(ProtocolError, match=f"attack 'odd': labels.*{said}"):
            list(score_guess("odd", Guess(claims), found, None))
    for wrong in (
        (np.arange(3), np.zeros(2, int)),
        (np.arange(3), np.zeros(3, int), np.zeros((2, 2))),
        (np.zeros((3, 1)), np.zeros((3, 1))),
    ):
        with pytest.raises(ProtocolError, match="give one of shape"):
            Labels(*wrong)
