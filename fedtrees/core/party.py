"""Parties, and the boundary that protects their local data.

A party stores private state and replies to messages. Its attributes can be read only while the
party acts, that is inside one of its methods that its host called. Any other access raises
`LocalDataError`, so that a protocol cannot use data that no message carried.

A `Behaviour` replaces the class of a party by one that deviates from the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from numpy.typing import NDArray

from fedtrees.core.errors import LocalDataError, ProtocolError, refuse_old_names
from fedtrees.core.messages import Message, names_of_type
from fedtrees.core.reasons import Reason, Unfit
from fedtrees.core.registry import register
from fedtrees.core.streams import Streams

if TYPE_CHECKING:
    from fedtrees.core.host import Agreement

_acting: ContextVar[Party | None] = ContextVar("fedtrees_acting_party", default=None)
_PUBLIC = frozenset({"name", "role"})

Handler = TypeVar("Handler", bound=Callable[..., Any])


def handles(message_type: type[Message], **rules: str) -> Callable[[Handler], Handler]:
    """Register a method of a party as the handler of one message type.

    Parameters
    ----------
    message_type : type of Message
        Type of the messages that the method handles.
    **rules : str
        For each field of the message, the rule that the party checks. A rule prevents a dishonest
        sender from changing how much noise the party adds, or how much it reveals. The
        documentation lists the rules (`rules_of`). The handler, or a function that it calls, must
        check them.

    Returns
    -------
    decorator : callable
        It marks the method and returns it unchanged.

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


def ignores(message_type: type[Message]) -> Callable[[Any, Message], None]:
    """Return a handler that receives a message of this type and does not read it.

    Parameters
    ----------
    message_type : type
        A subclass of `Message`.

    Returns
    -------
    callable
        Method of a party.
    """

    @handles(message_type, **dict.fromkeys(names_of_type(message_type), "not read"))
    def receive(self: Any, message: Message) -> None:
        """Receive a message that does not change the state of the party.

        Parameters
        ----------
        message : Message
            The message, which is not read.
        """

    return receive


def rules_of(party: type[Party]) -> dict[type[Message], dict[str, str]]:
    """Return the declared rules of a party class.

    A method that overrides another one declares only the rules that it adds or changes.

    Parameters
    ----------
    party : type
        A subclass of `Party`.

    Returns
    -------
    dict of type to dict of str to str
        Rules by message type and field.
    """
    rules: dict[type[Message], dict[str, str]] = {}
    # Base classes first, so that a subclass overrides their rules.
    for base in reversed(party.__mro__):
        for member in vars(base).values():
            if hasattr(member, "_handles"):
                rules.setdefault(member._handles, {}).update(member._rules)
    return rules


@contextmanager
def acting(party: Party) -> Iterator[None]:
    """Run a block as a party. Inside, only the private state of this party can be read.

    Parameters
    ----------
    party : Party
        The party.

    Yields
    ------
    None
        The block of the ``with`` statement.
    """
    token = _acting.set(party)
    try:
        yield
    finally:
        _acting.reset(token)


def acting_party() -> Party | None:
    """Return the party whose method is running, None if no party acts."""
    return _acting.get()


