"""Stand between XGBoost's workers, and between them and their tracker.

Workers tell the tracker the port at which they listen, and get the address of the next one in a
ring. Here the tracker is told a door's port instead. Over the ring, workers then pass on what they
were told (`ConnectWorkers` in ``src/collective/comm.cc`` of XGBoost 3.2): 64 bytes of host name of
every worker, then a port of every worker. Each compares its own with the true one, so that this one
is put back on the last step to it, and taken out again where it passes it on.
"""

import json
import re
import struct
import threading

from fedtrees.capture.relay import Change, Relay
from fedtrees.core.errors import DataError

HOST_BYTES = 64  # HOST_NAME_MAX of Linux
_SIZE = struct.Struct("<i")
MAGIC = _SIZE.pack(0xFF99)
_MOST_TEXT = 1 << 20


class Frames:
    """Cuts what is said to or by a tracker: a number, then texts with their length before them."""

    def __init__(self) -> None:
        self._left = bytearray()
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that are whole now; raises `DataError` if these are none."""
        self._left += chunk
        found = list[bytes]()
        if not self._begun and len(self._left) >= len(MAGIC):
            self._begun = True
            if not self._left.startswith(MAGIC):
                raise DataError(f"no words of a tracker: {bytes(self._left[:4])!r}")
            del self._left[: len(MAGIC)]
        while self._begun and len(self._left) >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._left)
            if not 0 <= size <= _MOST_TEXT:
                raise DataError(f"a tracker's text of {size} bytes")
            if len(self._left) < _SIZE.size + size:
                break
            found.append(bytes(self._left[_SIZE.size : _SIZE.size + size]))
            del self._left[: _SIZE.size + size]
        return found


class RabitRelay:
    """Doors before a tracker and before every worker that comes to it.

    `tracker`: Where the tracker listens.
    `worker_host`: Where workers listen, as this process reaches them.
    """

    def __init__(
        self, relay: Relay, tracker: tuple[str, int], worker_host: str = "127.0.0.1"
    ) -> None:
        self._relay, self._tracker, self._host = relay, tracker, worker_host
        self._told: dict[int, int] = {}  # by true port, the door's
        self._true: dict[int, int] = {}
        self._lock, self._world = threading.Lock(), 0

    def listen(self, port: int = 0) -> int:
        """Open the tracker's door; return its port."""
        return self._relay.door("tracker", self._tracker, self._before_tracker, port)

    def _before_tracker(self, number: int) -> tuple[Change, Change]:
        said, answered, begun = Frames(), Frames(), list[bytes]()

        def to_tracker(chunk: bytes) -> bytes:
            out = b"" if begun else MAGIC
            frames = said.feed(chunk)
            if not begun and not said._begun:
                return b""
            begun.append(b"")
            return out + b"".join(_SIZE.pack(len(f)) + f for f in map(self._introduced, frames))

        def from_tracker(chunk: bytes) -> bytes:
            for frame in answered.feed(chunk):
                self._world = int(json.loads(frame).get("world_size", self._world))
            return chunk

        return to_tracker, from_tracker

    def _introduced(self, text: bytes) -> bytes:
        """Return what a worker says with a door's port in place of its own."""
        found = re.search(rb'"port":(\d+)', text)
        if found is None or json.loads(text).get("cmd") != 1:
            return text
        true = int(found[1])
        told = self._relay.door(
            f"peer:{true}", (self._host, true), lambda number: self._before_worker(true, number)
        )
        with self._lock:
            self._told[true], self._true[told] = told, true
        return text.replace(found[0], b'"port":%d' % told)

    def _before_worker(self, own: int, number: int) -> tuple[Change, Change]:
        """Change ports on the first connection to a worker, the ring's."""
        return (bytes, bytes) if number else (_Ports(self, own), bytes)


class _Ports:
    """Passes on what is said to a worker, with its own port put back and the others' taken out."""

    def __init__(self, doors: RabitRelay, own: int) -> None:
        self._doors, self._own, self._at, self._part = doors, own, 0, b""

    def __call__(self, chunk: bytes) -> bytes:
        world, out = self._doors._world, bytearray()
        begin, end = HOST_BYTES * world, (HOST_BYTES + _SIZE.size) * world
        for k in range(len(chunk)):
            if not begin <= self._at < end:
                out += chunk[k : k + 1]
            else:
                self._part += chunk[k : k + 1]
                if len(self._part) == _SIZE.size:
                    out += _SIZE.pack(self._port(_SIZE.unpack(self._part)[0]))
                    self._part = b""
            self._at += 1
        return bytes(out)

    def _port(self, said: int) -> int:
        told, true = self._doors._told, self._doors._true
        port = true.get(said, said)
        return port if port == self._own else told.get(port, port)
