"""What crossed between XGBoost's workers over its own collective, as messages."""

import json
from collections.abc import Iterable, Iterator

from fedtrees.capture.operations import Ended
from fedtrees.capture.rabit_relay import Frames
from fedtrees.capture.records import Record
from fedtrees.capture.ring import Ring
from fedtrees.capture.training import decoded
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_MOST_WORKERS = 512


class Rabit:
    """Decodes a capture of ``rabit``; iterate over it once.

    Raises `DataError` if workers do not introduce themselves as XGBoost's do.

    `ended`: Once everything was read.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._chunks = (r.message for r in records if isinstance(r.message, WireBytes))
        self.ended: Ended | None = None

    def __iter__(self) -> Iterator[Record]:
        ring = _Wiring().connected(self._chunks)
        why = yield from decoded(ring)
        left = ring.left()
        self.ended = Ended(left, why) if left else Ended()


class _Wiring:
    """Finds out which connection is between which workers."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, bool], bytearray] = {}
        self._frames: dict[tuple[int, bool], Frames] = {}
        self._ports: dict[int, int] = {}  # of the worker that speaks on a connection to the tracker
        self._ranks: dict[str, int] = {}  # by door
        self._doors: dict[int, str] = {}  # by connection
        self._links: dict[int, tuple[int, int]] = {}  # opener and opened, by connection
        self._world = 0
        self._ring: Ring | None = None

    def connected(self, chunks: Iterator[WireBytes]) -> Ring:
        """Return the bytes between workers, once all of them are connected."""
        for chunk in chunks:
            self._take(chunk)
            if self._world and len(self._links) == self._world * (self._world - 1) // 2:
                ring = Ring(self._world, lambda: self._more(chunks))
                self._ring = ring
                for (link, opener), said in self._said.items():
                    if link in self._links:
                        a, b = self._links[link] if opener else self._links[link][::-1]
                        ring.streams[a, b] += said[4:] if opener else said
                self._said.clear()
                return ring
        raise DataError(
            "the capture ends before all workers are connected with one another; let it run from "
            "before the first worker starts"
        )

    def _more(self, chunks: Iterator[WireBytes]) -> bool:
        assert self._ring is not None
        for chunk in chunks:
            if chunk.link in self._links and chunk.data.size:
                ends = self._links[chunk.link]
                self._ring.streams[ends if chunk.opener else ends[::-1]] += chunk.data.tobytes()
                return True
        return False

    def _take(self, chunk: WireBytes) -> None:
        key, said = (chunk.link, chunk.opener), chunk.data.tobytes()
        if chunk.door == "tracker":
            for text in self._frames.setdefault(key, Frames()).feed(said):
                self._introduced(chunk, text)
            return
        self._doors[chunk.link] = chunk.door
        self._said.setdefault(key, bytearray()).extend(said)
        self._connect()

    def _introduced(self, chunk: WireBytes, text: bytes) -> None:
        try:
            told = json.loads(text)
            if chunk.opener and told.get("cmd") == 1:
                self._ports[chunk.link] = int(told["port"])
            elif not chunk.opener and "world_size" in told:
                self._world = int(told["world_size"])
            elif not chunk.opener and "rank" in told:
                door = f"peer:{self._ports[chunk.link]}"
                self._ranks[door] = (int(told["rank"]) - 1) % max(self._world, 1)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise DataError(f"no words of an XGBoost tracker: {text[:60]!r}") from err
        if self._world > _MOST_WORKERS:
            raise DataError(f"a tracker of {self._world} workers; {_MOST_WORKERS} are read at most")

    def _connect(self) -> None:
        """Name the ends of the connections whose opener said its rank."""
        for link, door in self._doors.items():
            said = self._said.get((link, True), b"")
            first = min(k for k, d in self._doors.items() if d == door)  # the ring's, given up
            if link in self._links or link == first or len(said) < 4 or door not in self._ranks:
                continue
            rank = int.from_bytes(said[:4], "little")
            if not rank < self._ranks[door] < self._world:
                raise DataError(f"worker {self._ranks[door]} is called by one of rank {rank}")
            self._links[link] = rank, self._ranks[door]
