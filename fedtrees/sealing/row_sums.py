"""Sums over bins of rows that their owner sealed: who can do what, and the same without work.

One party has the key and encrypts statistics of its rows. Others, who have the bins, add what they
cannot read and send sums back, which the first one opens (SecureBoost: Cheng et al. 2021).
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
    """What both sides know of sums before they are made."""

    counts: NDArray[np.int64]  # shape (k,): rows of each node
    n_bins: NDArray[np.integer[Any]]  # shape (c,): bins of each column
    statistics: int  # numbers in a row
    slots: Slots

    @property
    def shape(self) -> tuple[int, int, int]:
        """Nodes, bins of all columns, statistics."""
        return len(self.counts), int(self.n_bins.sum()), self.statistics

    def groups(self) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
        """Yield a number of bins, the columns that have so many, and where their bins stand."""
        starts = np.cumsum(self.n_bins) - self.n_bins
        for bins in sorted(set(self.n_bins.tolist())):
            columns = np.flatnonzero(self.n_bins == bins)
            yield bins, columns, (starts[columns, None] + np.arange(bins)).ravel()

    def traffic(self, bits: int) -> list[sizes.Traffic]:
        """Return what every group takes under a key of so many bits."""
        counts = self.counts.tolist()
        return [
            sizes.histogram(counts, len(columns), bins, self.statistics, self.slots, bits)
            for bins, columns, _ in self.groups()
        ]


#: From nothing to the bins of rows, int, shape (m, c), -1 for none, and the place of the node that
#: a row is in, int, shape (m,), -1 for none.
Binned = Callable[[], tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
#: From statistics of rows, int64, shape (m, s), to their sums, int64, shape `Sums.shape`.
Adding = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class RowSums(Protocol):
    """The side of the holder of the key, which encrypts rows and opens sums."""

    ledger: Ledger

    def public_key(self) -> bytes:
        """Return what the holder tells everybody."""

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Encrypt rows, shape (m, s), all statistics of a row in one ciphertext."""

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Decrypt a party's sums, int64, shape `Sums.shape`."""


class BlindSums(Protocol):
    """The side of a party that adds what it cannot read."""

    ledger: Ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key."""

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add rows over bins."""


class IdealRowSums(Ideal):
    """The ideal functionality of both sides; additions are not counted."""

    def encrypted(self, rows: NDArray[np.int64], slots: Slots) -> bytes:
        """Keep the rows; refuse what the slots would refuse."""
        slots.check(rows)
        if rows.shape[1] > slots.per_plaintext(self._bits):
            raise PlaintextOverflowError(
                f"{rows.shape[1]} slots of {slots.width} bits do not fit one plaintext of "
                f"{self._bits} bits; use a longer key, or fewer binary places"
            )
        self.ledger.enter("obfuscators", len(rows))
        self.ledger.enter("encrypted", len(rows))
        self._inside[""] = rows  # no party is called so
        return b""

    def summed(self, name: str, rows: bytes, sums: Sums, binned: Binned, adding: Adding) -> bytes:
        """Add in the open, and keep the sums for the holder of the key."""
        if sums.counts.max(initial=0) > sums.slots.terms:
            raise PlaintextOverflowError(
                f"a node has more rows than the {sums.slots.terms} that its slots have room for"
            )
        self._inside[name] = adding(self._inside[""])
        self.ledger.enter("obfuscators", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return b""

    def opened(self, name: str, payload: bytes, sums: Sums) -> NDArray[np.int64]:
        """Return the sums."""
        self.ledger.enter("decrypted", sum(t.ciphertexts for t in sums.traffic(self._bits)))
        return self._inside.pop(name)


def key_bytes(bits: int) -> int:
    """Return the bytes of the public key that its holder tells."""
    return sizes.public_key_bytes(bits, djn=False)
