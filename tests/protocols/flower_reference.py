"""Reference implementation of Flower's XGBoost strategies and their example client.

Only XGBoost is used. Bagging follows `FedXgbBagging`: the first model to arrive becomes the global
model, and the trees of later models are appended to its JSON. A client calls ``xgb.train`` in its
first round. Later it loads the global model, updates it, and sends its last trees. Cyclic training
follows `FedXgbCyclic`: the clients take turns, and each one sends its complete model.
"""

import json

import numpy as np
import xgboost as xgb


def grown(params, dtrain, model, rounds, bagging):
    """Return the model, as JSON, that a client sends."""
    if model is None:
        booster = xgb.train(params, dtrain, num_boost_round=rounds)
    else:
        booster = xgb.Booster(params=params)
        booster.load_model(model_bytes(model))
        for _ in range(rounds):
            booster.update(dtrain, booster.num_boosted_rounds())
        if bagging:
            booster = booster[booster.num_boosted_rounds() - rounds : booster.num_boosted_rounds()]
    return json.loads(bytes(booster.save_raw("json")))


def model_bytes(model):
    """Return a model as ``Booster.load_model`` takes it from memory."""
    return bytearray(json.dumps(model), "utf-8")


def append_trees(model, new):
    """Return `model` with the trees of `new` appended, or `new` if there is no model yet."""
    if model is None:
        return new
    global_trees, new_trees = (m["learner"]["gradient_booster"]["model"] for m in (model, new))
    for tree, info in zip(new_trees["trees"], new_trees["tree_info"], strict=True):
        global_trees["trees"].append({**tree, "id": len(global_trees["trees"])})
        global_trees["tree_info"].append(info)
    outputs = max(1, int(model["learner"]["learner_model_param"]["num_class"]))
    global_trees["iteration_indptr"] = list(range(0, len(global_trees["trees"]) + 1, outputs))
    global_trees["gbtree_model_param"]["num_trees"] = str(len(global_trees["trees"]))
    return model


def bagging(params, clients, rounds, local=1, order=None):
    """Return the global model, and the replies of all clients for each round."""
    model, sent = None, []
    for round_number in range(rounds):
        replies = [grown(params, client, model, local, True) for client in clients]
        sent.append(json.loads(json.dumps(replies)))
        for i in range(len(clients)) if order is None else order[round_number]:
            model = append_trees(model, replies[i])
    return model, sent


def cyclic(params, clients, rounds, local=1):
    """Return the model after so many turns."""
    model = None
    for r in range(rounds):
        model = grown(params, clients[r % len(clients)], model, local, False)
    return model


def trees_of(model):
    """Return the trees of a model as dicts of arrays."""
    return [
        {k: np.array(v) for k, v in t.items() if isinstance(v, list)}
        for t in model["learner"]["gradient_booster"]["model"]["trees"]
    ]


def base_score_of(model):
    """Return the base score a model was saved with, float32, shape (K,)."""
    text = model["learner"]["learner_model_param"]["base_score"]
    return np.array([float(v) for v in text.strip("[]").split(",")], dtype=np.float32)
