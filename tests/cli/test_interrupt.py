"""Ctrl-C and SIGTERM stop a benchmark at once, and keep the finished cells."""

import signal
import subprocess
import sys
import time

import pytest


def _listen():
    """Let Ctrl-C reach the command also if these tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("jobs", "sent"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)]
)
def test_an_interrupted_benchmark_keeps_its_rows_and_writes_no_report(tmp_path, jobs, sent):
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "fedtrees.cli.main", "bench", "--data", "wine[rows=60]",
        "-p", "fedtree-hist[trees=2,max_depth=2]", "--seeds", "9", "-j", jobs,
        "--output", str(folder),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=_listen
    ) as run:
        while not [*(folder / "cells").glob("*.json")]:
            assert run.poll() is None
            time.sleep(0.1)
        start = time.monotonic()
        run.send_signal(sent)
        _, errors = run.communicate()
        seconds = time.monotonic() - start
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert (
        "stopped; finished cells are kept. Continue with: fedtrees bench --resume --output"
        in errors
    )
    assert (folder / "rows.csv").exists()
    assert not (folder / "report.html").exists()
    assert seconds < 30  # It took 1.4 s on two cores with a load of 21.
