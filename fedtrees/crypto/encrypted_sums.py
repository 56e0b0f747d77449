"""Sums under a Paillier key in bytes: who encrypts, who adds, who opens; and the same without work.

One party has the private key. The others encrypt with the public key, whoever adds cannot read, and
the holder opens the sum, to which it adds its own array in the open: nobody but itself would have
opened that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import sizes
from fedtrees.crypto.arrays import EncryptedArray
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.ledger import Ledger
from fedtrees.crypto.obfuscators import (
    DJNObfuscators,
    Obfuscators,
    PlainObfuscators,
)
from fedtrees.crypto.secret import Unprintable
from fedtrees.crypto.slots import Slots


def public_key_bytes(bits: int, djn: bool) -> int:
    """Return the bytes of a public key: n, and for DJN obfuscators their base modulo n^2."""
    return bits // 8 + (sizes.ciphertext_bytes(bits) if djn else 0)


class EncryptedSums(Protocol):
    """What is sent, as bytes; what is received goes in likewise."""

    def public_key(self) -> bytes:
        """Return what the holder tells everybody."""

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Let a party without the private key encrypt an array, shape (m,)."""

    def added(self, name: str, arrays: Sequence[bytes], size: int, slots: Slots) -> bytes:
        """Let a party add what it cannot read: arrays of `size` numbers each."""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Let the holder of the key open a sum, int64, shape (size,)."""


class RealSums(Unprintable):
    """Ciphertexts as they are computed.

    Parameters
    ----------
    holder : str
        Who draws the key and opens sums.
    bits : int
    djn : bool
        Whether the others make obfuscators by DJN's short powers, or by ``r^n``.
    ledgers : mapping of str to Ledger
        Of every party.
    """

    def __init__(self, holder: str, bits: int, djn: bool, ledgers: Mapping[str, Ledger]) -> None:
        self._holder, self._ledgers, self._djn = holder, ledgers, djn
        self._keys = KeyPair.generate(bits)
        self._public = self._keys.public
        kind = DJNObfuscators if djn else PlainObfuscators
        self._obfuscators: Obfuscators = kind(self._public)

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        n = self._public.n.to_bytes(self._public.bits // 8, "big")
        if not self._djn or self._public.djn is None:
            return n
        return n + self._public.djn.to_bytes(sizes.ciphertext_bytes(self._public.bits), "big")

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt."""
        ledger = self._obfuscators.ledger = self._ledgers[name]  # one table serves all, as public
        return EncryptedArray.of(array, slots, self._obfuscators, ledger).payload

    def added(self, name: str, arrays: Sequence[bytes], size: int, slots: Slots) -> bytes:
        """Multiply ciphertexts modulo n^2."""
        first, *others = (
            EncryptedArray.from_payload(text, self._public, slots, (size,)) for text in arrays
        )
        total = first
        for other in others:
            total = total.plus(other, self._ledgers[name])
        return total.payload

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Decrypt; parties are taken to be as many as the slots have room for."""
        sealed = EncryptedArray.from_payload(total, self._public, slots, (size,), slots.terms)
        return sealed.opened(self._keys, self._ledgers[self._holder])


class IdealSums(Unprintable):
    """The ideal functionality in the same messages: nothing is computed, and nothing is in them.

    Parameters
    ----------
    holder : str
    bits : int
    ledgers : mapping of str to Ledger
        Work that is not done is counted, and takes no time.
    """

    def __init__(self, holder: str, bits: int, ledgers: Mapping[str, Ledger]) -> None:
        self._holder, self._bits, self._ledgers = holder, bits, ledgers
        self._sum: NDArray[np.int64] | None = None

    def public_key(self) -> bytes:
        """Return nothing."""
        return b""

    def encrypted(self, name: str, array: NDArray[np.int64], slots: Slots) -> bytes:
        """Add the array to those since the last sum; refuse what the slots would refuse."""
        slots.check(array)
        count = self._count(array.size, slots)
        self._ledgers[name].enter("obfuscators", count)
        self._ledgers[name].enter("encrypted", count)
        self._sum = array if self._sum is None else self._sum + array
        return b""

    def added(self, name: str, arrays: Sequence[bytes], size: int, slots: Slots) -> bytes:
        """Add nothing: it is done."""
        self._ledgers[name].enter("added", (len(arrays) - 1) * self._count(size, slots))
        return b""

    def opened(self, total: bytes, size: int, slots: Slots) -> NDArray[np.int64]:
        """Return the sum."""
        self._ledgers[self._holder].enter("decrypted", self._count(size, slots))
        found, self._sum = self._sum, None
        assert found is not None
        return found

    def _count(self, size: int, slots: Slots) -> int:
        return sizes.array(size, slots, self._bits).ciphertexts
