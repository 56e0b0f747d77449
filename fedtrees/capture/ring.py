"""Collective operations over a ring, cut out of what crossed between its members.

The bytes carry no lengths. But what a member passes on must be what it received: that tells whether
an operation of a size can have been there, and it is what every operation is checked by. Ring
all-gather and all-reduce as in ``src/collective/allgather.cc`` and ``allreduce.cc`` of XGBoost 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Bytes at most that one member sends another within one operation.
MOST_BYTES = 128 << 20


class OtherOperation(Exception):
    """These bytes are not of that operation."""


class CutOff(OtherOperation):
    """The bytes end before the operation does."""


@dataclass(frozen=True, eq=False)
class Hop:
    """A part of the numbers of an all-reduce on its way, summed over some members."""

    sender: int
    receivers: tuple[int, ...]
    first: int  # position of the first number
    numbers: NDArray[Any]
    members: tuple[int, ...]  # whose numbers are in it


@dataclass(frozen=True, eq=False)
class Reduced:
    """What crossed in an all-reduce: all hops, and the numbers that everybody has at the end."""

    hops: tuple[Hop, ...]
    total: NDArray[Any]


class Ring:
    """The bytes between members, each read up to some place.

    Parameters
    ----------
    world : int
        Number of members.
    more : callable
        Fetches more bytes into `streams`; returns False where there are none.
    """

    def __init__(self, world: int, more: Callable[[], bool]) -> None:
        self.world, self._more = world, more
        self.streams = {(i, j): bytearray() for i in range(world) for j in range(world) if i != j}
        self._at = dict.fromkeys(self.streams, 0)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Go back to where it was if what is tried is not there."""
        before = dict(self._at)
        try:
            yield
        except OtherOperation:
            self._at = before
            raise

    def forget(self) -> None:
        """Drop the bytes that were read: nothing goes back beyond this place."""
        for link, at in self._at.items():
            del self.streams[link][:at]
            self._at[link] = 0

    def left(self) -> int:
        """Return how many bytes were not read, of all there are."""
        while self._more():
            pass
        return sum(len(s) - self._at[link] for link, s in self.streams.items())

    def take(self, sender: int, receiver: int, size: int) -> bytes:
        """Read what a member sends another; raises `OtherOperation` where it does not."""
        if not 0 <= size <= MOST_BYTES:
            raise OtherOperation(f"{size} bytes at once")
        link = sender, receiver
        begin = self._at[link]
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        self._at[link] = begin + size
        return bytes(self.streams[link][begin : begin + size])

    def broadcast(self, size: int) -> bytes:
        """Read what member 0 sends everybody along a binomial tree."""
        sent = [self.take(r & (r - 1), r, size) for r in range(1, self.world)]
        if any(s != sent[0] for s in sent):
            raise OtherOperation("a broadcast that changes on its way")
        return sent[0]

    def gather(self, sizes: list[int], first: int = 0) -> list[bytes]:
        """Read parts of such sizes that go round, from each member the one with its number.

        `first`: What is added to the number.
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
        """Read an all-reduce by sums of n numbers."""
        w, width = self.world, np.dtype(dtype).itemsize
        if not 0 < n <= MOST_BYTES // width:
            raise OtherOperation(f"{n} numbers at once")
        if n < w:
            parts = [np.frombuffer(b, dtype) for b in self.gather([n * width] * w)]
            others = [tuple(r for r in range(w) if r != member) for member in range(w)]
            hops = tuple(Hop(r, others[r], 0, part, (r,)) for r, part in enumerate(parts))
            total = parts[0].copy()
            for part in parts[1:]:
                total = total + part
            return Reduced(hops, total)
        begins = [k * (n // w) for k in range(w)]
        sizes = [(e - b) * width for b, e in zip(begins, [*begins[1:], n], strict=True)]
        hops_there, everybody = list[Hop](), tuple(range(w))
        for step in range(w - 1):
            for member in range(w):
                part, after = (member - step) % w, (member + 1) % w
                numbers = np.frombuffer(self.take(member, after, sizes[part]), dtype)
                whose = tuple((member - k) % w for k in range(step, -1, -1))
                hops_there.append(Hop(member, (after,), begins[part], numbers, whose))
        last = [np.frombuffer(b, dtype) for b in self.gather(sizes, first=1)]
        for part, numbers in enumerate(last):
            member = (part - 1) % w
            to = tuple(r for r in everybody if r != member)
            hops_there.append(Hop(member, to, begins[part], numbers, everybody))
        return Reduced(tuple(hops_there), np.concatenate(last))


def shares(reduced: Reduced, world: int) -> NDArray[Any]:
    """Return what each member brought to an all-reduce, by whoever sees every hop; (world, n).

    Differences of sums: exact for whole numbers, else up to their rounding.
    """
    found = np.zeros((world, len(reduced.total)), reduced.total.dtype)
    sums: dict[int, NDArray[Any]] = {}
    for hop in sorted(reduced.hops, key=lambda h: (h.first, len(h.members))):
        span = slice(hop.first, hop.first + len(hop.numbers))
        if len(hop.members) == 1:
            found[hop.members[0], span] = hop.numbers
            sums[hop.first] = hop.numbers
        else:
            # the one that was added last sends it; of the final sum, it is the sender too
            found[hop.sender, span] = hop.numbers - sums[hop.first]
            sums[hop.first] = hop.numbers
    return found
