"""`flower-bagging` grows, node by node, the trees of real XGBoost under Flower's strategy."""

import numpy as np
import pytest
import xgboost as xgb
from flower_reference import bagging, base_score_of, model_bytes, trees_of
from shared_trees_world import CLOSE, assert_same_trees, sent, tables, xgboost_params
from sklearn.datasets import load_breast_cancer

from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.horizontal import ClientTrees, GlobalTrees
from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.files.xgboost import to_xgboost_json

OBJECTIVES = {0: "reg:squarederror", 2: "binary:logistic", 3: "multi:softprob"}


def compare_with_xgboost(protocol, clients, schema, order=None, seed=0):
    """Compare all messages with XGBoost under Flower's strategy; return our run and its model."""
    classes = len(schema.classes)
    training = train(protocol, over_clients(clients), schema, seed=seed)
    params = xgboost_params(protocol, OBJECTIVES[min(classes, 3)], classes)
    data = [xgb.DMatrix(client.X, client.y) for client in clients]
    model, replies = bagging(params, data, protocol.trees, protocol.local_trees, order)
    assert_same_trees(sent(training, GlobalTrees), trees_of(model))
    for message in sent(training, GlobalTrees):
        np.testing.assert_allclose(message.base_score, base_score_of(model), **CLOSE)
    flat = [reply for of_round in replies for reply in of_round]
    for message, reply in zip(sent(training, ClientTrees), flat, strict=True):
        assert_same_trees([message], trees_of(reply))
        np.testing.assert_allclose(message.base_score, base_score_of(reply), **CLOSE)
    return training, model


@pytest.mark.parametrize("depth", [2, 4, 7])
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_trees_are_those_of_xgboost_under_flowers_strategy(depth, missing):
    clients, schema = tables(depth, missing=missing)
    compare_with_xgboost(FlowerBagging(trees=6, max_depth=depth), clients, schema)


@pytest.mark.parametrize(
    "params",
    [
        {"local_trees": 3},
        {"reg_lambda": 0.5, "gamma": 1.5, "learning_rate": 0.1},
        {"min_child_weight": 0.0, "reg_alpha": 0.7},
        {"base_score": 0.5},
        {"max_leaves": 5, "grow_policy": "lossguide"},
    ],
    ids=str,
)
def test_so_they_are_under_other_parameters(params):
    clients, schema = tables(1)
    compare_with_xgboost(FlowerBagging(trees=4, max_depth=4, **params), clients, schema)


@pytest.mark.parametrize("classes", [0, 3])
def test_so_they_are_of_numbers_and_of_several_classes(classes):
    clients, schema = tables(2, classes=classes)
    compare_with_xgboost(FlowerBagging(trees=4, max_depth=3), clients, schema)


def test_so_they_are_with_more_values_than_bins():
    clients, schema = tables(3, rows=(500, 700), decimals=6)
    compare_with_xgboost(FlowerBagging(trees=4, max_depth=5), clients, schema)
    clients, schema = tables(3, rows=(200, 230), decimals=6)
    compare_with_xgboost(FlowerBagging(trees=4, max_depth=5, max_bin=16), clients, schema)


@pytest.mark.long
def test_so_they_are_after_many_rounds_to_the_last_bit():
    dataset = load_breast_cancer()
    X, y = np.round(dataset.data, 3).astype(np.float32), dataset.target
    clients = [Table(X[i::3], y[i::3]) for i in range(3)]
    schema = Schema(tuple(Feature(n) for n in dataset.feature_names), "y")
    training, model = compare_with_xgboost(FlowerBagging(trees=40), clients, schema)
    booster = xgb.Booster()
    booster.load_model(model_bytes(model))
    np.testing.assert_array_equal(training.predict(X), booster.predict(xgb.DMatrix(X)))


def test_so_they_are_of_large_numbers():
    clients, schema = tables(2, classes=0)
    clients = [Table(c.X, c.y * 1e6 + 3e7) for c in clients]
    compare_with_xgboost(FlowerBagging(trees=4, max_depth=3), clients, schema)


def test_so_they_are_of_clients_with_hardly_any_rows():
    clients, schema = tables(4, rows=(40, 1, 6))
    flat = Table(np.full((8, 5), 2.5, np.float32), np.arange(8) % 2)  # nothing to split on
    blank = Table(np.full((30, 5), np.nan, np.float32), np.arange(30) % 2)
    one_class = Table(clients[0].X, np.ones(40))
    protocol = FlowerBagging(trees=3, max_depth=3, min_child_weight=0.0)
    compare_with_xgboost(protocol, [*clients, flat, blank, one_class], schema)


