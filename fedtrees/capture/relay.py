"""Relay TCP connections between two endpoints, and record the bytes.

XGBoost's workers need more than a relay of each connection, because they send their addresses in
messages. A worker sends the port at which it listens to the tracker, and receives the address of
the next worker in a ring. The relay replaces the port by one of its ports. Over the ring, the
workers then forward the addresses that they received (`ConnectWorkers` in
``src/collective/comm.cc`` of XGBoost 3.2): 64 bytes with the host name of every worker, then a port
of every worker. Each worker compares its entry with its real port. The relay therefore restores the
real port on the last step to this worker, and replaces it again when the worker forwards it.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from fedtrees.capture.records import Writer
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_CHUNK = 1 << 16
#: Changes the bytes of one direction of a connection before they are forwarded.
Change = Callable[[bytes], bytes]
#: For the number of a connection to a relay port, from 0: the changes of the bytes from the opener,
#: and of those from the acceptor.
Changes = Callable[[int], tuple[Change, Change]]


def unchanged(number: int) -> tuple[Change, Change]:
    """Return changes that forward all bytes without a change."""
    return bytes, bytes


class Relay:
    """Relay ports in front of real listeners.

    A connection to a relay port is connected to the listener behind it, and all bytes are recorded.

    Parameters
    ----------
    writer : Writer
        The capture.
    host : str
        Address of the relay ports. The default can be reached only from this machine.
    """

    def __init__(self, writer: Writer, host: str = "127.0.0.1") -> None:
        self.writer, self.host = writer, host
        self.open = 0  # number of open directions of connections
        self._count, self._listeners = itertools.count(), list[socket.socket]()
        self._lock, self._failed = threading.Condition(), list[Exception]()

    def door(
        self,
        name: str,
        address: tuple[str, int],
        changes: Changes = unchanged,
        port: int = 0,
        patience: float = 0.0,
    ) -> int:
        """Open a relay port in front of a listener, and return it.

        Parameters
        ----------
        name : str
            Name of the port in the capture.
        address : (str, int)
            Address of the listener.
        changes : callable
            Changes of the bytes of each connection.
        port : int
            The relay port, 0 for any free one.
        patience : float
            Seconds to wait until the listener exists.

        Returns
        -------
        port : int

        Raises
        ------
        DataError
            If the port is in use.
        """
        try:
            listener = socket.create_server((self.host, port))
        except OSError as err:
            raise DataError(
                f"cannot listen at {self.host}:{port}: {err.strerror or err}; give another port"
            ) from err
        self._listeners.append(listener)
        threading.Thread(
            target=self._serve, args=(listener, name, address, changes, patience), daemon=True
        ).start()
        return int(listener.getsockname()[1])

    @property
    def failed(self) -> bool:
        """Whether a thread ended with an error, which `close` raises."""
        return bool(self._failed)

    def close(self) -> None:
        """Close the relay ports, and raise the first error of a thread, if there is one."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        if self._failed:
            raise self._failed[0]

    def _serve(
        self,
        listener: socket.socket,
        name: str,
        address: tuple[str, int],
        changes: Changes,
        patience: float,
    ) -> None:
        """Accept connections to a relay port, and start a thread for each direction."""
        with suppress(OSError):  # raised by `accept` after the listener was closed
            for number in itertools.count():
                opener, _ = listener.accept()
                try:
                    opened = _connect(address, patience)
                except OSError:  # there is no listener, and the opener sees a closed connection
                    opener.close()
                    continue
                for end in (opener, opened):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    link, self.open = next(self._count), self.open + 2
                first, second = changes(number)
                for source, sink, from_opener, change in (
                    (opener, opened, True, first),
                    (opened, opener, False, second),
                ):
                    what = (source, sink, link, name, from_opener, change)
                    threading.Thread(target=self._forward, args=what, daemon=True).start()

    def _forward(
        self,
        source: socket.socket,
        sink: socket.socket,
        link: int,
        door: str,
        from_opener: bool,
        change: Change,
    ) -> None:
        """Record and forward the bytes of one direction of a connection."""
        try:
            with suppress(ConnectionError):
                while chunk := source.recv(_CHUNK):
                    self.writer.write(
                        WireBytes(link, door, from_opener, np.frombuffer(chunk, np.uint8))
                    )
                    sink.sendall(change(chunk))
        except Exception as err:  # for example a full disk. `close` raises the error
            self._failed.append(err)
        finally:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
            with self._lock:
                self.open -= 1
                self._lock.notify_all()


