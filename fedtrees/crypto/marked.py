"""Ciphertexts as they are sent, behind a mark of the key and of what they are to be read as.

Ciphertexts alone are numbers like any others: read under a wrong key, in another shape or in slots
of another width they open, to wrong numbers. Whoever changes them on purpose can make the mark
again.
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
    """Return what ciphertexts are to be read as, in one way for whoever sends and whoever reads."""
    ranges = [(int(low), int(high)) for low, high in slots.ranges]
    return f"{kind} {[*map(int, shape)]} {int(slots.limit)} {int(slots.terms)} {ranges} {more}"


def mark(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Return `MARK_BYTES` of the SHA-256 of the key, of what is sent and what it is."""
    of = hashlib.sha256(public.payload(obfuscators=False))
    of.update(f"{len(read_as)} {read_as}".encode())
    of.update(payload)
    return of.digest()[:MARK_BYTES]


def to_bytes(
    ciphertexts: Iterable[mpz], public: PublicKey, read_as: str, before: bytes = b""
) -> bytes:
    """Write a mark, what stands `before` the ciphertexts, and these."""
    payload = before + paillier.to_bytes(ciphertexts, public)
    return mark(payload, public, read_as) + payload


def unmarked(payload: bytes, public: PublicKey, read_as: str) -> bytes:
    """Return what is behind the mark.

    Raises `MalformedError` if there is no mark. Raises `WrongKeyError` if it is another one.
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
    """Read so many ciphertexts behind a mark.

    Raises `MalformedError` if the length is wrong, or a number is no ciphertext of this key. Raises
    `WrongKeyError` if they are marked as something else.
    """
    due = MARK_BYTES + ciphertext_bytes(public.bits) * count
    if len(payload) != due:
        raise MalformedError(f"{len(payload)} bytes came; {due} are due: ask for them again")
    return paillier.from_bytes(unmarked(payload, public, read_as), count, public)
