"""Binary form of everything that leaves a process or is stored. Pickle is never used.

All forms are frames: four bytes that name the form, the length of a header (uint32, little endian),
the header as JSON, and raw arrays in the order in which the header describes them. There are three:

- `encode` and `decode`: one message. This encoding defines the byte counts, the saved transcripts,
  and the content of messages between machines.
- `pack` and `unpack`: a value, such as the view that an attack receives, or the guess that it
  returns. A value is None, a boolean, a number, a text, an array of numbers, a message, or a tuple,
  list, mapping or dataclass of values. Arrays are aligned, so that they are read without a copy.
- `write_call` and `read_call`: a call of a host on another machine (`fedtrees.core.remote`). The
  message follows the header in its own encoding.

Decoding creates only objects of these types, runs no code from the bytes, and accepts only
dataclasses that the reader expects.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any

import numpy as np

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.messages import _TYPES, Message, Sealed, message_type, names_of

_KINDS = "biuf"  # bool, signed, unsigned, float
_MESSAGE, _VALUE, _CALL = b"FTM1", b"FTV1", b"FTL1"
_PREFIX = 8  # bytes before the header
_ALIGN = 16  # arrays of a value begin at multiples of this number of bytes


# Frames


def _write_frame(form: bytes, header: Any, arrays: Iterable[Any] = (), align: int = 1) -> list[Any]:
    """Return a frame as chunks of bytes. Arrays are not copied."""
    text = _write_header(header)
    chunks: list[Any] = [form, struct.pack("<I", len(text)), text]
    offset = _PREFIX + len(text)
    for array in arrays:
        if array.size:
            padding = -offset % align
            chunks += [bytes(padding), memoryview(array.reshape(-1).view(np.uint8))]
            offset += padding + array.nbytes
    return chunks


def _read_frame(blob: bytes, form: bytes, what: str, most_text: int | None = None) -> Any:
    """Return the header of a frame, and the offset of the bytes that follow it.

    Raises
    ------
    DataError
        If the bytes are no such frame, or truncated, or the header is too long.
    """
    if len(blob) < _PREFIX or blob[: len(form)] != form:
        raise DataError(f"not a {what}: it starts with {blob[:4]!r}")
    (length,) = struct.unpack_from("<I", blob, len(form))
    # The check precedes the parser, which needs several times the memory of the text.
    if most_text is not None and length > most_text:
        raise DataError(
            f"a {what} with {length:,} bytes of text; at most {most_text:,} are read: return "
            "arrays instead of lists"
        )
    end = _PREFIX + length
    if end > len(blob):
        raise DataError(f"truncated {what}: header of {length} bytes, {len(blob)} bytes in all")
    return json.loads(blob[_PREFIX:end]), end


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise `DataError` for every error that forged or damaged bytes can cause."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
        raise err if isinstance(err, DataError) else DataError(f"malformed {what}: {err}") from err
    except RecursionError:
        raise DataError(f"malformed {what}: it is nested too deep") from None


def _write_header(header: Any) -> bytes:
    """Return a header as JSON."""
    return json.dumps(header, separators=(",", ":")).encode()


class _Reader:
    """Reads arrays, scalars and sealed values from the bytes after a header, in order."""

    def __init__(self, blob: bytes, offset: int, align: int = 1) -> None:
        self._blob, self._offset, self._align = blob, offset, align

    def value(self, entry: Any, name: str) -> Any:
        """Return the value that a header entry describes. Arrays are read-only.

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
            raise DataError(f"field {name!r} has dtype {dtype}; only numbers can be encoded")
        if "scalar" in entry:
            return dtype.type(entry["scalar"])
        array = self._array(dtype, tuple(int(n) for n in entry["shape"]), name)
        return _read_sealed(entry["sealed"], array.tobytes()) if "sealed" in entry else array

    def end(self) -> None:
        """Raise `DataError` if bytes remain."""
        if self._offset != len(self._blob):
            raise DataError(f"malformed message: {len(self._blob) - self._offset} bytes too many")

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> Any:
        """Return the next array and move the position behind it."""
        # A product of Python integers does not overflow for a malicious shape.
        count = prod(shape)
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


def _describe(value: Any, arrays: list[Any], *, open_seals: bool = False) -> Any:
    """Return the header entry of a field, and append its raw data to `arrays`.

    With `open_seals`, a sealed value is described like the array that it contains, and the sealed
    value itself is appended. This is sufficient for counting bytes.
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


# Messages


def encode(message: Message) -> bytes:
    """Encode a message."""
    return b"".join(_write_frame(_MESSAGE, *_header_of(message)))


def encoded_size(message: Message) -> int:
    """Return the number of bytes of an encoded message, without copying its arrays.

    A value that is sealed by the ideal functionality counts as much as the plain array.
    """
    header, arrays = _header_of(message, open_seals=True)
    return _PREFIX + len(_write_header(header)) + sum(int(a.nbytes) for a in arrays)


def decode(blob: bytes) -> Message:
    """Decode one message.

    Raises
    ------
    DataError
        If the bytes are truncated, malformed or nested too deep, or name an unknown message type.
    """
    with _refusing("message"):
        header, offset = _read_frame(blob, _MESSAGE, "fedtrees message")
        reader = _Reader(blob, offset)
        message = _message_of(header, reader)
        reader.end()
        return message


def _header_of(message: Message, *, open_seals: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Return the header of a message, and its arrays in order."""
    arrays: list[Any] = []
    entries = {
        name: _describe(getattr(message, name), arrays, open_seals=open_seals)
        for name in names_of(message)
    }
    return {"type": type(message).__name__, "fields": entries}, arrays


