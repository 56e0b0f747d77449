"""Compile numerical kernels with numba, each of them once per machine.

numba stores machine code in files next to the source, so that later processes load it. Two
processes that start at the same time would nevertheless compile the same kernel twice, because the
files of neither are complete yet. The decorators of this module therefore let one process compile
while the remaining processes wait for its file lock. They then load the stored code.

numba compiles the stored code again when the source file of a kernel changes, but not when the
source file of another kernel changes that it calls, although its code contains the code of the
other kernel. The decorators therefore let stored code depend on the files of all these kernels.

If numba can write neither next to the source nor below the home folder, as in a read-only
installation, the machine code is stored in a temporary folder.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba

_compiler: Any = numba.njit  # the type annotations of numba lack the options for wrappers

F = TypeVar("F", bound=Callable[..., Any])

# With error_model="numpy" a division by zero gives an infinity or NaN, as in NumPy: the kernels
# guard their divisions explicitly, and a hidden branch would slow down every loop. The wrapper for
# callers written in C is not needed, and it takes a tenth of the time of a compilation.
_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_LONGEST_WAIT = 60.0  # seconds. On a loaded machine, the largest kernel compiles in 15.
_POLL_INTERVAL = 0.02  # seconds


def kernel(function: F) -> F:
    """Compile a function over arrays and scalars that Python code calls."""
    return cast(F, _compile_once(_compile_lazily(function, **_OPTIONS)))


def inner_kernel(function: F) -> F:
    """Compile a function that only other kernels call.

    The wrapper that converts Python objects is left out. For a function with many arrays among its
    arguments this wrapper takes most of the time of a compilation. A call from Python would crash
    the process, so that `tests/core/test_compilation.py` checks that there is none.
    """
    return cast(F, _compile_once(_compile_lazily(function, no_cpython_wrapper=True, **_OPTIONS)))


def _compile_lazily(function: Any, **options: Any) -> Any:
    """Return a function that numba compiles when it is first called, and whose code it stores."""
    try:
        return _compiler(**options)(function)
    except RuntimeError:  # numba has no folder that it can write to
        if not _store_for_this_run():
            options = {**options, "cache": False}
        return _compiler(**options)(function)


def _store_for_this_run() -> bool:
    """Let numba store machine code in a new temporary folder. Return whether there is one.

    Processes that this one starts use the same folder. It is removed when this process ends.
    """
    try:
        folder = tempfile.mkdtemp(prefix="fedtrees-numba-")
    except OSError:
        return False
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]
    atexit.register(_remove, folder, os.getpid())
    warnings.warn(
        "compiled kernels can be stored neither next to the installation nor below the home "
        f"folder; this run stores them in {folder} and removes them at its end. Set "
        "NUMBA_CACHE_DIR to a folder that you can write to, so that the next run starts faster",
        RuntimeWarning,
        stacklevel=5,
    )
    return True


def _remove(folder: str, creator: int) -> None:
    """Remove a folder at the end of the process that created it, but not of its forks."""
    if os.getpid() == creator:
        shutil.rmtree(folder, ignore_errors=True)


def _compile_once(dispatcher: Any) -> Any:
    """Let a dispatcher wait for another process that compiles the same function."""
    if not hasattr(dispatcher._cache, "_cache_file"):
        return dispatcher  # its code is not stored
    compile_signature = dispatcher.compile

    def compile_alone(signature: Any) -> Any:
        with _file_lock(dispatcher._cache):
            return compile_signature(signature)  # loads the code if another process stored it

    dispatcher.compile = compile_alone
    dispatcher.source_files = _source_files(dispatcher.py_func)
    stored = dispatcher._cache._cache_file
    stored._source_stamp = (stored._source_stamp, *map(_stamp, dispatcher.source_files))
    return dispatcher


def _source_files(function: Any) -> list[str]:
    """Return the files of a kernel and of the kernels that it calls, directly or through others.

    The called kernels are found by their names: globals of the module, or attributes of a module
    that is a global. They are complete when the kernel is decorated, because a kernel that is
    defined later is in the same file.
    """
    code = function.__code__
    files = {code.co_filename}
    values = [function.__globals__.get(name) for name in code.co_names]
    modules = [value for value in values if isinstance(value, ModuleType)]
    values += [getattr(module, name, None) for module in modules for name in code.co_names]
    for value in values:
        files.update(getattr(value, "source_files", ()))
    return sorted(files)


@cache
def _stamp(file: str) -> tuple[float, int] | None:
    """Return the time of the last change and the size of a source file, in seconds and bytes.

    The result is None for source code that is in no file, such as a cell of a notebook.
    """
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime, status.st_size


@contextmanager
def _file_lock(function_cache: Any) -> Iterator[None]:
    """Lock the file that lists the stored code of one function while the body runs.

    The body runs without a lock in two cases. If this process may not write to the folder, it
    stores nothing that another process could load. If another process still has the lock after
    `_LONGEST_WAIT` seconds, that process may have been suspended.
    """
    index = Path(function_cache._cache_file._index_path)
    try:
        index.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(index.with_suffix(".lock"), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        _wait_for(lock)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int) -> None:
    """Wait until this process has the lock of an open file, at most `_LONGEST_WAIT` seconds.

    A record lock (`fcntl.lockf`) belongs to this process. The copies that it makes of itself by
    `os.fork` do not inherit it, in contrast to `fcntl.flock`.
    """
    end = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < end:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_INTERVAL)
        except OSError:  # this file system has no locks
            return
        else:
            return
