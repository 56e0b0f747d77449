"""Sums of encrypted statistics of rows over histogram bins: interfaces and ideal functionality.

One party has the key and encrypts statistics of its rows, for example gradients. Parties that have
the bins add the ciphertexts, which they cannot decrypt, and return the sums to the key holder
(SecureBoost: Cheng et al. 2021). `fedtrees.crypto.row_sums` implements the interfaces.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtrees.sealing import sizes
from fedtrees.sealing.errors import PlaintextOverflowError
from fedtrees.sealing.ideal import Ideal
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.slots import Slots


@dataclass(frozen=True, eq=False)
class Sums:
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

    def traffic(self, bits: int) -> list[sizes.Traffic]:
        """Return the ciphertexts and bytes of every group under a key of `bits` bits."""
        counts = self.counts.tolist()
        return [
            sizes.histogram(counts, len(columns), bins, self.statistics, self.slots, bits)
            for bins, columns, _ in self.groups()
        ]


#: Function that returns the bins of rows, int, shape (m, c), -1 for a missing value, and the index
#: of each row's node, int, shape (m,), -1 for rows in no node of the level.
Binned = Callable[[], tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
#: Function that maps statistics of rows, int64, shape (m, s), to their sums, shape `Sums.shape`.
Adding = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class RowSums(Protocol):
    """Side of the key holder: it encrypts rows and decrypts sums."""

    ledger: Ledger

    def public_key(self) -> bytes:
        """Return the public key in its transmitted encoding."""

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt rows, int64, shape (m, s), all statistics of a row in one ciphertext."""

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Decrypt the sums of a party.

        Parameters
        ----------
        name : str
            Name of the party.
        payload : bytes
            Encrypted sums.
        sums : Sums
            Layout of the sums.

        Returns
        -------
        totals : int64 array, shape `Sums.shape`
        """


class BlindSums(Protocol):
    """Side of a party that adds ciphertexts which it cannot decrypt."""

    ledger: Ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key of `bits` bits."""

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add encrypted rows over bins.

        Parameters
        ----------
        name : str
            Name of the party.
        rows : bytes
            Encrypted rows.
        sums : Sums
            Layout of the sums.
        binned : callable
            Returns bins and nodes of the rows. Only cryptography calls it.
        adding : callable
            Adds plain rows. Only the ideal functionality calls it.
        """


class IdealRowSums(Ideal):
    """Ideal functionality of both sides. It does not count additions."""

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
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

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add the plain rows, and store the sums for the key holder."""
        if sums.counts.max(initial=0) > sums.slots.terms:
            raise PlaintextOverflowError(
                f"a node has more rows than the {sums.slots.terms} that its slots have room for"
            )
        self._inside[name] = adding(self._inside[""])
        self.ledger.enter("obfuscators", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return b""

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Return the stored sums of a party."""
        self.ledger.enter("decrypted", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return self._inside.pop(name)


def key_bytes(bits: int) -> int:
    """Return the number of bytes of the public key."""
    return sizes.public_key_bytes(bits, djn=False)
