"""Secret sharing (Shamir 1979): ``threshold`` shares determine a secret, fewer reveal nothing."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from fedtrees.crypto.primitives import MalformedError, Randomness, Secret, TooFewPartiesError

PRIME = 2**256 + 297  # the smallest prime above 2^256, so that every secret of 32 bytes is below it
SECRET_BYTES = 32
SHARE_BYTES = 33


def share(
    secret: Secret[bytes], threshold: int, points: Sequence[int], randomness: Randomness
) -> dict[int, bytes]:
    """Share a secret.

    Parameters
    ----------
    secret : Secret
        32 bytes.
    threshold : int
        Number of shares that determine the secret.
    points : sequence of int
        Points of the shares, not 0.
    randomness : Randomness
        Source of the coefficients.

    Returns
    -------
    shares : dict of int to bytes
        The share of every point, 33 bytes.
    """
    start = int.from_bytes(secret.reveal(), "big")
    # A random polynomial whose value at 0 is the secret.
    coefficients = [start, *(randomness.below(PRIME) for _ in range(threshold - 1))]
    return {x: evaluate(coefficients, x).to_bytes(SHARE_BYTES, "big") for x in points}


def evaluate(coefficients: Sequence[int], x: int) -> int:
    """Return the value at x of a polynomial modulo `PRIME`. The constant term comes first."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


@lru_cache(maxsize=64)
def _at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange coefficients of the value at 0, for values at the given points."""
    coefficients = []
    for x in points:
        numerator, denominator = 1, 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        coefficients.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return tuple(coefficients)


def combine(shares: Mapping[int, bytes], threshold: int) -> Secret[bytes]:
    """Recover the secret from the first `threshold` shares.

    It raises `TooFewPartiesError` if there are fewer. It raises `MalformedError` if a share is not
    an element of the field, or the secret has more than 32 bytes: one share is then wrong.
    """
    if len(shares) < threshold:
        raise TooFewPartiesError(
            f"{len(shares)} shares of a secret; {threshold} are needed: ask more parties for their "
            "shares"
        )
    # Shares beyond the threshold are not used, so that errors in them are not detected.
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
