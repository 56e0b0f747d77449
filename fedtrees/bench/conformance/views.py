"""Views that attacks are checked on, of which everybody else's rows are gone."""

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

QUERIES = 1000  # rows that an attack which asks may ask for, each time that it runs
KNOWN = "holder[labels=20]"  # what attacks that know a few labels know


def views_without_truth(protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Train every protocol and yield a view per role, of which everybody else's rows are gone."""
    for name in protocols:
        protocol = made(name)
        if protocol is not None:
            views = _views_of(name, type(protocol))
            yield from ((f"{name}, {role}", view) for role, view in views.items())


@lru_cache
def _views_of(name: str, kind: type[Protocol]) -> dict[str, View]:
    """Train a protocol, of this class now, and return a view per role; attacks share them."""
    protocol = made(name)
    assert type(protocol) is kind
    training, held = sample_training(protocol)
    training.predict(sample_table()[0].X)  # a model that nobody holds whole asks parties
    last = {role: who for who, role in training.transcript.roles.items()}
    views = {}
    for role, who in last.items():
        known, records = None, "chosen"
        if who in held and held[who].y is None:
            case = Case(held, training.transcript.roles, (who,), training.schema, Streams(3), KNOWN)
            known, records = case.known, "held"  # rows that only others have the labels of
        views[role] = view_of(training, (who,), held, QUERIES, records=records, known_rows=known)
    return views


def views_that_tell(attack: Attack, protocols: Sequence[str]) -> Iterator[tuple[str, View]]:
    """Yield views of who is told all but one attribute, where an attack's threats say so."""
    threats = [t for t in attack.threats if Threat.parse(t).sensitive is not None]
    for name in protocols if threats else ():
        protocol = made(name)
        if protocol is None:
            continue
        training, held = sample_training(protocol)
        for threat in threats:
            roles = training.transcript.roles
            with contextlib.suppress(UsageError):  # no such role, or columns of rows
                who = Threat.parse(threat).principals(roles)
                case = Case(held, roles, who, training.schema, Streams(3), threat)
                told = {"known": case.known, "entries": case.entries}
                yield f"{name}, {threat}", view_of(training, who, held, **told)


def blind_views() -> Iterator[tuple[str, View]]:
    """Yield what every holder of a table knows before any training, whatever the layout."""
    table, schema = sample_table()
    for layout in LAYOUTS:
        for names in (["holder-0", "holder-1"], ["holder-0"]):
            try:
                held = lay_out(
                    layout, table, schema, names, Partition("iid"), Streams(3).rng("conformance")
                )
            except UsageError:  # it is for other numbers of parties
                continue
            roles = dict.fromkeys(names, "holder")
            for name in names:
                case = Case(held, roles, (name,), schema, Streams(3), KNOWN)
                yield f"{layout}, {name} of {len(names)}", case.blind_view()
