"""Sums of encrypted statistics of rows over histogram bins (SecureBoost: Cheng et al. 2021).

One party has the key and encrypts statistics of its rows, for example gradients. Parties that have
the bins add the ciphertexts, which they cannot decrypt, and return the sums to the key owner.
`BinSumKeyOwner` and `BinSumEvaluator` are the two sides. `IdealBinSums` is the ideal functionality
of both.

The key owner encrypts g and h of each row in one plaintext. The other party returns the sums of
the smaller child of each split, with many bins per ciphertext. The key owner decrypts them, and
computes the sibling by subtraction.

A node with r rows has at most r occupied bins per feature. The party sends min(r, number of bins)
bins per feature, including empty ones if fewer are occupied. Both parties therefore know the size
of a message in advance. The key owner learns which bins are empty from the bins that are sent. It
would also learn this from the decrypted sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto import costs
from fedtrees.crypto.ciphertexts import check_mark, describe_layout, read_marked, write_marked
from fedtrees.crypto.costs import OperationCounter
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
    from gmpy2 import mpz

    from fedtrees.crypto.keys import KeyPair, PublicKey
    from fedtrees.crypto.obfuscators import Backend, Obfuscators


@dataclass(frozen=True)
class EncryptedRows:
    """Encrypted statistics of rows, one ciphertext per row.

    Attributes
    ----------
    public : PublicKey
        Key of the ciphertexts.
    slots : Slots
        Layout of the statistics, with room for one summand per row.
    statistics : int
        Number of statistics: 2 for (g, h), K for class counts.
    ciphertexts : tuple of mpz
        In the order of the rows.
    """

    public: PublicKey
    slots: Slots
    statistics: int
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        rows: NDArray[np.int64],
        slots: Slots,
        obfuscators: Obfuscators,
    ) -> EncryptedRows:
        """Encrypt the statistics of rows.

        Parameters
        ----------
        rows : int64 array, shape (n, statistics)
        slots : Slots
            Layout of the statistics in plaintexts.
        obfuscators : Obfuscators
            One is used for each row.

        Raises
        ------
        PlaintextOverflowError
            If a number is beyond the limit of the slots, or a row does not fit a plaintext.
        """
        if rows.shape[1] > slots.per_plaintext(obfuscators.public.bits):
            raise PlaintextOverflowError(
                f"{rows.shape[1]} slots of {slots.width} bits do not fit one plaintext of "
                f"{obfuscators.public!r}; use a longer key, or fewer binary places"
            )
        sealed = obfuscators.encrypt(slots.join(rows))
        return cls(obfuscators.public, slots, rows.shape[1], tuple(sealed))

    @property
    def payload(self) -> bytes:
        """The ciphertexts in their transmitted encoding, with a mark of the layout."""
        shape = len(self.ciphertexts), self.statistics
        read_as = describe_layout("rows", self.slots, shape)
        return write_marked(self.ciphertexts, self.public, read_as)

    @classmethod
    def from_payload(
        cls, payload: bytes, public: PublicKey, slots: Slots, shape: tuple[int, int]
    ) -> EncryptedRows:
        """Read statistics in their transmitted encoding.

        Parameters
        ----------
        payload : bytes
        public, slots
            Expected key and layout.
        shape : (int, int)
            Expected numbers of rows and of statistics.

        Raises
        ------
        MalformedError
            If the length is wrong, or a number is not a ciphertext of this key.
        WrongKeyError
            If the mark is different: another key, shape or layout.
        """
        sealed = read_marked(payload, shape[0], public, describe_layout("rows", slots, shape))
        return cls(public, slots, shape[1], tuple(sealed))

    def sums(
        self,
        bins: NDArray[np.integer],
        nodes: NDArray[np.integer],
        shape: tuple[int, int],
        ledger: OperationCounter | None = None,
    ) -> EncryptedHistogram:
        """Add the rows over the bins of every feature, in one pass.

        Parameters
        ----------
        bins : int array, shape (n, n_features)
            Bin of each value. -1 for missing values, which are not added.
        nodes : int array, shape (n,)
            Node of each row. -1 for rows that are not added.
        shape : (int, int)
            Numbers of nodes and of bins.
        ledger : OperationCounter, optional
            Counts the operations.

        Raises
        ------
        MalformedError
            If the arrays do not fit the rows or the shape.
        PlaintextOverflowError
            If a node has more rows than the slots have room for.
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
        # The limit counts rows, because a row adds at most one number to each cell.
        chosen = np.flatnonzero(nodes >= 0)
        if np.bincount(nodes[chosen], minlength=1).max(initial=0) > self.slots.terms:
            raise PlaintextOverflowError(
                f"a node has more rows than the {self.slots.terms} that its slots have room for: "
                "make slots for more terms"
            )
        # One flat index per node, feature and bin.
        first_bin = np.arange(features) * n_bins
        cells = nodes[chosen, None].astype(np.int64) * features * n_bins + first_bin + bins[chosen]
        cells[bins[chosen] < 0] = -1
        occupied_cells = cells[cells >= 0]
        # 1 is a ciphertext of 0, without an obfuscator.
        products: list[mpz] = [1] * (n_nodes * features * n_bins)
        ledger = ledger or OperationCounter()
        # The first ciphertext of a cell is multiplied by 1, which is not counted.
        with ledger.timed("added", len(occupied_cells) - len(np.unique(occupied_cells))):
            for row, places in zip(chosen.tolist(), cells.tolist(), strict=True):
                self.public.add_to_cells(products, self.ciphertexts[row], places)
        full = (n_nodes, features, n_bins, self.statistics)
        counts = np.bincount(nodes[chosen], minlength=n_nodes)
        return EncryptedHistogram(
            self.public, self.slots, full, _to_send(occupied_cells, counts, full), tuple(products)
        )


