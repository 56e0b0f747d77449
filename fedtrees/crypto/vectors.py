"""Whole numbers in vectors under one Paillier key, computed (`fedtrees.sealing.vectors`)."""

from collections.abc import Callable, Mapping

import numpy as np
from gmpy2 import mpz, powmod

from fedtrees.crypto import paillier
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import DJNObfuscators, PlainObfuscators
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable
from fedtrees.sealing.sizes import ciphertext_bytes
from fedtrees.sealing.vectors import Integers


class KeyedVectors(Unprintable):
    """The side of the holder of the key, which opens what others computed.

    `bits`: Of the key, where none is given.
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
    """The side of whoever encrypts and computes with the public key alone."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key.

        Raises `MalformedError` if it is none.
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

        `name`: Of the result, shape (n,).
        `parts`: mapping of str to (bytes, object array). Vectors that one cannot read, shape (m,),
        by name, each with its plain matrix, shape (n, m), or with a factor for every number, shape
        (n,).
        `plain`: object array, shape (n,).
        `opens`: Whether the holder of the key gets it: it is then hidden by ``r^n``, which leaves
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


def real(bits: int) -> tuple[Callable[[], KeyedVectors], Callable[[], BlindVectors]]:
    """Return what makes the holder's side, and any other's, each with a ledger of its own."""
    return lambda: KeyedVectors(bits, Ledger()), lambda: BlindVectors(Ledger())


def _product(found: list[mpz], powers: Integers, square: mpz) -> mpz:
    """Return the ciphertext of a sum of multiples."""
    total = mpz(1)
    for c, power in zip(found, powers, strict=True):
        total = total * powmod(c, int(power), square) % square
    return total
