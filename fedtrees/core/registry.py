"""Names to classes: decorators, entry points, and plugin files.

The built-in protocols, defenses, attacks and datasets use the same entry points as other
people's packages: groups ``fedtrees.protocols``, ``.defenses``, ``.attacks``, ``.metrics`` and
``.datasets``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import Spec

Registered = TypeVar("Registered", bound=Callable[..., Any])
PLUGIN = "fedtrees_plugin_"  # what modules of plugin files begin with
KINDS = ("protocol", "defense", "attack", "metric", "dataset")


class Registry:
    """Everything that has a name on the command line."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Callable[..., Any]]] = {kind: {} for kind in KINDS}
        self._origin: dict[tuple[str, str], str] = {}

    def protocol(self, name: str) -> Callable[[Registered], Registered]:
        """Register a protocol class."""
        return self._register("protocol", name)

    def defense(self, name: str) -> Callable[[Registered], Registered]:
        """Register a defense class."""
        return self._register("defense", name)

    def attack(self, name: str) -> Callable[[Registered], Registered]:
        """Register an attack class."""
        return self._register("attack", name)

    def metric(self, name: str) -> Callable[[Registered], Registered]:
        """Register a metric class."""
        return self._register("metric", name)

    def dataset(self, name: str) -> Callable[[Registered], Registered]:
        """Register a function that loads a dataset."""
        return self._register("dataset", name)

    def _register(self, kind: str, name: str) -> Callable[[Registered], Registered]:
        def mark(thing: Registered) -> Registered:
            origin = f"{thing.__module__}:{thing.__qualname__}"
            known = self._origin.setdefault((kind, name), origin)
            if known != origin:
                raise UsageError(f"{kind} {name!r} is already defined by {known}; rename {origin}")
            if isinstance(thing, type):
                thing.name = name  # type: ignore[attr-defined]
            self._known[kind][name] = thing
            return thing

        return mark

    def names(self, kind: str) -> list[str]:
        """Return all names of a kind, without importing what they stand for."""
        return sorted({*self._known[kind], *(e.name for e in _entries(kind))})

    def get(self, kind: str, name: str) -> Callable[..., Any]:
        """Return the class or loader of that name.

        Raises
        ------
        UsageError
            If the name is unknown (with the closest known one), or its package does not import.
        """
        if name not in self._known[kind]:
            for entry in _entries(kind):
                if entry.name == name:
                    try:
                        self._known[kind].setdefault(name, entry.load())
                    except ImportError as err:
                        raise UsageError(f"{kind} {name!r} ({entry.value}): {err}") from err
        if name not in self._known[kind]:
            raise UsageError(f"unknown {kind} {name!r}{did_you_mean(name, self.names(kind))}")
        return self._known[kind][name]

    def make(self, kind: str, spec: Spec) -> Any:
        """Construct what a spec names, with its parameters.

        Raises
        ------
        UsageError
            If a parameter is unknown or missing, or its value is refused.
        """
        maker = self.get(kind, spec.name)
        parameters = inspect.signature(maker).parameters
        for key in spec.params:
            if key not in parameters:
                raise UsageError(
                    f"{kind} {spec.name!r} has no parameter {key!r}{did_you_mean(key, parameters)}"
                )
        for key, parameter in parameters.items():
            if parameter.default is parameter.empty and key not in spec.params:
                raise UsageError(f"{kind} {spec.name!r} needs a value: {spec.name}[{key}=...]")
        try:
            return maker(**spec.params)
        except (UsageError, TypeError) as err:
            raise UsageError(f"{spec}: {err}") from err


@cache  # what is installed does not change under a process, and reading it takes 5 ms
def _entries(kind: str) -> tuple[Any, ...]:
    return tuple(entry_points(group=f"fedtrees.{kind}s"))


register = Registry()


def loaded_plugins() -> tuple[tuple[str, str], ...]:
    """Return path and sha256 of every plugin file in use, in the order in which they came."""
    plugins = (m for name, m in sys.modules.items() if name.startswith(PLUGIN))
    return tuple((str(m.__file__), str(vars(m)["__sha256__"])) for m in plugins)


def load_plugin(path: str | Path, sha256: str = "") -> str:
    """Run a Python file so that its ``@register`` decorators take effect; return its sha256.

    Raises
    ------
    UsageError
        If the file does not exist, does not import, or is not the one with the sha256 given.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise UsageError(f"plugin {str(path)!r} is not a file")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if sha256 not in ("", digest):
        raise UsageError(f"plugin {str(path)!r} was changed after it was loaded; start again")
    name = f"{PLUGIN}{digest[:12]}"
    if name in sys.modules:
        return digest
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"plugin {str(path)!r} is not a Python file; give a path ending in .py")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__sha256__"] = digest
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UsageError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as err:
        del sys.modules[name]
        raise UsageError(f"plugin {str(path)!r}: {type(err).__name__}: {err}") from err
    return digest
