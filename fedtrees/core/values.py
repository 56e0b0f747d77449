"""Binary form of values: the view that an attack receives, and the guess that it returns.

A value is None, a boolean, a number, a text, an array of numbers, a message, or a tuple, list,
mapping or dataclass of values. Pickle is never used: decoding creates only objects of these types,
runs no code from the bytes, and accepts only dataclasses that the reader expects.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedtrees.core.codec import Reader, described, header_of, message_of
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Message, Sealed

_MAGIC = b"FTV1"
_PREFIX = len(_MAGIC) + 4
_ALIGN = 16


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
    text = json.dumps(entry, separators=(",", ":")).encode()
    chunks: list[Any] = [_MAGIC, struct.pack("<I", len(text)), text]
    offset = _PREFIX + len(text)
    for array in arrays:
        if array.size:
            # Aligned arrays can be read without a copy.
            padding = -offset % _ALIGN
            chunks += [bytes(padding), memoryview(array.reshape(-1).view(np.uint8))]
            offset += padding + array.nbytes
    return chunks


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
    if len(blob) < _PREFIX or blob[: len(_MAGIC)] != _MAGIC:
        raise DataError(f"not a packed value: it starts with {blob[:4]!r}")
    (length,) = struct.unpack_from("<I", blob, len(_MAGIC))
    # The check precedes the parser, which needs several times the memory of the text.
    if most_text is not None and length > most_text:
        raise DataError(
            f"a value with {length:,} bytes of text; at most {most_text:,} are read: return arrays "
            "instead of lists"
        )
    if _PREFIX + length > len(blob):
        raise DataError(f"truncated value: header of {length} bytes, {len(blob)} bytes in all")
    by_name = {type_name(kind): kind for kind in types}
    try:
        reader = Reader(blob, _PREFIX + length, _ALIGN)
        value = _value(json.loads(blob[_PREFIX : _PREFIX + length]), reader, by_name)
        reader.end()
        return value
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
        raise err if isinstance(err, DataError) else DataError(f"malformed value: {err}") from err
    except RecursionError:
        raise DataError("malformed value: it is nested too deep") from None


def _entry(value: Any, arrays: list[Any]) -> Any:
    """Return the header entry of a value, and append its arrays."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic, Sealed)):
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if kind and kind not in "biuf" and not isinstance(value, Sealed):
            raise DataError(f"an array of {value.dtype} cannot cross; only numbers may")
        return {"raw": described(value, arrays)}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Message):
        header, raw = header_of(value)
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
        f"a {type(value).__name__} cannot cross; only numbers, texts, arrays of numbers, messages, "
        "and tuples, lists, mappings by text and dataclasses of them may"
    )


def _value(entry: Any, reader: Reader, expected_types: Mapping[str, type]) -> Any:
    """Return the value of a header entry."""
    if isinstance(entry, list):
        return tuple(_value(e, reader, expected_types) for e in entry)
    if not isinstance(entry, dict):
        return entry
    if "raw" in entry:
        return reader.value(entry["raw"], "value")
    if "message" in entry:
        return message_of(entry["message"], reader)
    if "list" in entry:
        return [_value(e, reader, expected_types) for e in entry["list"]]
    if "map" in entry:
        return {k: _value(e, reader, expected_types) for k, e in entry["map"].items()}
    if entry["is"] not in expected_types:
        raise DataError(f"a {entry['is']!r} was sent, which is not expected here")
    parts = {k: _value(e, reader, expected_types) for k, e in entry["of"].items()}
    # The constructor validates the values, because the bytes may be forged.
    return expected_types[entry["is"]](**parts)
