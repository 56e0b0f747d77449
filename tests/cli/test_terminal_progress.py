"""A terminal always shows that a command works, also before and after its progress bar."""

import os
import pty
import subprocess
import sys


def terminal_output_of(*arguments):
    """Return the output of a command on stderr, if stderr is a terminal."""
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "fedtrees.cli.main", *arguments]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment
    ) as process:
        os.close(stderr)
        chunks = []
        while True:
            try:
                chunks.append(os.read(terminal, 4096))
            except OSError:  # the process ended, and with it the other end of the terminal
                break
    os.close(terminal)
    assert process.returncode == 0
    return b"".join(chunks).decode()


def test_a_terminal_shows_progress_before_and_after_the_cells(tmp_path):
    output = terminal_output_of(
        *("bench", "-p", "fedtree-hist[trees=1,max_depth=1]", "-a", "class-shares"),
        *("--threat", "client", "--seeds", "1", "-j", "1", "-o", str(tmp_path / "run")),
    )
    stages = ["checking the suite", "cells: ", "time left", "writing the report"]
    places = [output.find(stage) for stage in stages]
    assert -1 not in places
    assert places == sorted(places)
