"""Observe code of plug-ins: what it opens and changes, and which attacks a file registers.

Audit hooks record files, sockets and modules with ground truth that an attack opens. A plug-in file
is imported in the process of attacks, which does not have the ground truth, because its code can
change anything in its process. The bench receives a description of plain values, from which
`fedtrees.isolation.plugins` registers a class without code. `fedtrees plugin check` also reads the
list of side effects.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, getdoc, getsourcefile, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedtrees.core.attack import claims_of
from fedtrees.core.errors import PLUGIN
from fedtrees.core.registry import KINDS, load_plugin, register
from fedtrees.core.wire import type_name

HOLD_TRUTH = ("fedtrees.data", "fedtrees.metrics", "fedtrees.experiments", "fedtrees.report")
_CODE = (".py", ".pyc", ".nbi", ".nbc", ".so", ".pth")


@contextmanager
def record_access(touched: list[str] | None) -> Iterator[None]:
    """Record the files, sockets and modules that are opened in the block. None: do not watch.

    The audit hook detects mistakes, not attempts to hide: code can circumvent it on purpose. Python
    cannot remove an audit hook, so that it stays installed after the block and then does nothing.
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


#: Modules that work with the ground truth in a bench. `fedtrees plugin check` imports them before a
#: plug-in, because an import that changes one of them could manipulate the scores of a bench.
BAIT = (
    "fedtrees.conformance.checks", "fedtrees.experiments.evaluate",
    "fedtrees.experiments.federation",
    "fedtrees.experiments.executor", "fedtrees.isolation.plugins", "fedtrees.metrics.records",
    "fedtrees.metrics.victims_rows", "fedtrees.protocols.views",
)  # fmt: skip
#: Modules outside of fedtrees whose changes are detected, because most code uses them.
_COMMON = ("builtins", "gc", "io", "json", "numpy", "os", "pickle", "socket", "sys")
_PLAIN = (bool, int, float, str, type(None))  # types of defaults that are sent unchanged


def describe_plugin(file: str, digest: str, bait: bool) -> dict[str, Any]:
    """Import a plug-in file and describe what it registers, and its side effects.

    Parameters
    ----------
    file : str
        Path of the file.
    digest : str
        Its sha256, which must match.
    bait : bool
        Whether the modules in `BAIT` are imported before.

    Returns
    -------
    description : dict
        ``attacks`` contains the facts of each attack (`facts_of`), ``others`` the kind and the name
        of everything else that was registered, and ``did`` a short text for each side effect.
    """
    for name in BAIT if bait else ():
        import_module(name)
    before = {kind: set(register.names(kind)) for kind in KINDS}
    state, effects = _identify_objects(), list[str]()
    with leaving(effects):
        load_plugin(file, digest)
    effects += _list_changes(state, _identify_objects())
    added = {kind: sorted(set(register.names(kind)) - before[kind]) for kind in KINDS}
    return {
        "attacks": tuple(facts_of(name) for name in added["attack"]),
        "others": tuple(f"{k} {n!r}" for k in KINDS if k != "attack" for n in added[k]),
        "did": tuple(effects),
    }


def facts_of(name: str) -> dict[str, Any]:
    """Return the name, signature, attributes and source file of a registered attack.

    The keys are the fields of `fedtrees.isolation.transfer.AttackFacts`.
    """
    maker: Callable[..., Any] = register.get("attack", name)
    return {
        "name": name,
        "qualname": maker.__qualname__,
        "module": maker.__module__,
        "file": getsourcefile(maker) or "",
        "doc": getdoc(maker) or "",
        "parameters": tuple(map(_describe_parameter, signature(maker).parameters.values())),
        "blind": bool(getattr(maker, "blind", False)),
        "is_reference": bool(getattr(maker, "is_reference", False)),
        "receives_candidates": bool(getattr(maker, "receives_candidates", False)),
        "max_training_rows": getattr(maker, "max_training_rows", None),
        "supports_regression": bool(getattr(maker, "supports_regression", False)),
        "claims": tuple(map(type_name, claims_of(maker))),
    }


def _describe_parameter(p: Parameter) -> tuple[str, bool, Any]:
    """Return the name of a parameter, whether it has a default, and the default."""
    has_default = p.default is not p.empty
    return p.name, has_default, p.default if isinstance(p.default, _PLAIN) else str(p.default)


def _identify_objects() -> dict[str, int]:
    """Return the identity of every object that code of this process shares.

    These are the global names of the modules of fedtrees and of `_COMMON`, and the attributes of
    classes of fedtrees. The entry ``threads`` is the number of threads.
    """
    identities = {"threads": threading.active_count()}
    for name, module in list(sys.modules.items()):
        is_builtin = name.partition(".")[0] == "fedtrees" and not name.startswith(PLUGIN)
        if isinstance(module, ModuleType) and (is_builtin or name in _COMMON):
            for key, value in list(vars(module).items()):
                # Imports of submodules and new warnings change these names without any harm.
                if isinstance(value, ModuleType) or key in ("__warningregistry__", "_"):
                    continue
                identities[f"{name}.{key}"] = id(value)
                if is_builtin and isinstance(value, type) and value.__module__ == name:
                    identities |= {f"{name}.{key}.{k}": id(v) for k, v in vars(value).items()}
    return identities


def _list_changes(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return a short text for every name that refers to another object than before.

    In the modules and classes of fedtrees, new names count as changes, too.
    """
    scopes = {name.rpartition(".")[0] for name in before if name.startswith("fedtrees.")}
    return [
        f"changes {name}"
        for name, value in after.items()
        if before.get(name) != value and (name in before or name.rpartition(".")[0] in scopes)
    ]


assert np  # numpy is imported here, so that a plug-in that changes it is detected
