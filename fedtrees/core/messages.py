"""Messages: the only data that one party sends to another.

A message is a frozen dataclass. Its type is registered by name, and each type declares the kinds of
information that it can reveal (`Reveal`) and its roles in the protocol (`Trait`). Every
family of protocols defines its own message types in `fedtrees.messages`. The network
(`fedtrees.core.network`) sends them, and the transcript (`fedtrees.core.transcript`) records them.

A `Sealed` value is a message field that only the parties with the key can read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, ForwardRef, Generic, TypeVar, dataclass_transform, get_args

import numpy as np

from fedtrees.core.errors import ProtocolError


@dataclass(frozen=True)
class Sealed:
    """A protected array in a message.

    If the ideal functionality protects the array, this object does not contain it: the
    functionality gives it to the parties that may read it. Cryptography stores its ciphertext as
    `payload`.

    Attributes
    ----------
    keyholders : tuple of str
        Names of the parties that can read the array. Empty: only sums of several arrays are ever
        opened.
    shape : tuple of int
        Shape of the array.
    dtype : str
        Its dtype, in the notation of numpy.
    nbytes : int
        Number of bytes that are sent. The ideal functionality counts those of the plain array.
    payload : bytes
        The ciphertext, empty for the ideal functionality.
    """

    keyholders: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    payload: bytes = b""

    @classmethod
    def of(
        cls, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], *keyholders: str
    ) -> Sealed:
        """Seal an array by the ideal functionality, which needs no key.

        Parameters
        ----------
        array : array
            Values of the field, of which only shape, type and size remain.
        *keyholders : str
            Names of the parties that can read the field.

        Returns
        -------
        Sealed
            Field without a payload.
        """
        return cls(keyholders, array.shape, array.dtype.newbyteorder("<").str, array.nbytes)


@dataclass(frozen=True)
class EncryptedComputation:
    """Computation on encrypted values in one run, for example of sums over encrypted gradients.

    In vertical training, one party encrypts values of its rows, and further parties compute with
    the ciphertexts. Secure sums over clients are a separate mechanism
    (`fedtrees.core.secure_sum`).

    Attributes
    ----------
    keyholder : str
        Role that has the private key.
    private, public : callable
        Create the object with which a party computes: with the private key for the keyholder, and
        without it for all remaining roles.
    costs : callable
        Computes the costs by name from the ledgers of all parties.
    """

    keyholder: str
    private: Callable[[], Any]
    public: Callable[[], Any]
    costs: Callable[[Iterable[Any]], Mapping[str, float]]

    def part(self, role: str) -> Any:
        """Create the object with which a party of this role computes.

        Parameters
        ----------
        role : str
            Role of the party.

        Returns
        -------
        object
            The result of `private` for the key holder, and of `public` for every other role.
        """
        return self.private() if role == self.keyholder else self.public()


class Reveal(StrEnum):
    """Kind of information about the private rows of a party that a message reveals.

    Examples
    --------
    >>> from fedtrees import Reveal
    >>> Reveal.LABELS.value
    'labels'
    """

    LABELS = "labels"
    FEATURES = "features"
    IDS = "ids"
    THRESHOLDS = "thresholds"
    COUNTS = "counts"
    MEMBERSHIP = "membership"
    MODEL = "model"


class Trait(StrEnum):
    """Role of a message type in its protocol.

    Defenses that act on the messages of every family select types by their traits (`types_with`),
    so that they need not name each type.

    Examples
    --------
    >>> from fedtrees import Trait
    >>> from fedtrees.messages.horizontal import Histogram
    >>> Trait.SUMMED in Histogram.traits
    True
    """

    #: A client's contribution to a sum from which the model is computed, for example a histogram.
    SUMMED = "summed"
    #: A client's contribution to a sum that the protocol itself computes by secure aggregation.
    SUMMED_SECURELY = "summed securely"
    #: The summed field contains numbers of rows. Each row is counted at most once per feature.
    COUNTED = "counts of rows"
    #: The summed field contains the number of rows, followed by the number of rows of each class.
    LABELS_COUNTED = "counts of labels"
    #: The summed field contains sums of gradients and hessians in units of 2^-g_bits and 2^-h_bits.
    GRADIENTS = "sums of gradients"
    #: Values of a client's columns from which cut points are chosen, for example a sketch.
    SUMMARY = "summary of columns"
    #: Values that the server sends to all clients before or after the trees are grown: cut points,
    #: grids, and the number of rounds after which the model ends.
    ANNOUNCED = "announced"
    SETTLED = "announced"  # former name, for one release
    #: The base score, from which every prediction starts.
    START = "base score"
    #: A message with sums over rows in the fields that `Message.row_statistics` names.
    STATISTICS = "row statistics"
    #: A message with predictions of leaves in the field that `Message.leaf_value` names.
    LEAVES = "leaf values"
    #: Trees that one client grew on its local data.
    GROWN_ALONE = "locally grown trees"
    #: A client's forest. The model consists of these forests in the order in which they were sent.
    POOLED = "pooled forest"
    #: Weights of a neural network, or a client's update of them.
    NETWORK = "network"


AnyMessage = TypeVar("AnyMessage", bound="Message")
AnyReply = TypeVar("AnyReply", bound="Message")

_TYPES: dict[str, type[Message]] = {}


def seal_sums(message: Message, *keyholders: str) -> Message:
    """Return the message with its summable fields sealed by the ideal functionality.

    Parameters
    ----------
    message : Message
        The message to seal.
    *keyholders : str
        Names of the parties that can read the sealed fields.

    Returns
    -------
    Message
        Copy of the message, in which every field declared by `summable` is a `Sealed`.
    """
    secret = [f.name for f in fields(message) if f.metadata.get("summed")]
    return replace(
        message, **{name: Sealed.of(getattr(message, name), *keyholders) for name in secret}
    )


def has_sealed_field(message: Message) -> bool:
    """Return whether any field of a message is sealed.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    bool
        True if a field contains a `Sealed`.
    """
    return any(isinstance(getattr(message, f.name), Sealed) for f in fields(message))


_NAMES: dict[type, tuple[str, ...]] = {}


def names_of(message: Message) -> tuple[str, ...]:
    """Return the names of the fields of a message. They are looked up once per type.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    tuple of str
        Names in the order of declaration.
    """
    return names_of_type(type(message))


def names_of_type(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of the fields of a message type.

    Parameters
    ----------
    kind : type
        A subclass of `Message`.

    Returns
    -------
    tuple of str
        Names in the order of declaration.
    """
    if kind not in _NAMES:
        _NAMES[kind] = tuple(f.name for f in fields(kind))
    return _NAMES[kind]


