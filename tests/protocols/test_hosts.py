"""What leaves a host is, byte for byte, what the transcript says: every protocol and defense."""

import importlib.util
from dataclasses import fields, replace

import present
import pytest
from digests import DEFENSES
from federations import crossings, network_of, sample_federation
from present import here

from fedtrees.conformance.samples import sample_local_data
from fedtrees.core.composition import Composition
from fedtrees.core.errors import LocalDataError, ProtocolError
from fedtrees.core.local_data import over_clients
from fedtrees.core.messages import has_sealed_field, without_payload
from fedtrees.core.network import Network
from fedtrees.core.party import Party, acting, handles
from fedtrees.core.registry import register
from fedtrees.core.remote import HostServer, RemoteHost
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.wire import decode, encode, read_call, write_call
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import LabelSumsRequest
from fedtrees.protocols import training
from fedtrees.protocols.compatibility import check_fit

pytestmark = pytest.mark.filterwarnings("ignore:a 1024-bit Paillier key is weak")

PROTOCOLS = [n for n in register.names("protocol") if not register.get("protocol", n).missing()]
REAL = here("defense", (
    "masking[mode=real]", "dp-grid-cuts[epsilon=2]+masking[mode=real]",
    "laplace-hist[epsilon=4]+paillier[bits=1024,mode=real]", "dp-sgd[epsilon=4]",
    "gradient-noise[scale=0.1]", "gradient-rounding[step=0.01]", "top-k[share=0.5]",
))  # fmt: skip
#: Encrypted where its own parties hold keys.
CRYPTO = {
    "secureboost": {"crypto": "real", "key_bits": 1024},
    "vertical-forest": {"crypto": "real", "key_bits": 1024},
    "vertical-regression": {"arbiter": "real", "key_bits": 1024, "bits": 16},
}
#: In which parties ask others than the coordinator before they answer.
ASKING = {"lightgbm-data", "vertical-regression", "xgboost-ring", "xgboost-vertical"}


def test_every_defense_is_among_them():
    tried = {part.split("[")[0] for text in (*DEFENSES, *REAL) for part in text.split("+")}
    assert tried == {"none", *register.names("defense")}


class OverBytes(Network):
    """All parties behind lines: what is said to them, and what they answer, are bytes.

    `left`: What left each host, frame by frame. `asked`: What parties sent by themselves.
    """

    def connect(self, name, host):
        served, self.left = HostServer(host), getattr(self, "left", {})
        left = self.left[name] = []

        def send(blob):
            left.append(served.call(blob))
            return left[-1]

        super().connect(name, RemoteHost(name, send))

    def _send(self, to, message, why):
        before = len(self.transcript.deliveries)
        sent = super()._send(to, message, why)
        self.asked = [*getattr(self, "asked", []), self.transcript.deliveries[before]]
        return sent


#: What a protocol has of these makes it quick to run.
SHORT = {"trees": 1, "max_depth": 2, "depth": 2, "max_bin": 6, "rounds": 2, "channels": 2,
         "iterations": 2, "steps": 2}  # fmt: skip


def small(name, **more):
    """Make a protocol that is quickly run."""
    kind = register.get("protocol", name)
    short = {k: v for k, v in SHORT.items() if k in {f.name for f in fields(kind)}}
    return register.make("protocol", Spec(name, short | more))


def trained(protocol, defense, network, monkeypatch):
    monkeypatch.setattr(training, "Network", network)
    clients, schema = sample_federation(rows=60)
    rows = protocol.layout == "horizontal"
    held = over_clients(clients) if rows else sample_local_data(protocol)
    done = training.train(protocol, held, schema, defense=defense, seed=5, noise_from="seed")
    return done, done.predict(clients[0].X)


