"""A scrubbed model predicts the same, bit for bit, and says less."""

import json
import resource

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.core.errors import DataError, UsageError
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit import scrub as module
from fedtrees.model_audit.readers import XGBOOST_STATISTICS
from fedtrees.model_audit.scrub import covering_points, scrub


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_predictions_are_unchanged_and_statistics_gone(tmp_path, ending):
    made = trained.cyclic(tmp_path / f"m.{ending}")
    done = scrub(read_model(made.path), tmp_path / "out.json", made.X)
    before, after = (
        xgb.Booster(model_file=str(p)).predict(xgb.DMatrix(made.X)) for p in (made.path, done.path)
    )
    assert np.array_equal(before, after)
    assert done.leaves_reached == 1.0
    written = json.loads(done.path.read_text())
    for tree in written["learner"]["gradient_booster"]["model"]["trees"]:
        assert not any(np.any(tree[name]) for name in XGBOOST_STATISTICS)
    assert {f.state for f in audit(read_model(done.path)).fields if not f.needed} == {"zero"}


@pytest.mark.long
def test_the_wrapper_still_stops_at_its_best_round(tmp_path):
    X, y = trained.table()
    model = xgb.XGBClassifier(n_estimators=60, early_stopping_rounds=3, learning_rate=1, n_jobs=1)
    model.fit(X[:300], y[:300], eval_set=[(X[300:], y[300:])], verbose=False)
    model.save_model(tmp_path / "m.json")
    scrub(read_model(tmp_path / "m.json"), tmp_path / "out.json")
    again = xgb.XGBClassifier()
    again.load_model(tmp_path / "out.json")
    assert model.best_iteration < 55
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_points_are_made_for_every_leaf(tmp_path):
    model = read_model(trained.central(tmp_path / "m.json", max_depth=7).path)
    reached = model.forest.apply(np.array(list(covering_points(model.forest, 30))))
    start = 0
    for t, tree in enumerate(model.forest.trees):
        mine = reached[start : start + len(tree.leaves), t]
        assert np.array_equal(np.sort(mine), tree.leaves)
        start += len(tree.leaves)


@pytest.mark.long
def test_columns_that_no_tree_uses_cost_nothing(tmp_path):
    """A small file may say that it has ten million of them."""
    made = trained.central(tmp_path / "m.json", 60)
    model = json.loads(made.path.read_text())
    learner = model["learner"]
    learner["learner_model_param"]["num_feature"] = str(10**7)
    learner["feature_names"] = learner["feature_types"] = []
    (tmp_path / "wide.json").write_text(json.dumps(model))
    wide, before = read_model(tmp_path / "wide.json"), peak_memory()
    done = scrub(wide, tmp_path / "out.json")
    assert peak_memory() - before < 700_000  # kB; a row of all columns has 40,000
    assert done.leaves_reached == 1.0
    assert done.points == sum(len(tree.leaves) for tree in wide.forest.trees)


@pytest.mark.long
def test_a_threshold_that_nothing_is_below_leaves_its_leaf_unreached(tmp_path):
    made = trained.central(tmp_path / "m.json", 1, max_depth=1)

    def lower(tree):
        tree["split_conditions"][0] = float(np.finfo(np.float32).min)

    low = trained.edit_trees(made.path, tmp_path / "low.json", lower)
    assert scrub(read_model(low), tmp_path / "out.json").leaves_reached == 0.5


@pytest.mark.long
def test_a_model_with_splits_by_categories_is_scrubbed(tmp_path):
    path = trained.categorical(tmp_path / "m.json")
    done = scrub(read_model(path), tmp_path / "out.json")
    assert done.same
    assert done.leaves_reached > 0.9


@pytest.mark.long
@pytest.mark.parametrize(
    ("blind", "message"), [(False, "has other trees"), (True, "predicts differently")]
)
def test_a_changed_leaf_would_be_seen(tmp_path, monkeypatch, blind, message):
    """By our own reading of the copy, by one float32; where that is blind, by XGBoost."""
    model = read_model(trained.central(tmp_path / "m.json").path)
    write = module.bare_model

    def damaged(*arguments):
        whole = write(*arguments)
        tree = whole["learner"]["gradient_booster"]["model"]["trees"][3]
        leaf = tree["left_children"].index(-1)
        value = np.float32(tree["split_conditions"][leaf])
        tree["split_conditions"][leaf] = float(value + 1 if blind else np.nextafter(value, 9))
        return whole

    monkeypatch.setattr(module, "bare_model", damaged)
    if blind:
        monkeypatch.setattr(module, "_same_trees", lambda a, b: True)
    with pytest.raises(DataError, match=message):
        scrub(model, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("name", ["out.txt", "m.json", "notes.json"])
def test_scrubbing_refuses_names_that_would_do_harm(tmp_path, name):
    model = read_model(trained.central(tmp_path / "m.json", 2).path)
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="--scrub"):
        scrub(model, tmp_path / name)
    assert (tmp_path / "notes.json").read_text(encoding="utf-8") == "{}"