def check_fields(message: Message) -> None:
    """Check that a message has no attribute besides its declared fields.

    The size of a message and the defenses only consider declared fields. An additional attribute
    would be sent without being counted or defended.

    Parameters
    ----------
    message : Message
        The message that a party is about to send.

    Raises
    ------
    ProtocolError
        If an attribute is neither a field nor an attribute of the class.
    """
    cls, names = type(message), names_of(message)
    odd = [name for name in vars(message) if name not in names and not hasattr(cls, name)]
    if odd:
        raise ProtocolError(
            f"{type(message).__name__} has the attributes {', '.join(odd)}, which its class does "
            "not declare; declare fields, so that they are counted and defenses process them"
        )


def without_payload(message: Message) -> Message:
    """Return a message without the payload of its sealed fields.

    Keys and ciphertexts differ between runs with the same seed. All remaining content is equal, so
    that messages without payload can be compared.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    Message
        Copy with empty payloads. A message without a payload is returned itself.
    """
    values = ((f.name, getattr(message, f.name)) for f in fields(message))
    empty = {
        name: replace(value, payload=b"")
        for name, value in values
        if isinstance(value, Sealed) and value.payload
    }
    return replace(message, **empty) if empty else message


def summable() -> Any:
    """Declare a message field that a secure sum adds over parties.

    Fields that are declared without `summable` must be equal in all replies that are added.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the field.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees.core.messages import Message, message
    >>> @message()
    ... class RowCounts(Message):
    ...     tree: int
    ...     counts: np.ndarray = summable()
    >>> RowCounts(0, np.array([3, 4])).counts
    array([3, 4])
    """
    return field(metadata={"summed": True})


