"""Hosts: what stands beside a party and lets nothing leave that its defenses have not seen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedtrees.core.aggregation import Aggregation, Closing, Known
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message, check_fields, sealed
from fedtrees.core.party import Party, acting
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import BudgetEvent


@dataclass(frozen=True, eq=False)
class Agreement:
    """What everybody knows of a run before it begins.

    Attributes
    ----------
    parameters : mapping
        The protocol's public parameters.
    roles : mapping of str to str
        Role of every party by name, in the order in which replies are taken.
    summed : tuple of Message types
        Reply types that cross under the protocol's own secure sum: the ideal one, unless a defense
        brings its cryptography.
    shared : tuple of Message types
        Of these, what holds more than follows from the sender's rows: its share of noise.
    """

    schema: Schema
    parameters: Mapping[str, Any]
    defense: Composition
    roles: Mapping[str, str]
    summed: tuple[type[Message], ...] = ()
    shared: tuple[type[Message], ...] = ()

    def members(self, role: str) -> tuple[str, ...]:
        """Return the names of the parties of a role, in order."""
        return tuple(name for name, other in self.roles.items() if other == role)

    def sums(self, role: str) -> Known:
        """Return what everybody knows of sums of a role's replies."""
        parties, classes = self.members(role), len(self.schema.classes)
        exact = self.defense.sums_exactly
        return Known(parties, exact, classes, self.parameters, self.noise_shares(role))

    def noise_shares(self, role: str) -> dict[type[Message], int]:
        """Return the replies that contain a share of noise, and how many shares are needed.

        A sum over fewer replies of such a type has less noise than claimed.
        """
        least_shares = {**dict.fromkeys(self.shared, 0)}
        least_shares |= self.defense.shared(self.schema, self.parameters)
        every = len(self.members(role))
        return {kind: least or every for kind, least in least_shares.items()}


@dataclass(frozen=True, eq=False)
class Reply:
    """What leaves a host.

    Attributes
    ----------
    message : Message or None
        Of a reply that `waits` to cross closed, what crosses open: all but its summed fields.
    events : tuple of BudgetEvent
        What the party spent since the reply before.
    acted : frozenset of int
        Places of the defenses that changed something at this party so far.
    """

    message: Message | None = None
    waits: bool = False
    events: tuple[BudgetEvent, ...] = ()
    acted: frozenset[int] = frozenset()


class Host:
    """One party with its defenses, its randomness and its keys.

    Parameters
    ----------
    streams : Streams
        Where the party's own randomness comes from.
    held : LocalData, optional
        What the party holds.
    aggregation : Aggregation
        How replies are summed; of one process one object, of several each its own.
    sealing : Sealing, optional
        What computes on sealed values.

    Attributes
    ----------
    inside : Message or None
        What the party put into the reply that crossed closed last, where that does not follow from
        its rows: for its own log.
    """

    party: Party

    def __init__(
        self,
        agreement: Agreement,
        name: str,
        streams: Streams,
        *,
        aggregation: Aggregation,
        held: LocalData | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self.name, self.role, self.agreement = name, agreement.roles[name], agreement
        self.inside: Message | None = None
        self._waiting: Message | None = None
        self._told = False  # whether what waits does not follow from rows
        self._streams = streams.child(name)
        self._sealing, self._aggregation = sealing, aggregation
        self._closing: Closing | None = None
        self._sums = bool(agreement.summed or agreement.defense.summed)
        self._rows = None if held is None or held.weight is not None else len(held)
        reads = any(part.reads_rows for part in agreement.defense.parts)  # else nobody keeps them
        self.context = Context(
            party=name,
            role=self.role,
            schema=agreement.schema,
            parameters=agreement.parameters,
            streams=streams.child(name, "defense"),
            ledger=[],
            columns=None if held is None else held.columns,
            roles=agreement.roles,
            _held=held if reads else None,
        )

    def join(self, party: Party) -> None:
        """Take the party in, and hand it what is its own."""
        self.party = party
        with acting(party):
            party.streams, party.agreement = self._streams, self.agreement
            party.row_hook = partial(self.agreement.defense.rows, ctx=self.context)
            party.before_sealing = partial(self.agreement.defense.outgoing, ctx=self.context)
            party.sealing = None if self._sealing is None else self._sealing.part(self.role)

    @property
    def sealing(self) -> Any:
        """What the party computes on sealed values with, for itself and the harness."""
        with acting(self.party):
            return self.party.sealing

    def expect(self, queries: LocalData) -> None:
        """Take in the party's columns of the rows to predict."""
        with acting(self.party):
            self.party.queries = queries

    def own(self, what: Callable[[Party], Any]) -> Any:
        """Return what the party alone knows, for the harness (`Party.own_bins`)."""
        with acting(self.party):
            return getattr(self.party, what.__name__)()

    def ledgers(self) -> tuple[Any, Any]:
        """Return what cryptography took here: of sums, and of what the party itself computed."""
        return _told(self.closing), _told(self.sealing)

    @property
    def closing(self) -> Closing:
        """What its replies are closed with."""
        if self._closing is None:
            agreed_sums = self.agreement.sums(self.role)
            self._closing = self._aggregation.closing(self.name, self._rows, agreed_sums)
        return self._closing

    def leaving(self, message: Message) -> Message:
        """Pass what the party sends through its defenses."""
        with acting(self.party):
            return self.agreement.defense.outgoing(message, self.context)

    def kept(self) -> list[tuple[Message, str]]:
        """Return what its keys opened for itself since this was asked last, with reasons."""
        messages, self.closing.kept[:] = [*self.closing.kept], []
        return messages

    def tell(self, message: Message, why: str = "") -> Reply:
        """Let the party hear a message."""
        self._hear(message)
        self.party.answer(message)
        return self._reply()

    def ask(self, message: Message, why: str = "") -> Reply:
        """Let the party answer a request; a reply that is summed waits to be closed."""
        if self.closing.takes(message):
            return self._reply(self.closing.answer(message))
        self._hear(message)
        reply = self.party.answer(message)
        if reply is None:
            raise ProtocolError(f"{self.name!r} gave no reply to {type(message).__name__}")
        reply, agreed = self.leaving(reply), self.agreement
        by_defense = agreed.defense.seals(reply, self.context)
        if not by_defense and type(reply) not in agreed.summed:
            return self._reply(reply)
        check_fields(reply)
        self._waiting, self._told = reply, by_defense or type(reply) in agreed.shared
        return self._reply(sealed(reply), waits=True)

    def _hear(self, message: Message) -> None:
        if self._sums:
            self.closing.hear(message)

    def seal(self, how: Mapping[str, Any], why: str = "") -> Reply:
        """Let what waits cross closed, as whoever opens it says."""
        message = self.closing.seal(self._waiting, how)
        crosses = message is not None and type(message) is type(self._waiting)
        self.inside = self._waiting if crosses and self._told else None
        return self._reply(message)

    def _reply(self, message: Message | None = None, *, waits: bool = False) -> Reply:
        return replace(self.spent(), message=message, waits=waits)

    def spent(self) -> Reply:
        """Return what the party spent, and which defenses acted, with no message."""
        events, self.context.ledger[:] = tuple(self.context.ledger), []
        return Reply(events=events, acted=frozenset(self.context.acted))


def _told(thing: Any) -> Any:
    """Return a ledger as numbers; None where there is none."""
    ledger = getattr(thing, "ledger", None)
    return None if ledger is None else ledger.told()
