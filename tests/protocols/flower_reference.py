"""What Flower's XGBoost strategies and their example client do, with XGBoost alone.

Bagging follows `FedXgbBagging`: the first model to arrive is the global model, of later ones the
trees are appended to its JSON. A client's first round is ``xgb.train``; later it loads the global
model, updates it, and sends the slice of its last trees. Cyclic follows `FedXgbCyclic`: one client
after the other, whole models.
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


def appended(model, new):
    """Return a model with the trees of another behind its own."""
    if model is None:
        return new
    into, of = (m["learner"]["gradient_booster"]["model"] for m in (model, new))
    for tree, info in zip(of["trees"], of["tree_info"], strict=True):
        into["trees"].append({**tree, "id": len(into["trees"])})
        into["tree_info"].append(info)
    outputs = max(1, int(model["learner"]["learner_model_param"]["num_class"]))
    into["iteration_indptr"] = list(range(0, len(into["trees"]) + 1, outputs))
    into["gbtree_model_param"]["num_trees"] = str(len(into["trees"]))
    return model


def bagging(params, clients, rounds, local=1, order=None):
    """Return the global model, and every client's replies, round by round."""
    model, sent = None, []
    for r in range(rounds):
        replies = [grown(params, c, model, local, True) for c in clients]
        sent.append(json.loads(json.dumps(replies)))
        for i in range(len(clients)) if order is None else order[r]:
            model = appended(model, replies[i])
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
