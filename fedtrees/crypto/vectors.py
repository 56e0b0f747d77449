"""Computation with encrypted integer vectors (Yang et al. 2019).

One party has the key. The remaining parties encrypt vectors, add ciphertexts that they cannot
decrypt, and multiply them by local plain matrices. `VectorKeyOwner` and `VectorEvaluator` are the
two sides. `IdealVectors` is the ideal functionality of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.crypto.costs import OperationCounter, ciphertext_bytes
from fedtrees.crypto.modes import IdealFunctionality, load_backend
from fedtrees.crypto.primitives import PlaintextOverflowError, SecretHolder

if TYPE_CHECKING:
    from gmpy2 import mpz

    from fedtrees.crypto.keys import KeyPair, PublicKey
    from fedtrees.crypto.obfuscators import Backend

Integers = NDArray[Any]  # Python integers, dtype object


class VectorKeyOwner(SecretHolder):
    """Side of the key holder: it decrypts the results of the remaining parties.

    Without `keys` it generates a key of `bits` bits. By default it computes with gmpy2.
    """

    def __init__(
        self,
        bits: int,
        ledger: OperationCounter,
        keys: KeyPair | None = None,
        library: Backend | None = None,
    ) -> None:
        self.ledger = ledger
        self._keys = keys or (library or load_backend()).generate(bits, base=True)

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._keys.public.payload()

    def decrypt(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt a vector with `count` elements. Only the ideal functionality uses its name."""
        ciphertexts = self._keys.public.read_ciphertexts(payload, count)
        # The appended None keeps numpy from converting the integers.
        return np.array([*self._keys.decrypt(ciphertexts, self.ledger), None], object)[:-1]

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._keys.public.bits)


class VectorEvaluator(SecretHolder):
    """Side of a party that encrypts and computes with the public key."""

    def __init__(self, ledger: OperationCounter, library: Backend | None = None) -> None:
        self.ledger, self._library = ledger, library or load_backend()

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)
        self._short = self._library.short(self._public, self.ledger)
        self._plain = self._library.plain(self._public, self.ledger)

    def encrypt(self, name: str, values: Integers) -> bytes:
        """Encrypt a vector."""
        return self._public.write_ciphertexts(self._short.encrypt([int(v) for v in values]))

    def combine(
        self,
        name: str,
        parts: Mapping[str, tuple[bytes, Integers]],
        plain: Integers,
        *,
        opens: bool = False,
    ) -> bytes:
        """Add products of encrypted vectors and plain matrices, and a plain vector.

        Parameters
        ----------
        name : str
            Name of the result. Not used.
        parts : mapping of str to (bytes, object array)
            Encrypted vectors of shape (m,) by name, each with its plain matrix of shape (n, m), or
            with one factor per element, shape (n,).
        plain : object array, shape (n,)
            Vector that is added.
        opens : bool
            Whether the result is sent to the key holder. It is then rerandomised with ``r^n``,
            which hides the obfuscators of the parts without an assumption. Short powers need one.
        """
        public, hiding = self._public, self._plain if opens else self._short
        # The encryption of the plain vector also rerandomises the sum.
        total = hiding.encrypt([int(v) for v in plain])
        for payload, matrix in parts.values():
            ciphertexts = public.read_ciphertexts(payload, matrix.shape[-1])
            with self.ledger.timed("multiplied", matrix.size):
                if matrix.ndim == 1:
                    pairs = zip(ciphertexts, matrix, strict=True)
                    products = [public.multiply(c, int(factor)) for c, factor in pairs]
                else:
                    products = [_product(ciphertexts, row, public) for row in matrix]
            total = public.add_counted(total, products, self.ledger)
        return public.write_ciphertexts(total)

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._public.bits)


def _product(ciphertexts: list[mpz], powers: Integers, public: PublicKey) -> mpz:
    """Return the ciphertext of the scalar product of plaintexts and plain factors."""
    total: mpz = 1  # a ciphertext of 0, without an obfuscator
    # A power of a ciphertext multiplies its plaintext, and a product adds plaintexts.
    for c, power in zip(ciphertexts, powers, strict=True):
        (total,) = public.add([total], [public.multiply(c, int(power))])
    return total


class IdealVectors(IdealFunctionality):
    """Ideal functionality of both sides. It stores plain vectors by name."""

    def encrypt(self, name: str, values: Integers) -> bytes:
        """Store the vector. Refuse numbers that do not fit a plaintext."""
        self._keep(name, values)
        for operation in ("obfuscators", "encrypted"):
            self.ledger.enter(operation, len(values))
        return b""

    def combine(
        self,
        name: str,
        parts: Mapping[str, tuple[bytes, Integers]],
        plain: Integers,
        *,
        opens: bool = False,
    ) -> bytes:
        """Compute the plain result as in `VectorEvaluator.combine`, and store it."""
        total = plain
        for operation in ("obfuscators", "encrypted"):
            self.ledger.enter(operation, len(plain))
        for vector_name, (_, matrix) in parts.items():
            vector = self._inside[vector_name]
            # A matrix with one axis is a factor per element.
            total = total + (matrix * vector if matrix.ndim == 1 else matrix @ vector)
            self.ledger.enter("multiplied", matrix.size)
            self.ledger.enter("added", len(plain))
        self._keep(name, total)
        return b""

    def decrypt(self, name: str, payload: bytes, count: int) -> Integers:
        """Return the stored vector."""
        self.ledger.enter("decrypted", count)
        return self._inside[name]

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._bits)

    def _keep(self, name: str, values: Integers) -> None:
        bound = 1 << (self._bits - 3)  # every such number is below `PublicKey.largest_plaintext`
        if any(not -bound < v < bound for v in values):
            raise PlaintextOverflowError(
                f"a number of more than {self._bits - 3} bits does not fit a plaintext of "
                f"{self._bits} bits; use a longer key, or fewer binary places"
            )
        self._inside[name] = values


#: Either side of the computation that has the private key, and either one that has not.
VectorDecrypter = VectorKeyOwner | IdealVectors
VectorCombiner = VectorEvaluator | IdealVectors
