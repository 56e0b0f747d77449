"""Sizes of encrypted messages, computed without encryption.

The ideal functionality uses them to count the same traffic as real cryptography.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fedtrees.core.errors import UsageError
from fedtrees.sealing.slots import Slots

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


def rows(count: int, bits: int) -> Traffic:
    """Return the traffic of `EncryptedRows` with `count` rows."""
    return Traffic(count, MARK_BYTES + count * ciphertext_bytes(bits))


def array(size: int, slots: Slots, bits: int) -> Traffic:
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
    return rows(-(-size // slots.per_plaintext(bits)), bits)


def histogram(
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
    sealed = rows(-(-sent // (slots.per_plaintext(bits) // statistics)), bits)
    flags = -(-len(counts) * features * bins // 8)
    return Traffic(sealed.ciphertexts, sealed.nbytes + flags)
