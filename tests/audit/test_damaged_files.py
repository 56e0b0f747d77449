"""A damaged file gives an error of fedtrees or a correct audit, and never crashes XGBoost.

The damage is drawn from a seed. The correct report of each file is unknown, so the tests check
only the way in which reading ends, and that a written copy has the trees that were read.
"""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.core.errors import DataError, FedtreesError
from fedtrees.model_audit import audit, read_model
from fedtrees.model_audit import scrub as module
from fedtrees.model_audit.margins import margins_of
from fedtrees.model_audit.readers import XGBOOST_STATISTICS
from fedtrees.model_audit.scrub import bare_model, scrub
from fedtrees.trees.files.xgboost import model_of

WEIRD = (None, True, -1, 0, 7, 1e39, float("nan"), float("inf"), 10**30, 2**31, "", "x", "1" * 5000,
         "NaN", "[1,2]", [], {}, [[1], 2], {"a": 1}, "\x1b[2J\ud800", 65535)  # fmt: skip
NUMBERS = ("split_conditions", "sum_hessian", "split_indices", "left_children", "right_children",
           "default_left", "categories", "categories_nodes", "categories_sizes")  # fmt: skip


@pytest.fixture(scope="module")
def model_paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    trained.central(folder / "binary.json", 2)
    trained.central(folder / "binary.ubj", 2)
    trained.categorical(folder / "categories.json")
    return [folder / name for name in ("binary.json", "binary.ubj", "categories.json")]


def change_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] = rng.integers(256)
    return bytes(data[: rng.integers(len(data))] if rng.random() < 0.3 else data)


def all_places(node):
    """Yield every place of a parsed JSON as its container and key."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in pairs:
        yield node, key
        if isinstance(value, dict | list):
            yield from all_places(value)


def change_value(model, rng):
    parts = list(all_places({k: v for k, v in model["learner"].items() if k != "gradient_booster"}))
    booster = model["learner"]["gradient_booster"]["model"]
    parts += [*all_places(booster["cats"]), *((booster, key) for key in booster)]
    trees = booster["trees"]
    tree = trees[rng.integers(len(trees))]
    parts += [(tree[name], int(rng.integers(len(tree[name])))) for name in NUMBERS if tree[name]]
    parts += [(tree, name) for name in tree]
    container, key = parts[rng.integers(len(parts))]
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = WEIRD[rng.integers(len(WEIRD))]
    text = json.dumps(model)
    if rng.random() < 0.2:  # Repeat a key.
        name = f'"{rng.choice(NUMBERS)}": '
        text = text.replace(name, f"{name}{json.dumps(WEIRD[rng.integers(6)])}, {name}", 1)
    return text.encode()


def is_copied(path, out):
    """Audit and copy a file without XGBoost's comparison; return whether it was accepted."""
    try:
        model = read_model(path)
        audit(model)
        out.write_text(json.dumps(bare_model(model, model_of(path))))
    except FedtreesError:
        return False
    assert module._same_trees(model.forest, read_model(out).forest)
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_damaged_files_give_an_error_of_fedtrees_or_a_correct_copy(model_paths, tmp_path, seed):
    rng, n_copied = np.random.default_rng(seed), 0
    for number in range(90):
        source = model_paths[number % len(model_paths)]
        data = source.read_bytes()
        as_json = source.suffix == ".json" and rng.random() < 0.7
        damaged = change_value(json.loads(data), rng) if as_json else change_bytes(data, rng)
        path = tmp_path / f"m{source.suffix}"
        path.write_bytes(damaged)
        n_copied += is_copied(path, tmp_path / "out.json")
    assert 5 < n_copied < 85  # Some files are refused, and some are still valid.


def write_changed(model_paths, tmp_path, change):
    model = json.loads(model_paths[0].read_text())
    change(model["learner"])
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(model))
    return path


def declare_too_many_nodes(learner):
    """Declare more nodes than the arrays contain. XGBoost uses this number, fedtrees counts the
    nodes.
    """
    learner["gradient_booster"]["model"]["trees"][0]["tree_param"]["num_nodes"] = str(10**9)


@pytest.mark.long
def test_a_file_that_xgboost_refuses_is_copied_with_a_reason(model_paths, tmp_path):
    path = write_changed(model_paths, tmp_path, declare_too_many_nodes)
    scrubbing = scrub(read_model(path), tmp_path / "out.json")
    assert scrubbing.same is None
    assert scrubbing.not_compared.startswith("XGBoost itself does not predict by bad.json: ")
    X = trained.table()[0]
    copied_booster, original_booster = (
        xgb.Booster(model_file=str(p)) for p in (scrubbing.path, model_paths[0])
    )
    margins = [
        booster.predict(xgb.DMatrix(X), output_margin=True)
        for booster in (copied_booster, original_booster)
    ]
    assert np.array_equal(*margins)


