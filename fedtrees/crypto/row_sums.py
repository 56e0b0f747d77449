"""Sums over bins of rows that their owner encrypted, in bytes (`fedtrees.sealing.row_sums`)."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.histograms import EncryptedRows, PackedHistogram
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import OwnerObfuscators, PlainObfuscators
from fedtrees.crypto.randomness import SYSTEM, Randomness
from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.row_sums import Adding, Binned, Sums
from fedtrees.sealing.secret import Unprintable
from fedtrees.sealing.slots import Slots


class KeyedRowSums(Unprintable):
    """The side of the holder of the key, which encrypts rows and opens sums.

    `bits`: Of the key, where none is given.
    """

    def __init__(self, bits: int, ledger: Ledger, keys: KeyPair | None = None) -> None:
        self.ledger = ledger
        self._keys = keys or KeyPair.generate(bits)
        self._public = self._keys.public
        self._own = OwnerObfuscators(self._keys, ledger)

    def public_key(self) -> bytes:
        """Return n, which the holder tells everybody."""
        return self._public.payload(obfuscators=False)

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt rows, shape (m, s), all statistics of a row in one ciphertext."""
        return EncryptedRows.of(rows, slots, self._own, self.ledger).payload

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Decrypt a party's sums, int64, shape `Sums.shape`.

        Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key.
        """
        ends = np.cumsum([0, *(t.nbytes for t in sums.traffic(self._public.bits))]).tolist()
        if len(payload) != ends[-1]:
            raise MalformedError(f"{len(payload)} bytes of sums; {ends[-1]} were to come")
        out = np.zeros(sums.shape, dtype=np.int64)
        for (a, b), (bins, columns, places) in zip(pairwise(ends), sums.groups(), strict=True):
            shape = (len(sums.counts), len(columns), bins, sums.statistics)
            packed = PackedHistogram.from_payload(payload[a:b], self._public, sums.slots, shape)
            found = packed.opened(self._keys, self.ledger)
            out[:, places] = found.reshape(len(sums.counts), -1, sums.statistics)
        return out


class BlindRowSums(Unprintable):
    """The side of a party that adds what it cannot read; it has the public key alone.

    Every ciphertext that it sends is hidden by ``r^n``. The holder knows the obfuscators of the
    rows, and short powers of one base would leave the class of their product modulo the powers of
    that base as it is: its Jacobi symbol tells which rows may have been added.
    """

    def __init__(self, ledger: Ledger, randomness: Randomness = SYSTEM) -> None:
        self.ledger, self._randomness = ledger, randomness
        self._read: tuple[bytes, EncryptedRows] | None = None

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key.

        Raises `MalformedError` if it is none.
        """
        self._public = PublicKey.from_payload(key, bits)
        self._hiding = PlainObfuscators(self._public, self.ledger, self._randomness)

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add rows over bins: multiply ciphertexts modulo n^2, pack the products, and hide them."""
        codes, nodes = binned()
        if self._read is None or self._read[0] is not rows:
            shape = (len(nodes), sums.statistics)
            self._read = rows, EncryptedRows.from_payload(rows, self._public, sums.slots, shape)
        parts = []
        for bins, columns, _ in sums.groups():
            shape = (len(sums.counts), bins)
            found = self._read[1].sums(codes[:, columns], nodes, shape, self.ledger)
            parts.append(found.packed(self._hiding, self.ledger).payload)
        return b"".join(parts)


def real(bits: int) -> tuple[Callable[[], KeyedRowSums], Callable[[], BlindRowSums]]:
    """Return what makes the holder's side, and any other's, each with a ledger of its own."""
    return lambda: KeyedRowSums(bits, Ledger()), lambda: BlindRowSums(Ledger())
