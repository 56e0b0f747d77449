"""Powers of one base, from a table."""

from __future__ import annotations

from gmpy2 import mpz

from fedtrees.crypto.secret import Unprintable

# One window is one byte of the exponent: 1,024-bit exponents take 128 multiplications instead of
# some 1,200, and a table modulo a 2,048-bit number takes 10 MB. Wider windows save a tenth of the
# multiplications for each doubling of the table.
_WINDOW = 8


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

    def power(self, exponent: int) -> mpz:
        """Return base^exponent; an exponent that is too long raises OverflowError."""
        modulus, found = self._modulus, mpz(1)
        for row, digit in zip(
            self._rows, exponent.to_bytes(len(self._rows), "little"), strict=True
        ):
            found = found * row[digit] % modulus
        return found
