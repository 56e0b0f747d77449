"""Secrets shared so that any `threshold` shares tell them and fewer tell nothing (Shamir 1979)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedtrees.crypto.randomness import Randomness
from fedtrees.sealing.errors import MalformedError, TooFewPartiesError
from fedtrees.sealing.secret import Secret

PRIME = 2**256 + 297  # the least above 2^256: every secret of 32 bytes is an element
SECRET_BYTES = 32
SHARE_BYTES = 33


def share(
    secret: Secret[bytes], threshold: int, points: Sequence[int], randomness: Randomness
) -> dict[int, bytes]:
    """Share a secret of 32 bytes over points other than 0.

    Returns: dict of int to bytes. The share of every point, 33 bytes.
    """
    start = int.from_bytes(secret.reveal(), "big")
    coefficients = [start, *(randomness.below(PRIME) for _ in range(threshold - 1))]
    return {x: evaluate(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in points}


def evaluate(coefficients: Sequence[int], x: int) -> int:
    """Return the value of a polynomial modulo `PRIME`, its constant term first."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


@lru_cache(maxsize=64)
def _at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return by what the values at points are multiplied to give the value at 0 (Lagrange)."""
    found = []
    for x in points:
        top, bottom = 1, 1
        for other in points:
            if other != x:
                top, bottom = top * other % PRIME, bottom * (other - x) % PRIME
        found.append(top * pow(bottom, -1, PRIME) % PRIME)
    return tuple(found)


def combine(shares: Mapping[int, bytes], threshold: int) -> Secret[bytes]:
    """Return the secret that shares tell, from the first `threshold` of them.

    Raises `TooFewPartiesError` if there are fewer. Raises `MalformedError` if a share is no element
    of the field, or they tell more than 32 bytes: one is wrong.
    """
    if len(shares) < threshold:
        raise TooFewPartiesError(
            f"{len(shares)} shares of a secret; it takes {threshold}: ask more parties for theirs"
        )
    used = {x: int.from_bytes(shares[x], "big") for x in sorted(shares)[:threshold]}
    if any(len(shares[x]) != SHARE_BYTES or y >= PRIME for x, y in used.items()):
        raise MalformedError(
            f"a share has {SHARE_BYTES} bytes and is below 2^256 + 297; one is not"
        )
    factors = _at_zero(tuple(used))
    secret = sum(y * factor for y, factor in zip(used.values(), factors, strict=True)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise MalformedError("shares that belong to no secret of 32 bytes; one of them is wrong")
    return Secret(secret.to_bytes(SECRET_BYTES, "big"))
