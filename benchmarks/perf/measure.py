"""Measure CPU seconds of one thread, wall-clock time, and the memory of a fresh process."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Case = TypeVar("Case")


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes
    ----------
    what : str
        Description of the measured call.
    measured : str
        Result with its unit.
    rival_result : str
        Result of a competing implementation, measured in the same run.
    target : str
        Required result.
    met : bool or None
        Whether the target is met, None without a target.
    """

    what: str
    measured: str
    rival_result: str = ""
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Size:
    """Scale of a measurement.

    Attributes
    ----------
    scale : float
        Share of rows and trees. Below 1, nothing is repeated and only the first of several cases is
        run. This shows that a part works but is not a measurement.
    """

    scale: float = 1.0

    def rows(self, full: int) -> int:
        """Return the scaled number of rows, at least 300."""
        return max(round(self.scale * full), 300)

    def trees(self, full: int) -> int:
        """Return the scaled number of trees, at least 2."""
        return max(round(self.scale * full), 2)

    def cases(self, full: Sequence[Case]) -> Sequence[Case]:
        """Return the cases to run."""
        return full if self.scale >= 1 else full[:1]

    @property
    def repeats(self) -> int:
        """Number of times that a call is timed."""
        return 3 if self.scale >= 1 else 1


FULL = Size()


def ratio(
    what: str,
    our_result: float,
    rival_result: float,
    rival: str,
    target: float | None = None,
    unit: str = "s",
) -> Line:
    """Return the line of one comparison.

    Parameters
    ----------
    what : str
        Description of the work.
    our_result, rival_result : float
        Measured results.
    rival : str
        Name of the competing implementation.
    target : float or None
        Largest ratio that meets the target.
    unit : str
        Unit of the results.
    """
    met = None if target is None else our_result / rival_result <= target
    target_text = "" if target is None else f"<= {target}x"
    measured = f"{our_result:.3g} {unit}, **{our_result / rival_result:.2f}x**"
    return Line(what, measured, f"{rival} {rival_result:.3g} {unit}", target_text, met)


def medians(
    calls: Mapping[str, Callable[[], object]],
    repeats: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return the median seconds of calls that are made in turn, so that load affects all equally.

    All calls are made once before, to compile code and to fill caches.

    Parameters
    ----------
    calls : mapping of str to callable
        Calls to time.
    repeats : int
        Number of measurements per call.
    clock : callable
        CPU seconds by default. `time.perf_counter` measures wall-clock time.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            started = clock()
            call()
            if turn:
                spent[name].append(clock() - started)
    return {name: sorted(times)[len(times) // 2] for name, times in spent.items()}


#: Program of a process that calls a function and prints its result as JSON.
_CALL = """
import importlib, json, sys
module, name, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))
"""


def call_command(function: Callable[..., Any], *arguments: str | int) -> list[str]:
    """Return the command line of a process that calls a function and prints its result as JSON."""
    words = (function.__module__, function.__name__, json.dumps(arguments))
    return [sys.executable, "-c", _CALL, *words]


def in_fresh_process(
    function: Callable[..., Any], *arguments: str | int, threads: int = 1
) -> dict[str, float]:
    """Call a function in a separate process with a number of threads and return its result."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = call_command(function, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{function.__name__}{arguments} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def command(*words: str) -> None:
    """Run a command of fedtrees in a separate process.

    Raises
    ------
    CalledProcessError
        If the command fails.
    """
    arguments = [sys.executable, "-m", "fedtrees.cli.main", *words]
    subprocess.run(arguments, check=True, capture_output=True)


def children_seconds() -> float:
    """Return the CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def high_water_mib() -> float:
    """Return the peak memory since this program was started or since the last reset, in MiB.

    In contrast to `peak_mib`, it does not include the memory of the process that started this one.
    """
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return peak_mib()


def markdown(lines: list[Line]) -> str:
    """Format lines as a Markdown table without empty columns."""
    word = {True: "yes", False: "**no**", None: ""}
    rows = [("what", "measured", "compared with, same run", "target", "met")]
    rows += [(x.what, x.measured, x.rival_result, x.target, word[x.met]) for x in lines]
    filled = [i for i in range(5) if i < 2 or any(row[i] for row in rows[1:])]
    text = ["| " + " | ".join(row[i] for i in filled) + " |" for row in rows]
    return "\n".join([text[0], "|" + "---|" * len(filled), *text[1:]])
