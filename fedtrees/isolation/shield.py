"""Protect the memory of processes of the same user from each other (Linux only).

On other systems nothing is done. There, an attack can read the memory of its user's processes if
the system permits it.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LINUX = sys.platform == "linux"
# From linux/prctl.h and linux/capability.h.
_PDEATHSIG, _GET_DUMPABLE, _SET_DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 3, 4, 36, 38
_VERSION_3 = 0x20080522
_FILES = 0b1111  # chown, dac_override, dac_read_search, fowner: root can still read its files


def close_memory() -> None:
    """Prevent other processes from reading or tracing this one.

    A process that may trace every process is an exception.
    """
    _prctl(_SET_DUMPABLE, 0)


@contextmanager
def closed_memory() -> Iterator[None]:
    """Protect the memory of this process within the block."""
    before = _prctl(_GET_DUMPABLE)
    close_memory()
    try:
        yield
    finally:
        if before == 1:
            _prctl(_SET_DUMPABLE, 1)


def close_for_good() -> None:
    """Protect the memory of this process, and give up all rights to read that of other processes.

    This includes the rights of root.
    """
    close_memory()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if _LINUX:
        header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        if libc.capget(header, sets) == 0:
            # Effective and permitted rights. No rights are inherited.
            kept_rights = [sets[0] & _FILES, sets[1] & _FILES]
            libc.capset(header, (ctypes.c_uint32 * 6)(*kept_rights, 0, 0, 0, 0))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def adopt_descendants() -> None:
    """Become the parent of processes whose parent has ended."""
    _prctl(_SUBREAPER, 1)


def end_children() -> None:
    """Kill all children of this process, and their children after adopting them."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        while pids := listed.read_text().split():
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _prctl(option: int, value: int = 0) -> int:
    """Call prctl on Linux. Return -1 on other systems."""
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) if _LINUX else -1
