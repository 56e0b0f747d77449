"""A scrubbed model predicts exactly the same values, and reveals less."""

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
    """Return the peak memory of this process in kB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_scrubbing_removes_statistics_and_keeps_predictions(tmp_path, ending):
    model_file = trained.cyclic(tmp_path / f"m.{ending}")
    scrubbing = scrub(read_model(model_file.path), tmp_path / "out.json", model_file.X)
    before, after = (
        xgb.Booster(model_file=str(path)).predict(xgb.DMatrix(model_file.X))
        for path in (model_file.path, scrubbing.path)
    )
    assert np.array_equal(before, after)
    assert scrubbing.leaves_reached == 1.0
    file_content = json.loads(scrubbing.path.read_text())
    for tree in file_content["learner"]["gradient_booster"]["model"]["trees"]:
        assert not any(np.any(tree[name]) for name in XGBOOST_STATISTICS)
    assert {
        field.state for field in audit(read_model(scrubbing.path)).fields if not field.needed
    } == {"zero"}


@pytest.mark.long
def test_a_scrubbed_model_still_predicts_with_its_best_round(tmp_path):
    X, y = trained.table()
    model = xgb.XGBClassifier(n_estimators=60, early_stopping_rounds=3, learning_rate=1, n_jobs=1)
    model.fit(X[:300], y[:300], eval_set=[(X[300:], y[300:])], verbose=False)
    model.save_model(tmp_path / "m.json")
    scrub(read_model(tmp_path / "m.json"), tmp_path / "out.json")
    scrubbed = xgb.XGBClassifier()
    scrubbed.load_model(tmp_path / "out.json")
    assert model.best_iteration < 55
    assert np.array_equal(scrubbed.predict_proba(X), model.predict_proba(X))


def test_covering_points_reach_every_leaf(tmp_path):
    model = read_model(trained.central(tmp_path / "m.json", max_depth=7).path)
    reached = model.forest.apply(np.array(list(covering_points(model.forest, 30))))
    start = 0
    for t, tree in enumerate(model.forest.trees):
        reached_by_points = reached[start : start + len(tree.leaves), t]
        assert np.array_equal(np.sort(reached_by_points), tree.leaves)
        start += len(tree.leaves)


@pytest.mark.long
def test_unused_columns_need_no_memory(tmp_path):
    """A small file may declare ten million columns."""
    model_file = trained.central(tmp_path / "m.json", 60)
    model = json.loads(model_file.path.read_text())
    learner = model["learner"]
    learner["learner_model_param"]["num_feature"] = str(10**7)
    learner["feature_names"] = learner["feature_types"] = []
    (tmp_path / "wide.json").write_text(json.dumps(model))
    wide, before = read_model(tmp_path / "wide.json"), peak_memory()
    scrubbing = scrub(wide, tmp_path / "out.json")
    # The unit is kB. A row of all columns has 40,000 kB.
    assert peak_memory() - before < 700_000
    assert scrubbing.leaves_reached == 1.0
    assert scrubbing.points == sum(len(tree.leaves) for tree in wide.forest.trees)


@pytest.mark.long
def test_a_leaf_below_the_smallest_float_is_not_reached(tmp_path):
    model_file = trained.central(tmp_path / "m.json", 1, max_depth=1)

    def lower(tree):
        tree["split_conditions"][0] = float(np.finfo(np.float32).min)

    low = trained.edit_trees(model_file.path, tmp_path / "low.json", lower)
    assert scrub(read_model(low), tmp_path / "out.json").leaves_reached == 0.5


@pytest.mark.long
def test_a_model_with_splits_by_categories_is_scrubbed(tmp_path):
    path = trained.categorical(tmp_path / "m.json")
    scrubbing = scrub(read_model(path), tmp_path / "out.json")
    assert scrubbing.same
    assert scrubbing.leaves_reached > 0.9


@pytest.mark.long
@pytest.mark.parametrize(
    ("skip_own_check", "message"), [(False, "has other trees"), (True, "predicts differently")]
)
def test_a_changed_leaf_is_detected(tmp_path, monkeypatch, skip_own_check, message):
    """fedtrees detects a change of one float32 in the copy. If that check is disabled, XGBoost's
    predictions differ.
    """
    model = read_model(trained.central(tmp_path / "m.json").path)
    write = module.bare_model

    def write_damaged_model(*arguments):
        content = write(*arguments)
        tree = content["learner"]["gradient_booster"]["model"]["trees"][3]
        leaf = tree["left_children"].index(-1)
        value = np.float32(tree["split_conditions"][leaf])
        tree["split_conditions"][leaf] = float(
            value + 1 if skip_own_check else np.nextafter(value, 9)
        )
        return content

    monkeypatch.setattr(module, "bare_model", write_damaged_model)
    if skip_own_check:
        monkeypatch.setattr(module, "_same_trees", lambda a, b: True)
    with pytest.raises(DataError, match=message):
        scrub(model, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("name", ["out.txt", "m.json", "notes.json"])
def test_scrubbing_refuses_harmful_file_names(tmp_path, name):
    model = read_model(trained.central(tmp_path / "m.json", 2).path)
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="--scrub"):
        scrub(model, tmp_path / name)
    assert (tmp_path / "notes.json").read_text(encoding="utf-8") == "{}"
