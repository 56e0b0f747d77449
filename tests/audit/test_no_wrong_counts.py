"""Numbers that a file does not determine are not called certain."""

import json
import socket
import subprocess
import sys

import lightgbm as lgb
import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb
from sklearn.datasets import load_wine

from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.model import without_statistics
from fedtrees.model_audit.verdict import verdict

HALF = np.random.default_rng(0).choice([0.5, 1.0], 569)
HALF[0] = 0.5 + (HALF[1:].sum() + 0.5) % 1  # The sum of the weights is an integer.


def audit_training(tmp_path, X, y, rounds=20, weight=None, **params):
    data = xgb.DMatrix(X, y, weight=weight)
    xgb.train(trained.PARAMS | params, data, rounds).save_model(tmp_path / "m.json")
    return audit(read_model(tmp_path / "m.json"))


def test_one_tree_with_fractional_sums_shows_that_all_rows_have_weights(tmp_path):
    """Stumps on rows of weights 1/2 and 1 often have integer sums, none of which is a count of
    rows.
    """
    X = trained.table()[0]
    report = audit_training(
        tmp_path, X, X[:, 3], 60, HALF, objective="reg:squarederror", max_depth=1
    )
    has_integer_sums = [
        all(hessian % 1 == 0 for hessian in tree["sum_hessian"])
        for tree in trained.trees_in(report.model.path)
    ]
    assert 0 < sum(has_integer_sums) < 60
    assert report.summary.counted == 0


def test_the_verdict_warns_that_weights_of_one_half_may_look_like_rows(tmp_path):
    """Stumps of a regression on rows of weight 1/2: each leaf may contain an even number of
    rows.
    """
    X = np.repeat([[0.0], [1.0]], 4, axis=0)
    params = {"objective": "reg:squarederror", "max_depth": 1, "min_child_weight": 0}
    report = audit_training(tmp_path, X, X[:, 0], 1, np.full(8, 0.5), **params)
    assert report.rows.n == 4  # The table has 8 rows.
    assert "weights of 0.5" in " ".join(verdict(report))


def test_scale_pos_weight_is_recognised_in_squared_error(tmp_path):
    X, y = trained.table()
    report = audit_training(tmp_path, X, y, 5, objective="reg:squarederror", scale_pos_weight=3)
    assert report.summary.counted == 0


def test_a_class_is_not_counted_if_the_sums_of_other_classes_are_fractional(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "max_depth": 2}
    # With these weights a single class has leaves with integer sums.
    for seed in (42, 62, 87):
        weight = np.random.default_rng(seed).choice([0.5, 1.0], len(y))
        report = audit_training(tmp_path, X, y, 1, weight, **params)
        assert report.summary.counted == 0
        assert report.rows.n is None


def test_a_second_client_s_small_first_tree_gets_no_upper_bound(tmp_path):
    """Few leaves may not determine the base score, which the upper bounds require."""
    n_unknown = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = rng.integers(0, 4, (40, 1)).astype(np.float32)
        y = (rng.random(40) < 0.45).astype(int)
        model, params = None, trained.PARAMS | {"max_depth": 1, "eta": 0.37, "lambda": 3}
        for rows in (slice(20), slice(20, 40)):
            update = xgb.train(params, xgb.DMatrix(X[rows], y[rows]), 1).save_raw("json")
            model = trained.append(model, json.loads(update))
        (tmp_path / "m.json").write_text(json.dumps(model))
        second = audit(read_model(tmp_path / "m.json")).trees[1]
        n_unknown += second.base_score is None
        assert second.base_score is not None or (second.at_most == UNKNOWN).all()
    assert n_unknown > 2


def test_labels_are_not_counted_under_an_l1_penalty_of_lightgbm(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1}
    for penalty in (0.0, 1.0):
        model = lgb.train(params | {"lambda_l1": penalty}, lgb.Dataset(X, y), 3)
        model.save_model(tmp_path / "m.txt")
        report = audit(read_model(tmp_path / "m.txt"))
        assert report.summary.counted == report.summary.leaves
        assert bool(report.summary.exact) == (penalty == 0)


def audit_leaf_values(path, seed, declare, **params):
    """Audit a model of leaf values only; return whether some counts are certain, whether any is
    wrong, and the assumptions.
    """
    rng = np.random.default_rng(seed)
    X, y = trained.table()
    rows = rng.choice(len(y), 60 + 40 * (seed % 6) + seed % 60, replace=False)
    model_file = trained.central(path, 1, X[rows], y[rows], seed=seed, **params)
    report = audit(without_statistics(read_model(path)), declare(len(rows)))
    first, (n, n_pos) = report.trees[0], model_file.true_counts(0, report.trees[0].leaf)
    is_certain, exact = first.n != UNKNOWN, first.n_pos != UNKNOWN
    any_wrong = (first.n != n)[is_certain].any() or (first.n_pos != n_pos)[exact].any()
    return is_certain.any(), any_wrong, report.assumes