def check_leaving(net):
    """See that each host let out what is recorded of it, and nothing else."""
    for name, frames in net.left.items():
        told = [read_call(blob) for blob in frames]
        assert all({*header} in ({"waits", "events", "acted"}, {"ledgers"}) for header, _ in told)
        asked = {id(d) for d in net.asked if d.sender == name}
        recorded = [
            encode(d.message)
            for d in (*net.transcript, *net.inference)
            if d.sender == name and d.receivers != (name,) and id(d) not in asked
        ]
        if name == net.transcript.coordinator:
            assert not any(body for _, body in told)
            continue
        assert [body for header, body in told if body and not header["waits"]] == recorded
        after = iter(recorded)
        for header, body in told:
            if not header.get("waits"):
                continue
            waits = decode(body)
            assert has_sealed_field(waits)
            assert without_payload(waits) is waits
            crosses = next((m for m in map(decode, after) if type(m) is type(waits)), None)
            summed = {f.name: None for f in fields(waits) if f.metadata.get("summed")}
            if crosses is not None:  # of who opens a sum its own part crosses nowhere
                assert encode(replace(crosses, **summed)) == encode(replace(waits, **summed))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_leaves_a_host_is_what_the_transcript_says(name, monkeypatch):
    protocol, tried = small(name), 0
    for text in (*DEFENSES, *REAL):
        defense = make_defense(parse_composed([text])[0])
        if not check_fit(protocol, defense).ok or any(
            importlib.util.find_spec(module) is None
            for p in defense.parts
            for module in p.extra_packages
        ):
            continue
        twin = make_defense(parse_composed([text.replace("mode=real", "mode=ideal")])[0])
        simulated, scores = trained(protocol, twin, Network, monkeypatch)
        over, others = trained(protocol, defense, OverBytes, monkeypatch)
        assert crossings(over.transcript) == crossings(simulated.transcript), text
        assert crossings(over.net.inference) == crossings(simulated.net.inference), text
        assert scores.tobytes() == others.tobytes()
        check_leaving(over.net)
        asking = {d.sender for d in over.net.asked} - {over.transcript.coordinator}
        assert bool(asking) == (name in ASKING)
        tried += 1
    assert tried


@pytest.mark.parametrize("name", [n for n in CRYPTO if present.CRYPTO and n in PROTOCOLS])
def test_ciphertexts_of_parties_leave_as_they_are_recorded(name, monkeypatch):
    protocol = small(name, **CRYPTO[name])
    done, _ = trained(protocol, Composition(), OverBytes, monkeypatch)
    check_leaving(done.net)
    seals = [v for d in done.transcript for v in vars(d.message).values() if hasattr(v, "payload")]
    assert len(seals) > 3
    assert all(len(seal.payload) == seal.nbytes for seal in seals)


def test_every_party_draws_the_root_of_its_noise_itself(monkeypatch):
    drawn = []

    def token(count):
        drawn.append(len(drawn).to_bytes(count, "big"))
        return drawn[-1]

    monkeypatch.setattr("fedtrees.core.streams.secrets.token_bytes", token)
    clients, schema = sample_federation(rows=60)
    defense = make_defense(parse_composed(["laplace-hist[epsilon=4]"])[0])
    given = {"defense": defense, "noise_from": "system"}
    done = training.train(small("nvflare-hist"), over_clients(clients), schema, **given)
    assert len(drawn) == len(done.net.names) + 1  # and one for what happens on the way


class Failing(Party):
    """Has something to hide, and fails."""

    role = "client"

    def __init__(self, name):
        super().__init__(name)
        self.secret = 271828

    @handles(LabelSumsRequest)
    def count(self, message):
        raise LocalDataError(f"my row is {self.secret}")


def failing():
    _, schema = sample_federation(rows=30)
    server = Party("server")
    return network_of([server, Failing("client-0")], schema, network=OverBytes), server


def test_errors_cross_as_their_type_and_the_host_is_closed_after_it():
    net, server = failing()
    with acting(server), pytest.raises(ProtocolError, match=r"'client-0' stopped .*LocalDataError"):
        net.request("client", LabelSumsRequest(), reason="to count")
    assert net.left["client-0"][1:] == [write_call({"error": "LocalDataError"})]  # after it joined
    with acting(server), pytest.raises(ProtocolError, match="stopped the run"):
        net.send("client", LabelSumsRequest(), reason="once more")
    assert [type(d.message) for d in net.transcript if d.sender == "client-0"] == []


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"FTL1\xff\0\0\0{}",
        b"nonsense",
        write_call({"does": "run"}),
        write_call({"does": "ask"}),
        write_call({"does": "ask"}, LabelSumsRequest())[:-1],
        write_call({"does": "ask"}).replace(b'"ask"', b'"tel"') + b"FTM1\0\0\0\0",
        write_call({"does": "seal", "how": {}}),
    ],
)
def test_what_is_no_request_is_answered_by_the_type_of_an_error(blob):
    net, _ = failing()
    host = net._hosts["client-0"]
    header, body = read_call(HostServer(host).call(blob))
    assert {*header} == {"error"}
    assert header["error"].isidentifier()
    assert body == b""
