"""Models that Flower and NVFlare trained are read rightly, and are those that we grow.

The files are in `models`; where a framework is installed, it trains anew.
"""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.model_audit import audit, read_model
from fedtrees.protocols.horizontal.tree_sharing import FlowerBagging, FlowerCyclic
from fedtrees.protocols.training import train

MODELS = Path(__file__).parent / "models"
SCRIPTS = Path(__file__).parents[2] / "docs" / "examples" / "frameworks"
GROWN_BY = json.loads((MODELS / "grown_by.json").read_text())
FLOWER, NVFLARE = "flower-1.41.0-", "nvflare-2.9.0-"
LATE = FLOWER + "bagging-late"
BAGGED = [name for name in GROWN_BY if "bagging" in name and name != LATE]


def of_scripts():
    """The module with the clients' rows, from beside the scripts."""
    spec = importlib.util.spec_from_file_location("clients", SCRIPTS / "clients.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLIENTS = of_scripts()
PARTS = [tuple(a.to_numpy() for a in CLIENTS.rows_of(c)) for c in range(len(CLIENTS.SHARES))]
EVERYBODY = tuple(np.concatenate(columns) for columns in zip(*PARTS, strict=True))


def model_of(name):
    return read_model(MODELS / f"{name}.json")


@cache
def audit_of(name):
    return audit(model_of(name))


def routed(path, rows):
    """The leaf of every tree that each row falls into, by XGBoost itself."""
    booster = xgb.Booster({"nthread": 1}, model_file=str(path))
    data = xgb.DMatrix(rows, feature_names=booster.feature_names)
    return booster.predict(data, pred_leaf=True, strict_shape=True).reshape(len(rows), -1)


def assert_counts_are_true(found, grown_by):
    """Compare whatever the audit calls certain with the rows that the trees were grown on."""
    leaves = [routed(found.model.path, X) for X, _ in PARTS]
    for t, (tree, c) in enumerate(zip(found.trees, grown_by, strict=True)):
        leaf, y = leaves[c][:, t], PARTS[c][1]
        n = np.array([(leaf == node).sum() for node in tree.leaf])
        n_pos = np.array([y[leaf == node].sum() for node in tree.leaf])
        known = tree.n >= 0
        np.testing.assert_array_equal(tree.n[known], n[known])
        np.testing.assert_array_equal(tree.n_pos[tree.exact], n_pos[tree.exact])
        bounded = tree.at_most >= 0
        assert ((tree.at_least <= n) & (n <= tree.at_most))[bounded].all()


def certain(found):
    """Trees of which every leaf's rows and labels are known."""
    return [t.index for t in found.trees if t.exact.all()]


@pytest.mark.long
@pytest.mark.parametrize("name", GROWN_BY)
def test_what_is_certain_is_true(name):
    found = audit_of(name)
    assert_counts_are_true(found, GROWN_BY[name])
    first = GROWN_BY[name][0]
    assert found.trees[0].n.sum() == len(PARTS[first][1])


@pytest.mark.long
@pytest.mark.parametrize("name", BAGGED)
def test_first_trees_of_all_clients_are_counted(name):
    found, who = audit_of(name), GROWN_BY[name]
    firsts = [who.index(c) for c in dict.fromkeys(who)]
    assert set(firsts) <= set(certain(found))
    assert (found.rows.n, found.rows.n_pos) == (569, 357)
    assert found.settings.worst < 3


@pytest.mark.parametrize("name", [name for name in GROWN_BY if name != LATE])
def test_trees_are_given_to_the_clients_that_grew_them(name):
    found, who = audit_of(name), GROWN_BY[name]
    assert found.sources.kind == ("turns" if "cyclic" in name else "bagging")
    number = {c: f"client {k + 1}" for k, c in enumerate(dict.fromkeys(who))}
    assert found.sources.names == tuple(number[c] for c in who)


def test_a_client_that_joined_late_is_not_denied():
    """Flower waits for two clients by default: the third was not there in the first round."""
    found = audit_of(LATE)
    assert found.rows.n == len(PARTS[0][1]) + len(PARTS[1][1])
    assert not found.rows.complete
    assert found.rows.total is None


def test_rows_of_one_client_are_not_taken_for_the_table():
    found = audit_of(FLOWER + "cyclic")
    assert found.rows.n == len(PARTS[0][1])
    assert not found.rows.complete


def test_the_mask_of_nvflare_hides_nothing():
    for name in (NVFLARE + "bagging", NVFLARE + "bagging-scaled", NVFLARE + "cyclic"):
        found = audit_of(name)
        assert {f.name: f.state for f in found.fields}["sum_hessian"] == "masked"
        assert found.restored


def test_learning_rates_divided_by_clients_are_found_exactly():
    assert audit_of(NVFLARE + "bagging").settings.learning_rate == 0.1 / 3


def test_histograms_of_nvflare_leave_one_table():
    found = audit_of(NVFLARE + "histogram")
    assert found.sources.kind == "one"
    leaf, y = routed(found.model.path, EVERYBODY[0])[:, 0], EVERYBODY[1]
    assert found.trees[0].exact.all()
    for node, n, n_pos in zip(found.trees[0].leaf, found.trees[0].n, found.trees[0].n_pos,
                              strict=True):  # fmt: skip
        assert ((leaf == node).sum(), y[leaf == node].sum()) == (n, n_pos)


@pytest.mark.parametrize(
    ("name", "protocol", "order"),
    [
        (FLOWER + "bagging", FlowerBagging(trees=6, max_depth=3), (0, 1, 2)),
        (FLOWER + "cyclic", FlowerCyclic(trees=12, max_depth=3), (0, 2, 1)),
        (
            FLOWER + "cyclic-local-rounds",
            FlowerCyclic(trees=12, local_trees=2, max_depth=3),
            (0, 2, 1),
        ),
        (
            NVFLARE + "bagging",
            FlowerBagging(trees=6, max_depth=3, learning_rate=0.1 / 3),
            (2, 1, 0),
        ),
        (NVFLARE + "cyclic", FlowerCyclic(trees=11, max_depth=3, learning_rate=0.1), (1, 2, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_our_protocols_grow_the_same_trees(name, protocol, order):
    schema = Schema(tuple(Feature(f"x{k}") for k in range(30)), "benign")
    tables = [Table(PARTS[c][0].astype(np.float32), PARTS[c][1]) for c in order]
    ours, theirs = train(protocol, over_clients(tables), schema).model, model_of(name).forest
    np.testing.assert_array_equal(ours.base_margin, theirs.base_margin)
    for a, b in zip(ours.trees, theirs.trees, strict=True):
        for field in ("feature", "threshold", "left", "value"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


@pytest.mark.long
def test_learning_rates_that_are_no_round_numbers_are_told_apart(tmp_path):
    """As NVFlare scales them: by each client's share of the rows."""
    made = trained.bagging(tmp_path / "whole.json", rounds=4, scaled=True)
    masked = trained.edited(made.path, tmp_path / "masked.json", trained.mask)
    found = audit(read_model(masked))
    number = {c: f"client {k + 1}" for k, c in enumerate(made.grown_by[:3])}
    assert found.sources.names == tuple(number[c] for c in made.grown_by)
    assert found.rows.n == 569


def trained_anew(folder, script, *arguments):
    """Run a script that trains with a framework."""
    command = [sys.executable, str(SCRIPTS / script), *arguments, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return audit(read_model(folder / "model.json"))


@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="needs flwr, which installs beside older versions of typer alone: no extra",
)
@pytest.mark.parametrize("strategy", ["bagging", "cyclic"])
def test_what_flower_trains_today_is_read_rightly(strategy, tmp_path):
    found = trained_anew(tmp_path, "train_flower.py", strategy, "--rounds", "6")
    arrivals = json.loads((tmp_path / "arrivals.json").read_text())
    who = [c for arrived in arrivals for c in arrived]
    assert_counts_are_true(found, who)
    assert len(certain(found)) >= (3 if strategy == "bagging" else 1)
    assert found.sources.kind == ("bagging" if strategy == "bagging" else "turns")


@pytest.mark.extra("nvflare")
@pytest.mark.parametrize("kind", ["bagging", "bagging-scaled", "cyclic", "histogram"])
def test_what_nvflare_trains_today_is_read_rightly(kind, tmp_path):
    found = trained_anew(tmp_path, "train_nvflare.py", kind, "--rounds", "2")
    sizes = {len(y) for _, y in PARTS} if kind != "histogram" else {len(EVERYBODY[1])}
    counted = [found.trees[t].n.sum() for t in certain(found)]
    assert set(counted) <= sizes
    assert len(counted) >= (3 if "bagging" in kind else 1)
