"""Restore the registry and the loaded modules after a test that loads plugins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedtrees.core import messages
from fedtrees.core.registry import register


@contextmanager
def registry_as_it_was() -> Iterator[None]:
    """Remove names, message types and modules of plugins that were loaded in the block.

    Modules of the package that were loaded in the block stay, because they do not run twice.
    """
    names_before = {kind: dict(names) for kind, names in register._known.items()}
    types, modules = dict(messages._TYPES), set(sys.modules)
    elsewhere_before = dict(register.imports.elsewhere)
    try:
        yield
    finally:
        for kind, names in register._known.items():
            for name in names.keys() - names_before[kind].keys():
                if not _of_package(names[name]):
                    del names[name]
                    register._origin.pop((kind, name), None)
            for name, thing in names_before[kind].items():
                names[name] = thing
        for name, message_class in list(messages._TYPES.items()):
            if name not in types and not _of_package(message_class):
                del messages._TYPES[name]
        messages._TYPES.update(types)
        register.imports.elsewhere = elsewhere_before
        for name in set(sys.modules) - modules:
            if name.startswith("fedtrees_plugin_"):
                del sys.modules[name]


def _of_package(thing: object) -> bool:
    """Return whether an object is defined in the package."""
    return str(getattr(thing, "__module__", "")).startswith("fedtrees.")
