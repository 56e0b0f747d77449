"""Whole numbers in vectors under one key: who can do what, and the same without work.

One party has the key. Others encrypt, add to what they cannot read, and multiply it by what is
theirs (Yang et al. 2019).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from fedtrees.sealing.errors import PlaintextOverflowError
from fedtrees.sealing.ideal import Ideal
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.sizes import ciphertext_bytes, public_key_bytes

Integers = NDArray[Any]  # of Python's whole numbers, dtype object


class Vectors(Protocol):
    """The side of the holder of the key, which opens what others computed."""

    def public_key(self) -> bytes:
        """Return what the holder tells everybody."""

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt a vector of so many numbers."""

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""


class BlindVectors(Protocol):
    """The side of whoever encrypts and computes with the public key alone."""

    ledger: Ledger

    def learn(self, key: bytes, bits: int) -> None:
        """Take in the public key."""

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
        """Multiply vectors by plain matrices, add them up, and a plain vector."""

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many ciphertexts."""


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
