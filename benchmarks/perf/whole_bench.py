"""The default bench as its user runs it."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedtrees.benchmarks.perf.measure import FULL, Line, Size

# Cells of every stage, fewer of them and of a smaller table, in one process.
SMALL = ["--suite", "smoke", "--data", "wine", "-p", "fedtree-hist[trees=2]", "-a", "random-leaf"]
SMALL += ["-j", "1"]


def lines(size: Size = FULL) -> Iterator[Line]:
    """Time the default bench on two processes, kernels compiled before."""
    less = ["-j", "2"] if size.scale >= 1 else SMALL
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        started = time.perf_counter()
        command = [sys.executable, "-m", "fedtrees.cli.main", "bench", "--out", out, *less]
        subprocess.run(command, check=True, capture_output=True)
        wall = time.perf_counter() - started
    # The largest child; its workers hold about the same each.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Line("`fedtrees bench`, two processes, wall", f"{wall:.0f} s", "", "<= 90 s", wall <= 90)
    yield Line("its largest process", f"{mib:.0f} MiB", "", "<= 2048 MiB together", 3 * mib <= 2048)
