import re
from dataclasses import dataclass

import numpy as np
import pytest
from federations import network_of

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import DataError, ProtocolError, UnguardedMessageError
from fedtrees.core.messages import Reveal, Sealed, has_sealed_field
from fedtrees.core.party import Party, acting, handles
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import see
from fedtrees.messages.horizontal import BaseScore, LabelSums, LabelSumsRequest
from fedtrees.moved import REMOVED_FROM_NETWORK


class Counter(Party):
    role = "client"

    def __init__(self, name, counts):
        super().__init__(name)
        self.sums = np.array(counts)

    @handles(LabelSumsRequest)
    def count(self, message):
        return LabelSums(self.sums.copy())

    @handles(BaseScore)
    def note(self, message):
        self.score = message.margin


class Server(Party):
    role = "server"


def network(defense=None, summed=()):
    parties = Server("server"), Counter("client-0", [1, 2]), Counter("client-1", [10, 20])
    return network_of(parties, Schema((Feature("a"),), "y"), defense, summed), parties[0]


def test_replies_come_in_party_order_and_every_crossing_is_recorded():
    net, server = network()
    with acting(server):
        replies = net.request("client", LabelSumsRequest(), reason="to count")
        net.send("client-1", BaseScore(np.zeros(1, np.float32)), reason="to start")
    assert [r.sums.tolist() for r in replies] == [[1, 2], [10, 20]]
    crossings = [(d.sender, d.receivers, type(d.message).__name__) for d in net.transcript]
    assert crossings == [
        ("server", ("client-0", "client-1"), "LabelSumsRequest"),
        ("client-0", ("server",), "LabelSums"),
        ("client-1", ("server",), "LabelSums"),
        ("server", ("client-1",), "BaseScore"),
    ]
    up = sum(n for (way, _), n in net.transcript.traffic().items() if way == "up")
    assert up == sum(d.nbytes for d in net.transcript if d.sender.startswith("client"))


def test_only_an_acting_party_of_the_network_may_send_and_it_must_give_a_reason():
    net, server = network()
    with pytest.raises(ProtocolError, match="only a party"):
        net.send("client", BaseScore(np.zeros(1, np.float32)), reason="x")
    with acting(server), pytest.raises(ProtocolError, match="needs a reason"):
        net.send("client", BaseScore(np.zeros(1, np.float32)), reason="")
    with acting(server), pytest.raises(ProtocolError, match="did you mean 'client'"):
        net.send("clients", BaseScore(np.zeros(1, np.float32)), reason="x")


def test_a_secure_sum_opens_only_the_sum():
    net, server = network(summed=(LabelSums,))
    with acting(server):
        total = net.request_sum("client", LabelSumsRequest(), reason="to count")
    assert total.sums.tolist() == [11, 22]
    label_sums = [
        item for item in see(net.transcript, ("server",)) if isinstance(item.message, LabelSums)
    ]
    assert [
        (item.sender, item.message.sums) for item in label_sums if has_sealed_field(item.message)
    ] == [(f"client-{i}", Sealed((), (2,), "<i8", 16)) for i in (0, 1)]
    opened = [
        (item.sender, item.message.sums.tolist())
        for item in label_sums
        if not has_sealed_field(item.message)
    ]
    assert opened == [("server", [11, 22])]
    own_messages = [
        item.message for item in see(net.transcript, ("client-0",)) if item.sender == "client-0"
    ]
    assert has_sealed_field(own_messages[0])  # Its own contribution follows from its local data.
    joint_view = see(net.transcript, ("client-0", "client-1"))
    assert not any(item.opened for item in joint_view)
    messages_of_other = [
        item for item in see(net.transcript, ("client-1",)) if item.sender == "client-0"
    ]
    assert messages_of_other == []


