"""A channel between two processes: values, one after the other, each led by its length."""

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from fedtrees.core.errors import ProtocolError
from fedtrees.core.values import pack, unpack

#: Bytes of the largest value that the bench takes from an attack, and of the texts in it. Texts
#: take up to twenty times as much memory once they are read.
MOST_BYTES, MOST_TEXTS = 2**26, 2**24
_LENGTH = struct.Struct("<Q")


class Closed(Exception):
    """The other end is gone, or ended in the middle of a value.

    `status`: Exit status of its process if it is known, negative for a signal.
    """

    status: int | None = None


class Channel:
    """One end of it."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing

    def send(self, value: Any, most: int | None = None) -> None:
        """Write a value.

        Parameters
        ----------
        most : int, optional
            Refuse to write more bytes than these.

        Raises
        ------
        DataError
            If the value cannot be packed. Nothing is written then.
        ProtocolError
            If it is too large. Nothing is written then.
        Closed
            If the other end is gone.
        """
        chunks = pack(value)
        size = sum(map(len, chunks))
        if most is not None and size > most:
            raise ProtocolError(
                f"an answer of {size:,} bytes; an attack may return {most:,} ({most // 2**20} "
                "MiB): return fewer rows, or arrays of a smaller type"
            )
        self.send_packed(chunks)

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
        return unpack(self._exactly(length), types, None if most is None else MOST_TEXTS)

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
