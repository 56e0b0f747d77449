"""The audit command: its output, its scores beside the blind baseline, its refusals."""

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
    with pytest.raises(SystemExit) as stopped:
        main(["model", "audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stopped.value.code or 0, out, err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of named columns, and its training rows as a CSV file."""
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


def test_the_json_has_every_leaf_and_null_where_nothing_is_certain(capsys, made):
    code, out, _ = run(capsys, made / "m.json", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["model"]["rows"] == 569
    assert {f["name"]: f["state"] for f in found["fields"]} == {
        "sum_hessian": "present",
        "base_weights": "present",
        "loss_changes": "present",
        "base_score": "present",
    }
    first, *later = found["trees"]
    assert sum(leaf["n"] for leaf in first["leaves"]) == 569
    assert all(leaf["exact"] for leaf in first["leaves"])
    assert None in {leaf["n"] for t in later for leaf in t["leaves"]}
    assert {leaf["n_pos"] for t in later for leaf in t["leaves"]} == {None}
    assert not any(leaf["exact"] for t in later for leaf in t["leaves"])


def test_the_text_says_it_plainly(capsys, made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, made / "m.json")
    brief = " ".join(out.split())
    assert "If every training row was used once, with weight 1 and an unscaled objective" in brief
    assert "In that case it was trained on at least 569 rows, 357 of them positive" in brief
    assert "worst_" in brief  # conditions of a leaf, by column name
    lines = out.count("\n")
    _, out, _ = run(capsys, made / "m.json", "--details")
    whole = " ".join(out.split())
    assert lines <= 28 < out.count("\n")
    for sentence in brief.partition("Most exposed")[0].split(" * "):
        assert sentence.rstrip(" .") in whole
    assert "eta 0.3, lambda 1, inferred" in out


@pytest.mark.long
def test_an_attack_is_scored_beside_the_blind_baseline(capsys, made):
    given = ("--own", made / "own.csv", "--truth", made / "train.csv", "--target", "ill")
    _, out, _ = run(capsys, made / "m.json", *given, "--format", "json")
    attack = json.loads(out)["attack"]
    assert (attack["own"], attack["targets"]) == (100, 469)  # own rows are not sought
    scores = {s["metric"]: s for s in attack["scores"]}
    assert scores["leaf_mass_exact"]["score"] == 1.0
    assert scores["leaf_mass_exact"]["blind"] < 1.0
    ra = scores["ra"]
    assert ra["advantage"] == pytest.approx((ra["score"] - ra["blind"]) / (1 - ra["blind"]))
    assert 0.4 < ra["score"] < 1


@pytest.mark.long
def test_one_table_is_split_between_attacker_and_victims(capsys, made):
    given = ("--truth", made / "train.csv", "--target", "ill", "--format", "json")
    _, out, _ = run(capsys, made / "m.json", *given)
    attack = json.loads(out)["attack"]
    assert (attack["own"], attack["targets"]) == (114, 455)


@pytest.mark.long
def test_a_client_of_a_bagging_model_is_attacked_alone(capsys, tmp_path):
    """Its rows are recognised by the leaves of its first tree; all of its counts are exact."""
    made = trained.bagging(tmp_path / "m.json", rounds=4)
    rows = made.parts[1]
    frame = pd.DataFrame(made.X[rows]).assign(ill=made.y[rows])
    frame.to_csv(tmp_path / "mine.csv", index=False, float_format="%.9g")
    given = ("--own", tmp_path / "mine.csv", "--target", "ill", "--format", "json")
    _, out, _ = run(capsys, made.path, *given)
    attack = json.loads(out)["attack"]
    assert attack["own"] + attack["targets"] == len(rows)
    scores = {s["metric"]: s["score"] for s in attack["scores"]}
    assert scores["leaf_mass_exact"] == 1.0


@pytest.mark.long
def test_scrubbing_says_what_is_left(capsys, made, tmp_path):
    _, out, _ = run(capsys, made / "m.json", "--scrub", tmp_path / "c.json", "--format", "json")
    found = json.loads(out)["scrub"]
    assert found["predictions_unchanged"]
    assert found["leaves_reached"] == 1.0
    assert found["summary"]["exact"] == len(json.loads(out)["trees"][0]["leaves"])
    leaves = found["summary"]["exact"]
    assert f"and the labels in {leaves} of them (before: {leaves})" in found["says"][1]


def test_the_page_loads_nothing_and_escapes_names(capsys, tmp_path):
    made = trained.central(tmp_path / "m.json", 3)
    model = json.loads(made.path.read_text())
    names = ["<script>alert(1)</script>", *(f"f{k}" for k in range(29))]
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


def test_a_column_that_is_missing_is_named_with_a_guess(capsys, made, tmp_path):
    frame = pd.read_csv(made / "train.csv").rename(columns={"mean_radius": "mean_radios"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, _, err = run(capsys, made / "m.json", "--truth", tmp_path / "t.csv", "--target", "ill")
    assert code == 5
    assert "no column 'mean_radius'" in err
    assert "did you mean 'mean_radios'?" in err


@pytest.mark.long
def test_columns_the_model_does_not_know_are_left_out_aloud(capsys, made, tmp_path):
    frame = pd.read_csv(made / "train.csv")
    frame.insert(0, "name", "somebody")
    frame = frame[["ill", *reversed([c for c in frame.columns if c != "ill"])]]
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ("--truth", tmp_path / "t.csv", "--target", "ill", "--format", "json")
    _, out, _ = run(capsys, made / "m.json", *given)
    found = json.loads(out)
    assert "left out: name" in found["notes"][0]
    assert found["attack"]["scores"][-1]["score"] == 1.0  # the order of columns does not matter


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
def test_what_cannot_work_is_refused_in_one_line(capsys, made, arguments, code, message):
    found, _, err = run(capsys, made / "m.json", *arguments)
    assert found == code
    assert message in err
    assert err.count("\n") == 1


def test_an_empty_file_is_called_empty(capsys, tmp_path):
    (tmp_path / "empty.json").write_bytes(b"")
    code, _, err = run(capsys, tmp_path / "empty.json")
    assert code == 5
    assert "empty.json is empty: save the model again" in err


@pytest.mark.long
def test_a_model_of_five_hundred_trees_is_audited(tmp_path):
    made = trained.central(tmp_path / "m.json", 500, eta=0.05, max_depth=6)
    command = [sys.executable, "-m", "fedtrees.cli.main", "audit", str(made.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "500 trees" in done.stdout


@pytest.mark.parametrize("ending", [".parquet", ".xlsx"])
def test_a_table_in_another_format_gives_the_scores_of_its_csv_file(capsys, made, tmp_path, ending):
    table = tmp_path / f"train{ending}"
    frame = pd.read_csv(made / "train.csv")[:150]
    frame.to_parquet(table) if ending == ".parquet" else frame.to_excel(table, index=False)
    frame.to_csv(tmp_path / "train.csv", index=False)
    attacks = []
    for truth in (tmp_path / "train.csv", table):
        given = ("--own", made / "own.csv", "--truth", truth, "--target", "ill", "--format", "json")
        code, out, err = run(capsys, made / "m.json", *given)
        assert code == 0, err
        attacks.append(json.loads(out)["attack"])
    assert attacks[0]["targets"] == 50
    assert attacks[0]["scores"] == attacks[1]["scores"]
