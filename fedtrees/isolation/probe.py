"""Try, in the process of an attack, the operations that no attack should be able to do.

`fedtrees doctor` prints the result. Every attempt is harmless if it is not refused: system calls
receive descriptors, process numbers and addresses that do not exist.
"""

import ctypes
import errno
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from fedtrees.isolation import sandbox

#: Arguments of a call without effect: -1 is no descriptor, no process and no address.
_HARMLESS = (-1, 0, 0, 0, 0, 0)
# linux/fcntl.h and linux/fs.h: test a lock, set the owner of signals, set a hint, set flags.
_GET_LOCK, _SET_OWNER, _SET_HINT, _SET_FLAGS = 5, 8, 1036, 0x40086602
_X32, _GETPID = 0x40000000, 39


def probed(file: str, bench: int) -> dict[str, bool]:
    """Return, for every attempt, whether it was refused.

    Parameters
    ----------
    file : str
        A file in a folder that is like a run folder.
    bench : int
        Number of the process that contains the truth.
    """
    attempts = _attempts(file, bench)
    refused = {name: _is_refused(attempt) for name, attempt in attempts.items()}
    return refused | {use: all(map(_call_refused, names)) for use, names in _uses().items()}


def _attempts(file: str, bench: int) -> dict[str, Callable[[], object]]:
    """Return the attempts by name."""
    shared = Path("/dev/shm" if Path("/dev/shm").is_dir() else os.path.dirname(file))
    return {
        "read files of runs": lambda: Path(file).read_bytes(),
        "list their folders": lambda: os.listdir(os.path.dirname(file)),
        "leave files": lambda: _create_file(shared / f"fedtrees-{secrets.token_hex(8)}"),
        "read the command line": lambda: Path(f"/proc/{bench}/cmdline").read_bytes(),
        "read the memory": lambda: Path(f"/proc/{bench}/mem").open("rb").close(),
        "signal the bench": lambda: os.kill(bench, 0),
        "limit the bench": lambda: _call("prlimit64", bench),
        "use the network": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
        "open local sockets": lambda: socket.socketpair()[0].close(),
        "start processes": _fork,
        "lock files": lambda: _call("fcntl", 0, _GET_LOCK),
        "have signals sent": lambda: _call("fcntl", 0, _SET_OWNER, bench),
        "leave hints on files": lambda: _call("fcntl", -1, _SET_HINT),
        "set flags of files": lambda: _call("ioctl", -1, _SET_FLAGS),
        "use the x32 calls": lambda: _raw(_X32 + _GETPID),
    }


def _uses() -> dict[str, list[str]]:
    """Return the system calls to try, grouped by use.

    Empty if there is no list for this machine.
    """
    numbers = sandbox.call_numbers()
    uses = {
        use: [n for n in names if n in numbers] for use, names in sandbox.refused_uses().items()
    }
    return {use: names for use, names in uses.items() if names}


def _call_refused(name: str) -> bool:
    """Return whether a system call is refused."""
    return _is_refused(lambda: _call(name, *_HARMLESS))


def _call(name: str, *arguments: int) -> None:
    """Make a system call by its name. Raises `OSError` if it fails."""
    number = sandbox.call_numbers().get(name)
    if number is None:
        raise OSError(errno.EINVAL, f"{name} has no number on this machine")
    _raw(number, *arguments)


def _raw(number: int, *arguments: int) -> None:
    """Make a system call by its number. Raises `OSError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    six = (*arguments, *(0,) * (6 - len(arguments)))
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, six)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _fork() -> None:
    """Start a process and wait for it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _create_file(path: Path) -> None:
    """Create a file and remove it."""
    path.touch()
    path.unlink()


def _is_refused(attempt: Callable[[], object]) -> bool:
    """Return whether an attempt is refused: it is not permitted, or the kernel has no such call."""
    try:
        attempt()
    except PermissionError:
        return True
    # It fails for another reason, so that it may succeed with other arguments.
    except OSError as err:
        return err.errno == errno.ENOSYS
    return False
