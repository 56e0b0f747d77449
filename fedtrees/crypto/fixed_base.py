"""Powers of one base, from a table."""

from __future__ import annotations

from collections.abc import Sequence

from gmpy2 import mpz

from fedtrees.crypto.secret import Unprintable

# Bits of the exponent to a table row: 1,024 bits take 114 multiplications instead of some 1,200,
# and a table modulo a 2,048-bit number takes 17 MB, twice as much for every further bit.
_WINDOW = 9

# Powers are computed so many at a time, row by row: a row then stays in the processor's cache.
_BATCH = 256


class FixedBase(Unprintable):
    """Powers of a base modulo a number (Brickell et al. 1992, with a table for every digit).

    Parameters
    ----------
    base, modulus : int
    exponent_bits : int
        No exponent is longer.
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
