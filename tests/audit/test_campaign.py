"""Audits of random models have no wrong count, bound or setting; earlier faults are tested one
by one.
"""

import json

import campaign
import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb
from sklearn.datasets import load_wine

from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.verdict import to_json


@pytest.mark.long
@pytest.mark.parametrize(
    "first", [0, 50, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 150))]
)
def test_audits_of_random_models_contain_no_wrong_number(tmp_path, first):
    messages, tally = campaign.campaign(first, 50, tmp_path)
    assert messages == []
    assert tally["models"] > 35
    assert tally["counted"] > 50


@pytest.mark.parametrize("seed", [202928, 203474, 20256, 71635])
def test_models_with_an_earlier_fault_have_no_wrong_number(tmp_path, seed):
    """The faults were LightGBM's refit on other labels, and pure siblings of one value under masked
    sums.

    The training of seed 20256 continued from another base score. The rows of seed 71635 had base
    margins.
    """
    description, found_faults, tally = campaign.check_model(seed, tmp_path)
    assert found_faults == [], description
    assert tally["models"] == 1


def test_a_refit_on_other_labels_reveals_no_labels(tmp_path):
    """Leaf values lie between those of two sets of labels, and gains are those of the first set."""
    import lightgbm as lgb

    X = np.repeat([[0.0], [1.0]], [30, 20], axis=0)
    y = np.repeat([0, 1, 0, 1], [30, 0, 10, 10])
    params = {"objective": "binary", "num_leaves": 2, "min_data_in_leaf": 1, "verbose": -1}
    params |= {"boost_from_average": False, "num_threads": 1}
    booster = lgb.train(params, lgb.Dataset(X, y), 2)

    def labels(booster):
        booster.save_model(tmp_path / "m.txt")
        return audit(read_model(tmp_path / "m.txt")).trees[0].n_pos.tolist()

    assert labels(booster) == [0, 10]
    assert labels(booster.refit(X, y[::-1].copy())) == [UNKNOWN, UNKNOWN]


@pytest.mark.slow
def test_1000_further_models_have_no_wrong_number(tmp_path):
    assert campaign.campaign(1000, 1000, tmp_path)[0] == []


def audit_stumps(path, rounds, **params):
    """Train stumps on two groups of 21 rows, 15 and 4 of which are positive, and audit them."""
    X = np.repeat([[0.0], [1.0]], 21, axis=0)
    y = np.concatenate([np.arange(21) < 15, np.arange(21) < 4]).astype(int)
    params = trained.PARAMS | {"max_depth": 1} | params
    xgb.train(params, xgb.DMatrix(X, y), rounds).save_model(path)
    return audit(read_model(path))


@pytest.mark.parametrize("rounds", [1, 8, 40])
@pytest.mark.parametrize("params", [{}, {"objective": "multi:softprob", "num_class": 2}])
@pytest.mark.parametrize("alpha", [1, 2])
def test_labels_of_a_stump_are_not_counted_under_an_integer_l1_penalty(
    tmp_path, alpha, params, rounds
):
    """Both leaves of the first stump have integer sums, which are shifted by alpha."""
    report = audit_stumps(tmp_path / "m.json", rounds, alpha=alpha, **params)
    assert report.trees[0].n.tolist() == [21, 21]
    assert report.summary.exact == 0


@pytest.mark.parametrize("alpha", [1, 2])
def test_labels_of_a_lone_stump_are_not_counted(tmp_path, alpha):
    model_file = trained.central(tmp_path / "m.json", 1, max_depth=1, reg_alpha=alpha)
    first = audit(read_model(model_file.path)).trees[0]
    assert np.array_equal(first.n, model_file.true_counts(0, first.leaf)[0])
    assert (first.n_pos == UNKNOWN).all()


@pytest.mark.parametrize("weight", [2, 3, 5])
def test_weighted_rows_under_a_penalty_are_not_counted(tmp_path, weight):
    report = audit_stumps(tmp_path / "m.json", 1, alpha=weight, scale_pos_weight=weight)
    assert report.summary.counted == 0


