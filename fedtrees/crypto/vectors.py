"""Computation with integer vectors under a Paillier key (`fedtrees.sealing.vectors`)."""

from collections.abc import Callable, Mapping

import numpy as np
from gmpy2 import mpz

from fedtrees.crypto import paillier
from fedtrees.crypto.backends import BACKENDS, Backend, backend
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.secret import Unprintable
from fedtrees.sealing.sizes import ciphertext_bytes
from fedtrees.sealing.vectors import Integers


class KeyedVectors(Unprintable):
    """Side of the key holder: it decrypts the results of the remaining parties.

    Without `keys` it generates a key of `bits` bits. By default it computes with gmpy2.
    """

    def __init__(
        self,
        bits: int,
        ledger: Ledger,
        keys: KeyPair | None = None,
        library: Backend | None = None,
    ) -> None:
        self.ledger = ledger
        self._keys = keys or (library or backend()).generate(bits, base=True)

    def public_key(self) -> bytes:
        """Return n, and the base of short obfuscators."""
        return self._keys.public.payload()

    def opened(self, name: str, payload: bytes, count: int) -> Integers:
        """Decrypt a vector with `count` elements."""
        ciphertexts = paillier.from_bytes(payload, count, self._keys.public)
        return np.array([*paillier.decrypt(ciphertexts, self._keys, self.ledger), None], object)[
            :-1
        ]

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._keys.public.bits)


class BlindVectors(Unprintable):
    """Side of a party that encrypts and computes with the public key."""

    def __init__(self, ledger: Ledger, library: Backend | None = None) -> None:
        self.ledger, self._library = ledger, library or backend()

    def learn(self, key: bytes, bits: int) -> None:
        """Store the public key. Raise `MalformedError` if it is invalid."""
        self._public = self._library.read(key, bits)
        self._short = self._library.short(self._public, self.ledger)
        self._plain = self._library.plain(self._public, self.ledger)

    def encrypted(self, name: str, values: Integers) -> bytes:
        """Encrypt a vector."""
        ciphertexts = paillier.encrypt([int(v) for v in values], self._short, self.ledger)
        return paillier.to_bytes(ciphertexts, self._public)

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
        total = paillier.encrypt([int(v) for v in plain], hiding, self.ledger)
        for payload, matrix in parts.values():
            ciphertexts = paillier.from_bytes(payload, matrix.shape[-1], public)
            with self.ledger.timed("multiplied", matrix.size):
                if matrix.ndim == 1:
                    pairs = zip(ciphertexts, matrix, strict=True)
                    products = [public.multiply(c, int(factor)) for c, factor in pairs]
                else:
                    products = [_product(ciphertexts, row, public) for row in matrix]
            total = paillier.add(total, products, public, self.ledger)
        return paillier.to_bytes(total, public)

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` ciphertexts."""
        return count * ciphertext_bytes(self._public.bits)


def real(
    bits: int, library: str = BACKENDS[0]
) -> tuple[Callable[[], KeyedVectors], Callable[[], BlindVectors]]:
    """Return factories of both sides, each with a separate ledger. `library` names the backend."""
    chosen_backend = backend(library)
    return (
        lambda: KeyedVectors(bits, Ledger(), library=chosen_backend),
        lambda: BlindVectors(Ledger(), chosen_backend),
    )


def _product(ciphertexts: list[mpz], powers: Integers, public: PublicKey) -> mpz:
    """Return the ciphertext of the scalar product of plaintexts and plain factors."""
    total = mpz(1)
    # A power of a ciphertext multiplies its plaintext, and a product adds plaintexts.
    for c, power in zip(ciphertexts, powers, strict=True):
        (total,) = public.add([total], [public.multiply(c, int(power))])
    return total
