"""Binary form of arrays, numbers and sealed values: an entry in a JSON header, then raw bytes."""

from typing import Any

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.sealed import Sealed

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
        return _sealed(entry["sealed"], array.tobytes()) if "sealed" in entry else array

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


def _sealed(said: dict[str, Any], payload: bytes) -> Sealed:
    """Return a sealed value with the given attributes and payload."""
    holders, shape = tuple(map(str, said["keyholders"])), tuple(map(int, said["shape"]))
    return Sealed(holders, shape, str(said["dtype"]), int(said["nbytes"]), payload)
