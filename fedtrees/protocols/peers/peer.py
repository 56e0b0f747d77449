"""Parties of protocols without a coordinator that requests each message.

Each party runs a script (a generator) that sends messages to all parties and waits for theirs. It
continues as soon as the awaited message arrives. The protocols `xgboost-ring`, `lightgbm-data` and
`xgboost-vertical` use it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import client_names
from fedtrees.core.messages import Message, names_of_type
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.protocols.base import Coordinator, Protocol, ProtocolInfo, Seat
from fedtrees.trees.boosted.losses import Objective

Said = TypeVar("Said", bound=Message)
Script = Generator[Any, Any, Any]


class Peer(Party):
    """One of several equal parties, each of which follows its script.

    Subclasses write the script, `run_training`. It yields the keys of the messages that it waits
    for.

    Attributes
    ----------
    receives : tuple of Message types
        Types of the messages that the parties send to one another.
    audience : tuple of str
        Roles of all parties.
    names : list of str
        Names of all parties, by rank.
    rank, world : int
        Rank of this party, and number of parties.
    model : Model
        Final model. None before the script ends.
    """

    receives: ClassVar[tuple[type[Message], ...]] = ()
    audience: ClassVar[tuple[str, ...]] = ("client",)

    def __init_subclass__(cls, **arguments: Any) -> None:
        # Every received message is stored for the script, so that no type needs its own handler.
        rule = "any: the script of a party determines which messages it sends"
        for kind in vars(cls).get("receives", ()):

            def store(self: Peer, message: Message) -> None:
                self.receive(message)

            rules = dict.fromkeys(names_of_type(kind), rule)
            setattr(cls, f"receive_{kind.__name__}", handles(kind, **rules)(store))
        super().__init_subclass__(**arguments)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.inbox: dict[Any, Message] = {}
        self.script = self.run_training()
        self.awaited: Any = ""
        self.running = self.begun = False
        self.model: Any = None

    def run_training(self) -> Script:
        """Train. The script must set `model`."""
        raise TypeError(f"{type(self).__name__} must define run_training()")

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return the key under which the script waits for a message.

        Parameters
        ----------
        message : Message
            A message, or a similar one.
        rank : int or None
            None for the key of this message. Otherwise the key of the same message from the party
            of that rank.
        """
        raise TypeError(f"{type(self).__name__} must define key(message, rank)")

    def assign_ranks(self) -> None:
        """Determine the ranks of all parties."""
        self.names: list[str] = [n for role in self.audience for n in self.net.members(role)]
        self.rank, self.world = self.names.index(self.name), len(self.names)

    def receive(self, message: Message) -> None:
        """Store a message, and continue the script if it waits for this message."""
        self.inbox[self.key(message)] = message
        self.resume()

    def resume(self) -> None:
        """Run the script until it needs a message that has not arrived."""
        # A message that arrives while the script sends is only stored. The running loop finds it.
        if self.running:
            return
        self.running = True
        while self.awaited is not None and (not self.begun or self.awaited in self.inbox):
            received = self.inbox.pop(self.awaited) if self.begun else None
            self.begun = True
            try:
                self.awaited = self.script.send(cast(Message, received))
            except StopIteration:
                self.awaited = None
        self.running = False

    def send_to_others(self, message: Said, reason: str) -> Said:
        """Send a message to all other parties, and return it as it was sent after the defenses."""
        sent = message
        for role in self.audience:
            if {*self.net.members(role)} - {self.name}:
                sent = self.net.send(role, message, reason=reason)
        return sent

    def exchange(self, message: Said, reason: str) -> Generator[Any, Any, list[Said]]:
        """Send a message to all other parties, and return the messages of all parties by rank."""
        sent, messages = self.send_to_others(message, reason), []
        for rank in range(self.world):
            # The party waits for one message of every other party, in the order of ranks.
            messages.append(sent if rank == self.rank else (yield self.key(message, rank)))
        return cast(list[Said], messages)


class StartingPeer(Peer, Coordinator):
    """The party of rank 0, which starts the run."""

    def train(self, net: Network) -> Any:
        """Start the script. All other parties continue when they receive messages."""
        self.resume()
        assert self.model is not None
        return self.model


class HorizontalPeer(Peer):
    """A party with complete rows, as in horizontal protocols."""

    role = "client"

    def __init__(self, seat: Seat, protocol: Any) -> None:
        super().__init__(seat.name)
        self.data, self.params, self.schema = seat.table, protocol, seat.schema
        self.objective: Objective = protocol.objective_for(seat.schema)
        self.objective.check(self.data.y)


@dataclass(frozen=True, kw_only=True)
class HorizontalPeers(Protocol):
    """A horizontal protocol of equal parties without a server. The first party starts.

    Attributes
    ----------
    party_noun : str
        Plural noun for the parties in error messages.
    kinds : (type, type)
        Class of the first party, and class of the remaining parties.
    """

    info = ProtocolInfo(
        peer_to_peer=True,
        example_dataset="digits[rows=300]",  # all columns declare a range
    )
    party_noun: ClassVar[str]
    kinds: ClassVar[tuple[type[HorizontalPeer], type[HorizontalPeer]]]

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the roles of all parties, which are clients.

        Raises
        ------
        UsageError
            If there is a single party.
        """
        if parties < 2:
            raise UsageError(f"{self.name!r} needs two {self.party_noun} or more")
        return dict.fromkeys(client_names(parties), "client")

    def create_party(self, seat: Seat) -> HorizontalPeer:
        """Create a party. The first one starts the run."""
        return self.kinds[seat.name != client_names(1)[0]](seat, self)
