"""Secure aggregation: the server learns the sum of the clients' replies and nothing else.

Training on histograms needs only sums over all clients. This module defines the interface of a
secure sum: `ClientAggregator` is the client side, `ServerAggregator` the server side, and
`SecureAggregation` creates both. It implements the ideal functionality `IdealAggregation`, a
trusted third party that adds the replies. `fedtrees.crypto.masking` and
`fedtrees.crypto.paillier_sum` implement the same interface with cryptography.

A secure sum takes four steps:

1. The server sends a request. Each client computes its reply. Its host (`fedtrees.core.host`)
   applies the defenses, stores the reply, and shows the network only the fields that are not
   summed.
2. The network (`fedtrees.core.network`) passes these incomplete replies to
   `ServerAggregator.open_sum`.
3. The server side requests the protected replies. Each host creates its protected reply with
   `ClientAggregator.protect`, for example by adding pairwise masks.
4. The server side computes the sum and returns it as one message of the type of the replies.

The module also contains the arithmetic of all sums: `add_messages`, and the conversion between
floats and integers that makes sums exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, EquivocationError, ProtocolError
from fedtrees.core.messages import AnyMessage, Message, Sealed, seal_sums
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode

if TYPE_CHECKING:
    from fedtrees.core.network import Network

# A float is represented by twelve signed digits of 32 bits, in units of 2^-192. Every digit is
# smaller than 2^32 in absolute value, so that the sum of up to 2^31 of them fits an int64. Such
# sums are exact and do not depend on the order of addition.
_DIGIT = 32
_DIGITS = 12
_PLACES = 192
FLOAT_LIMIT = 1 << _DIGIT  # every digit is smaller in absolute value
_LARGEST = np.float64(2.0 ** (_DIGITS * _DIGIT - _PLACES))  # every finite float32 is smaller


@dataclass(frozen=True)
class SumContext:
    """Public facts about the secure sums of a run.

    Attributes
    ----------
    parties : tuple of str
        Names of the parties whose replies are added.
    exact : bool
        True if no party adds noise or rounds. The declared number of rows then bounds every sum.
    classes : int
        Number of classes of the target, 0 if it is numeric.
    parameters : mapping of str to object
        Public parameters of the protocol.
    min_noise_shares : mapping of type to int
        By reply type, the number of parties whose noise shares a sum must contain to be opened.
    """

    parties: tuple[str, ...]
    exact: bool
    classes: int
    parameters: Mapping[str, Any]
    min_noise_shares: Mapping[type[Message], int]


@dataclass(eq=False)
class AggregationExchange:
    """Access of the server side to the network during one secure sum.

    Attributes
    ----------
    net : Network
        The network. All messages of the sum enter its transcript.
    server : str
        Name of the party that sent the request and opens the sum.
    rows : int or None
        Declared number of training rows of all parties. None if the rows have sample weights,
        because their number then does not bound a sum.
    context : SumContext
        Public facts about the sums of the run.
    streams : Streams
        Randomness of the simulated network, for example of lost messages, independent of all
        parties.
    min_replies : int
        Smallest number of replies whose sum may be opened: the number of noise shares that add up
        to the claimed noise. 0 if the replies contain no noise shares.
    """

    net: Network
    server: str
    rows: int | None
    context: SumContext
    streams: Streams
    min_replies: int

    def request(
        self,
        to: Sequence[str],
        message: Message,
        reason: str,
        reply_reason: str = "",
        disconnected: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Send a message of the aggregation protocol and return the replies by party.

        Parameters
        ----------
        to : sequence of str
            Names of the receivers.
        message : Message
            The message, for example a public key.
        reason : str
            Recorded reason of the message.
        reply_reason : str
            Recorded reason of the replies if it differs from `reason`.
        disconnected : sequence of str
            Receivers that are simulated as disconnected and do not reply.
        """
        self.net.transcript.rounds += 1
        self.net.transcript.record(self.server, tuple(to), message, reason)
        reachable = [name for name in to if name not in disconnected]
        return self.net.request_sealed(
            self.server,
            reachable,
            lambda host: host.handle_request(message, reason),
            reply_reason or reason,
        )

    def protect(
        self, names: Iterable[str], arguments: Mapping[str, Any], reason: str
    ) -> dict[str, Any]:
        """Request the protected replies of parties, and return them by party.

        Parameters
        ----------
        names : iterable of str
            Names of the parties.
        arguments : mapping of str to object
            Arguments of `ClientAggregator.protect`, the same for all parties.
        reason : str
            Recorded reason of the replies.
        """
        return self.net.request_sealed(
            self.server, names, lambda host: host.protect(arguments, reason), reason
        )


