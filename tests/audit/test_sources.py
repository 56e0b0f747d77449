"""Trees of several clients in one file are told apart, and one table is not taken for several."""

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.tree_sources import find_sources


@pytest.mark.long
@pytest.mark.parametrize("clients", [2, 3])
def test_clients_are_followed_through_the_rounds_of_bagging(tmp_path, clients):
    made = trained.bagging(tmp_path / "m.json", rounds=10, clients=clients)
    found = audit(read_model(made.path)).sources
    assert (found.kind, found.clients) == ("bagging", clients)
    named = {f"client {k + 1}": made.grown_by[k] for k in range(clients)}
    right = [named[name] == who for name, who in zip(found.names, made.grown_by, strict=True)]
    assert all(right)


def test_clients_that_take_turns_are_counted(tmp_path):
    made = trained.cyclic(tmp_path / "m.json", turns=18, clients=3)
    found = audit(read_model(made.path)).sources
    assert (found.kind, found.clients) == ("turns", 3)
    assert found.names == tuple(f"client {1 + who}" for who in made.grown_by)


def test_a_central_model_has_one_source(tmp_path):
    found = audit(read_model(trained.central(tmp_path / "m.json").path)).sources
    assert found.kind == "one"
    assert set(found.names) == {None}


def test_trees_without_a_split_show_no_turns(tmp_path):
    """Their sums are one number, and what is left of it after a trend is rounding."""
    made = trained.central(tmp_path / "m.json", 10, base_score=0.9999)
    assert {len(t["sum_hessian"]) for t in trained.trees_in(made.path)} == {1}
    assert audit(read_model(made.path)).sources.kind == "one"


def test_parallel_trees_on_one_table_are_not_clients(tmp_path):
    X, y = trained.table()
    params = trained.PARAMS | {"num_parallel_tree": 4, "subsample": 0.7}
    xgb.train(params, xgb.DMatrix(X, y), 1).save_model(tmp_path / "m.json")
    found = audit(read_model(tmp_path / "m.json"))
    assert found.sources.kind == "one"
    assert all(t.exact.all() for t in found.trees)


def test_blocks_of_several_local_trees_keep_together():
    starts = [0.3, None, 0.4, None] + [None] * 4
    h = np.array([10.0, 9.5, 20.0, 19.5, 19.0, 18.6, 9.0, 8.7])
    found = find_sources(starts, h)
    assert found.kind == "bagging"
    assert found.names == tuple(f"client {k}" for k in (1, 1, 2, 2, 2, 2, 1, 1))


def test_trees_without_sums_are_not_matched():
    found = find_sources([0.3, 0.4, None, None], np.full(4, np.nan))
    assert found.names == ("client 1", "client 2", None, None)
    assert found.how.endswith("the source of later trees cannot be determined")


@pytest.mark.parametrize("parallel", [2, 5])
def test_parallel_trees_from_one_half_are_not_clients(tmp_path, parallel):
    X, y = trained.table()
    params = trained.PARAMS | {"num_parallel_tree": parallel, "base_score": 0.5}
    xgb.train(params, xgb.DMatrix(X, y), 1).save_model(tmp_path / "m.json")
    found = audit(read_model(tmp_path / "m.json"))
    assert found.sources.kind == "one"
    assert found.rows.n == len(y)


def test_clients_that_all_start_from_one_half_are_clients():
    assert find_sources([0.5, 0.5, None, None], np.array([9.0, 20.0, 8.5, 19.0])).kind == "bagging"
