"""Reassemble the calls of XGBoost's federated server from the bytes of its connections.

HTTP/2 frames (RFC 9113, Section 4.1) contain gRPC messages, which are protocol buffers with the
field numbers of XGBoost 3.2 (``plugin/federated/federated.proto``). The fields of a request are 1
sequence, 2 rank, 3 buffer, 4 data type or root, and 5 operation. A response has field 1, buffer.
Fields that are 0 or empty are not written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.messages.captured import CollectiveCall, WireBytes

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _END, _PADDED = 0, 1, 8
_HEAD, _LENGTH = 9, 5  # size in bytes of the header of a frame, and of a message
#: Largest size of a message in bytes.
MOST_BYTES = 256 << 20
_MOST_RANKS = 4096


class Messages:
    """Extracts the messages from one direction of a connection, each with its stream number."""

    def __init__(self, opener: bool) -> None:
        self._left, self._streams = bytearray(), dict[int, bytearray]()
        self._preface = _PREFACE if opener else b""

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that are complete now.

        Raises `DataError` if the bytes are not HTTP/2 in plain text.
        """
        self._left += chunk
        if self._preface:
            if not self._preface.startswith(self._left[: len(self._preface)]):
                raise DataError(
                    "no HTTP/2 in plain text: with TLS, nothing can be recorded from between"
                )
            if len(self._left) < len(self._preface):
                return
            del self._left[: len(self._preface)]
            self._preface = b""
        at = 0
        while at + _HEAD <= len(self._left):
            # Header of an HTTP/2 frame: length (3 bytes), type, flags, number of the stream (4).
            size = int.from_bytes(self._left[at : at + 3], "big")
            if at + _HEAD + size > len(self._left):
                break
            kind, flags = self._left[at + 3], self._left[at + 4]
            stream = int.from_bytes(self._left[at + 5 : at + _HEAD], "big") & 0x7FFFFFFF
            body = self._left[at + _HEAD : at + _HEAD + size]
            at += _HEAD + size
            if kind == _DATA:
                if flags & _PADDED and body:
                    body = body[1 : len(body) - body[0]]
                yield from self._whole(stream, body, bool(flags & _END))
        del self._left[:at]

    def _whole(self, stream: int, body: bytes, end: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the complete messages of one stream, after appending a part of it."""
        buffer = self._streams.setdefault(stream, bytearray())
        buffer += body
        # Header of a gRPC message: whether it is compressed (1 byte), length (4 bytes).
        while len(buffer) >= _LENGTH:
            size = int.from_bytes(buffer[1:_LENGTH], "big")
            if buffer[0] or size > MOST_BYTES:
                raise DataError(f"a compressed message, or one of {size:,} bytes; none is known")
            if len(buffer) < _LENGTH + size:
                break
            yield stream, bytes(buffer[_LENGTH : _LENGTH + size])
            del buffer[: _LENGTH + size]
        if end:
            del self._streams[stream]


def fields_of(message: bytes) -> dict[int, int | bytes]:
    """Return the integers and byte strings of a protocol buffer by field number.

    Raises `DataError` if the bytes are not a protocol buffer.
    """
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        # A key contains the field number and the wire type: 0 is an integer, and 2 is a length that
        # is followed by bytes.
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            if at + value > len(message):
                raise DataError("a protocol buffer that is cut off")
            fields[key >> 3] = message[at : at + value]
            at += value
        elif key & 7 == 0:
            fields[key >> 3] = value
        else:
            raise DataError(f"a field of type {key & 7}; none is known")
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer in the variable-length encoding, and the position after it."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DataError("a protocol buffer that is cut off")


@dataclass(eq=False)
class Call:
    """One collective operation: the bytes that every rank sent, and the answer to all of them."""

    buffers: dict[int, bytes] = field(default_factory=dict)  # sent bytes by rank
    code: int = 0  # data type of a sum, or root of a broadcast
    summed: bool = False
    answer: bytes | None = None

    @property
    def kind(self) -> str:
        """``reduce``, ``broadcast`` or ``gather``, inferred from the sent bytes and the answer."""
        # In a broadcast only the root sends bytes, and they equal the answer.
        full = [rank for rank, b in self.buffers.items() if b]
        if self.summed or (self.code and len(full) == len(self.buffers)):
            return "reduce"
        single_sender = len(full) == 1 and len(self.buffers) > 1
        return "broadcast" if single_sender and self.buffers[full[0]] == self.answer else "gather"


class Calls:
    """Combines the requests of all clients to calls, in their order."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, bool], Messages] = {}
        self._asked: dict[tuple[int, int], int] = {}  # sequence number, by connection and stream
        self._open: dict[int, Call] = {}
        self._next = 0
        self.world = 0  # number of ranks, known with the first answer

    def feed(self, what: WireBytes | CollectiveCall) -> None:
        """Add recorded bytes of a connection, or a call that a plug-in recorded.

        Raises `DataError` if the bytes are not calls of XGBoost.
        """
        if isinstance(what, CollectiveCall):
            self.world = self.world or what.world
            if self._request(what.number, what.rank, what.code, what.summed, what.sent):
                self._answer(what.number, what.answered.tobytes())
            return
        messages = self._messages.setdefault((what.link, what.opener), Messages(what.opener))
        for stream, message in messages.feed(what.data.tobytes()):
            fields, asked_by = fields_of(message), (what.link, stream)
            if what.opener:
                number, rank, code, operation = (_number(fields, k) for k in (1, 2, 4, 5))
                sent = np.frombuffer(_buffer(fields, 3), np.uint8)
                if self._request(number, rank, code, operation > 0, sent):
                    self._asked[asked_by] = number
            elif asked_by in self._asked:
                self._answer(self._asked.pop(asked_by), _buffer(fields, 1))

    def _request(
        self, number: int, rank: int, code: int, summed: bool, sent: NDArray[np.uint8]
    ) -> bool:
        """Add the request of a rank. Return False if its call was taken already."""
        if not 0 <= rank < _MOST_RANKS:
            raise DataError(f"a call of rank {rank}; {_MOST_RANKS} are read at most")
        if number < self._next:
            return False
        call = self._open.setdefault(number, Call())
        call.buffers.setdefault(rank, sent.tobytes())
        call.code, call.summed = max(call.code, code), call.summed or summed
        return True

    def _answer(self, number: int, answer: bytes) -> None:
        """Add the answer to a call."""
        call = self._open.get(number)
        if call is not None:
            call.answer = answer
            self.world = self.world or len(call.buffers)

    def take(self) -> Call | None:
        """Return the next call that all ranks have made and that was answered.

        The result is None if there is no such call yet.
        """
        call = self._open.get(self._next)
        if call is None or call.answer is None or len(call.buffers) < max(self.world, 1):
            return None
        del self._open[self._next]
        self._next += 1
        return call

    @property
    def left(self) -> int:
        """Number of bytes in calls that were not taken."""
        return sum(len(b) for call in self._open.values() for b in call.buffers.values())


def _number(told: Mapping[int, int | bytes], key: int) -> int:
    """Return an integer field, 0 if it is absent."""
    value = told.get(key, 0)
    if isinstance(value, bytes):
        raise DataError(f"field {key} is no number")
    return value


def _buffer(told: Mapping[int, int | bytes], key: int) -> bytes:
    """Return a field of bytes, empty if it is absent."""
    value = told.get(key, b"")
    if isinstance(value, int):
        raise DataError(f"field {key} holds no bytes")
    return value
