"""Measure CPU seconds of one thread, and the memory a fresh process needs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes
    ----------
    what : str
    measured : str
        With its unit.
    beside : str
        What it is compared with, measured in the same run.
    target : str
    met : bool or None
        None where there is no target.
    """

    what: str
    measured: str
    beside: str = ""
    target: str = ""
    met: bool | None = None


def cpu_seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Return the median CPU seconds of a call, after one call that compiles and warms up."""
    run()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return sorted(times)[repeats // 2]


def side_by_side(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 3
) -> tuple[float, float]:
    """Return median CPU seconds of two calls made in turn, so that load falls on both."""
    ours()
    theirs()
    pairs: list[tuple[float, float]] = []
    for _ in range(repeats):
        spent = []
        for run in (ours, theirs):
            started = time.process_time()
            run()
            spent.append(time.process_time() - started)
        pairs.append((spent[0], spent[1]))
    a, b = (sorted(p[i] for p in pairs)[repeats // 2] for i in (0, 1))
    return a, b


def in_fresh_process(module: str, *arguments: str) -> dict[str, float]:
    """Run ``python -m module`` and return what it prints as JSON, with its peak memory in MiB."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(lines: list[Line]) -> str:
    """Write the lines as a Markdown table."""
    rows = ["| what | measured | beside, same run | target | met |", "|---|---|---|---|---|"]
    word = {True: "yes", False: "**no**", None: ""}
    rows += [
        f"| {x.what} | {x.measured} | {x.beside} | {x.target} | {word[x.met]} |" for x in lines
    ]
    return "\n".join(rows)
