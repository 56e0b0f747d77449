"""Provide the common parts of all checks: small tables, trainings, views and comparisons.

The module defines the result of a check, trains protocols on small tables, and builds views for
checks of attacks, which do not contain rows of other parties. It compares two trainings, guesses or
values bit by bit, and it checks that a training leaks nothing outside its messages and declares
their contents.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedtrees.conformance.leak_search import find_local_values
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess
from fedtrees.core.composition import Composition
from fedtrees.core.errors import FedtreesError, UsageError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, without_payload
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.view import View
from fedtrees.core.wire import encode
from fedtrees.data.partition import LAYOUTS, Partition, lay_out
from fedtrees.metrics.metric import Case
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of


@dataclass(frozen=True)
class Finding:
    """One rule, whether the plug-in obeys it, and a detail of the observation."""

    rule: str
    holds: bool
    detail: str = ""


def carries_nothing(
    name: str,
    training: Training,
    local_data: Mapping[str, LocalData],
    kinds: tuple[type[Message], ...] = (),
) -> Finding:
    """Check that no message contains local data without declaring it (`Message.verbatim`).

    For a defense, only the types `kinds` of messages are searched, because it changes no other
    ones.

    Parameters
    ----------
    name : str
        Prefix of the rule.
    training : Training
        The training.
    local_data : mapping of str to LocalData
        Data of every party.
    kinds : tuple of message types
        Types to search, empty for all.
    """
    texts = find_local_values(training.transcript, local_data, training.schema, kinds)
    return Finding(
        f"{name}no message contains values of local data without declaring them",
        not texts,
        "; ".join(texts),
    )


def leaves_nothing(name: str, leftovers: Sequence[str]) -> Finding:
    """Check that a training left nothing outside its messages, where an attack could find it."""
    text = "; ".join(dict.fromkeys(leftovers))
    return Finding(f"{name}training leaves nothing but messages", not leftovers, text)


_SMALL: dict[str, Any] = {"trees": 3, "max_depth": 3, "max_bin": 16, "iterations": 8}
#: Networks learn in a few long steps. The duration of cryptography depends on their parameters.
_SMALL_NETWORK: dict[str, Any] = {"units": 8, "rounds": 8, "lr": 1.0}


def trainable() -> list[str]:
    """Return the protocols whose optional packages are installed."""
    protocols: dict[str, Any] = {n: register.get("protocol", n) for n in register.names("protocol")}
    return [name for name, protocol in protocols.items() if not protocol.missing()]


def sample_table(seed: int = 0, rows: int = 240) -> tuple[Table, Schema]:
    """Build a small random table that an attack cannot contain."""
    rng = np.random.default_rng([77, seed])
    X = rng.normal(size=(rows, 5)) * [1, 10, 3, 0.5, 2]  # values use all bits of a float32
    X[:, 4] = rng.integers(0, 3, rows)
    y = (X[:, 0] + X[:, 1] / 10 + rng.normal(0, 0.5, rows) > 0).astype(np.int64)
    names = ["a", "b", "c", "d"]
    features = [Feature(n, low=-50, high=50) for n in names]
    kinds = Feature("e", kind="categorical", categories=("x", "y", "z"))
    return Table(X.astype(np.float32), y), Schema((*features, kinds), "label")


def sample_local_data(protocol: Protocol, parties: int = 3) -> dict[str, LocalData]:
    """Distribute the small table over the parties of a protocol."""
    table, schema = sample_table()
    names = protocol.holder_names(parties)
    rng = Streams(0).rng("sample")
    return lay_out(protocol.layout, table, schema, names, Partition("iid"), rng)


def sample_training(
    protocol: Protocol, defense: Composition | None = None, parties: int = 3, seed: int = 5
) -> tuple[Training, dict[str, LocalData]]:
    """Train a protocol on the small table. Return the training and the local data.

    Parameters
    ----------
    protocol : Protocol
        The protocol.
    defense : Composition or None
        The defense.
    parties : int
        Number of parties that have data.
    seed : int
        Seed of the training.
    """
    local_data, (_, schema) = sample_local_data(protocol, parties=parties), sample_table()
    run = train(protocol, local_data, schema, defense=defense, seed=seed, noise_from="seed")
    return run, local_data


def make_small_protocol(name: str) -> Protocol | None:
    """Return a small protocol, None if it cannot be created here."""
    try:
        protocol = register.make("protocol", small(parse_grid(name)[0]))
    except FedtreesError:
        return None
    return protocol if isinstance(protocol, Protocol) else None


def small(spec: Spec) -> Spec:
    """Return a protocol with few trees or rounds, if it has such parameters."""
    parameters = inspect.signature(register.get("protocol", spec.name)).parameters
    few = _SMALL | (_SMALL_NETWORK if "units" in parameters else {})
    return Spec(spec.name, {**{k: v for k, v in few.items() if k in parameters}, **spec.params})


QUERIES = 1000  # queries that an attack may make in each of its runs
KNOWN = "holder[labels=20]"  # threat of attacks that know a few labels


def views_without_truth(protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Train every protocol, and yield a view per role without the rows of other parties."""
    for name in protocols:
        protocol = make_small_protocol(name)
        if protocol is not None:
            views = _sample_views(name, type(protocol))
            yield from ((f"{name}, {role}", view) for role, view in views.items())


