"""Flower's bagging of several classes: a complete first reply, then trees that are listed as
class 0.
"""

import json

import numpy as np
import pytest
import xgboost as xgb
from sklearn.datasets import load_iris

from fedtrees import load_model
from fedtrees.core.errors import DataError, UsageError
from fedtrees.model_audit.audit import audit
from fedtrees.model_audit.readers import read_model
from fedtrees.model_audit.scrub import scrub
from fedtrees.trees.files.xgboost import trees_alone

PARAMETERS = {"objective": "multi:softprob", "num_class": 3, "max_depth": 2, "base_score": 0.5}


def append_reply(model, reply):
    """Append a reply as ``aggregate`` of flwr/server/strategy/fedxgb_bagging.py does (Flower
    1.x).
    """
    model_part, reply_part = (m["learner"]["gradient_booster"]["model"] for m in (model, reply))
    n_before = int(model_part["gbtree_model_param"]["num_trees"])
    n_new = int(reply_part["gbtree_model_param"]["num_parallel_tree"])
    model_part["gbtree_model_param"]["num_trees"] = str(n_before + n_new)
    model_part["iteration_indptr"].append(model_part["iteration_indptr"][-1] + n_new)
    for k in range(n_new):
        model_part["trees"].append({**reply_part["trees"][k], "id": n_before + k})
        model_part["tree_info"].append(0)
    return model


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    X, y = load_iris(return_X_y=True)
    replies = [
        json.loads(bytes(xgb.train(PARAMETERS, xgb.DMatrix(X[i::3], y[i::3]), 1).save_raw("json")))
        for i in range(3)
    ]
    model = append_reply(append_reply(*replies[:2]), replies[2])
    file = tmp_path_factory.mktemp("flower") / "model.json"
    file.write_text(json.dumps(model))
    return file


@pytest.mark.long
def test_the_model_predicts_the_values_of_xgboost(model_path):
    X = load_iris().data.astype(np.float32)
    xgboost_predictions = xgb.Booster(model_file=model_path).predict(xgb.DMatrix(X))
    np.testing.assert_allclose(
        load_model(model_path).predict(X), xgboost_predictions, rtol=0, atol=1e-6
    )


def test_the_first_tree_of_every_client_is_counted(model_path):
    """The first client has three counted trees, and each other client the appended tree of class
    0.
    """
    model = read_model(model_path)
    report = audit(model)
    assert "its last 2 trees are of class 0 only" in model.format
    assert [tree_report.index for tree_report in report.trees] == [0, 1, 2, 3, 4]
    assert [tree_report.output for tree_report in report.trees] == [0, 1, 2, 0, 0]
    X, y = load_iris(return_X_y=True)
    booster = xgb.Booster(model_file=model_path)
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).reshape(len(X), -1)
    for tree, client in zip(report.trees, (0, 0, 0, 1, 2), strict=True):
        rows = np.arange(len(X)) % 3 == client
        reached_leaf = reached[rows, tree.index]
        numbers = [model.number_of(tree.at, leaf) for leaf in tree.leaf.tolist()]
        assert tree.n.tolist() == [(reached_leaf == number).sum() for number in numbers]
        positive = y[rows] == tree.output
        truth = np.array([((reached_leaf == number) & positive).sum() for number in numbers])
        assert np.array_equal(tree.n_pos[tree.exact], truth[tree.exact])
        assert tree.exact.any()
    with pytest.raises(UsageError, match="a copy would lose them"):
        scrub(model, model_path.with_name("copy.json"))


@pytest.mark.parametrize(
    ("info", "n_single_class_trees"),
    [
        ([0, 1, 2, 0, 0], 2),
        ([0, 1, 2, 0, 1, 2], 0),
        ([0, 0, 1, 1, 2, 2], 0),  # Several consecutive trees have the same class.
        ([0, 1, 2, 0, 1], 0),
        ([0, 0], 0),
    ],
)
def test_only_the_pattern_of_flower_is_recognised(info, n_single_class_trees):
    assert trees_alone(info, 3) == n_single_class_trees


def test_other_uneven_models_are_refused(model_path, tmp_path):
    model = json.loads(model_path.read_text())
    model["learner"]["gradient_booster"]["model"]["tree_info"][-1] = 1
    other = tmp_path / "m.json"
    other.write_text(json.dumps(model))
    with pytest.raises(DataError, match="do not divide into 3 outputs"):
        load_model(other)
