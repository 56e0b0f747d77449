"""Aggregation: how replies cross closed in a run, and how their sum alone is opened."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.codec import encode
from fedtrees.core.errors import DataError, EquivocationError, ProtocolError
from fedtrees.core.messages import Message, sealed
from fedtrees.core.sealed import Sealed
from fedtrees.core.streams import Streams

# Floats are added as whole numbers of 2^-192, in twelve digits of 32 bits: a sum of up to 2^31 of
# them fits an int64, is exact, and does not depend on how its parts were added.
_DIGIT = 32
_DIGITS = 12
_PLACES = 192
FLOAT_LIMIT = 1 << _DIGIT  # no digit is larger
_LARGEST = np.float64(2.0 ** (_DIGITS * _DIGIT - _PLACES))  # more than a float32 holds


@dataclass(frozen=True)
class Known:
    """What everybody knows of the sums of a run."""

    parties: tuple[str, ...]  # who has a part in them
    exact: bool  # whether nobody adds noise or rounds: sums are then bounded by what rows can bring
    classes: int  # of the target; 0: it is a number
    parameters: Mapping[str, Any]  # the protocol's public parameters
    # by type of reply, how many parties' shares of noise a sum needs to be opened
    shares: Mapping[type[Message], int]


@dataclass(frozen=True)
class Wire:
    """What whoever opens a sum may know and do."""

    server: str  # who asked, and opens the sum
    # declared rows of all parties, where each counts once; None where rows have weights
    rows: int | None
    known: Known
    # ``ask(to, message, why, back="", gone=())`` sends to all and returns what answers, by party;
    # `back` is why they answer, where that is another reason, and of who is `gone` nothing is heard
    ask: Callable[..., dict[str, Message]]
    # ``seal(names, how, why)`` lets waiting replies cross closed; ``how`` is what the parties'
    # `Closing` takes
    seal: Callable[[Iterable[str], Mapping[str, Any], str], dict[str, Message]]
    streams: Streams  # randomness of what happens to messages on their way, and no party's own
    # how many replies must arrive for a sum to be opened: those whose shares of noise add up to
    # what is claimed
    least: int = 0


class Closing(ABC):
    """What one party closes its replies with; its keys are here and nowhere else.

    `ledger`: object. What it took (`fedtrees.sealing.ledger`); None: nothing.
    `kept`: What it opened for itself, each with a reason, for its own log.
    """

    ledger: Any = None
    #: Rules by which it keeps a dishonest server from opening more than agreed, by the messages
    #: that it takes and their fields (as `fedtrees.core.party.handles` states them for parties).
    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {}

    def __init__(self) -> None:
        self.kept: list[tuple[Message, str]] = []
        self._told = blake2b()

    def hear(self, message: Message) -> None:
        """Note what the party is told, before it answers: sums open for who was told the same."""
        self._told.update(digest_of(message))

    @abstractmethod
    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Return a reply as it crosses, or what is asked for in its place; None: nothing crosses.

        `reply`: What waits, if anything does.
        """

    def takes(self, message: Message) -> bool:
        """Tell whether a message is for it, and not for the party beside it."""
        return False

    def answer(self, message: Message) -> Message | None:
        """Answer what whoever opens sends."""
        raise ProtocolError(f"{type(self).__name__} takes no {type(message).__name__}")


