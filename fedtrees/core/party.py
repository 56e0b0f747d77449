"""Parties, and the local data boundary around what is theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from numpy.typing import NDArray

from fedtrees.core.errors import LocalDataError, ProtocolError
from fedtrees.core.messages import Message
from fedtrees.core.streams import Streams

if TYPE_CHECKING:
    from fedtrees.core.host import Agreement

_acting: ContextVar[Party | None] = ContextVar("fedtrees_acting_party", default=None)
_PUBLIC = frozenset({"name", "role"})

Handler = TypeVar("Handler", bound=Callable[..., Any])


def handles(message_type: type[Message], **rules: str) -> Callable[[Handler], Handler]:
    """Mark a party's method as its answer to messages of one type.

    Parameters
    ----------
    message_type : type of Message
        What the method takes.
    **rules : str
        For each field of the message, the rule by which the party keeps a dishonest sender from
        changing how much noise the party adds, or how much it reveals. The documentation lists
        them (`rules_of`); the method itself, or what it calls, checks them.

    Examples
    --------
    >>> from fedtrees.messages.horizontal import ValidationRequest
    >>> class Client(Party):
    ...     @handles(ValidationRequest, round="in order, each once")
    ...     def validate(self, message): ...
    >>> rules_of(Client)[ValidationRequest]
    {'round': 'in order, each once'}
    """

    def mark(method: Handler) -> Handler:
        method._handles = message_type  # type: ignore[attr-defined]
        method._rules = rules  # type: ignore[attr-defined]
        return method

    return mark


def rules_of(party: type[Party]) -> dict[type[Message], dict[str, str]]:
    """Return the rules that a type of party states, by message type and field.

    A method that overrides another one states only what it adds or changes.
    """
    rules: dict[type[Message], dict[str, str]] = {}
    for base in reversed(party.__mro__):
        for member in vars(base).values():
            if hasattr(member, "_handles"):
                rules.setdefault(member._handles, {}).update(member._rules)
    return rules


@contextmanager
def acting(party: Party) -> Iterator[None]:
    """Run a block as this party: inside, its private state can be read, nobody else's can."""
    token = _acting.set(party)
    try:
        yield
    finally:
        _acting.reset(token)


def acting_party() -> Party | None:
    """Return the party whose method is running, None outside of any."""
    return _acting.get()


class _Walled(type):
    """Let a party's own ``__init__`` read what it has just set."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        party: Any = cls.__new__(cls, *args, **kwargs)  # type: ignore[arg-type]
        with acting(party):
            party.__init__(*args, **kwargs)
        return party


class Party(metaclass=_Walled):
    """Someone who holds private state and answers messages.

    Every instance attribute but ``name`` sits behind local data boundary: it can be read and
    written only while this party acts, that is inside one of its methods that the network called.
    The wall is against mistakes in protocols, not against hostile Python.

    `name`: Unique in its network, such as ``client-0``.

    Attributes
    ----------
    streams : Streams
        Its own randomness, handed out by the network it joins.
    row_hook : callable
        What the defenses do to its rows' labels and gradients (`Defense.rows`, less its context),
        handed out likewise.
    before_sealing : callable
        Passes a message through the defenses, for a party that seals what it sends by itself.
    queries : LocalData
        Its columns of the rows to predict, where a model that nobody holds whole predicts.
    agreement : Agreement
        Its own copy of what all parties agreed on before the run: public parameters, roles and
        defenses. Public values are taken from here, and from no message.
    sealing : object
        What it computes on sealed values with (`Protocol.sealing`), handed out likewise.
    net : Network
        The network it joined, for a party that asks somebody else than the coordinator before it
        answers: an arbiter, what only it may read. A weak reference: it holds no other party.
    """

    role: ClassVar[str] = "party"
    name: str
    streams: Streams
    row_hook: Callable[..., NDArray[Any]]
    before_sealing: Callable[[Any], Any]
    queries: Any
    agreement: Agreement
    sealing: Any
    net: Any
    _handlers: ClassVar[dict[type[Message], str]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._handlers = {
            member._handles: key
            for base in reversed(cls.__mro__)
            for key, member in vars(base).items()
            if hasattr(member, "_handles")
        }

    def __getattribute__(self, key: str) -> Any:
        value = object.__getattribute__(self, key)
        if _acting.get() is self or (key.startswith("__") and key != "__dict__"):
            return value
        if key == "__dict__" or (
            key not in _PUBLIC and key in object.__getattribute__(self, "__dict__")
        ):
            raise LocalDataError(
                f"{key!r} of {object.__getattribute__(self, 'name')!r} is private: only its own "
                "methods may read it; send a message and handle it there"
            )
        return value

    def __setattr__(self, key: str, value: Any) -> None:
        if _acting.get() is not self:
            raise LocalDataError(f"{key!r} of a party can be set only by its own methods")
        object.__setattr__(self, key, value)

    def own_thresholds(self) -> Mapping[tuple[int, int], tuple[int, float]]:
        """Return column and threshold of the splits of a model that only it knows.

        By tree and node; a row goes left iff its value is below. What attacks are scored against.
        """
        return {}

    def own_bins(self) -> Mapping[int, NDArray[Any]]:
        """Return the bin of every row, by column; -1: no value. What attacks are scored against.

        Empty where a column has no bins that hold for all rows alike.
        """
        return {}

    def answer(self, message: Message) -> Message | None:
        """Let the handler of this message type answer it, behind the wall."""
        key = type(self)._handlers.get(type(message))
        if key is None:
            handled = ", ".join(sorted(t.__name__ for t in type(self)._handlers)) or "nothing"
            raise ProtocolError(
                f"{self.name!r} ({type(self).__name__}) does not handle "
                f"{type(message).__name__}; it handles {handled}"
            )
        with acting(self):
            reply = getattr(self, key)(message)
        if reply is not None and not isinstance(reply, Message):
            raise ProtocolError(
                f"{type(self).__name__}.{key} returned a {type(reply).__name__}; "
                "answer with a Message or None"
            )
        return reply
