"""Paillier keys (Paillier 1999), their generation, and the arithmetic of ciphertexts under a key.

`PublicKey` and `KeyPair` compute with gmpy2. `fedtrees.crypto.phe_backend` has subclasses that
compute with python-paillier.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gmpy2 import invert, is_prime, mpz, next_prime, powmod

from fedtrees.crypto import costs
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.primitives import (
    SYSTEM,
    MalformedError,
    PlaintextOverflowError,
    Randomness,
    Secret,
    SecretHolder,
)

WEAK_BELOW = 2048

# Length of the cofactor k in p = 2 k r + 1. It leaves enough choices to find a prime p, and is
# factored quickly.
_COFACTOR_BITS = 24


@dataclass(frozen=True)
class PublicKey:
    """The public key.

    Attributes
    ----------
    n : int
        Modulus, a product of two primes.
    djn : int or None
        ``h^n mod n^2`` with ``h = -x^2 mod n``, the base of short obfuscators (see
        `DJNObfuscators`). None for keys that were not generated here.
    """

    n: int
    djn: int | None = field(default=None, repr=False)

    @cached_property
    def modulus(self) -> mpz:
        """n as a gmpy2 integer."""
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
        """Whether n is shorter than 2048 bits, the recommended minimum."""
        return self.bits < WEAK_BELOW

    def payload(self, obfuscators: bool = True) -> bytes:
        """Return n, and the base of short obfuscators if it is requested and exists."""
        n = self.n.to_bytes(self.bits // 8, "big")
        if not obfuscators or self.djn is None:
            return n
        return n + self.djn.to_bytes(costs.ciphertext_bytes(self.bits), "big")

    @classmethod
    def from_payload(cls, payload: bytes, bits: int) -> PublicKey:
        """Read a received key of `bits` bits.

        It raises `MalformedError` if the encoding has another length, or its numbers are out of
        range.
        """
        middle, size = bits // 8, costs.ciphertext_bytes(bits)
        if len(payload) not in (middle, middle + size):
            raise MalformedError(
                f"a public key of {bits} bits has {middle} or {middle + size} bytes; "
                f"{len(payload)} came"
            )
        # Without a base the second part is empty and gives 0.
        n, djn = (int.from_bytes(part, "big") for part in (payload[:middle], payload[middle:]))
        if n.bit_length() != bits or n % 2 == 0 or not (0 < djn < n * n or djn == 0):
            raise MalformedError(f"the received value is no public key of {bits} bits")
        return cls(n, djn or None)

    def encrypt(self, values: Sequence[int], obfuscators: Sequence[mpz]) -> list[mpz]:
        """Return ``(1 + n)^m rho mod n^2`` for every integer m and its obfuscator rho."""
        n, square = self.modulus, self.square
        # (1 + n)^m is 1 + n m modulo n^2.
        return [(1 + n * m) * rho % square for m, rho in zip(values, obfuscators, strict=True)]

    def add(self, first: Sequence[mpz], second: Sequence[mpz]) -> list[mpz]:
        """Add plaintexts in pairs: multiply their ciphertexts."""
        square = self.square
        return [a * b % square for a, b in zip(first, second, strict=True)]

    def add_to_cells(self, totals: list[mpz], ciphertext: mpz, cells: Iterable[int]) -> None:
        """Add a ciphertext to the totals at the given positions. Negative positions are skipped."""
        square = self.square
        for cell in cells:
            if cell >= 0:
                totals[cell] = totals[cell] * ciphertext % square

    def shift(self, ciphertexts: Sequence[mpz], values: Iterable[int]) -> list[mpz]:
        """Add a plain integer to every plaintext, without a new obfuscator."""
        n, square = self.modulus, self.square
        # A plaintext is shifted by m if the ciphertext is multiplied by 1 + n m modulo n^2.
        return [c * (1 + n * (m % n)) % square for c, m in zip(ciphertexts, values, strict=True)]

    def add_counted(
        self, first: Sequence[mpz], second: Sequence[mpz], ledger: OperationCounter
    ) -> list[mpz]:
        """Check that the lengths agree, add plaintexts in pairs, and count the additions."""
        if len(first) != len(second):
            raise MalformedError(f"{len(first)} ciphertexts cannot be added to {len(second)}")
        with ledger.timed("added", len(first)):
            return self.add(first, second)

    def multiply(self, ciphertext: mpz, factor: int) -> mpz:
        """Multiply a plaintext by a plain integer: raise its ciphertext to this power."""
        return powmod(ciphertext, factor, self.square)

    @property
    def largest_plaintext(self) -> int:
        """Largest absolute value of a plaintext, ``n // 3 - 1`` as in phe.

        Numbers between n/3 and 2n/3 are not encrypted, so that such a plaintext shows an overflow.
        Every number of up to ``bits - 3`` bits is smaller, because ``n / 3 > 2^(bits - 1) / 4``.
        """
        return self.n // 3 - 1

    def write_ciphertexts(self, ciphertexts: Iterable[mpz]) -> bytes:
        """Write ciphertexts one after the other, big-endian, all with the same length."""
        size = costs.ciphertext_bytes(self.bits)
        return b"".join(int(c).to_bytes(size, "big") for c in ciphertexts)

    def read_ciphertexts(self, payload: bytes, count: int) -> list[mpz]:
        """Read `count` ciphertexts.

        It raises `MalformedError` if the length is wrong, or a number is not a ciphertext of this
        key.
        """
        size = costs.ciphertext_bytes(self.bits)
        if len(payload) != count * size:
            raise MalformedError(
                f"{count} ciphertexts of {self!r} are {count * size} bytes; {len(payload)} came"
            )
        ciphertexts = [
            mpz(int.from_bytes(payload[i : i + size], "big")) for i in range(0, len(payload), size)
        ]
        # Multiples of n have no inverse, and are not ciphertexts.
        if not all(0 < c < self.square and c % self.modulus for c in ciphertexts):
            raise MalformedError(f"a number that is no ciphertext of {self!r} came")
        return ciphertexts

    def __repr__(self) -> str:
        digest = hashlib.sha256(b"%d" % self.n).hexdigest()[:8]  # distinguishes keys
        return f"<{type(self).__name__} {self.bits} bit{', weak' * self.weak}, {digest}>"


class Prime(SecretHolder):
    """One prime factor p of n, with numbers that its owner computes once.

    Attributes
    ----------
    p, square : mpz
        The prime and its square.
    h : mpz
        ``L((n + 1)^(p - 1) mod p^2)^-1 mod p`` with ``L(x) = (x - 1) / p`` (Paillier 1999, section
        7).
    generator : mpz or None
        Generator of all n-th powers modulo p^2, a cyclic group of order p - 1. None if the
        factorisation of p - 1 is not known.
    """

    __slots__ = ("generator", "h", "p", "square")

    def __init__(self, p: mpz, n: mpz, generator: mpz | None) -> None:
        self.p, self.generator = p, generator
        self.square = p * p
        self.h = invert((powmod(n + 1, p - 1, self.square) - 1) // p, p)

    def __repr__(self) -> str:
        return "<Prime>"


class KeyPair(SecretHolder):
    """A public key and its private key, which cannot be printed or pickled."""

    __slots__ = ("_primes", "public")

    def __init__(self, public: PublicKey, primes: tuple[Prime, Prime]) -> None:
        self.public, self._primes = public, Secret(primes)

    @classmethod
    def generate(cls, bits: int = costs.DEFAULT_BITS) -> KeyPair:
        """Generate a key with the random numbers of the operating system.

        Each prime is ``2 k r + 1`` with a random prime r and a small odd k. The owner therefore
        knows a primitive root, and can draw obfuscators from a table without a further assumption
        (see `OwnerObfuscators`). Both primes are 3 modulo 4, as DJN require.

        Parameters
        ----------
        bits : {1024, 2048, 3072}
            Length of n. 1024 causes a warning.

        Raises
        ------
        UsageError
            If `bits` is another number.
        """
        check_length(bits)
        return generate_key_pair(bits, SYSTEM)

    def primes(self) -> tuple[Prime, Prime]:
        """Return the private key."""
        return self._primes.reveal()

    def residues(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Decrypt modulo p^2 and q^2 (Paillier 1999, section 7). Return plaintexts from 0 to n - 1.

        A negative number m is the plaintext n + m.
        """
        first, second = self.primes()
        inverse = invert(first.p, second.p)
        plaintexts = []
        for c in ciphertexts:
            a, b = (
                (powmod(c, part.p - 1, part.square) - 1) // part.p * part.h % part.p
                for part in (first, second)
            )
            # Garner's formula combines the remainders modulo p and q.
            plaintexts.append(a + (b - a) * inverse % second.p * first.p)
        return plaintexts

    def decrypt(
        self, ciphertexts: Sequence[mpz], ledger: OperationCounter | None = None
    ) -> list[int]:
        """Decrypt ciphertexts, and return signed integers.

        Raises
        ------
        PlaintextOverflowError
            If a plaintext is between n/3 and 2n/3: a sum was too large, or the key is wrong.
        """
        ledger = ledger or OperationCounter()
        n, bound = self.public.n, self.public.largest_plaintext
        with ledger.timed("decrypted", len(ciphertexts)):
            # Remainders above n/3 represent negative numbers.
            residues = map(int, self.residues(ciphertexts))
            plaintexts = [m if m <= bound else m - n for m in residues]
        if any(v < -bound for v in plaintexts):
            raise PlaintextOverflowError(
                "a plaintext is between n/3 and 2n/3: a sum has overflowed, or it was encrypted "
                "under another key"
            )
        return plaintexts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.public!r}>"


