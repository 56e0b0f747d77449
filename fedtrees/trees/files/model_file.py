"""Read a model file into memory, limit its size and the depth of its trees, and decode UBJSON.

UBJSON (Universal Binary JSON, draft 12) is decoded as far as XGBoost uses it. Every value begins
with a one-byte marker of its type. For example, ``l`` is followed by a 32-bit integer, ``[`` by the
elements of an array, and ``{`` by the names and values of an object. The decoder does not support
types that XGBoost does not write: high-precision numbers, characters, no-ops, and containers whose
elements have a declared type that is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.files import no_local_file

# A thousand trees of depth 12 need about 600 MB of JSON. The parsed JSON needs several times this
# size.
MAX_MODEL_BYTES = 2**30
_BLOCK = 2**20
# Largest number of levels of a tree. Each split of a training divides the rows, so that no trained
# tree has this depth. Algorithms that follow the path to every leaf would need time that grows with
# the square of the file size.
MOST_LEVELS = 2**12


def read_model_file(path: str | PathLike[str]) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    DataError
        If the file cannot be read or is larger than `MAX_MODEL_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:
            # If all bytes are requested at once, Python allocates the memory for them in advance.
            blocks = iter(partial(file.read, _BLOCK), b"")
            data = b"".join(islice(blocks, MAX_MODEL_BYTES // _BLOCK + 1))
    except OSError as error:
        reason = no_local_file(str(path)) or error.strerror
        raise DataError(f"cannot read the model {path!s}: {reason}") from error
    if len(data) > MAX_MODEL_BYTES:
        raise DataError(
            f"the model {path!s} is larger than {MAX_MODEL_BYTES} bytes; models that large are not "
            "read: save it with fewer trees"
        )
    return data


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Put the name of a model file in front of a `DataError` of the block that lacks it."""
    try:
        yield
    except DataError as error:
        if str(path) in str(error):
            raise
        raise DataError(f"{path!s}: {error}") from error


def check_depth(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]]) -> None:
    """Refuse a tree with more than `MOST_LEVELS` levels.

    Parameters
    ----------
    left, right : int array, shape (n_nodes,)
        Children of every node, which follow it. Those of leaves are negative or not node numbers.

    Raises
    ------
    DataError
        If the tree has more levels.
    """
    level = np.zeros(1, dtype=np.int64)
    for _ in range(MOST_LEVELS):
        # All nodes of one level at a time, so that a cycle also ends after `MOST_LEVELS` steps.
        both = np.concatenate([left[level], right[level]])
        level = both[(both >= 0) & (both < len(left))]
        if not len(level):
            return
    raise DataError(
        f"a tree of {len(left)} nodes has more than {MOST_LEVELS} levels, which no training grows "
        "and nothing reads in bounded time; the file is damaged"
    )


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
_MAX_DEPTH = 64  # the containers of XGBoost's models are nested 8 deep


def decode_ubjson(data: bytes) -> Any:
    """Return the value that the bytes encode. Arrays with one number type become numpy arrays.

    A declared length is used only after a check that the data contains that many bytes. A short
    file therefore cannot cause a large allocation.

    Raises
    ------
    DataError
        If the bytes are truncated, followed by further bytes, or not UBJSON in the form of XGBoost.
    """
    decoder = _Decoder(data)
    value = decoder.value(decoder.take(1))
    if decoder.position != len(data):
        raise DataError(f"{len(data) - decoder.position} bytes follow the end of the UBJSON value")
    return value


class _Decoder:
    """Reads values from a position in the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._depth = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes and move the position behind them."""
        end = self.position + size
        # The first comparison also refuses a negative size.
        if not self.position <= end <= len(self._data):
            raise DataError(f"the UBJSON ends at byte {len(self._data)}, in the middle of a value")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def value(self, marker: bytes) -> Any:
        """Return the value that follows a type marker."""
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
        container = self._array() if marker == b"[" else self._object()
        self._depth -= 1
        return container

    def _numbers(self, marker: bytes, count: int) -> NDArray[Any]:
        """Return an array of numbers of one type."""
        kind = _NUMBERS[marker]
        return np.frombuffer(self.take(count * kind.itemsize), kind).astype(kind.newbyteorder("="))

    def _length(self) -> int:
        """Return the next length, a non-negative integer."""
        marker = self.take(1)
        if marker not in _NUMBERS or _NUMBERS[marker].kind == "f":
            raise DataError(f"UBJSON has no length {marker!r} at byte {self.position - 1}")
        length = int(self._numbers(marker, 1)[0])
        if length < 0:
            raise DataError(f"UBJSON length {length} at byte {self.position} is negative")
        return length

    def _text(self) -> str:
        """Return the next string."""
        return self.take(self._length()).decode("utf-8", errors="replace")

    def _array(self) -> Any:
        """Return the rest of an array."""
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
        """Return the rest of an object."""
        items: dict[str, Any] = {}
        while self._data[self.position : self.position + 1] != b"}":
            key = self._text()
            if key in items:
                raise DataError(f"an object of the UBJSON has {key!r} twice; save the model again")
            items[key] = self.value(self.take(1))
        self.take(1)
        return items
