"""The examples run real federations on loopback, capture them, and what is read is so."""

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from captures import rows

from fedtrees.capture.attack import report

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "capture"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
#: Who reads, and something that is then certain.
READ = {
    "xgboost_ring": ("worker-0", "number of positives"),
    "xgboost_server": ("server", "values with the labels of their rows"),
    "xgboost_columns": ("worker-1", "labels of rows, in their order"),
    "lightgbm": ("worker-1", "least and greatest values"),
}


MARKS = {
    "nvflare": pytest.mark.extra("nvflare"),
    "flower": pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: no extra"),
}


def test_every_script_is_one_line():
    assert {*READ, *MARKS} == {script.stem for script in SCRIPTS}
    for script in SCRIPTS:
        lines = script.read_text().splitlines()
        assert (len(lines), lines[0]) == (2, "#!/bin/sh")
        assert "loopback.py" in lines[1] or "flower_here.py" in lines[1]
        assert " && fedtrees attack " in lines[1]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "server" in n else ()) for n in READ]
)
def test_what_is_read_of_a_run_right_now_is_so(name, tmp_path):
    """Its first half, on few rows, and the second's readings; scripts as they are: a slow test."""
    line = (EXAMPLES / f"{name}.sh").read_text().splitlines()[1].split(" && ")[1]
    command = shlex.split(line.replace('"$(dirname "$0")/', f'"{EXAMPLES}/'))
    command = [sys.executable if word == "python" else word for word in command]
    command[command.index("$OUT")] = str(tmp_path)
    subprocess.run([*command, "--rows", "90", "--trees", "1"], check=True, capture_output=True)
    who, certain = READ[name]
    told = report(str(tmp_path / "run.capture"), who, rows(tmp_path), named=("random-leaf",))
    sure = [row for row in told["readings"] if row["certain"] == "yes"]
    assert certain in {row["reading"] for row in sure}
    assert not any(row["wrong"] for row in sure)
    assert not any("not decoded" in note for note in told["notes"])


@pytest.mark.parametrize(
    "script",
    [pytest.param(s, id=s.stem, marks=MARKS.get(s.stem, pytest.mark.slow)) for s in SCRIPTS],
)
def test_a_script_runs_as_it_is(script, tmp_path):
    """`pytest -m slow tests/capture/test_examples.py`; each took 8 to 45 seconds of a processor."""
    here = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": os.pathsep.join([here, os.environ["PATH"]])}
    command = ["sh", str(script), str(tmp_path / "out")]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert "what it tells" in done.stdout
    assert "failed" not in done.stdout
