"""Import a plug-in in the process of attacks, and describe its attacks and side effects.

Code of a file that is imported can change anything in its process. The process of attacks does not
have the ground truth. It imports the file there, and sends the bench a description of plain values,
from which `fedtrees.isolation.plugins` registers a class without code. `fedtrees check` also reads
the list of side effects.
"""

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
from fedtrees.core.wire import type_name
from fedtrees.isolation.watch import leaving

#: Modules that work with the ground truth in a bench. `fedtrees check` imports them before a
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


def described(file: str, digest: str, bait: bool) -> dict[str, Any]:
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

    The keys are the fields of `fedtrees.isolation.replies.AttackFacts`.
    """
    maker: Callable[..., Any] = register.get("attack", name)
    gives = getattr(maker, "gives", None)
    return {
        "name": name,
        "qualname": maker.__qualname__,
        "module": maker.__module__,
        "file": getsourcefile(maker) or "",
        "doc": getdoc(maker) or "",
        "parameters": tuple(map(_describe_parameter, signature(maker).parameters.values())),
        "blind": bool(getattr(maker, "blind", False)),
        "comparison": bool(getattr(maker, "comparison", False)),
        "candidates": bool(getattr(maker, "candidates", False)),
        "most_rows": getattr(maker, "most_rows", None),
        "gives": "" if gives is None else type_name(gives),
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
