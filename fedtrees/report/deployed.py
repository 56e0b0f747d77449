"""How a recipe is set in systems that run it, written from what protocols and defenses state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtrees.core.deployment import Deployed
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_one
from fedtrees.core.supported import SYSTEMS, name_versions


def systems() -> tuple[str, ...]:
    """Return the systems that run a protocol that is registered."""
    found = (register.get("protocol", name) for name in register.names("protocol"))
    return tuple(sorted({system for kind in found for system in kind.deployed}))  # type: ignore[attr-defined]


def runs_in(system: str, protocol: Spec, defenses: Sequence[Spec] = ()) -> bool:
    """Tell whether a system has a protocol with its parameters, and all of some defenses."""
    return all(of is not None and of.takes(told) for of, told in _parts(system, protocol, defenses))


def settings(protocol: str, defense: str) -> Iterator[str]:
    """Yield one text per system that runs a recipe: its settings, and the tested versions.

    `protocol, defense`: As on the command line.
    """
    first, parts = parse_one(protocol).parts[0], parse_one(defense).parts
    for system in systems():
        if runs_in(system, first, parts):
            told = [of.settings(p) for of, p in _parts(system, first, parts) if of is not None]
            text = ". And: ".join(told).removesuffix(".")
            yield f"In {system}: {text}. {name_versions(SYSTEMS.get(system, ()))}"


def _parts(
    system: str, protocol: Spec, defenses: Sequence[Spec]
) -> Iterator[tuple[Deployed | None, Mapping[str, Any]]]:
    """Yield what a system has of each, with the parameters; None of what is not registered here."""
    for kind, spec in (("protocol", protocol), *(("defense", part) for part in defenses)):
        if spec.name in register.names(kind):
            made: Any = register.make(kind, spec)
            yield made.deployed.get(system), getattr(made, "parameters", vars(made))
        else:
            yield None, {}
