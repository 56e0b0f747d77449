"""Which seed makes which mask and tag, the same for those who mask and for whoever opens sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.poly1305 import Poly1305

from fedtrees.crypto.agreement import agree, derive
from fedtrees.crypto.mask_messages import Advertisement, MaskPlan
from fedtrees.crypto.secret import Secret


def pair_seed(
    plan: MaskPlan, index: int, private: Secret[bytes], public: bytes, pair: tuple[str, str]
) -> Secret[bytes]:
    """Return the seed of the mask that two parties share in one sum, from either's key."""
    first, second = sorted(name.encode() for name in pair)
    secret = agree(private, public)
    return derive(secret, b"pair mask", plan.context, b"%d" % index, first, second)


def box_key(
    plan: MaskPlan, private: Secret[bytes], public: bytes, sender: str, receiver: str
) -> Secret[bytes]:
    """Return the key of the one box from sender to receiver, from either's key."""
    secret = agree(private, public)
    return derive(secret, b"box", plan.context, sender.encode(), receiver.encode())


def commitment(plan: MaskPlan, index: int, party: str, seed: Secret[bytes]) -> bytes:
    """Return what binds a party to the seed of its self-mask and does not tell it."""
    found = derive(seed, b"commitment", plan.context, b"%d" % index, party.encode())
    return hashlib.sha256(found.reveal()).digest()


def self_seed(plan: MaskPlan, index: int, seed: Secret[bytes]) -> Secret[bytes]:
    """Return the seed of a self-mask from the secret that is shared."""
    return derive(seed, b"self mask", plan.context, b"%d" % index)


def agreed_keys(plan: MaskPlan, roster: Iterable[Advertisement]) -> bytes:
    """Return a digest of the plan and of everybody's keys, 32 bytes.

    Boxes and tags are bound to it: masks cancel only among those who were told the same keys.
    """
    known = {item.party: (item.transport, *item.masking) for item in roster}
    parts = [plan.context, b"%d of %d" % (plan.threshold, plan.sums)]
    for name in plan.parties:
        parts += [name.encode(), b"".join(known.get(name, ()))]
    return hashlib.sha256(_joined(parts)).digest()


def tag(
    seed: Secret[bytes],
    keys: bytes,
    among: Sequence[str],
    index: int,
    shape: tuple[int, ...],
    values: bytes,
) -> bytes:
    """Return the tag of a masked array: Poly1305 (RFC 8439), 16 bytes.

    Its key is of the self-mask's seed, which nobody but its owner knows before the array came and
    the survivors stand, and of this one array.

    Parameters
    ----------
    seed : Secret
        Of the self-mask.
    keys : bytes
        `agreed_keys`.
    among : sequence of str
        Whose masks are on the array, its owner among them, in the plan's order.
    index : int
    shape : tuple of int
    values : bytes
    """
    bound = [keys, f"{index} {shape}".encode(), *(name.encode() for name in among)]
    key = derive(seed, b"tag", *bound)
    return Poly1305.generate_tag(key.reveal(), values)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
