"""Check a protocol, defense, attack, behaviour or metric, for `fedtrees plugin check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from fedtrees.conformance.attacks import check_attack, check_behaviour, imported_cleanly
from fedtrees.conformance.defenses import check_defense
from fedtrees.conformance.metrics import check_metric
from fedtrees.conformance.protocols import check_protocol
from fedtrees.conformance.samples import Finding, small, trainable
from fedtrees.core.errors import describe_error
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec


def check(kind: str, spec: Spec, protocols: Sequence[str] | None = None) -> list[Finding]:
    """Check a registered plug-in against the rules of its kind.

    Parameters
    ----------
    kind : str
        "protocol", "defense", "attack" or "behaviour".
    spec : Spec
        Name and parameters.
    protocols : sequence of str or None
        Protocols with which a defense, an attack or a behaviour is checked. None: all that can be
        trained here.

    Returns
    -------
    findings : list of Finding
        One finding per rule. An exception is a finding, too.
    """
    names = trainable() if protocols is None else protocols
    checks: dict[str, Callable[[Any], Iterator[Finding]]] = {
        "protocol": check_protocol,
        "defense": lambda plugin: check_defense(plugin, names),
        "attack": lambda plugin: check_attack(plugin, spec, names),
        "behaviour": lambda plugin: check_behaviour(plugin, names),
        "metric": lambda plugin: check_metric(plugin, names),
    }
    findings: list[Finding] = []
    try:
        if kind == "protocol":
            spec = small(spec)
        # A behaviour is a class whose instances are parties that a protocol creates.
        constructible = kind != "behaviour"
        plugin = register.make(kind, spec) if constructible else register.get(kind, spec.name)
        for finding in chain(imported_cleanly(plugin), checks[kind](plugin)):
            findings.append(finding)
    except Exception as err:
        findings.append(Finding("it can be constructed and run", False, describe_error(err)))
    return findings
