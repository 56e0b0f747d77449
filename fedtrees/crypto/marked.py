"""Transmitted encoding of ciphertexts, with a mark of their key and their layout.

Ciphertexts are plain numbers. Read under a wrong key, in another shape or with slots of another
width, they would decrypt to wrong numbers without an error. The mark detects such mistakes. It does
not detect manipulation, because an adversary can compute a new mark.
"""

import hashlib
from collections.abc import Iterable, Sequence

from gmpy2 import mpz

from fedtrees.crypto import paillier
from fedtrees.crypto.keys import PublicKey
from fedtrees.sealing.errors import MalformedError, WrongKeyError
from fedtrees.sealing.sizes import MARK_BYTES, ciphertext_bytes
from fedtrees.sealing.slots import Slots


def reading(kind: str, slots: Slots, shape: Sequence[int], *more: object) -> str:
    """Return a text that describes the layout, the same for sender and receiver.

    Parameters
    ----------
    kind : str
        For example ``rows`` or ``histogram``.
    slots : Slots
        Layout of the numbers in plaintexts.
    shape : sequence of int
        Shape of the encrypted numbers.
    *more : object
        Further public values, for example the number of a sum.
    """
    ranges = [(int(low), int(high)) for low, high in slots.ranges]
    return f"{kind} {[*map(int, shape)]} {int(slots.limit)} {int(slots.terms)} {ranges} {more}"


def mark(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Return the first `MARK_BYTES` bytes of the SHA-256 of key, layout and ciphertexts.

    Parameters
    ----------
    payload : bytes
        Everything that follows the mark.
    public : PublicKey
    read_as : str
        Layout, see `reading`.
    """
    digest = hashlib.sha256(public.payload(obfuscators=False))
    # The length separates the description of the layout from the payload.
    digest.update(f"{len(read_as)} {read_as}".encode())
    digest.update(payload)
    return digest.digest()[:MARK_BYTES]


def to_bytes(
    ciphertexts: Iterable[mpz], public: PublicKey, read_as: str, before: bytes = b""
) -> bytes:
    """Write a mark, the bytes `before` the ciphertexts (for example flags), and the ciphertexts."""
    payload = before + paillier.to_bytes(ciphertexts, public)
    return mark(payload, public, read_as) + payload


def unmarked(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Check the mark, and return the bytes that follow it.

    Parameters
    ----------
    payload, public, read_as
        As in `mark`, with the mark at the beginning of the payload.

    Raises
    ------
    MalformedError
        If there is no mark.
    WrongKeyError
        If the mark is different.
    """
    if len(payload) < MARK_BYTES:
        raise MalformedError(f"{len(payload)} bytes came; a mark of {MARK_BYTES} bytes is first")
    inside = payload[MARK_BYTES:]
    if payload[:MARK_BYTES] != mark(inside, public, read_as):
        raise WrongKeyError(
            f"ciphertexts do not bear out their mark: they are under another key than {public!r}, "
            "of another shape, of other slots, of another sum or party, or were changed on the "
            "way. Send everybody the same key, read what was sent as what it was sent as, and "
            "start anew"
        )
    return inside


def from_bytes(payload: bytes, count: int, public: PublicKey, read_as: str) -> list[mpz]:
    """Read marked ciphertexts.

    Parameters
    ----------
    payload, public, read_as
        As in `unmarked`.
    count : int
        Expected number of ciphertexts.

    Raises
    ------
    MalformedError
        If the length is wrong, or a number is not a ciphertext of this key.
    WrongKeyError
        If the mark is different.
    """
    # A wrong length is reported first, because the mark would only state that something differs.
    expected = MARK_BYTES + ciphertext_bytes(public.bits) * count
    if len(payload) != expected:
        raise MalformedError(f"{len(payload)} bytes came; {expected} are due: ask for them again")
    return paillier.from_bytes(unmarked(payload, public, read_as), count, public)
