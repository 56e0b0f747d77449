"""Compatibility of protocol, defense, attack, threat and data.

`check_fit` answers for given parts whether they can be used together. Its last step, for a single
attack, is `check_attacks`, which answers for many attacks at once. If no view is known yet, this
consists of `check_without_view` only. All three return the `Reason` ``FITS`` if nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fedtrees.core.attack import claims_of
from fedtrees.core.channel import Channel
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.noise_order import misplaced_in
from fedtrees.core.reasons import FITS, Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.isolation.process import attack_process
from fedtrees.messages.horizontal import GlobalHistogram, Histogram
from fedtrees.trees.boosted.losses import objective_of


@dataclass(frozen=True)
class KnownFacts:
    """Known properties of the table and of the view. An unknown property is no obstacle.

    Attributes
    ----------
    schema : Schema or None
        Columns and target.
    rows : int
        Number of training rows.
    roles : mapping of str to str
        Role of every party by name.
    scored : callable or None
        Function of a claim type: whether a metric scores such claims.
    view : View or None
        View that an attack receives.
    """

    schema: Schema | None = None
    rows: int = 0
    roles: Mapping[str, str] = field(default_factory=dict)
    scored: Callable[[Any], bool] | None = None
    view: View | None = None


def check_fit(
    protocol: Any = None,
    defense: Composition | Sequence[Defense] = (),
    attack: Spec | None = None,
    threat: Sequence[str] = (),
    facts: KnownFacts | None = None,
) -> Reason:
    """Return the first reason why the given parts are incompatible, `FITS` if there is none.

    Parameters
    ----------
    protocol : Protocol or None
        None checks the remaining parts without a protocol.
    defense : Composition or sequence of Defense
        Parts that cannot be composed are also a reason.
    attack : Spec or None
        Attack with its parameters.
    threat : sequence of str
        Names of the colluding parties.
    facts : KnownFacts or None
        Known properties of the table.

    Returns
    -------
    reason : Reason
        `FITS` if everything is compatible.
    """
    facts = facts or KnownFacts()
    try:
        composition = defense if isinstance(defense, Composition) else Composition(tuple(defense))
    except Unfit as err:
        return err.reason
    # A coalition that can decrypt a protected value would have a view that no transcript shows.
    opened = (part.broken_by(threat, facts.roles) for part in composition.parts)
    return (
        (protocol is not None and _check_defense(protocol, composition, facts.schema))
        or next(filter(None, opened), None)
        or (FITS if attack is None else check_attacks([attack], facts)[0])
    )


def check_attacks(attacks: Sequence[Spec], facts: KnownFacts) -> list[Reason]:
    """Return for each attack whether it applies (`FITS`), or the reason why it does not.

    `Attack.inapplicable` of all attacks is called in one process, separate from this one. Without a
    view it is not called, and only `check_without_view` decides.
    """
    reasons = [check_without_view(attack, facts) for attack in attacks]
    if facts.view is None:
        return reasons
    remaining = [attack for attack, reason in zip(attacks, reasons, strict=True) if reason.ok]
    answers = iter(_ask_attacks(remaining, facts.view) if remaining else ())
    return [next(answers) if reason.ok else reason for reason in reasons]


def _check_defense(protocol: Any, defense: Composition, schema: Schema | None) -> Reason | None:
    """Return why a defense is incompatible with a protocol on a table, None if it is compatible."""
    named = {"protocol": protocol.name}
    roles = set(protocol.roles(2).values())
    for part in defense.parts:
        # A released model answers any number of queries, so that a defense of the endpoint is void.
        if protocol.released and "limit_endpoint" in part.hooks:
            return Reason("model-released", subject=part.name, **named)
        if part.handled_types and part.roles and not part.roles & roles:
            defense_roles, protocol_roles = ", ".join(sorted(part.roles)), ", ".join(sorted(roles))
            return Reason(
                "defense-role", subject=part.name, at=defense_roles, roles=protocol_roles, **named
            )
    for part in defense.parts:
        # A defense that finds none of its messages would have no effect and is refused.
        handled = part.applies_to or part.handled_types
        if handled and not any(
            message_type in handled for message_type in protocol.info.message_types
        ):
            types = ", ".join(t.__name__ for t in handled)
            return Reason("defense-message", subject=part.name, types=types, **named)
        unserved = sorted(_required_capabilities(part) - protocol.info.capabilities)
        if unserved:
            stage = ", ".join(unserved)
            return Reason("defense-stage", subject=part.name, stage=stage, **named)
    reason = None
    if protocol.claim().budget:
        noised = protocol.info.noised_types or protocol.info.message_types
        shares = protocol.summed_types
        # A claim about noise is void if a defense changes values before the noise is added.
        reason = misplaced_in(defense.parts, protocol.name, noised, protocol.holders, shares)
    return reason or (None if schema is None else protocol.missing_requirement(schema, defense))


def _required_capabilities(part: Defense) -> frozenset[str]:
    """Return the hooks and limits of a defense that the parties of a protocol must implement."""
    hooks = part.hooks & {"transform_examples", "allowed_splits", "visible_nodes"}
    if part.example_stages == {"labels"}:  # applied before the party is created, without a hook
        hooks -= {"transform_examples"}
    return hooks | part.requirements.limits


def check_without_view(attack: Spec, facts: KnownFacts) -> Reason:
    """Return why an attack cannot apply, without a call of `Attack.inapplicable`.

    The reasons are malicious behaviours that the attack does not read or that did not occur, too
    many rows, and claims about a numeric target that no metric scores.
    """
    maker = register.get("attack", attack.name)
    required_behaviours: tuple[str, ...] = getattr(maker, "behaviours", ())
    shown_behaviours = () if facts.view is None else facts.view.behaviours
    # An attack that reads a malicious run does not apply to an honest one, and vice versa.
    if (
        facts.view is not None
        and not {*required_behaviours} & {*shown_behaviours}
        and (required_behaviours or shown_behaviours)
    ):
        if shown_behaviours:
            return Reason("other-behaviour", behaviour=", ".join(shown_behaviours))
        return Reason("nobody-cheats", behaviour=", ".join(required_behaviours))
    # Some attacks have a running time that grows faster than linearly.
    max_rows = getattr(maker, "max_training_rows", None)
    if max_rows is not None and facts.rows > max_rows:
        return Reason("too-many-rows", rows=facts.rows, most=max_rows)
    numeric = facts.schema is not None and not facts.schema.classes
    if numeric and facts.scored and not getattr(maker, "supports_regression", False):
        # The claims of a blind attack are scored without a training.
        blind = getattr(maker, "blind", False)
        if not (blind and any(map(facts.scored, claims_of(maker)))):
            return Reason("numeric-target")
    return FITS


def _ask_attacks(attacks: Sequence[Spec], view: View) -> list[Reason]:
    """Call `Attack.inapplicable` of attacks in the process of attacks, and return the reasons.

    If one of them raises an error, the attacks are called again one by one.
    """
    try:
        return attack_process().reasons(attacks, view)
    except UsageError as err:
        if len(attacks) == 1:
            return [Reason("needs-parameter", error=str(err))]
    except FedtreesError:
        # An attack with an error is not evidence of safety, so that it counts as applicable.
        if len(attacks) == 1:
            return [FITS]
    return [reason for attack in attacks for reason in _ask_attacks([attack], view)]


def check_channels(
    defense: Composition, schema: Schema, parameters: Mapping[str, Any], rows: int
) -> None:
    """Refuse a defense that maps all possible sums of gradients to the same value.

    Parameters
    ----------
    defense : Composition
        Defenses of the run.
    schema : Schema
        Columns and target.
    parameters : mapping of str to object
        Public parameters of the protocol.
    rows : int
        Number of training rows. It bounds all sums.

    Raises
    ------
    UsageError
        If a defense sends all sums alike.
    """
    for part in defense.parts:
        channels = part.channels(schema, parameters)
        for site in (Histogram, GlobalHistogram):
            law = channels.get((site, "sums"))
            # A change without a known distribution cannot be checked.
            if not isinstance(law, Channel):
                continue
            bounds = objective_of(parameters.get("objective"), schema.classes).bounds
            largest = rows * np.asarray(bounds, dtype=np.float64)
            if np.isfinite(largest).all() and _erases(law, largest):
                raise UsageError(
                    f"{_written(part)} sends all sums alike: over {rows} rows, gradients add up to "
                    f"{largest[0]:g} at most and hessians to {largest[1]:g}; give less"
                )


def _erases(law: Channel, largest: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Return whether the channel's uncertainty exceeds all sums, or maps the largest ones to 0."""
    low, high = law.error_range(2)
    if np.isfinite([low, high]).all():
        return bool((high - low > 2 * largest).all())
    return law.deterministic and not law.send(np.stack([largest, [-1, 1] * largest])).any()


def _written(part: Defense) -> str:
    parameters = (f"{f.name}={getattr(part, f.name)}" for f in fields(part))  # type: ignore[arg-type]
    return f"{part.name}[{','.join(parameters)}]"
