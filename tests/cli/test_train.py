"""`fedtrees model train`: the model, the transcript, the scores, and errors of one line."""

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
    with pytest.raises(SystemExit) as exit_info:
        main(["model", "train", *map(str, arguments)])
    output, errors = capsys.readouterr()
    return exit_info.value.code or 0, output, errors


def facts(capsys, *arguments):
    code, output, errors = call(capsys, *arguments, "--format", "json")
    assert code == 0, errors
    return json.loads(output)


@pytest.mark.parametrize("protocol", ["horizontal-regression", "vertical-regression"])
def test_a_model_without_trees_is_trained_and_has_no_number_of_trees(protocol, capsys):
    arguments = ("-p", f"{protocol}[rounds=2]", "--data", "diabetes")
    assert facts(capsys, *arguments)["trees"] is None
    code, output, _ = call(capsys, *arguments)
    assert code == 0
    assert "trees" not in output


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
    result = facts(
        capsys, *SMALL, "--data", name, "--seed", 3, "--output", model, "--transcript", transcript
    )
    assert set(result["utility"]) == metrics
    assert result["trees"] == 4 * outputs
    test = spread(load(name), Partition("iid"), client_names(3), 3).test
    assert result["test_rows"] == len(test)
    predicted = fedtrees.load_model(model).predict(test.X)
    if outputs == 3:
        assert result["utility"]["accuracy"] == np.mean(predicted.argmax(axis=1) == test.y)
    elif name == "wine":
        assert result["utility"]["accuracy"] == np.mean((predicted > 0.5) == test.y)
    else:
        error = np.sqrt(np.mean((predicted - test.y) ** 2))
        assert result["utility"]["rmse"] == pytest.approx(error)
    booster = xgboost.Booster(model_file=model)
    matrix = xgboost.DMatrix(test.X, feature_names=booster.feature_names)
    assert np.array_equal(booster.predict(matrix), predicted)
    stored_transcript = Transcript.load(transcript)
    assert len(stored_transcript.deliveries) == result["messages"]
    assert sum(stored_transcript.traffic().values()) == result["bytes_up"] + result["bytes_down"]


def test_a_random_forest_is_written_as_npz(capsys, tmp_path):
    model = tmp_path / "m.npz"
    result = facts(capsys, "-p", "forest-hist[trees=4]", "--data", "iris", "--output", model)
    test = spread(load("iris"), Partition("iid"), client_names(3), 0).test
    predicted = load_random_forest(model).predict(test.X)
    assert result["utility"]["accuracy"] == np.mean(predicted.argmax(axis=1) == test.y)


def test_a_forest_of_random_tests_is_written_as_npz(capsys, tmp_path):
    model = tmp_path / "m.npz"
    protocol = "dp-forest[trees=3,depth=2]"
    result = facts(capsys, "-p", protocol, "--data", "digits", "--output", model)
    test = spread(load("digits"), Partition("iid"), client_names(3), 0).test
    forest, _ = load_released(model)
    assert result["utility"]["accuracy"] == np.mean((forest.predict(test.X) > 0.5) == test.y)
    assert forest.rows == result["training_rows"]
    with pytest.raises(DataError, match="contains no complete random forest"):
        load_random_forest(model)


def test_the_table_states_what_was_trained_and_the_costs(capsys):
    code, output, errors = call(
        capsys, *SMALL, "--data", "wine-3", "-d", "split-only+leaf-rounding[decimals=2]",
        "--partition", "label-skew[alpha=1]", "--clients", 2,
    )  # fmt: skip
    assert code == 0, errors
    for text in ("wine-3 (3 classes)", "over 2 clients", "test rows", "test accuracy", "bytes",
                 "rounds", "split-only+leaf-rounding[decimals=2] (claims structural"):  # fmt: skip
        assert text in output


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
    three_classes = rows(tmp_path, lambda number: number % 3)
    result = facts(capsys, *SMALL, *three_classes, "--task", "classes")
    assert (result["task"], result["classes"]) == ("classes", ["0", "1", "2"])
    result = facts(capsys, *SMALL, *three_classes, "--task", "number")
    assert (result["task"], result["classes"]) == ("number", [])
    result = facts(capsys, *SMALL, *three_classes, "--positive", "1")
    assert (result["task"], result["classes"]) == ("binary", ["not 1", "1"])
    assert facts(capsys, *SMALL, *three_classes)["task"] == "classes"
    code, _, errors = call(capsys, *SMALL, *three_classes, "--task", "binary")
    assert code == 5
    assert "has 3 classes (0, 1, 2); name the positive class" in errors


@pytest.mark.parametrize(
    ("code", "arguments", "error_message"),
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
def test_errors_have_one_line(code, arguments, error_message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exit_code, output, errors = call(capsys, *arguments)
    assert (exit_code, output) == (code, ""), errors
    assert error_message in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())
