"""Which key makes which mask, the same for those who mask and for whoever takes masks off.

Two parties agree on one secret for all sums of a plan and expand it to a seed for each sum. What is
dealt in shares is not that secret, which would open the sums before and after: each party locks its
seeds of a sum with a key drawn for that sum alone, tells the lock to whoever adds, and deals shares
of the key to the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedtrees.crypto.agreement import KEY_BYTES, derive, expanded
from fedtrees.crypto.errors import WrongKeyError
from fedtrees.crypto.mask_messages import MaskPlan
from fedtrees.crypto.secret import Secret

_NONCE = bytes(12)  # each box and each lock has a key of its own


def pair_key(plan: MaskPlan, secret: Secret[bytes], pair: tuple[str, str]) -> Secret[bytes]:
    """Return the key of the masks of two parties, from the secret that they agreed on."""
    first, second = sorted(name.encode() for name in pair)
    return derive(secret, b"pair", plan.context, first, second)


def pair_seed(key: Secret[bytes], index: int) -> Secret[bytes]:
    """Return the seed of the mask that two parties share in one sum."""
    return expanded(key, b"pair mask %d" % index)


def box(plan: MaskPlan, secret: Secret[bytes], sender: str, receiver: str) -> ChaCha20Poly1305:
    """Return the cipher of the one box from sender to receiver."""
    key = derive(secret, b"box", plan.context, sender.encode(), receiver.encode())
    return ChaCha20Poly1305(key.reveal())


def close(cipher: ChaCha20Poly1305, text: bytes) -> bytes:
    """Close the one text of a cipher."""
    return cipher.encrypt(_NONCE, text, None)


def opened(cipher: ChaCha20Poly1305, closed: bytes) -> bytes:
    """Open it.

    Raises
    ------
    WrongKeyError
        If it was changed, or closed by another.
    """
    try:
        return cipher.decrypt(_NONCE, closed, None)
    except InvalidTag:
        raise WrongKeyError("a text that was changed, or closed with another key") from None


# What follows is derived from secrets drawn for one party and one sum: they bind it to both.


def commitment(seed: Secret[bytes]) -> bytes:
    """Return what binds a party to the seed of its self-mask and does not tell it."""
    return hashlib.sha256(expanded(seed, b"commitment").reveal()).digest()


def self_seed(seed: Secret[bytes]) -> Secret[bytes]:
    """Return the seed of a self-mask from the secret that is shared."""
    return expanded(seed, b"self mask")


def lock(secret: Secret[bytes], seeds: Sequence[Secret[bytes]]) -> bytes:
    """Return a party's seeds of one sum, closed to all who do not have the key drawn for it."""
    return close(_lock(secret), b"".join(seed.reveal() for seed in seeds))


def unlock(secret: Secret[bytes], closed: bytes) -> list[Secret[bytes]]:
    """Return the seeds.

    Raises
    ------
    WrongKeyError
        If it is not the key to this lock.
    """
    text = opened(_lock(secret), closed)
    return [Secret(text[i : i + KEY_BYTES]) for i in range(0, len(text), KEY_BYTES)]


def _lock(secret: Secret[bytes]) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(expanded(secret, b"lock").reveal())
