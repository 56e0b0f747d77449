"""Check a protocol, defense, attack, behaviour or metric, for `fedtrees plugin check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import isnan
from typing import Any

from fedtrees.conformance.attacks import check_attack, check_behaviour, imported_cleanly
from fedtrees.conformance.defenses import check_defense
from fedtrees.conformance.protocols import check_protocol
from fedtrees.conformance.samples import (
    Finding,
    make_small_protocol,
    sample_table,
    sample_training,
    small,
    trainable,
)
from fedtrees.core.errors import UsageError, describe_error
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.data.dataset import prepare
from fedtrees.experiments.federation import Federation
from fedtrees.metrics.metric import Case, Metric, Score, blind_attacks


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


def check_metric(metric: Metric[Any], protocols: Sequence[str]) -> Iterator[Finding]:
    """Check that blind guesses can be scored, that scores are declared, and that they are stable.

    The metric is tried on one small training of each protocol, for a party of each role.
    """
    yield Finding("it declares the measures that it scores", bool(metric.measures))
    defined = False
    for name, case in _cases(protocols):
        try:
            truth = metric.truth(case)
            if truth is not None:
                defined = True
                yield from _check_scores(metric, name, case, truth)
        except Exception as err:
            yield Finding(f"{name}: its methods can be called", False, describe_error(err))
    kind = type(metric)
    own_baseline = kind.blind is not Metric.blind or kind.line is not Metric.line
    has_baseline = own_baseline or any(blind_attacks(metric.of))
    hint = (
        "return claims from its method `blind`, or scores from `line`, or register an attack with "
        f"blind = True and claims = ({metric.of.__name__},)"
    )
    # Scores may contain their baselines instead, and some metrics are of dishonest parties only.
    missing = "" if has_baseline else f"unless each score contains one in `blind`: {hint}"
    yield Finding("it has a blind baseline", True, missing)
    untried = "" if defined else "its truth is None for every party; it was not tried"
    yield Finding("it is defined for a party of an honest run", True, untried)


def _check_scores(metric: Metric[Any], name: str, case: Case, truth: Any) -> Iterator[Finding]:
    """Check the scores of the blind guesses in one training."""
    for guess, claims in metric.blind(case, truth).items():
        refused = metric.refuses(claims, case)
        yield Finding(f"{name}: it accepts the blind guess {guess}", not refused, refused or "")
        scores = metric.score(claims, truth)
        amiss = [text for score in scores if (text := _amiss(metric, score))]
        rule = f"{name}: scores of the blind guess {guess} are declared numbers"
        yield Finding(rule, bool(scores) and not amiss, "; ".join(amiss))
        again = metric.score(claims, metric.truth(case))
        yield Finding(
            f"{name}: the blind guess {guess} is scored alike twice", repr(scores) == repr(again)
        )


def _cases(protocols: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """Train every protocol, and yield the ground truth for a party of each role."""
    table, schema = sample_table()
    dataset = prepare("sample", schema, table.X, table.y)
    for name in protocols:
        protocol = make_small_protocol(name)
        if protocol is None:
            continue
        training, local_data = sample_training(protocol)
        training.predict(table.X)  # a model that is divided among parties asks them now
        federation = Federation(dataset, local_data, sample_table(1)[0], sample_table(2)[0])
        roles = training.transcript.roles
        for role, party in {role: party for party, role in roles.items()}.items():
            try:
                case = federation.case(roles, (party,), 5, role, training)
            except UsageError:  # this party has all rows, so that there is no victim
                continue
            yield f"{name}, {role}", case


def _amiss(metric: Metric[Any], score: Score) -> str:
    """Return what is wrong with a score, "" if nothing is."""
    try:
        metric.measure(score)
    except UsageError as err:
        return str(err)
    if score.value is not None and isnan(score.value):
        return f"{score.name} is not a number; return None for an undefined score"
    return ""
