"""`fedtrees model audit FILE --data --reserve`: structural checks, and recognised rows."""

import json

import numpy as np
import pytest

from fedtrees.cli.main import main
from fedtrees.core.schema import Table
from fedtrees.model_audit.membership import checks, groups_of, parameters_of
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.losses import LOGISTIC
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.files.xgboost import save_xgboost


def grow_model(table, **params):
    return grow_forest(table.X, table.y, quantile_cuts(table.X), TreeParams(**params), LOGISTIC)


def random_rows(n, seed):
    rng = np.random.default_rng(seed)
    return Table(rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n))


def checks_by_name(forest, train, reserve, weight=None):
    return {check.name: check for check in checks(forest, train, reserve, weight)}


def test_checks_of_a_stump_by_hand():
    X = np.repeat([[0.0], [1.0]], [12, 8], axis=0).astype(np.float32)
    table = Table(X, np.repeat([0, 1], [12, 8]))
    forest = grow_model(table, trees=1, max_depth=1, base_score=0.5)
    assert parameters_of(forest) == 2 * 1 + 1 * 2 + 1
    assert np.bincount(groups_of(forest.predict(X))).tolist() in ([12, 8], [8, 12])
    results = checks_by_name(forest, table, table)
    assert results["residual degrees of freedom"].value == 20 - 5
    assert results["smallest group of equal probabilities"].value == 8
    assert not results["smallest group of equal probabilities"].passed
    assert results["rows of which a class is excluded"].passed
    assert (
        results["rows in a small group of a class"].value == 20
    )  # Each group has fewer than ten rows of a class.
    assert results["depth, trees and min_child_weight"].passed
    assert results["losses of training and other rows"].value == 1


def test_the_check_of_settings_needs_a_declared_min_child_weight():
    table = random_rows(200, 0)
    forest = grow_model(table, trees=5, max_depth=4)
    name = "depth, trees and min_child_weight"
    passed = [
        checks_by_name(forest, table, table, weight)[name].passed
        for weight in (None, 0.0, 1.5, 2.0)
    ]
    assert passed == [None, False, False, True]


@pytest.fixture
def model_and_tables(tmp_path):
    train, reserve = random_rows(120, 1), random_rows(110, 2)
    forest = grow_model(train, trees=20, max_depth=8, min_child_weight=0.0)
    names = ("a", "b", "c")
    save_xgboost(forest, tmp_path / "m.json", 3, names)
    for file, table in (("train.csv", train), ("rest.csv", reserve)):
        lines = [",".join([*map(repr, map(float, x)), str(y)])
                 for x, y in zip(table.X, table.y, strict=True)]  # fmt: skip
        (tmp_path / file).write_text("\n".join([",".join((*names, "y")), *lines]))
    return tmp_path


@pytest.mark.long
def test_a_memorised_table_is_recognised_row_by_row(model_and_tables, capsys):
    options = [
        "--data",
        str(model_and_tables / "train.csv"),
        "--reserve",
        str(model_and_tables / "rest.csv"),
    ]
    with pytest.raises(SystemExit) as exit_info:
        main(
            [
                "model",
                "audit",
                str(model_and_tables / "m.json"),
                *options,
                "--target",
                "y",
                "--format",
                "json",
            ]
        )
    assert exit_info.value.code == 0
    membership = json.loads(capsys.readouterr().out)["membership"]
    tests = {test["test"]: test for test in membership["tests"]}
    assert tests["together"]["auc"] > 0.8
    assert tests["together"]["few"]["chance"] < 1e-6
    assert abs(tests["rows alone"]["auc"] - 0.5) < 0.2
    assert len(membership["rows"]) == 120
    assert np.mean([row["others_above"] for row in membership["rows"]]) < 0.2
    failed = {check["name"] for check in membership["checks"] if check["passed"] is False}
    assert "losses of training and other rows" in failed


def test_both_files_are_needed(model_and_tables, capsys):
    with pytest.raises(SystemExit) as end:
        main(
            [
                "model",
                "audit",
                str(model_and_tables / "m.json"),
                "--data",
                str(model_and_tables / "train.csv"),
            ]
        )
    assert end.value.code == 2
    assert "--reserve" in capsys.readouterr().err
