"""Calls of XGBoost's federated server, cut out of what crossed between it and its clients.

HTTP/2 frames (RFC 9113, 4.1) carry gRPC messages of protocol buffers, whose fields XGBoost 3.2
numbers (``plugin/federated/federated.proto``): of a request 1 sequence, 2 rank, 3 buffer, 4 data
type or root, 5 operation; of a response 1 buffer. What is 0 or empty is not written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.messages.captured import CollectiveCall, WireBytes

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _END, _PADDED = 0, 1, 8
_HEAD, _LENGTH = 9, 5  # bytes before a frame, and before a message
#: Bytes of a message at most.
MOST_BYTES = 256 << 20
_MOST_RANKS = 4096


class Messages:
    """Cuts the messages out of one direction of a connection, each with its stream's number."""

    def __init__(self, opener: bool) -> None:
        self._left, self._streams = bytearray(), dict[int, bytearray]()
        self._preface = _PREFACE if opener else b""

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the messages that are whole now; raises `DataError` if this is no HTTP/2."""
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
        said = self._streams.setdefault(stream, bytearray())
        said += body
        while len(said) >= _LENGTH:
            size = int.from_bytes(said[1:_LENGTH], "big")
            if said[0] or size > MOST_BYTES:
                raise DataError(f"a compressed message, or one of {size:,} bytes; none is known")
            if len(said) < _LENGTH + size:
                break
            yield stream, bytes(said[_LENGTH : _LENGTH + size])
            del said[: _LENGTH + size]
        if end:
            del self._streams[stream]


def fields_of(message: bytes) -> dict[int, int | bytes]:
    """Return numbers and bytes of a protocol buffer by field; raises `DataError` if it is none."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:
            if at + value > len(message):
                raise DataError("a protocol buffer that is cut off")
            found[key >> 3] = message[at : at + value]
            at += value
        elif key & 7 == 0:
            found[key >> 3] = value
        else:
            raise DataError(f"a field of type {key & 7}; none is known")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DataError("a protocol buffer that is cut off")


@dataclass(eq=False)
class Call:
    """One collective operation: what every rank sent, and what all were answered."""

    buffers: dict[int, bytes] = field(default_factory=dict)  # by rank
    code: int = 0  # data type of a sum, root of a broadcast
    summed: bool = False
    answer: bytes | None = None

    @property
    def kind(self) -> str:
        """``reduce``, ``broadcast`` or ``gather``, by what was sent and answered."""
        full = [rank for rank, b in self.buffers.items() if b]
        if self.summed or (self.code and len(full) == len(self.buffers)):
            return "reduce"
        alone = len(full) == 1 and len(self.buffers) > 1
        return "broadcast" if alone and self.buffers[full[0]] == self.answer else "gather"


class Calls:
    """Puts the calls of all clients together, in their order."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, bool], Messages] = {}
        self._asked: dict[tuple[int, int], int] = {}  # sequence number, by connection and stream
        self._open: dict[int, Call] = {}
        self._next = 0
        self.world = 0  # known with the first answer

    def feed(self, what: WireBytes | CollectiveCall) -> None:
        """Take what crossed a connection, or was handed over; raises `DataError` if no call."""
        if isinstance(what, CollectiveCall):
            self.world = self.world or what.world
            if self._request(what.number, what.rank, what.code, what.summed, what.sent):
                self._answer(what.number, what.answered.tobytes())
            return
        messages = self._messages.setdefault((what.link, what.opener), Messages(what.opener))
        for stream, message in messages.feed(what.data.tobytes()):
            told, asked_by = fields_of(message), (what.link, stream)
            if what.opener:
                number, rank, code, operation = (_number(told, k) for k in (1, 2, 4, 5))
                sent = np.frombuffer(_buffer(told, 3), np.uint8)
                if self._request(number, rank, code, operation > 0, sent):
                    self._asked[asked_by] = number
            elif asked_by in self._asked:
                self._answer(self._asked.pop(asked_by), _buffer(told, 1))

    def _request(
        self, number: int, rank: int, code: int, summed: bool, sent: NDArray[np.uint8]
    ) -> bool:
        """Note what a rank sends; return False if that is of a later run, or asked again."""
        if not 0 <= rank < _MOST_RANKS:
            raise DataError(f"a call of rank {rank}; {_MOST_RANKS} are read at most")
        if number < self._next:
            return False
        call = self._open.setdefault(number, Call())
        call.buffers.setdefault(rank, sent.tobytes())
        call.code, call.summed = max(call.code, code), call.summed or summed
        return True

    def _answer(self, number: int, answer: bytes) -> None:
        call = self._open.get(number)
        if call is not None:
            call.answer = answer
            self.world = self.world or len(call.buffers)

    def take(self) -> Call | None:
        """Return the next call that all have made and were answered, None if there is none yet."""
        call = self._open.get(self._next)
        if call is None or call.answer is None or len(call.buffers) < max(self.world, 1):
            return None
        del self._open[self._next]
        self._next += 1
        return call

    @property
    def left(self) -> int:
        """Bytes of calls that were not taken."""
        return sum(len(b) for call in self._open.values() for b in call.buffers.values())


def _number(told: Mapping[int, int | bytes], key: int) -> int:
    value = told.get(key, 0)
    if isinstance(value, bytes):
        raise DataError(f"field {key} is no number")
    return value


def _buffer(told: Mapping[int, int | bytes], key: int) -> bytes:
    value = told.get(key, b"")
    if isinstance(value, int):
        raise DataError(f"field {key} holds no bytes")
    return value
