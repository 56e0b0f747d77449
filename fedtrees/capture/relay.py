"""Stand between two ends of TCP connections and write down what crosses."""

import itertools
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from fedtrees.capture.records import Writer
from fedtrees.core.errors import DataError
from fedtrees.messages.captured import WireBytes

_CHUNK = 1 << 16
#: What the bytes of one direction of a connection are passed through before they go on.
Change = Callable[[bytes], bytes]
#: Given which connection to a door it is, from 0: changes of what the opener and the opened say.
Changes = Callable[[int], tuple[Change, Change]]


def unchanged(number: int) -> tuple[Change, Change]:
    """Let everything through as it is."""
    return bytes, bytes


class Relay:
    """Doors in front of real listeners: whoever connects to one is connected to what is behind.

    `host`: Where doors are. Only this machine can reach the default.
    """

    def __init__(self, writer: Writer, host: str = "127.0.0.1") -> None:
        self.writer, self.host = writer, host
        self.open = 0  # connections
        self._count, self._listeners = itertools.count(), list[socket.socket]()
        self._lock, self._failed = threading.Condition(), list[Exception]()

    def door(
        self,
        name: str,
        to: tuple[str, int],
        changes: Changes = unchanged,
        port: int = 0,
        patience: float = 0.0,
    ) -> int:
        """Open a door in front of what listens at `to`; return its port.

        Raises `DataError` if the port is taken.

        `patience`: Seconds to wait for who is to listen there.
        """
        try:
            listener = socket.create_server((self.host, port))
        except OSError as err:
            raise DataError(
                f"cannot listen at {self.host}:{port}: {err.strerror or err}; give another port"
            ) from err
        self._listeners.append(listener)
        threading.Thread(
            target=self._serve, args=(listener, name, to, changes, patience), daemon=True
        ).start()
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Open nothing more; raise what went wrong in a thread."""
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
        to: tuple[str, int],
        changes: Changes,
        patience: float,
    ) -> None:
        with suppress(OSError):  # closed
            for number in itertools.count():
                opener, _ = listener.accept()
                try:
                    opened = _connected(to, patience)
                except OSError:  # nobody is there: whoever connects is told by the end of it
                    opener.close()
                    continue
                for end in (opener, opened):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    link, self.open = next(self._count), self.open + 2
                first, second = changes(number)
                for source, sink, said, change in (
                    (opener, opened, True, first),
                    (opened, opener, False, second),
                ):
                    what = (source, sink, link, name, said, change)
                    threading.Thread(target=self._forward, args=what, daemon=True).start()

    def _forward(
        self,
        source: socket.socket,
        sink: socket.socket,
        link: int,
        door: str,
        said: bool,
        change: Change,
    ) -> None:
        try:
            with suppress(ConnectionError):
                while chunk := source.recv(_CHUNK):
                    self.writer.write(WireBytes(link, door, said, np.frombuffer(chunk, np.uint8)))
                    sink.sendall(change(chunk))
        except Exception as err:  # a full disk: the run goes on, the capture ends
            self._failed.append(err)
        finally:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
            with self._lock:
                self.open -= 1
                self._lock.notify_all()


def _connected(to: tuple[str, int], patience: float) -> socket.socket:
    """Connect, if need be again and again; raises `OSError` if nobody is there in the end."""
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(to)
        except OSError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.05)