@dataclass(frozen=True, eq=False)
class EncryptedHistogram:
    """Encrypted sums at the party that added them. They are sent only after `pack`.

    Attributes
    ----------
    public : PublicKey
        Key of the ciphertexts.
    slots : Slots
        Layout of the statistics.
    shape : tuple of int
        Numbers of nodes, features, bins and statistics.
    sent : bool array, shape (n_nodes, n_features, n_bins)
        Bins that are sent: for each node and feature as many as can be occupied.
    cells : tuple of mpz
        One ciphertext for all statistics of a bin.
    """

    public: PublicKey
    slots: Slots
    shape: tuple[int, int, int, int]
    sent: NDArray[np.bool_]
    cells: tuple[mpz, ...] = field(repr=False)

    def pack(self, obfuscators: Obfuscators) -> PackedHistogram:
        """Pack as many bins into each ciphertext as fit, by Horner's rule.

        ``E(v_m 2^(w m) + ... + v_0)`` is ``(E(v_m)^(2^w) E(v_(m-1)))^(2^w) ...``. This takes one
        power per bin, which costs a seventh of a decryption.

        Each ciphertext gets a fresh obfuscator. The key holder knows the obfuscators of the rows,
        and could otherwise recognise which rows were added.
        """
        per = bins_per_plaintext(self.slots, self.shape[3], self.public)
        shift = 1 << (self.slots.width * self.shape[3])
        cells = [self.cells[i] for i in np.flatnonzero(self.sent)]
        groups = [cells[i : i + per] for i in range(0, len(cells), per)]
        packed_cells = []
        with obfuscators.ledger.timed("multiplied", len(cells) - len(groups)):
            for group in groups:
                total = group[-1]
                # From the last bin of the group to the first. A product of 1 needs no power.
                for cell in group[-2::-1]:
                    if total != 1:
                        total = self.public.multiply(total, shift)
                    (total,) = self.public.add([total], [cell])
                packed_cells.append(total)
        sealed = obfuscators.rerandomise(packed_cells)
        return PackedHistogram(self.public, self.slots, self.shape, self.sent, tuple(sealed))


@dataclass(frozen=True, eq=False)
class PackedHistogram:
    """A packed histogram that is sent to the key holder.

    The attributes are those of `EncryptedHistogram`, but each ciphertext contains several bins.
    """

    public: PublicKey
    slots: Slots
    shape: tuple[int, int, int, int]
    sent: NDArray[np.bool_]
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    def decrypt(self, keys: KeyPair, ledger: OperationCounter | None = None) -> NDArray[np.int64]:
        """Decrypt the histogram, int64, shape `shape`.

        It raises `PlaintextOverflowError` if a plaintext does not fit the slots.
        """
        statistics = self.shape[3]
        per = bins_per_plaintext(self.slots, statistics, self.public) * statistics
        plain = keys.decrypt(self.ciphertexts, ledger)
        sums = self.slots.split(plain, per).reshape(-1, statistics)
        histogram = np.zeros(self.shape, dtype=np.int64)
        # The last plaintext can contain unused slots.
        histogram[self.sent] = sums[: self.sent.sum()]
        return histogram

    @property
    def payload(self) -> bytes:
        """The transmitted encoding: a mark of the layout, a bit per bin, and the ciphertexts."""
        read_as = describe_layout("histogram", self.slots, self.shape)
        flags = np.packbits(self.sent).tobytes()
        return write_marked(self.ciphertexts, self.public, read_as, flags)

    @classmethod
    def from_payload(
        cls, payload: bytes, public: PublicKey, slots: Slots, shape: tuple[int, int, int, int]
    ) -> PackedHistogram:
        """Read a histogram in its transmitted encoding.

        Parameters
        ----------
        payload : bytes
        public, slots, shape
            Expected key, layout and shape.

        Raises
        ------
        MalformedError
            If the length is wrong, or a number is not a ciphertext of this key.
        WrongKeyError
            If the mark is different: another key, shape or layout.
        """
        read_as = describe_layout("histogram", slots, shape)
        payload = check_mark(payload, public, read_as)
        bins = math.prod(shape[:3])
        start = -(-bins // 8)
        bits = np.unpackbits(np.frombuffer(payload[:start], dtype=np.uint8))
        # Unused bits of the last byte must be 0, so that each histogram has one encoding.
        if len(bits) < bins or bits[bins:].any():
            raise MalformedError(f"{len(payload)} bytes of a histogram; {bins} bits come first")
        sent = bits[:bins].astype(bool).reshape(shape[:3])
        count = -(-int(sent.sum()) // bins_per_plaintext(slots, shape[3], public))
        sealed = public.read_ciphertexts(payload[start:], count)
        return cls(public, slots, shape, sent, tuple(sealed))


def bins_per_plaintext(slots: Slots, statistics: int, public: PublicKey) -> int:
    """Return how many bins with `statistics` statistics fit into one plaintext."""
    # The statistics of one bin are not divided between two plaintexts.
    return slots.per_plaintext(public.bits) // statistics


def _to_send(
    cells: NDArray[np.int64], counts: NDArray[np.int64], shape: tuple[int, int, int, int]
) -> NDArray[np.bool_]:
    """Return the bins to send: occupied ones, and empty ones up to the rows of the node."""
    occupied = np.zeros(math.prod(shape[:3]), dtype=bool)
    occupied[cells] = True
    occupied = occupied.reshape(shape[:3])
    order = np.argsort(~occupied, axis=2, kind="stable")
    # Position of each bin if the occupied bins of a feature are ordered first.
    rank = np.argsort(order, axis=2, kind="stable")
    sent: NDArray[np.bool_] = rank < np.minimum(counts, shape[2])[:, None, None]
    return sent


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