def _connect(address: tuple[str, int], patience: float) -> socket.socket:
    """Connect to an address, and retry for `patience` seconds. Raises `OSError` after that."""
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.05)


HOST_BYTES = 64  # HOST_NAME_MAX of Linux
_SIZE = struct.Struct("<i")
MAGIC = _SIZE.pack(0xFF99)
_MOST_TEXT = 1 << 20


class Frames:
    """Extracts the messages to or from a tracker: a magic number, then texts with their lengths."""

    def __init__(self) -> None:
        self._left = bytearray()
        self._begun = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that are complete now.

        Raises `DataError` if the bytes are not frames of a tracker.
        """
        self._left += chunk
        frames = list[bytes]()
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
            frames.append(bytes(self._left[_SIZE.size : _SIZE.size + size]))
            del self._left[: _SIZE.size + size]
        return frames


class RabitRelay:
    """Relay ports in front of a tracker and of every worker that registers with it.

    Parameters
    ----------
    relay : Relay
        Forwards and records the bytes.
    tracker : (str, int)
        Address of the tracker.
    worker_host : str
        Host of the workers, as this process reaches them.
    """

    def __init__(
        self, relay: Relay, tracker: tuple[str, int], worker_host: str = "127.0.0.1"
    ) -> None:
        self._relay, self._tracker, self._host = relay, tracker, worker_host
        self._relay_ports: dict[int, int] = {}  # relay port, by the worker's real port
        self._real_ports: dict[int, int] = {}  # real port, by relay port
        self._lock, self._world = threading.Lock(), 0

    def listen(self, port: int = 0) -> int:
        """Open the relay port of the tracker, and return it."""
        return self._relay.door("tracker", self._tracker, self._before_tracker, port)

    def _before_tracker(self, number: int) -> tuple[Change, Change]:
        """Return the changes of a connection to the tracker, in both directions."""
        requests, replies, begun = Frames(), Frames(), list[bytes]()

        def to_tracker(chunk: bytes) -> bytes:
            out = b"" if begun else MAGIC
            frames = requests.feed(chunk)
            if not begun and not requests._begun:
                return b""
            begun.append(b"")
            return out + b"".join(_SIZE.pack(len(f)) + f for f in map(self._introduced, frames))

        def from_tracker(chunk: bytes) -> bytes:
            for frame in replies.feed(chunk):
                self._world = int(json.loads(frame).get("world_size", self._world))
            return chunk

        return to_tracker, from_tracker

    def _introduced(self, text: bytes) -> bytes:
        """Return a worker's message to the tracker with a relay port in place of its real one."""
        match = re.search(rb'"port":(\d+)', text)
        if match is None or json.loads(text).get("cmd") != 1:
            return text
        true = int(match[1])
        relay_port = self._relay.door(
            f"peer:{true}", (self._host, true), lambda number: self._before_worker(true, number)
        )
        with self._lock:
            self._relay_ports[true], self._real_ports[relay_port] = relay_port, true
        return text.replace(match[0], b'"port":%d' % relay_port)

    def _before_worker(self, port: int, number: int) -> tuple[Change, Change]:
        """Return the changes of a connection to a worker.

        Only the first connection, that of the ring, is changed.
        """
        return (bytes, bytes) if number else (_Ports(self, port), bytes)


class _Ports:
    """Forwards bytes to a worker, restores its real port, and replaces all other ports."""

    def __init__(self, doors: RabitRelay, port: int) -> None:
        self._doors, self._own_port, self._at, self._part = doors, port, 0, b""

    def __call__(self, chunk: bytes) -> bytes:
        world, out = self._doors._world, bytearray()
        begin, end = HOST_BYTES * world, (HOST_BYTES + _SIZE.size) * world
        # The ports follow the host names. They are replaced byte by byte, because a chunk may end
        # within a port.
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

    def _port(self, announced_port: int) -> int:
        """Return the port that the worker must receive in place of another one."""
        relay_ports, true = self._doors._relay_ports, self._doors._real_ports
        port = true.get(announced_port, announced_port)
        return port if port == self._own_port else relay_ports.get(port, port)
