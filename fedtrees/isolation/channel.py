"""Channel between two processes: a sequence of values, each with its length in front."""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from fedtrees.core.errors import ProtocolError
from fedtrees.core.wire import pack, unpack

#: Largest value that the bench accepts from an attack, and largest text in it, in bytes. Texts need
#: up to twenty times as much memory when they are parsed.
MOST_BYTES, MOST_TEXTS = 2**26, 2**24
_LENGTH = struct.Struct("<Q")


class Closed(Exception):
    """The process at the other end has ended, possibly in the middle of a value.

    Attributes
    ----------
    status : int or None
        Exit status of this process if it is known, negative for a signal.
    """

    status: int | None = None


class Channel:
    """One end of a channel."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing

    def send(self, value: Any, max_bytes: int | None = None) -> None:
        """Write a value.

        Parameters
        ----------
        value : object
            The value (`fedtrees.core.wire`).
        max_bytes : int, optional
            Largest number of bytes.

        Raises
        ------
        DataError
            If the value cannot be packed. Nothing is written then.
        ProtocolError
            If it is too large. Nothing is written then.
        Closed
            If the other process has ended.
        """
        chunks = pack(value)
        size = sum(map(len, chunks))
        if max_bytes is not None and size > max_bytes:
            raise ProtocolError(
                f"an answer of {size:,} bytes; an attack may return {max_bytes:,} ("
                f"{max_bytes // 2**20} MiB): return fewer rows, or arrays of a smaller type"
            )
        self.send_packed(chunks)

    def send_packed(self, chunks: Sequence[Any]) -> None:
        """Write a packed value. Raises `Closed` if the other process has ended."""
        try:
            self._writing.write(_LENGTH.pack(sum(map(len, chunks))))
            for chunk in chunks:
                self._writing.write(chunk)
            self._writing.flush()
        except OSError as err:
            raise Closed(str(err)) from err

    def receive(self, types: Iterable[type] = (), max_bytes: int | None = None) -> Any:
        """Read a value.

        Parameters
        ----------
        types : iterable of type
            Dataclasses that may occur in it.
        max_bytes : int, optional
            Largest number of bytes.

        Raises
        ------
        Closed
            If the other process has ended.
        DataError
            If the value is malformed.
        ProtocolError
            If the value is too large.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if max_bytes is not None and length > max_bytes:
            raise ProtocolError(f"an answer of {length} bytes; at most {max_bytes} are taken")
        return unpack(self._exactly(length), types, None if max_bytes is None else MOST_TEXTS)

    def close(self) -> None:
        """Close both directions."""
        for file in (self._reading, self._writing):
            with suppress(OSError):  # the process that should read the remaining bytes has ended
                file.close()

    def _exactly(self, length: int) -> bytes:
        """Read this number of bytes, or raise `Closed`."""
        try:
            blob = self._reading.read(length)
        except OSError as err:
            raise Closed(str(err)) from err
        if len(blob) < length:
            raise Closed(f"{len(blob)} of {length} bytes came")
        return blob
