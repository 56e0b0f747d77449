"""Build views for checks of attacks. They do not contain rows of other parties."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

from fedtrees.bench.conformance.samples import made, sample_table, sample_training
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.core.view import View
from fedtrees.data.layout import LAYOUTS, lay_out
from fedtrees.data.partition import Partition
from fedtrees.metrics.metric import Case
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.views import view_of

QUERIES = 1000  # queries that an attack may make in each of its runs
KNOWN = "holder[labels=20]"  # threat of attacks that know a few labels


def views_without_truth(protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Train every protocol, and yield a view per role without the rows of other parties."""
    for name in protocols:
        protocol = made(name)
        if protocol is not None:
            views = _views_of(name, type(protocol))
            yield from ((f"{name}, {role}", view) for role, view in views.items())


@lru_cache
def _views_of(name: str, kind: type[Protocol]) -> dict[str, View]:
    """Train a protocol, and return one view per role. The result is cached for all attacks.

    The class is an argument so that a redefined plug-in is not confused with its former version.
    """
    protocol = made(name)
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
            known_labels, records = case.known, "held"
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
        protocol = made(name)
        if protocol is None:
            continue
        training, local_data = sample_training(protocol)
        for threat in threats:
            roles = training.transcript.roles
            # The protocol lacks the role, or its parties have columns instead of rows.
            with contextlib.suppress(UsageError):
                principals = Threat.parse(threat).principals(roles)
                case = Case(local_data, roles, principals, training.schema, Streams(3), threat)
                knowledge = {"known": case.known, "entries": case.entries}
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