class Opening(ABC):
    """What whoever asked opens sums with."""

    ledger: Any = None

    def hear(self, names: Iterable[str], message: Message) -> None:  # noqa: B027 - most need not
        """Note what these parties are told."""

    @abstractmethod
    def opened(self, waiting: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let replies cross closed and return their sum.

        Nothing may be opened where fewer than ``wire.least`` replies arrive.

        `waiting`: Replies by party, all of one type, without what is inside their summed fields.
        """


class Aggregation(ABC):
    """How replies are summed in one run; `Defense.aggregation` makes it.

    It holds nobody's secrets; an ideal functionality, which is in nobody's hands, keeps values in
    it, so that it is one object for all.
    """

    @abstractmethod
    def closing(self, name: str, rows: int | None, known: Known) -> Closing:
        """Make what one party closes its replies with, given how many rows it has."""

    @abstractmethod
    def opening(self) -> Opening:
        """Make what the sums are opened with."""

    def costs(self, ledgers: Mapping[str, Any]) -> Mapping[str, float]:
        """Return what it took by the ledgers of all parties: counts, and ``cpu_seconds:...``."""
        return {}


#: Of every party, a digest of all that it was told and its reply.
Inside = dict[str, tuple[bytes, Message]]


class IdealSum(Aggregation):
    """The ideal functionality: nothing but the sum is opened, and nothing else crosses."""

    def __init__(self) -> None:
        self.inside: Inside = {}
        self._last: tuple[Message | None, bytes] = None, b""

    def digest(self, message: Message) -> bytes:
        """Return a message's digest: one, for all who are told it."""
        if self._last[0] is not message:
            self._last = message, digest_of(message)
        return self._last[1]

    def closing(self, name: str, rows: int | None, known: Known) -> Closing:
        """Make what hands replies to the functionality."""
        return IdealClosing(name, self)

    def opening(self) -> Opening:
        """Make what takes their sum from it."""
        return IdealOpening(self.inside)


class IdealClosing(Closing):
    """A party's way to the functionality."""

    def __init__(self, name: str, sums: IdealSum) -> None:
        super().__init__()
        self._name, self._sums = name, sums

    def hear(self, message: Message) -> None:
        """Note what the party is told."""
        self._told.update(self._sums.digest(message))

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Hand a reply over; nothing of it is in what crosses."""
        assert reply is not None
        self._sums.inside[self._name] = self._told.digest(), reply
        return sealed(reply)


class IdealOpening(Opening):
    """The way to it of whoever asked."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def opened(self, waiting: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let replies cross closed and return their sum.

        Raises `ProtocolError` if it would be one party's, and others have a part in it;
        `EquivocationError` if not all were told the same before.
        """
        if len(waiting) < 2 <= len(wire.known.parties):
            raise ProtocolError(
                f"a sum of {', '.join(waiting)} alone is no sum; ask all "
                f"{len(wire.known.parties)} parties that have a part in it"
            )
        parts = {name: self._inside.pop(name) for name in wire.seal(waiting, {}, why)}
        if len({told for told, _ in parts.values()}) > 1:
            raise EquivocationError(
                f"{', '.join(parts)}: not all were told the same; their sum stays closed, and so "
                "do all that follow. Start anew"
            )
        return add_messages(reply for _, reply in parts.values())


def digest_of(message: Message) -> bytes:
    """Return a digest of a message as it crosses, 64 bytes."""
    return blake2b(encode(message)).digest()


def agreed(messages: Iterable[Message]) -> Message:
    """Return the first message; fields that are not summed must be the same in all.

    Raises `ProtocolError` if they differ.
    """
    first, *others = messages
    for item in fields(first):
        value = getattr(first, item.name)
        if not item.metadata.get("summed") and any(
            not np.array_equal(getattr(m, item.name), value) for m in others
        ):
            raise ProtocolError(
                f"cannot sum {type(first).__name__}: the parties disagree on {item.name!r}"
            )
    return first


def summands(message: Message) -> dict[str, Any]:
    """Return the fields of a message that are added, by name: arrays, or sealed ones."""
    return {f.name: getattr(message, f.name) for f in fields(message) if f.metadata.get("summed")}


def whole(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers of an array as whole numbers that add up exactly, int64, one axis.

    Whole numbers as they are; floats as twelve digits each, which loses what is below 2^-192.

    Raises `DataError` if a float is not finite, or not below 2^192.
    """
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=np.int64).reshape(-1)
    rest = np.array(array, dtype=np.float64).reshape(-1)
    if not (np.abs(rest) < _LARGEST).all():
        worst = rest[np.argmin(np.abs(rest) < _LARGEST)]
        raise DataError(
            f"{worst} cannot be summed securely: numbers must be finite and below 2^192; scale the "
            "target or the weights"
        )
    digits = np.empty((rest.size, _DIGITS), dtype=np.int64)
    for k in range(_DIGITS):
        place = (_DIGITS - 1 - k) * _DIGIT - _PLACES
        digit = np.trunc(np.ldexp(rest, -place))
        rest = rest - np.ldexp(digit, place)  # exact: the low bits of a float are a float
        digits[:, k] = digit
    return digits.reshape(-1)


def from_whole(
    sums: NDArray[np.int64], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return sums of what `whole` made, rounded once to `dtype`, of shape `shape`."""
    if dtype.kind != "f":
        return sums.reshape(shape).astype(dtype, copy=False)
    found = []
    for digits in sums.reshape(-1, _DIGITS).tolist():
        total = 0
        for digit in digits:
            total = (total << _DIGIT) + digit
        found.append(total / (1 << _PLACES))  # Python rounds such quotients correctly
    return np.array(found, dtype=dtype).reshape(shape)


def size_of_whole(array: NDArray[Any] | Sealed) -> int:
    """Return how many whole numbers `whole` makes of an array, which may be sealed."""
    return math.prod(array.shape) * (_DIGITS if np.dtype(array.dtype).kind == "f" else 1)


def summed(first: Message, numbers: NDArray[np.int64]) -> Message:
    """Return a message with its summed fields made of sums of what `whole` made, one by one."""
    found, begin = {}, 0
    for field, like in summands(first).items():
        end = begin + size_of_whole(like)
        found[field] = from_whole(numbers[begin:end], like.shape, np.dtype(like.dtype))
        begin = end
    return replace(first, **found)


def add_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Add arrays of one shape: whole numbers exactly, floats as `from_whole` rounds their sum."""
    first = arrays[0]
    if first.dtype.kind != "f" or not all((np.abs(a) < _LARGEST).all() for a in arrays):
        total = first
        for array in arrays[1:]:  # np.sum would first copy all of them
            total = np.add(total, array)
        return total
    return from_whole(sum(map(whole, arrays[1:]), whole(first)), first.shape, first.dtype)


def add_messages(messages: Iterable[Message]) -> Message:
    """Add messages of one type: fields made with `summable` are added, all others must agree.

    Raises `ProtocolError` if they do not.
    """
    every = list(messages)
    first = agreed(every)
    parts = [summands(m) for m in every]
    return replace(first, **{name: add_arrays([p[name] for p in parts]) for name in parts[0]})
