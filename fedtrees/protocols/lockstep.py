"""Parties that go on by themselves as soon as what they wait for has come: no server asks."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import LocalData, client_names
from fedtrees.core.messages import Message, names_of_type
from fedtrees.core.network import Network
from fedtrees.core.party import Party, handles
from fedtrees.core.schema import Schema, Table
from fedtrees.protocols.base import Coordinator, Protocol
from fedtrees.trees.boosted.losses import Objective

Said = TypeVar("Said", bound=Message)
Script = Generator[Any, Any, Any]


def hears(kind: type[Message]) -> Callable[[Any, Message], None]:
    """Return a method of a `Lockstep` that takes note of messages of one type."""

    def heard(self: Any, message: Message) -> None:
        self.arrived(message)

    rule = "any: what a party sends, and how often, follows from its own script"
    return handles(kind, **dict.fromkeys(names_of_type(kind), rule))(heard)


class Lockstep(Party):
    """One of several alike; each follows its script, and tells the others what it comes to.

    Subclasses write the script, `trained`; it yields the keys of messages that it waits for.

    `audience`: Roles of all of them.
    `names`: All of them, by rank.
    `rank, world`: int.
    `model`: Model. What it ends with.
    """

    audience: ClassVar[tuple[str, ...]] = ("client",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.inbox: dict[Any, Message] = {}
        self.script = self.trained()
        self.waits: Any = ""
        self.running = self.begun = False
        self.model: Any = None

    def trained(self) -> Script:
        """Train; at the end `model` is set."""
        raise TypeError(f"{type(self).__name__} must define trained()")

    def key(self, message: Message, rank: int | None = None) -> Any:
        """Return what a message is waited for as; `rank`: as that of another one, alike."""
        raise TypeError(f"{type(self).__name__} must define key(message, rank)")

    def sit(self) -> None:
        """Take its place among all."""
        self.names: list[str] = [n for role in self.audience for n in self.net.members(role)]
        self.rank, self.world = self.names.index(self.name), len(self.names)

    def arrived(self, message: Message) -> None:
        """Keep a message, and go on if it was waited for."""
        self.inbox[self.key(message)] = message
        self.go_on()

    def go_on(self) -> None:
        """Do what can be done with what has come."""
        if self.running:
            return
        self.running = True
        while self.waits is not None and (not self.begun or self.waits in self.inbox):
            told = self.inbox.pop(self.waits) if self.begun else None
            self.begun = True
            try:
                self.waits = self.script.send(cast(Message, told))
            except StopIteration:
                self.waits = None
        self.running = False

    def to_others(self, message: Said, why: str) -> Said:
        """Tell all others; return the message as it left."""
        told = message
        for role in self.audience:
            if {*self.net.members(role)} - {self.name}:
                told = self.net.tell(role, message, why=why)
        return told

    def gathered(self, message: Said, why: str) -> Generator[Any, Any, list[Said]]:
        """Tell all others, and return what everybody told, by rank."""
        own, found = self.to_others(message, why), []
        for rank in range(self.world):
            found.append(own if rank == self.rank else (yield self.key(message, rank)))
        return cast(list[Said], found)


class First(Lockstep, Coordinator):
    """The one of rank 0, where a run is started."""

    def train(self, net: Network) -> Any:
        """Begin; all others go on as they are told something."""
        self.go_on()
        assert self.model is not None
        return self.model


class RowHolder(Lockstep):
    """One that holds rows, as all of them do."""

    role = "client"

    def __init__(self, name: str, data: Table, schema: Schema, params: Any) -> None:
        super().__init__(name)
        self.data, self.params, self.schema = data, params, schema
        self.objective: Objective = params.objective_for(schema)
        self.objective.check(data.y)


@dataclass(frozen=True, kw_only=True)
class RowPeers(Protocol):
    """A protocol of equals that hold rows; the first one begins.

    `alike`: What they are called.
    `kinds`: What the first one is, and what the others are.
    """

    peers: ClassVar[bool] = True
    example: ClassVar[str] = "digits[rows=300]"  # its columns declare their range
    alike: ClassVar[str]
    kinds: ClassVar[tuple[type[RowHolder], type[RowHolder]]]

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return all of them, who are alike; raises `UsageError` if there is one alone."""
        if parties < 2:
            raise UsageError(f"{self.name!r} needs two {self.alike} or more")
        return dict.fromkeys(client_names(parties), "client")

    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> RowHolder:
        """Make one of them; the first one begins."""
        assert held is not None
        return self.kinds[name != client_names(1)[0]](name, held.table, schema, self)
