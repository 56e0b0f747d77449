"""Encoding of messages: a JSON header, then raw arrays. Pickle is never used.

The encoding defines the byte counts, the saved transcripts, and the wire format between machines.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

from fedtrees.core.arrays import Reader, described
from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.messages import _TYPES, Message, message_type, names_of

_MAGIC = b"FTM1"
_PREFIX = len(_MAGIC) + 4


def encoded_size(message: Message) -> int:
    """Return the number of bytes of an encoded message, without copying its arrays.

    A value that is sealed by the ideal functionality counts as much as the plain array.
    """
    header, arrays = header_of(message, open_seals=True)
    return _PREFIX + len(_written(header)) + sum(int(a.nbytes) for a in arrays)


def encode(message: Message) -> bytes:
    """Encode a message: magic, header length (uint32, little endian), JSON header, arrays."""
    header, arrays = header_of(message)
    text = _written(header)
    return b"".join([_MAGIC, struct.pack("<I", len(text)), text, *(a.tobytes() for a in arrays)])


def decode(blob: bytes) -> Message:
    """Decode one message.

    Raises
    ------
    DataError
        If the bytes are truncated, malformed or nested too deep, or name an unknown message type.
    """
    if len(blob) < _PREFIX or blob[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"not a fedtrees message: it starts with {blob[:4]!r}")
    (length,) = struct.unpack_from("<I", blob, len(_MAGIC))
    if _PREFIX + length > len(blob):
        raise DataError(f"truncated message: header of {length} bytes, {len(blob)} bytes in all")
    try:
        reader = Reader(blob, _PREFIX + length)
        message = message_of(json.loads(blob[_PREFIX : _PREFIX + length]), reader)
        reader.end()
        return message
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
        raise err if isinstance(err, DataError) else DataError(f"malformed message: {err}") from err
    except RecursionError:
        raise DataError("malformed message: its header is nested too deep") from None


def header_of(message: Message, *, open_seals: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Return the header of a message, and its arrays in order.

    With `open_seals`, sealed values are described like the arrays that they contain, which is
    sufficient for counting bytes.
    """
    arrays: list[Any] = []
    entries = {
        name: described(getattr(message, name), arrays, open_seals=open_seals)
        for name in names_of(message)
    }
    return {"type": type(message).__name__, "fields": entries}, arrays


def message_of(header: Mapping[str, Any], reader: Reader) -> Message:
    """Create the message that a header and the following arrays describe.

    Raises
    ------
    DataError
        If the message type is unknown, or an array is truncated.
    """
    # Only registered message types can be created.
    cls = message_type(header["type"])
    if cls is None:
        raise DataError(
            f"unknown message type {header['type']!r}{did_you_mean(header['type'], _TYPES)} "
            "(a plugin that defines it must be loaded first)"
        )
    return cls(**{k: reader.value(entry, k) for k, entry in header["fields"].items()})


def _written(header: dict[str, Any]) -> bytes:
    """Return a header as JSON."""
    return json.dumps(header, separators=(",", ":")).encode()
