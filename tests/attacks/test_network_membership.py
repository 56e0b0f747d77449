"""Membership inference on networks detects memorised rows, and no rows that were not used."""

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


def public_view(messages, candidates=None):
    """Return the view of an outsider who received these messages."""
    roles = {"server": "server", "client-0": "client", "public": "public"}
    items = tuple(Seen(0, "server", ("public",), message, "") for message in messages)
    return View(
        ("public",),
        roles,
        (),
        SCHEMA,
        "fedavg-mlp",
        STEPS,
        60,
        Composition(),
        items,
        candidates=candidates,
    )


def memorised_aucs(seed, train_on_members):
    """Fit a network to random labels; return the AUCs of candidates, half of which were used for
    training or none.
    """
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(240, 4)).astype(np.float32), rng.integers(0, 2, 240)
    member = rng.permutation(120) < 60
    used = np.flatnonzero(member) if train_on_members else np.arange(120, 180)
    layers, local_steps = Layers((4, 24, 24, 2)), LocalSteps(16, 150, 0.5)
    start = initial(layers, rng)
    steps = local_steps.orders(60, rng)
    update = local_steps.update(layers, start, ENCODING.encode(X[used]), y[used], steps)
    network = TabularNetwork(layers, start + update, ENCODING)
    view = public_view([as_message(network)], Table(X[:120], y[:120]))
    guess = NetworkMembership(models=8).run(view, np.random.default_rng(0))
    return [auc(claim.score, member) for claim in guess.claims]


def test_memorised_rows_of_a_network_are_detected_and_unused_rows_are_not():
    assert (
        np.mean([memorised_aucs(seed, train_on_members=True) for seed in range(2)], axis=0).min()
        > 0.75
    )
    means = np.mean([memorised_aucs(seed, train_on_members=False) for seed in range(3)], axis=0)
    # The standard deviation of an AUC of 60 members and 60 nonmembers is 0.053.
    assert np.abs(means - 0.5).max() < 4 * 0.053 / np.sqrt(3)


def test_without_a_model_the_last_broadcast_weights_are_used():
    weights = [
        np.full(Layers((4, 24, 24, 2)).parameters, round_number, np.float32)
        for round_number in (1, 2)
    ]
    sent = [NetworkWeights(round_number, weight) for round_number, weight in enumerate(weights)]
    standardisation = Standardisation(np.ones(4, np.float32), np.full(4, 2, np.float32))
    network = NetworkMembership().model(public_view([standardisation, *sent]))
    assert network.weights[0] == 2
    assert network.encoding.encode(np.full((1, 4), 3, np.float32)).tolist() == [[1] * 4]
    assert NetworkMembership().inapplicable(public_view(sent)).code == "no-network"


@pytest.mark.parametrize("limit", [{"local_rows": 8}, {"clients_per_round": 1}])
def test_reference_models_train_with_the_participation_of_clients(limit, monkeypatch):
    rows_per_update = []
    monkeypatch.setattr(
        LocalSteps,
        "update",
        lambda *args: rows_per_update.append(sum(map(len, args[-1]))) or np.float32(0),
    )
    monkeypatch.setitem(STEPS, "epochs", 1)
    for key, value in limit.items():
        monkeypatch.setitem(STEPS, key, value)
    network = TabularNetwork(Layers((4, 24, 24, 2)), np.zeros(770, np.float32), ENCODING)
    X = np.zeros((40, 4), np.float32)
    view = public_view([as_message(network)], Table(X, np.arange(40) % 2))
    NetworkMembership(models=2).run(view, np.random.default_rng(0))
    assert rows_per_update == [limit.get("local_rows", 20)] * 2
