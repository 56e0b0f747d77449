"""`fedtrees model train`: a model, a transcript, the numbers, and errors in one line."""

import json

import numpy as np
import pytest
import xgboost

import fedtrees
from fedtrees.cli.main import main
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import client_names
from fedtrees.core.transcript import Transcript
from fedtrees.data import Partition, load
from fedtrees.experiments.federation import spread
from fedtrees.trees.files.forests import load_random_forest, load_released

SMALL = ("-p", "fedtree-hist[trees=4,max_depth=3]")


def call(capsys, *arguments):
    """Run a command in this process; return exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["model", "train", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


def facts(capsys, *arguments):
    code, out, err = call(capsys, *arguments, "--format", "json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize("protocol", ["horizontal-regression", "vertical-regression"])
def test_a_model_without_trees_is_trained_and_has_no_number_of_trees(protocol, capsys):
    arguments = ("-p", f"{protocol}[rounds=2]", "--data", "diabetes")
    assert facts(capsys, *arguments)["trees"] is None
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert "trees" not in out


@pytest.mark.parametrize(
    ("name", "metrics", "outputs"),
    [
        ("wine", {"auc", "f1", "accuracy", "log_loss"}, 1),
        ("wine-3", {"auc", "f1", "accuracy", "log_loss"}, 3),
        ("diabetes-regression", {"r2", "rmse"}, 1),
    ],
)
def test_a_model_and_a_transcript_are_written(name, metrics, outputs, capsys, tmp_path):
    model, transcript = tmp_path / "m.json", tmp_path / "t.npz"
    found = facts(
        capsys, *SMALL, "--data", name, "--seed", 3, "--output", model, "--transcript", transcript
    )
    assert set(found["utility"]) == metrics
    assert found["trees"] == 4 * outputs
    test = spread(load(name), Partition("iid"), client_names(3), 3).test
    assert found["test_rows"] == len(test)
    predicted = fedtrees.load_model(model).predict(test.X)
    if outputs == 3:
        assert found["utility"]["accuracy"] == np.mean(predicted.argmax(axis=1) == test.y)
    elif name == "wine":
        assert found["utility"]["accuracy"] == np.mean((predicted > 0.5) == test.y)
    else:
        error = np.sqrt(np.mean((predicted - test.y) ** 2))
        assert found["utility"]["rmse"] == pytest.approx(error)
    booster = xgboost.Booster(model_file=model)
    matrix = xgboost.DMatrix(test.X, feature_names=booster.feature_names)
    assert np.array_equal(booster.predict(matrix), predicted)
    kept = Transcript.load(transcript)
    assert len(kept.deliveries) == found["messages"]
    assert sum(kept.traffic().values()) == found["bytes_up"] + found["bytes_down"]


def test_a_random_forest_is_written_as_npz(capsys, tmp_path):
    model = tmp_path / "m.npz"
    found = facts(capsys, "-p", "forest-hist[trees=4]", "--data", "iris", "--output", model)
    test = spread(load("iris"), Partition("iid"), client_names(3), 0).test
    predicted = load_random_forest(model).predict(test.X)
    assert found["utility"]["accuracy"] == np.mean(predicted.argmax(axis=1) == test.y)


def test_a_forest_of_random_tests_is_written_as_npz(capsys, tmp_path):
    model = tmp_path / "m.npz"
    made = "dp-forest[trees=3,depth=2]"
    found = facts(capsys, "-p", made, "--data", "digits", "--output", model)
    test = spread(load("digits"), Partition("iid"), client_names(3), 0).test
    forest, _ = load_released(model)
    assert found["utility"]["accuracy"] == np.mean((forest.predict(test.X) > 0.5) == test.y)
    assert forest.rows == found["training_rows"]
    with pytest.raises(DataError, match="contains no complete random forest"):
        load_random_forest(model)


def test_the_table_tells_what_was_trained_and_what_it_cost(capsys):
    code, out, err = call(
        capsys, *SMALL, "--data", "wine-3", "-d", "split-only+leaf-rounding[decimals=2]",
        "--partition", "label-skew[alpha=1]", "--clients", 2,
    )  # fmt: skip
    assert code == 0, err
    for said in ("wine-3 (3 classes)", "over 2 clients", "test rows", "test accuracy", "bytes",
                 "rounds", "split-only+leaf-rounding[decimals=2] (claims structural"):  # fmt: skip
        assert said in out


def test_a_seed_repeats_and_another_differs(capsys):
    arguments = ("-p", "fedtree-hist[trees=3,subsample=0.5]", "--data", "wine")
    runs = [facts(capsys, *arguments, "--seed", s)["utility"]["log_loss"] for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def rows(tmp_path, target):
    file = tmp_path / "t.csv"
    lines = [f"{i},{'uv'[i % 2]},{target(i)}" for i in range(60)]
    file.write_text("a,colour,y\n" + "\n".join(lines) + "\n")
    return ("--csv", file, "--target", "y", "--categorical", "colour")


def test_the_task_of_a_csv_file(capsys, tmp_path):
    three = rows(tmp_path, lambda i: i % 3)
    found = facts(capsys, *SMALL, *three, "--task", "classes")
    assert (found["task"], found["classes"]) == ("classes", ["0", "1", "2"])
    found = facts(capsys, *SMALL, *three, "--task", "number")
    assert (found["task"], found["classes"]) == ("number", [])
    found = facts(capsys, *SMALL, *three, "--positive", "1")
    assert (found["task"], found["classes"]) == ("binary", ["not 1", "1"])
    assert facts(capsys, *SMALL, *three)["task"] == "classes"
    code, _, err = call(capsys, *SMALL, *three, "--task", "binary")
    assert code == 5
    assert "has 3 classes (0, 1, 2); name the positive class" in err


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ("-p", "fedtre"), "did you mean 'fedtree-hist'"),
        (2, ("-p", "fedtree-hist[trees=1,2]"), "one protocol, not 2"),
        (2, ("-d", "split-only,leaf-rounding"), "one defense, not 2"),
        (2, ("--partition", "label-skew[alpha=1,2]"), "one partition, not 2"),
        (2, ("-p", "nvflare-hist", "-d", "split-only"), "'nvflare-hist' does not send"),
        (2, ("--data", "wine-4"), "did you mean 'wine-3'"),
        (2, ("--data", "wine", "--csv", "t.csv", "--target", "y"), "not both"),
        (2, ("--csv", "t.csv"), "--target COLUMN"),
        (2, ("--task", "number"), "describes a table of your own; give it with --csv"),
        (2, ("--output", "absent/m.json"), "no folder absent"),
        (2, ("--output", "m.npz"), "end the name in .json"),
        (2, ("-p", "forest-hist", "--output", "m.json"), "end the name in .npz"),
        (2, ("--transcript", "t.json"), "end the name in .npz"),
        (2, ("-p", "forest-hist", "--data", "diabetes-regression"), "use a boosting protocol"),
        (2, ("--partition", "label-skew", "--data", "diabetes-regression"), "is a number"),
        (2, ("--seed", "-1"), "--seed -1: give a whole number from 0 up"),
        (2, ("--clients", "-1"), "--clients -1: a federation needs"),
        (
            2,
            ("-p", "secureboost", "--clients", "1"),
            "a single party without another one to train with; give 2",
        ),
        (2, ("-p", "dp-gbdt", "--data", "wine"), "have none: declare ranges in the schema"),
        (5, ("--clients", "999"), "999 clients but only"),
        (5, ("--csv", "absent.csv", "--target", "y"), "no such file"),
    ],
)
def test_errors_are_one_line(code, arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, out, err = call(capsys, *arguments)
    assert (got, out) == (code, ""), err
    assert said in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
