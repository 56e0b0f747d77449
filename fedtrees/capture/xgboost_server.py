"""Decode the traffic between XGBoost's federated server and its clients.

In a vertical training, the parties have different columns of the same rows. The operations were
observed in runs of XGBoost 3.2 (``src/collective/aggregator.h``,
``src/tree/hist/evaluate_splits.h``). Rank 0, which has the labels, broadcasts the gradients of
every row. At every level, all parties receive the best splits of each party, as UBJSON objects
after their lengths. Then follow bits that show which rows go left (``common_row_partitioner.h``).

The calls are reassembled from the bytes of the connections. HTTP/2 frames (RFC 9113, Section 4.1)
contain gRPC messages, which are protocol buffers with the field numbers of XGBoost 3.2
(``plugin/federated/federated.proto``). The fields of a request are 1 sequence, 2 rank, 3 buffer, 4
data type or root, and 5 operation. A response has field 1, buffer. Fields that are 0 or empty are
not written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.collective import (
    CutOff,
    Decoding,
    Ended,
    Hop,
    OtherOperation,
    Reader,
    Reduced,
    worker,
)
from fedtrees.capture.records import Record
from fedtrees.capture.xgboost_training import INTERCEPT, decoded, recorded
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message
from fedtrees.messages.captured import (
    BestSplits,
    CollectiveCall,
    Intercept,
    PartitionBits,
    RowGradients,
    WireBytes,
)
from fedtrees.messages.vertical import TreeColumns
from fedtrees.trees.files.model_file import decode_ubjson

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

    def _whole(self, stream: int, body: bytearray, end: bool) -> Iterator[tuple[int, bytes]]:
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


def _number(fields: Mapping[int, int | bytes], key: int) -> int:
    """Return an integer field, 0 if it is absent."""
    value = fields.get(key, 0)
    if isinstance(value, bytes):
        raise DataError(f"field {key} is no number")
    return value


def _buffer(fields: Mapping[int, int | bytes], key: int) -> bytes:
    """Return a field of bytes, empty if it is absent."""
    value = fields.get(key, b"")
    if isinstance(value, int):
        raise DataError(f"field {key} contains no bytes")
    return value


Sent = tuple[int, tuple[int, ...], Message, str]
_PAIR, _SIZE = 8, 8  # bytes of a gradient with its hessian in float32, and of a length
_DEFAULT_LEFT = 1 << 31  # flag in the field with the number of the feature
_BYTES = 8  # XGBoost's code of the data type byte


def messages(calls: Iterator[Call], world: int) -> Generator[Sent, None, None]:
    """Yield the messages that are recognised in calls.

    Raises `OtherOperation` if the calls belong to another training.
    """
    everybody = tuple(range(world))
    columns, sizes, lengths = np.zeros(0, np.int64), [Call(), Call()], 0
    round, level, rows, bits = -1, -1, 0, list[Call]()
    for k, call in enumerate(calls):
        if set(call.buffers) != set(everybody):
            raise OtherOperation(f"a call of ranks {sorted(call.buffers)}")
        answer = call.answer or b""
        if call.kind == "gather":
            if not k:
                columns = _numbers(call, everybody)
                yield from _passed_on(_columns(columns), world, "how many columns each party has")
            if answer[:1] == b"{":
                level += 1
                local_splits = [
                    _splits(call.buffers[rank], sizes[0].buffers.get(rank, b""))
                    for rank in everybody
                ]
                best = [
                    _best(local_splits[rank], round, level, rank, columns) for rank in everybody
                ]
                yield from _passed_on(
                    best, world, "every party determines the best split of all columns"
                )
            # The lengths of the objects are in the gather operation before the previous one.
            sizes = [sizes[1], call]
        elif call.kind == "broadcast":
            # A broadcast of the number of rows precedes the gradients of all rows.
            if lengths > 1 and len(answer) == lengths * _PAIR:
                round, level, rows = round + 1, -1, lengths
                pairs = np.frombuffer(answer, "<f4").reshape(-1, 2)
                gradients = RowGradients(round, pairs[:, 0], pairs[:, 1])
                yield from _passed_on(
                    [gradients], world, "every party sums them over the bins of its columns"
                )
            lengths = int.from_bytes(answer, "little") if len(answer) == _SIZE else 0
            start = INTERCEPT.search(answer) if answer[:1] == b"{" else None
            if start is not None:
                starts = [Intercept(float(start[1]), worker(0))]
                yield from _passed_on(starts, world, "where boosting starts")
        elif call.code == _BYTES and rows and len(answer) == -(-rows // 8):
            bits.append(call)
            if len(bits) == 2:
                goes = [_routes(bits, round, level, rows, rank) for rank in everybody]
                yield from _passed_on(goes, world, "which rows go left")
                bits.clear()


def _passed_on(party_messages: Sequence[Message], world: int, why: str) -> Iterator[Sent]:
    """Yield the message of each party to the server, and the copies that the server forwards."""
    for rank, message in enumerate(party_messages):
        yield rank, (world,), message, why
        yield world, tuple(r for r in range(world) if r != rank), message, why


def _columns(columns: NDArray[np.int64]) -> list[TreeColumns]:
    """Return the columns of each party as messages."""
    ends = np.cumsum([0, *columns.tolist()]).tolist()
    return [
        TreeColumns(worker(rank), np.arange(begin, end, dtype=np.int32))
        for rank, (begin, end) in enumerate(pairwise(ends))
    ]


def _routes(calls: Sequence[Call], round: int, level: int, rows: int, rank: int) -> PartitionBits:
    """Return the bits of a party that show which rows go left and which are missing."""
    left, missing = (
        np.unpackbits(np.frombuffer(c.buffers[rank], np.uint8), count=rows, bitorder="little")
        for c in calls
    )
    return PartitionBits(round, level, left.astype(bool), missing.astype(bool), worker(rank))


def _numbers(call: Call, everybody: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the number of columns of each party."""
    parts = [call.buffers[rank] for rank in everybody]
    counts = [int.from_bytes(part, "little") for part in parts]
    if any(len(part) != _SIZE for part in parts) or max(counts) > 1 << 20:
        raise OtherOperation("parties do not begin with their numbers of columns")
    return np.array(counts, np.int64)