@pytest.mark.long
def test_a_model_of_no_column_and_no_split_is_copied(tmp_path):
    model_file = trained.central(tmp_path / "m.json", 2, gamma=1e9)
    model = json.loads(model_file.path.read_text())
    model["learner"]["learner_model_param"]["num_feature"] = "0"
    model_file.path.write_text(json.dumps(model))
    scrubbing = scrub(read_model(model_file.path), tmp_path / "out.json")
    assert "0 feature is supplied" in scrubbing.not_compared
    assert len(read_model(scrubbing.path).forest) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(feature_types=["float", "lambda"]), "feature_types are no 30 of float"),
        (lambda x: x.update(feature_names=[7] * 30), "feature_names are no 30 names"),
        (lambda x: x["attributes"].update(best_iteration="9" * 5000), "best_iteration is '999"),
        (lambda x: x["gradient_booster"]["model"].update(iteration_indptr=[0, 2, 1]), "indptr"),
        (
            lambda x: x["gradient_booster"]["model"].update(
                cats={"enc": [{"offsets": [], "values": []}]}
            ),
            "cats has 1 columns",
        ),
    ],
)
def test_a_part_that_cannot_be_copied_is_refused_by_name(model_paths, tmp_path, change, message):
    path = write_changed(model_paths, tmp_path, change)
    with pytest.raises(DataError, match=message):
        scrub(read_model(path), tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


@pytest.mark.long
def test_notes_and_unknown_keys_are_not_copied(model_paths, tmp_path):
    def note(learner):
        learner["attributes"] |= {"patients": "ward 7", "best_iteration": "1"}
        learner["patients"] = learner["gradient_booster"]["patients"] = "ward 7"
        learner["gradient_booster"]["model"]["trees"][0]["patients"] = ["ward 7"]

    scrubbing = scrub(read_model(write_changed(model_paths, tmp_path, note)), tmp_path / "out.json")
    assert scrubbing.same
    assert "ward 7" not in scrubbing.path.read_text()
    assert model_of(scrubbing.path)["learner"]["attributes"] == {"best_iteration": "1"}


@pytest.mark.long
def test_names_of_categories_are_copied(tmp_path):
    """XGBoost uses them to code the columns of a data frame."""
    import pandas as pd

    wards = np.random.default_rng(0).choice(["east", "north", "süd"], 400)
    frame = pd.DataFrame({"ward": pd.Categorical(wards), "age": np.arange(400) % 60})
    data = xgb.DMatrix(frame, (wards == "süd").astype(int), enable_categorical=True)
    params = trained.PARAMS | {"max_cat_to_onehot": 1}
    for ending in ("json", "ubj"):
        xgb.train(params, data, 3).save_model(tmp_path / f"m.{ending}")
        scrubbing = scrub(read_model(tmp_path / f"m.{ending}"), tmp_path / f"out-{ending}.json")
        new_rows = pd.DataFrame({"ward": pd.Categorical(["süd", "east"]), "age": [3, 4]})
        rows = xgb.DMatrix(new_rows, enable_categorical=True)
        before, after = (
            xgb.Booster(model_file=str(path)).predict(rows)
            for path in (tmp_path / "m.json", scrubbing.path)
        )
        assert np.array_equal(before, after)
        assert {
            name
            for tree in trained.trees_in(scrubbing.path)
            for name in XGBOOST_STATISTICS
            if any(tree[name])
        } == set()


def test_a_process_that_is_killed_or_slow_is_a_reason(model_paths, tmp_path, monkeypatch):
    from scipy.sparse import csr_matrix

    from fedtrees.model_audit import margins

    rows = csr_matrix((1, 30), dtype=np.float32)
    killed = tmp_path / "killed.py"
    killed.write_text("import os\nos.kill(os.getpid(), 11)\n")
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(margins, "SECONDS", 1)
    for script, reason in ((killed, "it crashed with signal 11"), (slow, "it took longer than 1")):
        monkeypatch.setattr(margins, "__file__", str(script))
        (reason_text,) = margins_of(model_paths[:1], rows)
        assert reason_text.startswith(reason)


@pytest.mark.parametrize("count", [float("inf"), float("nan"), "many", [2], None])
def test_an_invalid_number_of_classes_is_refused_or_ignored(tmp_path, count):
    model = json.loads((Path(__file__).parent / "models/flower-1.41.0-cyclic.json").read_text())
    model["learner"]["learner_model_param"]["num_class"] = count
    file = tmp_path / "model.json"
    file.write_text(json.dumps(model))
    with suppress(FedtreesError):
        assert len(read_model(file).forest.trees) > 0
