"""Small federations of whole rows for tests."""

import numpy as np

from fedtrees.bench.conformance.samples import sample_table
from fedtrees.bench.evaluate import make_defense, score_guess
from fedtrees.capture.records import Capture
from fedtrees.core.codec import encode
from fedtrees.core.composition import Composition
from fedtrees.core.guess import Guess, LeafCounts
from fedtrees.core.host import Agreement, Host
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.messages import emptied
from fedtrees.core.network import LocalNetwork
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.federation.site import Settings, own_of
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def sample_federation(seed=0, rows=240, clients=3):
    """Return the small table's rows of each client, and its schema."""
    table, schema = sample_table(seed, rows)
    return [table.take(part) for part in np.array_split(np.arange(rows), clients)], schema


def network_of(parties, schema, defense=None, summed=(), held=(), network=LocalNetwork):
    """Connect parties, each beside a host with what it holds, by name."""
    roles, held = {party.name: party.role for party in parties}, dict(held)
    agreement = Agreement(schema, {}, defense or Composition(), roles, summed)
    rows = sum(map(len, held.values())) if held else None
    net = network(agreement, Streams(0), rows)
    for party in parties:
        given = {"aggregation": net.aggregation, "held": held.get(party.name)}
        host = Host(agreement, party.name, Streams(0), **given)
        host.join(party)
        net.join(host)
    return net


def clients_of(federation):
    """Return every client's rows, in order."""
    return [held.table for held in federation.local_data.values()]


def victims_of_all(federation, principals):
    """Return the rows of everybody but some."""
    rows = [h.table for name, h in federation.local_data.items() if name not in principals]
    return type(rows[0]).concat(rows)


def view_in(protocol, who, classes=2, defense="none", rows=90):
    """Return what a party saw of a small training on a target of so many classes."""
    (table, *_), schema = sample_federation(rows=rows, clients=1)
    if classes > 2:
        cuts = np.quantile(table.X[:, 0], np.arange(1, classes) / classes)
        table = Table(table.X, np.digitize(table.X[:, 0], cuts))
        schema = Schema(schema.features, schema.target, tuple(map(str, range(classes))))
    held = over_clients([table.take(part) for part in np.array_split(np.arange(rows), 3)])
    made = register.make("protocol", parse_grid(protocol)[0])
    by = make_defense(parse_composed([defense])[0])
    return view_of(train(made, held, schema, defense=by, seed=1), (who,), held)


def leaf_scores(guess, federation, principals, training):
    """Return the scores of the leaf counts in a guess, by metric."""
    case = federation.case(training.transcript.roles, tuple(principals), 0, "", training)
    rows = score_guess("told", Guess(guess.all(LeafCounts)), case, None)
    return {row["metric"]: row["value"] for row in rows}


def crossings(transcript):
    """Return all that a transcript says, ciphertexts apart."""
    said = [
        (d.round, d.sender, d.receivers, d.why, d.nbytes, encode(emptied(d.message)))
        for d in transcript
    ]
    inside = {index: encode(message) for index, message in transcript.inside.items()}
    costs = {name: n for name, n in transcript.costs.items() if not name.startswith("cpu")}
    rest = transcript.roles, transcript.rounds, transcript.coordinator, transcript.acted
    return said, inside, costs, rest, transcript.events


def held_of(folder, federation):
    """Return what every site holds, ids as in one process."""
    tables = {p: str(folder / "tables" / f"{p}.csv") for p in federation.parties}
    held = {p: own_of(Settings(t, "", (), "row"), federation, p).held for p, t in tables.items()}
    if federation.made.layout == "vertical":
        return held
    ends = np.cumsum([0, *map(len, held.values())])
    return {p: LocalData(h.ids + e, h.columns, h.X, h.y)
            for (p, h), e in zip(held.items(), ends, strict=False)}  # fmt: skip


def equal_to_simulation(folder, federation, log):
    """See that a coordinator's log is the simulation's transcript, ciphertexts apart."""
    held = held_of(folder, federation)
    done = train(federation.made, held, federation.schema, defense=federation.composed, seed=0,
                 noise_from="seed")  # fmt: skip
    who = federation.coordinator
    mine = [d for d in done.transcript if d.receivers != (d.sender,) or d.sender == who]
    seen = list(Capture(log))
    assert [(r.sender, r.receivers, r.why) for r in seen] == [
        (d.sender, d.receivers, d.why) for d in mine
    ]
    assert [encode(emptied(r.message)) for r in seen] == [encode(emptied(d.message)) for d in mine]
    return crossings(done.transcript)
