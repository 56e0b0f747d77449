"""Computation with encrypted integer vectors: interfaces and ideal functionality.

One party has the key. The remaining parties encrypt vectors, add ciphertexts that they cannot
decrypt, and multiply them by local plain matrices (Yang et al. 2019). `fedtrees.crypto.vectors`
implements the interfaces.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from fedtrees.sealing.errors import PlaintextOverflowError
from fedtrees.sealing.ideal import Ideal
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.sizes import ciphertext_bytes, public_key_bytes

Integers = NDArray[Any]  # Python integers, dtype object


class Vectors(Protocol):
    """Side of the key holder: it decrypts the results of the remaining parties."""

    def public_key(self) -> bytes:
        """Return the public key in its transmitted encoding."""

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt a vector.

        Parameters
        ----------
        name : str
            Name of the vector. Only the ideal functionality uses it.
        payload : bytes
            Ciphertexts.
        count : int
            Number of elements.
        """

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""


class BlindVectors(Protocol):
    """Side of a party that encrypts and computes with the public key."""

    ledger: Ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key of `bits` bits."""

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Encrypt a vector."""

    def combined(
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
            Name of the result, shape (n,).
        parts : mapping of str to (bytes, object array)
            Encrypted vectors of shape (m,) by name, each with its plain matrix of shape (n, m), or
            with one factor per element, shape (n,).
        plain : object array, shape (n,)
            Vector that is added.
        opens : bool
            Whether the result is sent to the key holder.
        """

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""


class IdealVectors(Ideal):
    """Ideal functionality of both sides. It stores plain vectors by name."""

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Store the vector. Refuse numbers that do not fit a plaintext."""
        self._keep(name, values)
        for operation in ("obfuscators", "encrypted"):
            self.ledger.enter(operation, len(values))
        return b""

    def combined(
        self,
        name: str,
        parts: Mapping[str, tuple[bytes, Integers]],
        plain: Integers,
        *,
        opens: bool = False,
    ) -> bytes:
        """Compute the plain result as in `BlindVectors.combined`, and store it."""
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

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Return the stored vector."""
        self.ledger.enter("decrypted", count)
        return self._inside[name]

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._bits)

    def _keep(self, name: str, values: Integers) -> None:
        bound = 1 << (self._bits - 3)  # every such number is below `paillier.greatest`
        if any(not -bound < v < bound for v in values):
            raise PlaintextOverflowError(
                f"a number of more than {self._bits - 3} bits does not fit a plaintext of "
                f"{self._bits} bits; use a longer key, or fewer binary places"
            )
        self._inside[name] = values


def key_bytes(bits: int) -> int:
    """Return the number of bytes of the public key."""
    return public_key_bytes(bits, djn=True)
