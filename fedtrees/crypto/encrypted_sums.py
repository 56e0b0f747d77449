"""Sums under a Paillier key in bytes: who encrypts, who adds, who opens; and the same without work.

One party has the private key. Others encrypt with the public key, whoever adds cannot read, and
the holder opens the sum.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import sizes
from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.errors import MalformedError, MissingPartyError, WrongKeyError
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.ledger import Ledger
from fedtrees.crypto.obfuscators import (
    DJNObfuscators,
    Obfuscators,
    OwnerObfuscators,
    PlainObfuscators,
)
from fedtrees.crypto.secret import Unprintable
from fedtrees.crypto.slots import Slots

# Before each array: 16 bytes of the SHA-256 of public key, sender, number of the sum, ciphertexts.
# These alone are numbers like any others, and open under a wrong key, or from another sum, to wrong
# ones. Whoever changes them on purpose can make the mark again.
MARK_BYTES = 16
_ADDER = "whoever adds"


def public_key_bytes(bits: int, djn: bool) -> int:
    """Return the bytes of a public key: n, and for DJN obfuscators their base modulo n^2."""
    return bits // 8 + (sizes.ciphertext_bytes(bits) if djn else 0)


class EncryptedSums(Protocol):
    """What is sent, as bytes; what is received goes in likewise."""

    def public_key(self) -> bytes:
        """Return what the holder tells everybody."""

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Let a party encrypt an array, shape (m,)."""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add what it cannot read: everybody's array of `size` numbers, by party."""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Let the holder of the key open a sum, int64, shape (size,)."""


class _Shape(NamedTuple):
    """What an array of so many numbers, a sum of so many arrays, is read as."""

    size: int
    slots: Slots
    terms: int = 1


class RealSums(Unprintable):
    """Ciphertexts as they are computed.

    Parameters
    ----------
    parties : sequence of str
        Whose arrays a sum is of, all of them. The first one draws the key and opens sums.
    bits : int
    djn : bool
        Whether the others make obfuscators by DJN's short powers, or by ``r^n``.
    ledger : Ledger
    """

    def __init__(self, parties: Sequence[str], bits: int, djn: bool, ledger: Ledger) -> None:
        self._parties, self._ledger, self._djn = tuple(parties), ledger, djn
        self._keys = KeyPair.generate(bits)
        self._public = self._keys.public
        self._own = OwnerObfuscators(self._keys, ledger)
        kind = DJNObfuscators if djn else PlainObfuscators
        self._others: Obfuscators = kind(self._public, ledger)
        self._made: Counter[str] = Counter()  # arrays of each party
        self._added = 0

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        n = self._public.n.to_bytes(self._public.bits // 8, "big")
        if not self._djn or self._public.djn is None:
            return n
        return n + self._public.djn.to_bytes(sizes.ciphertext_bytes(self._public.bits), "big")

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt."""
        source = self._own if name == self._parties[0] else self._others
        payload = EncryptedArray.of(array, slots, source, self._ledger).payload
        self._made[name] += 1
        return self._mark(name, self._made[name], payload) + payload

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Multiply ciphertexts modulo n^2.

        Raises
        ------
        MissingPartyError
            If somebody's array is not there: a sum over the others has another meaning.
        MalformedError
            If somebody has no part in it, or an array has the wrong length or no ciphertexts.
        WrongKeyError
            If an array is under another key, of another sum or party, or was changed.
        """
        missing = [name for name in self._parties if name not in arrays]
        if missing:
            raise MissingPartyError(
                f"ciphertexts of {', '.join(missing)} are missing; Paillier sums are over all of "
                f"{', '.join(self._parties)}. Wait for them, or use 'masking', which opens the sum "
                "of those who stay"
            )
        strangers = sorted({*arrays} - {*self._parties})
        if strangers:
            raise MalformedError(
                f"{', '.join(strangers)} sent ciphertexts; the sum is over "
                f"{', '.join(self._parties)} alone"
            )
        number = self._added + 1
        first, *others = (
            self._read(name, number, arrays[name], _Shape(size, slots)) for name in self._parties
        )
        total = first
        for other in others:
            total = total.plus(other, self._ledger)
        self._added = number
        return self._mark(_ADDER, number, total.payload) + total.payload

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Decrypt; parties are taken to be as many as the slots have room for."""
        shape = _Shape(size, slots, slots.terms)
        sealed = self._read(_ADDER, self._added, total, shape)
        return sealed.opened(self._keys, self._ledger)

    def _mark(self, name: str, number: int, payload: bytes) -> bytes:
        of = hashlib.sha256(self.public_key())
        of.update(f"{number} of {name}".encode())
        of.update(payload)
        return of.digest()[:MARK_BYTES]

    def _read(self, name: str, number: int, text: bytes, shape: _Shape) -> EncryptedArray:
        mark, payload = text[:MARK_BYTES], text[MARK_BYTES:]
        expected = sizes.array(shape.size, shape.slots, self._public.bits).nbytes
        if len(payload) != expected:
            raise MalformedError(
                f"{name} sent {len(text)} bytes; {MARK_BYTES + expected} are due: ask for them "
                "again"
            )
        if mark != self._mark(name, number, payload):
            raise WrongKeyError(
                f"what {name} sent does not bear out its mark: it is under another key, of another "
                "sum or party, or was changed on the way. Send everybody the same key, and start "
                "anew"
            )
        try:
            return EncryptedArray.from_payload(
                payload, self._public, shape.slots, (shape.size,), shape.terms
            )
        except MalformedError as err:
            raise MalformedError(f"of {name}: {err}") from None


class IdealSums(Unprintable):
    """The ideal functionality in the same messages: nothing is computed, and nothing is in them.

    Parameters
    ----------
    bits : int
    ledger : Ledger
        Work that is not done is counted, and takes no time.
    """

    def __init__(self, bits: int, ledger: Ledger) -> None:
        self._bits, self._ledger = bits, ledger
        self._sum: NDArray[np.int64] | None = None

    def public_key(self) -> bytes:
        """Return nothing."""
        return b""

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Add the array to those since the last sum; refuse what the slots would refuse."""
        slots.check(array)
        count = self._count(array.size, slots)
        self._ledger.enter("obfuscators", count)
        self._ledger.enter("encrypted", count)
        self._sum = array if self._sum is None else self._sum + array
        return b""

    def added(self, arrays: Mapping[str, bytes], size: int, slots: Slots) -> bytes:
        """Add nothing: it is done."""
        self._ledger.enter("added", (len(arrays) - 1) * self._count(size, slots))
        return b""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Return the sum."""
        self._ledger.enter("decrypted", self._count(size, slots))
        found, self._sum = self._sum, None
        assert found is not None
        return found

    def _count(self, size: int, slots: Slots) -> int:
        return sizes.array(size, slots, self._bits).ciphertexts
