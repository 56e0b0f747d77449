"""Sums of encrypted statistics of rows over bins, as byte strings (`fedtrees.sealing.row_sums`)."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.agreement import SYSTEM, Randomness
from fedtrees.crypto.backends import BACKENDS, Backend, backend
from fedtrees.crypto.histograms import EncryptedRows, PackedHistogram
from fedtrees.crypto.keys import KeyPair
from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.row_sums import Adding, Binned, Sums
from fedtrees.sealing.secret import Unprintable
from fedtrees.sealing.slots import Slots


class KeyedRowSums(Unprintable):
    """Side of the key holder: it encrypts rows and decrypts sums.

    Without `keys` it generates a key of `bits` bits. By default it computes with gmpy2.
    """

    def __init__(
        self,
        bits: int,
        ledger: Ledger,
        keys: KeyPair | None = None,
        library: Backend | None = None,
    ) -> None:
        self.ledger, library = ledger, library or backend()
        self._keys = keys or library.generate(bits, base=False)
        self._public = self._keys.public
        self._own = library.of_owner(self._keys, ledger)

    def public_key(self) -> bytes:
        """Return n. The other party does not use short obfuscators."""
        return self._public.payload(obfuscators=False)

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt rows, int64, shape (m, s), all statistics of a row in one ciphertext."""
        return EncryptedRows.of(rows, slots, self._own, self.ledger).payload

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Decrypt the sums of a party, int64, shape `Sums.shape`.

        It raises `MalformedError` if the length is wrong, or a number is not a ciphertext of this
        key.
        """
        # The groups of columns follow one another, and their sizes are public.
        ends = np.cumsum([0, *(t.nbytes for t in sums.traffic(self._public.bits))]).tolist()
        if len(payload) != ends[-1]:
            raise MalformedError(f"{len(payload)} bytes of sums; {ends[-1]} were to come")
        out = np.zeros(sums.shape, dtype=np.int64)
        for (a, b), (bins, columns, places) in zip(pairwise(ends), sums.groups(), strict=True):
            shape = (len(sums.counts), len(columns), bins, sums.statistics)
            packed = PackedHistogram.from_payload(payload[a:b], self._public, sums.slots, shape)
            group_sums = packed.opened(self._keys, self.ledger)
            out[:, places] = group_sums.reshape(len(sums.counts), -1, sums.statistics)
        return out


class BlindRowSums(Unprintable):
    """Side of a party that adds ciphertexts with the public key, and cannot decrypt them.

    It multiplies every ciphertext that it sends by ``r^n``. The key holder knows the obfuscators of
    the rows. Short powers of one base would not change the class of their product modulo the powers
    of this base. The Jacobi symbol of the product would then reveal which rows may have been added.
    """

    def __init__(
        self, ledger: Ledger, randomness: Randomness = SYSTEM, library: Backend | None = None
    ) -> None:
        self.ledger, self._randomness = ledger, randomness
        self._library = library or backend()
        self._read: tuple[bytes, EncryptedRows] | None = None

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)
        self._hiding = self._library.plain(self._public, self.ledger, self._randomness)

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add rows over bins: multiply ciphertexts, pack the products and rerandomise them."""
        codes, nodes = binned()
        # The rows are decoded once, and used for all levels of a tree.
        if self._read is None or self._read[0] is not rows:
            shape = (len(nodes), sums.statistics)
            self._read = rows, EncryptedRows.from_payload(rows, self._public, sums.slots, shape)
        parts = []
        for bins, columns, _ in sums.groups():
            shape = (len(sums.counts), bins)
            histogram = self._read[1].sums(codes[:, columns], nodes, shape, self.ledger)
            parts.append(histogram.packed(self._hiding, self.ledger).payload)
        return b"".join(parts)


def real(
    bits: int, library: str = BACKENDS[0]
) -> tuple[Callable[[], KeyedRowSums], Callable[[], BlindRowSums]]:
    """Return factories of both sides, each with a separate ledger. `library` names the backend."""
    chosen_backend = backend(library)
    return (
        lambda: KeyedRowSums(bits, Ledger(), library=chosen_backend),
        lambda: BlindRowSums(Ledger(), library=chosen_backend),
    )
