"""What keeps processes of the same user out of one another's memory; Linux alone has it.

Elsewhere, nothing is done: there an attack may read the memory of its user's processes if the
system lets it.
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
_FILES = 0b1111  # chown, dac_override, dac_read_search, fowner: root goes on reading its files


def close_memory() -> None:
    """Let no other process read or trace this one, unless it may trace any."""
    _prctl(_SET_DUMPABLE, 0)


@contextmanager
def closed_memory() -> Iterator[None]:
    """Close this process's memory in the block."""
    before = _prctl(_GET_DUMPABLE)
    close_memory()
    try:
        yield
    finally:
        if before == 1:
            _prctl(_SET_DUMPABLE, 1)


def close_for_good() -> None:
    """Close this process's memory, and give up every right to look into others', root's too."""
    close_memory()
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if _LINUX:
        header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        if libc.capget(header, sets) == 0:
            kept = [sets[0] & _FILES, sets[1] & _FILES]  # effective, permitted; none inherited
            libc.capset(header, (ctypes.c_uint32 * 6)(*kept, 0, 0, 0, 0))


def end_with_parent() -> None:
    """Be killed when the parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def adopt_descendants() -> None:
    """Become the parent of what ended children leave running."""
    _prctl(_SUBREAPER, 1)


def end_children() -> None:
    """Kill all children of this process, theirs too once they are adopted."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        while pids := listed.read_text().split():
            for pid in map(int, pids):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _prctl(option: int, value: int = 0) -> int:
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) if _LINUX else -1