def declare_nothing(rows):
    return Known()


def declare_penalty(rows):
    return Known(reg_lambda=1.0)


def declare_settings(rows):
    return Known(learning_rate=0.3, reg_lambda=1.0)


def declare_size(rows):
    return Known(rows=rows)


def declare_everything(rows):
    return Known(rows=rows, learning_rate=0.3, reg_lambda=1.0)


@pytest.mark.long(but=("settings-{}-18",))
@pytest.mark.parametrize(
    ("declare", "params", "least_counted"),
    [
        (declare_nothing, {"max_depth": 1}, 0),
        pytest.param(declare_nothing, {"max_depth": 1, "lambda": 2}, 0, marks=pytest.mark.slow),
        (declare_penalty, {"max_depth": 1}, 5),
        (declare_settings, {"max_depth": 1}, 18),
        (declare_settings, {}, 18),
        (declare_settings, {"subsample": 0.8}, 0),
        pytest.param(declare_settings, {"subsample": 0.7}, 0, marks=pytest.mark.slow),
        (declare_size, {"max_depth": 1}, 0),
        pytest.param(declare_size, {"max_depth": 1, "base_score": 0.5}, 0, marks=pytest.mark.slow),
        (declare_everything, {"max_depth": 1, "base_score": 0.5}, 18),
        (declare_everything, {"subsample": 0.8}, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_leaf_values_give_no_wrong_count(tmp_path, declare, params, least_counted):
    """Neither counts of a table smaller by a factor nor those of a sample are reported."""
    counted = 0
    for seed in range(20):
        any_certain, any_wrong, _ = audit_leaf_values(tmp_path / "m.json", seed, declare, **params)
        assert not any_wrong
        counted += any_certain
    assert counted >= least_counted


@pytest.mark.long
@pytest.mark.parametrize(
    ("declare", "params", "condition"),
    [
        (declare_settings, {"alpha": 1}, "no L1 penalty"),
        (declare_everything, {"alpha": 1, "base_score": 0.5}, "no L1 penalty"),
        (declare_everything, {"subsample": 0.8, "base_score": 0.5}, "not on a sample"),
    ],
    ids=["alpha", "alpha, fixed", "sample, fixed"],
)
def test_wrong_counts_state_the_violated_condition(tmp_path, declare, params, condition):
    n_wrong = 0
    for seed in range(30):
        any_certain, any_wrong, assumes = audit_leaf_values(
            tmp_path / "m.json", seed, declare, **params
        )
        assert any_certain == any(condition in line for line in assumes)
        n_wrong += any_wrong
    assert n_wrong > 0


DISTRIBUTED = """
import sys, lightgbm as lgb
from sklearn.datasets import load_breast_cancer
X, y = load_breast_cancer(return_X_y=True)
k, first, second, out = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
params = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1,
          "tree_learner": "data", "num_machines": 2, "pre_partition": True, "time_out": 1,
          "machines": f"127.0.0.1:{first},127.0.0.1:{second}",
          "local_listen_port": int((first, second)[k])}
data = lgb.Dataset(X[k::2], y[k::2], params=params)
lgb.train(params, data, 6).save_model(f"{out}/{k}.txt")
"""


@pytest.mark.long
def test_counts_that_lightgbm_estimated_on_two_machines_are_not_certain(tmp_path):
    from sklearn.datasets import load_breast_cancer

    with socket.socket() as first_socket, socket.socket() as second_socket:
        for one_socket in (first_socket, second_socket):
            one_socket.bind(("127.0.0.1", 0))
        ports = [str(one_socket.getsockname()[1]) for one_socket in (first_socket, second_socket)]
    call = [sys.executable, "-c", DISTRIBUTED]
    processes = [
        subprocess.Popen([*call, str(k), *ports, str(tmp_path)], stdout=subprocess.DEVNULL)
        for k in range(2)
    ]
    if any(process.wait(timeout=120) for process in processes):
        pytest.skip("two processes cannot talk over the loopback interface here")
    X = load_breast_cancer().data
    model = read_model(tmp_path / "0.txt")
    report, reached = audit(model), model.forest.apply(X.astype(np.float32))
    n_wrong = 0
    for tree, file_statistics in zip(report.trees, model.statistics, strict=True):
        n = np.array([(reached[:, tree.index] == leaf).sum() for leaf in tree.leaf])
        n_wrong += (file_statistics.rows[tree.leaf] != n).sum()
        assert np.array_equal(tree.n, n) == (tree.index == 0)
        assert tree.index == 0 or (tree.n == UNKNOWN).all()
    assert n_wrong > 0  # The counts in the file are wrong.
    assert report.trees[0].exact.all()
