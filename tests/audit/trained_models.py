"""Models that XGBoost itself trains, in the same way as federations train them."""

import json
from dataclasses import dataclass

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer

PARAMS = {"objective": "binary:logistic", "eta": 0.3, "max_depth": 3, "nthread": 1}


@dataclass(frozen=True, eq=False)
class Trained:
    """A model file, its training table, and the client that grew each of its trees."""

    path: object
    X: np.ndarray
    y: np.ndarray
    parts: list
    grown_by: list

    def true_counts(self, t, nodes, k=1):
        """Return rows and rows of class k per leaf of tree t, from XGBoost's routing."""
        rows = self.parts[self.grown_by[t]]
        booster = xgb.Booster({"nthread": 1}, model_file=str(self.path))
        predicted = booster.predict(xgb.DMatrix(self.X[rows]), pred_leaf=True, strict_shape=True)
        leaf = predicted.reshape(len(rows), -1)[:, t]
        y = self.y[rows]
        return (
            np.array([(leaf == node).sum() for node in nodes]),
            np.array([((leaf == node) & (y == k)).sum() for node in nodes]),
        )


def table():
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(y))
    return X[order].astype(np.float32), y[order]


def split_rows(n, clients, seed=0):
    """Split the numbers of rows into parts of unequal size."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(clients, 6.0))
    return np.split(rng.permutation(n), (np.cumsum(share)[:-1] * n).astype(int))


def central(path, rounds=20, X=None, y=None, **params):
    if X is None:
        X, y = table()
    xgb.train(PARAMS | params, xgb.DMatrix(X, y), rounds).save_model(path)
    return Trained(path, X, y, [np.arange(len(y))], [0] * rounds)


def bagging(path, rounds=8, clients=3, seed=0, scaled=False, **changed_params):
    """Train as Flower's bagging does: in each round every client grows a tree on the global model.

    The first trees of the clients start from base scores that XGBoost estimates from their local
    labels. The server appends trees in the order of their arrival to the first model. With
    `scaled`, the learning rate of each client is multiplied by its share of the rows, as in
    NVFlare.
    """
    X, y = table()
    parts, rng = split_rows(len(y), clients), np.random.default_rng(seed)
    model, grown_by = None, []
    for _ in range(rounds):
        updates = []
        for client in rng.permutation(clients):
            params = PARAMS | changed_params
            if scaled:
                params["eta"] *= len(parts[client]) / len(y)
            data = xgb.DMatrix(X[parts[client]], y[parts[client]])
            if model is None:
                booster = xgb.train(params, data, 1)
            else:
                booster = xgb.Booster(params)
                booster.load_model(bytearray(json.dumps(model).encode()))
                n_rounds = booster.num_boosted_rounds()
                booster.update(data, n_rounds)
                booster = booster[n_rounds : n_rounds + 1]
            updates.append((int(client), json.loads(booster.save_raw("json"))))
        for client, update in updates:
            model = append(model, update)
            grown_by.append(client)
    path.write_text(json.dumps(model))
    return Trained(path, X, y, parts, grown_by)


def append(model, update):
    """Add the trees of an update to a model, as the servers of Flower and NVFlare do."""
    if model is None:
        return update
    model_part = model["learner"]["gradient_booster"]["model"]
    for tree in update["learner"]["gradient_booster"]["model"]["trees"]:
        tree["id"] = len(model_part["trees"])
        model_part["trees"].append(tree)
        model_part["tree_info"].append(0)
    model_part["gbtree_model_param"]["num_trees"] = str(len(model_part["trees"]))
    model_part["iteration_indptr"] = list(range(len(model_part["trees"]) + 1))
    return model


def cyclic(path, turns=15, clients=3, **params):
    """Train as Flower's cyclic strategy does: the model is sent from client to client, and each
    client adds a tree.
    """
    X, y = table()
    parts, booster = split_rows(len(y), clients), None
    for turn in range(turns):
        rows = parts[turn % clients]
        booster = xgb.train(PARAMS | params, xgb.DMatrix(X[rows], y[rows]), 1, xgb_model=booster)
    booster.save_model(path)
    return Trained(path, X, y, parts, [t % clients for t in range(turns)])


def edit_trees(source, target, change):
    """Write a copy of a JSON model after applying `change` to each tree."""
    model = json.loads(source.read_text())
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        change(tree)
    target.write_text(json.dumps(model))
    return target


def trees_in(path):
    """Return the trees of a JSON model as stored in the file."""
    return json.loads(path.read_text())["learner"]["gradient_booster"]["model"]["trees"]


def mask(tree):
    """Replace every sum_hessian by 1, as NVFlare does."""
    tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])


def strip(tree):
    """Remove the statistics of a tree."""
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        del tree[name]


def categorical(path):
    """Train a model some of whose splits are by categories."""
    import pandas as pd

    rng = np.random.default_rng(1)
    ward, age = rng.integers(0, 9, 600), rng.normal(50, 15, 600)
    y = (rng.random(600) < np.where(np.isin(ward, (1, 4, 6)), 0.8, 0.2)).astype(int)
    frame = pd.DataFrame({"ward": pd.Categorical(ward), "age": age})
    data = xgb.DMatrix(frame, y, enable_categorical=True)
    xgb.train(PARAMS | {"max_cat_to_onehot": 1}, data, 6).save_model(path)
    return path
