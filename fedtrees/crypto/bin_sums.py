"""Sums of encrypted statistics of rows over histogram bins (SecureBoost: Cheng et al. 2021).

One party has the key and encrypts statistics of its rows, for example gradients. Parties that have
the bins add the ciphertexts, which they cannot decrypt, and return the sums to the key owner.
`BinSumKeyOwner` and `BinSumEvaluator` are the two sides. `IdealBinSums` is the ideal functionality
of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import costs
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.histograms import EncryptedRows, PackedHistogram
from fedtrees.crypto.modes import IdealFunctionality, load_backend
from fedtrees.crypto.packing import Slots
from fedtrees.crypto.primitives import (
    SYSTEM,
    MalformedError,
    PlaintextOverflowError,
    Randomness,
    SecretHolder,
)

if TYPE_CHECKING:
    from fedtrees.crypto.keys import KeyPair
    from fedtrees.crypto.obfuscators import Backend


@dataclass(frozen=True, eq=False)
class BinLayout:
    """Public layout of the sums of one level.

    Attributes
    ----------
    counts : int array, shape (k,)
        Number of rows of each node.
    n_bins : int array, shape (c,)
        Number of bins of each column.
    statistics : int
        Number of statistics of a row.
    slots : Slots
        Layout of the sums in plaintexts.
    """

    counts: NDArray[np.int64]
    n_bins: NDArray[np.integer[Any]]
    statistics: int
    slots: Slots

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of nodes, of bins of all columns, and of statistics."""
        return len(self.counts), int(self.n_bins.sum()), self.statistics

    def groups(self) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield a number of bins, the columns with this number, and the positions of their bins."""
        starts = np.cumsum(self.n_bins) - self.n_bins
        # Columns with the same number of bins form one packed histogram.
        for bins in sorted(set(self.n_bins.tolist())):
            columns = np.flatnonzero(self.n_bins == bins)
            yield bins, columns, (starts[columns, None] + np.arange(bins)).ravel()

    def traffic(self, bits: int) -> list[costs.Traffic]:
        """Return the ciphertexts and bytes of every group under a key of `bits` bits."""
        counts = self.counts.tolist()
        return [
            costs.histogram_traffic(counts, len(columns), bins, self.statistics, self.slots, bits)
            for bins, columns, _ in self.groups()
        ]


#: Function that returns the bins of rows, int, shape (m, c), -1 for a missing value, and the index
#: of each row's node, int, shape (m,), -1 for rows in no node of the level.
ReadBins = Callable[[], tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
#: Function that maps statistics of rows, int64, shape (m, s), to their sums.
AddRows = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class BinSumKeyOwner(SecretHolder):
    """Side of the key holder: it encrypts rows and decrypts sums.

    Without `keys` it generates a key of `bits` bits. By default it computes with gmpy2.
    """

    def __init__(
        self,
        bits: int,
        ledger: OperationCounter,
        keys: KeyPair | None = None,
        library: Backend | None = None,
    ) -> None:
        self.ledger, library = ledger, library or load_backend()
        self._keys = keys or library.generate(bits, base=False)
        self._public = self._keys.public
        self._obfuscators = library.of_owner(self._keys, ledger)

    def public_key(self) -> bytes:
        """Return n. The other party does not use short obfuscators."""
        return self._public.payload(obfuscators=False)

    def encrypt(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt rows, int64, shape (m, s), all statistics of a row in one ciphertext."""
        return EncryptedRows.of(rows, slots, self._obfuscators).payload

    def decrypt(self, name: str, payload: bytes, sums: BinLayout) -> NDArray[np.int64]:
        """Decrypt the sums of a party, int64, shape `BinLayout.shape`.

        It raises `MalformedError` if the length is wrong, or a number is not a ciphertext of this
        key.
        """
        # The groups of columns follow one another, and their sizes are public.
        ends = np.cumsum([0, *(t.nbytes for t in sums.traffic(self._public.bits))]).tolist()
        if len(payload) != ends[-1]:
            raise MalformedError(f"{len(payload)} bytes of sums arrived; expected {ends[-1]}")
        out = np.zeros(sums.shape, dtype=np.int64)
        for (a, b), (bins, columns, places) in zip(pairwise(ends), sums.groups(), strict=True):
            shape = (len(sums.counts), len(columns), bins, sums.statistics)
            packed = PackedHistogram.from_payload(payload[a:b], self._public, sums.slots, shape)
            group_sums = packed.decrypt(self._keys, self.ledger)
            out[:, places] = group_sums.reshape(len(sums.counts), -1, sums.statistics)
        return out


