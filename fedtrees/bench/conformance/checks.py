"""Check protocols, defenses, attacks, behaviours and metrics against rules: `fedtrees check`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from fedtrees.bench.conformance.attacks import check_attack
from fedtrees.bench.conformance.behaviours import check_behaviour
from fedtrees.bench.conformance.defenses import check_defense
from fedtrees.bench.conformance.findings import Finding
from fedtrees.bench.conformance.imports import imported_cleanly
from fedtrees.bench.conformance.metrics import check_metric
from fedtrees.bench.conformance.protocols import check_protocol
from fedtrees.bench.conformance.samples import small, trainable
from fedtrees.core.errors import FedtreesError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec


def check(kind: str, spec: Spec, protocols: Sequence[str] | None = None) -> list[Finding]:
    """Check one registered thing against the rules of its kind.

    `protocols`: What a defense or an attack is checked beside; None is every protocol there is.
    """
    beside = trainable() if protocols is None else protocols
    checks: dict[str, Callable[[Any], Iterator[Finding]]] = {
        "protocol": check_protocol,
        "defense": lambda made: check_defense(made, beside),
        "attack": lambda made: check_attack(made, spec, beside),
        "behaviour": lambda made: check_behaviour(made, beside),
        "metric": lambda made: check_metric(made, beside),
    }
    found: list[Finding] = []
    try:
        if kind == "protocol":
            spec = small(spec)
        whole = kind != "behaviour"  # which is of a party that a protocol makes
        made = register.make(kind, spec) if whole else register.get(kind, spec.name)
        for finding in chain(imported_cleanly(made), checks[kind](made)):
            found.append(finding)
    except Exception as err:
        text = str(err) if isinstance(err, FedtreesError) else f"{type(err).__name__}: {err}"
        found.append(Finding("it can be constructed and run", False, text))
    return found
