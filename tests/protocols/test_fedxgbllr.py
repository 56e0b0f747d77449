"""`fedxgbllr`: the network is torch's, rounds are what clients say, odd clients, bad targets."""

import numpy as np
import pytest
from shared_trees_world import sent, tables

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import as_message
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, start_of, tree_outputs
from fedtrees.neural.tree_outputs import Adam, RatesNetwork
from fedtrees.protocols.training import train
from fedtrees.protocols.tree_networks.fedxgbllr import FedXGBllr

SMALL = {"trees": 4, "max_depth": 2, "rounds": 2, "iterations": 3, "batch": 8, "channels": 5}


@pytest.mark.extra("torch")
def test_outputs_and_gradients_are_those_of_torchs_convolution():
    import torch

    network, rng = RatesNetwork(3, 4, 5), np.random.default_rng(0)
    flat, V = network.initial(rng), rng.standard_normal((6, 3, 4)).astype(np.float32)
    y = rng.integers(0, 2, 6).astype(np.float32)
    conv, linear = torch.nn.Conv1d(1, 5, 4, stride=4), torch.nn.Linear(15, 1)
    parameters = [*conv.parameters(), *linear.parameters()]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat.copy()), parameters)
    z = linear(torch.relu(conv(torch.from_numpy(V.reshape(6, 1, 12)))).flatten(1))[:, 0]
    np.testing.assert_allclose(network.outputs(flat, V), z.detach().numpy(), atol=1e-6)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, torch.from_numpy(y))
    told = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).numpy()
    slope = (1 / (1 + np.exp(-network.outputs(flat, V))) - y) / 6
    np.testing.assert_allclose(network.gradient(flat, V, slope), told, atol=1e-6)
    each = network.example_gradients(flat, V, slope)
    np.testing.assert_allclose(each.sum(axis=0), told, atol=1e-6)


@pytest.fixture(scope="module")
def world():
    clients, schema = tables(3)
    return clients, schema


def test_a_client_sends_the_gradient_of_the_batch_that_the_harness_is_told(world):
    clients, schema = world
    protocol = FedXGBllr(**SMALL, sends="gradient")
    training = train(protocol, over_clients(clients), schema, seed=5)
    (models,) = {id(m): m for m in sent(training, ClientModels)}.values()
    weights = sent(training, NetworkWeights)[0]
    update = sent(training, NetworkUpdate, "client-1")[0]
    assert (weights.round, update.rows.tolist()) == (protocol.trees, [8])
    used = protocol.training_rows(len(clients[1]), Streams(5).child("client-1"), protocol.trees)
    rows = clients[1].take(np.flatnonzero(used))
    V, network = tree_outputs(models, rows.X), training.model.network
    start = start_of(models, training.model.objective)
    slope = 1 / (1 + np.exp(-network.outputs(weights.weights, V) - start)) - rows.y
    told = network.gradient(weights.weights, V, slope)
    np.testing.assert_allclose(update.update, told, atol=1e-5)


def test_the_model_is_what_its_message_says(world):
    clients, schema = world
    training = train(FedXGBllr(**SMALL), over_clients(clients), schema)
    again = as_message(training.model).model()
    assert np.array_equal(again.predict(clients[0].X), training.predict(clients[0].X))


def test_clients_of_no_row_one_row_and_one_class_take_part(world):
    clients, schema = world
    odd = [clients[0].take(np.zeros(0, int)), clients[1].take([0]), clients[2]]
    odd.append(clients[0].take(np.flatnonzero(clients[0].y == 1)))
    training = train(FedXGBllr(**SMALL), over_clients(odd), schema)
    assert training.model.message.owner.tolist() == [1, 2, 3]
    assert np.isfinite(training.predict(clients[0].X)).all()
    rows = [int(m.rows[0]) for m in sent(training, NetworkUpdate)[:4]]
    assert rows == [0, 1, len(clients[2]), len(odd[3])]


def test_a_number_is_fitted():
    clients, schema = tables(2, classes=0)
    X, y = (np.concatenate([getattr(c, n) for c in clients]) for n in ("X", "y"))
    made = FedXGBllr(**{**SMALL, "rounds": 20, "iterations": 20, "trees": 10})
    predicted = train(made, over_clients(clients), schema).predict(X)
    assert np.mean((predicted - y) ** 2) < 0.8 * np.var(y)


def test_several_classes_are_refused():
    clients, schema = tables(2, classes=3)
    with pytest.raises(UsageError, match=r"has 3 classes.*use 'local-ensembles'"):
        train(FedXGBllr(**SMALL), over_clients(clients), schema)


@pytest.mark.extra("torch")
def test_adam_is_torchs():
    import torch

    rng = np.random.default_rng(0)
    at = rng.standard_normal(7).astype(np.float32)
    there, adam = torch.tensor(at, requires_grad=True), Adam(0.01, (0.5, 0.999))
    theirs = torch.optim.Adam([there], lr=0.01, betas=(0.5, 0.999))
    for _ in range(5):
        gradient = rng.standard_normal(7).astype(np.float32)
        there.grad = torch.from_numpy(gradient)
        theirs.step()
        at = adam.step(at, gradient)
    np.testing.assert_allclose(at, there.detach().numpy(), atol=1e-6)
