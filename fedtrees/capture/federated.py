"""Decode the traffic between XGBoost's federated server and its clients."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import numpy as np

from fedtrees.capture import columns
from fedtrees.capture.calls import Call, Calls
from fedtrees.capture.operations import CutOff, Ended, Hop, OtherOperation, Reader, Reduced
from fedtrees.capture.records import Record
from fedtrees.capture.training import decoded, recorded
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import CollectiveCall, WireBytes

_CODES = {1: "<f4", 2: "<f8", 6: "<i4", 7: "<i8", 8: "|u1", 10: "<u4", 11: "<u8"}


class Federated:
    """Decodes a capture of ``xgboost`` or ``nvflare``. It can be iterated over once.

    `ended` describes the end after a complete iteration. Raises `DataError` if the bytes are not
    calls of XGBoost.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        kinds = WireBytes | CollectiveCall
        self._chunks = (r.message for r in records if isinstance(r.message, kinds))
        self.ended: Ended | None = None

    def __iter__(self) -> Iterator[Record]:
        server = Server(self._chunks)
        if not server.world:
            raise DataError("the capture ends before the server's first answer")
        if server.vertical:
            why = yield from recorded(columns.messages(server.calls(), server.world), server.world)
        else:
            why = yield from decoded(server)
        left = server.left()
        self.ended = Ended(left, why) if left else Ended()


class Server(Reader):
    """The calls of a server, each of which is a collective operation."""

    central = True

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
