"""Secure aggregation: the server learns the sum of the clients' replies and nothing else.

Training on histograms needs only sums over all clients. This module defines the interface of a
secure sum: `Closing` is the client side, `Opening` the server side, and `Aggregation` creates both.
It implements the ideal functionality `IdealSum`, a trusted third party that adds the replies. The
defenses ``masking`` and ``paillier`` implement the same interface with cryptography.

A secure sum takes four steps:

1. The server sends a request. Each client computes its reply. Its host (`fedtrees.core.host`)
   applies the defenses, stores the reply, and shows the network only the fields that are not
   summed.
2. The network (`fedtrees.core.network`) passes these incomplete replies to `Opening.opened`.
3. The opening side requests the protected replies. Each host creates its protected reply with
   `Closing.seal`, for example by adding pairwise masks.
4. The opening side computes the sum and returns it as one message of the type of the replies.

The module also contains the arithmetic of all sums: `add_messages`, and the conversion between
floats and integers that makes sums exact.
"""

from __future__ import annotations

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
from fedtrees.core.messages import Message, Sealed, sealed
from fedtrees.core.streams import Streams

# A float is represented by twelve signed digits of 32 bits, in units of 2^-192. Every digit is
# smaller than 2^32 in absolute value, so that the sum of up to 2^31 of them fits an int64. Such
# sums are exact and do not depend on the order of addition.
_DIGIT = 32
_DIGITS = 12
_PLACES = 192
FLOAT_LIMIT = 1 << _DIGIT  # every digit is smaller in absolute value
_LARGEST = np.float64(2.0 ** (_DIGITS * _DIGIT - _PLACES))  # every finite float32 is smaller


@dataclass(frozen=True)
class Known:
    """Public facts about the secure sums of a run."""

    parties: tuple[str, ...]  # names of the parties whose replies are added
    # True if no party adds noise or rounds. The declared number of rows then bounds every sum.
    exact: bool
    classes: int  # number of classes of the target, 0 if it is numeric
    parameters: Mapping[str, Any]  # public parameters of the protocol
    # By reply type, the number of parties whose noise shares a sum must contain to be opened.
    shares: Mapping[type[Message], int]


@dataclass(frozen=True)
class Wire:
    """Access of the opening side to the network during one secure sum."""

    server: str  # name of the party that sent the request and opens the sum
    # Declared number of training rows of all parties. None if the rows have sample weights, because
    # their number then does not bound a sum.
    rows: int | None
    known: Known
    # ``ask(to, message, why, back="", gone=())`` sends a message of the aggregation protocol, for
    # example a public key, to all parties in ``to`` and returns the replies by party. ``back`` is
    # the recorded reason of the replies if it differs from ``why``. Parties in ``gone`` are
    # simulated as disconnected and do not reply.
    ask: Callable[..., dict[str, Message]]
    # ``seal(names, how, why)`` requests the protected replies of the parties. ``how`` contains the
    # arguments of their `Closing.seal`.
    seal: Callable[[Iterable[str], Mapping[str, Any], str], dict[str, Message]]
    # Randomness of the simulated network, for example of lost messages, independent of all parties.
    streams: Streams
    # Smallest number of replies whose sum may be opened: the number of noise shares that add up to
    # the claimed noise. 0 if the replies contain no noise shares.
    least: int = 0


class Closing(ABC):
    """Client side of secure sums. It protects the replies of one client and stores its keys.

    Attributes
    ----------
    ledger : object or None
        Counts of cryptographic operations (`fedtrees.sealing.ledger`), None if there are none.
    kept : list of (Message, str)
        Messages that this client decrypted, each with the reason. The host moves them to the
        transcript.
    """

    ledger: Any = None
    #: Rules that the client checks so that a dishonest server cannot open more than agreed, by
    #: message type and field. `fedtrees.core.party.handles` declares the rules of parties in the
    #: same form.
    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {}

    def __init__(self) -> None:
        self.kept: list[tuple[Message, str]] = []
        self._told = blake2b()

    def hear(self, message: Message) -> None:
        """Add a received message to the digest of everything that the client received.

        A sum is opened only if all clients have the same digest. Otherwise a malicious server could
        send different requests to different clients and infer the reply of one client from the sum.
        """
        self._told.update(digest_of(message))

    @abstractmethod
    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Return the message that this client sends in place of its reply.

        Parameters
        ----------
        reply : Message or None
            The stored reply. None if there is none yet.
        how : mapping of str to object
            Arguments of the opening side (`Wire.seal`).

        Returns
        -------
        message : Message or None
            The protected reply, or another message that the opening side requested. None if the
            client sends nothing.
        """

    def takes(self, message: Message) -> bool:
        """Return whether a message belongs to the aggregation protocol and not to the training."""
        return False

    def answer(self, message: Message) -> Message | None:
        """Handle a message of the aggregation protocol and return the reply, if there is one.

        Raises
        ------
        ProtocolError
            If the protocol has no such message.
        """
        raise ProtocolError(f"{type(self).__name__} takes no {type(message).__name__}")


class Opening(ABC):
    """Server side of secure sums. It collects the protected replies and opens their sum."""

    ledger: Any = None

    def hear(self, names: Iterable[str], message: Message) -> None:  # noqa: B027 - few implementations need it
        """Record a message that was sent to these parties."""

    @abstractmethod
    def opened(self, pending_replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Collect the protected replies and return their sum.

        Implementations must not open a sum of fewer than ``wire.least`` replies.

        Parameters
        ----------
        pending_replies : mapping of str to Message
            One incomplete reply per party, all of the same type. Their summed fields are sealed and
            empty.
        wire : Wire
            Access to the network.
        why : str
            Recorded reason of the protected replies.
        """


