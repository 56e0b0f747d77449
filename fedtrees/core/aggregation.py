"""Aggregation: how replies cross closed in a run, and how their sum alone is opened."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.messages import Message
from fedtrees.core.streams import Streams

# Floats are added as whole numbers of 2^-192, in twelve digits of 32 bits: a sum of up to 2^31 of
# them fits an int64, is exact, and does not depend on how its parts were added.
_DIGIT = 32
_DIGITS = 12
_PLACES = 192
FLOAT_LIMIT = 1 << _DIGIT  # no digit is larger
_LARGEST = np.float64(2.0 ** (_DIGITS * _DIGIT - _PLACES))  # more than a float32 holds


@dataclass(frozen=True)
class Wire:
    """What an aggregation may know and do in one run."""

    server: str  # who asked, and opens the sum
    # declared rows of all parties, where each counts once; None where rows have weights
    rows: int | None
    exact: bool  # whether nobody adds noise or rounds: sums are then bounded by what rows can bring
    classes: int  # of the target; 0: it is a number
    parameters: Mapping[str, Any]  # the protocol's public parameters
    # ``carry(sender, receivers, message, why)`` sends and writes down; a receiver who is the sender
    # opened it
    carry: Callable[[str, tuple[str, ...], Message, str], None]
    streams: Streams  # randomness of what happens to messages on their way, and no party's own
    # how many replies must arrive for a sum to be opened: those whose shares of noise add up to
    # what is claimed
    least: int = 0


class Aggregation(ABC):
    """What seals replies and opens their sum in one run; `Defense.aggregation` makes it.

    What is each party's own stays with this object, never in a message.
    """

    @abstractmethod
    def summed(self, replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Let replies cross closed and return their sum, as the server opens it.

        Nothing may be opened where fewer than ``wire.least`` replies arrive.

        `replies`: By party, all of one type; each part of the work reads its own party's alone.
        """

    def costs(self) -> Mapping[str, float]:
        """Return what it took: counts, and CPU seconds as ``cpu_seconds:...``."""
        return {}


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


def summands(message: Message) -> dict[str, NDArray[Any]]:
    """Return the fields of a message that are added, by name."""
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


def size_of_whole(array: NDArray[Any]) -> int:
    """Return how many whole numbers `whole` makes of an array."""
    return int(array.size) * (_DIGITS if array.dtype.kind == "f" else 1)


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