class ClientAggregator(ABC):
    """Client side of secure sums. It protects the replies of one client and stores its keys.

    Attributes
    ----------
    ledger : object or None
        Counts of cryptographic operations (`fedtrees.crypto.costs`), None if there are none.
    opened_messages : list of (Message, str)
        Messages that this client decrypted, each with the reason. The host moves them to the
        transcript.
    """

    ledger: Any = None
    #: Rules that the client checks so that a dishonest server cannot open more than agreed, by
    #: message type and field. `fedtrees.core.party.handles` declares the rules of parties in the
    #: same form.
    rules: ClassVar[Mapping[type[Message], Mapping[str, str]]] = {}

    def __init__(self) -> None:
        self.opened_messages: list[tuple[Message, str]] = []
        self._history = blake2b()

    def record_received(self, message: Message) -> None:
        """Add a received message to the digest of everything that the client received.

        A sum is opened only if all clients have the same digest. Otherwise a malicious server could
        send different requests to different clients and infer the reply of one client from the sum.
        """
        self._history.update(digest_of(message))

    @abstractmethod
    def protect(self, reply: Message | None, arguments: Mapping[str, Any]) -> Message | None:
        """Return the message that this client sends in place of its reply.

        Parameters
        ----------
        reply : Message or None
            The stored reply. None if there is none yet.
        arguments : mapping of str to object
            Arguments of the server side (`AggregationExchange.protect`).

        Returns
        -------
        message : Message or None
            The protected reply, or another message that the server side requested. None if the
            client sends nothing.
        """

    def accepts(self, message: Message) -> bool:
        """Return whether a message belongs to the aggregation protocol and not to the training."""
        return False

    def handle(self, message: Message) -> Message | None:
        """Handle a message of the aggregation protocol and return the reply, if there is one.

        Raises
        ------
        ProtocolError
            If the protocol has no such message.
        """
        raise ProtocolError(f"{type(self).__name__} does not handle {type(message).__name__}")


class ServerAggregator(ABC):
    """Server side of secure sums. It collects the protected replies and opens their sum."""

    ledger: Any = None

    def record_sent(self, names: Iterable[str], message: Message) -> None:  # noqa: B027 - few implementations need it
        """Record a message that was sent to these parties."""

    @abstractmethod
    def open_sum(
        self, pending_replies: Mapping[str, Message], exchange: AggregationExchange, reason: str
    ) -> Message:
        """Collect the protected replies and return their sum.

        Implementations must not open a sum of fewer than ``exchange.min_replies`` replies.

        Parameters
        ----------
        pending_replies : mapping of str to Message
            One incomplete reply per party, all of the same type. Their summed fields are sealed and
            empty.
        exchange : AggregationExchange
            Access to the network.
        reason : str
            Recorded reason of the protected replies.
        """


class SecureAggregation(ABC):
    """Secure sums of one run. `Defense.secure_aggregation` creates them.

    An implementation must not store the secrets of a party. The ideal functionality is the
    exception: it represents a trusted third party, and all parties of a run share one instance.
    """

    @abstractmethod
    def client_side(self, name: str, rows: int | None, context: SumContext) -> ClientAggregator:
        """Create the client side of one party.

        Parameters
        ----------
        name : str
            Name of the party.
        rows : int or None
            Number of its rows, None if they have sample weights.
        context : SumContext
            Public facts about the sums of this run.
        """

    @abstractmethod
    def server_side(self) -> ServerAggregator:
        """Create the server side."""

    def costs(self, ledgers: Mapping[str, Any]) -> Mapping[str, float]:
        """Return operation counts and CPU seconds (keys ``cpu_seconds:...``), given all ledgers."""
        return {}


