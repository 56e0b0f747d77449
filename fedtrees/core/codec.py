"""Encoding of messages: a JSON header, then raw arrays. Pickle is never used.

The encoding defines the byte counts, the saved transcripts, and the wire format between machines.

Arrays, numbers and sealed values have an entry in the JSON header. The bytes of arrays and of
sealed values follow the header.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.messages import _TYPES, Message, Sealed, message_type, names_of

_KINDS = "biuf"  # bool, signed, unsigned, float


def described(value: Any, arrays: list[Any], *, open_seals: bool = False) -> Any:
    """Return the header entry of a value, and append its raw data to `arrays`.

    Parameters
    ----------
    value : array, numpy scalar, Sealed, or JSON value
        The value.
    arrays : list
        Contiguous little-endian arrays in the order of their entries. The list is extended.
    open_seals : bool
        Describe a sealed value like the array that it contains, and append the sealed value itself.
        This is sufficient for counting bytes.
    """
    if isinstance(value, np.ndarray):
        # The methods of an array subclass may describe other data than the array.
        value = np.asarray(value)
        arrays.append(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")))
        return {"dtype": arrays[-1].dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return {"dtype": value.dtype.str, "scalar": value.item()}
    if isinstance(value, Sealed) and open_seals:
        arrays.append(value)
        return {"dtype": value.dtype, "shape": list(value.shape)}
    if isinstance(value, Sealed):
        payload = np.frombuffer(value.payload, np.uint8)
        arrays.append(payload)
        attributes = {k: v for k, v in vars(value).items() if k != "payload"}
        return {"sealed": attributes, "dtype": "|u1", "shape": [len(payload)]}
    return value


class Reader:
    """Reads values from their header entries and the raw bytes, in order.

    Parameters
    ----------
    blob : bytes
        The encoded values.
    offset : int
        Position of the first raw byte.
    align : int
        Every array begins at a multiple of this number of bytes.
    """

    def __init__(self, blob: bytes, offset: int, align: int = 1) -> None:
        self._blob, self._offset, self._align = blob, offset, align

    def value(self, entry: Any, name: str) -> Any:
        """Return the next value. Arrays are read-only.

        An aligned array is a view of the encoded bytes. An unaligned array is copied.

        Raises
        ------
        DataError
            If the value is truncated or has another dtype than bool, integer or float.
        """
        if not isinstance(entry, dict):
            return entry
        dtype = np.dtype(entry["dtype"])
        if dtype.kind not in _KINDS:
            raise DataError(f"field {name!r} has dtype {dtype}; only numbers may cross")
        if "scalar" in entry:
            return dtype.type(entry["scalar"])
        array = self._array(dtype, tuple(int(n) for n in entry["shape"]), name)
        return _read_sealed(entry["sealed"], array.tobytes()) if "sealed" in entry else array

    def end(self) -> None:
        """Check that all bytes were read.

        Raises
        ------
        DataError
            If bytes remain.
        """
        if self._offset != len(self._blob):
            raise DataError(f"malformed message: {len(self._blob) - self._offset} bytes too many")

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> Any:
        """Return the next array and move the position behind it."""
        # The product is computed with Python integers, which do not overflow for a malicious shape.
        count = 1
        for n in shape:
            count *= n
        start = self._offset + (-self._offset % self._align if count else 0)
        if any(n < 0 for n in shape) or start + count * dtype.itemsize > len(self._blob):
            raise DataError(f"truncated message: field {name!r} of shape {shape} is cut off")
        self._offset = start + count * dtype.itemsize
        if not count:
            empty = np.empty(shape, dtype)
            empty.flags.writeable = False
            return empty
        array = np.ndarray(shape, dtype, self._blob, start)
        return array if array.flags.aligned else np.ndarray(shape, dtype, array.tobytes())


def _read_sealed(attributes: dict[str, Any], payload: bytes) -> Sealed:
    """Return a sealed value with the given attributes and payload."""
    holders, shape = tuple(map(str, attributes["keyholders"])), tuple(map(int, attributes["shape"]))
    return Sealed(holders, shape, str(attributes["dtype"]), int(attributes["nbytes"]), payload)


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
