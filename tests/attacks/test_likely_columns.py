"""Columns that bins tell a part of are filled in from own rows, and never called certain."""

import numpy as np
import pytest

from fedtrees.attacks.lightgbm.attack import BinMapperReading, SingleRowBins
from fedtrees.attacks.lightgbm.column_values import ColumnFacts, likely_column
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.metrics.column_values import ColumnValuesMetric, VictimsColumns
from fedtrees.protocols.peers.lightgbm_data import LightGBMData
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

NONE = np.zeros(0)


def test_values_next_to_a_cut_are_there():
    own, ends = np.repeat(np.arange(0.0, 100, 10), 2), np.array([3.0, 97.0])
    found = []
    for midway in (True, False):
        known = ColumnFacts(ends, np.array([44.5]), 3.0, 97.0, 1, np.array([midway]))
        values, counts = likely_column(own, 20, known, False)
        assert (values.min(), values.max()) == (3, 97)
        assert counts.sum() <= 20
        found.append(set(values))
    assert {40, 49} <= found[0]  # as far from the cut as one another, and 40 is an own value
    assert 49 not in found[1]


def test_neighbours_of_a_cut_are_in_its_two_bins():
    own = np.array([0.0, 14.0, 26.0, 40.0])
    known = ColumnFacts(NONE, np.array([18.5, 20.0, 21.5]), 0.0, 40.0, 1, np.ones(3, bool))
    values, _ = likely_column(own, 6, known, False)
    assert 19 in values  # 14 and 26 are as far from 20, and other bins lie between
    assert 21 in values


def test_each_bin_has_as_many_values_as_rows_were_counted_in_it():
    own, cuts = np.repeat(np.arange(0.0, 100, 10), 2), np.array([44.5, 70.5])
    for scale in (1.0, 1 / 3):  # on a grid of whole numbers, and on none
        ends = 3.0 * scale, 97.0 * scale
        known = ColumnFacts(NONE, cuts * scale, *ends, rows=np.array([2, 0, 5]))
        values, counts = likely_column(own * scale, 7, known, False)
        bins = np.searchsorted(cuts * scale, values)
        assert np.bincount(bins, counts, 3).tolist() == [2, 0, 5]


def test_categories_are_in_own_shares():
    values, counts = likely_column(np.array([0.0, 0, 0, 2]), 8, ColumnFacts(NONE, NONE), True)
    assert dict(zip(values, counts, strict=True)) == {0: 6, 2: 2}


@pytest.mark.parametrize("step", [1.0, 0.01])
def test_columns_of_machines_are_more_than_own_ones(step):
    metric, gains = ColumnValuesMetric(), []
    schema = Schema(tuple(Feature(f"x{k}") for k in range(3)), "y", ("0", "1"))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = (np.rint(rng.normal(60, 12, (180, 3))) * step).astype(np.float32)
        tables = [Table(x, rng.integers(0, 2, 60)) for x in np.split(X, 3)]
        held = over_clients(tables)
        made = LightGBMData(trees=1, num_leaves=3, min_data_in_leaf=2)
        view = view_of(train(made, held, schema), ("client-2",), held)
        guess = BinMapperReading().run(view, np.random.default_rng(0))
        assert not any(c.certain for c in guess.claims)
        assert guess.notes["values"] < sum(len(c.values) for c in guess.claims)
        columns = {
            (f"client-{k}", f): np.unique(tables[k].X[:, f], return_counts=True)
            for k in (0, 1)
            for f in range(3)
        }
        truth = VictimsColumns(columns, schema)
        own = [np.unique(c, return_counts=True) for c in tables[2].X.T]
        blind = [type(guess.claims[0])(o, f, *own[f], False) for o, f in columns]
        counted = SingleRowBins().run(view, np.random.default_rng(0))
        every = guess.claims, counted.claims, blind
        *got, line = (metric.score(c, truth)[0].value for c in every)
        gains.append(np.array(got) - line)
    assert (np.mean(gains, axis=0) > 0.03).all()
