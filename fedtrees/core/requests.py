"""Checks of a request against the agreement that all parties made before the run.

The sender of a request may be dishonest. A party therefore takes every public value, such as the
number of clients, the number of trees or the units of sums, from its own copy of the agreement
(`fedtrees.core.host.Agreement`). Where a message repeats such a value, or numbers a request, the
party compares the two with the functions of this module and refuses to answer if they differ.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np

from fedtrees.core.errors import BeyondParametersError, short
from fedtrees.core.messages import Message

_REMEDY = "the sender must keep to the agreement: compare its parameters, and start the run anew"


def refuse(message: Message, field: str, rule: str) -> NoReturn:
    """Refuse a message because of one of its fields.

    Parameters
    ----------
    message : Message
        The message that was received.
    field : str
        Name of the field whose value is not allowed, empty if the whole message is.
    rule : str
        What the agreement allows, as a clause.

    Raises
    ------
    BeyondParametersError
        Always. Its text names the value, the rule and the remedy.
    """
    kind = type(message).__name__
    if not field:
        raise BeyondParametersError(f"{kind}: {rule}; {_REMEDY}")
    value = getattr(message, field)
    shown = short(value.tolist() if isinstance(value, np.ndarray) and value.size < 64 else value)
    shown = " ".join(shown.split())
    raise BeyondParametersError(f"{kind}.{field}={shown}: {rule}; {_REMEDY}")


def check_equal(message: Message, field: str, agreed: Any, what: str) -> None:
    """Refuse a field that repeats a public value and differs from it.

    Parameters
    ----------
    agreed : number, str, tuple or array
        The value of the agreement.
    what : str
        What the value is, such as ``"the number of bins"``.

    Raises
    ------
    BeyondParametersError
        If the field has another value, shape or kind of number.
    """
    value = np.asarray(getattr(message, field))
    expected = np.asarray(agreed)
    if value.dtype.kind != expected.dtype.kind or not np.array_equal(value, expected):
        shown = short(expected.tolist() if expected.size < 64 else expected)
        refuse(message, field, f"{what} is agreed to be {' '.join(shown.split())}")


#: Largest size of a number that a sender may choose. Sums of a hundred thousand such numbers are
#: finite in single precision, so that predictions cannot overflow.
LARGEST = 1e30


def check_bounded(message: Message, field: str) -> None:
    """Refuse numbers that are not finite, or larger than `LARGEST`.

    Such a number makes a computation fail, or its result undefined, for those rows only that it
    reaches. The sender would learn from the failure whether there is such a row, and no noise
    protects this answer. The check depends on the message alone.
    """
    values = np.asarray(getattr(message, field))
    if not (np.abs(values) <= LARGEST).all():
        refuse(message, field, f"numbers are finite and at most {LARGEST:g} in size")


def check_among(message: Message, field: str, allowed: Iterable[Any], what: str) -> None:
    """Refuse a field that is none of the allowed values (`check_equal`)."""
    allowed_values = list(allowed)
    if getattr(message, field) not in allowed_values:
        refuse(message, field, f"{what} is one of {short(allowed_values)}")


class Turns:
    """The numbered requests of one kind that a party answers: each number once, in order.

    A second answer to the same request would spend the privacy budget a second time, or reuse a
    stream of noise, so that the difference of two answers is exact.

    Parameters
    ----------
    count : int
        How many requests the agreement allows.
    first : int
        Number of the first one.
    gaps : bool
        Whether numbers may be left out, because a round may be another party's.
    """

    def __init__(self, count: int, first: int = 0, *, gaps: bool = False) -> None:
        self.first, self.end, self.gaps = first, first + count, gaps
        self.next = first

    @property
    def last(self) -> int:
        """Number of the request that was answered last; one below the first if none was."""
        return self.next - 1

    def take(self, message: Message, field: str) -> int:
        """Accept the number of a request; raises `BeyondParametersError` if it is not its turn."""
        number = int(getattr(message, field))
        if self.first <= number < self.next:
            refuse(message, field, "this request was answered before; each is answered once")
        if not self.first <= number < self.end:
            numbers = f"{self.first} to {self.end - 1}" if self.end > self.first else "none"
            refuse(message, field, f"the agreed numbers are {numbers}")
        if number != self.next and not self.gaps:
            refuse(message, field, f"requests come in order, and {self.next} is the next one")
        self.next = number + 1
        return number


class Once:
    """A request that a party answers a single time in a run (`Turns`)."""

    def __init__(self) -> None:
        self.answered = False

    def take(self, message: Message, rule: str = "") -> None:
        """Accept the first request; raises `BeyondParametersError` if there was one before."""
        if self.answered:
            refuse(message, "", rule or "it was answered before, and is answered once")
        self.answered = True
