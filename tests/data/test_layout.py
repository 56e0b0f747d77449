"""Layouts: whole rows, columns of all rows, or everything to one party; nothing lost or doubled."""

import numpy as np
import pytest
from federations import sample_federation
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import rows_of
from fedtrees.data.layout import LAYOUTS, lay_out
from fedtrees.data.partition import Partition, split

(TABLE,), SCHEMA = sample_federation(rows=40, clients=1)
WEIGHTED = type(TABLE)(TABLE.X, TABLE.y, np.arange(40) + 1)
D = TABLE.X.shape[1]


def spread(layout, parties, seed=0, how="iid", table=WEIGHTED, **params):
    names = [f"p{i}" for i in range(parties)]
    rng = np.random.default_rng(seed)
    return lay_out(layout, table, SCHEMA, names, Partition(how, params), rng)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**30))
def test_rows_are_each_held_once_and_whole(parties, seed):
    held = spread("horizontal", parties, seed)
    assert list(held) == [f"p{i}" for i in range(parties)]
    ids = np.concatenate([h.ids for h in held.values()])
    assert sorted(ids) == list(range(40))
    for h in held.values():
        assert h.covers(SCHEMA)
        np.testing.assert_array_equal(h.X, TABLE.X[h.ids])
        np.testing.assert_array_equal(h.y, TABLE.y[h.ids])
        np.testing.assert_array_equal(h.weight, WEIGHTED.weight[h.ids])


def test_rows_are_spread_as_the_partition_says():
    parts = split(
        Partition("label-skew", {"alpha": 0.3}), TABLE, SCHEMA, 3, np.random.default_rng(4)
    )
    held = spread("horizontal", 3, seed=4, how="label-skew", alpha=0.3)
    for h, rows in zip(held.values(), parts, strict=True):
        assert h.ids.tolist() == rows.tolist()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, D), st.integers(0, 2**30))
def test_columns_are_each_held_once_by_all_rows_and_one_party_has_labels(parties, seed):
    held = spread("vertical", parties, seed)
    dealt = np.concatenate([h.columns for h in held.values()])
    assert sorted(dealt) == list(range(D))
    sizes = [len(h.columns) for h in held.values()]
    assert max(sizes) - min(sizes) <= 1
    assert rows_of(held) == 40
    first, *others = held.values()
    np.testing.assert_array_equal(first.y, TABLE.y)
    assert all(h.y is None and h.weight is None for h in others)
    for h in held.values():
        assert h.ids.tolist() == list(range(40))
        np.testing.assert_array_equal(h.X, TABLE.X[:, h.columns])
        assert h.covers(SCHEMA) is (parties == 1)


def test_columns_depend_on_the_randomness_alone():
    first, second, other = (spread("vertical", 2, seed) for seed in (1, 1, 2))
    assert first["p0"].columns.tolist() == second["p0"].columns.tolist()
    assert first["p0"].columns.tolist() != other["p0"].columns.tolist()


def test_one_party_holds_the_whole_table():
    (held,) = spread("centralised", 1).values()
    assert held.covers(SCHEMA)
    np.testing.assert_array_equal(held.X, TABLE.X)


@pytest.mark.parametrize(
    ("layout", "parties", "how", "said"),
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
def test_what_cannot_be_laid_out_says_why(layout, parties, how, said):
    with pytest.raises(UsageError, match=said):
        spread(layout, parties, how=how)


def test_these_are_all():
    assert set(LAYOUTS) == {"horizontal", "vertical", "centralised"}
