"""A channel between two processes: values, one after the other, each led by its length."""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from fedtrees.core.errors import ProtocolError
from fedtrees.core.values import pack, unpack

MOST_BYTES = 2**30  # of one value; a guess of more is a mistake, and would fill the memory
_LENGTH = struct.Struct("<Q")


class Closed(Exception):
    """The other end is gone, or ended in the middle of a value."""


class Channel:
    """One end of it."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing

    def send(self, value: Any) -> None:
        """Write a value.

        Raises `DataError` if it cannot be packed; nothing is written then. Raises `Closed` if
        nobody reads it.
        """
        self.send_packed(pack(value))

    def send_packed(self, chunks: Sequence[Any]) -> None:
        """Write a value that is packed already; raises `Closed` as `send`."""
        try:
            self._writing.write(_LENGTH.pack(sum(map(len, chunks))))
            for chunk in chunks:
                self._writing.write(chunk)
            self._writing.flush()
        except OSError as err:
            raise Closed(str(err)) from err

    def receive(self, types: Iterable[type] = (), most: int | None = None) -> Any:
        """Read a value.

        `types`: Dataclasses that may occur in it.
        `most`: int, optional. Refuse more bytes than these.

        Raises `Closed` if there is none.
        Raises `DataError` if it is malformed.
        Raises `ProtocolError` if it is too large.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if most is not None and length > most:
            raise ProtocolError(f"an answer of {length} bytes; at most {most} are taken")
        return unpack(self._exactly(length), types)

    def close(self) -> None:
        """Close both directions."""
        for file in (self._reading, self._writing):
            with suppress(OSError):  # what was not flushed has no reader
                file.close()

    def _exactly(self, length: int) -> bytes:
        try:
            blob = self._reading.read(length)
        except OSError as err:
            raise Closed(str(err)) from err
        if len(blob) < length:
            raise Closed(f"{len(blob)} of {length} bytes came")
        return blob
