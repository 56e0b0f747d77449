"""Limit the memory, files, threads and CPU time of an attack's process (POSIX resource limits)."""

import errno
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

#: Memory of an attack in bytes, in addition to that of the process from which it was forked. A
#: larger ``--memory`` replaces it.
MEMORY = 8 * 2**30
#: Largest size of a file that an attack may write, in bytes.
FILE = 2**26
#: Number of threads and processes of this user above which an attack starts no more threads.
THREADS = 4096


def limit_resources(seconds: float) -> None:
    """Limit the resources of this process until it ends.

    Parameters
    ----------
    seconds : float
        Remaining seconds of the time limit of the attack, 0 if there is none. The process is killed
        (SIGXCPU) after this CPU time on every core.
    """
    if resource is None:
        return
    _lower("RLIMIT_CORE", 0)
    _lower("RLIMIT_FSIZE", FILE)
    _lower("RLIMIT_NPROC", THREADS)
    if sys.platform == "linux":  # on other systems, the used addresses cannot be counted
        _lower("RLIMIT_AS", _addresses() + memory())
    if seconds > 0:
        _lower("RLIMIT_CPU", math.ceil(seconds * _cores()) + 1, grace=5)


def memory() -> int:
    """Return the bytes that an attack may use: `MEMORY`, or the larger limit of ``--memory``.

    A worker with ``--memory`` has this limit on its data, and processes that it starts inherit it.
    """
    assert resource is not None
    data_limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return MEMORY if data_limit == resource.RLIM_INFINITY else max(MEMORY, data_limit)


def explain(err: BaseException) -> str:
    """Return the limit that caused an error as a clause, "" if no limit caused it."""
    number = getattr(err, "errno", None)
    if isinstance(err, MemoryError) and resource is not None:
        return (
            f"; an attack may take {memory() / 2**30:.0f} GiB of memory, or what --memory GIB gives"
        )
    if number == errno.EFBIG:
        return f"; a file of an attack may have {FILE // 2**20} MiB"
    return ""


def _lower(name: str, value: int, grace: int = 0) -> None:
    """Set a soft limit, and a hard limit that is larger by `grace`.

    A lower present limit is not changed.
    """
    kind = getattr(resource, name, None)
    if kind is None:
        return
    present = resource.getrlimit(kind)[1]
    if present == resource.RLIM_INFINITY or present > value + grace:
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value + grace))


def _addresses() -> int:
    """Return the number of bytes of addresses that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cores() -> int:
    """Return the number of processor cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
