"""Small horizontal federations for tests."""

import numpy as np

from fedtrees.capture.records import Capture
from fedtrees.conformance.samples import sample_table
from fedtrees.core.claims import Guess, LeafCounts
from fedtrees.core.composition import Composition
from fedtrees.core.host import Agreement, Host
from fedtrees.core.local_data import LocalData, LocalDataSummary, over_clients
from fedtrees.core.messages import without_payload
from fedtrees.core.network import Network
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode
from fedtrees.experiments.evaluate import make_defense, score_guess
from fedtrees.federation.site import Settings, read_site_data
from fedtrees.protocols.base import Seat
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def sample_federation(seed=0, rows=240, clients=3):
    """Return the rows of each client in the small table, and its schema."""
    table, schema = sample_table(seed, rows)
    return [table.take(part) for part in np.array_split(np.arange(rows), clients)], schema


def client_seat(name, rows, schema, defense=None):
    """Return the seat of a client that has a table."""
    return Seat(name, "client", LocalData.of(rows), schema, defense or Composition())


def network_of(parties, schema, defense=None, summed=(), local_data=(), network=Network):
    """Connect parties with a host for each, which contains the local data by name."""
    roles, local_data = {party.name: party.role for party in parties}, dict(local_data)
    agreement = Agreement(schema, {}, defense or Composition(), roles, summed)
    declared = {name: LocalDataSummary.of(data) for name, data in local_data.items()}
    net = network(agreement, Streams(0), declared)
    for party in parties:
        options = {"aggregation": net.aggregation, "local_data": local_data.get(party.name)}
        host = Host(agreement, party.name, Streams(0), **options)
        host.join(party)
        net.join(host)
    return net


def clients_of(federation):
    """Return the rows of every client, in order."""
    return [data.table for data in federation.local_data.values()]


def victims_of_all(federation, principals):
    """Return the rows of all parties except some."""
    rows = [h.table for name, h in federation.local_data.items() if name not in principals]
    return type(rows[0]).concat(rows)


def view_in(protocol, party, classes=2, defense="none", rows=90):
    """Return the view of a party of a small training with the given number of classes."""
    (table, *_), schema = sample_federation(rows=rows, clients=1)
    if classes > 2:
        cuts = np.quantile(table.X[:, 0], np.arange(1, classes) / classes)
        table = Table(table.X, np.digitize(table.X[:, 0], cuts))
        schema = Schema(schema.features, schema.target, tuple(map(str, range(classes))))
    local_data = over_clients([table.take(part) for part in np.array_split(np.arange(rows), 3)])
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    composed = make_defense(parse_composed([defense])[0])
    return view_of(
        train(protocol_object, local_data, schema, defense=composed, seed=1), (party,), local_data
    )


def leaf_scores(guess, federation, principals, training):
    """Return the scores of the leaf counts in a guess, by metric."""
    case = federation.case(training.transcript.roles, tuple(principals), 0, "", training)
    rows = score_guess("told", Guess(guess.all(LeafCounts)), case, None)
    return {row["metric"]: row["value"] for row in rows}


def crossings(transcript):
    """Return all contents of a transcript except for ciphertexts."""
    messages = [
        (d.round, d.sender, d.receivers, d.reason, d.nbytes, encode(without_payload(d.message)))
        for d in transcript
    ]
    inside = {index: encode(message) for index, message in transcript.plain_replies.items()}
    costs = {name: n for name, n in transcript.costs.items() if not name.startswith("cpu")}
    settings = transcript.roles, transcript.rounds, transcript.coordinator, transcript.acted
    return messages, inside, costs, settings, transcript.events


def held_of(folder, federation):
    """Return the local data of every site, with the ids of a run in one process."""
    tables = {p: str(folder / "tables" / f"{p}.csv") for p in federation.parties}
    local_data = {
        p: read_site_data(Settings(t, "", (), "row"), federation, p).local_data
        for p, t in tables.items()
    }
    if federation.made.layout == "vertical":
        return local_data
    ends = np.cumsum([0, *map(len, local_data.values())])
    return {p: LocalData(h.ids + e, h.columns, h.X, h.y)
            for (p, h), e in zip(local_data.items(), ends, strict=False)}  # fmt: skip


def equal_to_simulation(folder, federation, log):
    """Check that a coordinator's log equals the simulation's transcript except for ciphertexts."""
    local_data = held_of(folder, federation)
    simulation = train(
        federation.made,
        local_data,
        federation.schema,
        defense=federation.composed,
        seed=0,
        noise_from="seed",
    )
    coordinator = federation.coordinator
    expected = [
        delivery
        for delivery in simulation.transcript
        if delivery.receivers != (delivery.sender,) or delivery.sender == coordinator
    ]
    records = list(Capture(log))
    assert [(record.sender, record.receivers, record.why) for record in records] == [
        (delivery.sender, delivery.receivers, delivery.reason) for delivery in expected
    ]
    assert [encode(without_payload(record.message)) for record in records] == [
        encode(without_payload(delivery.message)) for delivery in expected
    ]
    return crossings(simulation.transcript)
