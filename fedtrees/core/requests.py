"""Checks of a request against the agreement that all parties made before the run.

The sender of a request may be dishonest. A party therefore takes every public value, such as the
number of clients, the number of trees or the units of sums, from its copy of the agreement
(`fedtrees.core.host.Agreement`). If a message repeats such a value, or numbers a request, the party
compares the two with the functions of this module and refuses to answer if they differ.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import BeyondParametersError, short
from fedtrees.core.messages import Message

_REMEDY = "the sender must keep to the agreement: compare its parameters, and start a new run"


def refuse(message: Message, field: str, rule: str) -> NoReturn:
    """Refuse a message because of one of its fields.

    Parameters
    ----------
    message : Message
        The message that was received.
    field : str
        Name of the field whose value is not allowed, empty if the complete message is not allowed.
    rule : str
        The rule of the agreement, as a clause.

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
    message : Message
        The message that was received.
    field : str
        Name of the field.
    agreed : number, str, tuple or array
        The value of the agreement.
    what : str
        Name of the value in an error message, such as ``"the number of bins"``.

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


#: Largest absolute value of a number that a sender may choose. Sums of a hundred thousand such
#: numbers are finite in single precision, so that predictions cannot overflow.
LARGEST = 1e30


def check_bounded(message: Message, field: str) -> None:
    """Refuse numbers that are not finite, or larger than `LARGEST` in absolute value.

    For such a number, a computation fails or is undefined only for the rows that the number
    reaches. The sender would learn from the failure whether there is such a row, and no noise
    protects this answer. The check therefore depends only on the message.

    Parameters
    ----------
    message : Message
        The received message.
    field : str
        Name of the field with the numbers.

    Raises
    ------
    BeyondParametersError
        If a number is too large, infinite or not a number.
    """
    values = np.asarray(getattr(message, field))
    if not (np.abs(values) <= LARGEST).all():
        refuse(message, field, f"numbers are finite and at most {LARGEST:g} in size")


def check_among(message: Message, field: str, allowed: Iterable[Any], what: str) -> None:
    """Refuse a field with a value that is not allowed.

    Parameters
    ----------
    message : Message
        The message that was received.
    field : str
        Name of the field.
    allowed : iterable
        Allowed values.
    what : str
        Name of the value in an error message.

    Raises
    ------
    BeyondParametersError
        If the field has another value.
    """
    allowed_values = list(allowed)
    if getattr(message, field) not in allowed_values:
        refuse(message, field, f"{what} is one of {short(allowed_values)}")


def divides(offsets: NDArray[np.integer[Any]], parts: int, end: int) -> bool:
    """Return whether offsets divide entries into consecutive spans.

    With other offsets, a sender could make a party count an entry several times.

    Parameters
    ----------
    offsets : int array
        Received offsets. Span j is ``offsets[j]:offsets[j + 1]``.
    parts : int
        Number of spans.
    end : int
        Number of entries.

    Returns
    -------
    bool
        True if there are ``parts + 1`` offsets that start at 0, never decrease, and end at `end`.

    Examples
    --------
    >>> import numpy as np
    >>> divides(np.array([0, 2, 3]), 2, 3), divides(np.array([0, 3, 2]), 2, 2)
    (True, False)
    """
    if offsets.shape != (parts + 1,) or offsets[0] != 0 or offsets[-1] != end:
        return False
    return bool((np.diff(offsets) >= 0).all())


class Turns:
    """Numbered requests of one kind: a party answers each number once, in order.

    A second answer to the same request would spend the privacy budget a second time, or reuse a
    stream of noise, so that the difference of two answers is exact.

    Parameters
    ----------
    count : int
        Number of requests that the agreement allows.
    first : int
        Number of the first request.
    gaps : bool
        Whether numbers may be left out, because a round may belong to another party.
    """

    def __init__(self, count: int, first: int = 0, *, gaps: bool = False) -> None:
        self.first, self.end, self.gaps = first, first + count, gaps
        self.next = first

    @property
    def last(self) -> int:
        """Number of the last answered request, one below the first number if there was none."""
        return self.next - 1

    def take(self, message: Message, field: str) -> int:
        """Accept the number of a request.

        Parameters
        ----------
        message : Message
            The received request.
        field : str
            Name of the field with its number.

        Returns
        -------
        int
            The number.

        Raises
        ------
        BeyondParametersError
            If it is not the turn of this request.
        """
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
    """A request that a party answers only once in a run (`Turns`)."""

    def __init__(self) -> None:
        self.answered = False

    def take(self, message: Message, rule: str = "") -> None:
        """Accept the first request.

        Parameters
        ----------
        message : Message
            The received request.
        rule : str
            Rule that a further request violates, for the error message.

        Raises
        ------
        BeyondParametersError
            If a request was accepted before.
        """
        if self.answered:
            refuse(message, "", rule or "it was answered before, and is answered once")
        self.answered = True
