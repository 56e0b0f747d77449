"""`fedtrees capture attack` on recorded captures, and `capture record` on runs of XGBoost."""

import json
import subprocess
import sys
from pathlib import Path

import capture_campaign
import numpy as np
import pytest
import xgboost
from captures import HERE, capture

from fedtrees.capture.differences import BESIDES, from_protocol
from fedtrees.cli.main import main
from fedtrees.core.schema import Table

CAMPAIGN = Path(__file__).parent / "capture_campaign.py"


def told(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["capture", "attack", *map(str, words)])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_promises_come_first_and_what_is_certain_is_right(tmp_path, capsys):
    path = capture("ring3", tmp_path)
    truth = [w for k in (1, 2) for w in ("--truth", HERE / "ring3" / f"worker-{k}.csv")]
    code, out, _ = told(capsys, path, "--as", "worker-0", "--format", "json", *truth)
    found = json.loads(out)
    assert not code
    assert list(found).index("promises") < list(found).index("readings")
    assert any("in plain text" in line for line in found["promises"])
    assert found["readings"]
    assert all((r["certain"], r["wrong"]) == ("yes", 0) for r in found["readings"])
    by_name = {row["attack"]: row for row in found["attacks"]}
    assert {"sketch-reading", "ring-segments"} <= by_name.keys()
    value, blind = by_name["sketch-reading"]["scores"]["column_values"]
    assert value == 1.0 > blind


def test_without_truth_nothing_is_scored(tmp_path, capsys):
    code, out, _ = told(capsys, capture("columns3", tmp_path), "--as", "worker-1")
    assert not code
    assert out.index("what was promised and is not so") < out.index("what it tells")
    assert "gradients of all 40 rows cross" in out
    assert "give --truth PARTY=FILE" in out
    assert "wrong" not in out


def test_strangers_and_other_files_are_refused_in_a_line(tmp_path, capsys):
    path = capture("ring2", tmp_path)
    code, _, err = told(capsys, path, "--as", "worker-7")
    assert (code, err.count("\n")) == (2, 1)
    assert "no party 'worker-7'" in err
    code, _, err = told(capsys, HERE / "ring2" / "worker-0.csv")
    assert (code, err.count("\n")) == (5, 1)
    assert "is no capture" in err


def test_two_captures_are_compared_kind_by_kind(tmp_path, capsys):
    def compared(*words):
        with pytest.raises(SystemExit) as ended:
            main(["capture", "diff", *map(str, words), "--format", "json"])
        return ended.value.code or 0, json.loads(capsys.readouterr().out)

    one, other = capture("machines2", tmp_path), capture("machines3", tmp_path)
    code, found = compared(one, one)
    assert (code, found["same"]) == (0, True)
    assert all(row["apart"] == "" for row in found["kinds"])
    code, found = compared(one, other)
    assert (code, found["same"]) == (4, False)
    apart = {(r["message"], r["from"], r["to"]): r for r in found["kinds"]}
    assert apart["ClassRows", "worker-2", "worker-0, worker-1"]["count"] == [0, 1]
    assert apart["ClassRows", "worker-0", "worker-1"]["apart"] == "1 messages, 0"


@pytest.mark.long
@pytest.mark.parametrize("over", ["rabit", "xgboost", "lightgbm"])
def test_a_run_of_today_is_captured_and_read_without_error(over):
    if over == "xgboost" and not xgboost.build_info().get("USE_FEDERATED"):
        pytest.skip(f"xgboost {xgboost.__version__} is built without its federated plugin")
    if over == "lightgbm":
        pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    command = [sys.executable, str(CAMPAIGN), "--runs", "1", "--seed", "104", "--over", over]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{over}: 1 runs, 1 decoded whole" in done.stdout


@pytest.mark.skipif(
    not xgboost.build_info().get("USE_FEDERATED"), reason="built without the federated plugin"
)
def test_a_run_of_today_is_the_simulation_where_columns_have_fewer_bins_than_values(tmp_path):
    parts = [np.array(p) for p in np.array_split(capture_campaign.loopback.table(150, 2, 7, 3), 3)]
    params = {"objective": "binary:logistic", "max_depth": 3, "max_bin": 16}
    path = tmp_path / "run.capture"
    capture_campaign.captured(parts, "xgboost", params, 2, path)
    truth = {f"worker-{k}": Table(p[:, :-1], p[:, -1].astype(int)) for k, p in enumerate(parts)}
    named = "nvflare-hist[trees=2,max_depth=3,max_bin=16]"
    told = from_protocol(str(path), None, named, truth)
    assert told["same"], told["kinds"]
    assert {row["message"] for row in told["kinds"] if row["apart"]} == {*BESIDES} - {
        "EvaluationSums"  # nothing was evaluated
    }


@pytest.mark.slow
@pytest.mark.parametrize("over", ["rabit", "xgboost", "lightgbm"])
def test_nothing_certain_is_wrong_over_random_runs(over):
    command = [sys.executable, str(CAMPAIGN), "--runs", "50", "--seed", "100", "--over", over]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
