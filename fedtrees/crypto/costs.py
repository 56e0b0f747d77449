"""Costs of cryptography: operations, CPU seconds, ciphertexts and bytes.

`OperationCounter` counts what a party computes. The remaining functions compute the sizes of
encrypted messages without encryption, so that the ideal functionality counts the same traffic as
real cryptography.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

from fedtrees.core.errors import UsageError
from fedtrees.crypto.packing import Slots

Operation = Literal[
    "obfuscators", "encrypted", "added", "multiplied", "decrypted", "masks expanded", "shares"
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class OperationCounter:
    """Counters of one party in one run. Ledgers can be added.

    Attributes
    ----------
    done : Counter
        Number of operations by name, see `OPERATIONS`: obfuscators created, ciphertexts created,
        added (one multiplication modulo n^2), multiplied by a plain number (one power) or
        decrypted, masks expanded from a seed, and Shamir shares dealt.
    cpu : Counter
        CPU seconds by operation, those of worker processes included.
    ciphertexts, nbytes : Counter
        Number of ciphertexts and bytes that were sent, by message type.
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.ciphertexts: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()

    def enter(self, operation: Operation, count: int, seconds: float = 0.0) -> None:
        """Add operations and their CPU seconds."""
        self.done[operation] += count
        # a Counter of floats, although typeshed only has counters of integers
        self.cpu[operation] += seconds  # type: ignore[assignment]

    def sent(self, message: str, ciphertexts: int, nbytes: int) -> None:
        """Add ciphertexts and bytes that were sent in a message of this type."""
        self.ciphertexts[message] += ciphertexts
        self.nbytes[message] += nbytes

    @contextmanager
    def timed(self, operation: Operation, count: int) -> Iterator[None]:
        """Add operations with the CPU seconds that this process spends on them."""
        started = time.process_time()
        yield
        self.enter(operation, count, time.process_time() - started)

    def counts(self) -> dict[str, dict[str, float]]:
        """Return all counters as plain dictionaries, for example to send them."""
        return {name: dict(counter) for name, counter in vars(self).items()}

    @classmethod
    def of(cls, counts_by_party: Mapping[str, Mapping[str, float]]) -> OperationCounter:
        """Return a ledger with the given counters."""
        ledger = cls()
        for name, counter in vars(ledger).items():
            counter.update(counts_by_party[name])
        return ledger

    def __add__(self, other: OperationCounter) -> OperationCounter:
        both = OperationCounter()
        for name, counter in vars(both).items():
            counter.update(getattr(self, name))
            counter.update(getattr(other, name))
        return both

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperationCounter) and all(
            # CPU seconds differ between equal runs.
            counter == getattr(other, name)
            for name, counter in vars(self).items()
            if name != "cpu"
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        parts = [f"{self.done[name]:,} {name}" for name in OPERATIONS if self.done[name]]
        return f"<Ledger: {', '.join(parts)}; {self.nbytes.total():,} bytes sent>"


#: Counters of a ledger as plain dictionaries.
CostCounts = Mapping[str, Mapping[str, float]]


def sum_costs(counts: Iterable[CostCounts]) -> dict[str, float]:
    """Return the sum of the ledgers of all parties, as numbers by name."""
    ledger = sum(map(OperationCounter.of, counts), OperationCounter())
    names = {name: name.replace(" ", "_") for name in ledger.done}
    return {
        "ciphertexts": ledger.ciphertexts.total(),
        **{f"ciphertexts:{kind}": n for kind, n in ledger.ciphertexts.items()},
        **{names[name]: n for name, n in ledger.done.items()},
        **{f"cpu_seconds:{names[name]}": ledger.cpu[name] for name in ledger.done},
    }


def sum_costs_by_party(counts_by_party: Mapping[str, CostCounts]) -> dict[str, float]:
    """Return the sum of the ledgers, and the operations of each party, as numbers by name."""
    ledgers = {party: OperationCounter.of(counters) for party, counters in counts_by_party.items()}
    return sum_costs(counts_by_party.values()) | {
        f"{name.replace(' ', '_')}:{party}": n
        for party, ledger in ledgers.items()
        for name, n in ledger.done.items()
    }


# A modulus of 2048 bits has the strength of a symmetric key of 112 bits, 3072 bits that of 128 bits
# (NIST SP 800-57, part 1, table 2). A modulus of 1024 bits has 80 bits, which a wealthy adversary
# can break. It is available for comparison with published systems.
KEY_BITS = (1024, 2048, 3072)
DEFAULT_BITS = 2048
MARK_BYTES = 16  # mark before ciphertexts: digest of the key and of the layout


def check_key_bits(name: str, bits: int) -> None:
    """Raise `UsageError` unless the length of a key is one of `KEY_BITS`."""
    if bits not in KEY_BITS:
        lengths = ", ".join(map(str, KEY_BITS))
        raise UsageError(f"{name}={bits!r}: a Paillier key has one of {lengths}")


def public_key_bytes(bits: int, djn: bool) -> int:
    """Return the bytes of a public key: n, and with `djn` the base of short obfuscators."""
    return bits // 8 + (ciphertext_bytes(bits) if djn else 0)


class Traffic(NamedTuple):
    """Number of ciphertexts and of bytes of one message."""

    ciphertexts: int
    nbytes: int


def ciphertext_bytes(bits: int) -> int:
    """Return the bytes of a ciphertext under a key of `bits` bits."""
    return -(-2 * bits // 8)


def row_traffic(count: int, bits: int) -> Traffic:
    """Return the traffic of `EncryptedRows` with `count` rows."""
    return Traffic(count, MARK_BYTES + count * ciphertext_bytes(bits))


def array_traffic(size: int, slots: Slots, bits: int) -> Traffic:
    """Return the traffic of an `EncryptedArray`. A sum has the same size as its summands.

    Parameters
    ----------
    size : int
        Number of elements.
    slots : Slots
        Layout of the elements in plaintexts.
    bits : int
        Length of the key.
    """
    return row_traffic(-(-size // slots.per_plaintext(bits)), bits)


def histogram_traffic(
    counts: Sequence[int], features: int, bins: int, statistics: int, slots: Slots, bits: int
) -> Traffic:
    """Return the traffic of a `PackedHistogram`.

    Parameters
    ----------
    counts : sequence of int
        Number of rows of each node.
    features, bins, statistics : int
        Number of features, of bins per feature, and of statistics per bin.
    slots : Slots
        Layout of the sums in plaintexts.
    bits : int
        Length of the key.
    """
    # A node with fewer rows than bins has that many nonempty bins at most. The flags mark them.
    sent = features * sum(min(count, bins) for count in counts)
    # All statistics of a bin are in the same plaintext.
    sealed = row_traffic(-(-sent // (slots.per_plaintext(bits) // statistics)), bits)
    flags = -(-len(counts) * features * bins // 8)
    return Traffic(sealed.ciphertexts, sealed.nbytes + flags)
