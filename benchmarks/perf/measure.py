"""Measure CPU seconds of one thread, wall time, and the memory a fresh process needs."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Case = TypeVar("Case")


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    measured: str  # with its unit
    beside: str = ""  # what it is compared with, measured in the same run
    target: str = ""
    met: bool | None = None  # None where there is no target


@dataclass(frozen=True)
class Size:
    """How much of a part is run.

    `scale`: Share of the rows and trees. Below 1 nothing is repeated, and of several cases of one
    part the first is run: enough to see that the part works, and no measurement.
    """

    scale: float = 1.0

    def rows(self, full: int) -> int:
        """Return the rows of a table that has so many in full."""
        return max(round(self.scale * full), 300)

    def trees(self, full: int) -> int:
        """Return the trees of a model that has so many in full."""
        return max(round(self.scale * full), 2)

    def cases(self, full: Sequence[Case]) -> Sequence[Case]:
        """Return the cases to run."""
        return full if self.scale >= 1 else full[:1]

    @property
    def repeats(self) -> int:
        """How often a call is timed."""
        return 3 if self.scale >= 1 else 1


FULL = Size()


def ratio(
    what: str, ours: float, theirs: float, rival: str, target: float | None = None, unit: str = "s"
) -> Line:
    """Return the line of one comparison; with a target, the greatest ratio that meets it."""
    met = None if target is None else ours / theirs <= target
    wanted = "" if target is None else f"<= {target}x"
    measured = f"{ours:.3g} {unit}, **{ours / theirs:.2f}x**"
    return Line(what, measured, f"{rival} {theirs:.3g} {unit}", wanted, met)


def medians(
    calls: Mapping[str, Callable[[], object]],
    repeats: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the median seconds of calls made in turn, so that load falls on all of them.

    Everything is called once before, to compile and to fill caches.

    `clock`: CPU seconds by default; `time.perf_counter` for wall time.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            started = clock()
            call()
            if turn:
                spent[name].append(clock() - started)
    return {name: sorted(times)[len(times) // 2] for name, times in spent.items()}


def in_fresh_process(module: str, *arguments: str, threads: int = 1) -> dict[str, float]:
    """Run ``python -m module`` on this many threads and return what it prints as JSON."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def command(*words: str) -> None:
    """Run a command of fedtrees, in a process of its own; raises `CalledProcessError`."""
    whole = [sys.executable, "-m", "fedtrees.cli.main", *words]
    subprocess.run(whole, check=True, capture_output=True)


def children_seconds() -> float:
    """Return the CPU seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(lines: list[Line]) -> str:
    """Write the lines as a Markdown table, without columns that are empty throughout."""
    word = {True: "yes", False: "**no**", None: ""}
    rows = [("what", "measured", "beside, same run", "target", "met")]
    rows += [(x.what, x.measured, x.beside, x.target, word[x.met]) for x in lines]
    kept = [i for i in range(5) if i < 2 or any(row[i] for row in rows[1:])]
    text = ["| " + " | ".join(row[i] for i in kept) + " |" for row in rows]
    return "\n".join([text[0], "|" + "---|" * len(kept), *text[1:]])
