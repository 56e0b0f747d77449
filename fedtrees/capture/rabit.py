"""Decode the traffic between XGBoost's workers over its collective library (Rabit)."""

import json
from collections.abc import Iterable, Iterator

from fedtrees.capture.collective import Ended, Ring
from fedtrees.capture.records import Record
from fedtrees.capture.relay import Frames
from fedtrees.capture.xgboost_training import decoded
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_MOST_WORKERS = 512


class Rabit:
    """Decodes a capture of ``rabit``. It can be iterated over once.

    `ended` describes the end after a complete iteration. Raises `DataError` if the workers do not
    introduce themselves as those of XGBoost.
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
    """Finds the workers at both ends of each connection."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, bool], bytearray] = {}
        self._frames: dict[tuple[int, bool], Frames] = {}
        self._ports: dict[int, int] = {}  # port of the worker, by connection to the tracker
        self._ranks: dict[str, int] = {}  # rank of the worker behind each relay port
        self._doors: dict[int, str] = {}  # relay port of each connection
        self._links: dict[int, tuple[int, int]] = {}  # ranks of opener and acceptor, by connection
        self._world = 0
        self._ring: Ring | None = None

    def connected(self, chunks: Iterator[WireBytes]) -> Ring:
        """Return the bytes between the workers, once all of them are connected."""
        for chunk in chunks:
            self._take(chunk)
            # Every pair of workers has one connection.
            if self._world and len(self._links) == self._world * (self._world - 1) // 2:
                ring = Ring(self._world, lambda: self._more(chunks))
                self._ring = ring
                for (link, opener), data in self._said.items():
                    if link in self._links:
                        a, b = self._links[link] if opener else self._links[link][::-1]
                        ring.streams[a, b] += data[4:] if opener else data
                self._said.clear()
                return ring
        raise DataError(
            "the capture ends before all workers are connected with one another; let it run from "
            "before the first worker starts"
        )

    def _more(self, chunks: Iterator[WireBytes]) -> bool:
        """Append the next recorded bytes to their stream. Return False if there are none."""
        assert self._ring is not None
        for chunk in chunks:
            if chunk.link in self._links and chunk.data.size:
                ends = self._links[chunk.link]
                self._ring.streams[ends if chunk.opener else ends[::-1]] += chunk.data.tobytes()
                return True
        return False

    def _take(self, chunk: WireBytes) -> None:
        """Add recorded bytes of a connection to the tracker or between workers."""
        key, data = (chunk.link, chunk.opener), chunk.data.tobytes()
        if chunk.door == "tracker":
            for text in self._frames.setdefault(key, Frames()).feed(data):
                self._introduced(chunk, text)
            return
        self._doors[chunk.link] = chunk.door
        self._said.setdefault(key, bytearray()).extend(data)
        self._connect()

    def _introduced(self, chunk: WireBytes, text: bytes) -> None:
        """Store the port, the rank or the number of workers in a message to or from the tracker."""
        try:
            fields = json.loads(text)
            if chunk.opener and fields.get("cmd") == 1:
                self._ports[chunk.link] = int(fields["port"])
            elif not chunk.opener and "world_size" in fields:
                self._world = int(fields["world_size"])
            elif not chunk.opener and "rank" in fields:
                door = f"peer:{self._ports[chunk.link]}"
                # The tracker sends a worker the address and the rank of its successor in the ring.
                self._ranks[door] = (int(fields["rank"]) - 1) % max(self._world, 1)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise DataError(f"no words of an XGBoost tracker: {text[:60]!r}") from err
        if self._world > _MOST_WORKERS:
            raise DataError(f"a tracker of {self._world} workers; {_MOST_WORKERS} are read at most")

    def _connect(self) -> None:
        """Assign ranks to the ends of the connections whose opener has sent its rank."""
        for link, door in self._doors.items():
            data = self._said.get((link, True), b"")
            # The first connection to a worker belongs to the bootstrap ring, which is given up.
            first = min(k for k, d in self._doors.items() if d == door)
            if link in self._links or link == first or len(data) < 4 or door not in self._ranks:
                continue
            rank = int.from_bytes(data[:4], "little")
            if not rank < self._ranks[door] < self._world:
                raise DataError(f"worker {self._ranks[door]} is called by one of rank {rank}")
            self._links[link] = rank, self._ranks[door]
