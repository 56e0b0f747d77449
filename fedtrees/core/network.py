"""Networks carry messages between parties and write every crossing down."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation, IdealSum, Wire
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.defense import Context, Level
from fedtrees.core.errors import ProtocolError, did_you_mean
from fedtrees.core.host import Agreement, Host, Reply
from fedtrees.core.line import Far
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.party import Party, acting, acting_party
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import PUBLIC, Transcript

T = TypeVar("T")


class Network(ABC):
    """What a coordinator talks to; nothing in a protocol may depend on which network it is.

    `declared`: Rows that each party said it has, by name; empty where nobody was asked.
    `weighted`: Whether rows have sample weights.
    """

    declared: Mapping[str, int] = MappingProxyType({})
    weighted: bool = False

    @abstractmethod
    def ask(self, to: str, message: Message, *, why: str) -> list[Message]:
        """Send a request to a role or a party and return the replies, in party order.

        Where a functionality hides the single replies, the list holds their sum alone.
        """

    @abstractmethod
    def tell(self, to: str, message: Message, *, why: str) -> Message:
        """Send without reply; return the message as it left, after the defenses."""

    @abstractmethod
    def note(self, message: Message, *, why: str) -> None:
        """Write down what the acting party opened of what it had received; nothing crosses."""

    @abstractmethod
    def members(self, role: str) -> list[str]:
        """Return the names of the parties of a role, in party order."""

    @abstractmethod
    def publish(self, message: Message, *, why: str) -> Message:
        """Tell the model to whoever wants it, the role ``public``; return it as it left."""

    @abstractmethod
    def spend(self, mechanism: str, **release: Any) -> None:
        """Enter noisy releases of the protocol's own into the ledger (`Context.spend`)."""

    @abstractmethod
    def allowed_splits(
        self, tree: int, nodes: int, bins: int, level: Level | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits the defenses allow, bool, shape (nodes, bins); None: all."""

    @abstractmethod
    def shown_nodes(self, level: Level) -> NDArray[np.bool_]:
        """Return of which nodes the defenses let other parties know, bool, shape (k,)."""

    @abstractmethod
    def reads_levels(self) -> tuple[bool, bool]:
        """Tell whether a defense reads a `Level`, and whether it reads its class counts too."""

    @abstractmethod
    def cut_plan(self) -> CutPlan | None:
        """Return how the defenses want cut points settled, None where no defense has a say."""


class LocalNetwork(Network):
    """Parties in one process, each beside its `Host`; others may be at the end of a line.

    Parameters
    ----------
    agreement : Agreement
        What everybody knows.
    streams : Streams
        Randomness of what happens to messages on their way.
    rows : int or None
        Declared training rows of all parties, where each counts once.
    transcript : Transcript, optional
        Where crossings of the training are recorded.
    """

    def __init__(
        self,
        agreement: Agreement,
        streams: Streams,
        rows: int | None = None,
        transcript: Transcript | None = None,
    ) -> None:
        self.agreement, self.defense = agreement, agreement.defense
        self._streams, self._rows = streams, rows
        self._hosts: dict[str, Host] = {}
        self._lines: dict[str, Host | Far] = {}
        self.transcript, self.inference = transcript or Transcript(), Transcript()
        self._ledger = self.transcript  # of training and of predictions
        self.aggregation: Aggregation = self.defense.aggregation() or IdealSum()
        self._opening = self.aggregation.opening()

    def join(self, host: Host) -> None:
        """Connect a party; replies come in the order of joining.

        Raises `ProtocolError` if the name is taken.
        """
        self.reach(host.name, self.line(host))
        self._hosts[host.name] = host
        with acting(host.party):
            host.party.net = proxy(self)  # what one party holds leads to nobody else's

    def reach(self, name: str, line: Host | Far) -> None:
        """Connect a party by what is said to it.

        Raises `ProtocolError` if the name is taken.
        """
        if name in self._lines:
            raise ProtocolError(f"party names must be unique; {name!r} joined twice")
        self._lines[name] = line
        self.transcript.roles[name] = self.agreement.roles[name]
        self.settle([name])

    @property
    def names(self) -> list[str]:
        """Names of all parties, in the order of joining."""
        return list(self._lines)

    @property
    def parties(self) -> list[Party]:
        """The parties in this process, behind their local data boundary."""
        return [host.party for host in self._hosts.values()]

    def party(self, name: str) -> Party:
        """Return a party, behind its local data boundary; act as it to hand it rows to predict."""
        return self._hosts[name].party

    def context(self, name: str) -> Context:
        """Return the defense context of a party."""
        return self._hosts[name].context

    def line(self, host: Host) -> Host | Far:
        """Return what the network says to a party by: its host itself, in one process."""
        return host

    def ask(self, to: str, message: Message, *, why: str) -> list[Message]:
        """Send a request and return the replies, or their sum under a secure sum."""
        self.transcript.rounds += 1
        sender, message, receivers = self._send(to, message, why)
        line_replies = self._each(receivers, lambda line: line.ask(message, why))
        replies = {name: self._there(name, reply, message) for name, reply in line_replies.items()}
        if not any(reply.waits for reply in line_replies.values()):
            for name, reply in replies.items():
                self.transcript.record(name, (sender,), reply, why)
            return list(replies.values())
        if not all(reply.waits for reply in line_replies.values()):
            raise ProtocolError(f"of replies to {type(message).__name__} only some are summed")
        total = self._opening.opened(replies, self._wire(sender, replies), why)
        self.transcript.record(sender, (sender,), total, f"{why} (sum only)")
        return [total]

    def tell(self, to: str, message: Message, *, why: str) -> Message:
        """Send without reply; return the message as it left."""
        _, message, receivers = self._send(to, message, why)
        self._each(receivers, lambda line: line.tell(message, why))
        return message

    def costs(self, sealing: Sealing | None) -> dict[str, float]:
        """Return what cryptography took, of all parties."""
        ledgers = self.every(self.names, lambda line: line.ledgers())
        sums = {name: sums for name, (sums, _) in ledgers.items() if sums}
        if self._opening.ledger is not None:
            sums[self.transcript.coordinator] = self._opening.ledger.told()
        sealing_ledgers = [ledger for _, ledger in ledgers.values() if ledger]
        return {
            **self.aggregation.costs(sums),
            **(sealing.costs(sealing_ledgers) if sealing else {}),
        }

    def note(self, message: Message, *, why: str) -> None:
        """Write down what the acting party opened of what it had received; nothing crosses."""
        name = self._sender().name
        self.transcript.record(name, (name,), message, why)

    def publish(self, message: Message, *, why: str) -> Message:
        """Tell the model to whoever wants it, the role ``public``; return it as it left."""
        name = self._sender().name
        message = self._leaving(name, message)
        self.transcript.roles[PUBLIC] = PUBLIC
        self.transcript.record(name, (PUBLIC,), message, why)
        return message

    def spend(self, mechanism: str, **release: Any) -> None:
        """Enter noisy releases of the protocol's own into the ledger (`Context.spend`)."""
        self.context(self._sender().name).spend(mechanism, **release)

    def predict(self, queries: Mapping[str, LocalData], what: str = "predict") -> NDArray[Any]:
        """Let the parties predict rows of which each has some columns.

        What crosses is in `inference`, a transcript of its own.

        Parameters
        ----------
        queries : mapping of str to LocalData
            What each holder has of the rows, without labels.
        what : {"predict", "leaves"}
            The coordinator's method.
        """
        for name, query in queries.items():
            self._hosts[name].expect(query)
        coordinator: Any = self.party(self.transcript.coordinator)
        training, self.transcript = self.transcript, self.inference
        try:
            with acting(coordinator):
                answers: NDArray[Any] = getattr(coordinator, what)(self)
        finally:
            self.transcript = training
        return answers

    def own_thresholds(self) -> dict[str, Mapping[tuple[int, int], tuple[int, float]]]:
        """Return what each party alone knows of its splits, for the harness (`Party`)."""
        return {name: host.own(Party.own_thresholds) for name, host in self._hosts.items()}

    def sealing_of(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what parties compute on sealed values with, for the harness."""
        computing = [name for name in names if name in self._hosts]  # the public computes nothing
        return {name: self._hosts[name].sealing for name in computing}

    def own_bins(self) -> dict[str, Mapping[int, NDArray[np.int64]]]:
        """Return the bins of each party's rows, for the harness (`Party`)."""
        return {name: host.own(Party.own_bins) for name, host in self._hosts.items()}

    def members(self, role: str) -> list[str]:
        """Return the names of the parties of a role, in the order of joining."""
        return [name for name in self._lines if self.agreement.roles[name] == role]

    def allowed_splits(
        self, tree: int, nodes: int, bins: int, level: Level | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits the defenses allow, None where no defense has a say."""
        party = acting_party()
        if party is None or not self.defense.restricts_splits:
            return None
        mask = np.ones((nodes, bins), dtype=bool)
        return self.defense.candidates(mask, tree, replace(self.context(party.name), level=level))

    def shown_nodes(self, level: Level) -> NDArray[np.bool_]:
        """Return of which nodes the defenses let other parties know; of all where none has a say.

        Who knows the rows of one child and of the parent knows those of the other: pairs are shown
        or hidden together.
        """
        context = replace(self.context(self._sender().name), level=level)
        mask = self.defense.shown(np.ones(len(level.nodes), dtype=bool), level.tree, context)
        if len(mask) > 1:
            mask = np.repeat(mask.reshape(-1, 2).all(axis=1), 2)
        return mask

    def reads_levels(self) -> tuple[bool, bool]:
        """Tell whether a defense reads a `Level`, and whether it reads its class counts too."""
        reads = self.defense.restricts_splits or self.defense.hides_nodes
        return reads, self.defense.counts_classes

    def cut_plan(self) -> CutPlan | None:
        """Return how the defenses want cut points settled, None where no defense has a say."""
        settling = [i for i, p in enumerate(self.defense.parts) if p.cuts() is not None]
        self.transcript.acted.update(settling)
        return self.defense.cut_plan

    def _enter(self, reply: Reply) -> Reply:
        """Enter what a party spent, and which defenses acted."""
        self._ledger.events += reply.events
        self._ledger.acted |= reply.acted
        return reply

    def every(self, names: Iterable[str], say: Callable[[Host | Far], T]) -> dict[str, T]:
        """Say something to parties and return what each answers, in order."""
        return {name: say(self._lines[name]) for name in names}

    def _each(self, names: Iterable[str], say: Callable[[Host | Far], Reply]) -> dict[str, Reply]:
        """Say something to parties, and enter what each spent."""
        return {name: self._enter(reply) for name, reply in self.every(names, say).items()}

    def settle(self, names: Iterable[str]) -> None:
        """Enter what parties spent since they were last heard of."""
        self._each(names, lambda line: line.spent())

    def _there(self, name: str, reply: Reply, message: Message) -> Message:
        if reply.message is None:
            raise ProtocolError(f"{name!r} gave no reply to {type(message).__name__}")
        return reply.message

    def _leaving(self, name: str, message: Message) -> Message:
        """Return a message as it leaves the acting party."""
        message = self._hosts[name].leaving(message)
        self.settle([name])
        return message

    def _send(self, to: str, message: Message, why: str) -> tuple[str, Message, Sequence[str]]:
        if not why:
            raise ProtocolError(f"{type(message).__name__} needs a reason: why=...")
        name = self._sender().name
        self.transcript.coordinator = self.transcript.coordinator or name
        other_receivers = [receiver for receiver in self._resolve(to) if receiver != name]
        receivers = self.defense.audience(message, other_receivers, self.context(name))
        message = self._leaving(name, message)
        self.transcript.record(name, tuple(receivers), message, why)
        self._opening.hear(receivers, message)
        return name, message, receivers

    def _wire(self, server: str, waiting: Mapping[str, Message]) -> Wire:
        """Return what whoever opens a sum may know and do."""
        agreed = self.agreement
        shares = agreed.noise_shares(agreed.roles[next(iter(waiting))])
        kinds = {type(reply) for reply in waiting.values()}
        least = max((shares[kind] for kind in kinds & {*shares}), default=0)

        def ask(
            to: Sequence[str], message: Message, why: str, back: str = "", gone: Sequence[str] = ()
        ) -> dict[str, Message]:
            self.transcript.rounds += 1
            self.transcript.record(server, tuple(to), message, why)
            reachable = [n for n in to if n not in gone]
            return carried(self._each(reachable, lambda line: line.ask(message, why)), back or why)

        def seal(names: Iterable[str], how: Mapping[str, Any], why: str) -> dict[str, Message]:
            return carried(self._each(names, lambda line: line.seal(how, why)), why)

        def carried(heard: Mapping[str, Reply], why: str) -> dict[str, Message]:
            for name, reply in heard.items():
                host = self._hosts.get(name)
                for opened_message, reason in host.kept() if host else ():
                    self.transcript.record(name, (name,), opened_message, reason)
                if reply.message is None:
                    continue
                if host is not None and host.inside is not None:
                    self.transcript.inside[len(self.transcript.deliveries)] = host.inside
                    host.inside = None
                self.transcript.record(name, (server,), reply.message, why)
            return {n: reply.message for n, reply in heard.items() if reply.message is not None}

        agreed_sums = agreed.sums(agreed.roles[next(iter(waiting))])
        on_the_way = self._streams.child("network")
        return Wire(server, self._rows, agreed_sums, ask, seal, on_the_way, least)

    def _sender(self) -> Party:
        party = acting_party()
        if party is None or party.name not in self._hosts:
            raise ProtocolError("only a party of this network can send; run it with acting(party)")
        return party

    def _resolve(self, to: str) -> list[str]:
        if to in self._lines:
            return [to]
        members = self.members(to)
        if not members:
            names = {*self._lines, *(self.agreement.roles[name] for name in self._lines)}
            raise ProtocolError(f"no party or role {to!r}{did_you_mean(to, names)}")
        return members
