"""Arrays, numbers and sealed values as bytes: an entry in a header, and raw bytes behind it."""

from typing import Any

import numpy as np

from fedtrees.core.errors import DataError
from fedtrees.core.sealed import Sealed

_KINDS = "biuf"  # bool, signed, unsigned, float


def described(value: Any, arrays: list[Any], *, open_seals: bool = False) -> Any:
    """Return the entry of a value for the header; what is raw is appended to `arrays`.

    `value`: array, numpy scalar, Sealed, or what JSON can say.
    `arrays`: Contiguous little-endian arrays, in the order of their entries.
    `open_seals`: Describe a sealed value as if it were the array inside, and append the seal
    itself: enough to count bytes.
    """
    if isinstance(value, np.ndarray):
        value = np.asarray(value)  # a subclass may change what it says
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
        said = {k: v for k, v in vars(value).items() if k != "payload"}
        return {"sealed": said, "dtype": "|u1", "shape": [len(payload)]}
    return value


class Reader:
    """Takes values from their entries and the raw bytes, in order.

    `offset`: Where the raw bytes begin.
    `align`: Every array begins at a multiple of so many bytes.
    """

    def __init__(self, blob: bytes, offset: int, align: int = 1) -> None:
        self._blob, self._offset, self._align = blob, offset, align

    def value(self, entry: Any, name: str) -> Any:
        """Return the next value; arrays are read-only, and lie on the bytes if they are aligned.

        Raises `DataError` if it is cut off, or no number.
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
        """See that nothing is left.

        Raises `DataError` if something is.
        """
        if self._offset != len(self._blob):
            raise DataError(f"malformed message: {len(self._blob) - self._offset} bytes too many")

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> Any:
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
    holders, shape = tuple(map(str, said["keyholders"])), tuple(map(int, said["shape"]))
    return Sealed(holders, shape, str(said["dtype"]), int(said["nbytes"]), payload)
