"""Audits of models whose trees were grown on samples of the rows, and the numbering of trees."""

import json

import forest_campaign
import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier

from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.verdict import to_json, verdict
from fedtrees.trees.files.forests import from_sklearn, save_random_forest


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 60])
def test_audits_of_random_forests_contain_no_wrong_number(tmp_path, first):
    messages, tally = forest_campaign.campaign(first, 60, tmp_path)
    assert messages == []
    assert min(tally["counted"], tally["exact"]) > 100
    assert tally["pure"] > 20


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_row_that_was_sampled_twice_counts_once(tmp_path, bootstrap):
    X, y = load_wine(return_X_y=True)
    forest = RandomForestClassifier(4, max_depth=3, bootstrap=bootstrap, random_state=0)
    save_random_forest(from_sklearn(forest.fit(X, y > 0)), tmp_path / "m.npz")
    report = audit(read_model(tmp_path / "m.npz"))
    for tree, rows in zip(report.trees, forest.estimators_samples_, strict=True):
        assert tree.n.sum() == len(np.unique(rows))
        mixed = ~tree.one_label
        assert (tree.exact[mixed] != bootstrap).all()
        assert mixed.any()


@pytest.mark.parametrize("subsample", [0.5, 1.0])
def test_a_leaf_of_one_label_in_a_sample_is_not_called_pure(tmp_path, subsample):
    X, y = trained.table()
    params = trained.PARAMS | {"max_depth": 4, "subsample": subsample, "seed": 3}
    booster = xgb.train(params, xgb.DMatrix(X, y), 1)
    booster.save_model(tmp_path / "m.json")
    model = read_model(tmp_path / "m.json")
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).ravel()
    for declared in (None, Known(rows=len(y))):
        report = audit(model, declared)
        first = report.trees[0]
        numbers = [model.number_of(0, leaf) for leaf in first.leaf.tolist()]
        is_pure = np.array([len(np.unique(y[reached == number])) == 1 for number in numbers])
        assert first.one_label.any()
        assert is_pure[first.one_label].all() == (subsample == 1)
        assert first.pure.any() == (subsample == 1 and declared is not None)
        assert ("which only --rows can confirm" in " ".join(verdict(report))) != first.pure.any()


def test_trees_have_the_numbers_of_the_library(tmp_path):
    """Consecutive trees of a class are ordered differently in a forest."""
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2,
              "max_depth": 2, "nthread": 1, "subsample": 0.7}  # fmt: skip
    booster = xgb.train(params, xgb.DMatrix(X, y), 2)
    booster.save_model(tmp_path / "m.json")
    file_content = json.loads((tmp_path / "m.json").read_text())["learner"]["gradient_booster"][
        "model"
    ]
    model = read_model(tmp_path / "m.json")
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).reshape(len(y), -1)
    report = audit(model)
    assert sorted(t.index for t in report.trees) == list(range(12))
    assert [t.index for t in report.trees] != list(range(12))
    for tree in report.trees:
        assert tree.output == file_content["tree_info"][tree.index]
        numbers = {model.number_of(tree.at, leaf) for leaf in tree.leaf.tolist()}
        assert {*reached[:, tree.index].astype(int)} <= numbers
    assert [t["index"] for t in to_json(report)["trees"]] == list(range(12))
