"""`flower-cyclic` grows the trees of real XGBoost as the model passes from client to client."""

import numpy as np
import pytest
import xgboost as xgb
from flower_reference import base_score_of, cyclic, model_bytes, trees_of
from shared_trees_world import CLOSE, assert_same_trees, sent, tables, xgboost_params

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees
from fedtrees.protocols.horizontal.tree_sharing import FlowerCyclic
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

OBJECTIVES = {0: "reg:squarederror", 2: "binary:logistic", 3: "multi:softprob"}


def run(protocol, classes=2, seed=0, **of_tables):
    clients, schema = tables(seed, classes=classes, **of_tables)
    training = train(protocol, over_clients(clients), schema)
    params = xgboost_params(protocol, OBJECTIVES[classes], classes)
    data = [xgb.DMatrix(c.X, c.y) for c in clients]
    return training, clients, cyclic(params, data, protocol.trees, protocol.local_trees)


@pytest.mark.parametrize("depth", [2, 6])
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_trees_are_those_of_xgboost_under_flowers_strategy(depth, classes):
    training, clients, model = run(FlowerCyclic(trees=7, max_depth=depth), classes, seed=depth)
    assert_same_trees(sent(training, ClientTrees), trees_of(model))
    assert_same_trees(global_trees_received_by(training, "client-1"), trees_of(model))
    booster = xgb.Booster()
    booster.load_model(model_bytes(model))
    X = np.concatenate([c.X for c in clients])
    expected = booster.predict(xgb.DMatrix(X))
    np.testing.assert_allclose(training.predict(X), expected, rtol=2e-5, atol=2e-6)


def test_so_they_are_of_several_local_trees():
    training, _, model = run(FlowerCyclic(trees=4, max_depth=3, local_trees=2))
    assert [len(m.sizes) for m in sent(training, ClientTrees)] == [2] * 4
    assert_same_trees(sent(training, ClientTrees), trees_of(model))


def global_trees_received_by(training, name):
    """Return the messages of the global model that one client received, in order."""
    return [
        delivery.message
        for delivery in training.transcript
        if type(delivery.message) is GlobalTrees and name in delivery.receivers
    ]


def test_the_base_score_is_the_first_clients_for_all():
    training, clients, model = run(FlowerCyclic(trees=5, max_depth=2))
    mean = np.float32(clients[0].y.mean())
    assert all(message.base_score == mean for message in sent(training, ClientTrees))
    np.testing.assert_allclose(base_score_of(model), mean, **CLOSE)
    second = sent(training, ClientTrees, "client-1")[
        0
    ]  # the first message of client-1, whose trees continue the tree of client-0
    assert len(set(np.round(second.sum_hessian / mean, 6))) > 1
    hessian_without_the_tree = len(clients[1]) * mean * (1 - mean)
    assert abs(second.sum_hessian[0] - hessian_without_the_tree) > 1e-3 * hessian_without_the_tree


def test_a_client_receives_the_new_trees_before_its_turn_and_at_the_end():
    training, clients, _ = run(FlowerCyclic(trees=5, max_depth=2))
    spans = {
        name: [
            (message.round, message.first, len(message.sizes))
            for message in global_trees_received_by(training, name)
        ]
        for name in ("client-0", "client-1", "client-2")
    }
    assert spans == {
        "client-0": [(3, 0, 3), (5, 3, 2)],
        "client-1": [(1, 0, 1), (4, 1, 3), (5, 4, 1)],
        "client-2": [(2, 0, 2), (5, 2, 3)],
    }
    view = view_of(training, ("client-2",), over_clients(clients))
    assert {item.sender for item, _ in view.messages(ClientTrees)} == {"client-2"}
    senders = [
        item.sender
        for item, _ in view_of(training, ("server",), over_clients(clients)).messages(ClientTrees)
    ]
    assert senders == ["client-0", "client-1", "client-2", "client-0", "client-1"]


def test_fewer_turns_than_clients_are_enough_and_clients_without_rows_pass():
    clients, schema = tables(3)
    training = train(FlowerCyclic(trees=1, max_depth=2), over_clients(clients), schema)
    assert len(training.model) == 1
    assert [len(global_trees_received_by(training, f"client-{i}")) for i in range(3)] == [1, 1, 1]
    empty = clients[0].take(np.zeros(0, dtype=int))
    passed = train(FlowerCyclic(trees=4, max_depth=2), over_clients([empty, *clients]), schema)
    without = train(FlowerCyclic(trees=3, max_depth=2), over_clients(clients), schema)
    for a, b in zip(passed.model.trees, without.model.trees, strict=True):
        np.testing.assert_array_equal(a.value, b.value)


def test_no_turns_are_refused():
    with pytest.raises(UsageError, match="trees=0"):
        FlowerCyclic(trees=0)
