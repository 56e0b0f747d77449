"""Record what an attack opens: files, sockets, and modules that contain ground truth."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOLD_TRUTH = ("fedtrees.data", "fedtrees.metrics", "fedtrees.experiments", "fedtrees.report")
_CODE = (".py", ".pyc", ".nbi", ".nbc", ".so", ".pth")


@contextmanager
def watching(touched: list[str] | None) -> Iterator[None]:
    """Record the files, sockets and modules that are opened in the block. None: do not watch.

    An audit hook cannot be removed, and Python code can circumvent it on purpose. It detects
    mistakes.
    """
    if touched is None:
        yield
        return
    watched = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if not watched:
            return
        if event in ("socket.connect", "subprocess.Popen"):
            touched.append(event)
        elif event == "import" and str(arguments[0]).startswith(HOLD_TRUTH):
            touched.append(f"import {arguments[0]}")
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path = Path(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode())
            # Importing modules and loading numba's kernels are no search for the truth.
            if not (
                path.suffix in _CODE
                or "__pycache__" in path.parts
                or (str(path).startswith(("/proc", "/sys", "/dev")) and _SHARED not in path.parents)
            ):
                touched.append(f"open {path.name}")
        if name := _shared_by(event, arguments):
            shared.add(name)

    shared: set[str] = set()
    sys.addaudithook(note)
    before = _segments()
    try:
        yield
    finally:
        watched = False
        touched += _left(shared, before)


#: Events that start or reach something that outlives the block.
_LASTING = (
    "socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.system", "os.exec", "sys.addaudithook",
)  # fmt: skip
_SHARED = Path("/dev/shm")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


@contextmanager
def leaving(left: list[str]) -> Iterator[None]:
    """Record what a block leaves outside its process: files, shared memory, sockets, processes.

    Compiled code that Python itself writes is not recorded.
    """
    watched = True
    shared: set[str] = set()
    before = _segments()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if not watched:
            return
        if name := _shared_by(event, arguments):
            shared.add(name)
        if event in _LASTING:
            left.append(event)
        elif event == "open" and isinstance(arguments[0], (str, bytes)) and _writing(*arguments):
            path = Path(os.fsdecode(arguments[0]))
            written = path.suffix in _CODE or "__pycache__" in path.parts
            if not written and path.name[-4:] != "null" and not path.name.endswith(".tmp"):
                left.append(f"writes {path.name}")

    sys.addaudithook(note)
    try:
        yield
    finally:
        watched = False
        left += _left(shared, before)


def _writing(path: object, mode: object, flags: object) -> bool:
    """Return whether a file is opened for writing."""
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _shared_by(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the file in shared memory that an event of this process opens for writing or maps.

    Other processes have files in the same folder, so that new files in it are no evidence.
    """
    path = Path()
    if event == "mmap.__new__" and arguments[0] >= 0:
        try:
            path = Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
        except OSError:  # another operating system
            return None
    elif event == "open" and isinstance(arguments[0], (str, bytes)) and _writing(*arguments):
        path = Path(os.fsdecode(arguments[0]))
    return path.name if path.parent == _SHARED else None


def _left(shared: set[str], before: set[str]) -> list[str]:
    """Return the remaining files in shared memory, and the new segments."""
    remaining = {name for name in shared if (_SHARED / name).exists()} | (_segments() - before)
    return [f"leaves {name} in shared memory" for name in sorted(remaining)]


def _segments() -> set[str]:
    """Return the System V segments of shared memory that this process created."""
    try:
        lines = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    except OSError:  # another system, or a restricted process, which cannot create segments either
        return set()
    maker = lines[0].index("cpid")
    return {f"segment {line[1]}" for line in lines[1:] if line[maker] == str(os.getpid())}
