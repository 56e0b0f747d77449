"""Compile functions with numba, and keep the machine code between runs.

numba stores machine code next to the source, or else below the home folder. If it can write to
neither, as in a read-only installation, the machine code is stored in a temporary folder.
"""

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, **options: Any) -> F:
    """Return a function over arrays and scalars that numba compiles when it is first called.

    Parameters
    ----------
    function : callable
        A function in the part of Python that numba compiles.
    **options
        Options of `numba.njit`.
    """
    stored = numba.njit(cache=True, nogil=True, **options)
    try:
        return cast(F, stored(function))
    except RuntimeError:  # numba has no folder that it can write to
        if _store_for_this_run():
            return cast(F, stored(function))
        return cast(F, numba.njit(nogil=True, **options)(function))


def _store_for_this_run() -> bool:
    """Let numba store machine code in a new temporary folder; return whether there is one.

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
