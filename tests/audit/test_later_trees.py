"""Bounds of later trees are correct, and are not given if the file is not the complete history."""

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.leaf_counts import NOT_FOLLOWED, NOT_ITS_START


def rows_per_leaf(booster, X, margin=None):
    """Return the rows of every leaf, tree by tree, in the order of the audit."""
    reached = booster.predict(xgb.DMatrix(X, base_margin=margin), pred_leaf=True)
    reached = reached.reshape(len(X), -1).astype(int)
    nodes = booster.trees_to_dataframe()
    leaves = nodes[nodes["Feature"] == "Leaf"].groupby("Tree")["Node"].apply(sorted)
    return [np.bincount(reached[:, t], minlength=max(ids) + 1)[ids] for t, ids in leaves.items()]


def audit_booster(booster, path):
    booster.save_model(path)
    return audit(read_model(path)).trees


def assert_none_wrong(trees, rows):
    """Assert that no count and no bound is wrong."""
    for tree, true_counts in zip(trees, rows, strict=True):
        assert ((tree.n == UNKNOWN) | (tree.n == true_counts)).all()
        assert ((tree.at_least == UNKNOWN) | (tree.at_least <= true_counts)).all()
        assert ((tree.at_most == UNKNOWN) | (tree.at_most >= true_counts)).all()


@pytest.fixture(scope="module")
def table_and_booster():
    X, y = trained.table()
    return X, xgb.train(trained.PARAMS | {"eta": 0.3}, xgb.DMatrix(X, y), 20)


def test_a_complete_model_has_bounds_on_both_sides(table_and_booster, tmp_path):
    X, booster = table_and_booster
    trees = audit_booster(booster, tmp_path / "m.json")
    assert_none_wrong(trees, rows_per_leaf(booster, X))
    assert all((tree.at_most != UNKNOWN).all() for tree in trees)


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_model_with_removed_trees_has_lower_bounds_only(table_and_booster, tmp_path, step):
    X, booster = table_and_booster
    sliced = booster[0:20:step]
    trees = audit_booster(sliced, tmp_path / "m.json")
    assert_none_wrong(trees, rows_per_leaf(sliced, X))
    assert {tree.how for tree in trees[1:]} == {NOT_FOLLOWED}
    assert all((tree.at_most == UNKNOWN).all() for tree in trees[1:])


def test_later_trees_start_from_the_offset_of_all_rows(tmp_path):
    X, y = trained.table()
    offset = np.full(len(X), 1.5, dtype=np.float32)
    params = trained.PARAMS | {"max_depth": 4, "min_child_weight": 0.1}
    booster = xgb.train(params, xgb.DMatrix(X, y, base_margin=offset), 20)
    trees = audit_booster(booster, tmp_path / "m.json")
    assert_none_wrong(trees, rows_per_leaf(booster, X, offset))
    assert any((t.at_most != UNKNOWN).any() for t in trees[1:])


def test_upper_bounds_allow_for_the_start_that_a_second_tree_shows(tmp_path):
    """The first tree has one leaf, and its rows start from another margin than that of the file."""
    X, y = trained.table()
    offset = np.full(len(X), -2, dtype=np.float32)
    params, data = trained.PARAMS | {"eta": 0.05}, xgb.DMatrix(X, y, base_margin=offset)
    params |= {"base_score": 0.5}
    first = xgb.train(params | {"min_child_weight": 1000}, data, 1)
    booster = xgb.train(params | {"min_child_weight": 1}, data, 4, xgb_model=first)
    trees = audit_booster(booster, tmp_path / "m.json")
    assert [tree.base_score is None for tree in trees] == [True, False, True, True, True]
    assert_none_wrong(trees, rows_per_leaf(booster, X, offset))
    assert any((tree.at_most != UNKNOWN).any() for tree in trees[2:])


@pytest.mark.parametrize("changed_params", [{"base_score": 0.5}, {}], ids=["given", "estimated"])
@pytest.mark.parametrize(("rounds", "parallel"), [(1, 1), (1, 3), (4, 3)])
def test_the_base_score_of_the_file_does_not_suffice_to_count_rows(
    tmp_path, rounds, parallel, changed_params
):
    """80 rows that start from p = 1/4 have the hessians of 60 rows that start from 1/2."""
    y, offset = np.arange(80) % 2, np.full(80, -np.log(3), dtype=np.float32)
    data = xgb.DMatrix(np.zeros((80, 1)), y, base_margin=offset)
    params = trained.PARAMS | changed_params | {"num_parallel_tree": parallel}
    trees = audit_booster(xgb.train(params, data, rounds), tmp_path / "m.json")
    assert all((tree.n == UNKNOWN).all() for tree in trees[:parallel])
    assert all(tree.how == NOT_ITS_START for tree in trees[:parallel])


def test_sampled_rows_have_no_upper_bound(tmp_path):
    X, y = trained.table()
    booster = xgb.train(trained.PARAMS | {"subsample": 0.7}, xgb.DMatrix(X, y), 10)
    assert {t.how for t in audit_booster(booster, tmp_path / "m.json")[1:]} == {NOT_FOLLOWED}
