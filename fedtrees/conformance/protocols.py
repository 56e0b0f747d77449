"""Check the rules of protocols: determinism, declared messages, and stated noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from fedtrees.conformance.channel_check import (
    FieldChanges,
    find_decimal_steps,
    find_departures,
    find_unstated_changes,
    pair_with_exact_run,
)
from fedtrees.conformance.leak_search import find_foreign_rows
from fedtrees.conformance.samples import (
    Finding,
    are_equal,
    carries_nothing,
    leaves_nothing,
    same_run,
    sample_local_data,
    sample_table,
    sample_training,
)
from fedtrees.core.channel import Change, Channel, Share, SumOfShares
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense, ExampleStage, Requirements
from fedtrees.core.errors import UsageError, listed, many
from fedtrees.core.guarantee import NoGuarantee
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import PUBLIC
from fedtrees.core.view import View
from fedtrees.core.wire import decode, encode
from fedtrees.isolation.watch import leaving
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training
from fedtrees.protocols.views import protocol_channels, view_of

# Names in `ProtocolInfo.capabilities`: hooks that are called, and limits with values that change
# the small run.
_HOOKS = ("transform_examples", "allowed_splits", "visible_nodes")
_LIMITS = {
    "gradient_clip": 0.01, "min_leaf_rows": 25, "poisson_sampling": True, "declared_rows": 99,
    "row_bounds": (0.5, 0.1), "gradient_engine": "opacus",
}  # fmt: skip
#: Limits that need another one, and are checked against a run with this one only.
_NEEDED_LIMITS = {"gradient_engine": "poisson_sampling"}
#: Parameters for checks of noise: many noisy values are released, and a tiny learning rate keeps
# later values independent of them.
_RELEASING: dict[str, Any] = {"trees": 40, "learning_rate": 1e-9}
_RELEASES = 3


def check_protocol(protocol: Protocol) -> Iterator[Finding]:
    """Check determinism, messages, reasons, isolation, noise, and numbers of parties."""
    leftovers: list[str] = []
    with leaving(leftovers):
        (first, local_data), (again, _) = (sample_training(protocol) for _ in range(2))
    yield Finding("the same seed gives the same run", same_run(first, again))
    yield leaves_nothing("", leftovers)
    messages = [d.message for d in first.transcript]
    yield Finding(
        "every message survives the codec", all(are_equal(m, decode(encode(m))) for m in messages)
    )
    silent = [type(d.message).__name__ for d in first.transcript if not d.reason]
    yield Finding("every crossing has a reason", not silent, ", ".join(silent))
    undeclared = {
        type(d.message).__name__
        for d in first.transcript
        if d.receivers != (PUBLIC,) and type(d.message) not in protocol.info.message_types
    }
    yield Finding(
        "all sent types are declared (`message_types`)", not undeclared, ", ".join(undeclared)
    )
    seen = {type(message) for message in messages}
    expected = {*protocol.info.message_types} - protocol.info.conditional_types.keys()
    silent = [m.__name__ for m in protocol.info.message_types if m in expected - seen]
    rule = "all declared types are sent, or are in `conditional_types` (`message_types`)"
    yield Finding(rule, not silent, ", ".join(silent))
    yield from _serves(protocol, first)
    yield from _releases(protocol)
    yield carries_nothing("", first, local_data)
    if first.net is not None:
        reached = find_foreign_rows(first.net, local_data)
        yield Finding("no party leads to another's rows", not reached, "; ".join(reached))
    views = [view_of(first, (name,), local_data) for name in first.transcript.roles]
    yield Finding("no array in a view is writeable", not any(map(_writeable, views)))
    table, _ = sample_table()
    # Noise can hide all of the 240 rows in the few trees that are trained here. In this case, the
    # variant without noise is checked. `_releases` checks that the protocol differs from it by
    # noise only.
    exact = protocol.without_noise()
    learned = first if exact is None else sample_training(exact)[0]
    hit = float(((learned.predict(table.X) > 0.5) == table.y).mean())
    yield Finding(
        "the model learns (positive control)",
        bool(hit > max(table.y.mean(), 1 - table.y.mean())),
        f"training accuracy {hit:.3f}",
    )
    for count in (1, 5):
        try:
            works, why = sample_training(protocol, parties=count)[0].n_rows == 240, ""
        # The message states how many parties are necessary.
        except UsageError as err:
            works, why = True, str(err)
        parties = many(count, "party", "parties")
        yield Finding(f"it runs with {parties}, or says why not", works, why)


def _releases(protocol: Protocol) -> Iterator[Finding]:
    """Check that a guarantee follows from stated noise, and that the protocol adds this noise.

    The noise is the difference between runs of the protocol and of its variant without noise
    (`Protocol.without_noise`).
    """
    _, schema = sample_table()
    laws, exact = protocol.noise_channels(schema), protocol.without_noise()
    for label, step in find_decimal_steps(laws, sample_training(protocol)[0].transcript):
        yield Finding(
            f"it states the rounding of {label}, if it rounds (`noise_channels`)",
            True,
            f"note: all numbers are multiples of {step:g} and no channel is stated, so that "
            "attacks take them for exact",
        )
    if not laws:
        rule = "the claim follows from the stated noise (`noise_channels`)"
        yield Finding(rule, isinstance(protocol.claim(), NoGuarantee), str(protocol.claim()))
        return
    # Without a variant without noise, stated noise cannot be verified.
    rule = "stated noise can be compared with a run without noise (`without_noise`)"
    yield Finding(rule, exact is not None and not _noisy(exact, schema))
    if exact is None:
        return
    many_releases = {name: value for name, value in _RELEASING.items() if hasattr(protocol, name)}
    noisy, exact = (replace(variant, **many_releases) for variant in (protocol, exact))  # type: ignore[type-var]
    parties = len(sample_local_data(noisy))
    laws, seen = protocol_channels(noisy, schema, parties), FieldChanges()
    unstated: dict[str, None] = {}
    for seed in range(_RELEASES):
        runs = [sample_training(variant, seed=seed)[0] for variant in (noisy, exact)]
        unstated |= dict.fromkeys(find_unstated_changes(laws, *(run.transcript for run in runs)))
        for place, differences in pair_with_exact_run(
            laws, *(run.transcript for run in runs)
        ).items():
            seen.setdefault(place, []).extend(differences)
    rule = "it differs from the run without noise by stated channels only (`noise_channels`)"
    yield Finding(rule, not unstated, listed([*unstated]) if unstated else "")
    if noisy.summed_types:  # the transcript contains the sum over all parties only
        laws = {place: _total(change, parties) for place, change in laws.items()}
    for label, wrong in find_departures(laws, seen, 1 if noisy.summed_types else parties):
        rule = f"its noise on {label} is the stated noise (`noise_channels`)"
        yield Finding(rule, wrong is None, wrong or "")


def _total(change: Change, parties: int) -> Change:
    """Return the law of the sum over all parties if each of them adds a share of the noise."""
    law = change.law(parties) if isinstance(change, Share) else None
    return change if law is None else law


def _noisy(protocol: Protocol, schema: Schema) -> bool:
    """Return whether a protocol states noise on any field."""
    return any(
        isinstance(law, Channel | Share | SumOfShares)
        for law in protocol.noise_channels(schema).values()
    )


def _serves(protocol: Protocol, plain: Training) -> Iterator[Finding]:
    """Check that the protocol calls every hook and keeps every limit that it serves."""
    for name in sorted(protocol.info.capabilities):
        calls: list[str] = []
        probe = _probe(name, calls)
        try:
            run, _ = sample_training(protocol, Composition((probe,)))
            without = plain
            if needed := _NEEDED_LIMITS.get(name):
                without, _ = sample_training(protocol, Composition((_probe(needed, calls),)))
            served, why = bool(calls) if name in _HOOKS else not same_run(run, without), ""
        # The protocol refuses the hook under these parameters.
        except UsageError as err:
            served, why = True, str(err)
        rule = f"its parties comply with {name} (`capabilities`), or state a reason"
        yield Finding(rule, served, why)


def _probe(name: str, called: list[str]) -> Defense:
    """Build a defense that uses one hook and records its calls, or that uses one limit."""

    def hook(self: Defense, value: Any, *rest: Any) -> Any:
        if not (isinstance(value, ExampleStage) and value.kind == "labels"):  # labels need no hook
            called.append(name)
        return rest[0] if isinstance(value, ExampleStage) else value

    limits: dict[str, Any] = {
        n: _LIMITS[n] for n in (name, _NEEDED_LIMITS.get(name)) if n in _LIMITS
    }
    use: dict[str, Any] = {"requirements": Requirements(**limits)}
    if name in _HOOKS:
        use[name] = hook
    kind: Any = dataclass(frozen=True)(type("Probe", (Defense,), use))
    probe: Defense = kind()
    return probe


def _writeable(view: View) -> bool:
    """Return whether an array of a view can be changed."""
    arrays = [getattr(s.message, f.name) for s in view.seen for f in fields(s.message)]
    own_arrays = [getattr(part, f.name) for part in view.local_data for f in fields(part)]
    return any(isinstance(a, np.ndarray) and a.flags.writeable for a in [*arrays, *own_arrays])
