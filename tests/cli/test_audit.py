"""The audit command: output, scores next to the blind baseline, and refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from fedtrees.cli.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "audit"))
import trained_models as trained


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["model", "audit", *map(str, arguments)])
    output, errors = capsys.readouterr()
    return exit_info.value.code or 0, output, errors


@pytest.fixture(scope="module")
def audited_folder(tmp_path_factory):
    """Write a model with named columns, and its training rows as CSV files."""
    import xgboost as xgb

    folder = tmp_path_factory.mktemp("audit")
    X, y = trained.table()
    names = [n.replace(" ", "_") for n in load_breast_cancer().feature_names]
    frame = pd.DataFrame(X, columns=names)
    data = xgb.DMatrix(frame, y)
    xgb.train(trained.PARAMS, data, 6).save_model(folder / "m.json")
    frame.assign(ill=y).to_csv(folder / "train.csv", index=False, float_format="%.9g")
    frame.assign(ill=y)[:100].to_csv(folder / "own.csv", index=False, float_format="%.9g")
    return folder


def test_the_json_has_every_leaf_and_null_for_uncertain_counts(capsys, audited_folder):
    code, output, _ = run(capsys, audited_folder / "m.json", "--format", "json")
    result = json.loads(output)
    assert code == 0
    assert result["model"]["rows"] == 569
    assert {field["name"]: field["state"] for field in result["fields"]} == {
        "sum_hessian": "present",
        "base_weights": "present",
        "loss_changes": "present",
        "base_score": "present",
    }
    first, *later_trees = result["trees"]
    assert sum(leaf["n"] for leaf in first["leaves"]) == 569
    assert all(leaf["exact"] for leaf in first["leaves"])
    assert None in {leaf["n"] for tree in later_trees for leaf in tree["leaves"]}
    assert {leaf["n_pos"] for tree in later_trees for leaf in tree["leaves"]} == {None}
    assert not any(leaf["exact"] for tree in later_trees for leaf in tree["leaves"])


def test_the_text_states_what_the_model_reveals(capsys, audited_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, output, _ = run(capsys, audited_folder / "m.json")
    summary = " ".join(output.split())
    assert "If every training row was used once, with weight 1 and an unscaled objective" in summary
    assert "In that case it was trained on at least 569 rows, 357 of them positive" in summary
    assert "worst_" in summary  # Conditions of a leaf are written with column names.
    lines = output.count("\n")
    _, output, _ = run(capsys, audited_folder / "m.json", "--details")
    details = " ".join(output.split())
    assert lines <= 28 < output.count("\n")
    for sentence in summary.partition("Most exposed")[0].split(" * "):
        assert sentence.rstrip(" .") in details
    assert "eta 0.3, lambda 1, inferred" in output


@pytest.mark.long
def test_an_attack_is_scored_next_to_the_blind_baseline(capsys, audited_folder):
    arguments = (
        "--own",
        audited_folder / "own.csv",
        "--truth",
        audited_folder / "train.csv",
        "--target",
        "ill",
    )
    _, output, _ = run(capsys, audited_folder / "m.json", *arguments, "--format", "json")
    attack = json.loads(output)["attack"]
    # The attack does not look for the adversary's own rows.
    assert (attack["own"], attack["targets"]) == (100, 469)
    scores = {score["metric"]: score for score in attack["scores"]}
    assert scores["leaf_mass_exact"]["score"] == 1.0
    assert scores["leaf_mass_exact"]["blind"] < 1.0
    ra = scores["ra"]
    assert ra["advantage"] == pytest.approx((ra["score"] - ra["blind"]) / (1 - ra["blind"]))
    assert 0.4 < ra["score"] < 1


@pytest.mark.long
def test_one_table_is_split_between_attacker_and_victims(capsys, audited_folder):
    arguments = ("--truth", audited_folder / "train.csv", "--target", "ill", "--format", "json")
    _, output, _ = run(capsys, audited_folder / "m.json", *arguments)
    attack = json.loads(output)["attack"]
    assert (attack["own"], attack["targets"]) == (114, 455)


@pytest.mark.long
def test_a_single_client_of_a_bagging_model_is_attacked(capsys, tmp_path):
    """The leaves of its first tree identify its rows, so all of its counts are exact."""
    bagged = trained.bagging(tmp_path / "m.json", rounds=4)
    rows = bagged.parts[1]
    frame = pd.DataFrame(bagged.X[rows]).assign(ill=bagged.y[rows])
    frame.to_csv(tmp_path / "mine.csv", index=False, float_format="%.9g")
    arguments = ("--own", tmp_path / "mine.csv", "--target", "ill", "--format", "json")
    _, output, _ = run(capsys, bagged.path, *arguments)
    attack = json.loads(output)["attack"]
    assert attack["own"] + attack["targets"] == len(rows)
    scores = {score["metric"]: score["score"] for score in attack["scores"]}
    assert scores["leaf_mass_exact"] == 1.0


@pytest.mark.long
def test_scrubbing_states_what_the_copy_still_reveals(capsys, audited_folder, tmp_path):
    _, output, _ = run(
        capsys, audited_folder / "m.json", "--scrub", tmp_path / "c.json", "--format", "json"
    )
    scrub = json.loads(output)["scrub"]
    assert scrub["predictions_unchanged"]
    assert scrub["leaves_reached"] == 1.0
    assert scrub["summary"]["exact"] == len(json.loads(output)["trees"][0]["leaves"])
    leaves = scrub["summary"]["exact"]
    assert f"and the labels in {leaves} of them (before: {leaves})" in scrub["says"][1]


def test_the_page_is_self_contained_and_escapes_names(capsys, tmp_path):
    central_model = trained.central(tmp_path / "m.json", 3)
    model = json.loads(central_model.path.read_text())
    names = ["<script>alert(1)</script>", *(f"f{number}" for number in range(29))]
    model["learner"]["feature_names"] = names
    path = tmp_path / "<b>.json"
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        tree["split_indices"] = [0] * len(tree["split_indices"])
    path.write_text(json.dumps(model))
    run(capsys, path, "--report", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "default-src 'none'" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<b>.json" not in page


def test_a_missing_column_is_named_with_a_similar_one(capsys, audited_folder, tmp_path):
    frame = pd.read_csv(audited_folder / "train.csv").rename(columns={"mean_radius": "mean_radios"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, _, errors = run(
        capsys, audited_folder / "m.json", "--truth", tmp_path / "t.csv", "--target", "ill"
    )
    assert code == 5
    assert "no column 'mean_radius'" in errors
    assert "did you mean 'mean_radios'?" in errors


@pytest.mark.long
def test_columns_that_the_model_does_not_have_are_reported_as_left_out(
    capsys, audited_folder, tmp_path
):
    frame = pd.read_csv(audited_folder / "train.csv")
    frame.insert(0, "name", "somebody")
    frame = frame[["ill", *reversed([column for column in frame.columns if column != "ill"])]]
    frame.to_csv(tmp_path / "t.csv", index=False)
    arguments = ("--truth", tmp_path / "t.csv", "--target", "ill", "--format", "json")
    _, output, _ = run(capsys, audited_folder / "m.json", *arguments)
    result = json.loads(output)
    assert "left out: name" in result["notes"][0]
    assert result["attack"]["scores"][-1]["score"] == 1.0  # the order of columns does not matter


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--truth", "t.csv"), 2, "need --target"),
        (("--target", "ill"), 2, "describe --own and --truth"),
        (("--scrub", "c.txt"), 2, "end the name in .json"),
        (("--scrub",), 2, "'--scrub' requires an argument. New .json file for a copy"),
        (("--report", "nowhere/r.html"), 2, "there is no folder nowhere"),
        (("--learning-rate", "0.1", "--reg-lambda", "1"), 2, "contradict the statistics"),
        (("--rows", "0"), 2, "must be at least 1"),
        (("--truth", "absent.csv", "--target", "ill"), 5, "no such file"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    capsys, audited_folder, arguments, code, message
):
    exit_code, _, errors = run(capsys, audited_folder / "m.json", *arguments)
    assert exit_code == code
    assert message in errors
    assert errors.count("\n") == 1


def test_an_empty_file_is_called_empty(capsys, tmp_path):
    (tmp_path / "empty.json").write_bytes(b"")
    code, _, err = run(capsys, tmp_path / "empty.json")
    assert code == 5
    assert "empty.json is empty: save the model again" in err


@pytest.mark.long
def test_a_model_of_five_hundred_trees_is_audited(tmp_path):
    central_model = trained.central(tmp_path / "m.json", 500, eta=0.05, max_depth=6)
    command = [sys.executable, "-m", "fedtrees.cli.main", "audit", str(central_model.path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "500 trees" in process.stdout


def test_a_table_in_another_format_gives_the_scores_of_its_csv_file(
    capsys, audited_folder, tmp_path
):
    frame = pd.read_csv(audited_folder / "train.csv")[:150]
    frame.to_csv(tmp_path / "train.csv", index=False)
    frame.to_parquet(tmp_path / "train.parquet")
    frame.to_excel(tmp_path / "train.xlsx", index=False)
    attacks = []
    for ending in ("csv", "parquet", "xlsx"):
        arguments = (
            "--own",
            audited_folder / "own.csv",
            "--truth",
            tmp_path / f"train.{ending}",
            "--target",
            "ill",
            "--format",
            "json",
        )
        code, output, errors = run(capsys, audited_folder / "m.json", *arguments)
        assert code == 0, errors
        attacks.append(json.loads(output)["attack"])
    assert attacks[0]["targets"] == 50
    assert attacks[0]["scores"] == attacks[1]["scores"] == attacks[2]["scores"]
