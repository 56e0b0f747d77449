"""Paillier keys (Paillier 1999), and how they are drawn."""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property

from gmpy2 import invert, is_prime, mpz, next_prime, powmod

from fedtrees.crypto.randomness import SYSTEM, Randomness
from fedtrees.sealing import sizes
from fedtrees.sealing.errors import MalformedError
from fedtrees.sealing.secret import Secret, Unprintable

WEAK_BELOW = 2048

_COFACTOR_BITS = 24  # of (p - 1) / 2 beyond its large prime: enough to find p, quickly factored


@dataclass(frozen=True)
class PublicKey:
    """What everybody may know.

    `djn`: ``h^n mod n^2`` with ``h = -x^2 mod n``: the base of short obfuscators (see
    `DJNObfuscators`); None for keys that come from elsewhere.
    """

    n: int
    djn: int | None = field(default=None, repr=False)

    @cached_property
    def modulus(self) -> mpz:
        """n, as gmpy2 has it."""
        return mpz(self.n)

    @cached_property
    def square(self) -> mpz:
        """n^2, the modulus of ciphertexts."""
        return self.modulus**2

    @property
    def bits(self) -> int:
        """Length of n."""
        return self.n.bit_length()

    @property
    def weak(self) -> bool:
        """Whether n is shorter than today's least recommendation."""
        return self.bits < WEAK_BELOW

    @property
    def fingerprint(self) -> str:
        """Eight hex digits to tell keys apart."""
        return hashlib.sha256(b"%d" % self.n).hexdigest()[:8]

    def payload(self, obfuscators: bool = True) -> bytes:
        """Return n, and the base of short obfuscators where there is one to send."""
        n = self.n.to_bytes(self.bits // 8, "big")
        if not obfuscators or self.djn is None:
            return n
        return n + self.djn.to_bytes(sizes.ciphertext_bytes(self.bits), "big")

    @classmethod
    def from_payload(cls, payload: bytes, bits: int) -> PublicKey:
        """Read a key of so many bits that somebody told.

        Raises `MalformedError` if it has another length, or its numbers are out of range.
        """
        middle, size = bits // 8, sizes.ciphertext_bytes(bits)
        if len(payload) not in (middle, middle + size):
            raise MalformedError(
                f"a public key of {bits} bits has {middle} or {middle + size} bytes; "
                f"{len(payload)} came"
            )
        n, djn = (int.from_bytes(part, "big") for part in (payload[:middle], payload[middle:]))
        if n.bit_length() != bits or n % 2 == 0 or not (0 < djn < n * n or djn == 0):
            raise MalformedError(f"what came is no public key of {bits} bits")
        return cls(n, djn or None)

    def __repr__(self) -> str:
        return f"<PublicKey {self.bits} bit{', weak' * self.weak}, {self.fingerprint}>"


class Prime(Unprintable):
    """One prime factor p of n, with what its owner computes once.

    `p, square`: mpz. And p^2.
    `h`: mpz. ``L((n + 1)^(p - 1) mod p^2)^-1 mod p``, with ``L(x) = (x - 1) / p`` (Paillier 1999,
    7).
    `generator`: Of all n-th powers modulo p^2, a cyclic group of order p - 1; None where p - 1
    could not be factored.
    """

    __slots__ = ("generator", "h", "p", "square")

    def __init__(self, p: mpz, n: mpz, generator: mpz | None) -> None:
        self.p, self.generator = p, generator
        self.square = p * p
        self.h = invert((powmod(n + 1, p - 1, self.square) - 1) // p, p)

    def __repr__(self) -> str:
        return "<Prime>"


class KeyPair(Unprintable):
    """A public key and the secret to it. It is neither printed nor pickled."""

    __slots__ = ("_primes", "public")

    def __init__(self, public: PublicKey, primes: tuple[Prime, Prime]) -> None:
        self.public, self._primes = public, Secret(primes)

    @classmethod
    def generate(cls, bits: int = sizes.DEFAULT_BITS) -> KeyPair:
        """Draw a key from the operating system's generator.

        Each prime is ``2 k r + 1`` with a random prime r and a small odd k: its owner then knows
        a primitive root, hence draws obfuscators by a table without an assumption of its own
        (see `OwnerObfuscators`); and both are 3 modulo 4, as DJN asks.

        `bits`: Length of n.

        Raises `UsageError` for another length. A length of 1024 warns.
        """
        sizes.check_key_bits("bits", bits)
        if bits < WEAK_BELOW:
            warnings.warn(
                f"a {bits}-bit Paillier key is weak: use it to compare, and "
                f"{sizes.DEFAULT_BITS} bits to protect",
                stacklevel=2,
            )
        return drawn(bits, SYSTEM)

    def primes(self) -> tuple[Prime, Prime]:
        """Return the secret."""
        return self._primes.reveal()

    def __repr__(self) -> str:
        return f"<KeyPair of {self.public!r}>"


def drawn(bits: int, randomness: Randomness) -> KeyPair:
    """Draw a key of any length by some randomness; see `KeyPair.generate`."""
    while True:
        (p, of_p), (q, of_q) = _prime(bits // 2, randomness), _prime(bits // 2, randomness)
        n = p * q
        # n-th powers are then all (p - 1)(q - 1) of them, and DJN's group is as large as can be
        if math.gcd(n, (p - 1) * (q - 1)) == 1 and math.gcd(p - 1, q - 1) == 2:
            break
    x = mpz(randomness.below(int(n) - 2) + 2)
    public = PublicKey(int(n), int(powmod(-x * x, n, n * n)))
    primes = Prime(p, n, of_p), Prime(q, n, of_q)
    return KeyPair(public, primes)


def _prime(bits: int, randomness: Randomness) -> tuple[mpz, mpz]:
    """Return a prime p of so many bits, the two highest set, and a generator modulo p^2."""
    while True:
        free = bits - _COFACTOR_BITS
        r = next_prime(mpz(randomness.below(1 << (free - 1)) | 1 << (free - 1)))
        least, most = (3 << (bits - 2)) // (2 * r) + 1, ((1 << bits) - 1) // (2 * r)
        for _ in range(20 * bits):  # of the p that are tried, one in some 0.35 bits is prime
            k = (randomness.below(int(most - least)) + int(least)) | 1
            p = 2 * k * r + 1
            if p.bit_length() == bits and is_prime(p):
                root = _primitive_root(p, {2, int(r), *_small_factors(int(k))}, randomness)
                # root^p mod p^2 has the order of root mod p; and p-th powers are what n-th powers
                # are modulo p^2
                return p, powmod(root, p, p * p)


def _primitive_root(p: mpz, factors: set[int], randomness: Randomness) -> mpz:
    while True:
        root = mpz(randomness.below(int(p) - 2) + 2)
        if all(powmod(root, (p - 1) // factor, p) != 1 for factor in factors):
            return root


def _small_factors(number: int) -> set[int]:
    found, factor = set(), 3
    while factor * factor <= number:
        while number % factor == 0:
            found.add(factor)
            number //= factor
        factor += 2
    return found | ({number} - {1})
