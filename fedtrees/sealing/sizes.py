"""What ciphertexts take, without making any: for ideal runs with the same traffic."""

from collections.abc import Sequence
from typing import NamedTuple

from fedtrees.core.errors import UsageError
from fedtrees.sealing.slots import Slots

# 2048 bits are worth 112 bits of symmetric key and 3072 are worth 128 (NIST SP 800-57, part 1,
# table 2); 1024 are worth 80, within reach of those who can pay, and there for comparison with
# published systems.
KEY_BITS = (1024, 2048, 3072)
DEFAULT_BITS = 2048
MARK_BYTES = 16  # before ciphertexts of slots: of the key, and of what they are read as


def check_key_bits(name: str, bits: int) -> None:
    """Raise `UsageError` unless a key has one of the known lengths."""
    if bits not in KEY_BITS:
        known = ", ".join(map(str, KEY_BITS))
        raise UsageError(f"{name}={bits!r}: a Paillier key has one of {known}")


def public_key_bytes(bits: int, djn: bool) -> int:
    """Return the bytes of a public key: n, and for DJN obfuscators their base modulo n^2."""
    return bits // 8 + (ciphertext_bytes(bits) if djn else 0)


class Traffic(NamedTuple):
    """Ciphertexts and bytes of one message."""

    ciphertexts: int
    nbytes: int


def ciphertext_bytes(bits: int) -> int:
    """Return the bytes of a ciphertext under a key of so many bits."""
    return -(-2 * bits // 8)


def rows(count: int, bits: int) -> Traffic:
    """Return what `EncryptedRows` of so many rows takes."""
    return Traffic(count, MARK_BYTES + count * ciphertext_bytes(bits))


def array(size: int, slots: Slots, bits: int) -> Traffic:
    """Return what an `EncryptedArray` of so many elements takes, whatever it is the sum of."""
    return rows(-(-size // slots.per_plaintext(bits)), bits)


def histogram(
    counts: Sequence[int], features: int, bins: int, statistics: int, slots: Slots, bits: int
) -> Traffic:
    """Return what a `PackedHistogram` takes.

    `counts`: Rows of each node in it.
    `bits`: Of the key.
    """
    sent = features * sum(min(count, bins) for count in counts)
    sealed = rows(-(-sent // (slots.per_plaintext(bits) // statistics)), bits)
    flags = -(-len(counts) * features * bins // 8)
    return Traffic(sealed.ciphertexts, sealed.nbytes + flags)
