"""Named random streams: a draw depends on its party and purpose, never on earlier draws.

Noise that claims a privacy budget must be unpredictable. The bit generators of numpy (PCG64, the
Mersenne Twister) are not: their state can be computed from outputs, so that an adversary that
learns a few noise values could compute all remaining ones. `Keystream` draws the bits of AES-256 in
counter mode (NIST SP 800-38A) under a key of 256 bits. The same key gives the same bits, so that
runs with a seed can be repeated.

A `numpy.random.Generator` calls its bit generator through a C struct of function pointers
(``bitgen_t``). They are compiled by numba (`fedtrees.core.keystream_functions`) and read from a
buffer, which Python refills.
"""

from __future__ import annotations

import ctypes
import hashlib
import secrets
import threading
import weakref
from typing import Literal, get_args

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedtrees.core.errors import check_known

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


#: ``system``: 256 bits of the operating system. ``seed``: an adversary that knows the seed, or
#: tries out seeds, can reproduce the noise, so that no privacy claim holds.
NoiseFrom = Literal["system", "seed"]


class Streams:
    """Tree of independent random streams, addressed by names.

    ``Streams(seed).child("client-0").rng("columns", 3)`` gives the same generator, whatever else
    was drawn. Adding a party or a message therefore never changes the draws of another one.

    A child does not contain the key of its parent. But there are few seeds, which an adversary can
    try out: if a released model shows one draw, it determines the seed and all further draws.
    Values that must hide something are therefore drawn from `noise`. Its root is random or, if
    `noise_from` is ``seed``, another hash of the seed.

    Parameters
    ----------
    seed : int
        Seed of the experiment.
    noise_from : {"system", "seed"}
        Source of the root of `noise`.

    Attributes
    ----------
    secret : bool
        Whether the draws of `noise` cannot be reproduced.

    Raises
    ------
    UsageError
        If `noise_from` has another value.
    """

    __slots__ = ("_hides", "_key", "_noise", "secret")

    def __init__(self, seed: int, noise_from: NoiseFrom = "system") -> None:
        check_known("noise_from", noise_from, get_args(NoiseFrom))
        self._key, self._hides = _root(seed), False
        self.secret = noise_from == "system"
        self._noise = secrets.token_bytes(32) if self.secret else _root(seed, b"noise")

    @classmethod
    def _of(cls, key: bytes, noise: bytes, secret: bool, hides: bool) -> Streams:
        """Create streams from keys."""
        streams = cls.__new__(cls)
        streams._key, streams._noise = key, noise
        streams.secret, streams._hides = secret, hides
        return streams

    @property
    def noise(self) -> Streams:
        """The same scope for secret draws: noise, and samples that hide a row."""
        return self._of(self._noise, self._noise, self.secret, True)

    def child(self, *names: str) -> Streams:
        """Return the streams of a named scope, such as a party or a stage.

        Parameters
        ----------
        *names : str
            Path of the scope below this one.

        Returns
        -------
        Streams
            Streams that are independent of those of every other scope.
        """
        key, noise = (_derive_key(k, "child", *names) for k in (self._key, self._noise))
        return self._of(key, noise, self.secret, self._hides)

    def deciding(self) -> Streams:
        """Return the streams of the server, which decides on splits."""
        return self.child("server")

    def client(self, index: int) -> Streams:
        """Return the streams of a client.

        Parameters
        ----------
        index : int
            Number of the client, from 0.

        Returns
        -------
        Streams
            Streams of the scope ``client-<index>``.
        """
        return self.child(f"client-{index}")

    def rng(self, purpose: str, *index: int) -> np.random.Generator:
        """Return the generator for one purpose.

        Generators of `noise` draw from a cryptographic keystream with a separate key, so that known
        draws do not reveal further draws. All remaining generators are those of numpy, which are
        faster.

        Parameters
        ----------
        purpose : str
            What is drawn, for example ``"columns"``.
        *index : int
            Round, tree or another number, if the purpose occurs several times.

        Returns
        -------
        numpy.random.Generator
            A new generator at its start. A second call with equal arguments repeats the draws.
        """
        digest = _derive_key(self._key, "rng", purpose, *map(str, index))
        if self._hides:
            return np.random.Generator(Keystream(digest))  # type: ignore[arg-type]
        # The seed sequence receives all 256 bits of the digest.
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
        return np.random.default_rng(np.random.SeedSequence(words))


def _root(seed: int, purpose: bytes = b"") -> bytes:
    """Return the root key of a seed."""
    text = f"fedtrees:{seed}".encode()
    return hashlib.blake2b(text, digest_size=32, person=purpose).digest()


def _derive_key(key: bytes, *names: str) -> bytes:
    # The separator is a control character, so that names cannot be joined in two ways.
    """Return the key of a named child."""
    text = "\x1f".join(names).encode()
    return hashlib.blake2b(text, key=key, digest_size=32).digest()
