"""Bins that do not add up to their node: the rest is no missing value of a complete column."""

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
    """Train; return the run, the local data and the model's splits after a feature's last bin."""
    clients, schema = sample_federation()
    features = tuple(replace(f, complete=complete) for f in schema.features)
    held, schema = over_clients(clients), replace(schema, features=features)
    settings = {"trees": 8, "max_depth": 3, "max_bin": 16, **params}
    made = register.make("protocol", Spec(protocol, settings))
    parts = () if defense is None else (register.make("defense", defense),)
    done = train(made, held, schema, defense=Composition(parts), seed=1)
    cuts = next(d.message for d in done.transcript if isinstance(d.message, CutPoints))
    last = cuts.values[cuts.offsets[1:] - 1]
    phantoms = 0
    for tree in done.model.trees:
        split = tree.feature >= 0
        f, threshold = tree.feature[split], tree.threshold[split]
        phantoms += ((threshold == last[f]) | (threshold <= cuts.minimum[f])).sum()
    return done, held, phantoms


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
    done, held, phantoms = run(protocol, defense, complete=True)
    assert run(protocol, defense, complete=False)[2] > 0 == phantoms
    for who in ("server", "client-2") if protocol == "nvflare-hist" else ("server",):
        grown = read_boosting(view_of(done, (who,), held)).trees
        assert len(grown) == len(done.model.trees)
        for a, b in zip(grown, done.model.trees, strict=True):
            np.testing.assert_array_equal(a.feature, b.feature)
            np.testing.assert_array_equal(a.threshold, b.threshold)
            np.testing.assert_array_equal(a.value, b.value)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_where_sums_are_exact_a_declaration_changes_nothing(weight):
    trees = [
        run("fedtree-hist", None, complete, min_child_weight=weight, reg_lambda=0.0)[0].model.trees
        for complete in (False, True)
    ]
    for a, b in zip(*trees, strict=True):
        for part in ("feature", "threshold", "default_left", "value", "gain", "g", "h"):
            np.testing.assert_array_equal(getattr(a, part), getattr(b, part))
