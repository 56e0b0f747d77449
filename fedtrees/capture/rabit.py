"""Decode the traffic between XGBoost's workers over its collective library (Rabit)."""

import json
from collections.abc import Iterable

from fedtrees.capture.collective import RANK_BYTES, Connections, Decoding, Ended, Ring
from fedtrees.capture.records import Record
from fedtrees.capture.relay import Frames
from fedtrees.capture.xgboost_training import decoded
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_MOST_WORKERS = 512


def decode_rabit(records: Iterable[Record]) -> Decoding:
    """Decode a capture of ``rabit``.

    Raises `DataError` if the workers do not introduce themselves as those of XGBoost.
    """
    ring = _Wiring(records).links(Ring)
    why = yield from decoded(ring)
    return Ended.of(ring.left(), why)


class _Wiring(Connections):
    """Finds the workers at both ends of each connection, from their messages to the tracker."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__(records)
        self._frames: dict[tuple[int, bool], Frames] = {}
        self._ports: dict[int, int] = {}  # port of the worker, by connection to the tracker
        self._ranks: dict[str, int] = {}  # rank of the worker behind each relay port
        self._doors: dict[int, str] = {}  # relay port of each connection

    def _identify(self, chunk: WireBytes) -> None:
        key, data = (chunk.link, chunk.opener), chunk.data.tobytes()
        if chunk.door == "tracker":
            for text in self._frames.setdefault(key, Frames()).feed(data):
                self._introduced(chunk, text)
            return
        self._doors[chunk.link] = chunk.door
        self._received.setdefault(key, bytearray()).extend(data)
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
            data = self._received.get((link, True), b"")
            # The first connection to a worker belongs to the bootstrap ring, which is given up.
            first = min(k for k, d in self._doors.items() if d == door)
            if (
                link in self._ends
                or link == first
                or len(data) < RANK_BYTES
                or door not in self._ranks
            ):
                continue
            rank = int.from_bytes(data[:RANK_BYTES], "little")
            if not rank < self._ranks[door] < self._world:
                raise DataError(f"worker {self._ranks[door]} is called by one of rank {rank}")
            self._ends[link] = rank, self._ranks[door]
