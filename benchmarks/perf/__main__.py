"""`python -m fedtrees.benchmarks.perf [--only PART] [--data-dir FOLDER]`: print the tables."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

from fedtrees.benchmarks.perf import (
    attacks,
    central,
    federations,
    forests,
    growth,
    memory,
    objectives,
    scoring,
    two_threads,
    whole_bench,
)
from fedtrees.benchmarks.perf.measure import Line, markdown


def parts(data_dir: str | None) -> dict[str, Callable[[], Iterator[Line]]]:
    """Return what can be measured, by name, in order; each takes less than nine minutes."""
    return {
        "central": central.small,
        "central-million": central.large,
        "memory": memory.lines,
        "threads": two_threads.lines,
        "federations": federations.in_process,
        "plugin": federations.beside_plugin,
        "multiclass": objectives.multiclass,
        "forests": forests.lines,
        "growth-rows": growth.by_rows,
        "growth-features": growth.by_features,
        "growth-bins": growth.by_bins,
        "growth-depth": growth.by_depth,
        "growth-clients": growth.by_clients,
        "scoring": scoring.lines,
        "attacks": partial(attacks.lines, data_dir),
        "bench": whole_bench.lines,
    }


def main() -> None:
    """Measure and print."""
    names = list(parts(None))
    parser = argparse.ArgumentParser(prog="python -m fedtrees.benchmarks.perf")
    parser.add_argument("--data-dir", default=None, help="tables that the attacks run on")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        choices=[*names, "growth"],
        help=f"measure this part (may be repeated); growth, or one of {', '.join(names)}",
    )
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}", end="")
    print("; one thread, CPU seconds, medians, unless a line says otherwise")
    for name, measure in parts(options.data_dir).items():
        if options.only and not {name, name.partition("growth")[1]} & {*options.only}:
            continue
        lines = []
        for line in measure():
            print(f"  {line.what}: {line.measured}", file=sys.stderr, flush=True)
            lines.append(line)
        print(f"\n## {name}\n\n{markdown(lines)}", flush=True)


if __name__ == "__main__":
    main()
