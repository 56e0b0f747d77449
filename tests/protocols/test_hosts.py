"""The bytes that leave a host equal the transcript, for every protocol and defense."""

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
# Protocols that encrypt if their parties have keys.
CRYPTO = {
    "secureboost": {"crypto": "real", "key_bits": 1024},
    "vertical-forest": {"crypto": "real", "key_bits": 1024},
    "vertical-regression": {"arbiter": "real", "key_bits": 1024, "bits": 16},
}
# Protocols in which parties send requests to others before they answer.
ASKING = {"lightgbm-data", "vertical-regression", "xgboost-ring", "xgboost-vertical"}


def test_every_defense_is_among_them():
    tried = {part.split("[")[0] for text in (*DEFENSES, *REAL) for part in text.split("+")}
    assert tried == {"none", *register.names("defense")}


class OverBytes(Network):
    """A network whose parties exchange bytes, as over a connection.

    `left` contains the bytes that left each host, frame by frame. `asked` contains the requests
    that parties sent on their own initiative.
    """

    def _connect(self, host):
        host_server, self.left = HostServer(host), getattr(self, "left", {})
        frames = self.left[host.name] = []

        def send(blob):
            frames.append(host_server.call(blob))
            return frames[-1]

        super()._connect(RemoteHost(host.name, send))

    def _send(self, to, message, reason):
        n_deliveries = len(self.transcript.deliveries)
        sent = super()._send(to, message, reason)
        self.asked = [*getattr(self, "asked", []), self.transcript.deliveries[n_deliveries]]
        return sent


# Parameters that shorten a run, for the protocols that have them.
SHORT = {"trees": 1, "max_depth": 2, "depth": 2, "max_bin": 6, "rounds": 2, "channels": 2,
         "iterations": 2, "steps": 2}  # fmt: skip


def small(name, **parameters):
    """Make a protocol with parameters that keep its run short."""
    kind = register.get("protocol", name)
    quick_parameters = {k: v for k, v in SHORT.items() if k in {f.name for f in fields(kind)}}
    return register.make("protocol", Spec(name, quick_parameters | parameters))


def trained(protocol, defense, network, monkeypatch):
    monkeypatch.setattr(training, "Network", network)
    clients, schema = sample_federation(rows=60)
    is_horizontal = protocol.layout == "horizontal"
    local_data = over_clients(clients) if is_horizontal else sample_local_data(protocol)
    run = training.train(protocol, local_data, schema, defense=defense, seed=5, noise_from="seed")
    return run, run.predict(clients[0].X)


def check_frames(net):
    """Check that each host sent exactly the messages that the transcript records for it."""
    for name, frames in net.left.items():
        calls = [read_call(blob) for blob in frames]
        assert all({*header} in ({"waits", "events", "acted"}, {"ledgers"}) for header, _ in calls)
        own_requests = {id(d) for d in net.asked if d.sender == name}
        recorded = [
            encode(d.message)
            for d in (*net.transcript, *net.inference)
            if d.sender == name and d.receivers != (name,) and id(d) not in own_requests
        ]
        if name == net.transcript.coordinator:
            assert not any(body for _, body in calls)
            continue
        assert [body for header, body in calls if body and not header["waits"]] == recorded
        recorded_messages = iter(recorded)
        for header, body in calls:
            if not header.get("waits"):
                continue
            waiting_message = decode(body)
            assert has_sealed_field(waiting_message)
            assert without_payload(waiting_message) is waiting_message
            opened_message = next(
                (m for m in map(decode, recorded_messages) if type(m) is type(waiting_message)),
                None,
            )
            summed_fields = {
                f.name: None for f in fields(waiting_message) if f.metadata.get("summed")
            }
            if opened_message is not None:  # The party that opens a sum sends its own part nowhere.
                assert encode(replace(opened_message, **summed_fields)) == encode(
                    replace(waiting_message, **summed_fields)
                )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_bytes_that_leave_a_host_equal_the_transcript(name, monkeypatch):
    protocol, n_defenses = small(name), 0
    for text in (*DEFENSES, *REAL):
        defense = make_defense(parse_composed([text])[0])
        if not check_fit(protocol, defense).ok or any(
            importlib.util.find_spec(module) is None
            for part in defense.parts
            for module in part.extra_packages
        ):
            continue
        ideal_defense = make_defense(parse_composed([text.replace("mode=real", "mode=ideal")])[0])
        simulated, scores = trained(protocol, ideal_defense, Network, monkeypatch)
        over_bytes, scores_over_bytes = trained(protocol, defense, OverBytes, monkeypatch)
        assert crossings(over_bytes.transcript) == crossings(simulated.transcript), text
        assert crossings(over_bytes.net.inference) == crossings(simulated.net.inference), text
        assert scores.tobytes() == scores_over_bytes.tobytes()
        check_frames(over_bytes.net)
        requesting_parties = {delivery.sender for delivery in over_bytes.net.asked} - {
            over_bytes.transcript.coordinator
        }
        assert bool(requesting_parties) == (name in ASKING)
        n_defenses += 1
    assert n_defenses


@pytest.mark.parametrize("name", [n for n in CRYPTO if present.CRYPTO and n in PROTOCOLS])
def test_ciphertexts_leave_as_they_are_recorded(name, monkeypatch):
    protocol = small(name, **CRYPTO[name])
    run, _ = trained(protocol, Composition(), OverBytes, monkeypatch)
    check_frames(run.net)
    sealed_fields = [
        value
        for delivery in run.transcript
        for value in vars(delivery.message).values()
        if hasattr(value, "payload")
    ]
    assert len(sealed_fields) > 3
    assert all(len(seal.payload) == seal.nbytes for seal in sealed_fields)


def test_every_party_draws_its_own_noise_key(monkeypatch):
    keys = []

    def token(count):
        keys.append(len(keys).to_bytes(count, "big"))
        return keys[-1]

    monkeypatch.setattr("fedtrees.core.streams.secrets.token_bytes", token)
    clients, schema = sample_federation(rows=60)
    defense = make_defense(parse_composed(["laplace-hist[epsilon=4]"])[0])
    options = {"defense": defense, "noise_from": "system"}
    run = training.train(small("nvflare-hist"), over_clients(clients), schema, **options)
    assert len(keys) == len(run.net.hosts) + 1  # one key per party, and one for the network


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
def test_invalid_requests_are_answered_with_an_error_type(blob):
    net, _ = failing()
    host = net.hosts["client-0"]
    header, body = read_call(HostServer(host).call(blob))
    assert {*header} == {"error"}
    assert header["error"].isidentifier()
    assert body == b""
