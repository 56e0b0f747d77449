"""Metrics of vertical federations match the rows of different parties by their ids."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.metrics.bins import ColumnBinsMetric
from fedtrees.metrics.labels import RoutedLabelScores
from fedtrees.metrics.metric import Case
from fedtrees.metrics.splits import ColumnRanksMetric, orders_of_own
from fedtrees.metrics.thresholds import BranchesMetric
from fedtrees.trees.boosted.forest import Tree

SCHEMA = Schema((Feature("a"), Feature("b")), "y", ("0", "1"))


def party(ids, column, x, y=None):
    X = np.asarray(x, dtype=np.float32)[:, None]
    return LocalData(np.asarray(ids), np.array([column]), X, None if y is None else np.asarray(y))


@pytest.fixture
def case():
    """The adversary has 20 rows, and the victim the 10 last of them, both columns in one order."""
    values = np.arange(20)
    bins = {("passive-1", 1): values[10:] // 5}
    data = {
        "active": party(values, 0, values, values % 2),
        "passive-1": party(values[10:], 1, values[10:]),
    }
    roles = {"active": "active", "passive-1": "passive"}
    return Case(data, roles, ("active",), SCHEMA, Streams(0), bins_of_rows=bins)


def test_blind_bins_are_assigned_to_the_rows_that_the_column_has(case):
    metric = ColumnBinsMetric()
    truth = metric.truth(case)
    (claim,) = metric.blind(case, truth)["columns-of-active"]
    assert claim.ids.tolist() == list(range(10, 20))
    assert metric.score([claim], truth)[0].value == 1


def test_blind_rank_intervals_are_ranks_among_the_rows_that_the_column_has(case):
    metric = ColumnRanksMetric()
    truth = metric.truth(case)
    claims = metric.blind(case, truth)["columns-of-active-within-0.1"]
    width = {s.key: s.value for s in metric.score(claims, truth)}["rank_width"]
    assert width < 0.2


def test_labels_of_every_principal_are_an_order(case):
    second = party(np.arange(20), 0, np.zeros(20), np.arange(20) // 10)
    colluding = replace(
        case,
        local_data={**case.local_data, "second": second},
        principals=("active", "second"),
    )
    truth = ColumnRanksMetric().truth(colluding)
    assert {"labels-of-active", "labels-of-second"} <= set(orders_of_own(colluding, truth.columns))


def test_training_rows_of_parties_are_joined_by_id():
    """The passive party stores the same rows in reverse order, and splits at 10."""
    values = np.arange(20)
    split, child = np.array([1, -1, -1]), np.array([1, -1, -1])
    value = np.zeros(3, dtype=np.float32)
    tree = Tree(split, 10.0 * (split > 0), child, child + (child > 0), split > 0, value)
    model = SimpleNamespace(trees=(tree,))
    data = {
        "active": party(values, 0, values, values % 2),
        "passive-1": party(values[::-1], 1, values[::-1]),
    }
    queries = Table(np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64))
    case = Case(data, {"active": "active", "passive-1": "passive"}, ("active",), SCHEMA,
                Streams(0), model=model, queried_rows=queries,
                splits={(0, 0): ("passive-1", 1, 10.0)})  # fmt: skip
    truth = BranchesMetric().truth(case)
    assert truth.trained[:, 0].tolist() == [1] * 10 + [0] * 10


def test_colluding_parties_guess_by_the_most_similar_column_of_all_of_them():
    """The column "radius 2" is similar to "radius 1", which the second principal has."""
    names = ("weight 1", "radius 1", "weight 2", "radius 2")
    schema = Schema(tuple(map(Feature, names)), "y", ("0", "1"))
    size, weight = np.arange(20), np.arange(20)[::-1] % 7
    data = {
        "active": party(size, 0, weight, size % 2),
        "passive-1": party(size[::-1], 1, size[::-1]),
        "passive-2": LocalData(size, np.array([2, 3]),
                               np.stack([weight, size], axis=1).astype(np.float32)),
    }  # fmt: skip
    roles = dict.fromkeys(data, "passive")
    case = Case(data, roles, ("active", "passive-1"), schema, Streams(0))
    metric = ColumnRanksMetric()
    truth = metric.truth(case)
    scores = {
        name: {s.key: s.value for s in metric.score(claims, truth)}["rank_correlation"]
        for name, claims in metric.blind(case, truth).items()
    }
    assert scores["names-of-all"] == pytest.approx(1)
    assert max(scores["names-of-active"], scores["names-of-passive-1"]) < 0.9


def test_colluding_parties_order_rows_to_predict_by_their_columns_together():
    """Noise with opposite signs in both columns cancels in their first principal component."""
    rng = np.random.default_rng(0)
    signal, noise = rng.normal(size=40), rng.normal(size=40)
    X = np.stack([signal + noise / 2, signal - noise / 2], axis=1).astype(np.float32)
    y = (signal > np.median(signal)).astype(np.int64)
    ids = np.arange(5)
    data = {
        "active": LocalData(ids, np.zeros(0, dtype=np.intp), np.zeros((5, 0)), ids % 2),
        "passive-1": party(ids, 0, ids),
        "passive-2": party(ids, 1, ids),
    }
    case = Case(data, dict.fromkeys(data, "passive"), ("passive-1", "passive-2"), SCHEMA,
                Streams(0), queried_rows=Table(X, y))  # fmt: skip
    metric = RoutedLabelScores()
    truth = metric.truth(case)
    auc = {
        name: {s.key: s.value for s in metric.score(claims, truth)}["routed_auc"]
        for name, claims in metric.blind(case, truth).items()
    }
    assert auc["columns-of-all"] > 0.99
    assert max(auc["columns-of-passive-1"], auc["columns-of-passive-2"]) < 0.99
