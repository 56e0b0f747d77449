"""Encrypted integer arrays that can be added, with many elements per ciphertext."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from fedtrees.core.messages import Sealed
from fedtrees.crypto import marked, paillier
from fedtrees.crypto.keys import KeyPair, PublicKey
from fedtrees.crypto.obfuscators import Obfuscators
from fedtrees.sealing import sizes
from fedtrees.sealing.errors import MalformedError, PlaintextOverflowError, WrongKeyError
from fedtrees.sealing.ledger import Ledger
from fedtrees.sealing.slots import Slots


@dataclass(frozen=True)
class EncryptedArray:
    """An int64 array under a Paillier key, many elements per ciphertext.

    It is the sum of `terms` arrays, 1 for a single array. The ciphertexts are in the order of the
    elements. The last plaintext can have empty slots.
    """

    public: PublicKey
    slots: Slots
    shape: tuple[int, ...]
    terms: int
    ciphertexts: tuple[mpz, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        array: NDArray[np.int64],
        slots: Slots,
        obfuscators: Obfuscators,
        ledger: Ledger | None = None,
    ) -> EncryptedArray:
        """Encrypt an array.

        Parameters
        ----------
        array : int64 array
        slots : Slots
            Layout of the elements in plaintexts.
        obfuscators : Obfuscators
            One is used for each ciphertext.
        ledger : Ledger, optional
            Counts the operations.

        Raises
        ------
        PlaintextOverflowError
            If an element is beyond the limit of the slots.
        """
        # The last plaintext is padded with zeros.
        per = slots.per_plaintext(obfuscators.public.bits)
        rows = np.zeros((-(-array.size // per), per), dtype=np.int64)
        rows.ravel()[: array.size] = array.ravel()
        sealed = paillier.encrypt(slots.join(rows), obfuscators, ledger)
        return cls(obfuscators.public, slots, array.shape, 1, tuple(sealed))

    def plus(self, other: EncryptedArray, ledger: Ledger | None = None) -> EncryptedArray:
        """Add two encrypted arrays.

        Raises
        ------
        WrongKeyError
            If they are under different keys.
        MalformedError
            If their shapes or slots differ.
        PlaintextOverflowError
            If the sum has more terms than the slots have room for.
        """
        if self.public.n != other.public.n:
            raise WrongKeyError(f"arrays of {self.public!r} and {other.public!r} do not add up")
        # Plaintexts with different layouts could be added without an error, to wrong numbers.
        if (self.shape, self.slots) != (other.shape, other.slots):
            raise MalformedError(
                f"arrays of {self.shape} in {self.slots} and {other.shape} in {other.slots} "
                "do not add up"
            )
        terms = self.terms + other.terms
        if terms > self.slots.terms:
            raise PlaintextOverflowError(
                f"a sum of {terms} arrays; their slots have room for {self.slots.terms}: "
                "make slots for more terms"
            )
        both = paillier.add(self.ciphertexts, other.ciphertexts, self.public, ledger)
        return EncryptedArray(self.public, self.slots, self.shape, terms, tuple(both))

    def opened(self, keys: KeyPair, ledger: Ledger | None = None) -> NDArray[np.int64]:
        """Decrypt the array, int64, shape `shape`.

        Raises
        ------
        WrongKeyError
            If the key is another one.
        PlaintextOverflowError
            If a plaintext does not fit the slots.
        """
        if keys.public.n != self.public.n:
            raise WrongKeyError(f"an array of {self.public!r} does not open with {keys!r}")
        plain = paillier.decrypt(self.ciphertexts, keys, ledger)
        elements = self.slots.split(plain, self.slots.per_plaintext(self.public.bits))
        return elements.ravel()[: math.prod(self.shape)].reshape(self.shape)

    @property
    def payload(self) -> bytes:
        """The ciphertexts in their transmitted encoding, with a mark of the layout."""
        return self.payload_of("")

    def payload_of(self, place: str) -> bytes:
        """Return the transmitted encoding, with a mark that also contains a place.

        For example, the place is the number of a sum and the name of the sender.
        """
        read_as = _reading(self.slots, self.shape, self.terms, place)
        return marked.to_bytes(self.ciphertexts, self.public, read_as)

    def sealed(self, *keyholders: str) -> Sealed:
        """Return the array as a message field that the key holders can open."""
        payload = self.payload
        return Sealed(keyholders, self.shape, "<i8", len(payload), payload)

    @classmethod
    def from_payload(
        cls,
        payload: bytes,
        public: PublicKey,
        slots: Slots,
        shape: tuple[int, ...],
        terms: int = 1,
        place: str = "",
    ) -> EncryptedArray:
        """Read an array in its transmitted encoding.

        Parameters
        ----------
        payload : bytes
        public, slots, shape
            Expected key, layout and shape.
        terms : int
            Number of arrays that it is the sum of.
        place : str
            As in `payload_of`.

        Raises
        ------
        MalformedError
            If the length is wrong, or a number is not a ciphertext of this key.
        WrongKeyError
            If the mark is different: another key, shape, layout, number of terms or place.
        """
        # The number of ciphertexts follows from the expected layout, not from the message.
        count = sizes.array(math.prod(shape), slots, public.bits).ciphertexts
        read_as = _reading(slots, shape, terms, place)
        sealed = marked.from_bytes(payload, count, public, read_as)
        return cls(public, slots, tuple(shape), terms, tuple(sealed))


def _reading(slots: Slots, shape: tuple[int, ...], terms: int, place: str) -> str:
    return marked.reading("array", slots, shape, int(terms), place)
