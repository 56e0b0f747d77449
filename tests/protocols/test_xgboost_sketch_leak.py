"""The sketch leak on XGBoost itself: what one worker is sent holds the other's values."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import xgboost

SCRIPT = Path(__file__).parents[2] / "docs/examples/frameworks/xgboost_sketch_leak.py"
PLUGIN = xgboost.build_info().get("USE_FEDERATED")


@pytest.fixture(scope="module")
def measured():
    transports = ["collective", "federated"] if PLUGIN else ["collective"]
    asked = ["--rows", "200", "900", "--max-bin", "32", "--json", "--transport", *transports]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *asked], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.long
@pytest.mark.parametrize("transport", ["collective", "federated"])
def test_every_value_of_the_other_worker_crosses_and_none_that_nobody_holds(measured, transport):
    if transport == "federated" and not PLUGIN:
        pytest.skip(f"xgboost {xgboost.__version__} is built without its federated plugin")
    few, many = [m for m in measured if m["transport"] == transport]
    assert few["found"] == few["distinct"] == [200, 200]
    assert few["control"] == many["control"] == [0, 0]
    # of more values than 8 x max_bin, so many cross
    assert all(240 <= found <= 272 for found in many["found"])
