"""The sketch leak in XGBoost itself: messages to one worker contain values of the other worker."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import xgboost

SCRIPT = Path(__file__).parents[2] / "docs/examples/frameworks/xgboost_sketch_leak.py"
PLUGIN = xgboost.build_info().get("USE_FEDERATED")


@pytest.fixture(scope="module")
def measurements():
    transports = ["collective", "federated"] if PLUGIN else ["collective"]
    arguments = ["--rows", "200", "900", "--max-bin", "32", "--json", "--transport", *transports]
    process = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=500
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


@pytest.mark.long
@pytest.mark.parametrize("transport", ["collective", "federated"])
def test_messages_contain_every_value_of_the_other_worker_and_no_absent_one(
    measurements, transport
):
    if transport == "federated" and not PLUGIN:
        pytest.skip(f"xgboost {xgboost.__version__} is built without its federated plugin")
    small, large = [
        measurement for measurement in measurements if measurement["transport"] == transport
    ]
    assert small["found"] == small["distinct"] == [200, 200]
    assert small["control"] == large["control"] == [0, 0]
    # With more distinct values than 8 x max_bin, about 8 x max_bin of them are sent.
    assert all(240 <= n_found <= 272 for n_found in large["found"])
