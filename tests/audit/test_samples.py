"""What trees that saw some rows, or some twice, let an audit state; and which tree it speaks of."""

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
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.files.sklearn_forest import from_sklearn


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 60])
def test_nothing_that_audits_of_random_forests_state_is_wrong(tmp_path, first):
    wrong, tally = forest_campaign.campaign(first, 60, tmp_path)
    assert wrong == []
    assert min(tally["counted"], tally["exact"]) > 100
    assert tally["pure"] > 20


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_row_drawn_twice_is_one_row(tmp_path, bootstrap):
    X, y = load_wine(return_X_y=True)
    made = RandomForestClassifier(4, max_depth=3, bootstrap=bootstrap, random_state=0)
    save_random_forest(from_sklearn(made.fit(X, y > 0)), tmp_path / "m.npz")
    found = audit(read_model(tmp_path / "m.npz"))
    for tree, rows in zip(found.trees, made.estimators_samples_, strict=True):
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
    for known in (None, Known(rows=len(y))):
        found = audit(model, known)
        first = found.trees[0]
        numbers = [model.number_of(0, leaf) for leaf in first.leaf.tolist()]
        truly = np.array([len(np.unique(y[reached == number])) == 1 for number in numbers])
        assert first.one_label.any()
        assert truly[first.one_label].all() == (subsample == 1)
        assert first.pure.any() == (subsample == 1 and known is not None)
        assert ("which only --rows can confirm" in " ".join(verdict(found))) != first.pure.any()


def test_a_tree_has_the_number_that_the_library_gives_it(tmp_path):
    """Several trees of a class in a row, which a forest orders otherwise."""
    X, y = load_wine(return_X_y=True)
    params = {"objective": "multi:softprob", "num_class": 3, "num_parallel_tree": 2,
              "max_depth": 2, "nthread": 1, "subsample": 0.7}  # fmt: skip
    booster = xgb.train(params, xgb.DMatrix(X, y), 2)
    booster.save_model(tmp_path / "m.json")
    written = json.loads((tmp_path / "m.json").read_text())["learner"]["gradient_booster"]["model"]
    model = read_model(tmp_path / "m.json")
    reached = booster.predict(xgb.DMatrix(X), pred_leaf=True).reshape(len(y), -1)
    found = audit(model)
    assert sorted(t.index for t in found.trees) == list(range(12))
    assert [t.index for t in found.trees] != list(range(12))
    for tree in found.trees:
        assert tree.output == written["tree_info"][tree.index]
        numbers = {model.number_of(tree.at, leaf) for leaf in tree.leaf.tolist()}
        assert {*reached[:, tree.index].astype(int)} <= numbers
    assert [t["index"] for t in to_json(found)["trees"]] == list(range(12))
