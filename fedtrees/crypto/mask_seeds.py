"""Which seed makes which mask, the same for those who mask and for whoever takes masks off."""

from __future__ import annotations

import hashlib

from fedtrees.crypto.agreement import agree, derive
from fedtrees.crypto.mask_messages import MaskPlan
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