def _message_of(header: Mapping[str, Any], reader: _Reader) -> Message:
    """Create the message that a header and the following arrays describe."""
    # Only registered message types can be created.
    cls = message_type(header["type"])
    if cls is None:
        raise DataError(
            f"unknown message type {header['type']!r}{did_you_mean(header['type'], _TYPES)} "
            "(a plugin that defines it must be loaded first)"
        )
    return cls(**{k: reader.value(entry, k) for k, entry in header["fields"].items()})


# Values


def type_name(kind: type) -> str:
    """Return the name of a dataclass in the encoded bytes."""
    return f"{kind.__module__}:{kind.__qualname__}"


def pack(value: Any) -> list[Any]:
    """Return a value as chunks of bytes. Arrays are not copied.

    Raises
    ------
    DataError
        If a part of the value has another type.
    """
    arrays: list[Any] = []
    try:
        entry = _entry(value, arrays)
    except RecursionError:
        raise DataError("the value is nested too deep, or contains itself") from None
    return _write_frame(_VALUE, entry, arrays, _ALIGN)


def unpack(blob: bytes, types: Iterable[type] = (), most_text: int | None = None) -> Any:
    """Decode a value. Its arrays are read-only.

    Parameters
    ----------
    blob : bytes
        The packed value.
    types : iterable of type
        Dataclasses that may occur in it.
    most_text : int, optional
        Largest number of bytes of text (numbers, names and lists). Arrays do not count.

    Raises
    ------
    DataError
        If the bytes are truncated or malformed, have too much text, or name another dataclass.
    """
    with _refusing("value"):
        entry, offset = _read_frame(blob, _VALUE, "packed value", most_text)
        reader = _Reader(blob, offset, _ALIGN)
        value = _value(entry, reader, {type_name(kind): kind for kind in types})
        reader.end()
        return value


def _entry(value: Any, arrays: list[Any]) -> Any:
    """Return the header entry of a value, and append its arrays."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic, Sealed)):
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if kind and kind not in _KINDS and not isinstance(value, Sealed):
            raise DataError(f"an array of {value.dtype} cannot be encoded; only numbers can")
        return {"raw": _describe(value, arrays)}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Message):
        header, raw = _header_of(value)
        arrays += raw
        return {"message": header}
    if isinstance(value, tuple):
        return [_entry(v, arrays) for v in value]
    if isinstance(value, list):
        return {"list": [_entry(v, arrays) for v in value]}
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {"map": {k: _entry(v, arrays) for k, v in value.items()}}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _entry(getattr(value, f.name), arrays) for f in fields(value) if f.init}
        return {"is": type_name(type(value)), "of": parts}
    raise DataError(
        f"a {type(value).__name__} cannot be encoded; only numbers, texts, arrays of numbers, "
        "messages, and tuples, lists, mappings by text and dataclasses of them can"
    )


def _value(entry: Any, reader: _Reader, expected_types: Mapping[str, type]) -> Any:
    """Return the value of a header entry."""
    if isinstance(entry, list):
        return tuple(_value(e, reader, expected_types) for e in entry)
    if not isinstance(entry, dict):
        return entry
    if "raw" in entry:
        return reader.value(entry["raw"], "value")
    if "message" in entry:
        return _message_of(entry["message"], reader)
    if "list" in entry:
        return [_value(e, reader, expected_types) for e in entry["list"]]
    if "map" in entry:
        return {k: _value(e, reader, expected_types) for k, e in entry["map"].items()}
    if entry["is"] not in expected_types:
        raise DataError(f"a {entry['is']!r} was sent, which is not expected here")
    parts = {k: _value(e, reader, expected_types) for k, e in entry["of"].items()}
    # The constructor validates the values, because the bytes may be forged.
    return expected_types[entry["is"]](**parts)


# Calls


def write_call(header: Mapping[str, Any], message: Message | None = None) -> bytes:
    """Return a call or its result: a header and, optionally, a message."""
    body = b"" if message is None else encode(message)
    return b"".join([*_write_frame(_CALL, header), body])


def read_call(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a call or result, and the bytes of its message, which may be empty.

    Raises
    ------
    DataError
        If the bytes are no call.
    """
    with _refusing("call"):
        header, offset = _read_frame(blob, _CALL, "call")
        if not isinstance(header, dict):
            raise DataError("malformed call: its header is no object")
        return header, blob[offset:]
