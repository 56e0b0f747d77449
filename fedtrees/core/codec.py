"""One encoding of messages: a JSON header and raw arrays. Never pickle.

It gives the byte counts, the saved transcripts and the wire format of a remote network.
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from typing import Any

import numpy as np

from fedtrees.core.errors import DataError, did_you_mean
from fedtrees.core.messages import _TYPES, Message, message_type
from fedtrees.core.sealed import Sealed

_MAGIC = b"FTM1"
_PREFIX = len(_MAGIC) + 4
_KINDS = "biuf"  # bool, signed, unsigned, float


def encoded_size(message: Message) -> int:
    """Return how many bytes cross with a message, without copying its arrays.

    That is the length of its encoding, where a value sealed by the ideal functionality counts as
    much as the open array.
    """
    header, arrays = _header(message, count=True)
    return _PREFIX + len(header) + sum(int(a.nbytes) for a in arrays)


def encode(message: Message) -> bytes:
    """Encode a message: magic, header length (uint32, little endian), JSON header, arrays."""
    header, arrays = _header(message)
    parts = [_MAGIC, struct.pack("<I", len(header)), header, *(a.tobytes() for a in arrays)]
    return b"".join(parts)


def decode(blob: bytes) -> Message:
    """Decode one message.

    Raises
    ------
    DataError
        If the bytes are truncated, malformed, or name an unknown message type.
    """
    if len(blob) < _PREFIX or blob[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"not a fedtrees message: it starts with {blob[:4]!r}")
    (length,) = struct.unpack_from("<I", blob, len(_MAGIC))
    if _PREFIX + length > len(blob):
        raise DataError(f"truncated message: header of {length} bytes, {len(blob)} bytes in all")
    try:
        header = json.loads(blob[_PREFIX : _PREFIX + length])
        return _build(header, blob, _PREFIX + length)
    except (ValueError, KeyError, TypeError) as err:
        raise DataError(f"malformed message: {err}") from err


def _header(message: Message, count: bool = False) -> tuple[bytes, list[Any]]:
    """Return the JSON header and what follows it; to `count` bytes, sealed values as if open."""
    entries: dict[str, Any] = {}
    arrays: list[Any] = []
    for item in fields(message):
        value = getattr(message, item.name)
        if isinstance(value, np.ndarray):
            value = value.astype(value.dtype.newbyteorder("<"), copy=False)
            entries[item.name] = {"dtype": value.dtype.str, "shape": list(value.shape)}
            arrays.append(value)
        elif isinstance(value, np.generic):
            entries[item.name] = {"dtype": value.dtype.str, "scalar": value.item()}
        elif isinstance(value, Sealed) and count:
            entries[item.name] = {"dtype": value.dtype, "shape": list(value.shape)}
            arrays.append(value)
        elif isinstance(value, Sealed):
            payload = np.frombuffer(value.payload, np.uint8)
            described = {k: v for k, v in vars(value).items() if k != "payload"}
            entries[item.name] = {"sealed": described, "dtype": "|u1", "shape": [len(payload)]}
            arrays.append(payload)
        else:
            entries[item.name] = value
    header = {"type": type(message).__name__, "fields": entries}
    return json.dumps(header, separators=(",", ":")).encode(), arrays


def _build(header: dict[str, Any], blob: bytes, offset: int) -> Message:
    cls = message_type(header["type"])
    if cls is None:
        raise DataError(
            f"unknown message type {header['type']!r}{did_you_mean(header['type'], _TYPES)} "
            "(a plugin that defines it must be loaded first)"
        )
    values: dict[str, Any] = {}
    for name, entry in header["fields"].items():
        if not isinstance(entry, dict):
            values[name] = entry
            continue
        dtype = np.dtype(entry["dtype"])
        if dtype.kind not in _KINDS:
            raise DataError(f"field {name!r} has dtype {dtype}; only numbers may cross")
        if "scalar" in entry:
            values[name] = dtype.type(entry["scalar"])
            continue
        shape = tuple(int(n) for n in entry["shape"])
        count = 1
        for n in shape:
            count *= n
        if any(n < 0 for n in shape) or offset + count * dtype.itemsize > len(blob):
            raise DataError(f"truncated message: field {name!r} of shape {shape} is cut off")
        values[name] = np.frombuffer(blob, dtype, count, offset).reshape(shape)
        if "sealed" in entry:
            values[name] = _sealed(entry["sealed"], values[name].tobytes())
        offset += count * dtype.itemsize
    if offset != len(blob):
        raise DataError(f"malformed message: {len(blob) - offset} bytes too many")
    return cls(**values)


def _sealed(described: dict[str, Any], payload: bytes) -> Sealed:
    holders, shape = tuple(map(str, described["keyholders"])), tuple(map(int, described["shape"]))
    return Sealed(holders, shape, str(described["dtype"]), int(described["nbytes"]), payload)
