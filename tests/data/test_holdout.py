import numpy as np
import pytest

from fedtrees.core.schema import Feature, Schema
from fedtrees.core.streams import Streams
from fedtrees.data import prepare
from fedtrees.data.dataset import RESERVE_FROM, holdout

SCHEMA = Schema((Feature("x"),), "y")


def dataset(n, share=0.25, **more):
    y = np.arange(n) < round(share * n)
    return prepare("t", SCHEMA, np.arange(n, dtype=float)[:, None], y.astype(int), **more)


def parts(h):
    return [p for p in (h.train, h.test, h.reserve) if p is not None]


@pytest.mark.parametrize("n", [40, 569, RESERVE_FROM - 1, RESERVE_FROM, 8000])
def test_parts_are_disjoint_covering_and_stratified(n):
    data = dataset(n)
    h = holdout(data, Streams(3))
    assert sorted(np.concatenate(parts(h)).tolist()) == list(range(n))
    assert abs(len(h.test) - 0.2 * n) <= 1
    for p in parts(h):
        assert abs(data.table.y[p].sum() - 0.25 * len(p)) <= 1
    assert (h.reserve is None) == (n < RESERVE_FROM)


def test_a_small_table_loses_no_training_row_to_a_reserve():
    h = holdout(dataset(500), Streams(0))
    assert len(h.train) == 400


def test_seeds_repeat_and_differ():
    data = dataset(100)
    first = holdout(data, Streams(1))
    assert np.array_equal(first.test, holdout(data, Streams(1)).test)
    assert not np.array_equal(first.test, holdout(data, Streams(2)).test)


def test_fixed_test_rows_are_kept_and_there_is_no_reserve():
    fixed = np.arange(10, 30)
    h = holdout(dataset(9000, test_rows=fixed), Streams(1))
    assert np.array_equal(h.test, fixed)
    assert len(h.train) == 8980
    assert h.reserve is None


def test_the_tables_contain_the_rows_of_the_split():
    data = dataset(8000)
    split = holdout(data, Streams(1))
    train, test, reserve = split.tables(data.table)
    assert np.array_equal(train.X[:, 0], split.train)
    assert np.array_equal(test.X[:, 0], split.test)
    assert np.array_equal(reserve.X[:, 0], split.reserve)


def test_a_numeric_target_is_not_stratified():
    schema = Schema(SCHEMA.features, "y", ())
    data = prepare("t", schema, np.arange(50.0)[:, None], np.linspace(0, 1, 50))
    h = holdout(data, Streams(1))
    assert len(h.test) == 10
    assert sorted(np.concatenate(parts(h)).tolist()) == list(range(50))
