"""What one party holds: some rows, some columns, perhaps labels; never a writeable array."""

import pickle
from dataclasses import fields

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData, client_names, over_clients, rows_of, stacked
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.protocols.training import train

SCHEMA = Schema((Feature("a"), Feature("b"), Feature("c")), "y")


def held(columns=(0, 1, 2), y=(0, 1, 1), ids=(4, 7, 9), weight=None):
    X = np.arange(9.0).reshape(3, 3)[:, list(columns)]
    return LocalData(np.array(ids), np.array(columns, dtype=int), X, y and np.array(y), weight)


def test_a_table_becomes_local_data_of_whole_rows_and_back():
    table = Table(np.arange(6).reshape(2, 3), [1, 0], np.array([2.0, 3.0]))
    got = LocalData.of(table)
    assert got.ids.tolist() == [0, 1]
    assert got.columns.tolist() == [0, 1, 2]
    assert got.covers(SCHEMA)
    for name in ("X", "y", "weight"):
        np.testing.assert_array_equal(getattr(got.table, name), getattr(table, name))
    assert LocalData.of(table, np.array([8, 3])).ids.tolist() == [8, 3]
    assert len(got) == 2


@pytest.mark.parametrize(
    ("columns", "y", "whole"),
    [
        ((0, 1, 2), (0, 1, 1), True),
        ((0, 1), (0, 1, 1), False),  # the first columns are not all columns
        ((1, 2, 0), (0, 1, 1), False),
        ((0, 1, 2), None, False),
    ],
)
def test_only_all_columns_in_order_with_labels_are_whole_rows(columns, y, whole):
    got = held(columns, y)
    assert got.covers(SCHEMA) is whole
    assert (stacked([got], SCHEMA) is not None) is whole


def test_what_has_no_labels_is_no_table():
    with pytest.raises(DataError, match="this party has no labels"):
        _ = held(y=None).table


def test_whole_rows_are_stacked_in_order_and_parts_are_left_out():
    both = stacked([held(), held((0, 1)), held(ids=(1, 2, 3), y=(1, 1, 0))], SCHEMA)
    assert both.y.tolist() == [0, 1, 1, 1, 1, 0]
    assert stacked([], SCHEMA) is None


def test_no_array_can_be_written_and_a_pickle_keeps_it_so():
    source = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    first = LocalData(np.arange(3), np.arange(3), source, np.array([0.5, 1.5, 2.5]), np.ones(3))
    for got in (first, pickle.loads(pickle.dumps(first))):
        for f in fields(got):
            with pytest.raises(ValueError, match="read-only"):
                getattr(got, f.name)[0] = 1
        assert got.ids.dtype == np.int64
        assert got.X.dtype == got.weight.dtype == np.float32
        assert got.y.dtype == np.float64
    assert held().y.dtype == np.int64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ids": (4, 4, 9)}, "contains a row id twice"),
        ({"ids": (4, 9)}, r"2 rows and 3 columns needs X \(2, 3\); got \(3, 3\)"),
        ({"y": (0, 1)}, r"3 rows has y of shape \(2,\)"),
        ({"weight": np.ones((3, 1))}, r"3 rows has weight of shape \(3, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(given, said):
    with pytest.raises(DataError, match=said):
        held(**given)


def test_clients_get_names_and_ids_that_count_through():
    tables, _ = sample_federation(rows=7)
    got = over_clients([*tables, tables[0].take(np.arange(0))])
    assert list(got) == client_names(4) == ["client-0", "client-1", "client-2", "client-3"]
    assert np.concatenate([h.ids for h in got.values()]).tolist() == list(range(7))
    assert [len(h) for h in got.values()] == [3, 2, 2, 0]
    assert rows_of(got) == 7


def test_rows_that_several_parties_hold_count_once():
    assert rows_of({"a": held((0, 1)), "b": held((2,), y=None), "c": held(ids=(9, 10, 11))}) == 5
    assert rows_of({}) == 0


def test_training_wants_the_local_data_of_its_own_parties():
    tables, schema = sample_federation(rows=30)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1}))
    good = over_clients(tables)
    with pytest.raises(
        UsageError, match="local data of client-0, client-1, client-2, in that order"
    ):
        train(protocol, {"a": good["client-0"], **dict(list(good.items())[1:])}, schema)
    with pytest.raises(DataError, match="at least one row"):
        train(protocol, {}, schema)