def _splits(text: bytes, lengths: bytes) -> list[dict[str, Any]]:
    """Return the objects that follow one another in the text, with the given lengths."""
    if len(lengths) % _SIZE:
        raise OtherOperation("no lengths of splits")
    ends = np.cumsum([0, *np.frombuffer(lengths, "<u8").tolist()]).tolist()
    if ends[-1] != len(text):
        raise OtherOperation("splits whose lengths differ from the announced lengths")
    try:
        return [decode_ubjson(text[begin:end]) for begin, end in pairwise(ends)]
    except DataError as err:
        raise OtherOperation(f"splits that are not readable ({err})") from err


def _best(
    candidates: list[dict[str, Any]], round: int, level: int, rank: int, columns: NDArray[np.int64]
) -> BestSplits:
    """Return the best splits of a party as a message."""
    try:
        splits = [one["split"] for one in candidates]
        return BestSplits(
            round,
            np.array([one["nid"] for one in candidates], np.int32),
            np.array([s["sindex"] & (_DEFAULT_LEFT - 1) for s in splits], np.int32),
            np.array([s["split_value"] for s in splits], np.float32),
            np.array([s["loss_chg"] for s in splits], np.float32),
            np.array([s["left_sum"] for s in splits], np.float64).reshape(len(splits), -1),
            np.array([s["right_sum"] for s in splits], np.float64).reshape(len(splits), -1),
            worker(rank),
            int(columns[:rank].sum()),
            int(columns[rank]),
            level,
            np.array([bool(s["sindex"] & _DEFAULT_LEFT) for s in splits], np.bool_),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as err:
        raise OtherOperation(f"no splits of XGBoost's ({type(err).__name__})") from err


_CODES = {1: "<f4", 2: "<f8", 6: "<i4", 7: "<i8", 8: "|u1", 10: "<u4", 11: "<u8"}


def decode_server(records: Iterable[Record]) -> Decoding:
    """Decode a capture of ``xgboost`` or ``nvflare``.

    Raises `DataError` if the bytes are not calls of XGBoost.
    """
    kinds = WireBytes | CollectiveCall
    server = Server(r.message for r in records if isinstance(r.message, kinds))
    if not server.world:
        raise DataError("the capture ends before the server's first answer")
    if server.vertical:
        why = yield from recorded(messages(server.calls(), server.world), server.world)
    else:
        why = yield from decoded(server)
    return Ended.of(server.left(), why)


class Server(Reader):
    """The calls of a server, each of which is a collective operation."""

    central = True

    _at: int

    def __init__(self, chunks: Iterator[WireBytes | CollectiveCall]) -> None:
        self._chunks, self._calls = chunks, Calls()
        self._taken: list[Call] = []
        self._at = 0
        self.world = 0  # number of ranks, 0 until a call is complete
        with suppress(CutOff):
            self._peek()
            self.world = self._calls.world

    def _peek(self) -> Call:
        """Return the next call without advancing. Raises `CutOff` at the end of the capture."""
        while self._at >= len(self._taken):
            call = self._calls.take()
            if call is not None:
                self._taken.append(call)
                continue
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CutOff("the capture ends")
            self._calls.feed(chunk)
        return self._taken[self._at]

    @property
    def vertical(self) -> bool:
        """Whether the parties have different columns of the same rows.

        In this case, the first operation gathers their numbers of columns.
        """
        return self._peek().kind == "gather"

    def calls(self) -> Iterator[Call]:
        """Yield all calls."""
        with suppress(CutOff):
            while True:
                call = self._peek()
                self._at += 1
                self.forget()
                yield call

    def _next(self, kind: str) -> Call:
        """Return the next call and advance. Raises `OtherOperation` if it has another kind."""
        call = self._peek()
        if call.kind != kind:
            raise OtherOperation(f"a {call.kind}, not a {kind}")
        self._at += 1
        return call

    def forget(self) -> None:
        """Delete the calls that were read."""
        del self._taken[: self._at]
        self._at = 0

    def left(self) -> int:
        """Return the number of bytes in calls that were not read, after reading all of them."""
        n_bytes = 0
        try:
            while True:
                n_bytes += sum(map(len, self._peek().buffers.values()))
                self._at += 1
                self.forget()
        except CutOff:
            return n_bytes + self._calls.left

    def next_size(self) -> int | None:
        """Return the size of the next all-reduce in bytes, 0 if the next call has another kind."""
        call = self._peek()
        return len(call.answer or b"") if call.kind == "reduce" else 0

    def reduce(self, n: int, dtype: str) -> Reduced:
        """Read an all-reduce of n numbers."""
        call, size = self._next("reduce"), n * np.dtype(dtype).itemsize
        buffers, answer = call.buffers, call.answer or b""
        if _CODES.get(call.code) != dtype or {*map(len, buffers.values()), len(answer)} != {size}:
            raise OtherOperation(f"a sum of {len(answer)} bytes of type {call.code}")
        ranks, total = tuple(range(self.world)), np.frombuffer(answer, dtype)
        if {*buffers} != {*ranks}:
            raise OtherOperation(f"a sum of ranks {sorted(buffers)}")
        # Each worker sends its numbers to the server, and the server sends the sum to all workers.
        hops = [Hop(r, (self.world,), 0, np.frombuffer(buffers[r], dtype), (r,)) for r in ranks]
        return Reduced((*hops, Hop(self.world, ranks, 0, total, ranks)), total)

    def broadcast(self, size: int) -> bytes:
        """Read a broadcast of the given size in bytes."""
        answer = self._next("broadcast").answer or b""
        if len(answer) != size:
            raise OtherOperation(f"a broadcast of {len(answer)} bytes, not {size}")
        return answer

    def object(self, follows: Callable[[], None]) -> bytes:
        """Read a broadcast of a JSON-like object."""
        answer = self._next("broadcast").answer or b""
        if answer[:1] != b"{":
            raise OtherOperation("no object")
        return answer
