"""Relay TCP connections between two endpoints, and record the bytes."""

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
        to: tuple[str, int],
        changes: Changes = unchanged,
        port: int = 0,
        patience: float = 0.0,
    ) -> int:
        """Open a relay port in front of a listener, and return it.

        Parameters
        ----------
        name : str
            Name of the port in the capture.
        to : (str, int)
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
            target=self._serve, args=(listener, name, to, changes, patience), daemon=True
        ).start()
        return int(listener.getsockname()[1])

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
        to: tuple[str, int],
        changes: Changes,
        patience: float,
    ) -> None:
        """Accept connections to a relay port, and start a thread for each direction."""
        with suppress(OSError):  # raised by `accept` after the listener was closed
            for number in itertools.count():
                opener, _ = listener.accept()
                try:
                    opened = _connected(to, patience)
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
        said: bool,
        change: Change,
    ) -> None:
        """Record and forward the bytes of one direction of a connection."""
        try:
            with suppress(ConnectionError):
                while chunk := source.recv(_CHUNK):
                    self.writer.write(WireBytes(link, door, said, np.frombuffer(chunk, np.uint8)))
                    sink.sendall(change(chunk))
        except Exception as err:  # for example a full disk. `close` raises the error
            self._failed.append(err)
        finally:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
            with self._lock:
                self.open -= 1
                self._lock.notify_all()


def _connected(to: tuple[str, int], patience: float) -> socket.socket:
    """Connect to an address, and retry for `patience` seconds. Raises `OSError` after that."""
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection(to)
        except OSError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.05)