@dataclass(frozen=True, eq=False)
class Message:
    """Base class of all messages.

    Subclasses are frozen dataclasses (`message`) whose fields are numpy arrays, numbers, strings,
    booleans, None, or `Sealed` arrays. Arrays become read-only when the message is created.

    Attributes
    ----------
    discloses : frozenset of Reveal
        Upper bound of the information that a message of this type can reveal. By default,
        everything.
    verbatim : frozenset of str
        Fields that are declared to contain unchanged values of private rows, for example the ends
        of a column, summaries or thresholds. In all remaining fields, ``fedtrees plugin check``
        reports such a value as a leak.
    traits : frozenset of Trait
        Traits of exactly this type. A subclass does not inherit them, because it may reveal more.
    row_statistics : tuple of str
        Names of the fields with sums over rows, for `Trait.STATISTICS`.
    leaf_value : str
        Name of the field with the predictions of leaves, for `Trait.LEAVES`.

    Examples
    --------
    >>> from fedtrees import Message, Reveal
    >>> from fedtrees.messages.horizontal import Histogram
    >>> issubclass(Histogram, Message)
    True
    >>> Reveal.COUNTS in Histogram.discloses
    True
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(Reveal)
    verbatim: ClassVar[frozenset[str]] = frozenset()
    traits: ClassVar[frozenset[Trait]] = frozenset()
    row_statistics: ClassVar[tuple[str, ...]] = ()
    leaf_value: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:  # `Request` is no message type of its own
            return
        registered = _TYPES.get(cls.__name__)
        if registered is not None and registered.__module__ != cls.__module__:
            raise ProtocolError(
                f"two message types are called {cls.__name__!r} ({registered.__module__} and "
                f"{cls.__module__}); rename one"
            )
        # Traits are not inherited, because a subclass may reveal more.
        if "traits" not in vars(cls):
            cls.traits = frozenset()
        _TYPES[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name in names_of(self):
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, frozen(value))
            elif not isinstance(value, (bool, int, float, str, np.generic, Sealed, type(None))):
                raise ProtocolError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__}; a message "
                    "contains arrays, numbers, strings, booleans, sealed arrays or None"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # numpy unpickles arrays as writeable arrays

    @property
    def reveals(self) -> frozenset[Reveal]:
        """Kinds of information that this single message reveals, a subset of `discloses`."""
        return self.discloses

    def unit_of(self, field: str) -> tuple[Any, bool]:
        """Return the unit of an array field, and whether the field contains integers only.

        `Channel.in_units_of` takes both values.

        Parameters
        ----------
        field : str
            Name of an array field.

        Returns
        -------
        unit : float or float64 array, shape (c,)
            Number of stored units that make one, for example ``2 ** g_bits`` for a fixed-point
            gradient. An array contains one number for each position on the last axis of the field.
        integers : bool
            Whether the field contains integers only.
        """
        return 1.0, getattr(self, field).dtype.kind in "iu"

    def numbers(self, field: str) -> np.ndarray[Any, Any]:
        """Return the numbers of an array field, unpacked if it is stored in packed form.

        Parameters
        ----------
        field : str
            Name of an array field.

        Returns
        -------
        numbers : array
            By default, the field itself.
        """
        values: np.ndarray[Any, Any] = getattr(self, field)
        return values

    @property
    def series(self) -> str:
        """Name of the group of sums that a protocol combines.

        All sums of a group must cover the same parties.
        """
        return type(self).__name__


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(summable, field))
def message(
    *, kw_only: bool = False, leaf_value: str = "", **declared: Collection[Any]
) -> Callable[[type[AnyMessage]], type[AnyMessage]]:
    """Make a class a message: a frozen dataclass with the declared properties.

    For example, ``@message(discloses={Reveal.LABELS}, traits={Trait.SUMMED})``.

    Parameters
    ----------
    kw_only : bool
        Whether the fields of the class are given by keyword only.
    leaf_value : str
        As in `Message`.
    **declared : collection
        `discloses`, `traits`, `verbatim` and `row_statistics`, as in `Message`. A property that is
        not declared is inherited, except for traits.

    Returns
    -------
    callable
        Decorator of a subclass of `Message`.

    Raises
    ------
    TypeError
        If a message has no property of a given name.
    """
    kinds = {"discloses": frozenset, "traits": frozenset, "verbatim": frozenset}
    unknown = {*declared} - {*kinds, "row_statistics"}
    if unknown:
        raise TypeError(f"a message has no property {', '.join(sorted(unknown))}")

    def declare(cls: type[AnyMessage]) -> type[AnyMessage]:
        for name, value in declared.items():
            setattr(cls, name, kinds.get(name, tuple)(value))
        if leaf_value:
            cls.leaf_value = leaf_value
        return dataclass(frozen=True, eq=False, kw_only=kw_only)(cls)

    return declare


@dataclass(frozen=True, eq=False)
class Request(Message, Generic[AnyReply]):
    """Base class of messages that ask for a reply of one type.

    For example, ``class HistogramRequest(Request["Histogram"])`` asks for histograms.
    `Network.request` then returns a list of `Histogram`, and refuses other replies. By default, a
    request reveals nothing.
    """

    discloses = frozenset()


def reply_type(request: type[Message]) -> type[Message]:
    """Return the type of the replies to a request.

    Parameters
    ----------
    request : type
        Class of the request, for example a subclass of ``Request["Histogram"]``.

    Returns
    -------
    type
        Class of the replies, `Message` if the request declares none.
    """
    for base in getattr(request, "__orig_bases__", ()):
        for reply in get_args(base):
            # The class of the reply may be defined below that of the request.
            kind = message_type(reply.__forward_arg__) if isinstance(reply, ForwardRef) else reply
            return kind if isinstance(kind, type) else Message
    return Message


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a contiguous copy of an array that cannot be made writeable again.

    The memory of the copy belongs to a ``bytes`` object, which is why numpy refuses
    ``flags.writeable = True``.

    Parameters
    ----------
    array : array
        Any array of numbers or fixed-width text.

    Returns
    -------
    array
        Copy with the same values, shape and type. An array that this function returned before is
        not copied again.

    Raises
    ------
    ProtocolError
        If the array contains Python objects, which their owner could change after the message was
        sent.
    """
    # Python objects could be changed by their owner after the message was sent.
    if array.dtype.hasobject:
        raise ProtocolError("a message cannot contain an array of Python objects; use numbers")
    if array.size == 0:
        empty = np.empty(array.shape, array.dtype)
        empty.flags.writeable = False
        return empty
    # The array was frozen before, for example by another message with the same array.
    if isinstance(array.base, bytes) and not array.flags.writeable:
        return array
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def message_type(name: str) -> type[Message] | None:
    """Return the message class of this name.

    The attack of a plug-in finds a message class by its name, so that it need not import the file
    of the protocol.

    Parameters
    ----------
    name : str
        Name of the class.

    Returns
    -------
    type or None
        Class of the message. None if no installed module defines it.

    Examples
    --------
    >>> message_type("LeafValues").__module__
    'fedtrees.messages.horizontal'
    >>> message_type("Unknown") is None
    True
    """
    # The family that defines the type may not be imported yet.
    if name not in _TYPES:
        load_families()
    return _TYPES.get(name)