class _Walled(type):
    """Metaclass that lets a party's ``__init__`` read the attributes that it has just set."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        party: Any = cls.__new__(cls, *args, **kwargs)  # type: ignore[arg-type]
        with acting(party):
            party.__init__(*args, **kwargs)
        return party


class Party(metaclass=_Walled):
    """A party of a federation: it stores private state and replies to messages.

    Every instance attribute except ``name`` is local data. It can be read and written only while
    this party acts, that is inside one of its methods that the network called. This boundary
    detects mistakes in protocols. It does not resist hostile Python code.

    Parameters
    ----------
    name : str
        Name of the party, unique in its network, for example ``client-0``.

    Attributes
    ----------
    streams : Streams
        Secret randomness of this party, set by its host.
    row_hook : callable
        Applies the defenses to the labels and gradients of the party's rows
        (`Defense.transform_examples` without its context), set by its host.
    before_encryption : callable
        Applies the defenses to a message, for a party that encrypts its messages itself.
    queries : LocalData
        The party's columns of the rows to predict, for a model that is distributed over parties.
    agreement : Agreement
        The party's copy of the public facts that all parties agreed on before the run: parameters,
        roles and defenses. A party takes public values from here, and never from a message.
    encryption : object
        The party's part of the computation on encrypted values (`Protocol.encrypted_computation`),
        set by its host.
    net : Network
        The network of the party. A party uses it to send a request before it replies, for example
        to the arbiter, which has the decryption key. It is a weak reference and gives no access to
        another party.

    Examples
    --------
    >>> from fedtrees import Party
    >>> from fedtrees.protocols.horizontal.histogram_parties import HistogramClient
    >>> issubclass(HistogramClient, Party)
    True
    """

    role: ClassVar[str] = "party"
    name: str
    streams: Streams
    row_hook: Callable[..., NDArray[Any]]
    before_encryption: Callable[[Any], Any]
    queries: Any
    agreement: Agreement
    encryption: Any
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
        # ``__dict__`` would give access to all attributes. Further special names are needed by
        # Python.
        if _acting.get() is self or (key.startswith("__") and key != "__dict__"):
            return value
        if key == "__dict__" or (
            key not in _PUBLIC and key in object.__getattribute__(self, "__dict__")
        ):
            raise LocalDataError(
                f"{key!r} of {object.__getattribute__(self, 'name')!r} is private: only methods of "
                "this party may read it; send a message and handle it there"
            )
        return value

    def __setattr__(self, key: str, value: Any) -> None:
        if _acting.get() is not self:
            raise LocalDataError(f"{key!r} of a party can be set only by methods of this party")
        object.__setattr__(self, key, value)

    def own_thresholds(self) -> Mapping[tuple[int, int], tuple[int, float]]:
        """Return the column and threshold of each split that only this party knows.

        The keys are tree and node. A row goes left if and only if its value is below the threshold.
        Metrics use the result as ground truth.
        """
        return {}

    def own_bins(self) -> Mapping[int, NDArray[Any]]:
        """Return the bin of every row by column, -1 for a missing value.

        Metrics use the result as ground truth. It is empty if bins differ between nodes, so that a
        row has no single bin.
        """
        return {}

    def answer(self, message: Message) -> Message | None:
        """Pass a message to its handler and return the reply.

        The handler runs inside the local data boundary of this party.

        Parameters
        ----------
        message : Message
            The received message.

        Returns
        -------
        reply : Message or None
            None if the handler sends no reply.

        Raises
        ------
        ProtocolError
            If the party has no handler for this message type, or if the handler returns something
            else than a message or None.
        """
        # The exact type is compared: a subclass with more fields is another message.
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
                "return a Message or None"
            )
        return reply


class Behaviour:
    """Base class of all behaviours.

    A behaviour is also a subclass of the honest party that it replaces. It overrides the methods in
    which the dishonest party deviates from the protocol. Local data boundary, host, defenses,
    transcript and view are unchanged: the dishonest party sends typed messages to honest parties,
    and its attack receives its view.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.behaviour``.
    deviation : str
        The deviation from the protocol, as a sentence without a full stop.
    detectable : str
        Whether the honest parties could detect it, as a sentence without a full stop.

    Examples
    --------
    A dishonest client that reports every gradient sum twice is a subclass of the honest client:

    >>> from dataclasses import replace
    >>> from fedtrees import Behaviour, handles
    >>> from fedtrees.messages.horizontal import HistogramRequest
    >>> from fedtrees.protocols.horizontal.histogram_parties import HistogramClient
    >>> class Doubling(Behaviour, HistogramClient):
    ...     deviation = "doubles the sums that it reports"
    ...     detectable = "only if the sums exceed what the declared rows can contribute"
    ...
    ...     @handles(HistogramRequest)
    ...     def histogram(self, message):
    ...         honest = super().histogram(message)
    ...         return replace(honest, sums=2 * honest.sums, totals=2 * honest.totals)
    >>> Doubling.deviation
    'doubles the sums that it reports'
    """

    name: ClassVar[str] = "behaviour"
    deviation: ClassVar[str] = ""
    detectable: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_old_names(cls, "behaviour", {"beyond": "deviation", "noticed": "detectable"})


def install_behaviour(party: Party, name: str) -> None:
    """Turn an honest party into a dishonest one.

    Parameters
    ----------
    party : Party
        The honest party, whose class is replaced.
    name : str
        Registered name of the behaviour.

    Raises
    ------
    UsageError
        If no behaviour has this name.
    Unfit
        If the behaviour replaces another class of party.
    """
    behaviour = register.get("behaviour", name)
    assert isinstance(behaviour, type)
    honest = [base for base in behaviour.__mro__ if issubclass(base, Party)]
    honest = [base for base in honest if not issubclass(base, Behaviour)]
    if not isinstance(party, honest[0]):
        class_names = {"wanted": honest[0].__name__, "found": type(party).__name__}
        raise Unfit(Reason("behaviour-unfit", behaviour=name, party=party.name, **class_names))
    # The combined class inherits the methods of the party that the behaviour does not override.
    with acting(party):
        party.__class__ = type(behaviour.__name__, (behaviour, type(party)), {})
