"""`local-ensembles` averages the models that XGBoost fits to each client's rows."""

import numpy as np
import pytest
import xgboost as xgb
from flower_reference import base_score_of, grown, model_bytes, trees_of
from shared_trees_world import CLOSE, assert_same_trees, sent, tables, xgboost_params

from fedtrees.core.local_data import over_clients
from fedtrees.messages.horizontal import ClientModels, ClientTrees, GlobalTrees
from fedtrees.protocols.horizontal.tree_sharing import LocalEnsembles
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.files.xgboost import to_xgboost_json

OBJECTIVES = {0: "reg:squarederror", 2: "binary:logistic", 3: "multi:softprob"}


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_each_model_is_xgboosts_and_the_release_averages_their_margins(classes):
    clients, schema = tables(classes, classes=classes)
    protocol = LocalEnsembles(trees=5, max_depth=4)
    training = train(protocol, over_clients(clients), schema)
    params = xgboost_params(protocol, OBJECTIVES[classes], classes)
    X = np.concatenate([c.X for c in clients])
    models = [grown(params, xgb.DMatrix(c.X, c.y), None, 5, True) for c in clients]
    margins = []
    for message, model in zip(sent(training, ClientTrees), models, strict=True):
        assert_same_trees([message], trees_of(model))
        np.testing.assert_allclose(message.base_score, base_score_of(model), **CLOSE)
        booster = xgb.Booster()
        booster.load_model(model_bytes(model))
        margins.append(booster.predict(xgb.DMatrix(X), output_margin=True))
    mean = np.mean(margins, axis=0)
    np.testing.assert_allclose(training.model.margin(X), mean, rtol=2e-5, atol=1e-5)
    saved = xgb.Booster()
    saved.load_model(model_bytes(to_xgboost_json(training.model, 5, schema.names, protocol)))
    loaded = saved.predict(xgb.DMatrix(X, feature_names=list(schema.names)))
    np.testing.assert_allclose(loaded, training.predict(X), rtol=1e-5, atol=1e-6)


def test_every_client_receives_the_numbered_models_of_all_clients():
    clients, schema = tables(4)
    empty = clients[0].take(np.zeros(0, dtype=int))
    training = train(
        LocalEnsembles(trees=3, max_depth=3),
        over_clients([clients[0], empty, *clients[1:]]),
        schema,
    )
    view = view_of(training, ("client-1",), over_clients(clients))
    ((item, message),) = view.messages(ClientModels)
    assert item.receivers == ("client-0", "client-1", "client-2", "client-3")
    assert message.owner.tolist() == [0, 2, 3]
    assert message.trees.tolist() == [3, 3, 3]
    assert message.base_score[:, 0].tolist() == [np.float32(c.y.mean()) for c in clients]
    assert [len(model_message.sizes) for _, model_message in view.messages(ClientTrees)] == [
        0
    ]  # its own, empty answer
    assert not list(view.messages(GlobalTrees))
    ends = np.cumsum(message.trees)
    for end, client in zip(ends, (0, 2, 3), strict=True):
        (local_model,) = sent(training, ClientTrees, f"client-{client}")
        assert message.sizes[end - 3 : end].tolist() == local_model.sizes.tolist()
        first = message.sizes[: end - 3].sum()
        np.testing.assert_array_equal(
            local_model.value, message.value[first : first + len(local_model.value)]
        )


def test_a_single_client_releases_its_own_model_unchanged():
    clients, schema = tables(5)
    training = train(LocalEnsembles(trees=3, max_depth=3), over_clients(clients[:1]), schema)
    (local_model,) = sent(training, ClientTrees)
    values = np.concatenate([tree.value for tree in training.model.trees])
    np.testing.assert_array_equal(values, local_model.value)