@lru_cache
def _sample_views(name: str, kind: type[Protocol]) -> dict[str, View]:
    """Train a protocol, and return one view per role. The result is cached for all attacks.

    The class is an argument so that a redefined plug-in is not confused with its former version.
    """
    protocol = make_small_protocol(name)
    assert type(protocol) is kind
    training, local_data = sample_training(protocol)
    # If no party has the complete model, prediction sends messages.
    training.predict(sample_table()[0].X)
    last = {role: party for party, role in training.transcript.roles.items()}
    views = {}
    for role, party in last.items():
        known_labels, records = None, "chosen"
        if party in local_data and local_data[party].y is None:
            case = Case(
                local_data, training.transcript.roles, (party,), training.schema, Streams(3), KNOWN
            )
            # Queries are restricted to rows whose labels other parties have.
            known_labels, records = case.known_labels, "held"
        views[role] = view_of(
            training, (party,), local_data, QUERIES, records=records, known_rows=known_labels
        )
    return views


def views_that_tell(attack: Attack, protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Yield views of adversaries that know all attributes except one.

    There are none if no threat of the attack includes such knowledge.
    """
    threats = [t for t in attack.threats if Threat.parse(t).sensitive is not None]
    for name in protocols if threats else ():
        protocol = make_small_protocol(name)
        if protocol is None:
            continue
        training, local_data = sample_training(protocol)
        for threat in threats:
            roles = training.transcript.roles
            # The protocol lacks the role, or its parties have columns instead of rows.
            with contextlib.suppress(UsageError):
                principals = Threat.parse(threat).principals(roles)
                case = Case(local_data, roles, principals, training.schema, Streams(3), threat)
                knowledge: dict[str, Any] = {
                    "known_rows": case.known_labels,
                    "entries": case.known_entries,
                }
                yield f"{name}, {threat}", view_of(training, principals, local_data, **knowledge)


def blind_views() -> Iterator[tuple[str, View]]:
    """Yield the knowledge of each party before a training, for every layout."""
    table, schema = sample_table()
    for layout in LAYOUTS:
        for names in (["holder-0", "holder-1"], ["holder-0"]):
            try:
                local_data = lay_out(
                    layout, table, schema, names, Partition("iid"), Streams(3).rng("conformance")
                )
            except UsageError:  # the layout needs another number of parties
                continue
            roles = dict.fromkeys(names, "holder")
            for name in names:
                case = Case(local_data, roles, (name,), schema, Streams(3), KNOWN)
                yield f"{layout}, {name} of {len(names)}", case.blind_view()


def same_run(a: Training, b: Training) -> bool:
    """Return whether two trainings send the same messages, except for sealed contents."""
    return len(a.transcript.deliveries) == len(b.transcript.deliveries) and all(
        x.sender == y.sender and are_equal(without_payload(x.message), without_payload(y.message))
        for x, y in zip(a.transcript, b.transcript, strict=True)
    )


def same_transcript(a: Training, b: Training) -> bool:
    """Return whether two trainings send the same bytes."""
    return [encode(d.message) for d in a.transcript] == [encode(d.message) for d in b.transcript]


def same(a: Guess, b: Guess) -> bool:
    """Return whether two guesses make the same claims."""
    return len(a.claims) == len(b.claims) and all(
        type(x) is type(y) and are_equal(x, y) for x, y in zip(a.claims, b.claims, strict=True)
    )


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two values, arrays, or dataclasses of them are equal.

    NaN equals NaN in float arrays.
    """
    if is_dataclass(a) and is_dataclass(b):
        return type(a) is type(b) and all(
            are_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)
        )
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return bool(a == b)
