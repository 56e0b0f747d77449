"""Which key makes which mask and tag, the same for those who mask and for whoever opens sums.

Two parties agree on one secret for all sums of a plan and expand it to a seed for each sum. What is
dealt in shares is not that secret, which would open the sums before and after: each party locks its
seeds of a sum with a key drawn for that sum alone, tells the lock to whoever adds, and deals shares
of the key to the lock.
"""

import hashlib
from collections.abc import Iterable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.poly1305 import Poly1305

from fedtrees.crypto.agreement import KEY_BYTES, derive, expanded
from fedtrees.crypto.mask_messages import Advertisement, MaskPlan
from fedtrees.sealing.errors import WrongKeyError
from fedtrees.sealing.secret import Secret

_NONCE = bytes(12)  # each box and each lock has a key of its own


def agreed_keys(plan: MaskPlan, roster: Iterable[Advertisement]) -> bytes:
    """Return a digest of the plan and of everybody's keys, 32 bytes.

    Boxes, locks and tags are bound to it: masks cancel only among those who were told the same.
    """
    known = {item.party: item.key for item in roster}
    parts = [plan.context, b"%d of %d" % (plan.threshold, plan.sums)]
    for name in plan.parties:
        parts += [name.encode(), known.get(name, b"")]
    return hashlib.sha256(_joined(parts)).digest()


def pair_key(plan: MaskPlan, secret: Secret[bytes], pair: tuple[str, str]) -> Secret[bytes]:
    """Return the key of the masks of two parties, from the secret that they agreed on."""
    first, second = sorted(name.encode() for name in pair)
    return derive(secret, b"pair", plan.context, first, second)


def pair_seed(key: Secret[bytes], index: int) -> Secret[bytes]:
    """Return the seed of the mask that two parties share in one sum."""
    return expanded(key, b"pair mask %d" % index)


def bound_to(seed: Secret[bytes], told: bytes) -> Secret[bytes]:
    """Return the seed of a mask that two parties share if both were told the same.

    `told`: A digest of all that one of them was told before. Masks of who was told otherwise do not
    cancel: a sum opens among those alone who answer the same questions about the same trees.
    """
    return expanded(seed, b"told " + told)


def box(plan: MaskPlan, secret: Secret[bytes], sender: str, receiver: str) -> ChaCha20Poly1305:
    """Return the cipher of the one box from sender to receiver."""
    key = derive(secret, b"box", plan.context, sender.encode(), receiver.encode())
    return ChaCha20Poly1305(key.reveal())


def close(cipher: ChaCha20Poly1305, text: bytes, keys: bytes) -> bytes:
    """Close the one text of a cipher, for those who were told the same keys (`agreed_keys`)."""
    return cipher.encrypt(_NONCE, text, keys)


def opened(cipher: ChaCha20Poly1305, closed: bytes, keys: bytes) -> bytes:
    """Open it.

    Raises `WrongKeyError` if it was changed, or closed by another, or by who was told other keys of
    anybody.
    """
    try:
        return cipher.decrypt(_NONCE, closed, keys)
    except InvalidTag:
        raise WrongKeyError("a text that was changed, or closed with another key") from None


# What follows is derived from secrets drawn for one party and one sum: they bind it to both.


def commitment(seed: Secret[bytes]) -> bytes:
    """Return what binds a party to the seed of its self-mask and does not tell it."""
    return hashlib.sha256(expanded(seed, b"commitment").reveal()).digest()


def self_seed(seed: Secret[bytes]) -> Secret[bytes]:
    """Return the seed of a self-mask from the secret that is shared."""
    return expanded(seed, b"self mask")


def lock(secret: Secret[bytes], seeds: Sequence[Secret[bytes]], keys: bytes) -> bytes:
    """Return a party's seeds of one sum, closed to all who do not have the key drawn for it."""
    return close(_lock(secret), b"".join(seed.reveal() for seed in seeds), keys)


def unlock(secret: Secret[bytes], closed: bytes, keys: bytes) -> list[Secret[bytes]]:
    """Return the seeds.

    Raises `WrongKeyError` if it is not the key to this lock, or was made among other keys.
    """
    text = opened(_lock(secret), closed, keys)
    return [Secret(text[i : i + KEY_BYTES]) for i in range(0, len(text), KEY_BYTES)]


def _lock(secret: Secret[bytes]) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(expanded(secret, b"lock").reveal())


def tag(
    seed: Secret[bytes],
    keys: bytes,
    among: Sequence[str],
    index: int,
    shape: tuple[int, ...],
    values: bytes,
    told: bytes,
) -> bytes:
    """Return the tag of a masked array: Poly1305 (RFC 8439), 16 bytes.

    Its key is of the self-mask's seed, which nobody but its owner knows before the array came and
    the survivors stand, and of this one array.

    `seed`: Of the self-mask.
    `keys`: `agreed_keys`.
    `among`: Whose masks are on the array, its owner among them, in the plan's order.
    `told`: As in `bound_to`.
    """
    bound = [keys, told, f"{index} {shape}".encode(), *(name.encode() for name in among)]
    key = expanded(seed, _joined([b"tag", *bound]))
    return Poly1305.generate_tag(key.reveal(), values)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
