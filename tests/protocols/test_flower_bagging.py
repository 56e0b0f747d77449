"""`flower-bagging` grows, node by node, the trees of real XGBoost under Flower's strategy."""

import numpy as np
import pytest
import xgboost as xgb
from flower_reference import bagging, base_score_of, trees_of

from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.shared_trees import ClientTrees, GlobalTrees
from fedtrees.protocols.base import train
from fedtrees.protocols.horizontal.flower_bagging import FlowerBagging

# Both add up float32 gradients, in other orders; weights of balanced nodes are differences of
# nearly equal sums, hence the absolute part.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


def tables(seed=0, rows=(90, 150, 60), missing=0.1, classes=2):
    rng = np.random.default_rng(seed)
    found = []
    for n in rows:
        X = np.round(rng.normal(size=(n, 5)) * [1, 10, 3, 0.5, 2], 1).astype(np.float32)
        X[:, 4] = rng.integers(0, 3, n)
        signal = X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.7, n) + rng.normal(0, 0.3)
        y = np.digitize(signal, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else signal
        X[rng.random(X.shape) < missing] = np.nan
        found.append(Table(X, y if classes else y.astype(np.float64)))
    names = tuple(str(c) for c in range(classes))
    return found, Schema(tuple(Feature(n) for n in "abcde"), "y", names)


def xgboost_params(protocol, objective, classes=0):
    names = ("max_depth", "learning_rate", "reg_lambda", "reg_alpha", "gamma", "min_child_weight")
    params = {n: getattr(protocol, n) for n in names}
    params |= {"objective": objective, "tree_method": "hist", "nthread": 1}
    return params | ({"num_class": classes} if classes > 2 else {})


def assert_same_trees(message, trees):
    """Compare the concatenated fields of messages with XGBoost's trees, one by one."""
    assert message["sizes"].tolist() == [len(t["left_children"]) for t in trees]
    ends = np.cumsum(message["sizes"])
    for end, theirs in zip(ends, trees, strict=True):
        span = slice(end - len(theirs["left_children"]), end)
        ours = {k: v[span] for k, v in message.items() if k not in ("sizes", "base_score")}
        leaf = theirs["left_children"] < 0
        np.testing.assert_array_equal(ours["left"], theirs["left_children"])
        np.testing.assert_array_equal(ours["left"] + 1, np.where(leaf, 0, theirs["right_children"]))
        np.testing.assert_array_equal(ours["feature"], np.where(leaf, -1, theirs["split_indices"]))
        np.testing.assert_array_equal(
            ours["threshold"][~leaf], theirs["split_conditions"][~leaf].astype(np.float32)
        )
        np.testing.assert_array_equal(ours["default_left"][~leaf], theirs["default_left"][~leaf])
        np.testing.assert_allclose(ours["value"][leaf], theirs["split_conditions"][leaf], **CLOSE)
        for name in ("sum_hessian", "base_weights", "loss_changes"):
            scale = 1 + np.abs(theirs[name]).max()
            np.testing.assert_allclose(ours[name] / scale, theirs[name] / scale, **CLOSE)


def fields(messages):
    names = ("sizes", "feature", "threshold", "left", "default_left", "value")
    names += ("sum_hessian", "base_weights", "loss_changes")
    return {n: np.concatenate([getattr(m, n) for m in messages]) for n in names}


def sent(training, kind):
    return [d for d in training.transcript if isinstance(d.message, kind)]


@pytest.mark.parametrize("depth", [2, 4, 7])
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_trees_are_those_of_xgboost_under_flowers_strategy(depth, missing):
    clients, schema = tables(depth, missing=missing)
    protocol = FlowerBagging(trees=6, max_depth=depth)
    training = train(protocol, clients, schema)
    data = [xgb.DMatrix(c.X, c.y) for c in clients]
    model, replies = bagging(xgboost_params(protocol, "binary:logistic"), data, 6)
    assert_same_trees(fields([d.message for d in sent(training, GlobalTrees)]), trees_of(model))
    ups = sent(training, ClientTrees)
    for delivery, reply in zip(ups, [r for each in replies for r in each], strict=True):
        np.testing.assert_allclose(delivery.message.base_score, base_score_of(reply), rtol=1e-6)
        assert_same_trees(fields([delivery.message]), trees_of(reply))