def test_adding_a_colluder_never_makes_a_view_smaller():
    net, server = network()
    with acting(server):
        net.request("client", LabelSumsRequest(), reason="to count")
        net.send("client-1", BaseScore(np.zeros(1, np.float32)), reason="to start")
    names = list(net.transcript.roles)
    for name in names:
        view = see(net.transcript, (name,))
        for colluder in names:
            joint_messages = [item.message for item in see(net.transcript, (name, colluder))]
            assert all(any(item.message is message for message in joint_messages) for item in view)


@dataclass(frozen=True)
class Claims(Defense):
    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS})


def test_an_unguarded_message_stops_the_run_before_it_is_sent():
    net, server = network(Composition((Claims(),)))
    with acting(server), pytest.raises(UnguardedMessageError, match="LabelSums"):
        net.request("client", LabelSumsRequest(), reason="to count")
    assert [type(d.message).__name__ for d in net.transcript] == ["LabelSumsRequest"]


@dataclass(frozen=True)
class Exempting(Claims):
    permitted_types = {LabelSums: "a test"}


@dataclass(frozen=True)
class Doubling(Claims):
    handled_types = (LabelSums,)

    def transform_message(self, message, ctx):
        return LabelSums(message.sums * 2)


def test_a_guard_or_a_reasoned_exemption_lets_it_through():
    for defense, expected in ((Exempting(), [1, 2]), (Doubling(), [2, 4])):
        net, server = network(Composition((defense,)))
        with acting(server):
            replies = net.request("client", LabelSumsRequest(), reason="to count")
        assert replies[0].sums.tolist() == expected


def test_in_a_composition_every_part_must_agree():
    net, server = network(Composition((Doubling(), Claims())))
    with acting(server), pytest.raises(UnguardedMessageError):
        net.request("client", LabelSumsRequest(), reason="to count")


def test_a_transcript_survives_saving_and_a_cut_file_is_refused(tmp_path):
    net, server = network(summed=(LabelSums,))
    with acting(server):
        net.request("client", LabelSumsRequest(), reason="to count")
    net.hosts["client-0"].context.record_release("laplace", l1=1.0, scale=2.0, what="LabelSums")
    net.finish(None)
    path = tmp_path / "t.npz"
    net.transcript.save(path)
    back = Transcript.load(path)
    assert back.roles == net.transcript.roles
    assert back.events == net.transcript.events != []
    assert back.rounds == net.transcript.rounds == 1
    assert [(d.sender, d.receivers, d.nbytes, d.reason) for d in back] == [
        (d.sender, d.receivers, d.nbytes, d.reason) for d in net.transcript
    ]
    blob = path.read_bytes()
    for cut in (0, 10, len(blob) // 2, len(blob) - 1):
        path.write_bytes(blob[:cut])
        with pytest.raises(DataError, match="not a readable transcript"):
            Transcript.load(path)


def test_old_names_of_requests_work_with_a_warning():
    net, server = network()
    with acting(server):
        with pytest.warns(DeprecationWarning, match=r"Network\.request"):
            replies = net.ask("client", LabelSumsRequest(), why="to count")
        with pytest.warns(DeprecationWarning, match=r"Network\.send"):
            net.tell("client", BaseScore(np.zeros(1, np.float32)), why="to start")
    assert [r.sums.tolist() for r in replies] == [[1, 2], [10, 20]]


@pytest.mark.parametrize("name", REMOVED_FROM_NETWORK)
def test_a_removed_member_of_a_network_is_refused_with_its_replacement(name):
    net, _ = network()
    with pytest.raises(AttributeError, match=re.escape(REMOVED_FROM_NETWORK[name])):
        getattr(net, name)


class WrongReply(Counter):
    @handles(LabelSumsRequest)
    def count(self, message):
        return BaseScore(np.zeros(1, np.float32))


def test_a_reply_of_another_type_than_the_request_declares_is_refused():
    parties = Server("server"), WrongReply("client-0", [1, 2])
    net = network_of(parties, Schema((Feature("a"),), "y"))
    with acting(parties[0]), pytest.raises(ProtocolError, match="the request declares LabelSums"):
        net.request("client", LabelSumsRequest(), reason="to count")
