"""Describe how to configure a recipe in other systems that run it, such as NVFlare or XGBoost.

The text is built from the attribute ``deployed`` of protocols and defenses.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedtrees.core.deployment import Deployed
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec, parse_one
from fedtrees.core.supported import SYSTEMS, name_versions


def systems() -> tuple[str, ...]:
    """Return the names of the systems that run at least one registered protocol."""
    protocols = (register.get("protocol", name) for name in register.names("protocol"))
    return tuple(sorted({system for protocol in protocols for system in protocol.deployed}))  # type: ignore[attr-defined]


def runs_in(system: str, protocol: Spec, defenses: Sequence[Spec] = ()) -> bool:
    """Return whether a system supports a protocol with its parameters and all given defenses."""
    return all(
        support is not None and support.takes(values)
        for support, values in _supports(system, protocol, defenses)
    )


def settings(protocol: str, defense: str) -> Iterator[str]:
    """Yield one text per system that runs a recipe: its settings and the tested versions.

    Protocol and defense are given in the notation of the command line.
    """
    first, parts = parse_one(protocol).parts[0], parse_one(defense).parts
    for system in systems():
        if runs_in(system, first, parts):
            texts = [
                support.settings(values)
                for support, values in _supports(system, first, parts)
                if support is not None
            ]
            text = ". And: ".join(texts).removesuffix(".")
            yield f"In {system}: {text}. {name_versions(SYSTEMS.get(system, ()))}"


def _supports(
    system: str, protocol: Spec, defenses: Sequence[Spec]
) -> Iterator[tuple[Deployed | None, Mapping[str, Any]]]:
    """Yield the support of a system for each part of a recipe, and the parameters of the part.

    The support is None if the system lacks the part or the part is not registered.
    """
    for kind, spec in (("protocol", protocol), *(("defense", part) for part in defenses)):
        if spec.name in register.names(kind):
            plugin: Any = register.make(kind, spec)
            yield plugin.deployed.get(system), getattr(plugin, "parameters", vars(plugin))
        else:
            yield None, {}
