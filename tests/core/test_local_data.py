"""Local data of a party: rows, columns, perhaps labels, in read-only arrays."""

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


def make_local_data(columns=(0, 1, 2), y=(0, 1, 1), ids=(4, 7, 9), weight=None):
    X = np.arange(9.0).reshape(3, 3)[:, list(columns)]
    return LocalData(np.array(ids), np.array(columns, dtype=int), X, y and np.array(y), weight)


def test_a_table_becomes_local_data_of_complete_rows_and_back():
    table = Table(np.arange(6).reshape(2, 3), [1, 0], np.array([2.0, 3.0]))
    local_data = LocalData.of(table)
    assert local_data.ids.tolist() == [0, 1]
    assert local_data.columns.tolist() == [0, 1, 2]
    assert local_data.covers(SCHEMA)
    for name in ("X", "y", "weight"):
        np.testing.assert_array_equal(getattr(local_data.table, name), getattr(table, name))
    assert LocalData.of(table, np.array([8, 3])).ids.tolist() == [8, 3]
    assert len(local_data) == 2


@pytest.mark.parametrize(
    ("columns", "y", "is_complete"),
    [
        ((0, 1, 2), (0, 1, 1), True),
        ((0, 1), (0, 1, 1), False),  # the first columns are not all columns
        ((1, 2, 0), (0, 1, 1), False),
        ((0, 1, 2), None, False),
    ],
)
def test_only_all_columns_in_order_with_labels_are_complete_rows(columns, y, is_complete):
    local_data = make_local_data(columns, y)
    assert local_data.covers(SCHEMA) is is_complete
    assert (stacked([local_data], SCHEMA) is not None) is is_complete


def test_local_data_without_labels_have_no_table():
    with pytest.raises(DataError, match="this party has no labels"):
        _ = make_local_data(y=None).table


def test_complete_rows_are_stacked_in_order_and_others_are_left_out():
    stacked_table = stacked(
        [make_local_data(), make_local_data((0, 1)), make_local_data(ids=(1, 2, 3), y=(1, 1, 0))],
        SCHEMA,
    )
    assert stacked_table.y.tolist() == [0, 1, 1, 1, 1, 0]
    assert stacked([], SCHEMA) is None


def test_arrays_are_read_only_also_after_pickling():
    source = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    first = LocalData(np.arange(3), np.arange(3), source, np.array([0.5, 1.5, 2.5]), np.ones(3))
    for local_data in (first, pickle.loads(pickle.dumps(first))):
        for field in fields(local_data):
            with pytest.raises(ValueError, match="read-only"):
                getattr(local_data, field.name)[0] = 1
        assert local_data.ids.dtype == np.int64
        assert local_data.X.dtype == local_data.weight.dtype == np.float32
        assert local_data.y.dtype == np.float64
    assert make_local_data().y.dtype == np.int64


@pytest.mark.parametrize(
    ("arguments", "error_message"),
    [
        ({"ids": (4, 4, 9)}, "contains a row id twice"),
        ({"ids": (4, 9)}, r"2 rows and 3 columns needs X \(2, 3\); got \(3, 3\)"),
        ({"y": (0, 1)}, r"3 rows has y of shape \(2,\)"),
        ({"weight": np.ones((3, 1))}, r"3 rows has weight of shape \(3, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments, error_message):
    with pytest.raises(DataError, match=error_message):
        make_local_data(**arguments)


def test_clients_get_names_and_consecutive_row_ids():
    tables, _ = sample_federation(rows=7)
    local_data = over_clients([*tables, tables[0].take(np.arange(0))])
    assert list(local_data) == client_names(4) == ["client-0", "client-1", "client-2", "client-3"]
    assert np.concatenate([data.ids for data in local_data.values()]).tolist() == list(range(7))
    assert [len(data) for data in local_data.values()] == [3, 2, 2, 0]
    assert rows_of(local_data) == 7


def test_rows_of_several_vertical_parties_count_once():
    assert (
        rows_of(
            {
                "a": make_local_data((0, 1)),
                "b": make_local_data((2,), y=None),
                "c": make_local_data(ids=(9, 10, 11)),
            }
        )
        == 5
    )
    assert rows_of({}) == 0


def test_training_needs_the_local_data_of_exactly_the_parties_of_the_protocol():
    tables, schema = sample_federation(rows=30)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1}))
    valid = over_clients(tables)
    with pytest.raises(
        UsageError, match="local data of client-0, client-1, client-2, in that order"
    ):
        train(protocol, {"a": valid["client-0"], **dict(list(valid.items())[1:])}, schema)
    with pytest.raises(DataError, match="at least one row"):
        train(protocol, {}, schema)