class IdealAggregation(SecureAggregation, ServerAggregator):
    """The ideal functionality of a secure sum: a trusted third party that adds the replies.

    The server receives only the sum. Attacks that succeed against the ideal functionality succeed
    against every correct cryptographic protocol.
    """

    def __init__(self) -> None:
        # The digest of all messages that a party received, and its plain reply, by party.
        self.replies: dict[str, tuple[bytes, Message]] = {}
        self._last: tuple[Message | None, bytes] = None, b""

    def client_side(self, name: str, rows: int | None, context: SumContext) -> ClientAggregator:
        return _IdealClient(name, self)

    def server_side(self) -> ServerAggregator:
        return self

    def digest(self, message: Message) -> bytes:
        """Return the digest of a message, computed once for all receivers of a broadcast."""
        if self._last[0] is not message:
            self._last = message, digest_of(message)
        return self._last[1]

    def open_sum(
        self, pending_replies: Mapping[str, Message], exchange: AggregationExchange, reason: str
    ) -> Message:
        """Collect the replies and return their sum.

        Raises
        ------
        ProtocolError
            If the sum would contain the reply of a single party although several parties contribute
            to sums in this run.
        EquivocationError
            If the parties received different messages from the server.
        """
        # With a single reply, the sum would be this reply.
        if len(pending_replies) < 2 <= len(exchange.context.parties):
            raise ProtocolError(
                f"a sum over {', '.join(pending_replies)} only would reveal its value; "
                f"request it from all {len(exchange.context.parties)} parties"
            )
        parts = {
            name: self.replies.pop(name) for name in exchange.protect(pending_replies, {}, reason)
        }
        # A digest covers all earlier messages, so that the digests also differ in all later sums.
        if len({history for history, _ in parts.values()}) > 1:
            raise EquivocationError(
                f"{', '.join(parts)}: not all parties received the same values. Their "
                "sum and all later sums cannot be opened. Start a new run"
            )
        return add_messages(reply for _, reply in parts.values())


class _IdealClient(ClientAggregator):
    """Client side of the ideal functionality: it passes the replies of one party to it."""

    def __init__(self, name: str, third_party: IdealAggregation) -> None:
        super().__init__()
        self._name, self._third_party = name, third_party

    def record_received(self, message: Message) -> None:
        self._history.update(self._third_party.digest(message))

    def protect(self, reply: Message | None, arguments: Mapping[str, Any]) -> Message | None:
        """Pass the reply to the third party, and return it with empty summed fields."""
        assert reply is not None
        self._third_party.replies[self._name] = self._history.digest(), reply
        return seal_sums(reply)


def digest_of(message: Message) -> bytes:
    """Return the 64-byte BLAKE2b digest of the encoding of a message."""
    return blake2b(encode(message)).digest()


def check_same_fields(messages: Iterable[AnyMessage]) -> AnyMessage:
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


def summed_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message that are added, by name: arrays, or `Sealed` arrays."""
    return {f.name: getattr(message, f.name) for f in fields(message) if f.metadata.get("summed")}


def to_integers(array: NDArray[Any]) -> NDArray[np.int64]:
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


def from_integers(
    sums: NDArray[np.int64], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Convert sums of integers back to an array, the inverse of `to_integers`.

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


def count_integers(array: NDArray[Any] | Sealed) -> int:
    """Return the number of integers that represent an array, which may be `Sealed`."""
    return math.prod(array.shape) * (_DIGITS if np.dtype(array.dtype).kind == "f" else 1)


def replace_sums(first: AnyMessage, numbers: NDArray[np.int64]) -> AnyMessage:
    """Return a message whose summed fields are replaced by sums over all parties.

    Parameters
    ----------
    first : Message
        The reply of one party. It supplies the remaining fields, and shapes and dtypes of the sums.
    numbers : int64 array, shape (n_integers,)
        Sums of the integers that represent the fields, concatenated in the order of the fields.
    """
    totals, begin = {}, 0
    for field, like in summed_fields(first).items():
        end = begin + count_integers(like)
        totals[field] = from_integers(numbers[begin:end], like.shape, np.dtype(like.dtype))
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
    return from_integers(
        sum(map(to_integers, arrays[1:]), to_integers(first)), first.shape, first.dtype
    )


def add_messages(messages: Iterable[AnyMessage]) -> AnyMessage:
    """Add messages of the same type.

    Fields declared with `summable` are added. All remaining fields must be equal.

    Raises
    ------
    ProtocolError
        If a field that is not summed differs.
    """
    replies = list(messages)
    first = check_same_fields(replies)
    parts = [summed_fields(m) for m in replies]
    return replace(first, **{name: add_arrays([p[name] for p in parts]) for name in parts[0]})
