"""Check the rules of defenses: claims, channels, and that they fail closed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from fedtrees.bounds.ceilings import pool_types, splits
from fedtrees.bounds.tables import TinyTables
from fedtrees.bounds.views import Tiny, views
from fedtrees.conformance.channel_check import (
    FieldChanges,
    find_departures,
    find_expansions,
    find_unbounded_channels,
    record_hooks,
)
from fedtrees.conformance.samples import (
    Finding,
    carries_nothing,
    leaves_nothing,
    make_small_protocol,
    same_run,
    sample_table,
    sample_training,
)
from fedtrees.core.channel import Change
from fedtrees.core.composition import Composition
from fedtrees.core.defense import HOOKS, Defense, Place
from fedtrees.core.errors import UnguardedMessageError, UsageError, describe_error
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP
from fedtrees.core.messages import Message
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.wire import encode
from fedtrees.isolation.watch import leaving
from fedtrees.moved import SITE_NAMES
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.training import Training

#: Parameters for tables with one row per client, so that leaves of one row are permitted.
_ON_FEW: dict[str, Any] = {"base_score": 0.5, "min_child_weight": 0.0}
_REASONS = 3  # protocols of which it is explained why the defense does not fit
#: The epsilon of such a run cannot be composed or compared with an audit.
_UNRECORDED = (
    "the run states {}, but recorded no noisy release: call ctx.record_release where the noise is "
    "drawn and override `spent`, or claim Structural() if the defense adds no noise"
)


def check_defense(defense: Defense, protocols: Sequence[str]) -> Iterator[Finding]:
    """Check the claim, determinism, message types, that it acts, and that it fails closed.

    The defense is trained with every protocol that it fits. It fails closed if the run stops as
    soon as one of its `handled_types` is removed.
    """
    claim = defense.claim()
    yield Finding("it states its claim as a value", isinstance(claim, Guarantee), str(claim))
    acts = not defense.protects or bool(defense.roles)
    note = (
        ""
        if defense.protects
        else "note: `protects` is empty, so that message types which the defense does not handle "
        "are sent unchanged and no run stops because of them"
    )
    yield Finding(
        "it names the roles whose messages it protects (`roles`), if it protects any", acts, note
    )
    ran, composed, summed = False, Composition((defense,)), list[Finding]()
    misfits, fits = list[str](), False
    for name in protocols:
        protocol = make_small_protocol(name)
        if protocol is None:
            continue
        fit = check_fit(protocol, composed)
        if not fit.ok:
            misfits.append(f"{name}: {fit}")
            continue
        fits = True
        noted, seen = record_hooks(defense)
        noting = Composition((noted,))
        leftovers: list[str] = []
        try:
            with leaving(leftovers):
                first, local_data = sample_training(protocol, composed)
                again, _ = sample_training(protocol, noting)
        except UnguardedMessageError as err:
            yield Finding(f"{name}: it handles every message it must", False, str(err))
            continue
        except Exception as err:
            yield Finding(f"{name}: it trains", False, describe_error(err))
            continue
        ran = True
        yield Finding(f"{name}: the same seed gives the same run", same_run(first, again))
        first.predict(sample_table()[0].X)  # some defenses act on answers only
        acts = bool(first.transcript.acted) or not _can_change(defense, first)
        yield Finding(f"{name}: it acts on something", acts, "" if acts else _hooks_of(defense))
        yield from _states(defense, again, seen, name)
        if defense.summed_types and not summed:
            summed = [*_sums_alone(defense, protocol)]
            yield from summed
        if defense.handled_types:
            yield carries_nothing(f"{name}: ", first, local_data, defense.handled_types)
        yield leaves_nothing(f"{name}: ", leftovers)
        plain = _messages_without_defense(name, type(protocol))
        revealing = {type(m) for m in plain if m.reveals & defense.protects}
        yield from _fails_closed(defense, protocol, revealing)
        yield from _handled_types_change(defense, protocol, first, plain)
        spent = defense.spent(first.transcript)
        yield Finding(
            f"{name}: it states the spent budget", isinstance(spent, Guarantee), str(spent)
        )
        if isinstance(spent, PureDP | ApproximateDP) and 0 < spent.epsilon < math.inf:
            recorded = bool(first.transcript.events)
            detail = "" if recorded else _UNRECORDED.format(spent)
            yield Finding(f"{name}: its epsilon follows from recorded releases", recorded, detail)
    reasons = [] if fits else [*misfits[:_REASONS], *["..."] * (len(misfits) > _REASONS)]
    yield Finding("it runs with at least one protocol", ran, "; ".join(reasons))


def _hooks_of(defense: Defense) -> str:
    """Return the hooks that a defense overrides, and methods whose names are almost hooks."""
    hooks = ", ".join(sorted(defense.hooks)) or "none"
    names = {name for kind in type(defense).__mro__ for name in vars(kind)} - {*dir(Defense)}
    hints = [
        f"; did you mean {hook} instead of {name}?"
        for name in sorted(names)
        for hook in get_close_matches(name, HOOKS, 1, 0.8)
    ]
    return f"it overrides these hooks: {hooks}{''.join(hints)}"


def _can_change(defense: Defense, run: Training) -> bool:
    """Return whether a run can contain any field that a defense states to change."""
    places = defense.channels(run.schema, run.protocol.parameters)
    plain = _messages_without_defense(run.protocol.name, type(run.protocol))
    return not places or any(
        isinstance(site, str) or getattr(m, field) is not None
        for site, field in places for m in plain
        if isinstance(site, str) or isinstance(m, site)
    )  # fmt: skip


@lru_cache
def _messages_without_defense(name: str, kind: type[Protocol]) -> tuple[Message, ...]:
    """Return the messages of a protocol without a defense on the small table.

    The result is cached for all defenses. The class is an argument so that a redefined plug-in is
    not confused with its former version.
    """
    protocol = make_small_protocol(name)
    assert type(protocol) is kind
    return tuple(d.message for d in sample_training(protocol)[0].transcript)


def _states(defense: Defense, run: Training, seen: FieldChanges, name: str) -> Iterator[Finding]:
    """Check that each field passes the channel that the defense states."""
    run.predict(sample_table()[0].X)
    declared = defense.channels(run.schema, run.protocol.parameters).items()
    # A plug-in of the previous release may state a site by its former name.
    laws: dict[Place, Change] = {
        (SITE_NAMES.get(site, site) if isinstance(site, str) else site, field): law
        for (site, field), law in declared
    }
    for place, wrong in find_departures(laws, seen, len(run.columns)):
        rule = f"{name}: the change of {place} follows the stated channel (`channels`)"
        yield Finding(rule, wrong is None, wrong or "")
    for place in find_unbounded_channels(laws):
        yield Finding(
            f"{name}: the channel of {place} bounds the true values, if it can (`preimage`)",
            True,
            "note: the channel overrides neither `preimage` nor `posterior_moments`, so that "
            "attacks treat every true value as possible and may underestimate the leak",
        )
    for place, farther in find_expansions(defense.nonexpansive, laws, seen):
        rule = f"{name}: it brings no tables farther apart at {place} (`nonexpansive`)"
        yield Finding(rule, not farther, farther)
    limits = defense.requirements.min_leaf_rows > 0 and ("leaves", "rows") not in laws
    yield Finding(f"{name}: it states its limit on leaves, if it has one (`channels`)", not limits)


def _sums_alone(defense: Defense, protocol: Protocol) -> Iterator[Finding]:
    """Check that an opened sum does not depend on which client has which row.

    Two tables with the same rows, distributed differently, must give equal views. Cut points are
    public in this check if possible, because summaries of columns are not sums.
    """
    # Such a defense computes cut points from its sums.
    if "cut_plan" in defense.hooks:
        return
    composed = Composition((register.make("defense", Spec("public-cuts")), defense))
    tables = TinyTables(columns=1, rows=(1, 1))
    random = bool(protocol.noise_channels(tables.schema))
    # Random protocols would need distributions of views instead of single views.
    if random or not check_fit(protocol, composed, facts=KnownFacts(tables.schema)).ok:
        return
    few = {name: value for name, value in _ON_FEW.items() if hasattr(protocol, name)}
    tiny = Tiny(tables, replace(protocol, **few), composed)  # type: ignore[type-var]
    opens = next(role for role in tiny.roles.values() if role not in protocol.holders)
    swapped = [1, 4]  # tables with rows of types 0 and 1 in both orders
    (view,) = views(tiny, [opens], swapped)
    apart = splits(view, pool_types(tables)[swapped])[1]
    rule = (
        f"{protocol.name}: the sums that it reveals depend on the rows, and not on their "
        "distribution over parties"
    )
    yield Finding(rule, not apart)


def _fails_closed(
    defense: Defense, protocol: Protocol, revealing: set[type[Message]]
) -> Iterator[Finding]:
    """Remove each handled type that has something to protect, and check that the run stops."""
    for kind in defense.handled_types:
        if kind not in revealing:
            continue
        rest = tuple(g for g in defense.handled_types if g is not kind)
        attributes = {
            "handled_types": rest,
            "applies_to": defense.applies_to or defense.handled_types,
        }
        bare = type(f"Without{kind.__name__}", (type(defense),), attributes)
        broken = bare(**{f.name: getattr(defense, f.name) for f in fields(defense)})  # type: ignore[arg-type]
        rule = f"{protocol.name}: without {kind.__name__} in its handled_types the run stops"
        try:
            sample_training(protocol, Composition((broken,)))
            yield Finding(rule, False)
        # `UsageError`: no message remains that the defense changes.
        except (UnguardedMessageError, UsageError):
            yield Finding(rule, True)


def _handled_types_change(
    defense: Defense, protocol: Protocol, defended: Training, plain: Sequence[Message]
) -> Iterator[Finding]:
    """Check that a handled message that reveals protected information is changed."""

    def sent(messages: Sequence[Message], kind: type[Message]) -> list[bytes]:
        return [encode(message) for message in messages if type(message) is kind]

    crossed = [d.message for d in defended.transcript]
    for kind in defense.handled_types:
        if kind in protocol.summed_types:  # only sums of these messages are opened in any case
            continue
        reveals = {r for message in plain if type(message) is kind for r in message.reveals}
        if reveals & defense.protects:
            changed = sent(crossed, kind) != sent(plain, kind)
            yield Finding(f"{protocol.name}: it changes {kind.__name__}, which it handles", changed)
