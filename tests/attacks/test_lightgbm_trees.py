"""LightGBM's machines have the model, and attacks read it with the parameters that it has."""

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

SAME = ("feature", "threshold", "value", "left", "right", "default_left", "g", "h")


def run(machines=3, **params):
    table, schema = sample_table(0, 240)
    held = over_clients([table.take(p) for p in np.array_split(np.arange(240), machines)])
    return train(LightGBMData(trees=4, **params), held, schema, seed=1), held


@pytest.mark.parametrize("machines", [2, 3, 5])
def test_every_machine_has_the_model_that_was_trained(machines):
    done, held = run(machines, min_data_in_leaf=4)
    for who in held:
        found = machines_model(view_of(done, (who,), held))
        assert np.array_equal(found.base_margin, done.model.base_margin)
        for one, other in zip(found.trees, done.model.trees, strict=True):
            assert all(np.array_equal(getattr(one, n), getattr(other, n)) for n in SAME)


@pytest.mark.parametrize("who", ["client-1", "public"])
@pytest.mark.parametrize("attack", here("attack", ["timberstrike"]))
def test_first_leaves_are_counted_where_depth_has_no_limit(attack, who):
    done, held = run()
    assert done.protocol.max_depth == -1
    view = view_of(done, (who,), held)
    assert read_boosting(view).observed.level == "statistics"
    guess = register.make("attack", Spec(attack)).run(view, np.random.default_rng(0))
    rows = [h.table for name, h in held.items() if name != who]
    first = done.model.trees[0]
    leaf = np.concatenate([done.model.apply(t.X)[:, 0] for t in rows])
    y = np.concatenate([t.y for t in rows])
    (told,) = [c for c in guess.all(LeafCounts) if c.tree == 0]
    truth = [[np.sum((leaf == k) & (y == c)) for c in (0, 1)] for k in first.leaves]
    assert told.counts.tolist() == truth
