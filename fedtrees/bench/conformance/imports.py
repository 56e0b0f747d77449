"""Check the imports of an attack, and the effects of importing a plug-in file."""

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
    """Check that importing the file of a plug-in does nothing but register plug-ins.

    The file is imported in the process of attacks, which contains no ground truth, so that its
    effects do no harm.
    """
    module = sys.modules.get(type(thing).__module__)
    file = thing.file if isinstance(thing, Elsewhere) else getattr(module, "__file__", None)
    digests = {str(Path(path)): digest for path, digest in loaded_plugins()}
    if file is None or str(file) not in digests:
        return
    effects = attacks().describe(str(file), digests[str(file)], bait=True).did
    effects = dict.fromkeys([*(thing.did if isinstance(thing, Elsewhere) else ()), *effects])
    yield Finding("its import does nothing but register", not effects, "; ".join([*effects][:6]))


def imports_of(attack: Attack) -> set[str]:
    """Return the modules that an attack imports.

    The source of a plug-in attack is parsed without running it.
    """
    if not isinstance(attack, Elsewhere):
        return _imports(sys.modules[type(attack).__module__])
    return _named_imports(Path(attack.file).read_text(encoding="utf-8"))


def _named_imports(source: str) -> set[str]:
    """Return the modules that import statements in a source name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return names


def _imports(module: ModuleType, seen: set[str] | None = None) -> set[str]:
    """Return the modules that a module imports, following modules of the same package."""
    seen = set() if seen is None else seen
    seen.add(module.__name__)
    names = _named_imports(inspect.getsource(module))
    package = module.__name__.rpartition(".")[0]
    for name in list(names):
        neighbour = sys.modules.get(name)
        if (
            package
            and neighbour is not None
            and name.startswith(f"{package}.")
            and name not in seen
        ):
            names |= _imports(neighbour, seen)
    return names
