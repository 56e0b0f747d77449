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

#: Bytes that an attack may take besides those of the process that it is a copy of. A larger
#: ``--memory`` replaces it.
MEMORY = 8 * 2**30
#: Bytes of the largest file that an attack may write.
FILE = 2**26
#: Threads and processes of this user from which on an attack starts no more threads.
THREADS = 4096


def limit_resources(seconds: float) -> None:
    """Limit this process for the rest of its life.

    Parameters
    ----------
    seconds : float
        Seconds that are left of the time limit under which the attack runs, 0 if there is none. The
        process is killed (SIGXCPU) once it has used as much CPU time on every core.
    """
    if resource is None:
        return
    _lower("RLIMIT_CORE", 0)
    _lower("RLIMIT_FSIZE", FILE)
    _lower("RLIMIT_NPROC", THREADS)
    if sys.platform == "linux":  # elsewhere, the addresses in use cannot be counted
        _lower("RLIMIT_AS", _addresses() + memory())
    if seconds > 0:
        _lower("RLIMIT_CPU", math.ceil(seconds * _cores()) + 1, grace=5)


def memory() -> int:
    """Return the bytes that an attack may take: at least `MEMORY`, and all that ``--memory`` gives.

    A worker with ``--memory`` has this limit on its data, and processes that it starts inherit it.
    """
    assert resource is not None
    given = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return MEMORY if given == resource.RLIM_INFINITY else max(MEMORY, given)


def explain(err: BaseException) -> str:
    """Return the limit that an error is due to as a half sentence, "" if it is due to none."""
    number = getattr(err, "errno", None)
    if isinstance(err, MemoryError) and resource is not None:
        return (
            f"; an attack may take {memory() / 2**30:.0f} GiB of memory, or what --memory GIB gives"
        )
    if number == errno.EFBIG:
        return f"; a file of an attack may have {FILE // 2**20} MiB"
    return ""


def _lower(name: str, value: int, grace: int = 0) -> None:
    """Set a soft limit, and a hard one above it by `grace`, unless the present one is lower."""
    kind = getattr(resource, name, None)
    if kind is None:
        return
    present = resource.getrlimit(kind)[1]
    if present == resource.RLIM_INFINITY or present > value + grace:
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value + grace))


def _addresses() -> int:
    """Return the bytes of addresses that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
