"""Reassemble collective operations over a ring from the bytes between its members.

The bytes contain no lengths. However, a member must forward exactly the bytes that it received.
Every operation is verified by this rule, which shows whether an operation of some size is possible.
Ring all-gather and all-reduce are those of ``src/collective/allgather.cc`` and ``allreduce.cc`` of
XGBoost 3.2.

`Reader`, `Links` and `Ring` read the bytes that the members of a run sent one another, and remember
the position up to which they were read. `Hop` and `Reduced` are the operations in the form that the
decoders of all frameworks return.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.capture.records import Record
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes


class OtherOperation(Exception):
    """The bytes do not belong to the operation that was tried."""


class CutOff(OtherOperation):
    """The capture ends before the operation does."""


class Reader:
    """Reads operations up to a position, `_at`."""

    _at: Any

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Return to the current position if the operation that is tried raises `OtherOperation`."""
        before = copy(self._at)
        try:
            yield
        except OtherOperation:
            self._at = before
            raise


@dataclass(frozen=True, eq=False)
class Hop:
    """A part of the numbers of an all-reduce on its way, summed over some members."""

    sender: int
    receivers: tuple[int, ...]
    first: int  # position of the first number
    numbers: NDArray[Any]
    members: tuple[int, ...]  # members whose numbers are in the sum


@dataclass(frozen=True, eq=False)
class Reduced:
    """An all-reduce: all hops, and the numbers that every member has at the end."""

    hops: tuple[Hop, ...]
    total: NDArray[Any]


@dataclass(frozen=True)
class Ended:
    """The end of decoding: the number of bytes that were not understood, and the reason."""

    left: int = 0
    why: str = ""

    @classmethod
    def of(cls, left: int, why: str) -> Ended:
        """Return the end of decoding. The reason only counts if there are bytes left."""
        return cls(left, why) if left else cls()


#: Yields the messages of a capture, and returns how the decoding ended.
Decoding = Generator[Record, None, Ended]


def worker(rank: int) -> str:
    """Return the name of the worker with a rank."""
    return f"worker-{rank}"


#: Largest number of bytes that one member sends another within one operation.
MOST_BYTES = 128 << 20


class Links(Reader):
    """The bytes between members, each read up to a position.

    Parameters
    ----------
    world : int
        Number of members.
    more : callable
        Appends more bytes to `streams`. It returns False if there are none.
    """

    central = False

    def __init__(self, world: int, more: Callable[[], bool]) -> None:
        self.world, self._more = world, more
        self.streams = {(i, j): bytearray() for i in range(world) for j in range(world) if i != j}
        self._at = dict.fromkeys(self.streams, 0)

    def forget(self) -> None:
        """Delete the bytes that were read, so that the reader cannot return to them."""
        for link, at in self._at.items():
            del self.streams[link][:at]
            self._at[link] = 0

    def left(self) -> int:
        """Return the number of bytes that were not read, after fetching all bytes."""
        while self._more():
            pass
        return sum(len(s) - self._at[link] for link, s in self.streams.items())

    def ended(self) -> bool:
        """Return whether all bytes were read."""
        return not self.left()

    def take(self, sender: int, receiver: int, size: int) -> bytes:
        """Read the bytes that a member sends another.

        Raises `OtherOperation` if the size is impossible, and `CutOff` if the capture ends before.
        """
        if not 0 <= size <= MOST_BYTES:
            raise OtherOperation(f"{size} bytes at once")
        link = sender, receiver
        begin = self._at[link]
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        # The bytes remain in the stream until `forget`, because an operation may be tried again.
        self._at[link] = begin + size
        return bytes(self.streams[link][begin : begin + size])


AnyLinks = TypeVar("AnyLinks", bound=Links)
#: Number of bytes of the rank that the opener of a connection sends first.
RANK_BYTES = 4


class Connections(ABC):
    """Assigns recorded bytes to the members at both ends of each connection.

    Every pair of members has one connection. Its opener first sends its rank.

    Parameters
    ----------
    records : iterable of Record
        The records of the capture.

    Attributes
    ----------
    ignored : int
        Number of bytes on connections that do not belong to the members of this training.
    """

    #: Noun for a member, in errors.
    member = "worker"

    def __init__(self, records: Iterable[Record]) -> None:
        self._chunks = (r.message for r in records if isinstance(r.message, WireBytes))
        self._received: dict[tuple[int, bool], bytearray] = {}
        self._ends: dict[int, tuple[int, int]] = {}  # ranks of opener and acceptor, by connection
        self._world = 0  # number of members, 0 until it is known
        self.ignored = 0

    @abstractmethod
    def _identify(self, chunk: WireBytes) -> None:
        """Use recorded bytes to find the members at the ends of connections."""

    def links(self, kind: Callable[[int, Callable[[], bool]], AnyLinks]) -> AnyLinks:
        """Return the bytes between the members, once all of them are connected.

        Raises `DataError` if the capture ends before that.
        """
        for chunk in self._chunks:
            self._identify(chunk)
            if self._world and len(self._ends) == self._world * (self._world - 1) // 2:
                break
        else:
            raise DataError(
                f"the capture ends before all {self.member}s are connected with one another; let "
                f"it run from before the first {self.member} starts"
            )
        links = kind(self._world, lambda: self._more(links))
        for (link, opener), data in self._received.items():
            if link in self._ends:
                data = data[RANK_BYTES:] if opener else data
                links.streams[self._direction(link, opener)] += data
        self._received.clear()
        return links

    def _direction(self, link: int, opener: bool) -> tuple[int, int]:
        """Return the ranks of sender and receiver of one direction of a connection."""
        return self._ends[link] if opener else self._ends[link][::-1]

    def _more(self, links: Links) -> bool:
        """Append the next recorded bytes to their stream. Return False if there are none."""
        for chunk in self._chunks:
            if chunk.link not in self._ends:
                self.ignored += chunk.data.size
            elif chunk.data.size:
                links.streams[self._direction(chunk.link, chunk.opener)] += chunk.data.tobytes()
                return True
        return False


