"""What a plugin file registers and does when it is imported, in a process that holds no truth."""

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, getdoc, getsourcefile, signature
from types import ModuleType
from typing import Any

import numpy as np

from fedtrees.core.attack import claims_of
from fedtrees.core.registry import KINDS, PLUGIN, load_plugin, register
from fedtrees.core.values import type_name
from fedtrees.isolation.watch import leaving

#: What a bench has loaded beside truth: changed at import, it would work for whoever changed it.
BAIT = (
    "fedtrees.conformance.checks", "fedtrees.experiments.evaluate",
    "fedtrees.experiments.federation",
    "fedtrees.experiments.executor", "fedtrees.isolation.plugins", "fedtrees.metrics.records",
    "fedtrees.metrics.victims_rows", "fedtrees.protocols.views",
)  # fmt: skip
#: Beside the package's own modules, what everything goes through.
_COMMON = ("builtins", "gc", "io", "json", "numpy", "os", "pickle", "socket", "sys")
_PLAIN = (bool, int, float, str, type(None))


def described(file: str, digest: str, bait: bool) -> dict[str, Any]:
    """Import a plugin file and say what it registered, and what else it did (see `Did`)."""
    for name in BAIT if bait else ():
        import_module(name)
    before = {kind: set(register.names(kind)) for kind in KINDS}
    state, did = _state(), list[str]()
    with leaving(did):
        load_plugin(file, digest)
    did += _changes(state, _state())
    added = {kind: sorted(set(register.names(kind)) - before[kind]) for kind in KINDS}
    return {
        "attacks": tuple(facts_of(name) for name in added["attack"]),
        "others": tuple(f"{k} {n!r}" for k in KINDS if k != "attack" for n in added[k]),
        "did": tuple(did),
    }


def facts_of(name: str) -> dict[str, Any]:
    """Return what is told of an attack: its name, signature, marks, and where its code is."""
    maker: Callable[..., Any] = register.get("attack", name)
    gives = getattr(maker, "gives", None)
    return {
        "name": name,
        "qualname": maker.__qualname__,
        "module": maker.__module__,
        "file": getsourcefile(maker) or "",
        "doc": getdoc(maker) or "",
        "parameters": tuple(map(_parameter, signature(maker).parameters.values())),
        "blind": bool(getattr(maker, "blind", False)),
        "comparison": bool(getattr(maker, "comparison", False)),
        "candidates": bool(getattr(maker, "candidates", False)),
        "most_rows": getattr(maker, "most_rows", None),
        "gives": "" if gives is None else type_name(gives),
        "claims": tuple(map(type_name, claims_of(maker))),
    }


def _parameter(p: Parameter) -> tuple[str, bool, Any]:
    given = p.default is not p.empty
    return p.name, given, p.default if isinstance(p.default, _PLAIN) else str(p.default)


def _state() -> dict[str, int]:
    """Return what everybody in this process shares, by name: which object stands there."""
    found = {"threads": threading.active_count()}
    for name, module in list(sys.modules.items()):
        own = name.partition(".")[0] == "fedtrees" and not name.startswith(PLUGIN)
        if isinstance(module, ModuleType) and (own or name in _COMMON):
            for key, value in list(vars(module).items()):
                if isinstance(value, ModuleType) or key in ("__warningregistry__", "_"):
                    continue
                found[f"{name}.{key}"] = id(value)
                if own and isinstance(value, type) and value.__module__ == name:
                    found |= {f"{name}.{key}.{k}": id(v) for k, v in vars(value).items()}
    return found


def _changes(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return what stands where something else stood, or in our modules nothing, in words."""
    ours = {name.rpartition(".")[0] for name in before if name.startswith("fedtrees.")}
    return [
        f"changes {name}"
        for name, value in after.items()
        if before.get(name) != value and (name in before or name.rpartition(".")[0] in ours)
    ]


assert np  # loaded, so that it is seen when it is changed
