"""Check that the extras are installed that a protocol and its defenses need."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from fedtrees.core.counts import listed
from fedtrees.core.errors import INSTALL, UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Composed, Spec


def check_extras(protocol: Spec | None, defense: Composed) -> None:
    """Raise `UsageError` if an extra is missing that a protocol or its defense needs.

    The message names the protocol or defense, the module and the command that installs the extra.

    Parameters
    ----------
    protocol : Spec or None
        None to check a defense only.
    defense : Composed
        ``Composed()`` for no defense.
    """
    needs = {} if protocol is None else {protocol.name: missing_extras(protocol, Composed())}
    needs |= {spec.name: missing_modules(_needs("defense", spec)) for spec in defense.parts}
    missing = {name: modules for name, modules in needs.items() if modules}
    if missing:
        raise UsageError(install_text(missing))


def missing_extras(protocol: Spec, defense: Composed) -> list[str]:
    """Return the modules of extras that a protocol and a defense need and that are missing."""
    parts = [module for spec in defense.parts for module in _needs("defense", spec)]
    return missing_modules([*_needs("protocol", protocol), *parts])


def missing_modules(modules: Sequence[str]) -> list[str]:
    """Return the names of modules that are not installed."""
    return [module for module in modules if find_spec(module) is None]


def install_text(missing: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence on missing modules, and the commands that install their extras.

    Parameters
    ----------
    missing : mapping of str to sequence of str
        Missing modules by the name of the protocol or defense that needs them.
    """
    modules = dict.fromkeys(module for names in missing.values() for module in names)
    verb = "needs" if len(missing) == 1 else "need"
    how = "; ".join(dict.fromkeys(INSTALL.get(m, f"pip install {m}") for m in modules))
    return f"{listed([*missing])} {verb} {listed([*modules])}, not installed: {how}"


def _needs(kind: str, spec: Spec) -> tuple[str, ...]:
    """Return the modules of extras that a registered protocol or defense declares."""
    # The modules of a defense can depend on its parameters.
    owner = register.make(kind, spec) if kind == "defense" else register.get(kind, spec.name)
    return tuple(getattr(owner, "needs", ()))
