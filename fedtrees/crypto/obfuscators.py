"""Obfuscators: random n-th powers modulo n^2, each of which hides one plaintext.

A ciphertext is ``(1 + m n) rho mod n^2``: all its cost is rho, which does not depend on m. So they
are made by whoever can make them fastest, before the values are known if there is time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gmpy2 import invert, mpz, powmod

from fedtrees.core.errors import UsageError
from fedtrees.crypto.keys import KeyPair, Prime, PublicKey
from fedtrees.crypto.randomness import SYSTEM, Randomness
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable

# Bits of the exponent to a table row: 1,024 bits take 114 multiplications instead of some 1,200,
# and a table modulo a 2,048-bit number takes 17 MB, twice as much for every further bit.
_WINDOW = 9

# Powers are computed so many at a time, row by row: a row then stays in the processor's cache.
_BATCH = 256


class FixedBase(Unprintable):
    """Powers of a base modulo a number (Brickell et al. 1992, with a table for every digit).

    `exponent_bits`: No exponent is longer.
    """

    __slots__ = ("_modulus", "_rows")

    def __init__(self, base: int, modulus: int, exponent_bits: int) -> None:
        self._modulus = mpz(modulus)
        self._rows: list[list[mpz]] = []
        step = mpz(base)
        for _ in range(-(-exponent_bits // _WINDOW)):
            row = [mpz(1)]
            for _ in range(1 << _WINDOW):
                row.append(row[-1] * step % self._modulus)
            step = row.pop()
            self._rows.append(row)

    def powers(self, exponents: Sequence[int]) -> list[mpz]:
        """Return base^exponent for each, none longer than `exponent_bits`."""
        found: list[mpz] = []
        for begin in range(0, len(exponents), _BATCH):
            found += self._batch(exponents[begin : begin + _BATCH])
        return found

    def _batch(self, exponents: Sequence[int]) -> list[mpz]:
        modulus, mask = self._modulus, (1 << _WINDOW) - 1
        places = range(0, _WINDOW * len(self._rows), _WINDOW)
        digits = zip(*([(e >> place) & mask for place in places] for e in exponents), strict=True)
        found = [mpz(1)] * len(exponents)
        for row, column in zip(self._rows, digits, strict=True):
            found = [a * row[digit] % modulus for a, digit in zip(found, column, strict=True)]
        return found


class Obfuscators(Unprintable, ABC):
    """A source of obfuscators of one key; none is given out twice.

    `ledger`: Where they are counted when made.
    """

    __slots__ = ("ledger", "public", "randomness")

    def __init__(
        self, public: PublicKey, ledger: Ledger | None = None, randomness: Randomness = SYSTEM
    ) -> None:
        self.public, self.randomness = public, randomness
        self.ledger = Ledger() if ledger is None else ledger

    def take(self, count: int) -> list[mpz]:
        """Return so many, never seen before."""
        with self.ledger.timed("obfuscators", count):
            return self._make(count)

    @abstractmethod
    def _make(self, count: int) -> list[mpz]:
        """Make so many."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.public!r}>"


class PlainObfuscators(Obfuscators):
    """``r^n mod n^2``, for anybody who has the public key: the reference (Paillier 1999)."""

    __slots__ = ()

    def _make(self, count: int) -> list[mpz]:
        public = self.public
        drawn = (self.randomness.below(public.n - 1) + 1 for _ in range(count))
        return [powmod(r, public.modulus, public.square) for r in drawn]


class OwnerObfuscators(Obfuscators):
    """The same n-th powers, for the owner of the key: modulo p^2 and q^2, then put together.

    The n-th powers modulo p^2 are a cyclic group of order p - 1. Of keys that `KeyPair.generate`
    drew, the owner knows a generator: a power of it with an exponent uniform below p - 1 is
    uniform in the group, exactly as ``r^n`` is, and comes from a table. So this needs no
    assumption beyond Paillier's. For other keys, ``r^p mod p^2`` is computed as it stands.
    """

    __slots__ = ("_inverse", "_primes", "_tables")

    def __init__(
        self, keys: KeyPair, ledger: Ledger | None = None, randomness: Randomness = SYSTEM
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
        return [x + (y - x) * inverse % square * step for x, y in zip(a, b, strict=True)]

    def _parts(self, prime: Prime, table: FixedBase | None, count: int) -> list[mpz]:
        exponents = [self.randomness.below(int(prime.p) - 1) for _ in range(count)]
        if table is not None:
            return table.powers(exponents)
        return [powmod(e + 1, prime.p, prime.square) for e in exponents]


class DJNObfuscators(Obfuscators):
    """``(h^n)^a mod n^2`` with ``h = -x^2``, a of half the length of n, from a table.

    For whoever has the public key alone and needs many (Damgaard, Jurik, Nielsen 2010).
    Assumption beyond Paillier's: that such a short power of h is not told from a random element
    of the group that h generates, the elements of Jacobi symbol 1.

    Raises `UsageError` if the key has no such base.
    """

    __slots__ = ("_bound", "_table")

    def __init__(
        self, public: PublicKey, ledger: Ledger | None = None, randomness: Randomness = SYSTEM
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
