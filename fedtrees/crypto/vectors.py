"""Whole numbers in vectors under one Paillier key: encrypt, add, multiply by a plain matrix, open.

One party has the key. Others encrypt, add to what they cannot read, and multiply it by what is
theirs (Yang et al. 2019); and the same without work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from gmpy2 import mpz, powmod
from numpy.typing import NDArray

from fedtrees.crypto import paillier
from fedtrees.crypto.encrypted_sums import public_key_bytes
from fedtrees.crypto.errors import PlaintextOverflowError
from fedtrees.crypto.keys import KeyPair
from fedtrees.crypto.ledger import Ledger, costs_of
from fedtrees.crypto.obfuscators import DJNObfuscators
from fedtrees.crypto.secret import Unprintable
from fedtrees.crypto.sizes import ciphertext_bytes

Integers = NDArray[Any]  # of Python's whole numbers, dtype object


class EncryptedVectors(Protocol):
    """What is sent, as bytes; what is received goes in likewise, under the name of its vector."""

    ledger: Ledger

    def costs(self) -> Mapping[str, float]:
        """Return what it took."""

    def public_key(self) -> bytes:
        """Return what the holder of the key tells everybody."""

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Encrypt a vector."""

    def combined(
        self, name: str, parts: Mapping[str, tuple[bytes, Integers]], plain: Integers
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
        """

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Let the holder of the key open a vector of so many numbers."""

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""


class RealVectors(Unprintable):
    """Ciphertexts as they are computed; what is sent hides how it was made.

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
        self._public = self._keys.public
        self._hiding = DJNObfuscators(self._public, ledger)

    def costs(self) -> Mapping[str, float]:
        """Return operations, CPU seconds, and ciphertexts sent."""
        return costs_of(self.ledger)

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._public.payload()

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Encrypt."""
        made = paillier.encrypt([int(v) for v in values], self._hiding, self.ledger)
        return paillier.to_bytes(made, self._public)

    def combined(
        self, name: str, parts: Mapping[str, tuple[bytes, Integers]], plain: Integers
    ) -> bytes:
        """Raise ciphertexts to powers and multiply them modulo n^2."""
        square = self._public.square
        total = paillier.encrypt([int(v) for v in plain], self._hiding, self.ledger)
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

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt."""
        found = paillier.from_bytes(payload, count, self._public)
        return np.array([*paillier.decrypt(found, self._keys, self.ledger), None], object)[:-1]

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""
        return count * ciphertext_bytes(self._public.bits)


class IdealVectors(Unprintable):
    """The ideal functionality: numbers are kept under their names, and nothing is in the messages.

    Parameters
    ----------
    bits : int
        Of the key whose ciphertexts are counted.
    ledger : Ledger
        Work that is not done is counted, and takes no time.
    """

    def __init__(self, bits: int, ledger: Ledger) -> None:
        self._bits, self.ledger = bits, ledger
        self._inside: dict[str, Integers] = {}

    def costs(self) -> Mapping[str, float]:
        """Return the same, without the time."""
        return costs_of(self.ledger)

    def public_key(self) -> bytes:
        """Return nothing."""
        return b""

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Keep the vector; refuse what a plaintext has no room for."""
        self._keep(name, values)
        for done in ("obfuscators", "encrypted"):
            self.ledger.enter(done, len(values))
        return b""

    def combined(
        self, name: str, parts: Mapping[str, tuple[bytes, Integers]], plain: Integers
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
    """Return the bytes of the public key that `EncryptedVectors.public_key` tells."""
    return public_key_bytes(bits, djn=True)


def _product(found: list[mpz], powers: Integers, square: mpz) -> mpz:
    """Return the ciphertext of a sum of multiples."""
    total = mpz(1)
    for c, power in zip(found, powers, strict=True):
        total = total * powmod(c, int(power), square) % square
    return total
