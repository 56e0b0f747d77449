"""Histograms of encrypted gradients (SecureBoost: Cheng et al. 2021), packed on the way back.

The owner of the key encrypts g and h of each row in one plaintext. Another party, who has the
features, adds them up over its bins without reading them and sends the sums of the smaller child of
each split back, many bins to a ciphertext. The owner decrypts, and subtracts to get the sibling.

A node of r rows has at most r occupied bins to a feature: so many cross, empty ones among them
where fewer are occupied. The size of a message is then known to both parties before, and which bins
cross tells the owner of the key which are empty, as the opened sums do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from gmpy2 import mpz, powmod
from numpy.typing import NDArray

from fedtrees.crypto import marked, paillier
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.sealing.errors import MalformedError, PlaintextOverflowError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.slots import Slots


@dataclass(frozen=True)
class EncryptedRows:
    """Statistics of rows under a key, one ciphertext to a row."""

    public: PublicKey
    slots: Slots  # room for one addend a row
    statistics: int  # numbers in a row: 2 for (g, h), K for class counts
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        rows: NDArray[np.int64],
        slots: Slots,
        obfuscators: Obfuscators,
        ledger: Ledger | None = None,
    ) -> EncryptedRows:
        """Encrypt the statistics of rows, int64, shape (n, statistics).

        Raises `PlaintextOverflowError` if a number is beyond the limit of the slots, or a row has
        no room in a plaintext.
        """
        if rows.shape[1] > slots.per_plaintext(obfuscators.public.bits):
            raise PlaintextOverflowError(
                f"{rows.shape[1]} slots of {slots.width} bits do not fit one plaintext of "
                f"{obfuscators.public!r}; use a longer key, or fewer binary places"
            )
        sealed = paillier.encrypt(slots.join(rows), obfuscators, ledger)
        return cls(obfuscators.public, slots, rows.shape[1], tuple(sealed))

    @property
    def payload(self) -> bytes:
        """The ciphertexts as they are sent, marked as what they are."""
        shape = len(self.ciphertexts), self.statistics
        read_as = marked.reading("rows", self.slots, shape)
        return marked.to_bytes(self.ciphertexts, self.public, read_as)

    @classmethod
    def from_payload(
        cls, payload: bytes, public: PublicKey, slots: Slots, shape: tuple[int, int]
    ) -> EncryptedRows:
        """Read statistics that were sent, of a shape (n, statistics).

        Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key.
        Raises `WrongKeyError` if they were sent under another key, in another shape or in other
        slots.
        """
        sealed = marked.from_bytes(payload, shape[0], public, marked.reading("rows", slots, shape))
        return cls(public, slots, shape[1], tuple(sealed))

    def sums(
        self,
        bins: NDArray[np.integer],
        nodes: NDArray[np.integer],
        shape: tuple[int, int],
        ledger: Ledger | None = None,
    ) -> EncryptedHistogram:
        """Add rows up over the bins of every feature, in one pass.

        Raises `MalformedError` if the arrays do not fit the rows or the shape. Raises
        `PlaintextOverflowError` if more rows are summed than the slots have room for.

        `bins`: int array, shape (n, n_features). -1 for rows that have no value there, and are not
        summed.
        `nodes`: int array, shape (n,). The node that a row is in; -1 for rows that are not summed.
        `shape`: Nodes and bins.
        """
        n, features = bins.shape
        n_nodes, n_bins = shape
        if not n == len(nodes) == len(self.ciphertexts):
            raise MalformedError(
                f"{len(self.ciphertexts)} rows are encrypted; bins are of {n} and nodes of "
                f"{len(nodes)}"
            )
        if n and not (-1 <= nodes.min() <= nodes.max() < n_nodes):
            raise MalformedError(f"nodes must be below {n_nodes}, or -1 for rows left out")
        if bins.size and not (-1 <= bins.min() <= bins.max() < n_bins):
            raise MalformedError(f"bins must be from 0 to {n_bins - 1}, or -1 for no value")
        chosen = np.flatnonzero(nodes >= 0)
        if np.bincount(nodes[chosen], minlength=1).max(initial=0) > self.slots.terms:
            raise PlaintextOverflowError(
                f"a node has more rows than the {self.slots.terms} that its slots have room for: "
                "make slots for more terms"
            )
        place = np.arange(features) * n_bins
        cells = nodes[chosen, None].astype(np.int64) * features * n_bins + place + bins[chosen]
        cells[bins[chosen] < 0] = -1
        valued = cells[cells >= 0]
        found = [mpz(1)] * (n_nodes * features * n_bins)  # 1 encrypts 0
        square, ledger = self.public.square, ledger or Ledger()
        with ledger.timed("added", len(valued) - len(np.unique(valued))):
            for row, places in zip(chosen.tolist(), cells.tolist(), strict=True):
                c = self.ciphertexts[row]
                for cell in places:
                    if cell >= 0:
                        found[cell] = found[cell] * c % square
        full = (n_nodes, features, n_bins, self.statistics)
        counts = np.bincount(nodes[chosen], minlength=n_nodes)
        return EncryptedHistogram(
            self.public, self.slots, full, _to_send(valued, counts, full), tuple(found)
        )


@dataclass(frozen=True, eq=False)
class EncryptedHistogram:
    """Sums that their owner has not read yet. They are not sent as they are: see `packed`."""

    public: PublicKey
    slots: Slots
    shape: tuple[int, int, int, int]  # nodes, features, bins, statistics
    # shape (nodes, n_features, n_bins): bins that cross; of each node and feature as many as it can
    # have occupied
    sent: NDArray[np.bool_]
    cells: tuple[mpz, ...] = field(repr=False)  # one ciphertext for all statistics of a bin

    def packed(self, obfuscators: Obfuscators, ledger: Ledger | None = None) -> PackedHistogram:
        """Put as many bins into one ciphertext as it has room for, by Horner's rule.

        ``E(v_m 2^(w m) + ... + v_0)`` is ``(E(v_m)^(2^w) E(v_(m-1)))^(2^w) ...``: one power for
        each bin, a seventh of what it costs to decrypt a ciphertext.

        `obfuscators`: Each ciphertext gets a fresh one: the owner of the key, who made those of the
        rows, would otherwise recognise which rows were added.
        """
        per, ledger = bins_per_plaintext(self.slots, self.shape[3], self.public), ledger or Ledger()
        square = self.public.square
        shift = mpz(1) << (self.slots.width * self.shape[3])
        cells = [self.cells[i] for i in np.flatnonzero(self.sent)]
        groups = [cells[i : i + per] for i in range(0, len(cells), per)]
        found = []
        with ledger.timed("multiplied", len(cells) - len(groups)):
            for group in groups:
                total = group[-1]
                for cell in group[-2::-1]:
                    if total != 1:
                        total = powmod(total, shift, square)
                    total = total * cell % square
                found.append(total)
        sealed = paillier.rerandomise(found, obfuscators, ledger)
        return PackedHistogram(self.public, self.slots, self.shape, self.sent, tuple(sealed))


@dataclass(frozen=True, eq=False)
class PackedHistogram:
    """A histogram on its way back."""

    public: PublicKey
    slots: Slots
    shape: tuple[int, int, int, int]  # nodes, features, bins, statistics
    # shape (nodes, n_features, n_bins): bins that are in it; all others are empty
    sent: NDArray[np.bool_]
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    def opened(self, keys: KeyPair, ledger: Ledger | None = None) -> NDArray[np.int64]:
        """Decrypt, int64, shape `shape`.

        Raises `PlaintextOverflowError` if what is inside does not fit the slots.
        """
        statistics = self.shape[3]
        per = bins_per_plaintext(self.slots, statistics, self.public) * statistics
        plain = paillier.decrypt(self.ciphertexts, keys, ledger)
        sums = self.slots.split(plain, per).reshape(-1, statistics)
        found = np.zeros(self.shape, dtype=np.int64)
        found[self.sent] = sums[: self.sent.sum()]
        return found

    @property
    def payload(self) -> bytes:
        """What is sent: a mark of what it is, a bit for each bin, then the ciphertexts."""
        read_as = marked.reading("histogram", self.slots, self.shape)
        flags = np.packbits(self.sent).tobytes()
        return marked.to_bytes(self.ciphertexts, self.public, read_as, flags)

    @classmethod
    def from_payload(
        cls, payload: bytes, public: PublicKey, slots: Slots, shape: tuple[int, int, int, int]
    ) -> PackedHistogram:
        """Read a histogram that was sent.

        Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key.
        Raises `WrongKeyError` if it was sent under another key, in another shape or in other slots.
        """
        read_as = marked.reading("histogram", slots, shape)
        payload = marked.unmarked(payload, public, read_as)
        bins = math.prod(shape[:3])
        start = -(-bins // 8)
        bits = np.unpackbits(np.frombuffer(payload[:start], dtype=np.uint8))
        if len(bits) < bins or bits[bins:].any():
            raise MalformedError(f"{len(payload)} bytes of a histogram; {bins} bits come first")
        sent = bits[:bins].astype(bool).reshape(shape[:3])
        count = -(-int(sent.sum()) // bins_per_plaintext(slots, shape[3], public))
        sealed = paillier.from_bytes(payload[start:], count, public)
        return cls(public, slots, shape, sent, tuple(sealed))


def bins_per_plaintext(slots: Slots, statistics: int, public: PublicKey) -> int:
    """Return how many bins of so many statistics one plaintext holds."""
    return slots.per_plaintext(public.bits) // statistics


def _to_send(
    cells: NDArray[np.int64], counts: NDArray[np.int64], shape: tuple[int, int, int, int]
) -> NDArray[np.bool_]:
    """Return the bins that cross: the occupied ones, then empty ones up to the rows of the node."""
    occupied = np.zeros(math.prod(shape[:3]), dtype=bool)
    occupied[cells] = True
    occupied = occupied.reshape(shape[:3])
    order = np.argsort(~occupied, axis=2, kind="stable")
    rank = np.argsort(order, axis=2, kind="stable")
    found: NDArray[np.bool_] = rank < np.minimum(counts, shape[2])[:, None, None]
    return found


def with_siblings(
    parents: NDArray[np.int64], smaller: NDArray[np.int64], left: Sequence[bool]
) -> NDArray[np.int64]:
    """Return both children of every parent, by subtraction of opened sums.

    `parents, smaller`: int64 array, shape (nodes, ...). Sums of nodes, and of one child of each.
    `left`: Whether that is the left child.

    Returns: int64 array, shape (2 nodes, ...): left and right child of each parent in turn..
    """
    other = parents - smaller
    is_left = np.asarray(left, dtype=bool).reshape(-1, *[1] * (parents.ndim - 1))
    pairs = np.stack([np.where(is_left, smaller, other), np.where(is_left, other, smaller)], axis=1)
    return pairs.reshape(-1, *parents.shape[1:])
