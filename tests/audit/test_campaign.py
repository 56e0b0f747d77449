"""Of models of random settings no count, bound or setting is wrong; what was, case by case."""

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
def test_nothing_that_audits_of_random_models_state_is_wrong(tmp_path, first):
    wrong, tally = campaign.campaign(first, 50, tmp_path)
    assert wrong == []
    assert tally["models"] > 35
    assert tally["counted"] > 50


@pytest.mark.parametrize("seed", [202928, 203474, 20256, 71635])
def test_what_was_wrong_of_one_model_in_thousands_is_right(tmp_path, seed):
    """LightGBM's refit on other labels; pure siblings of one value under masked sums.

    The training of 20256 went on from another base score. The rows of 71635 had base margins.
    """
    about, wrong, tally = campaign.check(seed, tmp_path)
    assert wrong == [], about
    assert tally["models"] == 1


def test_a_refit_on_other_labels_tells_no_labels(tmp_path):
    """Leaf values lie between those of two sets of labels; gains are those of the first."""
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
def test_nothing_is_wrong_of_1000_others(tmp_path):
    assert campaign.campaign(1000, 1000, tmp_path)[0] == []


def stumps(path, rounds, **params):
    """Twenty-one rows each of two groups, of which 15 and 4 are positive."""
    X = np.repeat([[0.0], [1.0]], 21, axis=0)
    y = np.concatenate([np.arange(21) < 15, np.arange(21) < 4]).astype(int)
    params = trained.PARAMS | {"max_depth": 1} | params
    xgb.train(params, xgb.DMatrix(X, y), rounds).save_model(path)
    return audit(read_model(path))


@pytest.mark.parametrize("rounds", [1, 8, 40])
@pytest.mark.parametrize("params", [{}, {"objective": "multi:softprob", "num_class": 2}])
@pytest.mark.parametrize("alpha", [1, 2])
def test_a_whole_l1_penalty_counts_no_label_of_a_stump(tmp_path, alpha, params, rounds):
    """Both leaves of the first stump hold whole numbers, moved by alpha."""
    found = stumps(tmp_path / "m.json", rounds, alpha=alpha, **params)
    assert found.trees[0].n.tolist() == [21, 21]
    assert found.summary.exact == 0


@pytest.mark.parametrize("alpha", [1, 2])
def test_labels_of_a_lone_stump_are_not_counted(tmp_path, alpha):
    made = trained.central(tmp_path / "m.json", 1, max_depth=1, reg_alpha=alpha)
    first = audit(read_model(made.path)).trees[0]
    assert np.array_equal(first.n, made.true_counts(0, first.leaf)[0])
    assert (first.n_pos == UNKNOWN).all()


@pytest.mark.parametrize("weight", [2, 3, 5])
def test_weighted_rows_moved_by_a_penalty_are_not_called_rows(tmp_path, weight):
    found = stumps(tmp_path / "m.json", 1, alpha=weight, scale_pos_weight=weight)
    assert found.summary.counted == 0


def test_pure_leaves_show_that_no_penalty_moved_labels(tmp_path):
    """One tree cannot tell alpha from 0, but with one of 1 a pure leaf would have N1 of -1."""
    X = np.repeat([[0.0], [1.0], [2.0], [3.0]], 10, axis=0)
    y = np.repeat([0, 1], 20)
    y[15:19] = 1
    params = trained.PARAMS | {"max_depth": 3, "min_child_weight": 0}
    xgb.train(params, xgb.DMatrix(X, y), 6).save_model(tmp_path / "m.json")
    first = audit(read_model(tmp_path / "m.json")).trees[0]
    assert first.exact.all()


def test_one_table_is_not_two_clients_after_a_tree_of_one_leaf(tmp_path):
    """Every row enters the second tree with one prediction, as a client's first tree."""
    made = trained.central(
        tmp_path / "m.json", 6, base_score=0.97, min_child_weight=12, eta=0.1, max_depth=2
    )
    found = audit(read_model(made.path))
    assert [len(t.leaf) == 1 for t in found.trees[:2]] == [True, False]
    assert found.trees[1].base_score != pytest.approx(0.97, abs=1e-3)
    assert np.array_equal(found.trees[1].n, made.true_counts(1, found.trees[1].leaf)[0])
    assert (found.sources.kind, found.rows.n) == ("one", 569)


def test_places_of_trees_and_leaves_are_those_of_the_file(tmp_path):
    """Parallel trees of several classes; best-first trees, whose leaves are not in a row."""
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2, "nthread": 1}
    params |= {"grow_policy": "lossguide", "max_leaves": 5, "colsample_bytree": 0.6}
    booster = xgb.train(params, xgb.DMatrix(X, y), 2)
    booster.save_model(tmp_path / "m.json")
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).astype(int)
    told = to_json(audit(read_model(tmp_path / "m.json")))["trees"]
    assert [t["index"] for t in told] == list(range(12))
    assert [t["output"] for t in told] == [0, 0, 1, 1, 2, 2] * 2
    for tree in told:
        at = reached[:, tree["index"]]
        assert {leaf["id"] for leaf in tree["leaves"]} == set(at.tolist())
        for leaf in tree["leaves"] if tree["index"] < 6 else ():
            assert leaf["n"] == (at == leaf["id"]).sum()


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
    """A training that went on with other rows leaves the same first trees."""
    X, y = trained.table()
    half = xgb.train(trained.PARAMS, xgb.DMatrix(X[:300], y[:300]), 3)
    more = xgb.train(trained.PARAMS, xgb.DMatrix(X[300:], y[300:]), 3, xgb_model=half)
    more.save_model(tmp_path / "m.json")
    model = to_json(audit(read_model(tmp_path / "m.json")))["model"]
    assert (model["rows"], model["rows_whole"]) == (300, False)


def test_bounds_of_later_trees_allow_for_a_base_score_changed_since(tmp_path):
    X, y = trained.table()
    first = xgb.train(trained.PARAMS, xgb.DMatrix(X, y), 2)
    more = trained.PARAMS | {"base_score": 0.05}
    data = xgb.DMatrix(X, y)
    xgb.train(more, data, 2, xgb_model=first).save_model(tmp_path / "m.json")
    score = json.loads((tmp_path / "m.json").read_text())["learner"]["learner_model_param"]
    assert "5E-2" in score["base_score"]
    found = audit(read_model(tmp_path / "m.json"))
    made = trained.Trained(tmp_path / "m.json", X, y, [np.arange(len(y))], [0] * 4)
    for t in found.trees[1:]:
        n = made.true_counts(t.index, t.leaf)[0]
        limited = t.at_most != UNKNOWN
        assert limited.any()
        assert (n[limited] <= t.at_most[limited]).all()
