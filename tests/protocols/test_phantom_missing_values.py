"""A gap between a node and the sum of its bins is no missing value of a complete column."""

from dataclasses import replace

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import CutPoints
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def run(protocol, defense, complete, **params):
    """Train; return the run, the local data, and the number of splits after the last bin."""
    clients, schema = sample_federation()
    features = tuple(replace(feature, complete=complete) for feature in schema.features)
    local_data, schema = over_clients(clients), replace(schema, features=features)
    settings = {"trees": 8, "max_depth": 3, "max_bin": 16, **params}
    protocol_object = register.make("protocol", Spec(protocol, settings))
    parts = () if defense is None else (register.make("defense", defense),)
    training = train(protocol_object, local_data, schema, defense=Composition(parts), seed=1)
    cuts = next(
        delivery.message
        for delivery in training.transcript
        if isinstance(delivery.message, CutPoints)
    )
    last = cuts.values[cuts.offsets[1:] - 1]
    phantoms = 0
    for tree in training.model.trees:
        split = tree.feature >= 0
        columns, threshold = tree.feature[split], tree.threshold[split]
        phantoms += ((threshold == last[columns]) | (threshold <= cuts.minimum[columns])).sum()
    return training, local_data, phantoms


@pytest.mark.parametrize("protocol", ["fedtree-hist", "nvflare-hist"])
@pytest.mark.parametrize(
    "defense",
    [
        Spec("hist-rounding", {"step": 1.0}),
        Spec("min-bin"),
        Spec("laplace-hist", {"epsilon": 20.0}),
    ],
)
def test_no_split_sends_missing_values_where_there_are_none(protocol, defense):
    training, local_data, phantoms = run(protocol, defense, complete=True)
    assert run(protocol, defense, complete=False)[2] > 0 == phantoms
    for party in ("server", "client-2") if protocol == "nvflare-hist" else ("server",):
        grown = read_boosting(view_of(training, (party,), local_data)).trees
        assert len(grown) == len(training.model.trees)
        for read_tree, tree in zip(grown, training.model.trees, strict=True):
            np.testing.assert_array_equal(read_tree.feature, tree.feature)
            np.testing.assert_array_equal(read_tree.threshold, tree.threshold)
            np.testing.assert_array_equal(read_tree.value, tree.value)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_where_sums_are_exact_a_declaration_changes_nothing(weight):
    trees = [
        run("fedtree-hist", None, complete, min_child_weight=weight, reg_lambda=0.0)[0].model.trees
        for complete in (False, True)
    ]
    for a, b in zip(*trees, strict=True):
        for part in ("feature", "threshold", "default_left", "value", "gain", "g", "h"):
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
