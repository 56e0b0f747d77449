"""Whole numbers in vectors under one Paillier key: encrypt, add, multiply by a plain matrix, open.

One party has the key. Others encrypt, add to what they cannot read, and multiply it by what is
theirs (Yang et al. 2019); and the same without work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gmpy2 import mpz, powmod
from numpy.typing import NDArray

from fedtrees.crypto import paillier
from fedtrees.crypto.encrypted_sums import Ideal, public_key_bytes
from fedtrees.crypto.errors import PlaintextOverflowError
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.ledger import Ledger
from fedtrees.crypto.obfuscators import DJNObfuscators, PlainObfuscators
from fedtrees.crypto.secret import Unprintable
from fedtrees.crypto.sizes import ciphertext_bytes

Integers = NDArray[Any]  # of Python's whole numbers, dtype object


class KeyedVectors(Unprintable):
    """The side of the holder of the key, which opens what others computed.

    Parameters
    ----------
    bits : int
        Of the key, where none is given.
    ledger : Ledger
    keys : KeyPair, optional
    """

    def __init__(self, bits: int, ledger: Ledger, keys: KeyPair | None = None) -> None:
        self.ledger = ledger
        self._keys = keys or KeyPair.generate(bits)

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._keys.public.payload()

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt a vector of so many numbers."""
        found = paillier.from_bytes(payload, count, self._keys.public)
        return np.array([*paillier.decrypt(found, self._keys, self.ledger), None], object)[:-1]

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""
        return count * ciphertext_bytes(self._keys.public.bits)


class BlindVectors(Unprintable):
    """The side of whoever encrypts and computes with the public key alone.

    Parameters
    ----------
    ledger : Ledger
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key.

        Raises
        ------
        MalformedError
            If it is none.
        """
        self._public = PublicKey.from_payload(key, bits)
        self._short = DJNObfuscators(self._public, self.ledger)
        self._plain = PlainObfuscators(self._public, self.ledger)

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Encrypt a vector."""
        made = paillier.encrypt([int(v) for v in values], self._short, self.ledger)
        return paillier.to_bytes(made, self._public)

    def combined(
        self,
        name: str,
        parts: Mapping[str, tuple[bytes, Integers]],
        plain: Integers,
        *,
        opens: bool = False,
    ) -> bytes:
        """Multiply vectors by plain matrices, add them up, and a plain vector.

        Parameters
        ----------
        name : str
            Of the result, shape (n,).
        parts : mapping of str to (bytes, object array)
            Vectors that one cannot read, shape (m,), by name, each with its plain matrix, shape
            (n, m), or with a factor for every number, shape (n,).
        plain : object array, shape (n,)
        opens : bool
            Whether the holder of the key gets it: it is then hidden by ``r^n``, which leaves
            nothing of the obfuscators of the parts, where short powers rest on an assumption.
        """
        square, hiding = self._public.square, self._plain if opens else self._short
        total = paillier.encrypt([int(v) for v in plain], hiding, self.ledger)
        for payload, matrix in parts.values():
            found = paillier.from_bytes(payload, matrix.shape[-1], self._public)
            with self.ledger.timed("multiplied", matrix.size):
                if matrix.ndim == 1:
                    pairs = zip(found, matrix, strict=True)
                    brought = [powmod(c, int(factor), square) for c, factor in pairs]
                else:
                    brought = [_product(found, row, square) for row in matrix]
            total = paillier.add(total, brought, self._public, self.ledger)
        return paillier.to_bytes(total, self._public)

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""
        return count * ciphertext_bytes(self._public.bits)


class IdealVectors(Ideal):
    """The ideal functionality of both sides: numbers are kept by name, and no message has them."""

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Keep the vector; refuse what a plaintext has no room for."""
        self._keep(name, values)
        for done in ("obfuscators", "encrypted"):
            self.ledger.enter(done, len(values))
        return b""

    def combined(
        self,
        name: str,
        parts: Mapping[str, tuple[bytes, Integers]],
        plain: Integers,
        *,
        opens: bool = False,
    ) -> bytes:
        """Compute in the open, and keep the result."""
        total = plain
        for done in ("obfuscators", "encrypted"):
            self.ledger.enter(done, len(plain))
        for held, (_, matrix) in parts.items():
            inside = self._inside[held]
            total = total + (matrix * inside if matrix.ndim == 1 else matrix @ inside)
            self.ledger.enter("multiplied", matrix.size)
            self.ledger.enter("added", len(plain))
        self._keep(name, total)
        return b""

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Return the vector."""
        self.ledger.enter("decrypted", count)
        return self._inside[name]

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""
        return count * ciphertext_bytes(self._bits)

    def _keep(self, name: str, values: Integers) -> None:
        bound = 1 << (self._bits - 3)  # as `paillier.greatest` says
        if any(not -bound < v < bound for v in values):
            raise PlaintextOverflowError(
                f"a number of more than {self._bits - 3} bits does not fit a plaintext of "
                f"{self._bits} bits; use a longer key, or fewer binary places"
            )
        self._inside[name] = values


def key_bytes(bits: int) -> int:
    """Return the bytes of the public key that its holder tells."""
    return public_key_bytes(bits, djn=True)


def _product(found: list[mpz], powers: Integers, square: mpz) -> mpz:
    """Return the ciphertext of a sum of multiples."""
    total = mpz(1)
    for c, power in zip(found, powers, strict=True):
        total = total * powmod(c, int(power), square) % square
    return total
