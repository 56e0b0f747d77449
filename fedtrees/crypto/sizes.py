"""What crosses under real cryptography, without doing any: for ideal runs with the same traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedtrees.crypto.agreement import KEY_BYTES
from fedtrees.crypto.mask_messages import MaskPlan
from fedtrees.crypto.shamir import SHARE_BYTES
from fedtrees.crypto.slots import Slots

BOX_OVERHEAD = 16  # bytes of the tag of a box with shares, and of a lock
COMMITMENT_BYTES = 32
TAG_BYTES = 16  # of a masked array
MARK_BYTES = 16  # before ciphertexts of slots: of the key, and of what they are read as


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

    Parameters
    ----------
    counts : sequence of int
        Rows of each node in it.
    features, bins, statistics : int
    slots : Slots
    bits : int
        Of the key.
    """
    sent = features * sum(min(count, bins) for count in counts)
    sealed = rows(-(-sent // (slots.per_plaintext(bits) // statistics)), bits)
    flags = -(-len(counts) * features * bins // 8)
    return Traffic(sealed.ciphertexts, sealed.nbytes + flags)


def box(plan: MaskPlan) -> int:
    """Return the bytes of one box of a `Deal`."""
    return BOX_OVERHEAD + 2 * plan.sums * SHARE_BYTES


def lock(advertised: int) -> int:
    """Return the bytes of one lock of a `Deal` among so many parties."""
    return BOX_OVERHEAD + (advertised - 1) * KEY_BYTES


def deal(plan: MaskPlan, advertised: int) -> int:
    """Return the bytes of a `Deal` among so many parties."""
    return (advertised - 1) * box(plan) + plan.sums * (COMMITMENT_BYTES + lock(advertised))


def masked(size: int) -> int:
    """Return the bytes of a `MaskedArray` of so many elements, its tag left out."""
    return 8 * size


def unmasking(dealt: int) -> int:
    """Return the bytes of an `Unmasking` where so many parties dealt shares."""
    return dealt * SHARE_BYTES