def test_a_first_client_of_one_class_stalls_the_model_as_in_xgboost():
    clients, schema = tables(5)
    only = Table(clients[0].X, np.ones(len(clients[0])))
    training, model = compare_with_xgboost(
        FlowerBagging(trees=3), [only, clients[1], clients[2]], schema
    )
    assert base_score_of(model) == 1.0
    sizes = [message.sizes.tolist() for message in sent(training, GlobalTrees)]
    assert max(sizes[0]) > 1  # grown from the clients' own base scores
    assert sizes[1:] == [
        [1, 1, 1],
        [1, 1, 1],
    ]  # At log-odds of 13.8 the hessians are too small for a split.


def test_the_model_starts_where_its_first_client_did_and_others_first_trees_do_not():
    clients, schema = tables(6)
    training = train(FlowerBagging(trees=2, max_depth=3), over_clients(clients), schema)
    means = [np.float32(c.y.mean()) for c in clients]
    assert len(set(means)) == 3
    first, second = np.array_split([m.base_score[0] for m in sent(training, ClientTrees)], 2)
    assert first.tolist() == means
    assert second.tolist() == [means[0]] * 3
    for message, mean, client in zip(sent(training, ClientTrees), means, clients, strict=False):
        np.testing.assert_allclose(message.sum_hessian[0], len(client) * mean * (1 - mean), 1e-5)


def order_of_arrival(replies, message):
    """Return which client's tree is at each place of a global message."""
    blocks = np.split(message.value, np.cumsum(message.sizes)[:-1])
    return [
        next(i for i, reply in enumerate(replies) if np.array_equal(reply.value, block))
        for block in blocks
    ]


def test_trees_that_arrive_shuffled_are_xgboosts_in_that_order():
    clients, schema = tables(7, rows=(60, 50, 70, 40))
    protocol = FlowerBagging(trees=5, max_depth=3, arrival="shuffled")
    training = train(protocol, over_clients(clients), schema, seed=1)
    ups, downs = sent(training, ClientTrees), sent(training, GlobalTrees)
    order = [order_of_arrival(ups[4 * r : 4 * r + 4], m) for r, m in enumerate(downs)]
    assert all(sorted(places) == [0, 1, 2, 3] for places in order)
    assert len({tuple(places) for places in order}) > 1
    assert order[0][0] != 0  # else the base score of another client is not tried
    compare_with_xgboost(protocol, clients, schema, order, seed=1)


def test_clients_see_the_ordered_trees_and_the_server_sees_who_sent_which():
    clients, schema = tables(8)
    training = train(
        FlowerBagging(trees=3, max_depth=2, arrival="shuffled"), over_clients(clients), schema
    )
    client = view_of(training, ("client-1",), over_clients(clients))
    sent_messages = [(item.sender, type(item.message).__name__) for item in client.seen]
    messages_of_a_round = [
        ("server", "GrowRequest"),
        ("client-1", "ClientTrees"),
        ("server", "GlobalTrees"),
    ]
    assert sent_messages == 3 * messages_of_a_round
    assert [message.first for _, message in client.messages(GlobalTrees)] == [0, 3, 6]
    (own_rows,) = client.local_data
    np.testing.assert_array_equal(own_rows.X, clients[1].X)
    np.testing.assert_array_equal(own_rows.y, clients[1].y)
    server = view_of(training, ("server",), over_clients(clients))
    names = ["client-0", "client-1", "client-2"]
    assert [item.sender for item, _ in server.messages(ClientTrees)] == 3 * names
    assert server.local_data == ()
    assert server.rows is None


def test_global_trees_do_not_depend_on_which_client_sent_them():
    clients, schema = tables(9)
    first = train(FlowerBagging(trees=1, max_depth=3), over_clients(clients), schema)
    (message,) = sent(first, GlobalTrees)
    reversed_run = train(FlowerBagging(trees=1, max_depth=3), over_clients(clients[::-1]), schema)
    (reversed_message,) = sent(reversed_run, GlobalTrees)
    assert message.sizes.tolist() == reversed_message.sizes.tolist()[::-1]
    blocks = [np.split(m.sum_hessian, np.cumsum(m.sizes)[:-1]) for m in (message, reversed_message)]
    for block, reversed_block in zip(blocks[0], blocks[1][::-1], strict=True):
        np.testing.assert_array_equal(block, reversed_block)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_the_released_model_and_its_file_equal_xgboosts(classes):
    clients, schema = tables(10, classes=classes)
    protocol = FlowerBagging(trees=4, max_depth=4)
    training, reference = compare_with_xgboost(protocol, clients, schema)
    X = Table.concat(clients).X
    booster = xgb.Booster()
    booster.load_model(model_bytes(reference))
    expected = booster.predict(xgb.DMatrix(X))
    np.testing.assert_allclose(training.predict(X), expected, rtol=2e-5, atol=2e-6)
    saved = xgb.Booster()
    file = to_xgboost_json(training.model, 5, schema.names, protocol)
    saved.load_model(model_bytes(file))
    loaded = saved.predict(xgb.DMatrix(X, feature_names=list(schema.names)))
    np.testing.assert_allclose(loaded, training.predict(X), rtol=1e-6, atol=1e-7)
    file_trees, original = trees_of(file), trees_of(reference)
    for name in ("sum_hessian", "loss_changes", "base_weights"):
        actual, expected_values = (
            np.concatenate([tree[name] for tree in trees]) for trees in (file_trees, original)
        )
        np.testing.assert_allclose(actual, expected_values, rtol=1e-4, atol=1e-4)


