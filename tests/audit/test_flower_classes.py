"""Flower's bagging of several classes: whole first reply, then trees that it lists as class 0."""

import json

import numpy as np
import pytest
import xgboost as xgb
from sklearn.datasets import load_iris

from fedtrees import load_model
from fedtrees.audit.audit import audit
from fedtrees.audit.read import read_model
from fedtrees.audit.scrub import scrub
from fedtrees.core.errors import DataError, UsageError
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


def test_the_audit_reads_the_whole_rounds_and_says_what_it_leaves_out(path):
    model = read_model(path)
    assert len(model.forest) == 3
    assert "without its last 2 trees" in model.format
    found = audit(model)
    assert found.rows.n == 50  # the first client's
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