class _Having:
    """Class attribute that lists the installed message types with given traits."""

    def __init__(self, reasons: Mapping[Trait, str], with_reasons: bool) -> None:
        self._reasons, self._with_reasons = reasons, with_reasons

    def __get__(self, part: object, owner: object = None) -> Any:
        # The number of registered types is part of the cache key: a family that is imported later
        # adds types, and the list is then computed again.
        matching = _having(tuple(self._reasons.items()), len(_TYPES))
        return dict(matching) if self._with_reasons else tuple(matching)


@cache
def _having(traits: tuple[tuple[Trait, str], ...], _: int) -> dict[type[Message], str]:
    """Return the message types with given traits, in order of the traits, with the reasons."""
    registered = sorted(_TYPES.items())
    return {t: reason for trait, reason in traits for _, t in registered if trait in t.traits}


def types_with(*traits: Trait) -> Any:
    """Declare types of a defense, for example ``handled_types``: those with one of these traits.

    Parameters
    ----------
    *traits : Trait
        The traits.

    Returns
    -------
    types : descriptor
        Value of a class attribute of a defense. It looks up the types when they are needed.

    Examples
    --------
    >>> from fedtrees import Trait, types_with
    >>> from fedtrees.messages.horizontal import Histogram
    >>> class Summing:
    ...     handled_types = types_with(Trait.SUMMED)
    >>> Histogram in Summing().handled_types
    True
    """
    load_families()
    return _Having(dict.fromkeys(traits, ""), with_reasons=False)


def permit_types_with(reasons: Mapping[Trait, str]) -> Any:
    """Declare ``permitted_types`` of a defense: the types with these traits, with their reasons.

    Parameters
    ----------
    reasons : mapping of Trait to str
        Reason why types with the trait may be sent unchanged.

    Returns
    -------
    types : descriptor
        Value of a class attribute of a defense: a mapping from types to reasons.

    Examples
    --------
    >>> from fedtrees import Trait, permit_types_with
    >>> from fedtrees.messages.horizontal import Histogram
    >>> class Announcing:
    ...     permitted_types = permit_types_with({Trait.SUMMED: "sums of rows"})
    >>> Announcing().permitted_types[Histogram]
    'sums of rows'
    """
    load_families()
    return _Having(reasons, with_reasons=True)


@cache
def load_families() -> None:
    """Import the messages of every installed family (entry points ``fedtrees.messages``)."""
    for entry in entry_points(group="fedtrees.messages"):
        entry.load()