def test_clients_without_rows_send_nothing_and_change_nothing():
    clients, schema = tables(11)
    empty = clients[0].take(np.zeros(0, dtype=int))
    protocol = FlowerBagging(trees=3, max_depth=3)
    with_it, without = (
        train(protocol, over_clients(rows), schema) for rows in ([empty, *clients], clients)
    )
    assert sent(with_it, ClientTrees, "client-0")[0].sizes.tolist() == []
    for a, b in zip(sent(with_it, GlobalTrees), sent(without, GlobalTrees), strict=True):
        np.testing.assert_array_equal(a.value, b.value)
        np.testing.assert_array_equal(a.base_score, b.base_score)


def test_a_client_that_weighs_its_rows_grows_the_tree_of_repeated_rows():
    clients, schema = tables(12)
    times = 1 + np.arange(len(clients[0])) % 3
    weighted = Table(clients[0].X, clients[0].y, times.astype(np.float32))
    repeated = clients[0].take(np.repeat(np.arange(len(times)), times))
    a, b = (
        sent(train(FlowerBagging(trees=3, max_depth=3), over_clients([c]), schema), GlobalTrees)
        for c in (weighted, repeated)
    )
    for m, n in zip(a, b, strict=True):
        np.testing.assert_array_equal(m.threshold, n.threshold)
        np.testing.assert_allclose(m.value, n.value, rtol=1e-5, atol=1e-7)


def test_one_newton_step_is_xgboost_2_1s_base_score():
    clients, schema = tables(13)
    training = train(FlowerBagging(trees=1, intercept="newton"), over_clients(clients), schema)
    for message, client in zip(sent(training, ClientTrees), clients, strict=True):
        step = 1 / (1 + np.exp(-4 * (client.y.mean() - 0.5)))
        np.testing.assert_allclose(message.base_score, step, rtol=1e-6)


def test_subsampled_rows_differ_between_clients_and_rounds():
    clients, schema = tables(14, rows=(400, 400))
    protocol = FlowerBagging(trees=2, max_depth=1, subsample=0.5, base_score=0.5)
    training = train(protocol, over_clients(clients), schema)
    mass = [m.sum_hessian[0] * 4 for m in sent(training, ClientTrees)]
    assert all(150 < m < 250 for m in mass[:2])
    assert len(set(mass)) == 4
    view = view_of(training, ("client-0",), over_clients(clients))
    assert TimberStrike().inapplicable(view) is None


@pytest.mark.parametrize(
    ("params", "error_message"),
    [
        ({"trees": 0}, "trees=0"),
        ({"local_trees": 0}, "local_trees=0: give a whole number, 1 or more"),
        ({"local_trees": 1.5}, "local_trees=1.5"),
        ({"arrival": "shufled"}, "did you mean 'shuffled'"),
        ({"intercept": "newtn"}, "did you mean 'newton'"),
        ({"objective": "binary:logistics"}, "did you mean 'binary:logistic'"),
        ({"objective": "binary:logistic", "base_score": 1.0}, "strictly between 0 and 1"),
    ],
)
def test_invalid_parameters_are_refused(params, error_message):
    with pytest.raises(UsageError, match=error_message):
        FlowerBagging(**params)


def test_invalid_labels_and_tables_are_refused():
    clients, schema = tables(15)
    empty_tables = [client.take(np.zeros(0, dtype=int)) for client in clients]
    with pytest.raises(DataError, match="at least one row"):
        train(FlowerBagging(), over_clients(empty_tables), schema)
    with pytest.raises(DataError, match="labels 0 and 1"):
        train(FlowerBagging(), over_clients([Table(clients[0].X, clients[0].y + 1)]), schema)
    with pytest.raises(DataError, match="infinite"):
        train(
            FlowerBagging(),
            over_clients([Table(np.full((9, 5), np.inf), np.arange(9) % 2)]),
            schema,
        )
    weightless = Table(clients[0].X, clients[0].y, np.zeros(len(clients[0])))
    with pytest.raises(DataError, match="none of any weight"):
        train(FlowerBagging(), over_clients([weightless]), schema)
    clients, schema = tables(15, classes=3)
    with pytest.raises(UsageError, match="two classes"):
        train(FlowerBagging(objective="binary:logistic"), over_clients(clients), schema)
