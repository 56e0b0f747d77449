"""Machine code of compiled kernels for the copies of the attack process.

numba stores machine code in files that every process loads, including the bench. A copy, which runs
an attack, must therefore not write such files. It reads them, or inherits loaded kernels from the
process from which it was forked. If a kernel is missing, that process, which runs no attack,
compiles it.

`report_compilation` counts the kernels that numba compiles while a command runs, in all of its
processes: each compiled kernel is stored in a file, so that the number of new files is the number
of compiled kernels.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

MOST_ORDER = 4096  # bytes of a request for a kernel
_ASKED = (
    "fedtrees.attacks.",
    "fedtrees.blind_baselines.",
    "fedtrees.trees.",
)  # packages that contain the kernels of attacks

_prepared: set[str] = set()  # modules whose kernels are listed in `_kernels`
_kernels: dict[int, Any] = {}
_read: dict[Path, int] = {}  # index file -> time of its last change, in nanoseconds


def prepare() -> None:
    """Let numba load the stored code of all kernels in loaded modules of fedtrees.

    A forked copy then has the code in memory. Otherwise each copy would spend at least a tenth of a
    second on loading it. A kernel without stored code is compiled where it is needed, and found
    here the next time. numba has no public function that lists its cache. If its internals have
    changed, nothing is loaded.
    """
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
        # Garbage collection in a copy then skips these objects, so that their memory pages are not
        # copied.
        gc.freeze()


def _load(kernel: Any) -> int:
    """Load the stored code of a kernel that was written since the last call.

    Return the number of signatures.
    """
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
    """Compile a small function to initialise numba, which takes half a second, before a fork."""
    import numba

    numba.njit(lambda x: x)(1)


def folders() -> list[Path]:
    """Return the folders of numba's machine code, besides those next to the source."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(cache) / "numba", *([Path(configured)] if configured else [])]


def only_read(ask: Callable[[bytes], bool]) -> None:
    """Let numba in this process read stored machine code, but write none.

    `ask` requests the compilation of a kernel from another process (`compiled`) and returns whether
    it was compiled.
    """
    from numba.core import caching

    cache: Any = caching.Cache  # numba has no type annotations for it
    locator: Any = caching._CacheLocator
    load, save = cache.load_overload, cache.save_overload

    def load_overload(self: Any, signature: Any, context: Any) -> Any:
        stored = load(self, signature, context)
        order = _order(self._py_func, signature) if stored is None else None
        return load(self, signature, context) if order and ask(order) else stored

    def save_overload(self: Any, signature: Any, data: Any) -> None:
        try:
            save(self, signature, data)
        except OSError:  # expected, because the process cannot write
            return

    def ensure_cache_path(self: Any) -> None:
        path = self.get_cache_path()
        if isinstance(self, caching.UserProvidedCacheLocator | caching.UserWideCacheLocator):
            return  # the folder need not exist yet
        # access() checks the permissions of the folder, independent of Landlock
        if not os.access(path, os.W_OK):
            raise PermissionError(path)
        os.scandir(path).close()

    cache.load_overload, cache.save_overload = load_overload, save_overload
    locator.ensure_cache_path = ensure_cache_path


def compiled(order: bytes) -> bool:
    """Compile the requested kernel and let numba store it. Return whether this succeeded."""
    from numba.core.dispatcher import Dispatcher

    try:
        module, name, arguments = json.loads(order)
        if not module.startswith(_ASKED):
            return False
        kernel = getattr(import_module(module), name)
        if not isinstance(kernel, Dispatcher):
            return False
        kernel.compile(tuple(map(_build_type, arguments)))
    except Exception:  # the copy then compiles the kernel itself
        return False
    return True


def _order(function: Any, signature: Any) -> bytes | None:
    """Return a request for the compilation of a kernel, None if a type is not supported."""
    try:
        arguments = [_describe_type(kind) for kind in getattr(signature, "args", signature)]
        text = json.dumps([function.__module__, function.__qualname__, arguments])
    except TypeError:
        return None
    return text.encode() if len(text) <= MOST_ORDER else None


def _describe_type(kind: Any) -> Any:
    """Return a type as plain values.

    Supported are numbers, arrays of numbers, and tuples of both, named or not.
    """
    from numba.core import types

    if isinstance(kind, types.Array):
        return [str(kind.dtype), kind.ndim, kind.layout, kind.mutable, kind.aligned]
    if isinstance(kind, types.Number | types.Boolean) and not isinstance(kind, types.Literal):
        return str(kind)
    if isinstance(kind, types.BaseTuple):
        tuple_type: Any = kind
        named_class = getattr(tuple_type, "instance_class", None)
        of = [named_class.__module__, named_class.__qualname__] if named_class else []
        return {"tuple": of, "of": [_describe_type(each) for each in tuple_type.types]}
    raise TypeError(kind)


def _build_type(description: Any) -> Any:
    """Return the type that plain values describe."""
    from numba.core import types

    if isinstance(description, str):
        kind = getattr(types, description)
        if not isinstance(kind, types.Number | types.Boolean):
            raise TypeError(description)
        return kind
    if isinstance(description, dict):
        kinds = tuple(map(_build_type, description["of"]))
        tuples: Any = types.BaseTuple
        return tuples.from_types(kinds, _find_tuple(*description["tuple"]))
    dtype, ndim, layout, mutable, aligned = description
    return types.Array(_build_type(dtype), ndim, layout, readonly=not mutable, aligned=aligned)


def _find_tuple(module: str = "", name: str = "") -> Any:
    """Return a named tuple of a module with kernels. No further module is imported."""
    if not module:
        return None
    tuple_class = getattr(import_module(module), name) if module.startswith(_ASKED) else None
    if not (isinstance(tuple_class, type) and issubclass(tuple_class, tuple)):
        raise TypeError(module, name)
    return tuple_class


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
def report_compilation(
    compiled: Callable[[int], None], interval: float = _INTERVAL
) -> Iterator[None]:
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
