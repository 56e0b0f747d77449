"""Machine code of compiled kernels, brought in before a process is copied."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

_prepared: set[str] = set()  # modules whose kernels are known
_kernels: dict[int, Any] = {}
_read: dict[Path, int] = {}  # index file -> when it was written, in nanoseconds


def prepare() -> None:
    """Let numba load whatever its cache on disk has for the kernels of fedtrees' loaded modules.

    A copy of this process then finds it in memory; otherwise each would spend a tenth of a second
    and more on it. What is not in the cache is compiled where it is needed, and found here the next
    time. numba has no public way to ask what is in its cache: where its own has changed, nothing is
    loaded.
    """
    if "numba" not in sys.modules:
        return
    from numba.core.dispatcher import Dispatcher

    if not _prepared:
        _start_numba()
    for name in [n for n in sys.modules if n.startswith("fedtrees.") and n not in _prepared]:
        _prepared.add(name)
        values = vars(sys.modules[name]).values()
        _kernels.update((id(v), v) for v in values if isinstance(v, Dispatcher))
    loaded = 0
    for kernel in _kernels.values():
        try:
            loaded += _load(kernel)
        except (AttributeError, TypeError, OSError):
            return
    if loaded:
        gc.freeze()  # a copy that collects garbage need not look through, and so copy, all of this


def _load(kernel: Any) -> int:
    cache = kernel._cache
    index = Path(cache._cache_file._index_path)
    if not index.exists() or _read.get(index) == (written := index.stat().st_mtime_ns):
        return 0
    _read[index] = written
    codegen = kernel.targetdescr.target_context.codegen()
    entries = cache._cache_file._load_index()
    fresh = [key[0] for key in entries if key == cache._index_key(key[0], codegen)]
    for signature in fresh:
        kernel.compile(signature)
    return len(fresh)


def _start_numba() -> None:
    """Compile something small: half a second that no copy pays again."""
    import numba

    numba.njit(lambda x: x)(1)
