"""LightGBM's machines receive the model, and attacks read it with the parameters of the
training.
"""

import numpy as np
import pytest
from present import here

from fedtrees.attacks.observations.lightgbm import machines_model
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.conformance.samples import sample_table
from fedtrees.core.claims import LeafCounts
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.protocols.peers.lightgbm_data import LightGBMData
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

FIELDS = ("feature", "threshold", "value", "left", "right", "default_left", "g", "h")


def train_lightgbm(machines=3, **params):
    table, schema = sample_table(0, 240)
    local_data = over_clients(
        [table.take(part) for part in np.array_split(np.arange(240), machines)]
    )
    return train(LightGBMData(trees=4, **params), local_data, schema, seed=1), local_data


@pytest.mark.parametrize("machines", [2, 3, 5])
def test_every_machine_has_the_trained_model(machines):
    training, local_data = train_lightgbm(machines, min_data_in_leaf=4)
    for principal in local_data:
        model = machines_model(view_of(training, (principal,), local_data))
        assert np.array_equal(model.base_margin, training.model.base_margin)
        for tree, trained_tree in zip(model.trees, training.model.trees, strict=True):
            assert all(
                np.array_equal(getattr(tree, name), getattr(trained_tree, name)) for name in FIELDS
            )


@pytest.mark.parametrize("principal", ["client-1", "public"])
@pytest.mark.parametrize("attack", here("attack", ["timberstrike"]))
def test_first_leaves_are_counted_for_trees_of_unlimited_depth(attack, principal):
    training, local_data = train_lightgbm()
    assert training.protocol.max_depth == -1
    view = view_of(training, (principal,), local_data)
    assert read_boosting(view).observed.level == "statistics"
    guess = register.make("attack", Spec(attack)).run(view, np.random.default_rng(0))
    rows = [party.table for name, party in local_data.items() if name != principal]
    first = training.model.trees[0]
    leaf = np.concatenate([training.model.apply(table.X)[:, 0] for table in rows])
    y = np.concatenate([table.y for table in rows])
    (claim,) = [
        counts_of_tree for counts_of_tree in guess.all(LeafCounts) if counts_of_tree.tree == 0
    ]
    truth = [
        [np.sum((leaf == leaf_id) & (y == label)) for label in (0, 1)] for leaf_id in first.leaves
    ]
    assert claim.counts.tolist() == truth
