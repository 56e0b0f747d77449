"""What a plugin leaves behind in a process, and how a test takes it back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fedtrees.core import messages
from fedtrees.core.registry import register


@contextmanager
def registry_as_it_was() -> Iterator[None]:
    """Forget names, message types and modules that came from outside the package in the block.

    What the package itself loads in the block stays: its modules do not run a second time.
    """
    known = {kind: dict(names) for kind, names in register._known.items()}
    types, modules = dict(messages._TYPES), set(sys.modules)
    elsewhere = dict(register.elsewhere)
    try:
        yield
    finally:
        for kind, names in register._known.items():
            for name in names.keys() - known[kind].keys():
                if not _of_package(names[name]):
                    del names[name]
                    register._origin.pop((kind, name), None)
            for name, thing in known[kind].items():
                names[name] = thing
        for name, kept in list(messages._TYPES.items()):
            if name not in types and not _of_package(kept):
                del messages._TYPES[name]
        messages._TYPES.update(types)
        register.elsewhere = elsewhere
        for name in set(sys.modules) - modules:
            if name.startswith("fedtrees_plugin_"):
                del sys.modules[name]


def _of_package(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("fedtrees.")
