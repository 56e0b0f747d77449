"""A numpy bit generator whose output is an AES-256 keystream.

Noise that claims a privacy budget must be unpredictable. The bit generators of numpy (PCG64, the
Mersenne Twister) are not: their state can be computed from outputs, so that an adversary that
learns a few noise values could compute all remaining ones. `Keystream` draws the bits of AES-256 in
counter mode (NIST SP 800-38A) under a key of 256 bits. The same key gives the same bits, so that
runs with a seed can be repeated.

A `numpy.random.Generator` calls its bit generator through a C struct of function pointers
(``bitgen_t``). They are compiled by numba and read from a buffer, which Python refills.
"""

from __future__ import annotations

import ctypes
import threading
import weakref

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_FIRST = 64  # number of 64-bit words in the first part of the keystream
_Refill = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_streams: weakref.WeakValueDictionary[int, Keystream] = weakref.WeakValueDictionary()


class _Bitgen(ctypes.Structure):
    """The C struct ``bitgen_t`` of numpy."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", ctypes.c_void_p),
        ("next_uint32", ctypes.c_void_p),
        ("next_double", ctypes.c_void_p),
        ("next_raw", ctypes.c_void_p),
    )


class Keystream:
    """Bits of AES-256 in counter mode, as a bit generator for `numpy.random.Generator`.

    Parameters
    ----------
    key : bytes
        32 bytes. A key must be used for one stream only, because the counter starts at 0.

    Attributes
    ----------
    capsule : PyCapsule
        The C interface that `numpy.random.Generator` reads.
    lock : threading.Lock
        Lock that the generator acquires for each draw.

    Examples
    --------
    >>> rng = np.random.Generator(Keystream(bytes(32)))
    >>> rng.integers(0, 256, 4).tolist() == np.random.Generator(Keystream(bytes(32))).integers(
    ...     0, 256, 4
    ... ).tolist()
    True
    """

    def __init__(self, key: bytes) -> None:
        # numba is imported at the first draw of noise, so that importing fedtrees is fast
        from fedtrees.core import keystream_functions as functions

        self._header, self._largest = functions.HEADER, functions.LARGEST
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._zeros = bytes(8 * self._largest)
        self._words = np.zeros(self._header + self._largest, dtype=np.uint64)
        self._size = _FIRST
        self.lock = threading.Lock()
        address = self._words.ctypes.data
        # The layout of the header is described in `fedtrees.core.keystream_functions`.
        self._words[4], self._words[5] = _REFILL, address
        word = functions.next_uint64.address
        half, real = functions.next_uint32.address, functions.next_double.address
        self._bitgen = _Bitgen(address, word, half, real, word)
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                               ctypes.c_void_p]  # fmt: skip
        self.capsule = capsule(ctypes.addressof(self._bitgen), b"BitGenerator", None)
        # Compiled code only knows the address of the buffer, by which `_refill` finds this object.
        _streams[address] = self

    def refill(self) -> None:
        """Write the next part of the keystream into the buffer. Parts grow up to 64 KiB."""
        # The encryption of zeros is the keystream itself.
        drawn = self._cipher.update(self._zeros[: 8 * self._size])
        self._words[self._header : self._header + self._size] = np.frombuffer(drawn, "<u8")
        self._words[0], self._words[1] = 0, self._size
        # Small first parts make a generator with few draws cheap.
        self._size = min(2 * self._size, self._largest)


@_Refill  # type: ignore[untyped-decorator]
def _refill(address: int) -> None:
    """Refill the buffer at an address. Compiled code calls this function."""
    _streams[address].refill()


_REFILL = ctypes.cast(_refill, ctypes.c_void_p).value or 0
