"""Count the kernels that numba compiles while a command runs, in all of its processes.

The processes of a bench and of its attacks store each compiled kernel in a file, so that the number
of new files is the number of compiled kernels.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from fedtrees.isolation.kernels import folders

_SUFFIX = ".nbc"  # numba writes one such file for each kernel and signature
_INTERVAL = 1.0  # seconds between two counts


def cache_folders() -> list[Path]:
    """Return the folders in which numba may store kernels of fedtrees."""
    packages = [
        Path(p) for n in ("fedtrees", "fedtrees.attacks") for p in import_module(n).__path__
    ]
    sources = {path.parent for package in packages for path in package.rglob("*.py")}
    below = {
        path for folder in folders() if folder.is_dir() for path in (folder, *folder.iterdir())
    }
    return [*(source / "__pycache__" for source in sources), *below]


def stored_kernels(caches: list[Path]) -> int:
    """Return the number of kernels that folders contain."""
    count = 0
    for folder in caches:
        with suppress(OSError):  # not there yet
            count += sum(name.endswith(_SUFFIX) for name in os.listdir(folder))
    return count


@contextmanager
def watching(compiled: Callable[[int], None], interval: float = _INTERVAL) -> Iterator[None]:
    """Call a function with the number of kernels compiled so far, whenever it has changed.

    Parameters
    ----------
    compiled : callable
        Called from another thread while the body runs. If all kernels that the body needs are
        stored already, it is never called.
    interval : float
        Seconds between two counts.
    """
    caches, ended = cache_folders(), threading.Event()
    before = stored_kernels(caches)

    def watch() -> None:
        last = 0
        while not ended.wait(interval):
            count = stored_kernels(caches) - before
            if count > last:
                last = count
                compiled(count)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
