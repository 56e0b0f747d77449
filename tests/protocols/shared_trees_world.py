"""Tables of several clients, and node by node comparisons of shared trees with XGBoost's."""

import numpy as np

from fedtrees.core.schema import Feature, Schema, Table

# Both sides round sums to float32, after adding in other orders.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}
NODE_FIELDS = ("feature", "threshold", "left", "default_left", "value")
STATISTICS = ("sum_hessian", "base_weights", "loss_changes")


def tables(seed=0, rows=(90, 150, 60), missing=0.1, classes=2, decimals=1):
    """Return one table of five columns for each client; the clients differ in their label means."""
    rng = np.random.default_rng(seed)
    client_tables = []
    for n_rows in rows:
        X = np.round(rng.normal(size=(n_rows, 5)) * [1, 10, 3, 0.5, 2], decimals).astype(np.float32)
        X[:, 4] = rng.integers(0, 3, n_rows)
        signal = X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.7, n_rows) + rng.normal(0, 0.3)
        y = np.digitize(signal, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else signal
        X[rng.random(X.shape) < missing] = np.nan
        client_tables.append(Table(X, y if classes else y.astype(np.float64)))
    names = tuple(str(c) for c in range(classes))
    return client_tables, Schema(tuple(Feature(n_rows) for n_rows in "abcde"), "y", names)


def xgboost_params(protocol, objective, classes=0):
    """Return the XGBoost parameters that grow the same trees as the clients of a protocol."""
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
    """Compare every field of every node with the trees of XGBoost."""
    received = joined(messages)
    assert received["sizes"].tolist() == [len(t["left_children"]) for t in trees]
    ends = np.cumsum(received["sizes"])
    for end, reference in zip(ends, trees, strict=True):
        span = slice(end - len(reference["left_children"]), end)
        assert_same_tree({k: v[span] for k, v in received.items() if k != "sizes"}, reference)


def assert_same_tree(tree, reference):
    """Compare one tree with XGBoost's."""
    leaf = reference["left_children"] < 0
    children = (tree["left"], np.where(leaf, -1, tree["left"] + 1))
    np.testing.assert_array_equal(
        children, (reference["left_children"], reference["right_children"])
    )
    np.testing.assert_array_equal(tree["feature"], np.where(leaf, -1, reference["split_indices"]))
    np.testing.assert_array_equal(tree["default_left"], reference["default_left"].astype(bool))
    condition = reference["split_conditions"].astype(np.float32)
    np.testing.assert_array_equal(tree["threshold"], np.where(leaf, 0, condition))
    np.testing.assert_allclose(tree["value"], np.where(leaf, condition, 0), **CLOSE)
    for name in STATISTICS:  # gains are differences of sums as large as the largest one
        scale = max(1.0, np.abs(reference[name]).max())
        np.testing.assert_allclose(tree[name] / scale, reference[name] / scale, **CLOSE)