class Aggregation(ABC):
    """Secure sums of one run. `Defense.secure_aggregation` creates them.

    An implementation must not store the secrets of a party. The ideal functionality is the
    exception: it represents a trusted third party, and all parties of a run share one instance.
    """

    @abstractmethod
    def closing(self, name: str, rows: int | None, facts: Known) -> Closing:
        """Create the client side of one party.

        Parameters
        ----------
        name : str
            Name of the party.
        rows : int or None
            Number of its rows, None if they have sample weights.
        facts : Known
            Public facts about the sums of this run.
        """

    @abstractmethod
    def opening(self) -> Opening:
        """Create the server side."""

    def costs(self, ledgers: Mapping[str, Any]) -> Mapping[str, float]:
        """Return operation counts and CPU seconds (keys ``cpu_seconds:...``), given all ledgers."""
        return {}


#: For each party, the digest of all messages that it received, and its plain reply.
Inside = dict[str, tuple[bytes, Message]]


class IdealSum(Aggregation):
    """The ideal functionality of a secure sum: a trusted third party that adds the replies.

    The server receives only the sum. Attacks that succeed against the ideal functionality succeed
    against every correct cryptographic protocol.
    """

    def __init__(self) -> None:
        self.inside: Inside = {}
        self._last: tuple[Message | None, bytes] = None, b""

    def digest(self, message: Message) -> bytes:
        """Return the digest of a message, computed once for all receivers of a broadcast."""
        if self._last[0] is not message:
            # A broadcast is digested once, and not once per receiver.
            self._last = message, digest_of(message)
        return self._last[1]

    def closing(self, name: str, rows: int | None, facts: Known) -> Closing:
        """Create the client side that passes the replies of one party to the trusted third party.

        Parameters
        ----------
        name : str
            Name of the party.
        rows, facts
            Not used.
        """
        return IdealClosing(name, self)

    def opening(self) -> Opening:
        """Create the server side that receives the sums from the third party."""
        return IdealOpening(self.inside)


class IdealClosing(Closing):
    """Client side of the ideal functionality."""

    def __init__(self, name: str, sums: IdealSum) -> None:
        super().__init__()
        self._name, self._sums = name, sums

    def hear(self, message: Message) -> None:
        """Add a received message to the digest of everything that the client received."""
        self._told.update(self._sums.digest(message))

    def seal(self, reply: Message | None, how: Mapping[str, Any]) -> Message | None:
        """Pass the reply to the third party, and return it with empty summed fields."""
        assert reply is not None
        self._sums.inside[self._name] = self._told.digest(), reply
        return sealed(reply)


