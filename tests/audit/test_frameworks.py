"""Models that Flower and NVFlare trained are audited correctly, and equal the models of fedtrees.

The files are in `models`. If a framework is installed, the tests train new models, too.
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


def load_clients_module():
    """Load the module with the rows of the clients from the folder of the scripts."""
    spec = importlib.util.spec_from_file_location("clients", SCRIPTS / "clients.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLIENTS = load_clients_module()
PARTS = [tuple(a.to_numpy() for a in CLIENTS.rows_of(c)) for c in range(len(CLIENTS.SHARES))]
ALL_ROWS = tuple(np.concatenate(columns) for columns in zip(*PARTS, strict=True))


def model_of(name):
    return read_model(MODELS / f"{name}.json")


@cache
def audit_of(name):
    return audit(model_of(name))


def reached_leaves(path, rows):
    """Return the leaf of every tree that each row reaches, computed by XGBoost."""
    booster = xgb.Booster({"nthread": 1}, model_file=str(path))
    data = xgb.DMatrix(rows, feature_names=booster.feature_names)
    return booster.predict(data, pred_leaf=True, strict_shape=True).reshape(len(rows), -1)


def assert_counts_are_true(report, grown_by):
    """Compare all certain counts and bounds with the rows on which the trees were grown."""
    leaves = [reached_leaves(report.model.path, X) for X, _ in PARTS]
    for t, (tree, client) in enumerate(zip(report.trees, grown_by, strict=True)):
        leaf, y = leaves[client][:, t], PARTS[client][1]
        n = np.array([(leaf == node).sum() for node in tree.leaf])
        n_pos = np.array([y[leaf == node].sum() for node in tree.leaf])
        is_certain = tree.n >= 0
        np.testing.assert_array_equal(tree.n[is_certain], n[is_certain])
        np.testing.assert_array_equal(tree.n_pos[tree.exact], n_pos[tree.exact])
        bounded = tree.at_most >= 0
        assert ((tree.at_least <= n) & (n <= tree.at_most))[bounded].all()


def exact_trees(report):
    """Return the trees whose leaves all have certain rows and labels."""
    return [tree.index for tree in report.trees if tree.exact.all()]


@pytest.mark.long
@pytest.mark.parametrize("name", GROWN_BY)
def test_certain_counts_are_correct(name):
    report = audit_of(name)
    assert_counts_are_true(report, GROWN_BY[name])
    first = GROWN_BY[name][0]
    assert report.trees[0].n.sum() == len(PARTS[first][1])


@pytest.mark.long
@pytest.mark.parametrize("name", BAGGED)
def test_first_trees_of_all_clients_are_counted(name):
    report, grown_by = audit_of(name), GROWN_BY[name]
    firsts = [grown_by.index(client) for client in dict.fromkeys(grown_by)]
    assert set(firsts) <= set(exact_trees(report))
    assert (report.rows.n, report.rows.n_pos) == (569, 357)
    assert report.settings.worst < 3


@pytest.mark.parametrize("name", [name for name in GROWN_BY if name != LATE])
def test_trees_are_attributed_to_the_clients_that_grew_them(name):
    report, grown_by = audit_of(name), GROWN_BY[name]
    assert report.sources.kind == ("turns" if "cyclic" in name else "bagging")
    number = {client: f"client {k + 1}" for k, client in enumerate(dict.fromkeys(grown_by))}
    assert report.sources.names == tuple(number[client] for client in grown_by)


def test_the_report_does_not_exclude_a_client_that_joined_late():
    """Flower waits for two clients by default, so the third missed the first round."""
    report = audit_of(LATE)
    assert report.rows.n == len(PARTS[0][1]) + len(PARTS[1][1])
    assert not report.rows.complete
    assert report.rows.total is None


def test_rows_of_one_client_are_not_taken_for_the_table():
    report = audit_of(FLOWER + "cyclic")
    assert report.rows.n == len(PARTS[0][1])
    assert not report.rows.complete


def test_the_mask_of_nvflare_hides_nothing():
    for name in (NVFLARE + "bagging", NVFLARE + "bagging-scaled", NVFLARE + "cyclic"):
        report = audit_of(name)
        assert {field.name: field.state for field in report.fields}["sum_hessian"] == "masked"
        assert report.restored


def test_learning_rates_divided_by_clients_are_inferred_exactly():
    assert audit_of(NVFLARE + "bagging").settings.learning_rate == 0.1 / 3


def test_histogram_training_of_nvflare_has_one_source():
    report = audit_of(NVFLARE + "histogram")
    assert report.sources.kind == "one"
    leaf, y = reached_leaves(report.model.path, ALL_ROWS[0])[:, 0], ALL_ROWS[1]
    assert report.trees[0].exact.all()
    for node, n, n_pos in zip(report.trees[0].leaf, report.trees[0].n, report.trees[0].n_pos,
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
def test_the_protocols_of_fedtrees_grow_the_same_trees(name, protocol, order):
    schema = Schema(tuple(Feature(f"x{k}") for k in range(30)), "benign")
    tables = [Table(PARTS[client][0].astype(np.float32), PARTS[client][1]) for client in order]
    trained_forest, file_forest = (
        train(protocol, over_clients(tables), schema).model,
        model_of(name).forest,
    )
    np.testing.assert_array_equal(trained_forest.base_margin, file_forest.base_margin)
    for trained_tree, file_tree in zip(trained_forest.trees, file_forest.trees, strict=True):
        for field in ("feature", "threshold", "left", "value"):
            np.testing.assert_array_equal(getattr(trained_tree, field), getattr(file_tree, field))


@pytest.mark.long
def test_clients_with_different_learning_rates_are_distinguished(tmp_path):
    """NVFlare scales the learning rate by each client's share of the rows."""
    model_file = trained.bagging(tmp_path / "whole.json", rounds=4, scaled=True)
    masked = trained.edit_trees(model_file.path, tmp_path / "masked.json", trained.mask)
    report = audit(read_model(masked))
    number = {client: f"client {k + 1}" for k, client in enumerate(model_file.grown_by[:3])}
    assert report.sources.names == tuple(number[client] for client in model_file.grown_by)
    assert report.rows.n == 569


