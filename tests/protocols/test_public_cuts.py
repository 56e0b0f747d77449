"""`cuts=public` uses declared cut points, divides declared ranges equally, and requests nothing."""

import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.horizontal import CutPoints, CutsRequest
from fedtrees.protocols.cut_points import public_cuts
from fedtrees.protocols.forests.forest_hist import ForestHist
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train

SCHEMA = Schema(
    (
        Feature("size", low=0, high=8),
        Feature("age", low=0, high=1, cuts=(-1.0, 18.0, 65.0, 130.0)),
        Feature("town", "categorical", categories=("a", "b", "c")),
    ),
    "y",
)


def test_declared_cut_points_and_ranges_may_be_mixed():
    cuts = public_cuts(SCHEMA, 4)
    assert cuts.of(0)[:-1].tolist() == [2, 4, 6]
    assert cuts.of(1).tolist() == [18, 65, 130]
    assert cuts.of(2)[:-1].tolist() == [0.5, 1.0, 1.5]
    assert cuts.minimum[1] == -1
    assert (cuts.minimum[[0, 2]] < 0).all()


def test_a_feature_without_either_is_named():
    bare = Schema((*SCHEMA.features, Feature("bmi")), "y")
    with pytest.raises(DataError, match=r"every feature; bmi \(1 in all\)"):
        public_cuts(bare, 4)


@pytest.mark.parametrize(
    "protocol",
    [
        FedTreeHist(trees=2, max_depth=2, cuts="public", max_bin=4, min_child_weight=0.0),
        ForestHist(trees=2, max_depth=2, cuts="public", max_bin=4),
    ],
    ids=lambda p: p.name,
)
def test_a_federation_splits_at_public_cut_points_only(protocol):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(0, 8, 90), rng.uniform(0, 99, 90), rng.integers(0, 3, 90)])
    table = Table(X, (X[:, 1] > 40).astype(np.int64))
    halves = [table.take(np.arange(45)), table.take(np.arange(45, 90))]
    training = train(protocol, over_clients(halves), SCHEMA)
    sent = [type(delivery.message) for delivery in training.transcript]
    assert CutPoints in sent
    assert CutsRequest not in sent
    used_thresholds = {
        float(threshold)
        for tree in training.model.trees
        for feature, threshold in zip(tree.feature, tree.threshold, strict=True)
        if feature == 1
    }
    assert used_thresholds
    assert used_thresholds <= {-1.0, 18.0, 65.0}
