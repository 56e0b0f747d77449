"""`python -m fedtrees.benchmarks.perf [--data-dir FOLDER] [--small]`: print the table."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from fedtrees.benchmarks.perf import attacks, engine, forests, scoring
from fedtrees.benchmarks.perf.measure import Line, markdown


def default_bench() -> Iterator[Line]:
    """Time the default bench on two processes, kernels compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        started = time.perf_counter()
        command = [sys.executable, "-m", "fedtrees.cli.main", "bench", "-j", "2", "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        wall = time.perf_counter() - started
    # The largest child; its workers hold about the same each.
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Line("`fedtrees bench`, two processes, wall", f"{wall:.0f} s", "", "<= 90 s", wall <= 90)
    yield Line("its largest process", f"{mib:.0f} MiB", "", "<= 2048 MiB together", 3 * mib <= 2048)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.perf")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--small", action="store_true", help="leave out a million rows")
    options = parser.parse_args()
    lines: list[Line] = []

    def add(found: Iterator[Line]) -> None:
        for line in found:
            print(f"  {line.what}: {line.measured}", file=sys.stderr, flush=True)
            lines.append(line)

    add(engine.central(100_000, target=1.2))
    if not options.small:
        add(engine.central(1_000_000, target=2.0, trees=5, repeats=1))
    add(engine.federated(2, target=2.0))
    add(engine.federated(10, target=None))
    add(forests.lines())
    add(scoring.lines())
    add(attacks.lines(options.data_dir))
    add(default_bench())
    print(f"{platform.machine()}, Python {platform.python_version()}, one thread, CPU seconds\n")
    print(markdown(lines))


if __name__ == "__main__":
    main()