class BinSumEvaluator(SecretHolder):
    """Side of a party that adds ciphertexts with the public key, and cannot decrypt them.

    It multiplies every ciphertext that it sends by ``r^n``. The key holder knows the obfuscators of
    the rows. Short powers of one base would not change the class of their product modulo the powers
    of this base. The Jacobi symbol of the product would then reveal which rows may have been added.
    """

    def __init__(
        self,
        ledger: OperationCounter,
        randomness: Randomness = SYSTEM,
        library: Backend | None = None,
    ) -> None:
        self.ledger, self._randomness = ledger, randomness
        self._library = library or load_backend()
        self._read: tuple[bytes, EncryptedRows] | None = None

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)
        self._hiding = self._library.plain(self._public, self.ledger, self._randomness)

    def sum_rows(
        self, name: str, rows: bytes, sums: BinLayout, read_bins: ReadBins, add_rows: AddRows
    ) -> bytes:
        """Add encrypted rows over bins: multiply ciphertexts, pack the products, rerandomise them.

        Parameters
        ----------
        name : str
            Name of the party. Only the ideal functionality uses it.
        rows : bytes
            Encrypted rows.
        sums : BinLayout
            Layout of the sums.
        read_bins : callable
            Returns bins and nodes of the rows. Only cryptography calls it.
        add_rows : callable
            Adds plain rows. Only the ideal functionality calls it.
        """
        codes, nodes = read_bins()
        # The rows are decoded once, and used for all levels of a tree.
        if self._read is None or self._read[0] is not rows:
            shape = (len(nodes), sums.statistics)
            self._read = rows, EncryptedRows.from_payload(rows, self._public, sums.slots, shape)
        parts = []
        for bins, columns, _ in sums.groups():
            shape = (len(sums.counts), bins)
            histogram = self._read[1].sums(codes[:, columns], nodes, shape, self.ledger)
            parts.append(histogram.pack(self._hiding).payload)
        return b"".join(parts)


class IdealBinSums(IdealFunctionality):
    """Ideal functionality of both sides. It does not count additions."""

    def encrypt(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Store the rows. Refuse numbers that the slots would refuse."""
        slots.check(rows)
        if rows.shape[1] > slots.per_plaintext(self._bits):
            raise PlaintextOverflowError(
                f"{rows.shape[1]} slots of {slots.width} bits do not fit one plaintext of "
                f"{self._bits} bits; use a longer key, or fewer binary places"
            )
        self.ledger.enter("obfuscators", len(rows))
        self.ledger.enter("encrypted", len(rows))
        self._inside[""] = rows  # no party has this name
        return b""

    def sum_rows(
        self, name: str, rows: bytes, sums: BinLayout, read_bins: ReadBins, add_rows: AddRows
    ) -> bytes:
        """Add the plain rows, and store the sums for the key holder."""
        if sums.counts.max(initial=0) > sums.slots.terms:
            raise PlaintextOverflowError(
                f"a node has more rows than the {sums.slots.terms} that its slots have room for"
            )
        self._inside[name] = add_rows(self._inside[""])
        self.ledger.enter("obfuscators", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return b""

    def decrypt(self, name: str, payload: bytes, sums: BinLayout) -> NDArray[np.int64]:
        """Return the stored sums of a party."""
        self.ledger.enter("decrypted", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return self._inside.pop(name)


#: Either side of the sums that has the private key, and either one that has not.
BinSumDecrypter = BinSumKeyOwner | IdealBinSums
BinSumAdder = BinSumEvaluator | IdealBinSums
