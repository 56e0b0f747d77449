"""Messages: the only thing that crosses between parties. Frozen, typed, tagged."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from fedtrees.core.errors import ProtocolError
from fedtrees.core.sealed import Sealed


class Reveal(StrEnum):
    """What a message tells its reader about somebody's private rows."""

    LABELS = "labels"
    FEATURES = "features"
    IDS = "ids"
    THRESHOLDS = "thresholds"
    COUNTS = "counts"
    MEMBERSHIP = "membership"
    MODEL = "model"


_TYPES: dict[str, type[Message]] = {}


def sealed(message: Message, *keyholders: str) -> Message:
    """Return the message with its summable fields sealed by the ideal functionality."""
    secret = [f.name for f in fields(message) if f.metadata.get("summed")]
    return replace(
        message, **{name: Sealed.of(getattr(message, name), *keyholders) for name in secret}
    )


def closed(message: Message) -> bool:
    """Tell whether any part of a message is sealed."""
    return any(isinstance(getattr(message, f.name), Sealed) for f in fields(message))


def check_fields(message: Message) -> None:
    """Raise `ProtocolError` where something hangs on a message that is none of its fields."""
    known = {f.name for f in fields(message)}
    odd = [name for name in vars(message) if name not in known and not hasattr(type(message), name)]
    if odd:
        raise ProtocolError(
            f"{type(message).__name__} carries {', '.join(odd)}, which its class does not declare; "
            "make it a field, so that it is counted, and defenses see it"
        )


def emptied(message: Message) -> Message:
    """Return a message without what is inside its sealed fields, itself if nothing is there.

    Keys and ciphertexts are others in every run; all else is the same.
    """
    values = ((f.name, getattr(message, f.name)) for f in fields(message))
    empty = {
        name: replace(value, payload=b"")
        for name, value in values
        if isinstance(value, Sealed) and value.payload
    }
    return replace(message, **empty) if empty else message


def summable() -> Any:
    """Declare a message field that a secure sum adds over parties; all others must agree."""
    return field(metadata={"summed": True})


@dataclass(frozen=True, eq=False)
class Message:
    """Base of everything that crosses.

    Subclasses are frozen dataclasses whose fields are numpy arrays, numbers, strings, booleans,
    None, or `Sealed` arrays. Arrays become read-only when the message is made.

    Attributes
    ----------
    discloses : frozenset of Reveal
        The most a message of this type can reveal: everything, unless its class says otherwise.
    verbatim : frozenset of str
        Fields in which values of somebody's rows stand as they are: ends, summaries, thresholds. In
        all others ``fedtrees check`` takes such a value for a leak.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(Reveal)
    verbatim: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = _TYPES.get(cls.__name__)
        if known is not None and known.__module__ != cls.__module__:
            raise ProtocolError(
                f"two message types are called {cls.__name__!r} ({known.__module__} and "
                f"{cls.__module__}); rename one"
            )
        _TYPES[cls.__name__] = cls

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, item.name, frozen(value))
            elif not isinstance(value, (bool, int, float, str, np.generic, Sealed, type(None))):
                raise ProtocolError(
                    f"{type(self).__name__}.{item.name} is a {type(value).__name__}; a message "
                    "carries arrays, numbers, strings, booleans, sealed arrays or None"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # arrays come out of a pickle writeable

    @property
    def reveals(self) -> frozenset[Reveal]:
        """What this very message reveals; at most `discloses`."""
        return self.discloses

    def unit_of(self, field: str) -> tuple[Any, bool]:
        """Return how many units of an array field make one, and whether its numbers are whole.

        A number, or an array for the last axis; what a channel's `within` takes.
        """
        return 1.0, getattr(self, field).dtype.kind in "iu"

    def numbers(self, field: str) -> np.ndarray[Any, Any]:
        """Return an array field as the numbers that it holds, where it is packed."""
        found: np.ndarray[Any, Any] = getattr(self, field)
        return found

    @property
    def series(self) -> str:
        """Which sums of replies a protocol combines: they must be over the same parties."""
        return type(self).__name__


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a contiguous copy that cannot be made writeable again: its memory is bytes."""
    if array.dtype.hasobject:
        raise ProtocolError("a message cannot carry an array of Python objects; use numbers")
    if array.size == 0:
        empty = np.empty(array.shape, array.dtype)
        empty.flags.writeable = False
        return empty
    if isinstance(array.base, bytes) and not array.flags.writeable:
        return array
    return np.ndarray(array.shape, array.dtype, array.tobytes())


def message_type(name: str) -> type[Message] | None:
    """Return the message class of that name, None if no imported module defines one."""
    return _TYPES.get(name)
