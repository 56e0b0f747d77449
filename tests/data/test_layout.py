"""Layouts: complete rows, columns of all rows, or the complete table for one party."""

import numpy as np
import pytest
from federations import sample_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import rows_of
from fedtrees.data.partition import LAYOUTS, Partition, lay_out, split

(TABLE,), SCHEMA = sample_federation(rows=40, clients=1)
WEIGHTED = type(TABLE)(TABLE.X, TABLE.y, np.arange(40) + 1)
D = TABLE.X.shape[1]


def spread(layout, parties, seed=0, partition="iid", table=WEIGHTED, **params):
    names = [f"p{number}" for number in range(parties)]
    rng = np.random.default_rng(seed)
    return lay_out(layout, table, SCHEMA, names, Partition(partition, params), rng)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**30))
def test_every_row_belongs_to_one_party_and_is_complete(parties, seed):
    local_data = spread("horizontal", parties, seed)
    assert list(local_data) == [f"p{number}" for number in range(parties)]
    ids = np.concatenate([data.ids for data in local_data.values()])
    assert sorted(ids) == list(range(40))
    for data in local_data.values():
        assert data.covers(SCHEMA)
        np.testing.assert_array_equal(data.X, TABLE.X[data.ids])
        np.testing.assert_array_equal(data.y, TABLE.y[data.ids])
        np.testing.assert_array_equal(data.weight, WEIGHTED.weight[data.ids])


def test_rows_are_distributed_as_the_partition_declares():
    parts = split(
        Partition("label-skew", {"alpha": 0.3}), TABLE, SCHEMA, 3, np.random.default_rng(4)
    )
    local_data = spread("horizontal", 3, seed=4, partition="label-skew", alpha=0.3)
    for data, rows in zip(local_data.values(), parts, strict=True):
        assert data.ids.tolist() == rows.tolist()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, D), st.integers(0, 2**30))
def test_every_column_belongs_to_one_party_and_one_party_has_the_labels(parties, seed):
    local_data = spread("vertical", parties, seed)
    all_columns = np.concatenate([data.columns for data in local_data.values()])
    assert sorted(all_columns) == list(range(D))
    sizes = [len(data.columns) for data in local_data.values()]
    assert max(sizes) - min(sizes) <= 1
    assert rows_of(local_data) == 40
    first, *other_parties = local_data.values()
    np.testing.assert_array_equal(first.y, TABLE.y)
    assert all(data.y is None and data.weight is None for data in other_parties)
    for data in local_data.values():
        assert data.ids.tolist() == list(range(40))
        np.testing.assert_array_equal(data.X, TABLE.X[:, data.columns])
        assert data.covers(SCHEMA) is (parties == 1)


def test_columns_depend_only_on_the_randomness():
    first, second, other_seed = (spread("vertical", 2, seed) for seed in (1, 1, 2))
    assert first["p0"].columns.tolist() == second["p0"].columns.tolist()
    assert first["p0"].columns.tolist() != other_seed["p0"].columns.tolist()


def test_in_a_centralised_layout_one_party_has_the_complete_table():
    (data,) = spread("centralised", 1).values()
    assert data.covers(SCHEMA)
    np.testing.assert_array_equal(data.X, TABLE.X)


@pytest.mark.parametrize(
    ("layout", "parties", "partition", "error_message"),
    [
        ("vertical", D + 1, "iid", f"{D + 1} parties cannot share {D} columns"),
        (
            "vertical",
            2,
            "label-skew",
            "spreads rows; columns are spread by iid, shares, named, by-file",
        ),
        (
            "centralised",
            2,
            "iid",
            "gives the complete table to one party, but there are 2",
        ),
        ("vertcal", 2, "iid", "unknown layout 'vertcal'; did you mean 'vertical'"),
    ],
)
def test_impossible_layouts_are_refused_with_the_reason(layout, parties, partition, error_message):
    with pytest.raises(UsageError, match=error_message):
        spread(layout, parties, partition=partition)


def test_these_are_all():
    assert set(LAYOUTS) == {"horizontal", "vertical", "centralised"}
