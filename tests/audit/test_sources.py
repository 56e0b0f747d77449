"""Trees of several clients in one file are attributed to the clients, and one table is not taken
for several.
"""

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.tree_sources import find_sources


@pytest.mark.long
@pytest.mark.parametrize("clients", [2, 3])
def test_clients_are_followed_through_the_rounds_of_bagging(tmp_path, clients):
    model_file = trained.bagging(tmp_path / "m.json", rounds=10, clients=clients)
    sources = audit(read_model(model_file.path)).sources
    assert (sources.kind, sources.clients) == ("bagging", clients)
    client_of_name = {f"client {k + 1}": model_file.grown_by[k] for k in range(clients)}
    is_correct = [
        client_of_name[name] == client
        for name, client in zip(sources.names, model_file.grown_by, strict=True)
    ]
    assert all(is_correct)


def test_clients_of_cyclic_training_are_counted(tmp_path):
    model_file = trained.cyclic(tmp_path / "m.json", turns=18, clients=3)
    sources = audit(read_model(model_file.path)).sources
    assert (sources.kind, sources.clients) == ("turns", 3)
    assert sources.names == tuple(f"client {1 + client}" for client in model_file.grown_by)


def test_a_central_model_has_one_source(tmp_path):
    sources = audit(read_model(trained.central(tmp_path / "m.json").path)).sources
    assert sources.kind == "one"
    assert set(sources.names) == {None}


def test_trees_without_a_split_show_no_turns(tmp_path):
    """Each tree has one sum, whose deviation from a trend is rounding."""
    model_file = trained.central(tmp_path / "m.json", 10, base_score=0.9999)
    assert {len(tree["sum_hessian"]) for tree in trained.trees_in(model_file.path)} == {1}
    assert audit(read_model(model_file.path)).sources.kind == "one"


def test_parallel_trees_on_one_table_are_not_clients(tmp_path):
    X, y = trained.table()
    params = trained.PARAMS | {"num_parallel_tree": 4, "subsample": 0.7}
    xgb.train(params, xgb.DMatrix(X, y), 1).save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert report.sources.kind == "one"
    assert all(tree.exact.all() for tree in report.trees)


def test_blocks_of_several_local_trees_keep_together():
    starts = [0.3, None, 0.4, None] + [None] * 4
    hessian_sums = np.array([10.0, 9.5, 20.0, 19.5, 19.0, 18.6, 9.0, 8.7])
    sources = find_sources(starts, hessian_sums)
    assert sources.kind == "bagging"
    assert sources.names == tuple(f"client {k}" for k in (1, 1, 2, 2, 2, 2, 1, 1))


def test_trees_without_sums_are_not_matched():
    sources = find_sources([0.3, 0.4, None, None], np.full(4, np.nan))
    assert sources.names == ("client 1", "client 2", None, None)
    assert sources.how.endswith("the source of later trees cannot be determined")


@pytest.mark.parametrize("parallel", [2, 5])
def test_parallel_trees_from_one_half_are_not_clients(tmp_path, parallel):
    X, y = trained.table()
    params = trained.PARAMS | {"num_parallel_tree": parallel, "base_score": 0.5}
    xgb.train(params, xgb.DMatrix(X, y), 1).save_model(tmp_path / "m.json")
    report = audit(read_model(tmp_path / "m.json"))
    assert report.sources.kind == "one"
    assert report.rows.n == len(y)


def test_clients_that_all_start_from_one_half_are_clients():
    assert find_sources([0.5, 0.5, None, None], np.array([9.0, 20.0, 8.5, 19.0])).kind == "bagging"
