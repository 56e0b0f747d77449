"""Machine code of compiled kernels: brought in before a process is copied, or asked for by it.

numba keeps it in files that whoever runs a kernel loads, the bench too. So a copy reads them and
writes none: what is not there is compiled by the process that it was copied from, which runs no
attack.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

MOST_ORDER = 4096  # bytes of what a copy asks for
_ASKED = (
    "fedtrees.attacks.",
    "fedtrees.guessing.",
    "fedtrees.trees.",
)  # where attacks' kernels are

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


def folders() -> list[Path]:
    """Return where numba may keep machine code that is not beside its source."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(cache) / "numba", *([Path(named)] if named else [])]


def only_read(ask: Callable[[bytes], bool]) -> None:
    """Let numba take machine code from files and write none, from here on.

    `ask`: Have a kernel compiled elsewhere (`compiled`) and tell whether it was: then it is read.
    """
    from numba.core import caching

    cache: Any = caching.Cache  # which numba has no types of
    locator: Any = caching._CacheLocator
    load, save = cache.load_overload, cache.save_overload

    def load_overload(self: Any, signature: Any, context: Any) -> Any:
        found = load(self, signature, context)
        order = _order(self._py_func, signature) if found is None else None
        return load(self, signature, context) if order and ask(order) else found

    def save_overload(self: Any, signature: Any, data: Any) -> None:
        try:
            save(self, signature, data)
        except OSError:  # as it should be
            return

    def ensure_cache_path(self: Any) -> None:
        path = self.get_cache_path()
        if isinstance(self, caching.UserProvidedCacheLocator | caching.UserWideCacheLocator):
            return  # it need hold nothing yet
        if not os.access(path, os.W_OK):  # which asks of the folder, whatever this process may do
            raise PermissionError(path)
        os.scandir(path).close()

    cache.load_overload, cache.save_overload = load_overload, save_overload
    locator.ensure_cache_path = ensure_cache_path


def compiled(order: bytes) -> bool:
    """Compile what a copy asks for, and let numba write it; tell whether it could be."""
    from numba.core.dispatcher import Dispatcher

    try:
        module, name, arguments = json.loads(order)
        if not module.startswith(_ASKED):
            return False
        kernel = getattr(import_module(module), name)
        if not isinstance(kernel, Dispatcher):
            return False
        kernel.compile(tuple(map(_type_of, arguments)))
    except Exception:  # then the copy does it for itself
        return False
    return True


def _order(function: Any, signature: Any) -> bytes | None:
    """Put into text what is to be compiled; None where a type is not one of `_told`."""
    try:
        arguments = [_told(kind) for kind in getattr(signature, "args", signature)]
        text = json.dumps([function.__module__, function.__qualname__, arguments])
    except TypeError:
        return None
    return text.encode() if len(text) <= MOST_ORDER else None


def _told(kind: Any) -> Any:
    """Tell a type of numbers, arrays of them, and tuples of both, named or not."""
    from numba.core import types

    if isinstance(kind, types.Array):
        return [str(kind.dtype), kind.ndim, kind.layout, kind.mutable, kind.aligned]
    if isinstance(kind, types.Number | types.Boolean) and not isinstance(kind, types.Literal):
        return str(kind)
    if isinstance(kind, types.BaseTuple):
        made: Any = kind
        named = getattr(made, "instance_class", None)
        of = [named.__module__, named.__qualname__] if named else []
        return {"tuple": of, "of": [_told(each) for each in made.types]}
    raise TypeError(kind)


def _type_of(told: Any) -> Any:
    from numba.core import types

    if isinstance(told, str):
        kind = getattr(types, told)
        if not isinstance(kind, types.Number | types.Boolean):
            raise TypeError(told)
        return kind
    if isinstance(told, dict):
        kinds = tuple(map(_type_of, told["of"]))
        tuples: Any = types.BaseTuple
        return tuples.from_types(kinds, _tuple_of(*told["tuple"]))
    dtype, ndim, layout, mutable, aligned = told
    return types.Array(_type_of(dtype), ndim, layout, readonly=not mutable, aligned=aligned)


def _tuple_of(module: str = "", name: str = "") -> Any:
    """Return a named tuple of modules with kernels; nothing else is imported."""
    if not module:
        return None
    found = getattr(import_module(module), name) if module.startswith(_ASKED) else None
    if not (isinstance(found, type) and issubclass(found, tuple)):
        raise TypeError(module, name)
    return found
