"""What an attack imports, and what the import of a plugin's file does."""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtrees.bench.conformance.findings import Finding
from fedtrees.core.attack import Attack
from fedtrees.core.registry import loaded_plugins
from fedtrees.isolation.plugins import Elsewhere
from fedtrees.isolation.process import attacks


def imported_cleanly(thing: Any) -> Iterator[Finding]:
    """See that the import of a plugin's file does nothing but register.

    It is imported beside a bench without truth, where what it changes does no harm.
    """
    here = sys.modules.get(type(thing).__module__)
    file = thing.file if isinstance(thing, Elsewhere) else getattr(here, "__file__", None)
    known = {str(Path(path)): digest for path, digest in loaded_plugins()}
    if file is None or str(file) not in known:
        return
    did = attacks().describe(str(file), known[str(file)], bait=True).did
    did = dict.fromkeys([*(thing.did if isinstance(thing, Elsewhere) else ()), *did])
    yield Finding("its import does nothing but register", not did, "; ".join([*did][:6]))


def imports_of(attack: Attack) -> set[str]:
    """Return the modules that an attack imports, whether its code is here or elsewhere."""
    if not isinstance(attack, Elsewhere):
        return _imports(sys.modules[type(attack).__module__])
    return _named_imports(Path(attack.file).read_text(encoding="utf-8"))


def _named_imports(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def _imports(module: ModuleType, seen: set[str] | None = None) -> set[str]:
    """Return the modules a module imports, following those beside it in its own package."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    found = _named_imports(inspect.getsource(module))
    package = module.__name__.rpartition(".")[0]
    for name in list(found):
        beside = sys.modules.get(name)
        if package and beside is not None and name.startswith(f"{package}.") and name not in seen:
            found |= _imports(beside, seen)
    return found
