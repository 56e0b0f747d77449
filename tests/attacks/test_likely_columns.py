"""Columns that bins reveal only in part are completed from local rows, and are never called
certain.
"""

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


def test_values_next_to_a_cut_are_included():
    local_values, ends = np.repeat(np.arange(0.0, 100, 10), 2), np.array([3.0, 97.0])
    value_sets = []
    for midway in (True, False):
        facts = ColumnFacts(ends, np.array([44.5]), 3.0, 97.0, 1, np.array([midway]))
        values, counts = likely_column(local_values, 20, facts, False)
        assert (values.min(), values.max()) == (3, 97)
        assert counts.sum() <= 20
        value_sets.append(set(values))
    # 40 and 49 have equal distance to the cut, and 40 is a local value.
    assert {40, 49} <= value_sets[0]
    assert 49 not in value_sets[1]


def test_neighbours_of_a_cut_are_in_its_two_bins():
    local_values = np.array([0.0, 14.0, 26.0, 40.0])
    facts = ColumnFacts(NONE, np.array([18.5, 20.0, 21.5]), 0.0, 40.0, 1, np.ones(3, bool))
    values, _ = likely_column(local_values, 6, facts, False)
    # 14 and 26 have equal distance to 20, but other bins lie between.
    assert 19 in values
    assert 21 in values


def test_each_bin_has_its_counted_number_of_values():
    local_values, cuts = np.repeat(np.arange(0.0, 100, 10), 2), np.array([44.5, 70.5])
    for scale in (1.0, 1 / 3):  # The first scale has integer values, the second does not.
        ends = 3.0 * scale, 97.0 * scale
        facts = ColumnFacts(NONE, cuts * scale, *ends, rows=np.array([2, 0, 5]))
        values, counts = likely_column(local_values * scale, 7, facts, False)
        bins = np.searchsorted(cuts * scale, values)
        assert np.bincount(bins, counts, 3).tolist() == [2, 0, 5]


def test_categories_have_the_local_shares():
    values, counts = likely_column(np.array([0.0, 0, 0, 2]), 8, ColumnFacts(NONE, NONE), True)
    assert dict(zip(values, counts, strict=True)) == {0: 6, 2: 2}


@pytest.mark.parametrize("step", [1.0, 0.01])
def test_columns_of_other_machines_are_closer_than_the_local_columns(step):
    metric, gains = ColumnValuesMetric(), []
    schema = Schema(tuple(Feature(f"x{client}") for client in range(3)), "y", ("0", "1"))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = (np.rint(rng.normal(60, 12, (180, 3))) * step).astype(np.float32)
        tables = [Table(part, rng.integers(0, 2, 60)) for part in np.split(X, 3)]
        local_data = over_clients(tables)
        protocol = LightGBMData(trees=1, num_leaves=3, min_data_in_leaf=2)
        view = view_of(train(protocol, local_data, schema), ("client-2",), local_data)
        guess = BinMapperReading().run(view, np.random.default_rng(0))
        assert not any(claims.certain for claims in guess.claims)
        assert guess.notes["values"] < sum(len(claims.values) for claims in guess.claims)
        columns = {
            (f"client-{client}", feature): np.unique(
                tables[client].X[:, feature], return_counts=True
            )
            for client in (0, 1)
            for feature in range(3)
        }
        truth = VictimsColumns(columns, schema)
        local_columns = [np.unique(claims, return_counts=True) for claims in tables[2].X.T]
        blind_claims = [
            type(guess.claims[0])(owner, feature, *local_columns[feature], False)
            for owner, feature in columns
        ]
        single_row_guess = SingleRowBins().run(view, np.random.default_rng(0))
        all_claims = guess.claims, single_row_guess.claims, blind_claims
        *scores, blind_score = (metric.score(claims, truth)[0].value for claims in all_claims)
        gains.append(np.array(scores) - blind_score)
    assert (np.mean(gains, axis=0) > 0.03).all()
