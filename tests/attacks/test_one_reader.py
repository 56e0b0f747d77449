"""All readers of the histograms in a view rebuild the released model."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.attacks.clients.per_client import observe_client_histograms
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import OTHERS, replay_trees
from fedtrees.attacks.peeling.sources import sources_of
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC

SERVER = ("server",)
COLLUDING = ("server", "client-0")
CLIENT = ("client-0",)
#: Protocol, defense, principals. `leaf-rounding` makes the released values differ from those that
#: follow from the sums; the other defenses change the sums.
RUNS = [
    ("fedtree-hist", "split-only+leaf-rounding[decimals=1]", SERVER),
    ("fedtree-hist", "leaf-rounding[decimals=2]+hist-rounding[step=0.1]", COLLUDING),
    ("fedtree-hist", "leaf-rounding[decimals=1]+min-bin", SERVER),
    ("fedtree-hist", "leaf-rounding[decimals=0]+laplace-hist[epsilon=16]", SERVER),
    ("fedtree-hist", "leaf-rounding[decimals=1]", CLIENT),
    ("fedtree-hist", "secure-sum+leaf-rounding[decimals=1]", SERVER),
    ("federboost-h", "leaf-rounding[decimals=1]", SERVER),
    ("federboost-h", "leaf-rounding[decimals=1]", CLIENT),
    ("nvflare-hist", "hist-rounding[step=0.1]", SERVER),
    ("nvflare-hist", "laplace-hist[epsilon=4]", CLIENT),
]


def train_and_view(protocol, defense, principals, seed):
    """Train on a small table; return the released model, the view and all rows."""
    clients, schema = sample_federation(seed, rows=120)
    data = over_clients(clients)
    training_protocol = register.make("protocol", Spec(protocol, {"trees": 4, "max_depth": 3}))
    run = train(
        training_protocol,
        data,
        schema,
        defense=make_defense(parse_composed([defense])[0]),
        seed=seed,
    )
    return run.model, view_of(run, principals, data), Table.concat(clients)


def assert_same_tree(tree, released):
    """Assert that two trees have the same splits and exactly equal leaf values."""
    for field in ("feature", "left", "right", "default_left"):
        np.testing.assert_array_equal(getattr(tree, field), getattr(released, field))
    np.testing.assert_array_equal(tree.threshold, released.threshold)
    np.testing.assert_array_equal(tree.value[tree.leaves], released.value[released.leaves])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("protocol", "defense", "principals"), RUNS)
def test_every_reader_of_a_view_rebuilds_the_released_trees(protocol, defense, principals, seed):
    released, view, rows = train_and_view(protocol, defense, principals, seed)
    evidence = read_boosting(view)
    for tree, truth in zip(evidence.trees, released.trees, strict=True):
        assert_same_tree(tree, truth)
    rebuilt = Forest(evidence.trees, released.base_margin, LOGISTIC)
    np.testing.assert_array_equal(rebuilt.margin(rows.X), released.margin(rows.X))

    by_client = list(observe_client_histograms(view).values())
    for other in by_client:
        for tree, truth in zip(other.trees, released.trees, strict=True):
            assert_same_tree(tree, truth)
    sources = sources_of(view)
    if sources is not None:
        values = np.concatenate([t.value for t in released.trees])
        leaves = sources.forest.nodes[:, 0] < 0
        assert leaves.sum() == sum(len(t.leaves) for t in released.trees)
        np.testing.assert_array_equal(sources.forest.value[leaves], values[leaves])


@pytest.mark.parametrize(("protocol", "defense", "principals"), RUNS)
def test_sums_of_single_clients_add_up_to_the_total(protocol, defense, principals):
    _, view, _ = train_and_view(protocol, defense, principals, 0)
    summed = list(replay_trees(view, by_client=False))
    by_client = list(replay_trees(view, by_client=True))
    assert len(summed) == len(by_client)
    for total, parts in zip(summed, by_client, strict=True):
        (source,) = total.sums
        names = [name for name in parts.sums if name not in principals]
        assert source == OTHERS or names == [source]
        assert total.bits == parts.bits
        np.testing.assert_array_equal(total.sums[source], sum(parts.sums[n] for n in names))
        np.testing.assert_array_equal(total.totals[source], sum(parts.totals[n] for n in names))
        assert_same_tree(total.tree, parts.tree)