def train_with_framework(folder, script, *arguments):
    """Run a script that trains with a framework."""
    command = [sys.executable, str(SCRIPTS / script), *arguments, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr[-3000:]
    return audit(read_model(folder / "model.json"))


@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None,
    reason="needs flwr, which installs beside older versions of typer alone: no extra",
)
@pytest.mark.parametrize("strategy", ["bagging", "cyclic"])
def test_models_of_the_installed_flower_are_audited_correctly(strategy, tmp_path):
    report = train_with_framework(tmp_path, "train_flower.py", strategy, "--rounds", "6")
    arrivals = json.loads((tmp_path / "arrivals.json").read_text())
    grown_by = [client for arrived in arrivals for client in arrived]
    assert_counts_are_true(report, grown_by)
    assert len(exact_trees(report)) >= (3 if strategy == "bagging" else 1)
    assert report.sources.kind == ("bagging" if strategy == "bagging" else "turns")


@pytest.mark.extra("nvflare")
@pytest.mark.parametrize("kind", ["bagging", "bagging-scaled", "cyclic", "histogram"])
def test_models_of_the_installed_nvflare_are_audited_correctly(kind, tmp_path):
    report = train_with_framework(tmp_path, "train_nvflare.py", kind, "--rounds", "2")
    sizes = {len(y) for _, y in PARTS} if kind != "histogram" else {len(ALL_ROWS[1])}
    counted = [report.trees[t].n.sum() for t in exact_trees(report)]
    assert set(counted) <= sizes
    assert len(counted) >= (3 if "bagging" in kind else 1)
