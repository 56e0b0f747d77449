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


def grown(table, **params):
    return grow_forest(table.X, table.y, quantile_cuts(table.X), TreeParams(**params), LOGISTIC)


def rows(n, seed):
    rng = np.random.default_rng(seed)
    return Table(rng.normal(size=(n, 3)).astype(np.float32), rng.integers(0, 2, n))


def found(forest, train, reserve, weight=None):
    return {c.name: c for c in checks(forest, train, reserve, weight)}


def test_checks_of_a_stump_by_hand():
    X = np.repeat([[0.0], [1.0]], [12, 8], axis=0).astype(np.float32)
    table = Table(X, np.repeat([0, 1], [12, 8]))
    forest = grown(table, trees=1, max_depth=1, base_score=0.5)
    assert parameters_of(forest) == 2 * 1 + 1 * 2 + 1
    assert np.bincount(groups_of(forest.predict(X))).tolist() in ([12, 8], [8, 12])
    got = found(forest, table, table)
    assert got["residual degrees of freedom"].value == 20 - 5
    assert got["smallest group of equal probabilities"].value == 8
    assert not got["smallest group of equal probabilities"].passed
    assert got["rows of which a class is excluded"].passed
    assert got["rows in a small group of a class"].value == 20  # a class is below ten in each
    assert got["depth, trees and min_child_weight"].passed
    assert got["losses of training and other rows"].value == 1


def test_settings_found_risky_need_a_weight_that_no_file_says():
    table = rows(200, 0)
    forest = grown(table, trees=5, max_depth=4)
    name = "depth, trees and min_child_weight"
    passed = [found(forest, table, table, w)[name].passed for w in (None, 0.0, 1.5, 2.0)]
    assert passed == [None, False, False, True]


@pytest.fixture
def files(tmp_path):
    train, reserve = rows(120, 1), rows(110, 2)
    forest = grown(train, trees=20, max_depth=8, min_child_weight=0.0)
    names = ("a", "b", "c")
    save_xgboost(forest, tmp_path / "m.json", 3, names)
    for file, table in (("train.csv", train), ("rest.csv", reserve)):
        lines = [",".join([*map(repr, map(float, x)), str(y)])
                 for x, y in zip(table.X, table.y, strict=True)]  # fmt: skip
        (tmp_path / file).write_text("\n".join([",".join((*names, "y")), *lines]))
    return tmp_path


@pytest.mark.long
def test_a_memorised_table_is_recognised_row_by_row(files, capsys):
    given = ["--data", str(files / "train.csv"), "--reserve", str(files / "rest.csv")]
    with pytest.raises(SystemExit) as end:
        main(["model", "audit", str(files / "m.json"), *given, "--target", "y", "--format", "json"])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)["membership"]
    tests = {t["test"]: t for t in told["tests"]}
    assert tests["together"]["auc"] > 0.8
    assert tests["together"]["few"]["chance"] < 1e-6
    assert abs(tests["rows alone"]["auc"] - 0.5) < 0.2
    assert len(told["rows"]) == 120
    assert np.mean([r["others_above"] for r in told["rows"]]) < 0.2
    failed = {c["name"] for c in told["checks"] if c["passed"] is False}
    assert "losses of training and other rows" in failed


def test_both_files_are_needed(files, capsys):
    with pytest.raises(SystemExit) as end:
        main(["model", "audit", str(files / "m.json"), "--data", str(files / "train.csv")])
    assert end.value.code == 2
    assert "--reserve" in capsys.readouterr().err
