"""The examples run real federations on the loopback interface, capture them and read them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "capture"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
MARKS = {
    "nvflare": pytest.mark.extra("nvflare"),
    "flower": pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: no extra"),
    "xgboost_columns": pytest.mark.long,
}


def test_every_script_is_one_line():
    assert {*MARKS} < {script.stem for script in SCRIPTS}
    for script in SCRIPTS:
        lines = script.read_text().splitlines()
        assert (len(lines), lines[0]) == (2, "#!/bin/sh")
        assert "loopback.py" in lines[1] or "flower_here.py" in lines[1]
        assert " && fedtrees capture attack " in lines[1]


@pytest.mark.parametrize(
    "script",
    [pytest.param(s, id=s.stem, marks=MARKS.get(s.stem, ())) for s in SCRIPTS],
)
def test_a_script_runs_without_changes(script, tmp_path):
    """Each script takes about 12 seconds of one processor if the kernels are compiled."""
    folder_of_python = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": os.pathsep.join([folder_of_python, os.environ["PATH"]])}
    command = ["sh", str(script), str(tmp_path / "out")]
    process = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert "what it tells" in process.stdout
    assert "failed" not in process.stdout