class IdealOpening(Opening):
    """Server side of the ideal functionality."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def opened(self, pending_replies: Mapping[str, Message], wire: Wire, why: str) -> Message:
        """Collect the replies and return their sum.

        Parameters
        ----------
        pending_replies : mapping of str to Message
            One incomplete reply per party.
        wire : Wire
            Access to the network.
        why : str
            Recorded reason of the protected replies.

        Raises
        ------
        ProtocolError
            If the sum would contain the reply of a single party although several parties contribute
            to sums in this run.
        EquivocationError
            If the parties received different messages from the server.
        """
        # With a single reply, the sum would be this reply.
        if len(pending_replies) < 2 <= len(wire.known.parties):
            raise ProtocolError(
                f"a sum of {', '.join(pending_replies)} alone is no sum; ask all "
                f"{len(wire.known.parties)} parties that have a part in it"
            )
        parts = {name: self._inside.pop(name) for name in wire.seal(pending_replies, {}, why)}
        # A digest covers all earlier messages, so that the digests also differ in all later sums.
        if len({history for history, _ in parts.values()}) > 1:
            raise EquivocationError(
                f"{', '.join(parts)}: not all were told the same; their sum stays closed, and so "
                "do all that follow. Start anew"
            )
        return add_messages(reply for _, reply in parts.values())


def digest_of(message: Message) -> bytes:
    """Return the 64-byte BLAKE2b digest of the encoding of a message."""
    return blake2b(encode(message)).digest()


def agreed(messages: Iterable[Message]) -> Message:
    """Check that messages differ only in their summed fields, and return the first one.

    For example, two histograms can be added only if they describe the same nodes of the same tree.

    Raises
    ------
    ProtocolError
        If a field that is not summed differs.
    """
    first, *remaining = messages
    for field in fields(first):
        value = getattr(first, field.name)
        if not field.metadata.get("summed") and any(
            not np.array_equal(getattr(m, field.name), value) for m in remaining
        ):
            raise ProtocolError(
                f"cannot sum {type(first).__name__}: the parties disagree on {field.name!r}"
            )
    return first


def summands(message: Message) -> dict[str, Any]:
    """Return the fields of a message that are added, by name: arrays, or `Sealed` arrays."""
    return {f.name: getattr(message, f.name) for f in fields(message) if f.metadata.get("summed")}


def whole(array: NDArray[Any]) -> NDArray[np.int64]:
    """Represent an array by integers whose sums over parties are exact.

    Integers are returned unchanged. A float becomes twelve signed digits of 32 bits, the most
    significant digit first. Bits of a float64 below 2^-192 are lost. A float32 has no such bits.

    Parameters
    ----------
    array : integer or float array of any shape

    Returns
    -------
    integers : int64 array, shape (array.size,) for integers or (12 * array.size,) for floats

    Raises
    ------
    DataError
        If a float is infinite, NaN, or at least 2^192 in absolute value.

    Notes
    -----
    This is a small superaccumulator with a reduced range of exponents (R. M. Neal, "Fast exact
    summation using small and large superaccumulators", arXiv:1505.05571, 2015).
    """
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, dtype=np.int64).reshape(-1)
    remainder = np.array(array, dtype=np.float64).reshape(-1)
    if not (np.abs(remainder) < _LARGEST).all():
        worst = remainder[np.argmin(np.abs(remainder) < _LARGEST)]
        raise DataError(
            f"{worst} cannot be summed securely: numbers must be finite and below 2^192; scale the "
            "target or the weights"
        )
    digits = np.empty((remainder.size, _DIGITS), dtype=np.int64)
    for k in range(_DIGITS):
        place = (_DIGITS - 1 - k) * _DIGIT - _PLACES
        digit = np.trunc(np.ldexp(remainder, -place))
        # exact: it removes leading bits, and the remaining bits of a float are a float
        remainder = remainder - np.ldexp(digit, place)
        digits[:, k] = digit
    return digits.reshape(-1)


def from_whole(
    sums: NDArray[np.int64], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Convert sums of integers back to an array, the inverse of `whole`.

    Parameters
    ----------
    sums : int64 array, shape (n_integers,)
        Sum of the integers of up to 2^31 arrays.
    shape : tuple of int
        Shape of each of these arrays.
    dtype : numpy.dtype
        Their dtype.

    Returns
    -------
    total : array of the given shape and dtype
        For float64, the exact sum, rounded correctly. For float32, this float64 value is rounded a
        second time, so that the last bit may differ from the correctly rounded sum.
    """
    if dtype.kind != "f":
        return sums.reshape(shape).astype(dtype, copy=False)
    totals = []
    # Python integers have no overflow, so that the digits of a sum need no carry.
    for digits in sums.reshape(-1, _DIGITS).tolist():
        numerator = 0
        for digit in digits:
            numerator = (numerator << _DIGIT) + digit
        totals.append(numerator / (1 << _PLACES))  # Python rounds quotients of integers correctly
    return np.array(totals, dtype=dtype).reshape(shape)


def size_of_whole(array: NDArray[Any] | Sealed) -> int:
    """Return the number of integers that represent an array, which may be `Sealed`."""
    return math.prod(array.shape) * (_DIGITS if np.dtype(array.dtype).kind == "f" else 1)


def summed(first: Message, numbers: NDArray[np.int64]) -> Message:
    """Return a message whose summed fields are replaced by sums over all parties.

    Parameters
    ----------
    first : Message
        The reply of one party. It supplies the remaining fields, and shapes and dtypes of the sums.
    numbers : int64 array, shape (n_integers,)
        Sums of the integers that represent the fields, concatenated in the order of the fields.
    """
    totals, begin = {}, 0
    for field, like in summands(first).items():
        end = begin + size_of_whole(like)
        totals[field] = from_whole(numbers[begin:end], like.shape, np.dtype(like.dtype))
        begin = end
    return replace(first, **totals)


def add_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Add arrays of the same shape and dtype.

    Integers, and floats below 2^192 in absolute value, are added exactly, so that the result does
    not depend on the order of the parties. If any float is outside this range, the arrays are added
    in floating point.
    """
    first = arrays[0]
    if first.dtype.kind != "f" or not all((np.abs(a) < _LARGEST).all() for a in arrays):
        total = first
        for array in arrays[1:]:  # np.sum would first copy all arrays into one
            total = np.add(total, array)
        return total
    return from_whole(sum(map(whole, arrays[1:]), whole(first)), first.shape, first.dtype)


def add_messages(messages: Iterable[Message]) -> Message:
    """Add messages of the same type.

    Fields declared with `summable` are added. All remaining fields must be equal.

    Raises
    ------
    ProtocolError
        If a field that is not summed differs.
    """
    replies = list(messages)
    first = agreed(replies)
    parts = [summands(m) for m in replies]
    return replace(first, **{name: add_arrays([p[name] for p in parts]) for name in parts[0]})
