"""`fedxgbllr`: the network equals torch's, gradients are as declared, and numbers are fitted."""

import numpy as np
import pytest
from shared_trees_world import sent, tables

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import ClientModels
from fedtrees.messages.models import as_message
from fedtrees.messages.networks import NetworkUpdate, NetworkWeights, start_of, tree_outputs
from fedtrees.neural.perceptron import Adam, RatesNetwork
from fedtrees.protocols.training import train
from fedtrees.protocols.tree_networks.fedxgbllr import FedXGBllr

SMALL = {"trees": 4, "max_depth": 2, "rounds": 2, "iterations": 3, "batch": 8, "channels": 5}


@pytest.mark.extra("torch")
def test_outputs_and_gradients_are_those_of_torchs_convolution():
    import torch

    network, rng = RatesNetwork(3, 4, 5), np.random.default_rng(0)
    flat, tree_values = network.initial(rng), rng.standard_normal((6, 3, 4)).astype(np.float32)
    y = rng.integers(0, 2, 6).astype(np.float32)
    conv, linear = torch.nn.Conv1d(1, 5, 4, stride=4), torch.nn.Linear(15, 1)
    parameters = [*conv.parameters(), *linear.parameters()]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat.copy()), parameters)
    margins = linear(torch.relu(conv(torch.from_numpy(tree_values.reshape(6, 1, 12)))).flatten(1))[
        :, 0
    ]
    np.testing.assert_allclose(
        network.outputs(flat, tree_values), margins.detach().numpy(), atol=1e-6
    )
    loss = torch.nn.functional.binary_cross_entropy_with_logits(margins, torch.from_numpy(y))
    expected = torch.cat(
        [gradient.reshape(-1) for gradient in torch.autograd.grad(loss, parameters)]
    ).numpy()
    slope = (1 / (1 + np.exp(-network.outputs(flat, tree_values))) - y) / 6
    np.testing.assert_allclose(network.gradient(flat, tree_values, slope), expected, atol=1e-6)
    row_gradients = network.example_gradients(flat, tree_values, slope)
    np.testing.assert_allclose(row_gradients.sum(axis=0), expected, atol=1e-6)


@pytest.fixture(scope="module")
def world():
    clients, schema = tables(3)
    return clients, schema


def test_a_client_sends_the_gradient_of_the_rows_that_training_rows_returns(world):
    clients, schema = world
    protocol = FedXGBllr(**SMALL, sends="gradient")
    training = train(protocol, over_clients(clients), schema, seed=5)
    (models,) = {id(message): message for message in sent(training, ClientModels)}.values()
    weights = sent(training, NetworkWeights)[0]
    update = sent(training, NetworkUpdate, "client-1")[0]
    assert (weights.round, update.rows.tolist()) == (protocol.trees, [8])
    is_used = protocol.training_rows(len(clients[1]), Streams(5).child("client-1"), protocol.trees)
    rows = clients[1].take(np.flatnonzero(is_used))
    tree_values, network = tree_outputs(models, rows.X), training.model.network
    start = start_of(models, training.model.objective)
    slope = 1 / (1 + np.exp(-network.outputs(weights.weights, tree_values) - start)) - rows.y
    expected = network.gradient(weights.weights, tree_values, slope)
    np.testing.assert_allclose(update.update, expected, atol=1e-5)


def test_a_model_message_predicts_the_same(world):
    clients, schema = world
    training = train(FedXGBllr(**SMALL), over_clients(clients), schema)
    decoded = as_message(training.model).model()
    assert np.array_equal(decoded.predict(clients[0].X), training.predict(clients[0].X))


def test_clients_of_no_row_one_row_and_one_class_take_part(world):
    clients, schema = world
    odd = [clients[0].take(np.zeros(0, int)), clients[1].take([0]), clients[2]]
    odd.append(clients[0].take(np.flatnonzero(clients[0].y == 1)))
    training = train(FedXGBllr(**SMALL), over_clients(odd), schema)
    assert training.model.message.owner.tolist() == [1, 2, 3]
    assert np.isfinite(training.predict(clients[0].X)).all()
    rows = [int(m.rows[0]) for m in sent(training, NetworkUpdate)[:4]]
    assert rows == [0, 1, len(clients[2]), len(odd[3])]


def test_a_regression_target_is_fitted():
    clients, schema = tables(2, classes=0)
    X, y = (np.concatenate([getattr(client, name) for client in clients]) for name in ("X", "y"))
    protocol = FedXGBllr(**{**SMALL, "rounds": 20, "iterations": 20, "trees": 10})
    predicted = train(protocol, over_clients(clients), schema).predict(X)
    assert np.mean((predicted - y) ** 2) < 0.8 * np.var(y)


def test_several_classes_are_refused():
    clients, schema = tables(2, classes=3)
    with pytest.raises(UsageError, match=r"has 3 classes.*use 'local-ensembles'"):
        train(FedXGBllr(**SMALL), over_clients(clients), schema)


@pytest.mark.extra("torch")
def test_adam_equals_torchs():
    import torch

    rng = np.random.default_rng(0)
    weights = rng.standard_normal(7).astype(np.float32)
    torch_weights, adam = torch.tensor(weights, requires_grad=True), Adam(0.01, (0.5, 0.999))
    torch_adam = torch.optim.Adam([torch_weights], lr=0.01, betas=(0.5, 0.999))
    for _ in range(5):
        gradient = rng.standard_normal(7).astype(np.float32)
        torch_weights.grad = torch.from_numpy(gradient)
        torch_adam.step()
        weights = adam.step(weights, gradient)
    np.testing.assert_allclose(weights, torch_weights.detach().numpy(), atol=1e-6)
