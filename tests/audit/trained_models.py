"""Models trained by XGBoost and LightGBM themselves, the way federations train them."""

import json
from dataclasses import dataclass

import numpy as np
import xgboost as xgb
from sklearn.datasets import load_breast_cancer

PARAMS = {"objective": "binary:logistic", "eta": 0.3, "max_depth": 3, "nthread": 1}


@dataclass(frozen=True, eq=False)
class Trained:
    """A model file, and who grew each of its trees on which rows."""

    path: object
    X: np.ndarray
    y: np.ndarray
    parts: list
    grown_by: list

    def true_counts(self, t, nodes, k=1):
        """Rows and rows of class k per leaf of tree t, from XGBoost's own routing."""
        rows = self.parts[self.grown_by[t]]
        booster = xgb.Booster({"nthread": 1}, model_file=str(self.path))
        found = booster.predict(xgb.DMatrix(self.X[rows]), pred_leaf=True, strict_shape=True)
        leaf = found.reshape(len(rows), -1)[:, t]
        y = self.y[rows]
        return (
            np.array([(leaf == node).sum() for node in nodes]),
            np.array([((leaf == node) & (y == k)).sum() for node in nodes]),
        )


def table():
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(y))
    return X[order].astype(np.float32), y[order]


def split(n, clients, seed=0):
    """Rows of clients of unequal size."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(clients, 6.0))
    return np.split(rng.permutation(n), (np.cumsum(share)[:-1] * n).astype(int))


def central(path, rounds=20, X=None, y=None, **params):
    if X is None:
        X, y = table()
    xgb.train(PARAMS | params, xgb.DMatrix(X, y), rounds).save_model(path)
    return Trained(path, X, y, [np.arange(len(y))], [0] * rounds)


def bagging(path, rounds=8, clients=3, seed=0, scaled=False, **given):
    """What Flower's bagging does: each round every client grows a tree on the global model.

    Clients' first trees start from base scores that XGBoost estimates from their own labels; the
    server appends trees in the order in which they arrive to the model that came first. `scaled`:
    each client's learning rate is multiplied by its share of the rows, as NVFlare does it.
    """
    X, y = table()
    parts, rng = split(len(y), clients), np.random.default_rng(seed)
    model, grown_by = None, []
    for _ in range(rounds):
        arrived = []
        for c in rng.permutation(clients):
            params = PARAMS | given
            if scaled:
                params["eta"] *= len(parts[c]) / len(y)
            data = xgb.DMatrix(X[parts[c]], y[parts[c]])
            if model is None:
                booster = xgb.train(params, data, 1)
            else:
                booster = xgb.Booster(params)
                booster.load_model(bytearray(json.dumps(model).encode()))
                grown = booster.num_boosted_rounds()
                booster.update(data, grown)
                booster = booster[grown : grown + 1]
            arrived.append((int(c), json.loads(booster.save_raw("json"))))
        for c, update in arrived:
            model = append(model, update)
            grown_by.append(c)
    path.write_text(json.dumps(model))
    return Trained(path, X, y, parts, grown_by)


def append(model, update):
    """Add the trees of an update to a model, as Flower's and NVFlare's servers do."""
    if model is None:
        return update
    mine = model["learner"]["gradient_booster"]["model"]
    for tree in update["learner"]["gradient_booster"]["model"]["trees"]:
        tree["id"] = len(mine["trees"])
        mine["trees"].append(tree)
        mine["tree_info"].append(0)
    mine["gbtree_model_param"]["num_trees"] = str(len(mine["trees"]))
    mine["iteration_indptr"] = list(range(len(mine["trees"]) + 1))
    return model


def cyclic(path, turns=15, clients=3, **params):
    """What Flower's cyclic strategy does: the model goes round, each client adds a tree."""
    X, y = table()
    parts, booster = split(len(y), clients), None
    for turn in range(turns):
        rows = parts[turn % clients]
        booster = xgb.train(PARAMS | params, xgb.DMatrix(X[rows], y[rows]), 1, xgb_model=booster)
    booster.save_model(path)
    return Trained(path, X, y, parts, [t % clients for t in range(turns)])


def edited(source, target, change):
    """Write a copy of a JSON model after `change` of each tree."""
    model = json.loads(source.read_text())
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        change(tree)
    target.write_text(json.dumps(model))
    return target


def trees_in(path):
    """The trees of a JSON model as they are written."""
    return json.loads(path.read_text())["learner"]["gradient_booster"]["model"]["trees"]


def mask(tree):
    """What NVFlare does: every sum_hessian becomes 1."""
    tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])


def strip(tree):
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        del tree[name]


def categorical(path):
    """A model some of whose splits are by categories."""
    import pandas as pd

    rng = np.random.default_rng(1)
    ward, age = rng.integers(0, 9, 600), rng.normal(50, 15, 600)
    y = (rng.random(600) < np.where(np.isin(ward, (1, 4, 6)), 0.8, 0.2)).astype(int)
    frame = pd.DataFrame({"ward": pd.Categorical(ward), "age": age})
    data = xgb.DMatrix(frame, y, enable_categorical=True)
    xgb.train(PARAMS | {"max_cat_to_onehot": 1}, data, 6).save_model(path)
    return path
