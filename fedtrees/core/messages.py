"""Messages: the only thing that crosses between parties. Frozen, typed, tagged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
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


class Trait(StrEnum):
    """What a type of message is to defenses that act on the messages of every family."""

    SUMMED = "a client's part of sums that a model is made of"
    SUMMED_SECURELY = "a client's part of what the protocol itself sums securely"
    COUNTED = "numbers of rows, each row in one place of a field or in none"
    LABELS_COUNTED = "the number of rows, then of each class"
    GRADIENTS = "sums of gradients and hessians, in units of `g_bits` and `h_bits`"
    SUMMARY = "made of a client's columns, for cut points"
    SETTLED = "told to everybody before or after the trees: cut points, grids, where to stop"
    START = "where every prediction starts"
    STATISTICS = "sums of rows beside a model, in `row_statistics`"
    LEAVES = "what leaves predict, in `leaf_value`"
    GROWN_ALONE = "trees that a client grew on its own rows"
    POOLED = "a client's own forest, pooled in the order of arrival"
    NETWORK = "weights of a network, or a client's update of them"


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


_NAMES: dict[type, tuple[str, ...]] = {}


def names_of(message: Message) -> tuple[str, ...]:
    """Return the names of the fields of a message, which are looked up once for each type."""
    return names_of_type(type(message))


def names_of_type(kind: type[Message]) -> tuple[str, ...]:
    """Return the names of the fields of a type of message."""
    if kind not in _NAMES:
        _NAMES[kind] = tuple(f.name for f in fields(kind))
    return _NAMES[kind]


def check_fields(message: Message) -> None:
    """Raise `ProtocolError` where something hangs on a message that is none of its fields."""
    known = names_of(message)
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
    traits : frozenset of Trait
        Of this type alone: one that is derived from it, and may say more, has none of them.
    row_statistics, leaf_value
        Names of fields, for `Trait.STATISTICS` and `Trait.LEAVES`.
    """

    discloses: ClassVar[frozenset[Reveal]] = frozenset(Reveal)
    verbatim: ClassVar[frozenset[str]] = frozenset()
    traits: ClassVar[frozenset[Trait]] = frozenset()
    row_statistics: ClassVar[tuple[str, ...]] = ()
    leaf_value: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = _TYPES.get(cls.__name__)
        if known is not None and known.__module__ != cls.__module__:
            raise ProtocolError(
                f"two message types are called {cls.__name__!r} ({known.__module__} and "
                f"{cls.__module__}); rename one"
            )
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
    """Return the message class of that name, None if no installed module defines one."""
    if name not in _TYPES:
        load_families()
    return _TYPES.get(name)


class _Having:
    """Types by trait, as a class attribute: whatever families are installed."""

    def __init__(self, reasons: Mapping[Trait, str], with_reasons: bool) -> None:
        self._reasons, self._with_reasons = reasons, with_reasons

    def __get__(self, part: object, owner: object = None) -> Any:
        found = _having(tuple(self._reasons.items()), len(_TYPES))
        return dict(found) if self._with_reasons else tuple(found)


@cache
def _having(traits: tuple[tuple[Trait, str], ...], _: int) -> dict[type[Message], str]:
    every = sorted(_TYPES.items())
    return {t: why for trait, why in traits for _, t in every if trait in t.traits}


def having(*traits: Trait) -> Any:
    """Declare a defense's `guards` or `requires`: message types with one of these traits."""
    load_families()
    return _Having(dict.fromkeys(traits, ""), with_reasons=False)


def exempting(reasons: Mapping[Trait, str]) -> Any:
    """Declare a defense's `exempts`: message types with these traits, and why each may cross."""
    load_families()
    return _Having(reasons, with_reasons=True)


@cache
def load_families() -> None:
    """Import the messages of every family that is installed: entry points ``fedtrees.messages``."""
    for entry in entry_points(group="fedtrees.messages"):
        entry.load()
