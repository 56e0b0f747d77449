"""Networks carry messages between parties and write every crossing down."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.aggregation import Aggregation, Wire
from fedtrees.core.aggregation import add_messages as add_messages
from fedtrees.core.composition import Composition
from fedtrees.core.cut_plan import CutPlan
from fedtrees.core.defense import Context, Level
from fedtrees.core.errors import ProtocolError, did_you_mean
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, closed, sealed
from fedtrees.core.party import Party, acting, acting_party
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import PUBLIC, Transcript


class Network(ABC):
    """What a coordinator talks to; nothing in a protocol may depend on which network it is."""

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
    """All parties in one process.

    Parameters
    ----------
    parameters : mapping
        The protocol's public parameters.
    summed : tuple of Message types
        Reply types that cross under the protocol's own secure sum: the ideal one, unless a defense
        brings its cryptography.
    shared : tuple of Message types
        Of these, what holds more than follows from the sender's rows: its share of noise.
    rows : int or None
        Declared training rows of all parties, where each counts once.
    sealing : Sealing, optional
        What computes on sealed values; every party gets its part of it.
    """

    def __init__(
        self,
        *,
        defense: Composition,
        schema: Schema,
        parameters: Mapping[str, Any],
        streams: Streams,
        summed: tuple[type[Message], ...] = (),
        shared: tuple[type[Message], ...] = (),
        rows: int | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self._parties: dict[str, Party] = {}
        self.defense = defense
        self.transcript, self.inference = Transcript(), Transcript()
        self._public = (schema, parameters)
        self._streams = streams
        self._summed, self._shared, self._rows, self._sealing = summed, shared, rows, sealing
        self.aggregation: Aggregation = defense.aggregation() or IdealSum()
        self._contexts: dict[str, Context] = {}

    def join(self, party: Party) -> None:
        """Connect a party; replies come in the order of joining.

        Raises `ProtocolError` if the name is taken.
        """
        if party.name in self._parties:
            raise ProtocolError(f"party names must be unique; {party.name!r} joined twice")
        self._parties[party.name] = party
        context = self.context_of(party.name, party.role)
        with acting(party):
            party.streams = self._streams.child(party.name)
            party.row_hook = partial(self.defense.rows, ctx=context)
            party.sealing = None if self._sealing is None else self._sealing.part(party.role)
            party.net = proxy(self)  # what one party holds leads to nobody else's
        self.transcript.roles[party.name] = party.role

    def context_of(self, name: str, role: str, held: LocalData | None = None) -> Context:
        """Return the defense context of a party, which may yet have to join."""
        if name not in self._contexts:
            schema, parameters = self._public
            self._contexts[name] = Context(
                party=name,
                role=role,
                schema=schema,
                parameters=parameters,
                streams=self._streams.child(name, "defense"),
                ledger=self.transcript.events,
                acted=self.transcript.acted,
                _held=held,
            )
        return self._contexts[name]

    @property
    def names(self) -> list[str]:
        """Names of all parties, in the order of joining."""
        return list(self._parties)

    def party(self, name: str) -> Party:
        """Return a party, behind its local data boundary; act as it to hand it rows to predict."""
        return self._parties[name]

    def context(self, name: str) -> Context:
        """Return the defense context of a party."""
        return self._contexts[name]

    def ask(self, to: str, message: Message, *, why: str) -> list[Message]:
        """Send a request and return the replies, or their sum under a secure sum."""
        self.transcript.rounds += 1
        sender, message, receivers = self._send(to, message, why)
        replies: dict[str, Message] = {}
        summed, told = False, set[str]()
        for name in receivers:
            reply = self._parties[name].answer(message)
            if reply is None:
                raise ProtocolError(f"{name!r} gave no reply to {type(message).__name__}")
            context = self.context(name)
            with acting(self._parties[name]):
                replies[name] = reply = self.defense.outgoing(reply, context)
            by_defense = self.defense.seals(reply, context)
            summed |= by_defense or type(reply) in self._summed
            if by_defense or type(reply) in self._shared:
                told.add(name)
        if not summed:
            for name, reply in replies.items():
                self.transcript.record(name, (sender,), reply, why)
            return list(replies.values())
        first = len(self.transcript.deliveries)
        total = self.aggregation.summed(replies, self._wire(sender, replies), why)
        for d in self.transcript.deliveries[first:]:
            own = replies.get(d.sender)
            if d.sender in told and type(own) is type(d.message) and closed(d.message):
                self.transcript.inside[d.index] = replies[d.sender]
        self.transcript.record(sender, (sender,), total, f"{why} (sum only)")
        return [total]

    def tell(self, to: str, message: Message, *, why: str) -> Message:
        """Send without reply; return the message as it left."""
        _, message, receivers = self._send(to, message, why)
        for name in receivers:
            self._parties[name].answer(message)
        return message

    def note(self, message: Message, *, why: str) -> None:
        """Write down what the acting party opened of what it had received; nothing crosses."""
        name = self._sender().name
        self.transcript.record(name, (name,), message, why)

    def publish(self, message: Message, *, why: str) -> Message:
        """Tell the model to whoever wants it, the role ``public``; return it as it left."""
        party = self._sender()
        message = self.defense.outgoing(message, self.context(party.name))
        self.transcript.roles[PUBLIC] = PUBLIC
        self.transcript.record(party.name, (PUBLIC,), message, why)
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
        for name, held in queries.items():
            with acting(self._parties[name]):
                self._parties[name].queries = held
        coordinator: Any = self._parties[self.transcript.coordinator]
        training, self.transcript = self.transcript, self.inference
        try:
            with acting(coordinator):
                answers: NDArray[Any] = getattr(coordinator, what)(self)
        finally:
            self.transcript = training
        return answers

    def own_thresholds(self) -> dict[str, Mapping[tuple[int, int], tuple[int, float]]]:
        """Return what each party alone knows of its splits, for the harness (`Party`)."""
        found = {}
        for name, party in self._parties.items():
            with acting(party):
                found[name] = party.own_thresholds()
        return found

    def sealing_of(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what parties compute on sealed values with, for the harness."""
        found = {}
        for name in (n for n in names if n in self._parties):  # the public computes nothing
            with acting(self._parties[name]):
                found[name] = self._parties[name].sealing
        return found

    def own_bins(self) -> dict[str, Mapping[int, NDArray[np.int64]]]:
        """Return the bins of each party's rows, for the harness (`Party`)."""
        found = {}
        for name, party in self._parties.items():
            with acting(party):
                found[name] = party.own_bins()
        return found

    def members(self, role: str) -> list[str]:
        """Return the names of the parties of a role, in the order of joining."""
        return [p.name for p in self._parties.values() if p.role == role]

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

    def _send(self, to: str, message: Message, why: str) -> tuple[str, Message, Sequence[str]]:
        if not why:
            raise ProtocolError(f"{type(message).__name__} needs a reason: why=...")
        party = self._sender()
        self.transcript.coordinator = self.transcript.coordinator or party.name
        context = self.context(party.name)
        receivers = self.defense.audience(message, self._resolve(to), context)
        message = self.defense.outgoing(message, context)
        self.transcript.record(party.name, tuple(receivers), message, why)
        return party.name, message, receivers

    def _wire(self, server: str, replies: Mapping[str, Message]) -> Wire:
        """Return what an aggregation may know and do."""
        schema, parameters = self._public
        shared = {**dict.fromkeys(self._shared, 0), **self.defense.shared(schema, parameters)}
        kinds = {type(reply) for reply in replies.values()}
        least = max((shared[kind] or len(replies) for kind in kinds & {*shared}), default=0)

        def carry(sender: str, receivers: tuple[str, ...], message: Message, why: str) -> None:
            self.transcript.rounds += sender == server
            self.transcript.record(sender, receivers, message, why)

        exact = self.defense.sums_exactly
        on_the_way = self._streams.child("network")
        return Wire(
            server, self._rows, exact, len(schema.classes), parameters, carry, on_the_way, least
        )

    def _sender(self) -> Party:
        party = acting_party()
        if party is None or party.name not in self._parties:
            raise ProtocolError("only a party of this network can send; run it with acting(party)")
        return party

    def _resolve(self, to: str) -> list[str]:
        if to in self._parties:
            return [to]
        found = self.members(to)
        if not found:
            names = {*self._parties, *(p.role for p in self._parties.values())}
            raise ProtocolError(f"no party or role {to!r}{did_you_mean(to, names)}")
        return found


class IdealSum(Aggregation):
    """The ideal functionality: nothing but the sum is opened, and nothing else crosses."""

    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let replies cross closed and return their sum."""
        for name, reply in replies.items():
            wire.carry(name, (wire.server,), sealed(reply), why)
        return add_messages(replies.values())
