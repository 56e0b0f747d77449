"""Flower's bagging of several classes: whole first reply, then trees that it lists as class 0."""

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


def appended(model, reply):
    """What ``aggregate`` of flwr/server/strategy/fedxgb_bagging.py does (Flower 1.x)."""
    into, new = (m["learner"]["gradient_booster"]["model"] for m in (model, reply))
    have = int(into["gbtree_model_param"]["num_trees"])
    more = int(new["gbtree_model_param"]["num_parallel_tree"])
    into["gbtree_model_param"]["num_trees"] = str(have + more)
    into["iteration_indptr"].append(into["iteration_indptr"][-1] + more)
    for k in range(more):
        into["trees"].append({**new["trees"][k], "id": have + k})
        into["tree_info"].append(0)
    return model


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    X, y = load_iris(return_X_y=True)
    replies = [
        json.loads(bytes(xgb.train(PARAMETERS, xgb.DMatrix(X[i::3], y[i::3]), 1).save_raw("json")))
        for i in range(3)
    ]
    model = appended(appended(*replies[:2]), replies[2])
    file = tmp_path_factory.mktemp("flower") / "model.json"
    file.write_text(json.dumps(model))
    return file


@pytest.mark.long
def test_it_predicts_what_xgboost_predicts(path):
    X = load_iris().data.astype(np.float32)
    theirs = xgb.Booster(model_file=path).predict(xgb.DMatrix(X))
    np.testing.assert_allclose(load_model(path).predict(X), theirs, rtol=0, atol=1e-6)


def test_the_first_tree_of_every_client_is_counted(path):
    """The first client's three trees, and of the others the tree of class 0 that was appended."""
    model = read_model(path)
    found = audit(model)
    assert "its last 2 trees are of class 0 only" in model.format
    assert [t.index for t in found.trees] == [0, 1, 2, 3, 4]
    assert [t.output for t in found.trees] == [0, 1, 2, 0, 0]
    X, y = load_iris(return_X_y=True)
    booster = xgb.Booster(model_file=path)
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).reshape(len(X), -1)
    for tree, client in zip(found.trees, (0, 0, 0, 1, 2), strict=True):
        rows = np.arange(len(X)) % 3 == client
        at = reached[rows, tree.index]
        numbers = [model.number_of(tree.at, leaf) for leaf in tree.leaf.tolist()]
        assert tree.n.tolist() == [(at == number).sum() for number in numbers]
        positive = y[rows] == tree.output
        truth = np.array([((at == number) & positive).sum() for number in numbers])
        assert np.array_equal(tree.n_pos[tree.exact], truth[tree.exact])
        assert tree.exact.any()
    with pytest.raises(UsageError, match="a copy would lose them"):
        scrub(model, path.with_name("copy.json"))


@pytest.mark.parametrize(
    ("info", "alone"),
    [
        ([0, 1, 2, 0, 0], 2),
        ([0, 1, 2, 0, 1, 2], 0),
        ([0, 0, 1, 1, 2, 2], 0),  # several trees of a class side by side
        ([0, 1, 2, 0, 1], 0),
        ([0, 0], 0),
    ],
)
def test_only_flowers_pattern_is_taken_for_it(info, alone):
    assert trees_alone(info, 3) == alone


def test_other_uneven_models_are_refused(path, tmp_path):
    model = json.loads(path.read_text())
    model["learner"]["gradient_booster"]["model"]["tree_info"][-1] = 1
    other = tmp_path / "m.json"
    other.write_text(json.dumps(model))
    with pytest.raises(DataError, match="do not divide into 3 outputs"):
        load_model(other)
