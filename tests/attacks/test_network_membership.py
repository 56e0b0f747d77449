"""Membership inference on networks: memorised rows are found, and strangers are not."""

import numpy as np
import pytest

from fedtrees.attacks.gradients.membership import NetworkMembership
from fedtrees.attacks.gradients.observed import LocalSteps
from fedtrees.core.composition import Composition
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.view import Seen, View
from fedtrees.messages.models import as_message
from fedtrees.messages.networks import NetworkWeights, Standardisation
from fedtrees.metrics.membership import auc
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, TabularNetwork
from fedtrees.neural.training import initial

SCHEMA = Schema(tuple(Feature(name, low=-3, high=3) for name in "abcd"), "y")
STEPS = {"batch": 16, "epochs": 150, "lr": 0.5, "rounds": 1, "local_rows": 0, "units": 24}
ENCODING = Encoding.of(SCHEMA)


def seen(messages, candidates=None):
    roles = {"server": "server", "client-0": "client", "public": "public"}
    crossed = tuple(Seen(0, "server", ("public",), m, "") for m in messages)
    return View(("public",), roles, (), SCHEMA, "fedavg-mlp", STEPS, 60, Composition(), crossed,
                candidates=candidates)  # fmt: skip


def memorised(seed, told):
    """Fit a network to random labels; score 120 rows of which it was told half, or none."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(240, 4)).astype(np.float32), rng.integers(0, 2, 240)
    member = rng.permutation(120) < 60
    used = np.flatnonzero(member) if told else np.arange(120, 180)
    layers, local = Layers((4, 24, 24, 2)), LocalSteps(16, 150, 0.5)
    start = initial(layers, rng)
    steps = local.orders(60, rng)
    moved = local.update(layers, start, ENCODING.encode(X[used]), y[used], steps)
    network = TabularNetwork(layers, start + moved, ENCODING)
    view = seen([as_message(network)], Table(X[:120], y[:120]))
    guess = NetworkMembership(models=8).run(view, np.random.default_rng(0))
    return [auc(claim.score, member) for claim in guess.claims]


def test_memorised_rows_of_a_network_are_found_and_strangers_are_not():
    assert np.mean([memorised(seed, told=True) for seed in range(2)], axis=0).min() > 0.75
    means = np.mean([memorised(seed, told=False) for seed in range(3)], axis=0)
    assert np.abs(means - 0.5).max() < 4 * 0.053 / np.sqrt(3)  # sd of an AUC of 60 and 60: .053


def test_who_has_no_model_reads_the_weights_that_were_sent_last():
    weights = [np.full(Layers((4, 24, 24, 2)).parameters, k, np.float32) for k in (1, 2)]
    sent = [NetworkWeights(k, w) for k, w in enumerate(weights)]
    told = Standardisation(np.ones(4, np.float32), np.full(4, 2, np.float32))
    network = NetworkMembership().model(seen([told, *sent]))
    assert network.weights[0] == 2
    assert network.encoding.encode(np.full((1, 4), 3, np.float32)).tolist() == [[1] * 4]
    assert NetworkMembership().inapplicable(seen(sent)).code == "no-network"


@pytest.mark.parametrize("most", [{"local_rows": 8}, {"clients_per_round": 1}])
def test_references_take_part_as_clients_do(most, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        LocalSteps, "update", lambda *args: drawn.append(sum(map(len, args[-1]))) or np.float32(0)
    )
    monkeypatch.setitem(STEPS, "epochs", 1)
    for key, value in most.items():
        monkeypatch.setitem(STEPS, key, value)
    network = TabularNetwork(Layers((4, 24, 24, 2)), np.zeros(770, np.float32), ENCODING)
    X = np.zeros((40, 4), np.float32)
    view = seen([as_message(network)], Table(X, np.arange(40) % 2))
    NetworkMembership(models=2).run(view, np.random.default_rng(0))
    assert drawn == [most.get("local_rows", 20)] * 2
