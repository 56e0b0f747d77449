"""Decode UBJSON (Universal Binary JSON, draft 12) as far as XGBoost writes it.

Not written by XGBoost, hence not read: high-precision numbers, characters, no-ops and containers
with a declared type other than numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError

_NUMBERS: dict[bytes, np.dtype[Any]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_CONSTANTS = {b"Z": None, b"T": True, b"F": False}
_MAX_DEPTH = 64  # XGBoost's models are 8 deep


def decode_ubjson(data: bytes) -> Any:
    """Return the value that the bytes encode; arrays of one number type become numpy arrays.

    No length is believed before that many bytes are there, so that a short file cannot ask for
    much memory.

    Raises `DataError` if the bytes are truncated, followed by others, or not UBJSON as XGBoost
    writes it.
    """
    decoder = _Decoder(data)
    value = decoder.value(decoder.take(1))
    if decoder.position != len(data):
        raise DataError(f"{len(data) - decoder.position} bytes follow the end of the UBJSON value")
    return value


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._depth = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if not self.position <= end <= len(self._data):
            raise DataError(f"the UBJSON ends at byte {len(self._data)}, in the middle of a value")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def value(self, marker: bytes) -> Any:
        if marker in _NUMBERS:
            return self._numbers(marker, 1)[0].item()
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"S":
            return self._text()
        if marker not in (b"[", b"{"):
            raise DataError(f"UBJSON has no value {marker!r} at byte {self.position - 1}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DataError(f"the UBJSON is nested deeper than {_MAX_DEPTH} levels")
        inside = self._array() if marker == b"[" else self._object()
        self._depth -= 1
        return inside

    def _numbers(self, marker: bytes, count: int) -> NDArray[Any]:
        kind = _NUMBERS[marker]
        return np.frombuffer(self.take(count * kind.itemsize), kind).astype(kind.newbyteorder("="))

    def _length(self) -> int:
        marker = self.take(1)
        if marker not in _NUMBERS or _NUMBERS[marker].kind == "f":
            raise DataError(f"UBJSON has no length {marker!r} at byte {self.position - 1}")
        length = int(self._numbers(marker, 1)[0])
        if length < 0:
            raise DataError(f"UBJSON length {length} at byte {self.position} is negative")
        return length

    def _text(self) -> str:
        return self.take(self._length()).decode("utf-8", errors="replace")

    def _array(self) -> Any:
        marker = self.take(1)
        if marker == b"$":
            kind = self.take(1)
            if kind not in _NUMBERS or self.take(1) != b"#":
                raise DataError(f"UBJSON array of {kind!r} at byte {self.position} is not read")
            return self._numbers(kind, self._length())
        if marker == b"#":
            return [self.value(self.take(1)) for _ in range(self._length())]
        items = []
        while marker != b"]":
            items.append(self.value(marker))
            marker = self.take(1)
        return items

    def _object(self) -> dict[str, Any]:
        items: dict[str, Any] = {}
        while self._data[self.position : self.position + 1] != b"}":
            key = self._text()
            if key in items:
                raise DataError(f"an object of the UBJSON has {key!r} twice; save the model again")
            items[key] = self.value(self.take(1))
        self.take(1)
        return items
