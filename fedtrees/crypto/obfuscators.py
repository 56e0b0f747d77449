"""Paillier encryption: obfuscators, and the library that computes with keys and ciphertexts.

An obfuscator is a random n-th power rho modulo n^2, which hides one plaintext m in the ciphertext
``(1 + m n) rho mod n^2`` (Paillier 1999). The cost of a ciphertext is that of rho, which does not
depend on m. The classes compute obfuscators in the fastest way that the knowledge of a party
allows.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gmpy2 import invert, mpz, powmod

from fedtrees.core.errors import UsageError
from fedtrees.crypto.costs import OperationCounter
from fedtrees.crypto.keys import KeyPair, Prime, PublicKey
from fedtrees.crypto.primitives import SYSTEM, PlaintextOverflowError, Randomness, SecretHolder

# Bits of the exponent per table row. An exponent of 1,024 bits takes 114 multiplications instead of
# about 1,200. A table modulo a 2,048-bit number takes 17 MB, and twice as much for each further
# bit.
_WINDOW = 9

# Powers are computed in batches of this size, row by row, so that a row stays in the cache.
_BATCH = 256


class FixedBase(SecretHolder):
    """Powers of one base modulo a number (Brickell et al. 1992, with a table for every digit).

    `exponent_bits` is the largest length of an exponent.
    """

    __slots__ = ("_modulus", "_rows")

    def __init__(self, base: int, modulus: int, exponent_bits: int) -> None:
        self._modulus = mpz(modulus)
        self._rows: list[list[mpz]] = []
        # Row i contains base^(d 2^(9 i)) for every digit d.
        step = mpz(base)
        for _ in range(-(-exponent_bits // _WINDOW)):
            row = [mpz(1)]
            for _ in range(1 << _WINDOW):
                row.append(row[-1] * step % self._modulus)
            step = row.pop()
            self._rows.append(row)

    def powers(self, exponents: Sequence[int]) -> list[mpz]:
        """Return base^exponent for each exponent, none longer than `exponent_bits`."""
        powers: list[mpz] = []
        for begin in range(0, len(exponents), _BATCH):
            powers += self._batch(exponents[begin : begin + _BATCH])
        return powers

    def _batch(self, exponents: Sequence[int]) -> list[mpz]:
        modulus, mask = self._modulus, (1 << _WINDOW) - 1
        places = range(0, _WINDOW * len(self._rows), _WINDOW)
        digits = zip(*([(e >> place) & mask for place in places] for e in exponents), strict=True)
        products = [mpz(1)] * len(exponents)
        for row, column in zip(self._rows, digits, strict=True):
            products = [a * row[digit] % modulus for a, digit in zip(products, column, strict=True)]
        return products


class Obfuscators(SecretHolder, ABC):
    """Source of obfuscators of one key. Each obfuscator is returned once, and counted."""

    __slots__ = ("ledger", "public", "randomness")

    def __init__(
        self,
        public: PublicKey,
        ledger: OperationCounter | None = None,
        randomness: Randomness = SYSTEM,
    ) -> None:
        self.public, self.randomness = public, randomness
        self.ledger = OperationCounter() if ledger is None else ledger

    def take(self, count: int) -> list[mpz]:
        """Return `count` new obfuscators."""
        with self.ledger.timed("obfuscators", count):
            return self._make(count)

    def encrypt(self, values: Sequence[int]) -> list[mpz]:
        """Encrypt integers, also negative ones, with one obfuscator each.

        It raises `PlaintextOverflowError` if a value is beyond `PublicKey.largest_plaintext`.
        """
        bound = self.public.largest_plaintext
        # It is sufficient to check the smallest and the largest value.
        if any(not -bound <= v <= bound for v in (min(values, default=0), max(values, default=0))):
            raise PlaintextOverflowError(
                f"a value beyond +-(n // 3 - 1) of a {self.public.bits}-bit key; encrypt smaller "
                "numbers"
            )
        hiding = self.take(len(values))
        with self.ledger.timed("encrypted", len(values)):
            return self.public.encrypt(values, hiding)

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Hide from the key holder which ciphertexts a sum consists of.

        The party that encrypted the summands knows their obfuscators, and would recognise their
        product. One new obfuscator is used for each ciphertext.
        """
        hiding = self.take(len(ciphertexts))
        return self.public.add_counted(ciphertexts, hiding, self.ledger)

    @abstractmethod
    def _make(self, count: int) -> list[mpz]:
        """Compute `count` obfuscators."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.public!r}>"


class PlainObfuscators(Obfuscators):
    """``r^n mod n^2`` from the public key: the reference (Paillier 1999)."""

    __slots__ = ()

    def _make(self, count: int) -> list[mpz]:
        public = self.public
        # r is not 0. A multiple of p or q has a negligible probability.
        drawn = (self.randomness.below(public.n - 1) + 1 for _ in range(count))
        return [powmod(r, public.modulus, public.square) for r in drawn]


class OwnerObfuscators(Obfuscators):
    """n-th powers by the Chinese remainder theorem, for the owner of the key.

    The n-th powers modulo p^2 are a cyclic group of order p - 1. For keys of `KeyPair.generate` the
    owner knows a generator. A power of it with a uniform exponent below p - 1 is uniform in the
    group, exactly as ``r^n`` is, and is computed with a table. This needs no assumption beyond
    Paillier's. For other keys ``r^p mod p^2`` is computed directly.
    """

    __slots__ = ("_inverse", "_primes", "_tables")

    def __init__(
        self, keys: KeyPair, ledger: OperationCounter | None = None, randomness: Randomness = SYSTEM
    ) -> None:
        super().__init__(keys.public, ledger, randomness)
        self._primes = keys.primes()
        first, second = self._primes
        self._inverse = invert(first.square, second.square)
        self._tables = [
            None if p.generator is None else FixedBase(p.generator, p.square, p.p.bit_length())
            for p in self._primes
        ]

    def _make(self, count: int) -> list[mpz]:
        first, second = self._primes
        a, b = (self._parts(p, t, count) for p, t in zip(self._primes, self._tables, strict=True))
        inverse, square, step = self._inverse, second.square, first.square
        # Garner's formula combines the remainders modulo p^2 and q^2.
        return [x + (y - x) * inverse % square * step for x, y in zip(a, b, strict=True)]

    def _parts(self, prime: Prime, table: FixedBase | None, count: int) -> list[mpz]:
        # Uniform below the order of the group, so that the power is uniform in the group.
        exponents = [self.randomness.below(int(prime.p) - 1) for _ in range(count)]
        if table is not None:
            return table.powers(exponents)
        return [powmod(e + 1, prime.p, prime.square) for e in exponents]


class DJNObfuscators(Obfuscators):
    """``(h^n)^a mod n^2`` with ``h = -x^2`` and a of half the length of n, computed with a table.

    For parties that have only the public key and need many obfuscators (Damgaard, Jurik, Nielsen
    2010). In addition to Paillier's assumption, such a short power of h must be indistinguishable
    from a random element of the group that h generates, the elements of Jacobi symbol 1.

    It raises `UsageError` if the key has no such base.
    """

    __slots__ = ("_bound", "_table")

    def __init__(
        self,
        public: PublicKey,
        ledger: OperationCounter | None = None,
        randomness: Randomness = SYSTEM,
    ) -> None:
        super().__init__(public, ledger, randomness)
        if public.djn is None:
            raise UsageError(
                f"{public!r} has no base for DJN obfuscators; use plain ones, or a key made here"
            )
        half = -(-public.bits // 2)
        self._bound = 1 << half
        self._table = FixedBase(public.djn, int(public.square), half)

    def _make(self, count: int) -> list[mpz]:
        return self._table.powers([self.randomness.below(self._bound) for _ in range(count)])


class Backend:
    """Factory of keys and obfuscators of one library: our implementation on gmpy2.

    `fedtrees.crypto.phe_backend` has the implementation with python-paillier. Both write the same
    keys and ciphertexts, so that parties with different backends can take part in one run.
    """

    def generate(self, bits: int, base: bool) -> KeyPair:
        """Generate a key of `bits` bits, with the base of short obfuscators if `base`.

        A key of gmpy2 always has such a base.
        """
        return KeyPair.generate(bits)

    def read(self, payload: bytes, bits: int) -> PublicKey:
        """Read a received public key. Raise `MalformedError` if it is invalid."""
        return PublicKey.from_payload(payload, bits)

    def of_owner(self, keys: KeyPair, ledger: OperationCounter) -> Obfuscators:
        """Return the obfuscators of the party that has the private key."""
        return OwnerObfuscators(keys, ledger)

    def short(self, public: PublicKey, ledger: OperationCounter) -> Obfuscators:
        """Return the fastest obfuscators of a party that has only the public key."""
        return DJNObfuscators(public, ledger)

    def plain(
        self, public: PublicKey, ledger: OperationCounter, randomness: Randomness = SYSTEM
    ) -> Obfuscators:
        """Return obfuscators ``r^n`` with uniform r, which need no additional assumption."""
        return PlainObfuscators(public, ledger, randomness)