_MOST_TEXT, _FEW = 4096, 64


class Ring(Links):
    """The bytes that are sent between the members of a ring."""

    def broadcast(self, size: int) -> bytes:
        """Read a broadcast of member 0 along a binomial tree."""
        # The parent of a member in a binomial tree has the same number without its lowest set bit.
        sent = [self.take(r & (r - 1), r, size) for r in range(1, self.world)]
        if any(s != sent[0] for s in sent):
            raise OtherOperation("a broadcast that changes on its way")
        return sent[0]

    def gather(self, sizes: list[int], first: int = 0) -> list[bytes]:
        """Read an all-gather of parts with the given sizes.

        In the first step, each member sends the part with its number plus `first`.
        """
        w, parts = self.world, list[bytes]()
        for step in range(w):
            sent = {}
            for member in range(w):
                part = (member + first - step) % w
                sent[part] = self.take(member, (member + 1) % w, sizes[part])
            if not step:
                parts = [sent[part] for part in range(w)]
            elif any(sent[part] != parts[part] for part in range(w)):
                raise OtherOperation("parts that change on their way")
        return parts

    def reduce(self, n: int, dtype: str) -> Reduced:
        """Read an all-reduce of n numbers by sum."""
        w, width = self.world, np.dtype(dtype).itemsize
        if not n:  # no bytes are sent
            return Reduced((), np.zeros(0, dtype))
        if not 0 < n <= MOST_BYTES // width:
            raise OtherOperation(f"{n} numbers at once")
        # Fewer numbers than members cannot be divided into parts. XGBoost then gathers the numbers
        # of all members, and each member adds them.
        if n < w:
            parts = [np.frombuffer(b, dtype) for b in self.gather([n * width] * w)]
            receivers = [tuple(r for r in range(w) if r != member) for member in range(w)]
            hops = tuple(Hop(r, receivers[r], 0, part, (r,)) for r, part in enumerate(parts))
            total = parts[0].copy()
            for part in parts[1:]:
                total = total + part
            return Reduced(hops, total)
        begins = [k * (n // w) for k in range(w)]
        sizes = [(e - b) * width for b, e in zip(begins, [*begins[1:], n], strict=True)]
        self._plausible(sizes)
        hops_there, everybody = list[Hop](), tuple(range(w))
        # Reduce-scatter: in each step, a member adds its numbers to the part that it received and
        # forwards the sum. After w - 1 steps, each part is complete at one member.
        for step in range(w - 1):
            for member in range(w):
                k, after = (member - step) % w, (member + 1) % w
                numbers = np.frombuffer(self.take(member, after, sizes[k]), dtype)
                whose = tuple((member - back) % w for back in range(step, -1, -1))
                hops_there.append(Hop(member, (after,), begins[k], numbers, whose))
        # All-gather of the complete parts.
        last = [np.frombuffer(b, dtype) for b in self.gather(sizes, first=1)]
        for k, numbers in enumerate(last):
            member = (k - 1) % w
            to = tuple(r for r in everybody if r != member)
            hops_there.append(Hop(member, to, begins[k], numbers, everybody))
        return Reduced(tuple(hops_there), np.concatenate(last))

    def _plausible(self, sizes: list[int]) -> None:
        """Raise `OtherOperation` unless the bytes of the first sums are forwarded unchanged.

        The check reads only a few bytes per member, so that many sizes can be tried.
        """
        w = self.world
        for member in range(w):
            before, after = (member - 1) % w, (member + 1) % w
            ahead_before, ahead_member = (sum(sizes) - sizes[(r + 1) % w] for r in (before, member))
            few = min(_FEW, sizes[member])
            received = self._look(before, member, ahead_before, few)
            if received != self._look(member, after, ahead_member + sizes[after], few):
                raise OtherOperation("parts that change on their way")

    def _look(self, sender: int, receiver: int, ahead: int, size: int) -> bytes:
        """Return bytes ahead of the current position without advancing."""
        link = sender, receiver
        begin = self._at[link] + ahead
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        return bytes(self.streams[link][begin : begin + size])

    def object(self, follows: Callable[[], None]) -> bytes:
        """Read a JSON-like object that member 0 broadcasts.

        Its length is not known. The shortest text in braces is accepted after which `follows`
        succeeds.
        """
        for size in range(8, _MOST_TEXT):
            text = b""
            try:
                with self.trying():
                    text = self.broadcast(size)
                    if text[-1:] != b"}" or text[:1] != b"{":
                        raise OtherOperation("no object, or it goes on")
                    before = dict(self._at)
                    follows()
                    self._at = before
                    return text
            except OtherOperation:
                if text[:1] != b"{":
                    break
        raise OtherOperation("no object")

    def next_size(self) -> None:
        """Return None, because the bytes contain no lengths."""
