"""Columns that are claimed against the victims' own."""

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
    held = {
        name: LocalData.of(Table(np.array(rows, dtype=np.float32), np.zeros(len(rows), np.int64)))
        for name, rows in TABLES.items()
    }
    return Case(held, dict.fromkeys(held, "client"), principals, SCHEMA, Streams(0))


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


def test_what_is_not_claimed_counts_nothing():
    # 9 cells, of which 7 are single values; 4 columns with two ends each
    assert scores(ALL[0]) == {
        "column_values": 4 / 9,
        "column_extremes": 2 / 8,
        "column_singles": 2 / 7,
    }


def test_copies_are_counted_and_more_than_there_are_do_not_pay():
    one_copy = scores(claim("hers", 0, v1=1, v2=1, v5=1))
    assert one_copy["column_values"] == 3 / 9
    many = scores(claim("hers", 0, v0=1, v1=2, v2=2, v3=1, v5=2))
    assert many["column_values"] == pytest.approx(4 / 9 * 4 / 8)
    assert many["column_singles"] == 0
    assert many["column_extremes"] == 1 / 8


def test_claiming_every_possible_value_does_not_find_the_single_ones():
    every = ColumnValues("hers", 0, np.arange(100, dtype=np.float32), np.ones(100, int), True)
    assert scores(every)["column_singles"] == pytest.approx(2 / 7 * 2 / 100)
    enough = scores(claim("hers", 0, v1=1, v5=1))  # no more than there are
    assert enough["column_singles"] == pytest.approx(2 / 7)


def test_the_blind_baseline_is_of_own_columns_or_declared_values():
    metric, now = ColumnValuesMetric(), case()
    line = metric.line(now, metric.truth(now), {})
    # own a: 1, 2, 2, 9 meets hers in 1, 2, 2; own b as three cells: 0, 1, 1 or 1, 1, 3
    assert line["column_values"] >= 4 / 9
    assert line["column_extremes"] >= 2 / 8
    server = case(principals=())
    blind = metric.blind(server, metric.truth(server))
    assert set(blind) == {"declared", "zeros", "rounded-range"}
    told = {(c.owner, c.feature): c.values.tolist() for c in blind["declared"]}
    assert told["mine", 1] == [0, 1, 2, 3]
    assert told["mine", 0] == []


def test_who_holds_other_columns_of_the_rows_takes_their_values_for_others():
    ids = np.arange(4)
    own = LocalData(ids, np.array([0]), np.array([[1], [2], [2], [3]], np.float32))
    theirs = LocalData(ids, np.array([1]), np.array([[1], [2], [3], [3]], np.float32))
    schema = Schema((Feature("a"), Feature("b")), "y")
    held = {"active": own, "passive-1": theirs}
    now = Case(held, {n: n for n in held}, ("active",), schema, Streams(0))
    metric = ColumnValuesMetric()
    assert metric.line(now, metric.truth(now), {})["column_values"] == 3 / 4  # 1, 2 and one 3


def test_claims_of_what_nobody_has_are_refused():
    metric, now = ColumnValuesMetric(), case()
    assert metric.refuses(ALL, now) is None
    assert "no victim has it" in metric.refuses([claim("mine", 0, v1=1)], now)
    assert "no victim has it" in metric.refuses([claim("hers", 2, v1=1)], now)
    assert "more than once" in metric.refuses([ALL[0], ALL[0]], now)


def test_the_share_of_a_category_at_one_owner_is_off_by_what_was_claimed():
    schema = Schema((Feature("a", kind="categorical", categories=("x", "y")),), "y")
    X = np.array([[0], [1], [1], [1]], dtype=np.float32)
    held = {n: LocalData.of(Table(X, np.zeros(4, np.int64))) for n in ("mine", "hers")}
    metric = ColumnValuesMetric()
    truth = metric.truth(Case(held, dict.fromkeys(held, "client"), ("mine",), schema, Streams(0)))

    def error(*claims):
        return {s.name: s.value for s in metric.score(claims, truth)}["category_error"]

    assert error(claim("hers", 0, v0=1, v1=3)) == 0
    assert error(claim("hers", 0, v0=2, v1=2)) == error() == 0.25
