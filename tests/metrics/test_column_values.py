"""Claimed columns are compared with the columns of the victims."""

import numpy as np
import pytest

from fedtrees.core.claims import ColumnValues
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.metrics.column_values import ColumnValuesMetric
from fedtrees.metrics.metric import Case

SCHEMA = Schema((Feature("a"), Feature("b", low=0, high=3)), "y")
TABLES = {
    "mine": [[1, 0], [2, 1], [2, 1], [9, 3]],
    "hers": [[1, 0], [2, 1], [2, np.nan], [5, 2]],
    "his": [[7, 3]],
}


def case(principals=("mine",)):
    local_data = {
        name: LocalData.of(Table(np.array(rows, dtype=np.float32), np.zeros(len(rows), np.int64)))
        for name, rows in TABLES.items()
    }
    return Case(local_data, dict.fromkeys(local_data, "client"), principals, SCHEMA, Streams(0))


def claim(owner, feature, **counts):
    values = np.array([float(v.strip("v")) for v in counts], dtype=np.float32)
    return ColumnValues(owner, feature, values, np.array(list(counts.values())), True)


def scores(*claims):
    metric, truth = ColumnValuesMetric(), ColumnValuesMetric().truth(case())
    return {s.name: s.value for s in metric.score(claims, truth)}


ALL = (
    claim("hers", 0, v1=1, v2=2, v5=1),
    claim("hers", 1, v0=1, v1=1, v2=1),
    claim("his", 0, v7=1),
    claim("his", 1, v3=1),
)


def test_the_columns_themselves_score_one():
    assert scores(*ALL) == {"column_values": 1, "column_extremes": 1, "column_singles": 1}


def test_columns_without_a_claim_score_nothing():
    # There are 9 cells, of which 7 are single values, and 4 columns with two ends each.
    assert scores(ALL[0]) == {
        "column_values": 4 / 9,
        "column_extremes": 2 / 8,
        "column_singles": 2 / 7,
    }


def test_copies_count_and_claiming_too_many_does_not_pay():
    one_copy = scores(claim("hers", 0, v1=1, v2=1, v5=1))
    assert one_copy["column_values"] == 3 / 9
    many_copies = scores(claim("hers", 0, v0=1, v1=2, v2=2, v3=1, v5=2))
    assert many_copies["column_values"] == pytest.approx(4 / 9 * 4 / 8)
    assert many_copies["column_singles"] == 0
    assert many_copies["column_extremes"] == 1 / 8


def test_claiming_every_possible_value_does_not_find_the_single_ones():
    every = ColumnValues("hers", 0, np.arange(100, dtype=np.float32), np.ones(100, int), True)
    assert scores(every)["column_singles"] == pytest.approx(2 / 7 * 2 / 100)
    enough = scores(claim("hers", 0, v1=1, v5=1))  # no more than there are
    assert enough["column_singles"] == pytest.approx(2 / 7)


def test_the_blind_baseline_uses_own_columns_or_declared_values():
    metric, client_case = ColumnValuesMetric(), case()
    baseline = metric.line(client_case, metric.truth(client_case), {})
    # Own column a (1, 2, 2, 9) matches 1, 2, 2 of hers; own b as three cells is 0, 1, 1 or 1, 1, 3.
    assert baseline["column_values"] >= 4 / 9
    assert baseline["column_extremes"] >= 2 / 8
    server = case(principals=())
    blind = metric.blind(server, metric.truth(server))
    assert set(blind) == {"declared", "zeros", "rounded-range"}
    declared_claims = {(c.owner, c.feature): c.values.tolist() for c in blind["declared"]}
    assert declared_claims["mine", 1] == [0, 1, 2, 3]
    assert declared_claims["mine", 0] == []


def test_the_baseline_of_a_vertical_party_is_its_own_values():
    ids = np.arange(4)
    own_data = LocalData(ids, np.array([0]), np.array([[1], [2], [2], [3]], np.float32))
    victim_data = LocalData(ids, np.array([1]), np.array([[1], [2], [3], [3]], np.float32))
    schema = Schema((Feature("a"), Feature("b")), "y")
    local_data = {"active": own_data, "passive-1": victim_data}
    vertical_case = Case(
        local_data, {name: name for name in local_data}, ("active",), schema, Streams(0)
    )
    metric = ColumnValuesMetric()
    # It matches 1, 2 and one 3.
    assert metric.line(vertical_case, metric.truth(vertical_case), {})["column_values"] == 3 / 4


def test_claims_of_columns_that_no_victim_has_are_refused():
    metric, client_case = ColumnValuesMetric(), case()
    assert metric.refuses(ALL, client_case) is None
    assert "no victim has it" in metric.refuses([claim("mine", 0, v1=1)], client_case)
    assert "no victim has it" in metric.refuses([claim("hers", 2, v1=1)], client_case)
    assert "more than once" in metric.refuses([ALL[0], ALL[0]], client_case)


def test_the_category_error_is_the_difference_of_the_claimed_and_the_true_share():
    schema = Schema((Feature("a", kind="categorical", categories=("x", "y")),), "y")
    X = np.array([[0], [1], [1], [1]], dtype=np.float32)
    local_data = {name: LocalData.of(Table(X, np.zeros(4, np.int64))) for name in ("mine", "hers")}
    metric = ColumnValuesMetric()
    truth = metric.truth(
        Case(local_data, dict.fromkeys(local_data, "client"), ("mine",), schema, Streams(0))
    )

    def error(*claims):
        return {score.name: score.value for score in metric.score(claims, truth)}["category_error"]

    assert error(claim("hers", 0, v0=1, v1=3)) == 0
    assert error(claim("hers", 0, v0=2, v1=2)) == error() == 0.25
