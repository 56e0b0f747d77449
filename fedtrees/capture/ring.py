"""Collective operations over a ring, cut out of what crossed between its members.

The bytes carry no lengths. But what a member passes on must be what it received: that tells whether
an operation of a size can have been there, and it is what every operation is checked by. Ring
all-gather and all-reduce as in ``src/collective/allgather.cc`` and ``allreduce.cc`` of XGBoost 3.2.
"""

from collections.abc import Callable

import numpy as np

from fedtrees.capture.links import MOST_BYTES, Links
from fedtrees.capture.operations import CutOff, Hop, OtherOperation, Reduced

_MOST_TEXT, _FEW = 4096, 64


class Ring(Links):
    """The bytes that go round between members."""

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
        if not n:  # nothing crosses
            return Reduced((), np.zeros(0, dtype))
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
        self._plausible(sizes)
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

    def _plausible(self, sizes: list[int]) -> None:
        """Raise `OtherOperation` unless the first sums are passed on with the bytes they have.

        That takes a few bytes each, so that many sizes can be tried.
        """
        w = self.world
        for member in range(w):
            before, after = (member - 1) % w, (member + 1) % w
            there, here = (sum(sizes) - sizes[(r + 1) % w] for r in (before, member))
            few = min(_FEW, sizes[member])
            said = self._look(before, member, there, few)
            if said != self._look(member, after, here + sizes[after], few):
                raise OtherOperation("parts that change on their way")

    def _look(self, sender: int, receiver: int, ahead: int, size: int) -> bytes:
        """Return bytes some way ahead, and stay where it is."""
        link = sender, receiver
        begin = self._at[link] + ahead
        while len(self.streams[link]) < begin + size:
            if not self._more():
                raise CutOff("the capture ends")
        return bytes(self.streams[link][begin : begin + size])

    def object(self, follows: Callable[[], None]) -> bytes:
        """Read what member 0 tells everybody: braces, as long as what follows it says."""
        for size in range(8, _MOST_TEXT):
            found = b""
            try:
                with self.trying():
                    found = self.broadcast(size)
                    if found[-1:] != b"}" or found[:1] != b"{":
                        raise OtherOperation("no object, or it goes on")
                    before = dict(self._at)
                    follows()
                    self._at = before
                    return found
            except OtherOperation:
                if found[:1] != b"{":
                    break
        raise OtherOperation("no object")

    def next_size(self) -> None:
        """Bytes that carry no lengths tell nothing of them."""