def test_pure_leaves_show_that_no_penalty_moved_labels(tmp_path):
    """One tree cannot distinguish alpha from 0, but with alpha = 1 a pure leaf would have N1 =
    -1.
    """
    X = np.repeat([[0.0], [1.0], [2.0], [3.0]], 10, axis=0)
    y = np.repeat([0, 1], 20)
    y[15:19] = 1
    params = trained.PARAMS | {"max_depth": 3, "min_child_weight": 0}
    xgb.train(params, xgb.DMatrix(X, y), 6).save_model(tmp_path / "m.json")
    first = audit(read_model(tmp_path / "m.json")).trees[0]
    assert first.exact.all()


def test_one_table_is_not_two_clients_after_a_tree_of_one_leaf(tmp_path):
    """Every row enters the second tree with one prediction, as in the first tree of a client."""
    model_file = trained.central(
        tmp_path / "m.json", 6, base_score=0.97, min_child_weight=12, eta=0.1, max_depth=2
    )
    report = audit(read_model(model_file.path))
    assert [len(t.leaf) == 1 for t in report.trees[:2]] == [True, False]
    assert report.trees[1].base_score != pytest.approx(0.97, abs=1e-3)
    assert np.array_equal(report.trees[1].n, model_file.true_counts(1, report.trees[1].leaf)[0])
    assert (report.sources.kind, report.rows.n) == ("one", 569)


def test_numbers_of_trees_and_leaves_are_those_of_the_file(tmp_path):
    """Parallel trees of several classes, and best-first trees, whose leaves are not numbered
    consecutively.
    """
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2, "nthread": 1}
    params |= {"grow_policy": "lossguide", "max_leaves": 5, "colsample_bytree": 0.6}
    booster = xgb.train(params, xgb.DMatrix(X, y), 2)
    booster.save_model(tmp_path / "m.json")
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).astype(int)
    trees = to_json(audit(read_model(tmp_path / "m.json")))["trees"]
    assert [t["index"] for t in trees] == list(range(12))
    assert [t["output"] for t in trees] == [0, 0, 1, 1, 2, 2] * 2
    for tree in trees:
        reached_leaf = reached[:, tree["index"]]
        assert {leaf["id"] for leaf in tree["leaves"]} == set(reached_leaf.tolist())
        for leaf in tree["leaves"] if tree["index"] < 6 else ():
            assert leaf["n"] == (reached_leaf == leaf["id"]).sum()


def test_lightgbm_s_leaves_have_lightgbm_s_numbers(tmp_path):
    import lightgbm as lgb

    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1}
    booster = lgb.train(params, lgb.Dataset(X, y), 3)
    booster.save_model(tmp_path / "m.txt")
    reached = booster.predict(X, pred_leaf=True)
    for tree in to_json(audit(read_model(tmp_path / "m.txt")))["trees"]:
        counts = np.bincount(reached[:, tree["index"]], minlength=7)
        assert {leaf["id"]: leaf["n"] for leaf in tree["leaves"]} == dict(enumerate(counts))


def test_rows_are_never_called_all_of_the_table(tmp_path):
    """A training that was continued on other rows has the same first trees."""
    X, y = trained.table()
    first_half = xgb.train(trained.PARAMS, xgb.DMatrix(X[:300], y[:300]), 3)
    continued = xgb.train(trained.PARAMS, xgb.DMatrix(X[300:], y[300:]), 3, xgb_model=first_half)
    continued.save_model(tmp_path / "m.json")
    model = to_json(audit(read_model(tmp_path / "m.json")))["model"]
    assert (model["rows"], model["rows_whole"]) == (300, False)


def test_bounds_of_later_trees_allow_for_a_base_score_changed_since(tmp_path):
    X, y = trained.table()
    first = xgb.train(trained.PARAMS, xgb.DMatrix(X, y), 2)
    later_params = trained.PARAMS | {"base_score": 0.05}
    data = xgb.DMatrix(X, y)
    xgb.train(later_params, data, 2, xgb_model=first).save_model(tmp_path / "m.json")
    score = json.loads((tmp_path / "m.json").read_text())["learner"]["learner_model_param"]
    assert "5E-2" in score["base_score"]
    report = audit(read_model(tmp_path / "m.json"))
    model_file = trained.Trained(tmp_path / "m.json", X, y, [np.arange(len(y))], [0] * 4)
    for tree in report.trees[1:]:
        n = model_file.true_counts(tree.index, tree.leaf)[0]
        limited = tree.at_most != UNKNOWN
        assert limited.any()
        assert (n[limited] <= tree.at_most[limited]).all()
