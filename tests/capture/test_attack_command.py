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


def run_attack_command(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_info:
        main(["capture", "attack", *map(str, arguments)])
    output, errors = capsys.readouterr()
    return exit_info.value.code, output, errors


def test_broken_promises_come_first_and_certain_readings_are_right(tmp_path, capsys):
    path = capture("ring3", tmp_path)
    truth = [
        argument
        for number in (1, 2)
        for argument in ("--truth", HERE / "ring3" / f"worker-{number}.csv")
    ]
    code, output, _ = run_attack_command(
        capsys, path, "--as", "worker-0", "--format", "json", *truth
    )
    result = json.loads(output)
    assert not code
    assert list(result).index("promises") < list(result).index("readings")
    assert any("in plain text" in line for line in result["promises"])
    assert result["readings"]
    assert all(
        (reading["certain"], reading["wrong"]) == ("yes", 0) for reading in result["readings"]
    )
    by_name = {row["attack"]: row for row in result["attacks"]}
    assert {"sketch-reading", "ring-segments"} <= by_name.keys()
    value, blind = by_name["sketch-reading"]["scores"]["column_values"]
    assert value == 1.0 > blind


def test_without_truth_nothing_is_scored(tmp_path, capsys):
    code, output, _ = run_attack_command(capsys, capture("columns3", tmp_path), "--as", "worker-1")
    assert not code
    assert output.index("what was promised and is not so") < output.index("what it tells")
    assert "gradients of all 40 rows cross" in output
    assert "give --truth PARTY=FILE" in output
    assert "wrong" not in output


def test_strangers_and_other_files_are_refused_in_a_line(tmp_path, capsys):
    path = capture("ring2", tmp_path)
    code, _, err = run_attack_command(capsys, path, "--as", "worker-7")
    assert (code, err.count("\n")) == (2, 1)
    assert "no party 'worker-7'" in err
    code, _, err = run_attack_command(capsys, HERE / "ring2" / "worker-0.csv")
    assert (code, err.count("\n")) == (5, 1)
    assert "is no capture" in err


def test_two_captures_are_compared_by_kind_of_message(tmp_path, capsys):
    def run_diff(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            main(["capture", "diff", *map(str, arguments), "--format", "json"])
        return exit_info.value.code or 0, json.loads(capsys.readouterr().out)

    capture_of_two, capture_of_three = (
        capture("machines2", tmp_path),
        capture("machines3", tmp_path),
    )
    code, result = run_diff(capture_of_two, capture_of_two)
    assert (code, result["same"]) == (0, True)
    assert all(row["apart"] == "" for row in result["kinds"])
    code, result = run_diff(capture_of_two, capture_of_three)
    assert (code, result["same"]) == (4, False)
    differences = {(r["message"], r["from"], r["to"]): r for r in result["kinds"]}
    assert differences["ClassRows", "worker-2", "worker-0, worker-1"]["count"] == [0, 1]
    assert differences["ClassRows", "worker-0", "worker-1"]["apart"] == "1 messages, 0"


@pytest.mark.long
@pytest.mark.parametrize("transport", ["rabit", "xgboost", "lightgbm"])
def test_a_run_of_the_installed_version_is_captured_and_read_without_error(transport):
    if transport == "xgboost" and not xgboost.build_info().get("USE_FEDERATED"):
        pytest.skip(f"xgboost {xgboost.__version__} is built without its federated plugin")
    if transport == "lightgbm":
        pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    command = [sys.executable, str(CAMPAIGN), "--runs", "1", "--seed", "104", "--over", transport]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"{transport}: 1 runs, 1 decoded whole" in process.stdout


@pytest.mark.skipif(
    not xgboost.build_info().get("USE_FEDERATED"), reason="built without the federated plugin"
)
def test_a_captured_run_equals_the_simulation_if_columns_have_fewer_bins_than_values(tmp_path):
    parts = [
        np.array(part) for part in np.array_split(capture_campaign.loopback.table(150, 2, 7, 3), 3)
    ]
    params = {"objective": "binary:logistic", "max_depth": 3, "max_bin": 16}
    path = tmp_path / "run.capture"
    capture_campaign.captured(parts, "xgboost", params, 2, path)
    truth = {
        f"worker-{number}": Table(part[:, :-1], part[:, -1].astype(int))
        for number, part in enumerate(parts)
    }
    protocol_text = "nvflare-hist[trees=2,max_depth=3,max_bin=16]"
    comparison = from_protocol(str(path), None, protocol_text, truth)
    assert comparison["same"], comparison["kinds"]
    assert {row["message"] for row in comparison["kinds"] if row["apart"]} == {*BESIDES} - {
        "EvaluationSums"  # No evaluation took place.
    }


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["rabit", "xgboost", "lightgbm"])
def test_no_certain_reading_of_random_runs_is_wrong(transport):
    command = [sys.executable, str(CAMPAIGN), "--runs", "50", "--seed", "100", "--over", transport]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
