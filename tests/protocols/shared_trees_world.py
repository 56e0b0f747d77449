"""Tables spread over clients, and shared trees held against XGBoost's, node by node."""

import numpy as np

from fedtrees.core.schema import Feature, Schema, Table

# Both sides round sums to float32, after adding in other orders.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}
NODE_FIELDS = ("feature", "threshold", "left", "default_left", "value")
STATISTICS = ("sum_hessian", "base_weights", "loss_changes")


def tables(seed=0, rows=(90, 150, 60), missing=0.1, classes=2, decimals=1):
    """Return one table per client, of five columns and of different label means."""
    rng = np.random.default_rng(seed)
    found = []
    for n in rows:
        X = np.round(rng.normal(size=(n, 5)) * [1, 10, 3, 0.5, 2], decimals).astype(np.float32)
        X[:, 4] = rng.integers(0, 3, n)
        signal = X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.7, n) + rng.normal(0, 0.3)
        y = np.digitize(signal, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else signal
        X[rng.random(X.shape) < missing] = np.nan
        found.append(Table(X, y if classes else y.astype(np.float64)))
    names = tuple(str(c) for c in range(classes))
    return found, Schema(tuple(Feature(n) for n in "abcde"), "y", names)


def xgboost_params(protocol, objective, classes=0):
    """Return the parameters under which XGBoost grows what a protocol's clients grow."""
    names = ("max_depth", "max_leaves", "grow_policy", "learning_rate", "reg_lambda", "reg_alpha")
    names += ("gamma", "min_child_weight", "max_bin", "base_score")
    params = {n: v for n in names if (v := getattr(protocol, n)) is not None}
    params |= {"objective": objective, "tree_method": "hist", "nthread": 1}
    return params | ({"num_class": classes} if classes > 2 else {})


def sent(training, kind, sender=None):
    """Return the messages of one type, in order."""
    every = (d for d in training.transcript if type(d.message) is kind)
    return [d.message for d in every if sender in (None, d.sender)]


def joined(messages):
    """Return the fields of several messages, end to end."""
    names = ("sizes", *NODE_FIELDS, *STATISTICS)
    return {n: np.concatenate([getattr(m, n) for m in messages]) for n in names}


def assert_same_trees(messages, trees):
    """Compare every field of every node with XGBoost's own."""
    ours = joined(messages)
    assert ours["sizes"].tolist() == [len(t["left_children"]) for t in trees]
    ends = np.cumsum(ours["sizes"])
    for end, theirs in zip(ends, trees, strict=True):
        span = slice(end - len(theirs["left_children"]), end)
        assert_same_tree({k: v[span] for k, v in ours.items() if k != "sizes"}, theirs)


def assert_same_tree(ours, theirs):
    """Compare one tree."""
    leaf = theirs["left_children"] < 0
    children = (ours["left"], np.where(leaf, -1, ours["left"] + 1))
    np.testing.assert_array_equal(children, (theirs["left_children"], theirs["right_children"]))
    np.testing.assert_array_equal(ours["feature"], np.where(leaf, -1, theirs["split_indices"]))
    np.testing.assert_array_equal(ours["default_left"], theirs["default_left"].astype(bool))
    condition = theirs["split_conditions"].astype(np.float32)
    np.testing.assert_array_equal(ours["threshold"], np.where(leaf, 0, condition))
    np.testing.assert_allclose(ours["value"], np.where(leaf, condition, 0), **CLOSE)
    for name in STATISTICS:  # gains are differences of sums as large as the largest one
        scale = max(1.0, np.abs(theirs[name]).max())
        np.testing.assert_allclose(ours[name] / scale, theirs[name] / scale, **CLOSE)