def check_length(bits: int) -> None:
    """Check the length of a key that is to be generated. 1024 bits cause a warning.

    It raises `UsageError` if the length is not one of `fedtrees.crypto.costs.KEY_BITS`.
    """
    costs.check_key_bits("bits", bits)
    if bits < WEAK_BELOW:
        warnings.warn(
            f"a {bits}-bit Paillier key is weak: use it to compare, and "
            f"{costs.DEFAULT_BITS} bits to protect",
            stacklevel=3,
        )


def generate_key_pair(bits: int, randomness: Randomness) -> KeyPair:
    """Generate a key of any length from a source of randomness, see `KeyPair.generate`."""
    while True:
        (p, of_p), (q, of_q) = _prime(bits // 2, randomness), _prime(bits // 2, randomness)
        n = p * q
        # The first condition makes n-th powers a group of (p - 1)(q - 1) elements, the second one
        # makes the group of DJN as large as possible.
        if math.gcd(n, (p - 1) * (q - 1)) == 1 and math.gcd(p - 1, q - 1) == 2:
            break
    public = PublicKey(int(n), draw_base(n, randomness))
    primes = Prime(p, n, of_p), Prime(q, n, of_q)
    return KeyPair(public, primes)


def draw_base(n: mpz, randomness: Randomness) -> int:
    """Draw the base of short obfuscators, ``h^n mod n^2`` with ``h = -x^2`` and a random x.

    Both primes of n must be 3 modulo 4. -x^2 then has the Jacobi symbol 1 and is not a square.
    """
    x = mpz(randomness.below(int(n) - 2) + 2)
    return int(powmod(-x * x, n, n * n))


def _prime(bits: int, randomness: Randomness) -> tuple[mpz, mpz]:
    """Return a prime p of `bits` bits, the two highest ones set, and a generator modulo p^2."""
    while True:
        large_bits = bits - _COFACTOR_BITS
        r = next_prime(mpz(randomness.below(1 << (large_bits - 1)) | 1 << (large_bits - 1)))
        # These bounds set the two highest bits of p, so that the product of two such primes has
        # exactly twice as many bits.
        smallest, largest = (3 << (bits - 2)) // (2 * r) + 1, ((1 << bits) - 1) // (2 * r)
        for _ in range(20 * bits):  # about one in 0.35 * bits candidates is prime
            # k and r are odd, so that p = 2 k r + 1 is 3 modulo 4.
            k = (randomness.below(int(largest - smallest)) + int(smallest)) | 1
            p = 2 * k * r + 1
            if p.bit_length() == bits and is_prime(p):
                root = _primitive_root(p, {2, int(r), *_small_factors(int(k))}, randomness)
                # root^p mod p^2 has the order of root mod p. The p-th powers modulo p^2 are the
                # n-th powers modulo p^2.
                return p, powmod(root, p, p * p)


def _primitive_root(p: mpz, factors: set[int], randomness: Randomness) -> mpz:
    while True:
        root = mpz(randomness.below(int(p) - 2) + 2)
        # A number is a primitive root if its power (p - 1) / f is not 1 for any prime factor f of p
        # - 1.
        if all(powmod(root, (p - 1) // factor, p) != 1 for factor in factors):
            return root


def _small_factors(number: int) -> set[int]:
    factors, factor = set(), 3
    while factor * factor <= number:
        while number % factor == 0:
            factors.add(factor)
            number //= factor
        factor += 2
    return factors | ({number} - {1})
