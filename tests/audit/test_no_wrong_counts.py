"""What a file cannot tell for certain is not called certain."""

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
HALF[0] = 0.5 + (HALF[1:].sum() + 0.5) % 1  # whole in all


def trees_of(tmp_path, X, y, rounds=20, weight=None, **params):
    data = xgb.DMatrix(X, y, weight=weight)
    xgb.train(trained.PARAMS | params, data, rounds).save_model(tmp_path / "m.json")
    return audit(read_model(tmp_path / "m.json"))


def test_one_tree_of_broken_numbers_shows_the_weights_of_all(tmp_path):
    """Stumps on rows of weight 1/2 and 1 often hold whole sums; none is a count of rows."""
    X = trained.table()[0]
    found = trees_of(tmp_path, X, X[:, 3], 60, HALF, objective="reg:squarederror", max_depth=1)
    whole = [all(h % 1 == 0 for h in t["sum_hessian"]) for t in trained.trees_in(found.model.path)]
    assert 0 < sum(whole) < 60
    assert found.summary.counted == 0


def test_the_verdict_says_that_halves_may_pass_for_rows(tmp_path):
    """Stumps of a regression on rows of weight 1/2: each leaf may hold an even number of them."""
    X = np.repeat([[0.0], [1.0]], 4, axis=0)
    params = {"objective": "reg:squarederror", "max_depth": 1, "min_child_weight": 0}
    found = trees_of(tmp_path, X, X[:, 0], 1, np.full(8, 0.5), **params)
    assert found.rows.n == 4  # of 8
    assert "weights of 0.5" in " ".join(verdict(found))


def test_rows_of_label_1_weigh_more_in_squared_error_too(tmp_path):
    X, y = trained.table()
    found = trees_of(tmp_path, X, y, 5, objective="reg:squarederror", scale_pos_weight=3)
    assert found.summary.counted == 0


def test_a_class_is_not_counted_where_the_others_hold_no_rows(tmp_path):
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "max_depth": 2}
    for seed in (42, 62, 87):  # with these weights one class alone has leaves of whole sums
        weight = np.random.default_rng(seed).choice([0.5, 1.0], len(y))
        found = trees_of(tmp_path, X, y, 1, weight, **params)
        assert found.summary.counted == 0
        assert found.rows.n is None


def test_a_second_client_s_small_first_tree_gets_no_upper_bound(tmp_path):
    """Few leaves may not tell its base score, from which its bounds would follow."""
    unknown = 0
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
        unknown += second.base_score is None
        assert second.base_score is not None or (second.at_most == UNKNOWN).all()
    assert unknown > 2


def test_lightgbm_s_l1_penalty_moves_labels_by_whole_numbers(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1}
    for penalty in (0.0, 1.0):
        model = lgb.train(params | {"lambda_l1": penalty}, lgb.Dataset(X, y), 3)
        model.save_model(tmp_path / "m.txt")
        found = audit(read_model(tmp_path / "m.txt"))
        assert found.summary.counted == found.summary.leaves
        assert bool(found.summary.exact) == (penalty == 0)


def stripped(path, seed, known, **params):
    """Audit a model of leaf values alone; tell how many of its counts are certain, and wrong."""
    rng = np.random.default_rng(seed)
    X, y = trained.table()
    rows = rng.choice(len(y), 60 + 40 * (seed % 6) + seed % 60, replace=False)
    made = trained.central(path, 1, X[rows], y[rows], seed=seed, **params)
    found = audit(without_statistics(read_model(path)), known(len(rows)))
    first, (n, n_pos) = found.trees[0], made.true_counts(0, found.trees[0].leaf)
    certain, exact = first.n != UNKNOWN, first.n_pos != UNKNOWN
    wrong = (first.n != n)[certain].any() or (first.n_pos != n_pos)[exact].any()
    return certain.any(), wrong, found.assumes


def nothing(rows):
    return Known()


def penalty(rows):
    return Known(reg_lambda=1.0)


def settings(rows):
    return Known(learning_rate=0.3, reg_lambda=1.0)


def size(rows):
    return Known(rows=rows)


def everything(rows):
    return Known(rows=rows, learning_rate=0.3, reg_lambda=1.0)


@pytest.mark.long(but=("settings-{}-18",))
@pytest.mark.parametrize(
    ("known", "params", "least"),
    [
        (nothing, {"max_depth": 1}, 0),
        pytest.param(nothing, {"max_depth": 1, "lambda": 2}, 0, marks=pytest.mark.slow),
        (penalty, {"max_depth": 1}, 5),
        (settings, {"max_depth": 1}, 18),
        (settings, {}, 18),
        (settings, {"subsample": 0.8}, 0),
        pytest.param(settings, {"subsample": 0.7}, 0, marks=pytest.mark.slow),
        (size, {"max_depth": 1}, 0),
        pytest.param(size, {"max_depth": 1, "base_score": 0.5}, 0, marks=pytest.mark.slow),
        (everything, {"max_depth": 1, "base_score": 0.5}, 18),
        (everything, {"subsample": 0.8}, 0),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_leaf_values_alone_give_no_wrong_count(tmp_path, known, params, least):
    """Not that of a table by a factor smaller, nor that of a sample from it."""
    counted = 0
    for seed in range(20):
        some, wrong, _ = stripped(tmp_path / "m.json", seed, known, **params)
        assert not wrong
        counted += some
    assert counted >= least


@pytest.mark.long
@pytest.mark.parametrize(
    ("known", "params", "condition"),
    [
        (settings, {"alpha": 1}, "no L1 penalty"),
        (everything, {"alpha": 1, "base_score": 0.5}, "no L1 penalty"),
        (everything, {"subsample": 0.8, "base_score": 0.5}, "not on a sample"),
    ],
    ids=["alpha", "alpha, fixed", "sample, fixed"],
)
def test_counts_that_a_condition_makes_wrong_name_it(tmp_path, known, params, condition):
    wrongs = 0
    for seed in range(30):
        some, wrong, assumes = stripped(tmp_path / "m.json", seed, known, **params)
        assert some == any(condition in line for line in assumes)
        wrongs += wrong
    assert wrongs > 0


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

    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        ports = [str(probe.getsockname()[1]) for probe in (one, two)]
    call = [sys.executable, "-c", DISTRIBUTED]
    started = [
        subprocess.Popen([*call, str(k), *ports, str(tmp_path)], stdout=subprocess.DEVNULL)
        for k in range(2)
    ]
    if any(p.wait(timeout=120) for p in started):
        pytest.skip("two processes cannot talk over the loopback interface here")
    X = load_breast_cancer().data
    model = read_model(tmp_path / "0.txt")
    found, reached = audit(model), model.forest.apply(X.astype(np.float32))
    wrong = 0
    for t, written in zip(found.trees, model.statistics, strict=True):
        n = np.array([(reached[:, t.index] == leaf).sum() for leaf in t.leaf])
        wrong += (written.rows[t.leaf] != n).sum()
        assert np.array_equal(t.n, n) == (t.index == 0)
        assert t.index == 0 or (t.n == UNKNOWN).all()
    assert wrong > 0  # the file itself says otherwise
    assert found.trees[0].exact.all()
