"""The examples run real federations on the loopback interface, capture them and read them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedtrees.cli.main import main

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
def test_a_script_runs_without_changes(script, tmp_path, capsys):
    """Each script takes about 6 seconds of one processor if the kernels are compiled.

    The shell runs the script. Its last command, `fedtrees`, runs in this process instead of in an
    interpreter of its own, which would import the same modules again.
    """
    arguments_file = tmp_path / "arguments"
    command_of_script = tmp_path / "bin" / "fedtrees"
    command_of_script.parent.mkdir()
    command_of_script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{arguments_file}'\n")
    command_of_script.chmod(0o755)
    folders = [str(command_of_script.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {**os.environ, "PATH": os.pathsep.join(folders)}
    command = ["sh", str(script), str(tmp_path / "out")]
    subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    with pytest.raises(SystemExit) as exit_info:
        main(arguments_file.read_text().splitlines())
    assert not exit_info.value.code
    output = capsys.readouterr().out
    assert "what it tells" in output
    assert "failed" not in output
